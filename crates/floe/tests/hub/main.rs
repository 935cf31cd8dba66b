//! The hub and its clients on real sockets. Each file keeps one kind of promise.

mod access;
mod disks;
mod faults;
mod hostile;
mod listed;
mod quotas;
mod reads;
mod strangers;
mod support;
mod traces;
mod transfers;

//! The hub and its clients on real sockets. Each file keeps one kind of promise.

mod access;
mod faults;
mod hostile;
mod reads;
mod support;
mod traces;
mod transfers;

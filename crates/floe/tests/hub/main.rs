//! The hub and its clients on real sockets. Each file keeps one kind of promise.

mod access;
#[path = "../support/bucket/mod.rs"]
mod bucket;
mod buckets;
mod disks;
mod faults;
mod hostile;
mod listed;
mod pool;
mod quotas;
mod reads;
mod strangers;
mod support;
mod swarm;
mod traces;
mod transfers;

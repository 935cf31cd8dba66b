//! The hub and its clients on real sockets. Each file keeps one kind of promise.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod access;
mod beside;
#[path = "../support/bucket/mod.rs"]
mod bucket;
mod buckets;
mod disks;
mod doubts;
mod faults;
mod hostile;
mod listed;
mod names;
#[allow(dead_code, reason = "most of it is for tests with machines")]
#[path = "../support/node.rs"]
mod node;
mod pool;
mod quotas;
mod reads;
mod strangers;
mod support;
mod swarm;
mod traces;
mod transfers;

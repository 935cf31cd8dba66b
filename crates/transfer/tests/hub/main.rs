//! The hub and its clients on real sockets, without the `floe` command. Each file keeps one kind of promise.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod access;
mod bucket;
mod buckets;
mod disks;
mod faults;
mod hostile;
mod names;
mod pool;
mod quotas;
mod reads;
mod strangers;
mod support;
mod swarm;
mod traces;
mod transfers;

//! What needs several hosts, or nodes that reach each other.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

#[path = "../support/mod.rs"]
mod support;

mod clusters;
mod dispatch;
mod ensembles;
mod forks;
mod guests;
mod households;
mod independence;
mod members;
mod moves;
mod mpi;
mod networks;
mod offload;
mod placement;
mod pool_host;
mod sealed;
mod strangers;
mod swarm;
mod typed;
mod wire;

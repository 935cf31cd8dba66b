//! What needs several hosts, or nodes that reach each other.

#[path = "../support/mod.rs"]
mod support;

mod clusters;
mod dispatch;
mod ensembles;
mod forks;
mod guests;
mod independence;
mod mpi;
mod networks;
mod placement;
mod pool_host;
mod strangers;
mod swarm;
mod wire;

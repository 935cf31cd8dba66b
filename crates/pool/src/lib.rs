//! Machines that stand still in memory: substrates, docked and activated ([`pool`]), and several of them activated together, in one network
//! ([`ensemble`]).
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod ensemble;
pub mod pool;

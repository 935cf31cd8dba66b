//! What is done with one machine: it is started, restored, stopped and watched ([`machines`]), run by a name ([`run`]), captured
//! ([`capture`]), brought to another size ([`resize`], [`shrink`], [`trim`]), reached in its guest ([`agents`]) and at its screen
//! ([`screens`]), and its vCPUs are given cores ([`vcpus`]).
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod agents;
pub mod capture;
pub mod dirs;
pub mod machines;
pub mod prune;
pub mod resize;
pub mod run;
pub mod screens;
pub mod shrink;
pub mod trim;
pub mod vcpus;

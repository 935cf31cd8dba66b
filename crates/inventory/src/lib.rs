//! Which machines a node has: the [`inventory`] with each machine's record, lifecycle and turn, and what of the host each was promised
//! ([`resources`], [`network`]). [`host`] says what the host can; [`core`] has the node's options, directory, events and threads.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod core;
pub mod host;
pub mod inventory;
pub mod network;
pub mod resources;

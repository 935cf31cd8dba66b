//! What the `floe` command and nodes do with a hub on real sockets. What needs neither is in `crates/transfer/tests/hub`.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod beside;
mod doubts;
mod listed;
#[allow(dead_code, reason = "most of it is for tests with machines")]
#[path = "../support/node.rs"]
mod node;
#[allow(dead_code, reason = "most of it is for tests without the command")]
#[path = "../../../transfer/tests/hub/support.rs"]
mod support;

//! What needs a Debian as users have it.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod dock;
mod hardware;
mod packages;
mod shop;
mod tour;

//! What needs a Debian as users have it.

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod dock;
mod hardware;
mod packages;
mod shop;
mod tour;

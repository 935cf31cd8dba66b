//! One test or a few for each promise on the README's first page, with the small guest: what `make test` runs of tests with guests.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

#[path = "../support/mod.rs"]
mod support;

mod clusters;
mod dock;
mod exec;
mod forks;
mod guests;
mod imports;
mod life;
mod machines;
mod other_users;
mod park;
mod resources;
mod sessions;
mod standing;
mod strangers;
mod streaming;
mod verbs;

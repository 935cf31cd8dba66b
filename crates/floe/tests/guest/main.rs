//! All else that is tested on one host with the small guest.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

#[path = "../support/mod.rs"]
mod support;

mod blanks;
mod buckets;
mod exec;
mod foreign;
mod grow;
mod households;
mod imports;
mod left_alone;
mod life;
mod machines;
mod other_users;
mod park;
mod pool;
mod resize;
mod resources;
mod scheduling;
mod standing;
mod streaming;
mod users;
mod verbs;
mod who_asks;

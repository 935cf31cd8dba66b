//! All else that is tested on one host with the small guest.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../source/tests/common/odd.rs"]
mod odd;
#[path = "../support/mod.rs"]
mod support;

mod blanks;
mod buckets;
mod exec;
mod expiry;
mod foreign;
mod grow;
mod hooks;
mod hosts;
mod households;
mod imports;
mod inputs;
mod isolated;
mod left_alone;
mod life;
mod machines;
mod moments;
mod odd_sources;
mod other_users;
mod park;
mod pool;
mod qemu_update;
mod reboots;
mod resize;
mod resources;
mod restored;
mod rollback;
mod scheduling;
mod standing;
mod streaming;
mod trim;
mod typed;
mod users;
mod vcpus;
mod verbs;
mod who_asks;

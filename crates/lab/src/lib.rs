//! floe-lab finds out how well floe works: each figure against its alternative, measured in the same run.
//!
//! ```text
//! floe-lab list                                   what there is to measure
//! floe-lab import --json import.json              run one experiment
//! floe-lab link --rate 7.2mbit --delay 60ms       a slow link between two network namespaces, for anyone
//! ```
//!
//! - [`link`]: the link emulator, a state machine and its driver.
//! - [`sim`]: streaming in virtual time: recorded runs ([`traces`]) replayed through the live planner; [`plot`]: pictures of it.
//! - [`harness`]: interleaved runs, statistics, the report.
//! - [`experiments`]: one file each; what they measure is the real thing, over the real kernel, QEMU and network.
//! - [`workloads`]: what a user does in a guest, scripted; the traces that the simulator replays are collected from it.
//! - [`content`]: an image's chunks, looked up by those who count them.
//! - [`guest`]: the guests that experiments run, built from Debian packages by `guests/build`.
//!
//! Not here: tests of right and wrong (each crate has its own), anything that ships to a user.

pub mod content;
pub mod experiments;
pub mod guest;
pub mod harness;
pub mod link;
pub mod plot;
pub mod signals;
pub mod sim;
pub mod traces;
pub mod workload;
pub mod workloads;

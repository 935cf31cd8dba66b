//! floe-lab measures how well floe works: each figure is compared with its alternative, measured in the same run.
//!
//! ```text
//! floe-lab list                                   what can be measured
//! floe-lab import --json import.json              run one experiment
//! floe-lab all                                    the papers' tables and figures, with what was recorded beside them
//! floe-lab link --rate 7.2mbit --delay 60ms       a slow link between two network namespaces, for any use
//! ```
//!
//! - [`experiments`]: the list of all of them, and one file for each that is in no crate of its own; they measure the real product on the
//!   real kernel, QEMU and network.
//! - [`papers`]: the tables and figures of the five papers, and where their counterparts are recorded.
//!
//! Other experiments are in floe-torture, floe-contention and floe-delivery; what all of them stand on in floe-testbed, virtual time in
//! floe-simulator.
//!
//! These crates contain no tests of correctness (each crate has its own), and nothing that users install.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod experiments;
pub mod papers;

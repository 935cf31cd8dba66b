//! floe-lab measures how well floe works: each figure is compared with its alternative, measured in the same run.
//!
//! ```text
//! floe-lab list                                   what can be measured
//! floe-lab import --json import.json              run one experiment
//! floe-lab all                                    the papers' tables and figures, with what was recorded beside them
//! floe-lab link --rate 7.2mbit --delay 60ms       a slow link between two network namespaces, for any use
//! ```
//!
//! - [`link`]: the link emulator, a state machine and its driver.
//! - [`live`]: real nodes and hubs as processes, for experiments and workloads.
//! - [`shape`]: which chunks an image has and their sizes, as far as the simulators need to know.
//! - [`sim`]: streaming in virtual time: replays recorded runs ([`traces`]) through the live planner; [`plot`]: draws
//!   plots of it.
//! - [`swarm_sim`]: swarms in virtual time: up to 1024 hosts replay such runs, driven by the live policy.
//! - [`predict`]: what the paper's model says of a swarm.
//! - [`harness`]: interleaved runs, statistics, the report.
//! - [`experiments`]: one file each; they measure the real product on the real kernel, QEMU and network.
//! - [`io_sim`]: machines that share such a disk in virtual time, with a policy of floe-sched or mClock before it.
//! - [`cpu_sim`]: machines that share a host's cores in virtual time, with a policy of floe-sched or a peer.
//! - [`slow_disk`]: a disk with a known time for each request, for the host's kernel and in virtual time.
//! - [`workloads`]: scripts of what a user does in a guest; they yield the traces that the simulator replays.
//! - [`launch`]: recorded launches and the order of their replay, through a mount and in virtual time.
//! - [`papers`]: the tables and figures of the five papers, and where their counterparts are recorded.
//! - [`content`]: an image's chunks, for experiments that count them.
//! - [`guest`]: the guests that experiments run, built from Debian packages by `guests/build`.
//!
//! This crate contains no tests of correctness (each crate has its own), and nothing that users install.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod content;
pub mod cpu_sim;
pub mod experiments;
pub mod guest;
pub mod harness;
pub mod io_sim;
pub mod launch;
pub mod link;
pub mod live;
pub mod papers;
pub mod plot;
pub mod predict;
pub mod shape;
pub mod signals;
pub mod sim;
pub mod slow_disk;
pub mod swarm_sim;
pub mod traces;
pub mod workload;
pub mod workloads;

//! What experiments stand on: real nodes, hubs and guests, links and disks of a known speed, and how a figure is made and told.
//!
//! - [`harness`]: interleaved runs, statistics, the report; [`plot`]: small pictures of figures.
//! - [`live`]: real nodes and hubs as processes of `floe-lab`; [`cluster`]: several of them as one.
//! - [`guest`]: the guests that experiments run, built from Debian packages by `crates/lab/guests/build`; [`web`]: their web servers.
//! - [`link`]: the link emulator, a state machine and its driver; [`wan`]: two hosts with a slow link between them.
//! - [`slow_disk`]: a disk with a known time for each request, for the host's kernel and in virtual time.
//! - [`local`]: a mount with everything local; [`plain`]: QEMU without floe.
//! - [`content`]: an image's chunks; [`shape`]: which chunks it has and their sizes, as far as the simulators need to know.
//! - [`workload`]: data to measure with; [`workloads`]: scripts of what a user does in a guest, which yield the [`traces`] of `lab/traces/`.
//! - [`launch`]: recorded launches and the order of their replay, through a mount and in virtual time.
//!
//! It measures nothing itself: what is compared with what is in the crates of experiments, and virtual time in floe-simulator.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod cluster;
pub mod content;
pub mod guest;
pub mod harness;
pub mod launch;
pub mod link;
pub mod live;
pub mod local;
pub mod plain;
pub mod plot;
pub mod shape;
pub mod signals;
pub mod slow_disk;
pub mod traces;
pub mod wan;
pub mod web;
pub mod workload;
pub mod workloads;

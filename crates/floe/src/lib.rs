//! The floe binary's parts: the node that runs machines on one host, the hub that serves images to many, and the
//! client and vocabulary between them.
//!
//! *For:* gluing the lower crates into processes. [`node`] owns the host's images, cache, mount and machines and
//! answers on a unix socket; [`hub`] owns a catalogue and packs and answers over TLS; [`up`] is both in one process.
//! *Not for:* anything that a test could run without a socket or a child process; that belongs to the crates below.
//!
//! Start reading at
//! - [`api`]: every request, answer and event of the node (the contract between command line and node),
//! - [`client::Client`]: the same as function calls,
//! - [`node::serve`]: the daemon,
//! - [`credentials`]: tokens of hubs, and to whom they may be sent,
//! - [`page`]: what a browser gets of node and hub,
//! - [`paths::Home`]: where everything lies on the disk.

pub mod api;
pub mod cli;
pub mod client;
pub mod credentials;
pub mod doctor;
mod front;
pub mod hub;
pub mod node;
pub mod page;
pub mod paths;
pub mod telemetry;
pub mod traces;
pub mod transfer;
pub mod up;

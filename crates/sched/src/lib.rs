//! Decides whose request goes first where many machines share one disk or one link, and where their vCPUs run.
//!
//! Whoever serves requests (the fetcher's threads, the mount's disk workers) puts each one into a [`Policy`], with [`Who`]
//! asks, and takes the next one out. The crate only decides the order: it doesn't serve requests, measure time, or know what a
//! request is. It does no I/O and reads no clock; times are arguments, so that the live system and a simulator run the same
//! code.
//!
//! - [`Who`] is which machine asks, for what [`Purpose`], and how urgent its [`Class`] is.
//! - [`Policy`] is the interface of a bounded queue with an order.
//! - [`Fifo`] is a policy: first come, first served.
//! - [`Vsip`] is another: what a person waits for goes first, and each machine has its share.
//! - [`classify`] decides how urgent a request is, by what a person in front of the machine did before.
//! - [`cpu`] keeps the vCPUs of one machine apart and abreast on a host's cores.
//! - [`writeback`] bounds what a machine has written and its disk hasn't, and divides flushes into pieces.

pub mod classify;
pub mod cpu;
mod fifo;
mod policy;
mod status;
mod vsip;
mod who;
pub mod writeback;

pub use fifo::Fifo;
pub use policy::{Full, Op, Policy};
pub use status::{ClassStatus, Limit, MachineStatus, Status};
pub use vsip::{Vsip, VsipConfig};
pub use who::{Class, MachineId, Purpose, Who};

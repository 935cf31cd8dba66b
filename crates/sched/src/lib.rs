//! Who goes first, where the requests of many machines meet at one disk or one link.
//!
//! *For:* deciding the order. Whoever serves requests (the fetcher's threads, the mount's disk workers) puts each one into
//! a [`Policy`] together with [`Who`] asks, and takes the next one out. *Not for:* serving them, measuring time, or knowing
//! what a request is: this crate does no I/O and reads no clock, times come in as arguments, so that the live system and a
//! simulator drive the same code.
//!
//! - [`Who`] says which machine asks, for what [`Purpose`] and how urgent its [`Class`] is.
//! - [`Policy`] is the interface of a bounded queue with an order.
//! - [`Fifo`] is the first policy: first come, first served.

mod fifo;
mod policy;
mod who;

pub use fifo::Fifo;
pub use policy::{Full, Policy};
pub use who::{Class, MachineId, Purpose, Who};

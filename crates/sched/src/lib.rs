//! Decides whose request goes first where many machines share one disk or one link.
//!
//! Whoever serves requests (the fetcher's threads, the mount's disk workers) puts each one into a [`Policy`], with [`Who`]
//! asks, and takes the next one out. The crate only decides the order: it doesn't serve requests, measure time, or know what a
//! request is. It does no I/O and reads no clock; times are arguments, so that the live system and a simulator run the same
//! code.
//!
//! - [`Who`] is which machine asks, for what [`Purpose`], and how urgent its [`Class`] is.
//! - [`Policy`] is the interface of a bounded queue with an order.
//! - [`Fifo`] is a policy: first come, first served.
//! - [`Classifier`] decides how urgent a request is, by what a person in front of the machine did before.
//! - [`WriteBack`] bounds what a machine has written and its disk hasn't, and divides flushes into pieces.

mod classify;
mod fifo;
mod policy;
mod who;
mod writeback;

pub use classify::{
    Classifier, ImageId, List, ListError, Name, NameError, Op, Owned, Place, Program,
    ProgramStatus, Rule, Scope, Seen, Status, Tally,
};
pub use fifo::Fifo;
pub use policy::{Full, Policy};
pub use who::{Class, MachineId, Purpose, Who};
pub use writeback::{Action, Admission, FlushId, Ticket, WriteBack, WriteBackOptions};

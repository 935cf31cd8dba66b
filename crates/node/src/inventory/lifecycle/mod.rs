//! A machine's life: which operation it has, why it stands still, and which status it is shown with.
//!
//! - `state`: the [`Task`]s, of which a machine has one at a time, and the status that follows from what is wanted of it and
//!   what its QEMU reports. No I/O.
//! - `decide`: why a machine's CPUs stand still, as a set of reasons, and what is to be done next so that disk and QEMU agree
//!   with it. A state machine without I/O.
//! - `drive`: carries that out on the record and over QMP.
//!
//! A machine that is parked, docked or offloaded will stand still for a reason of its own: a variant of
//! [`crate::inventory::record::PauseReason`], with the same decisions.
//!
//! Locks, in this order: [`crate::inventory::Entry`]'s `pauses`, `operation`, `standing`, `writing`, `state`.

mod decide;
mod drive;
mod state;

pub(crate) use decide::{Event, Standing};
pub(crate) use state::{Qemu, Task, status};

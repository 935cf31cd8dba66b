//! A machine's life: its phase, the operation that it has, and why it stands still.
//!
//! - `state`: the words for it: [`Phase`], [`Task`], and the status that users see. No I/O.
//! - `decide`: [`Life`], a state machine without I/O or a clock. It alone decides what the record on the disk says about
//!   phase and reasons, what QEMU is told, and which events are published.
//! - `drive`: carries the decisions out on the record and over QMP, in an order that leaves nothing standing after a kill.
//!
//! Why a machine stands still is a set of [`floe_api::PauseReason`]s, each of which begins and ends by itself. A machine
//! without a QEMU has none: a parked one is in a phase of its own, and one that is docked goes on or has ended ([`Gone::Captured`]).
//!
//! Locks, in this order: [`crate::inventory::Entry`]'s `pauses`, `driving`, `writing`, then `life` and `state`, which are only
//! held for a moment and never while the disk or QEMU is waited for.

mod decide;
mod drive;
mod state;
#[cfg(test)]
mod tests;

pub use decide::{Event, Life, OnDisk};
pub use drive::Tell;
pub use floe_ground::news::Gone;
pub use state::{Phase, Qemu, Task, foremost, status};

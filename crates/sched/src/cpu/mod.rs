//! Which vCPU runs on which core, and when: policies for machines that share a host's cores.
//!
//! A vCPU that holds a lock may lose its core; its siblings then spin for a lock that nobody can release. Self-boosted co-scheduling
//! (Wang, chapter 4) keeps siblings on different cores and their places in the queues close. `docs/cpu-scheduling.md` has the decisions.
//!
//! - [`Scheduler`]: events of tasks and cores in, who runs where out.
//! - [`Queues`]: the run queues that all policies share; [`Base`]: the kernel's order in them, as it was ([`Base::cfs`]) and is
//!   ([`Base::eevdf`]); [`Tree`]: how many are before each.
//! - [`Policy`]: [`Plain`] (the kernel alone), [`Balance`], [`Sbco`], [`Gang`], and [`Told`], our own.
//! - [`user`]: what a program beside the kernel's scheduler can do of it.

mod base;
mod debts;
mod gang;
mod place;
mod policy;
mod queues;
mod sbco;
mod scheduler;
#[cfg(test)]
mod tests;
mod threshold;
mod told;
mod tree;
pub mod user;

pub use base::{Base, Cfs, MS, WEIGHT, service_ns, virtual_ns};
pub use gang::Gang;
pub use policy::{Balance, Plain, Policy, Tell};
pub use queues::{Core, Debt, Dirty, Ledger, Place, Queues, Task, TaskId};
pub use sbco::Sbco;
pub use scheduler::{AddError, Scheduler, Stop, TASKS_MAX, Woken};
pub use threshold::{Adaptive, LEAST, MOST, TWO_THIRDS, Threshold};
pub use told::Told;
pub use tree::{Key, Tree};

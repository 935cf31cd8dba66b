//! Machines that share a host's cores, in virtual time: the run queues and policies are floe-sched's own ([`floe_sched::cpu`]).
//!
//! - [`workload`]: what runs in the guests; [`guest`]: threads, the guest's own scheduler with a queue for each vCPU, locks that spin or
//!   sleep, barriers, queues.
//! - [`world`]: cores, ticks, switches, wake-ups, exits of loops of pauses.
//! - [`peers`]: what others do about the same, for comparison.
//!
//! Spin locks are not taken one by one. A guest's kernel takes some 170,000 in a second and holds each for half a microsecond; what
//! matters is which of them are held when a vCPU loses its core. So a vCPU that is stopped while it computes holds one with the
//! probability that is the part of its time for which it does, and siblings run into it after a time that is exponential with the rate at
//! which they take that lock. This is the same as taking each one, as far as these come independently of each other, and hundreds of
//! times quicker. Contention between vCPUs that both run is not modelled: it is there without virtualisation, too.
//!
//! Not modelled either: caches (but for a switch's fixed cost), hyperthreads, memory nodes, the host's own threads, the time of an exit.
//! `docs/cpu-scheduling.md` has the numbers.
pub mod guest;
pub mod peers;
pub mod random;
mod sem;
pub mod workload;
pub mod world;

pub use guest::LockKind;
pub use peers::{DirectedYield, HolderBoost};
pub use workload::{FINITE, Workload};
pub use world::{Outcome, Setup, World};

//! Experiments about machines that share one host's disk, cores and memory: who waits for whom, and what that costs.
//!
//! - The disk: [`io`], the same in virtual time ([`io_sim`]), of which requests it is known who waits ([`io_who`]), and what that costs
//!   ([`io_cost`]).
//! - The cores: [`cpu_sim`] in virtual time, [`cpu_user`] and [`cpu_scx`] on the host; [`switch`]: what a switch costs in a guest.
//! - [`density`]: the memory of each further clone; [`isolation`]: what an idle machine costs the one beside it.
//!
//! What several hosts share is in floe-delivery.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod cpu_scx;
pub mod cpu_sim;
pub mod cpu_user;
pub mod density;
pub mod io;
pub mod io_cost;
pub mod io_sim;
pub mod io_who;
pub mod isolation;
pub mod switch;

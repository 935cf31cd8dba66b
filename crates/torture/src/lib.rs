//! Experiments that try to break floe: each tells how many of its promises were broken, which is to be none.
//!
//! - [`hammer`]: kills and errors everywhere under guests that write and verify; [`ways`]: each way in which a machine comes to run after each
//!   other one; [`churn`]: parents that fork and join without end.
//! - [`hub_hostile`]: a hub and a cluster's port among strangers; [`odd_sources`]: servers that answer oddly; [`fuzz`]: every parser of foreign
//!   bytes.
//!
//! How fast floe is, is measured elsewhere. The tests that run these experiments for some minutes are in `crates/lab/tests`, beside the
//! command that they run.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

pub mod churn;
pub mod fuzz;
pub mod hammer;
pub mod hub_hostile;
pub mod odd_sources;
pub mod ways;

//! The images of a node: the repository, the cache and the mount ([`images`]), directories of the user's choice ([`views`]), what machines
//! touched ([`traces`]), and how their disk requests fare ([`io_report`]).
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod images;
pub mod io_report;
pub mod traces;
pub mod views;

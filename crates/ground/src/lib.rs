//! What every service of a node stands on: its errors with a way out for the user ([`error`]), its options, the names of machines, what
//! is told of what happens ([`news`]), who asks ([`caller`]), files that are whole or not there ([`files`]), how long somebody waits
//! ([`patience`]), and decisions that several services share ([`plan`], [`vnc`], [`pays`]).
//!
//! It knows no service, and owns nothing.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod aside;
pub mod caller;
pub mod error;
pub mod failure;
pub mod files;
pub mod firmware;
pub mod guard;
pub mod io;
pub mod keyboard;
pub mod logs;
pub mod names;
pub mod news;
pub mod options;
pub mod patience;
pub mod pays;
pub mod plan;
pub mod programs;
pub mod report;
pub mod reserve;
pub mod time;
pub mod typist;
pub mod vnc;

//! What the test programs with guests share: nodes, hosts, commands, and what several tests of one thing need.
#![allow(dead_code, reason = "no program uses all of it")]

#[path = "../../../transfer/tests/hub/bucket/mod.rs"]
pub mod bucket;
pub mod clusters;
pub mod command;
pub mod dock;
pub mod exec;
pub mod forks;
pub mod guests;
pub mod hosts;
pub mod importing;
pub mod imports;
pub mod life;
pub mod machines;
pub mod node;
pub mod other_users;
pub mod park;
pub mod resources;
pub mod sniff;
pub mod sockets;
pub mod standing;
pub mod strangers;
pub mod streaming;
pub mod terminal;
pub mod verbs;

//! Where and when the virtual CPUs of machines run, so that those of one machine (siblings) run side by side.

pub mod user;

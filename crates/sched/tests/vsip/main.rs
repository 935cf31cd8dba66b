//! What vSIP promises, measured in virtual time: `figures` has the numbers, `promises` random machines, `faults` and `liars` what goes wrong.

mod faults;
mod figures;
mod liars;
mod programs;
mod promises;
mod world;

//! What vSIP promises, measured in virtual time: `figures` has the numbers, `promises` random machines.

mod faults;
mod figures;
mod programs;
mod promises;
mod world;

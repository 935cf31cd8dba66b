//! A host in virtual time: cores that divide themselves by weight, a kernel that places threads well or badly, and machines on them.

mod faults;
mod helps;
mod world;

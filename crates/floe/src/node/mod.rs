//! The node: runs machines on one host and keeps their images, chunks and disks.

mod names;
pub use names::{MachineName, NameError};

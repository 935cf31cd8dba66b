//! The process that holds the descriptors.

use crate::MountError;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Serves `socket` until a client says quit. Run it in a process of its own.
#[allow(unused_variables, clippy::unimplemented)]
pub fn run(socket: &Path) -> Result<(), MountError> {
    unimplemented!()
}

/// A connection to the supervisor.
pub struct Client {}

#[allow(unused_variables, clippy::unimplemented)]
impl Client {
    /// Connects.
    pub fn connect(socket: &Path) -> Result<Self, MountError> {
        unimplemented!()
    }
    /// Gives a copy of a descriptor to be held under `name`, instead of the one that is there.
    pub fn put(&mut self, name: &str, fd: impl AsFd) -> Result<(), MountError> {
        unimplemented!()
    }
    /// A copy of the descriptor held under `name`.
    pub fn get(&mut self, name: &str) -> Result<Option<OwnedFd>, MountError> {
        unimplemented!()
    }
    /// The names of what is held.
    pub fn list(&mut self) -> Result<Vec<String>, MountError> {
        unimplemented!()
    }
    /// Closes the descriptor held under `name`; whether there was one.
    pub fn drop_fd(&mut self, name: &str) -> Result<bool, MountError> {
        unimplemented!()
    }
    /// Ends the supervisor. What it held is closed.
    pub fn quit(self) -> Result<(), MountError> {
        unimplemented!()
    }
}

//! What can go wrong, by what the caller can do about it.

use floe_image::Hash;
use std::io;
use std::path::PathBuf;

/// Why the mount can't do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// This host can't mount FUSE file systems as we are.
    #[error("cannot mount on {}: {reason}; {fix}", path.display())]
    Cannot {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel or fusermount3 said.
        reason: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// A file or system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The supervisor that holds the connections doesn't do its part.
    #[error("the supervisor at {} failed: {reason}; is `floe supervisor` running?", path.display())]
    Supervisor {
        /// Its socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The supervisor is there and does not hold what it was given.
    #[error("the supervisor at {} does not hold it: {reason}", path.display())]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// A name that is already taken or that can't be a file's name.
    #[error("{what} {name:?}: {reason}")]
    Name {
        /// What was to get it.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no such image, machine, region or disk on this mount.
    #[error("there is no {what} {name:?} here; add it first")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// By which name.
        name: String,
    },
    /// A machine's disk stands on an image that isn't on this mount.
    #[error("disk {disk} of machine {machine} stands on image {image}; add that image first")]
    BaseMissing {
        /// The machine.
        machine: String,
        /// The disk.
        disk: String,
        /// The image that its layers are relative to.
        image: Hash,
    },
    /// The overlay's files don't fit together or aren't ours.
    #[error("{}: {reason}", path.display())]
    Overlay {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the way out.
        reason: String,
    },
    /// A chunk that is needed could not be had.
    #[error("{what} is not to be had: {reason}")]
    Chunk {
        /// Which.
        what: String,
        /// What the source or the cache said.
        reason: String,
    },
}

impl MountError {
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

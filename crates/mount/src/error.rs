//! Errors of the mount.

use floe_image::Hash;
use floe_source::SourceError;
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

/// Why the mount can't do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// This process can't mount FUSE file systems on this host.
    #[error("cannot mount on {}: {reason}; {fix}", path.display())]
    Cannot {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel or fusermount3 said.
        reason: String,
        /// What to do about it.
        fix: Cow<'static, str>,
    },
    /// A file operation or system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The supervisor that holds the connections can't be reached, or doesn't answer as it should.
    #[error("the supervisor at {} failed: {reason}; is `floe supervisor` running?", path.display())]
    Supervisor {
        /// Its socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The supervisor is running, but refused to hold a descriptor.
    #[error("the supervisor at {} does not hold it: {reason}", path.display())]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// A name is already taken, or isn't allowed.
    #[error("{what} {name:?}: {reason}")]
    Name {
        /// What was to get the name: `machine` or `disk`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no such image, machine, region or disk on this mount.
    #[error("there is no {what} {name:?} here; add it first")]
    Unknown {
        /// The kind of thing that was looked for.
        what: &'static str,
        /// The name that was looked for.
        name: String,
    },
    /// A machine's blank files can't get the content of an image.
    #[error("machine {machine} can't be bound to the image: {reason}")]
    Blank {
        /// The machine.
        machine: String,
        /// What is in the way.
        reason: String,
    },
    /// A machine's disk is based on an image that isn't on this mount.
    #[error("disk {disk} of machine {machine} stands on image {image}; add that image first")]
    BaseMissing {
        /// The machine.
        machine: String,
        /// The disk.
        disk: String,
        /// The image that its layers are relative to.
        image: Hash,
    },
    /// A file that the mount keeps (a disk's layer or map, the table of inodes) doesn't fit or belongs to somebody else.
    #[error("{}: {reason}", path.display())]
    Overlay {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and how to put it right.
        reason: String,
    },
    /// A chunk that is needed could not be fetched.
    #[error("{what} is not to be had: {source}")]
    Source {
        /// Which chunk of which disk.
        what: String,
        /// What the source said, and what to do about it.
        source: SourceError,
    },
    /// A chunk that is needed could not be read.
    #[error("{what} can't be had: {reason}")]
    Chunk {
        /// Which chunk of which disk.
        what: String,
        /// What the layer reported.
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

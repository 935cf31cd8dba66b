//! Files and directories on their way between a host and a guest, the same at both ends.
//!
//! A stream consists of [`pieces`], so that one that was cut is never taken for a whole one. They hold a tar archive, whose
//! first entry is the file or the directory itself, or with [`Form::Bytes`] a file's bytes alone. [`send`] makes it and
//! [`receive`] takes it apart, which trusts nothing in it: what comes from a guest is written by a user of the host. What is a hole
//! in a file takes no place on the way and at the other end (`sparse`).

mod archive;
mod flow;
pub mod pieces;
mod receive;
mod send;
mod sparse;

pub use receive::{Place, Together, receive};
pub use send::send;

/// What a stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An archive in which holes are zeros: all that agents know that are older than [`Form::Sparse`].
    Archive,
    /// An archive that lacks files' holes, and says at its beginning how many bytes of data it has.
    Sparse,
    /// A file's bytes.
    Bytes,
}

/// What an agent says of a form that it does not know. One that is older than [`Form::Sparse`] says so before anything has been copied,
/// and is asked again for [`Form::Archive`].
pub const UNKNOWN_FORM: &str = "is no form of a copy";

/// Is told how many bytes of files' data went, and how many there are in all; 0 if that is not known.
pub type Told<'a> = &'a mut dyn FnMut(u64, u64);

/// How many bytes are read and written at a time.
const BUFFER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;

//! Files and directories on their way between a host and a guest, the same at both ends.
//!
//! A stream consists of [`pieces`], so that one that was cut is never taken for a whole one. They hold a tar archive, whose
//! first entry is the file or the directory itself, or with [`Form::Bytes`] a file's bytes alone. [`send`] makes it and
//! [`receive`] takes it apart, which trusts nothing in it: what comes from a guest is written by a user of the host.

pub mod pieces;
mod receive;
mod send;

pub use receive::{Place, receive};
pub use send::send;

/// What a stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// An archive.
    Archive,
    /// A file's bytes.
    Bytes,
}

/// How many bytes are read and written at a time.
const BUFFER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;

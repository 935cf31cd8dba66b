//! Says for a block of a disk which file it belongs to, from the disk's own file system and without help of the guest.
//!
//! Whoever orders the requests of many machines wants to know for which file each is: a machine's swap, a database's log, a program that
//! is being started. The guest knows that, and nobody need ask it, because its file system stands on the disk. A [`Map`] is made of that
//! once, and kept up by the blocks that the guest writes from then on.
//!
//! - [`Disk`] is what the caller gives: where the bytes are read. Nothing else here does I/O.
//! - [`Map`] is the map: [`Map::at`] says what a byte of the disk belongs to, [`Map::path`] what that is called, [`Map::wrote`] takes what
//!   a guest has written.
//! - [`partitions`] and [`signatures`] say where on a disk a file system is, and which. Imports use them as well.
//!
//! ext2, ext3 and ext4 are known, in partitions or on the whole disk. Everything read here may have been written by somebody hostile: all
//! work and memory is bounded by [`Limits`], and what is damaged costs no more than the files that it hits.
//!
//! A journal is not replayed. Linux writes what is in it to its place within half a minute; until then the map shows how it was.

mod bytes;
mod ext4;
mod map;
pub mod partitions;
pub mod signatures;

pub use map::{FileId, Kind, Map};
use std::io;

/// A disk whose bytes can be read.
pub trait Disk {
    /// Fills the buffer with the bytes from an offset on. Never called for bytes beyond the disk's end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// How many bytes the disk has.
    fn bytes(&self) -> u64;
}

/// A disk in memory.
impl Disk for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..));
        let found = rest.and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Why there is no map of a disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller could not read the disk.
    #[error("cannot read the disk at byte {offset}")]
    Read {
        /// Where it was read.
        offset: u64,
        /// What the caller said.
        source: io::Error,
    },
    /// Nothing on the disk is recognized.
    #[error("no file system was recognized on the disk")]
    Nothing,
    /// There is something else than ext2, ext3 or ext4.
    #[error("the disk has {0}, of which floe makes no map")]
    Unknown(&'static str),
    /// A file system uses features that change its layout in unknown ways.
    #[error("the ext4 at byte {offset} has unknown features {features:#x}")]
    Feature {
        /// Where its superblock stands.
        offset: u64,
        /// Those of the superblock's bits that are not known.
        features: u32,
    },
    /// What should be a file system makes no sense.
    #[error("the ext4 at byte {offset} is damaged: {what}")]
    Damaged {
        /// Where that is seen.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// How much a map may take, for all file systems of a disk together. A desktop's disk has some 300,000 files.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files and directories.
    pub inodes: usize,
    /// Runs of blocks, at most 60 bytes each. Those of an empty file system are among them: three for each group of blocks, mostly 128 MiB.
    /// One with more groups than this has no map.
    pub extents: usize,
    /// Bytes that names take.
    pub name_bytes: usize,
    /// Bytes that are read of the disk at once: when a map is made, or in one call of [`Map::catch_up`].
    pub read_bytes: u64,
}

impl Default for Limits {
    /// Some 200 MB of memory for the worst disk. One with a Debian takes 5 MB.
    fn default() -> Limits {
        Limits {
            inodes: 1 << 20,
            extents: 1 << 20,
            name_bytes: 64 << 20,
            read_bytes: 4 << 30,
        }
    }
}

/// How much a map lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// How often a file was left out because there are too many.
    pub inodes: u64,
    /// How often a run of blocks was.
    pub extents: u64,
    /// How often a block of a directory was, because there are too many names.
    pub directory_blocks: u64,
    /// Blocks that were not read because that would have been too many.
    pub blocks: u64,
    /// How often something was met that makes no sense.
    pub damaged: u64,
}

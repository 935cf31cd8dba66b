//! The names in directories, and the way from an inode to its path.
//!
//! What is kept of a block of a directory is what it says, without gaps: for each name the inode, the name's length and the name. A path
//! is put together when it is asked for: few files of a disk are ever asked for.

use crate::bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The root directory's inode.
pub const ROOT: u32 = 2;
/// Most components of a path that is put together. Damaged directories may be in each other.
const COMPONENTS_MAX: usize = 256;
/// Bytes of a path beyond which no more is put before it: Linux' own limit.
const PATH_BYTES_MAX: usize = 4096;
/// Bytes that a name takes here beside itself: its length, the inode, and the inode's line in `places`.
const NAME_OVERHEAD_BYTES: usize = 24;
/// Inode and length before each name.
const HEAD_BYTES: usize = 5;

/// Where names stand: a block, or an inode that has its directory in itself.
pub fn inside(inode: u32) -> u64 {
    1 << 60 | u64::from(inode)
}

/// All names of a file system.
#[derive(Clone, Debug)]
pub struct Names {
    blocks: BTreeMap<u64, Named>,
    /// Each inode, with the places where it has names.
    places: BTreeSet<(u32, u64)>,
    bytes: usize,
    bytes_max: usize,
    refused: u64,
}

/// What a block of a directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    directory: u32,
    entries: Box<[u8]>,
}

impl Named {
    fn bytes(&self) -> usize {
        let names = entries(&self.entries).count();
        self.entries.len() + names * NAME_OVERHEAD_BYTES
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.blocks == other.blocks
    }
}

impl Names {
    /// None yet, and never more than so many bytes.
    pub fn new(bytes_max: usize) -> Names {
        Names {
            blocks: BTreeMap::new(),
            places: BTreeSet::new(),
            bytes: 0,
            bytes_max,
            refused: 0,
        }
    }

    /// How many blocks of directories were left out because there are too many names.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Replaces what stands at a place by packed entries of this directory.
    pub fn set(&mut self, place: u64, directory: u32, packed: Vec<u8>) {
        let is_same =
            |known: &Named| known.directory == directory && *known.entries == *packed.as_slice();
        if self.blocks.get(&place).is_some_and(is_same) {
            return;
        }
        self.forget(place..place + 1);
        let named = Named {
            directory,
            entries: packed.into(),
        };
        let bytes = named.bytes();
        if bytes == 0 {
            return;
        }
        if self.bytes + bytes > self.bytes_max {
            self.refused += 1;
            return;
        }
        self.bytes += bytes;
        let inodes = entries(&named.entries).map(|(inode, _)| (inode, place));
        self.places.extend(inodes);
        self.blocks.insert(place, named);
    }

    /// Forgets what stands at these places.
    pub fn forget(&mut self, places: Range<u64>) {
        let known: Vec<u64> = self.blocks.range(places).map(|(place, _)| *place).collect();
        for place in known {
            let Some(named) = self.blocks.remove(&place) else {
                continue;
            };
            self.bytes -= named.bytes();
            for (inode, _) in entries(&named.entries) {
                self.places.remove(&(inode, place));
            }
        }
    }

    /// An inode's path: the one through the first blocks on the disk if it has several names. It begins with `inode N` where the name
    /// of N is not known. Bytes that are no text, and such that would do something to a terminal, are shown as U+FFFD.
    pub fn path(&self, inode: u32) -> String {
        let mut at = inode;
        let mut parts = Vec::new();
        let mut bytes = 0;
        while at != ROOT && parts.len() < COMPONENTS_MAX && bytes < PATH_BYTES_MAX {
            let Some((directory, name)) = self.name(at) else {
                break;
            };
            bytes += name.len() + 1;
            parts.push(shown(name));
            at = directory;
        }
        let mut path = match at {
            ROOT => String::new(),
            _ => format!("inode {at}"),
        };
        for part in parts.iter().rev() {
            path.push('/');
            path.push_str(part);
        }
        match path.is_empty() {
            true => "/".into(),
            false => path,
        }
    }

    /// The directory that an inode is in: the one whose name comes first on the disk if it has several.
    pub fn directory(&self, inode: u32) -> Option<u32> {
        self.name(inode).map(|(directory, _)| directory)
    }

    /// An inode's directory, and its name in it.
    fn name(&self, inode: u32) -> Option<(u32, &[u8])> {
        let mut places = self.places.range((inode, 0)..=(inode, u64::MAX));
        let named = self.blocks.get(&places.next()?.1)?;
        let mut found = entries(&named.entries).filter(|(at, _)| *at == inode);
        Some((named.directory, found.next()?.1))
    }
}

fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let is_unsafe = |c: char| c.is_control() || c == '/';
    text.replace(is_unsafe, "\u{fffd}")
}

/// Takes packed entries apart: inodes and names.
fn entries(mut packed: &[u8]) -> impl Iterator<Item = (u32, &[u8])> + Clone {
    std::iter::from_fn(move || {
        let length = usize::from(*packed.get(HEAD_BYTES - 1)?);
        let inode = Bytes(packed).le32(0);
        let (entry, rest) = packed.split_at_checked(HEAD_BYTES + length)?;
        packed = rest;
        Some((inode, &entry[HEAD_BYTES..]))
    })
}

/// Packs what a block of a directory says, or a part of an inode that holds one. The blocks of a directory's index look like ones without
/// names, to Linux before 2.6 as to this. At what makes no sense the block ends.
pub fn pack(block: &[u8], inodes_max: u32) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut rest = block;
    while rest.len() >= 8 {
        let head = Bytes(rest);
        let (inode, length) = (head.le32(0), head.le16(4));
        // 64 KiB do not fit into 16 bits
        let length = match length {
            0 | u16::MAX => rest.len(),
            length => usize::from(length),
        };
        let name_length = rest[6];
        let end = 8 + usize::from(name_length);
        if length < end || length > rest.len() {
            break;
        }
        let name = &rest[8..end];
        let is_named = inode != 0 && inode <= inodes_max && !name.is_empty();
        if is_named && name != b"." && name != b".." {
            packed.extend(inode.to_le_bytes());
            packed.push(name_length);
            packed.extend(name);
        }
        rest = &rest[length..];
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(entries: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (inode, name) in entries {
            let length = (8 + name.len()).next_multiple_of(4);
            bytes.extend(inode.to_le_bytes());
            bytes.extend((length as u16).to_le_bytes());
            bytes.extend([name.len() as u8, 1]);
            bytes.extend(name.bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    /// Place, directory, and the entries there.
    type Block<'a> = (u64, u32, &'a [(u32, &'a str)]);

    fn names(all: &[Block<'_>]) -> Names {
        let mut names = Names::new(1 << 20);
        for (place, directory, entries) in all {
            names.set(*place, *directory, pack(&block(entries), 1000));
        }
        names
    }

    #[test]
    fn a_path_is_known_as_far_as_directories_are() {
        let mut names = names(&[
            (90, 2, &[(2, "."), (2, ".."), (12, "usr"), (0, "gone")]),
            (91, 12, &[(12, "."), (2, ".."), (13, "bin"), (14, "a\nb")]),
            (92, 13, &[(15, "ls"), (16, "dir"), (16, "vdir")]),
        ]);
        assert_eq!(names.path(15), "/usr/bin/ls");
        assert_eq!(names.path(16), "/usr/bin/dir");
        assert_eq!(names.path(14), "/usr/a\u{fffd}b");
        assert_eq!(names.path(ROOT), "/");
        assert_eq!((names.directory(15), names.directory(99)), (Some(13), None));
        assert_eq!(names.path(99), "inode 99");
        names.forget(91..92);
        assert_eq!(names.path(15), "inode 13/ls");
        names.set(90, 2, Vec::new());
        names.forget(92..93);
        assert_eq!((names.bytes, names.places.len()), (0, 0));
    }

    #[test]
    fn directories_that_are_in_each_other_end() {
        let names = names(&[(90, 20, &[(21, "a")]), (91, 21, &[(20, "b")])]);
        let path = names.path(20);
        assert_eq!(path.len(), "inode 20".len() + 2 * COMPONENTS_MAX);
    }

    #[test]
    fn too_many_names_are_counted_and_left_out() {
        let mut names = Names::new(100);
        for place in 0..9 {
            names.set(place, 2, pack(&block(&[(12, "twenty-bytes-or-more")]), 99));
        }
        assert_eq!((names.blocks.len(), names.refused), (2, 7));
        names.forget(0..1);
        names.set(20, 2, pack(&block(&[(13, "new")]), 99));
        assert_eq!(names.path(13), "/new");
    }

    #[test]
    fn a_block_of_a_directory_ends_where_it_makes_no_sense() {
        let mut bytes = block(&[(12, "one"), (13, "two"), (14, "three")]);
        assert_eq!(entries(&pack(&bytes, 13)).count(), 2);
        bytes[12 + 4] = 7;
        assert_eq!(entries(&pack(&bytes, 99)).count(), 1);
        for end in 0..bytes.len() {
            pack(&bytes[..end], 99);
        }
    }
}

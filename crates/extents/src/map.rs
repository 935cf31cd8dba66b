//! The map of a disk: its file systems, each at its place.

use crate::{
    Disk, Error, LeftOut, Limits,
    ext4::{Content, FileSystem, SUPERBLOCK_AT, SUPERBLOCK_BYTES},
    partitions,
    signatures::{self, EXT4, HEAD_BYTES},
};
use std::{io, ops::Range};

/// File systems of a disk of which a map is made.
const SYSTEMS_MAX: usize = 16;
/// How much is read at once.
const READ_BYTES: u64 = 256 << 10;

/// Which file of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The file system: they are counted from 0 in their order on the disk.
    pub system: u16,
    /// The inode in it.
    pub inode: u32,
}

/// What a part of a disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, a symbolic link among them.
    File(FileId),
    /// The names in a directory.
    Directory(FileId),
    /// A file system's journal, which every program that syncs waits for.
    Journal,
    /// What a file system keeps for itself: inodes, bitmaps, lists of blocks.
    Meta,
}

/// Which file of a disk each block belongs to.
///
/// One thread owns a map, and hands in what the guest writes in the order in which that was done:
///
/// 1. [`Map::cares`] says for a write whether it matters, so that no others need be copied.
/// 2. [`Map::wrote`] takes those that do.
/// 3. [`Map::wanted`] says what must be read then, because of a new directory for example. The owner reads that, at a time
///    when it disturbs nobody, and hands it to [`Map::wrote`] as well, before any write that is done later. [`Map::catch_up`] does
///    all of that if reading may take its time.
#[derive(Debug)]
pub struct Map {
    systems: Vec<System>,
    skipped: Vec<Error>,
    limits: Limits,
}

/// A file system and where on the disk it is.
#[derive(Clone, Debug, PartialEq)]
struct System {
    first: u64,
    inner: FileSystem,
}

impl System {
    fn bytes(&self) -> Range<u64> {
        self.first..self.first + self.inner.bytes()
    }
}

/// Two maps are equal if they answer the same.
impl PartialEq for Map {
    fn eq(&self, other: &Map) -> bool {
        self.systems == other.systems
    }
}

impl Map {
    /// Makes the map of a disk. It is an error if the disk has no file system of which a map can be made; others are
    /// [skipped](Map::skipped).
    pub fn read<D: Disk + ?Sized>(disk: &D, limits: Limits) -> Result<Map, Error> {
        let mut map = Map::begin(disk, limits)?;
        map.catch_up(disk)?;
        Ok(map)
    }

    /// Makes the map of a disk that began as a copy of this map's and was written since, without reading it again. It says what stood
    /// there then: the owner hands in those of the [parts that count](Map::counts) that were written, as if a guest did it now. `None` if
    /// the disk has other file systems by now, or of another size: then it must be [read](Map::read).
    pub fn of_copy<D: Disk + ?Sized>(&self, disk: &D) -> Result<Option<Map>, Error> {
        let mut map = Map::begin(disk, self.limits)?;
        if map.systems.len() != self.systems.len() {
            return Ok(None);
        }
        for (new, old) in map.systems.iter_mut().zip(&self.systems) {
            let inner = old.inner.of_copy(&new.inner);
            match inner.filter(|_| new.first == old.first) {
                Some(inner) => new.inner = inner,
                None => return Ok(None),
            }
        }
        Ok(Some(map))
    }

    /// Finds a disk's file systems, of which nothing is known yet.
    fn begin<D: Disk + ?Sized>(disk: &D, limits: Limits) -> Result<Map, Error> {
        let (places, other) = places(disk)?;
        let share = Limits {
            inodes: limits.inodes / places.len().max(1),
            extents: limits.extents / places.len().max(1),
            name_bytes: limits.name_bytes / places.len().max(1),
            ..limits
        };
        let mut map = Map {
            systems: Vec::new(),
            skipped: Vec::new(),
            limits,
        };
        for first in places {
            let taken = map.systems.last().map_or(0, |last| last.bytes().end);
            let found = match first < taken {
                true => Err(Error::Damaged {
                    offset: first,
                    what: "it begins within another file system",
                }),
                false => open(disk, first, share),
            };
            match found {
                Ok(inner) => map.systems.push(System { first, inner }),
                Err(error @ Error::Read { .. }) => return Err(error),
                Err(error) => map.skipped.push(error),
            }
        }
        if map.systems.is_empty() {
            let damaged = map.skipped.into_iter().next();
            return Err(damaged
                .or(other.map(Error::Unknown))
                .unwrap_or(Error::Nothing));
        }
        Ok(map)
    }

    /// What a byte of the disk is for; `None` if it is free, or not known.
    pub fn at(&self, offset: u64) -> Option<Kind> {
        let index = self
            .systems
            .partition_point(|system| system.first <= offset);
        let index = index.checked_sub(1)?;
        let system = &self.systems[index];
        let content = system.inner.content(offset - system.first)?;
        Some(kind(index, content))
    }

    /// All parts of the disk that are in use, in their order, and for what. Blocks with attributes are not among them, which several
    /// files may share.
    pub fn extents(&self) -> impl Iterator<Item = (Range<u64>, Kind)> + '_ {
        self.systems.iter().enumerate().flat_map(|(index, system)| {
            system.inner.extents().map(move |(range, content)| {
                let range = system.first + range.start..system.first + range.end;
                (range, kind(index, content))
            })
        })
    }

    /// All files; directories are not among them.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.systems.iter().enumerate().flat_map(|(index, system)| {
            let inodes = system.inner.files();
            inodes.map(move |inode| id(index, inode))
        })
    }

    /// A file's path in its file system: `/usr/bin/ls`, and one of them if it has several. It begins with `inode 4711` as long as the block
    /// of the directory has not been seen in which the name of that inode stands. Never more than some 4 KiB; without control characters.
    pub fn path(&self, file: FileId) -> String {
        match self.systems.get(usize::from(file.system)) {
            Some(system) => system.inner.path(file.inode),
            None => format!("inode {}", file.inode),
        }
    }

    /// The directory that a file, or a directory, is in: one of them if it has several names. `None` as long as its name is not known.
    pub fn directory(&self, file: FileId) -> Option<FileId> {
        let system = self.systems.get(usize::from(file.system))?;
        let inode = system.inner.directory(file.inode)?;
        Some(FileId { inode, ..file })
    }

    /// Whether writing these bytes may change the map. If not, they need not be handed in.
    pub fn cares(&self, bytes: Range<u64>) -> bool {
        self.systems.iter().any(|system| {
            let own = system.bytes();
            let (start, end) = (bytes.start.max(own.start), bytes.end.min(own.end));
            start < end && system.inner.cares(start - own.start..end - own.start)
        })
    }

    /// The parts of the disk of which the map was made, in their order: no other may change it before one of these does.
    pub fn counts(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.systems.iter().flat_map(|system| {
            let parts = system.inner.counts();
            parts.map(move |part| system.first + part.start..system.first + part.end)
        })
    }

    /// Takes bytes that stand at an offset of the disk now, because a guest has written them, or because they were
    /// [wanted](Map::wanted) and have been read.
    pub fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len() as u64);
        for system in &mut self.systems {
            let own = system.bytes();
            let start = offset.max(own.start);
            if start < end.min(own.end) {
                // less than the length of the bytes
                let skipped = (start - offset) as usize;
                system.inner.wrote(start - own.start, &bytes[skipped..]);
            }
        }
    }

    /// Takes the next part of the disk that must be read and handed to [`Map::wrote`]; `None` if the map is up to date.
    pub fn wanted(&mut self) -> Option<Range<u64>> {
        self.systems.iter_mut().find_map(|system| {
            let range = system.inner.wanted(READ_BYTES)?;
            Some(system.first + range.start..system.first + range.end)
        })
    }

    /// Whether something must be read: [`Map::wanted`] says what.
    pub fn has_wanted(&self) -> bool {
        self.systems.iter().any(|system| system.inner.has_wanted())
    }

    /// Reads all that is wanted, or as much as the limits allow: the rest counts as left out.
    pub fn catch_up<D: Disk + ?Sized>(&mut self, disk: &D) -> Result<(), Error> {
        let mut buffer = vec![0; READ_BYTES as usize];
        let mut left = self.limits.read_bytes;
        while let Some(range) = self.wanted() {
            let length = range.end - range.start;
            let Some(rest) = left.checked_sub(length) else {
                self.systems
                    .iter_mut()
                    .for_each(|system| system.inner.give_up());
                break;
            };
            left = rest;
            // READ_BYTES at most
            let buffer = &mut buffer[..length as usize];
            read_at(disk, range.start, buffer)?;
            self.wrote(range.start, buffer);
        }
        Ok(())
    }

    /// Whether a file system was made anew or resized since: the map must be made anew as well.
    pub fn is_stale(&self) -> bool {
        self.systems.iter().any(|system| system.inner.is_stale())
    }

    /// Why there is no map of some of the ext2, ext3 and ext4 on the disk.
    pub fn skipped(&self) -> &[Error] {
        &self.skipped
    }

    /// What the map lacks.
    pub fn left_out(&self) -> LeftOut {
        let all = self.systems.iter().map(|system| system.inner.left_out());
        all.fold(LeftOut::default(), |sum, one| LeftOut {
            inodes: sum.inodes + one.inodes,
            extents: sum.extents + one.extents,
            directory_blocks: sum.directory_blocks + one.directory_blocks,
            blocks: sum.blocks + one.blocks,
            damaged: sum.damaged + one.damaged,
        })
    }
}

fn id(system: usize, inode: u32) -> FileId {
    // SYSTEMS_MAX at most
    let system = system as u16;
    FileId { system, inode }
}

fn kind(system: usize, content: Content) -> Kind {
    match content {
        Content::Meta => Kind::Meta,
        Content::Journal => Kind::Journal,
        Content::Directory(inode) => Kind::Directory(id(system, inode)),
        Content::File(inode) => Kind::File(id(system, inode)),
    }
}

fn open<D: Disk + ?Sized>(disk: &D, first: u64, limits: Limits) -> Result<FileSystem, Error> {
    let mut superblock = [0; SUPERBLOCK_BYTES];
    let at = first.saturating_add(SUPERBLOCK_AT);
    if read_up_to(disk, at, &mut superblock).map_err(unreadable(at))? < superblock.len() {
        let what = "the disk ends before its superblock";
        return Err(Error::Damaged { offset: at, what });
    }
    FileSystem::new(&superblock, at, disk.bytes() - first, limits)
}

/// Returns where file systems begin of which a map can be made, in order, and what else is there.
fn places<D: Disk + ?Sized>(disk: &D) -> Result<(Vec<u64>, Option<&'static str>), Error> {
    let mut head = vec![0; HEAD_BYTES];
    let mut look = |first: u64| {
        let got = read_up_to(disk, first, &mut head).map_err(unreadable(first))?;
        Ok(head[..got].to_vec())
    };
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(disk, offset, buffer);
    let table = partitions::read(&read).map_err(unreadable(0))?;
    let parts = table.iter().flat_map(|table| &table.partitions);
    let parts = parts.filter(|part| !part.holds_no_data());
    let (mut found, mut other) = (Vec::new(), None);
    for part in parts {
        match signatures::of_partition(&look(part.first)?) {
            Some(EXT4) => found.push(part.first),
            known => other = other.or(known),
        }
    }
    if found.is_empty() {
        // without partitions, or with a boot record that only looks like some
        match signatures::of_disk(&look(0)?) {
            Some(EXT4) => found.push(0),
            Some("GPT") => {}
            known => other = other.or(known),
        }
    }
    found.sort_unstable();
    found.dedup();
    found.truncate(SYSTEMS_MAX);
    Ok((found, other))
}

fn unreadable(offset: u64) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Read { offset, source }
}

fn read_at<D: Disk + ?Sized>(disk: &D, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
    disk.read_at(offset, buffer).map_err(unreadable(offset))
}

/// Fills as much of the buffer as the disk has from an offset on, and returns how much that is.
fn read_up_to<D: Disk + ?Sized>(disk: &D, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let rest = disk.bytes().saturating_sub(offset);
    let length = usize::try_from(rest).map_or(buffer.len(), |rest| rest.min(buffer.len()));
    if length > 0 {
        disk.read_at(offset, &mut buffer[..length])?;
    }
    Ok(length)
}

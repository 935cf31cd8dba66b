//! The map of an ext2, ext3 or ext4: which inode has which blocks, and what inodes are called.
//!
//! Whatever is known comes from blocks that were handed in by [`FileSystem::wrote`], be they written by a guest or read because they were
//! [wanted](FileSystem::wanted). A block means what the blocks say that were seen before it: descriptors tell where inodes are, inodes
//! where lists of blocks and directories are. A block that none of them has claimed yet is ignored, and becomes wanted as soon as one
//! claims it. So the order in which a guest's blocks come does not matter, and a map that was kept up is the same as a new one.
//!
//! The superblock says how large everything is. If it says something else one day (the file system was resized, or made anew), the map
//! is *stale* and must be made anew as well.

mod claims;
mod inode;
mod names;
mod superblock;
mod tree;
mod wanted;

use crate::{Error, LeftOut, Limits, bytes::Bytes};
use claims::{Change, Claims, Piece, Says, Source, Use};
use inode::{Form, Inode};
use names::{Names, ROOT};
use std::{collections::BTreeMap, ops::Range};
use superblock::Geometry;
pub use superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES};
use tree::Listed;
use wanted::Wanted;

/// The inode that lists bad blocks.
const BAD_BLOCKS: u32 = 1;
/// The inode that has the room for further descriptors. What it lists lies at fixed places, but for the list's own blocks.
const RESIZE: u32 = 7;
/// A group whose inode table was never written.
const UNINITIALIZED: u16 = 1;

/// What blocks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// What belongs to no file: tables, bitmaps, lists of blocks.
    Meta,
    /// The journal.
    Journal,
    /// The names in the directory with this inode.
    Directory(u32),
    /// What is in the file with this inode.
    File(u32),
}

/// A file system, as far as it is known.
#[derive(Clone, Debug)]
pub struct FileSystem {
    geometry: Geometry,
    disk_bytes: u64,
    groups: Vec<Group>,
    claims: Claims,
    inodes: BTreeMap<u32, Form>,
    names: Names,
    /// Inodes with attributes in a block, and those blocks with how many inodes share each.
    attributes: BTreeMap<u32, u64>,
    shared: BTreeMap<u64, u32>,
    wanted: Wanted,
    limits: Limits,
    left_out: LeftOut,
    is_stale: bool,
}

/// Where a group's tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Group {
    bitmaps: [u64; 2],
    table: u64,
    /// How many of its inodes may be in use: the rest of the table may hold anything.
    used: u32,
}

/// What the map reads in a block.
enum Role {
    Superblock,
    Descriptors { first: u32 },
    Inodes { group: u32, first: u32 },
    Tree(Piece),
    Names { directory: u32 },
}

impl FileSystem {
    /// Begins a map by a superblock that stands at a byte of the disk; the disk has so many bytes for the file system.
    pub fn new(
        superblock: &[u8],
        at: u64,
        disk_bytes: u64,
        limits: Limits,
    ) -> Result<FileSystem, Error> {
        let geometry = Geometry::read(superblock, at, disk_bytes)?;
        if geometry.groups as usize > limits.extents {
            let what = "it has more groups of blocks than a map has room for";
            return Err(Error::Damaged { offset: at, what });
        }
        let mut system = FileSystem {
            // no more than runs of blocks
            groups: vec![Group::default(); geometry.groups as usize],
            disk_bytes,
            claims: Claims::new(limits.extents),
            inodes: BTreeMap::new(),
            names: Names::new(limits.name_bytes),
            attributes: BTreeMap::new(),
            shared: BTreeMap::new(),
            wanted: Wanted::default(),
            left_out: LeftOut::default(),
            is_stale: false,
            limits,
            geometry,
        };
        let blocks = system.geometry.blocks;
        let fixed = system.geometry.fixed().filter(|(first, _)| *first < blocks);
        let fixed = fixed.map(|(first, length)| (first, run(length.min(blocks - first))));
        let fixed = fixed.collect();
        system.say(Says::Fixed, fixed);
        for (block, _) in system.geometry.descriptor_blocks() {
            if block < blocks {
                system.wanted.add(block..block + 1);
            }
        }
        Ok(system)
    }

    /// What is known of this file system, for a copy of it of which nothing is known yet; `None` if that is laid out otherwise.
    pub fn of_copy(&self, copy: &FileSystem) -> Option<FileSystem> {
        (self.geometry == copy.geometry).then(|| FileSystem {
            disk_bytes: copy.disk_bytes,
            ..self.clone()
        })
    }

    /// How many bytes of the disk it takes.
    pub fn bytes(&self) -> u64 {
        self.geometry.blocks * self.geometry.block_bytes
    }

    /// Whether it was resized or made anew, so that the map says nothing any more.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// What the map lacks.
    pub fn left_out(&self) -> LeftOut {
        LeftOut {
            extents: self.claims.refused(),
            directory_blocks: self.names.refused(),
            ..self.left_out
        }
    }

    /// What the block at a byte of the file system is for; `None` if it is free, or not known.
    pub fn content(&self, offset: u64) -> Option<Content> {
        let block = offset / self.geometry.block_bytes;
        match self.claims.at(block) {
            Some(piece) => Some(self.content_of(&piece)),
            None => self.shared.contains_key(&block).then_some(Content::Meta),
        }
    }

    /// All runs of blocks that are in use, in bytes, and what they are for.
    pub fn extents(&self) -> impl Iterator<Item = (Range<u64>, Content)> + '_ {
        let bytes = self.geometry.block_bytes;
        let pieces = self.claims.between(0, self.geometry.blocks);
        pieces.map(move |piece| {
            let range = piece.first * bytes..piece.end() * bytes;
            (range, self.content_of(&piece))
        })
    }

    /// The inodes of all files; directories are not among them.
    pub fn files(&self) -> impl Iterator<Item = u32> + '_ {
        let files = self.inodes.iter().filter(|(_, form)| **form == Form::File);
        let files = files.map(|(inode, _)| *inode);
        files.filter(|inode| !self.is_own(*inode))
    }

    /// An inode's path, or `inode N` if its name is not known.
    pub fn path(&self, inode: u32) -> String {
        self.names.path(inode)
    }

    /// The directory that an inode is in, if that is known.
    pub fn directory(&self, inode: u32) -> Option<u32> {
        self.names.directory(inode)
    }

    /// Whether writing these bytes of the file system may change the map.
    pub fn cares(&self, range: Range<u64>) -> bool {
        let block = self.geometry.block_bytes;
        let (first, end) = (range.start / block, range.end.div_ceil(block));
        self.claims.between(first, end).any(|piece| {
            let (from, to) = (piece.first.max(first), piece.end().min(end));
            match piece.source.says() {
                Says::Fixed => (from..to).any(|block| self.role(block).is_some()),
                // the part of a table that is in use is its first
                _ => from < to && self.role(from).is_some(),
            }
        })
    }

    /// The bytes that the map was made of, in their order.
    pub fn counts(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let bytes = self.geometry.block_bytes;
        // what lies at fixed places may be most of a disk, and little of it counts: that is not looked for block by block
        let descriptors = self.geometry.descriptor_blocks().map(|(block, _)| block);
        let mut fixed: Vec<u64> = descriptors.chain([self.geometry.superblock()]).collect();
        fixed.sort_unstable();
        fixed.dedup();
        let pieces = self.claims.between(0, self.geometry.blocks);
        let runs = pieces.flat_map(move |piece| -> Vec<Range<u64>> {
            let (first, end) = (piece.first, piece.end());
            if piece.source.says() == Says::Fixed {
                let from = fixed.partition_point(|block| *block < first);
                let own = fixed[from..].iter().take_while(|block| **block < end);
                return own.map(|block| *block..*block + 1).collect();
            }
            let end = match self.role(first) {
                Some(Role::Inodes { group, .. }) => end.min(first + self.blocks_in_use(group)),
                _ => end,
            };
            std::iter::once(first..end).collect()
        });
        let runs = runs.filter(|run| self.role(run.start).is_some());
        runs.map(move |run| run.start * bytes..run.end * bytes)
    }

    /// Takes bytes that stand at an offset of the file system now. What is wanted because of them may be taken afterwards.
    pub fn wrote(&mut self, offset: u64, bytes: &[u8]) {
        let length = self.geometry.block_bytes;
        let end = offset.saturating_add(bytes.len() as u64).min(self.bytes());
        for block in offset / length..end.div_ceil(length) {
            let start = (block * length).checked_sub(offset);
            let start = start.and_then(|start| usize::try_from(start).ok());
            // a block has 64 KiB at most
            let whole = start.and_then(|start| bytes.get(start..)?.get(..length as usize));
            match (self.role(block), whole) {
                (Some(role), Some(whole)) => self.read(block, role, whole),
                (Some(_), None) => self.wanted.add(block..block + 1),
                (None, _) => {}
            }
        }
    }

    /// Takes the next bytes of the file system that must be handed in; `None` if the map is as complete as it can be.
    pub fn wanted(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        let block = self.geometry.block_bytes;
        let run = self.wanted.take(bytes_max / block)?;
        Some(run.start * block..run.end * block)
    }

    /// Whether anything is wanted.
    pub fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Does without what is still wanted.
    pub fn give_up(&mut self) {
        self.left_out.blocks += self.wanted.clear();
    }

    fn content_of(&self, piece: &Piece) -> Content {
        let inode = self.claims.inode_of(piece);
        match inode.filter(|_| piece.usage.as_tree().is_none()) {
            Some(inode) if inode == self.geometry.journal => Content::Journal,
            Some(inode) if self.is_own(inode) => Content::Meta,
            Some(inode) => match self.inodes.get(&inode) {
                Some(Form::Directory) => Content::Directory(inode),
                _ => Content::File(inode),
            },
            None => Content::Meta,
        }
    }

    /// Whether an inode is the file system's own.
    fn is_own(&self, inode: u32) -> bool {
        let reserved = inode < self.geometry.first_inode && inode != ROOT;
        reserved || [self.geometry.journal, self.geometry.orphans].contains(&inode)
    }

    fn role(&self, block: u64) -> Option<Role> {
        let piece = self.claims.at(block)?;
        match piece.source.says() {
            Says::Fixed if block == self.geometry.superblock() => Some(Role::Superblock),
            Says::Fixed => {
                let first = self.geometry.descriptors_in(block)?;
                Some(Role::Descriptors { first })
            }
            Says::Group(group) => {
                let known = self.groups.get(group as usize)?;
                let index = block.checked_sub(known.table)?;
                let first = index * u64::from(self.geometry.inodes_per_block());
                let first = u32::try_from(first).ok()?;
                (first < known.used).then_some(Role::Inodes { group, first })
            }
            Says::Inode(_) | Says::Tree(_) if piece.usage.as_tree().is_some() => {
                Some(Role::Tree(piece))
            }
            Says::Inode(_) | Says::Tree(_) => {
                let directory = self.directory_of(&piece)?;
                Some(Role::Names { directory })
            }
        }
    }

    /// The directory whose names stand in a piece.
    fn directory_of(&self, piece: &Piece) -> Option<u32> {
        let inode = self.claims.inode_of(piece)?;
        let is_directory = self.inodes.get(&inode) == Some(&Form::Directory);
        (is_directory && piece.usage.as_tree().is_none()).then_some(inode)
    }

    fn read(&mut self, block: u64, role: Role, bytes: &[u8]) {
        match role {
            Role::Superblock => {
                // in a long block it does not stand at the beginning
                let at = (SUPERBLOCK_AT % self.geometry.block_bytes) as usize;
                let found = Geometry::read(&bytes[at..], SUPERBLOCK_AT, self.disk_bytes);
                self.is_stale |= found.ok().as_ref() != Some(&self.geometry);
            }
            Role::Descriptors { first } => {
                let descriptors = bytes.chunks_exact(self.geometry.descriptor_bytes);
                for (group, descriptor) in (first..self.geometry.groups).zip(descriptors) {
                    self.describe(group, descriptor);
                }
            }
            Role::Inodes { group, first } => {
                let used = self
                    .groups
                    .get(group as usize)
                    .map_or(0, |known| known.used);
                let before = group * self.geometry.inodes_per_group;
                let inodes = bytes.chunks_exact(self.geometry.inode_bytes);
                for (index, inode) in (first..used).zip(inodes) {
                    let read = Inode::read(inode, &self.geometry);
                    self.set_inode(before + index + 1, read);
                }
            }
            Role::Tree(piece) => {
                let Some((shape, depth)) = piece.usage.as_tree() else {
                    return;
                };
                let listed = Listed::in_block(bytes, shape, depth, self.geometry.blocks);
                self.left_out.damaged += listed.damaged;
                self.say(Says::Tree(block), listed.uses);
            }
            Role::Names { directory } => {
                let packed = names::pack(bytes, self.geometry.inodes());
                self.names.set(block, directory, packed);
            }
        }
    }

    /// Takes a group's descriptor.
    fn describe(&mut self, group: u32, descriptor: &[u8]) {
        let head = Bytes(descriptor);
        // what is missing in a short descriptor reads as zero
        let place = |low, high| u64::from(head.le32(high)) << 32 | u64::from(head.le32(low));
        let mut new = Group {
            bitmaps: [place(0, 32), place(4, 36)],
            table: place(8, 40),
            used: self.geometry.inodes_per_group,
        };
        if self.geometry.counts_unused {
            let unused = u32::from(head.le16(50)) << 16 | u32::from(head.le16(28));
            new.used = match head.le16(18) & UNINITIALIZED {
                0 => new.used.saturating_sub(unused),
                _ => 0,
            };
        }
        let (blocks, length) = (self.geometry.blocks, self.geometry.table_blocks());
        let fits = |first: u64, length: u32| {
            first != 0 && first < blocks && u64::from(length) <= blocks - first
        };
        if !fits(new.table, length) {
            self.left_out.damaged += 1;
            (new.table, new.used) = (0, 0);
        }
        // at most GROUPS_MAX
        let old = std::mem::replace(&mut self.groups[group as usize], new);
        if old == new {
            return;
        }
        let same_table = old.table == new.table;
        let kept = if same_table { new.used } else { 0 };
        let before = group * self.geometry.inodes_per_group;
        self.forget_inodes(before + kept + 1..=before + self.geometry.inodes_per_group);
        let bitmaps = new.bitmaps.into_iter().filter(|first| fits(*first, 1));
        let mut uses: Vec<_> = bitmaps.map(|first| (first, Use::data(1))).collect();
        if new.table != 0 && length > 0 {
            uses.push((new.table, Use::data(length)));
        }
        self.say(Says::Group(group), uses);
        if same_table {
            self.want_inodes(group, old.used);
        }
    }

    /// How many blocks of a group's inode table are in use.
    fn blocks_in_use(&self, group: u32) -> u64 {
        let used = self
            .groups
            .get(group as usize)
            .map_or(0, |known| known.used);
        u64::from(used.div_ceil(self.geometry.inodes_per_block()))
    }

    /// Wants the part of a group's inode table that is in use, from an inode on.
    fn want_inodes(&mut self, group: u32, from: u32) {
        let Some(known) = self.groups.get(group as usize) else {
            return;
        };
        let each = self.geometry.inodes_per_block();
        let (from, to) = (from / each, known.used.div_ceil(each));
        let table = known.table;
        self.wanted
            .add(table + u64::from(from)..table + u64::from(to));
    }

    fn forget_inodes(&mut self, inodes: std::ops::RangeInclusive<u32>) {
        if inodes.is_empty() {
            return;
        }
        let gone: Vec<u32> = self.inodes.range(inodes).map(|(inode, _)| *inode).collect();
        for inode in gone {
            self.set_inode(inode, None);
        }
    }

    /// Replaces what is known of an inode.
    fn set_inode(&mut self, number: u32, mut inode: Option<Inode>) {
        if number == BAD_BLOCKS {
            return;
        }
        if let Some(inode) = inode.as_mut().filter(|_| number == RESIZE) {
            for (_, usage) in &mut inode.listed.uses {
                *usage = Use::data(1);
            }
        }
        let old = self.inodes.get(&number).copied();
        let form = inode.as_ref().map(|inode| inode.form);
        if old.is_some() && old != form {
            self.say(Says::Inode(number), Vec::new());
            self.inodes.remove(&number);
        }
        let (Some(inode), Some(form)) = (inode, form) else {
            self.set_attributes(number, 0);
            self.name_inside(number, Vec::new());
            return;
        };
        if old != Some(form) {
            if self.inodes.len() >= self.limits.inodes {
                self.left_out.inodes += 1;
                return;
            }
            self.inodes.insert(number, form);
        }
        self.set_attributes(number, inode.attributes);
        self.left_out.damaged += inode.listed.damaged;
        self.say(Says::Inode(number), inode.listed.uses);
        self.name_inside(number, inode.names);
    }

    fn name_inside(&mut self, inode: u32, names: Vec<u8>) {
        self.names.set(names::inside(inode), inode, names);
    }

    fn set_attributes(&mut self, inode: u32, block: u64) {
        let old = match block {
            0 => self.attributes.remove(&inode),
            _ => self.attributes.insert(inode, block),
        };
        if block != 0 {
            *self.shared.entry(block).or_default() += 1;
        }
        if let Some(count) = old.and_then(|old| self.shared.get_mut(&old)) {
            *count -= 1;
        }
        if let Some(old) = old.filter(|old| self.shared.get(old) == Some(&0)) {
            self.shared.remove(&old);
        }
    }

    /// Takes what a source says, and wants or forgets what hangs on it.
    fn say(&mut self, says: Says, uses: Vec<(u64, Use)>) {
        let mut changes = Vec::new();
        self.claims.say(Source::new(says), uses, &mut changes);
        for change in changes {
            match change {
                Change::Lost(piece) => self.names.forget(piece.first..piece.end()),
                Change::Gained(piece) => match piece.source.says() {
                    Says::Group(group) => {
                        let known = self.groups.get(group as usize);
                        if known.is_some_and(|known| known.table == piece.first) {
                            self.want_inodes(group, 0);
                        }
                    }
                    _ if piece.usage.as_tree().is_some() || self.directory_of(&piece).is_some() => {
                        self.wanted.add(piece.first..piece.end());
                    }
                    _ => {}
                },
            }
        }
    }
}

/// Two maps are equal if they answer the same. What is still wanted, and what was left out on the way, does not count.
impl PartialEq for FileSystem {
    fn eq(&self, other: &FileSystem) -> bool {
        self.geometry == other.geometry
            && self.groups == other.groups
            && self.claims == other.claims
            && self.inodes == other.inodes
            && self.names == other.names
            && self.attributes == other.attributes
    }
}

fn run(blocks: u64) -> Use {
    Use::data(u32::try_from(blocks).unwrap_or(Use::BLOCKS_MAX))
}

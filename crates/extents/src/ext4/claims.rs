//! Keeps who uses which blocks.
//!
//! A *claim* is a run of blocks, and the *source* that says so: an inode, a block of an inode's extent tree, a group's descriptor. Each
//! source's claims are replaced at once when what it says has changed. Two claims never share a block: on a sound file system that only
//! happens while some of its writes have not been seen yet, and the later claim then waits until the earlier one is gone. What a hostile
//! file system says twice is true once.
//!
//! A claim waits behind one of the pieces that have its blocks, and is looked at again when that piece goes. So the work when a piece goes
//! depends on how many claims wait behind that piece, not on how many wait elsewhere. Once many claims have been looked at in vain, further
//! ones are forgotten, so that a file system in which all claim the same block costs that work once, not at each change.
//!
//! Both ways are needed, from a block to its source and from a source to its blocks: two maps of 20 bytes for each claim. A sorted vector
//! would be smaller by the slack of the maps' nodes, and move half of itself for each change.

use std::collections::{BTreeMap, BTreeSet};

/// Claims that wait for others to end. More are forgotten.
const WAITING_MAX: usize = 1024;
/// Claims that go on waiting, for another piece, each time that a source loses some. More are forgotten.
const IN_VAIN_MAX: usize = 64;

/// Who says that blocks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(u64);

/// A source, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// The superblock: what lies at fixed places.
    Fixed,
    /// The descriptor of this group.
    Group(u32),
    /// This inode.
    Inode(u32),
    /// A block of extents, or of block numbers, that belongs to an inode.
    Tree(u64),
}

impl Source {
    const KIND_SHIFT: u32 = 60;

    /// Makes a source. Numbers of blocks have less than 60 bits: a disk has at most 2^64 bytes.
    pub fn new(says: Says) -> Source {
        let (kind, number) = match says {
            Says::Fixed => (0, 0),
            Says::Group(group) => (1, group.into()),
            Says::Inode(inode) => (2, inode.into()),
            Says::Tree(block) => (3, block),
        };
        Source(kind << Source::KIND_SHIFT | number)
    }

    /// Takes it apart.
    pub fn says(self) -> Says {
        let number = self.0 & ((1 << Source::KIND_SHIFT) - 1);
        match self.0 >> Source::KIND_SHIFT {
            0 => Says::Fixed,
            // 32 bits were put in
            1 => Says::Group(number as u32),
            2 => Says::Inode(number as u32),
            _ => Says::Tree(number),
        }
    }
}

/// The form of a block that lists blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// ext4's extents.
    Extents,
    /// The block numbers of ext2 and ext3.
    Numbers,
}

/// What claimed blocks are for, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use(u32);

impl Use {
    const TREE: u32 = 1 << 31;
    const NUMBERS: u32 = 1 << 8;

    /// The longest run of one claim, in blocks.
    pub const BLOCKS_MAX: u32 = Use::TREE - 1;

    /// So many blocks that hold something else than a list of blocks.
    pub fn data(blocks: u32) -> Use {
        Use(blocks.min(Use::BLOCKS_MAX))
    }

    /// A block that lists blocks; those that it lists do that as well if the depth is not 0.
    pub fn tree(shape: Shape, depth: u8) -> Use {
        let shape = match shape {
            Shape::Extents => 0,
            Shape::Numbers => Use::NUMBERS,
        };
        Use(Use::TREE | shape | u32::from(depth))
    }

    /// Shape and depth of a block that lists blocks.
    pub fn as_tree(self) -> Option<(Shape, u8)> {
        let shape = match self.0 & Use::NUMBERS {
            0 => Shape::Extents,
            _ => Shape::Numbers,
        };
        // the lowest byte is the depth
        (self.0 & Use::TREE != 0).then_some((shape, self.0 as u8))
    }

    /// How many blocks they are.
    pub fn blocks(self) -> u64 {
        match self.0 & Use::TREE {
            0 => self.0.into(),
            _ => 1,
        }
    }
}

/// A run of blocks that a source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first block.
    pub first: u64,
    /// What they are for, and how many.
    pub usage: Use,
    /// Who says so.
    pub source: Source,
}

impl Piece {
    /// The first block behind it.
    pub fn end(&self) -> u64 {
        self.first + self.usage.blocks()
    }
}

/// What has changed: a piece that there is now, or that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its source has these blocks now.
    Gained(Piece),
    /// Nobody has them now.
    Lost(Piece),
}

/// All claims on the blocks of a file system.
#[derive(Clone, Debug)]
pub struct Claims {
    /// By first block. A source in two halves spares 4 bytes of padding.
    pieces: BTreeMap<u64, (Use, [u32; 2])>,
    said: BTreeMap<(Source, u64), Use>,
    /// Those of them that wait, each with the first block of the piece that it waits behind.
    waiting: BTreeMap<(Source, u64), u64>,
    /// The same by that block.
    behind: BTreeSet<(u64, Source, u64)>,
    max: usize,
    refused: u64,
}

impl Claims {
    /// None yet, and never more than so many.
    pub fn new(max: usize) -> Claims {
        Claims {
            pieces: BTreeMap::new(),
            said: BTreeMap::new(),
            waiting: BTreeMap::new(),
            behind: BTreeSet::new(),
            max,
            refused: 0,
        }
    }

    /// The piece that a block is in.
    pub fn at(&self, block: u64) -> Option<Piece> {
        let (first, found) = self.pieces.range(..=block).next_back()?;
        Some(piece(*first, *found)).filter(|piece| block < piece.end())
    }

    /// All pieces that have a block between these two, in their order.
    pub fn between(&self, first: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let from = self.at(first).map_or(first, |piece| piece.first);
        let found = self.pieces.range(from..end.max(from));
        found.map(|(first, found)| piece(*first, *found))
    }

    /// The inode to which a piece belongs; `None` if it is the file system's own.
    pub fn inode_of(&self, piece: &Piece) -> Option<u32> {
        let mut source = piece.source;
        loop {
            match source.says() {
                Says::Inode(inode) => return Some(inode),
                // trees end: each block of one lists blocks of a smaller depth
                Says::Tree(block) => source = self.at(block)?.source,
                Says::Fixed | Says::Group(_) => return None,
            }
        }
    }

    /// How many claims were not taken because there are too many already.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Replaces all that a source says, and adds what that changes.
    pub fn say(&mut self, source: Source, mut uses: Vec<(u64, Use)>, changes: &mut Vec<Change>) {
        uses.sort_unstable();
        uses.dedup_by_key(|(first, _)| *first);
        let old = self
            .said
            .range((source, 0)..=(source, u64::MAX))
            .map(|((_, first), usage)| (*first, *usage));
        if old.clone().eq(uses.iter().copied()) {
            return;
        }
        let gone: Vec<u64> = old
            .filter(|one| uses.binary_search(one).is_err())
            .map(|(first, _)| first)
            .collect();
        let before = changes.len();
        for first in gone {
            self.withdraw(source, first, changes);
        }
        self.retry(before, changes);
        for (first, usage) in uses {
            if !self.said.contains_key(&(source, first)) {
                self.claim(source, first, usage, changes);
            }
        }
    }

    fn claim(&mut self, source: Source, first: u64, usage: Use, changes: &mut Vec<Change>) {
        let taken = self.taken_by(first, usage);
        if self.said.len() >= self.max || taken.is_some() && self.waiting.len() >= WAITING_MAX {
            self.refused += 1;
            return;
        }
        self.said.insert((source, first), usage);
        match taken {
            Some(by) => self.wait(source, first, by),
            None => self.give(source, first, usage, changes),
        }
    }

    /// Returns the first block of the first piece that has some of these blocks.
    fn taken_by(&self, first: u64, usage: Use) -> Option<u64> {
        let mut there = self.between(first, first + usage.blocks());
        there.next().map(|piece| piece.first)
    }

    /// Lets a claim wait until the piece that begins with the block `by` is gone.
    fn wait(&mut self, source: Source, first: u64, by: u64) {
        self.waiting.insert((source, first), by);
        self.behind.insert((by, source, first));
    }

    /// Returns whether a claim has waited; it no longer does.
    fn end_wait(&mut self, source: Source, first: u64) -> bool {
        let by = self.waiting.remove(&(source, first));
        by.is_some_and(|by| self.behind.remove(&(by, source, first)))
    }

    fn give(&mut self, source: Source, first: u64, usage: Use, changes: &mut Vec<Change>) {
        let halves = [(source.0 >> 32) as u32, source.0 as u32];
        self.pieces.insert(first, (usage, halves));
        changes.push(Change::Gained(piece(first, (usage, halves))));
    }

    /// Takes a claim back, and all that was said by blocks which were only read because of it.
    fn withdraw(&mut self, source: Source, first: u64, changes: &mut Vec<Change>) {
        let mut gone = vec![(source, first)];
        while let Some((source, first)) = gone.pop() {
            let Some(usage) = self.said.remove(&(source, first)) else {
                continue;
            };
            if self.end_wait(source, first) {
                continue;
            }
            self.pieces.remove(&first);
            changes.push(Change::Lost(Piece {
                first,
                usage,
                source,
            }));
            if usage.as_tree().is_some() {
                let below = Source::new(Says::Tree(first));
                let said = self.said.range((below, 0)..=(below, u64::MAX));
                gone.extend(said.map(|(key, _)| *key));
            }
        }
    }

    /// Gives the blocks that were lost, which `changes` tells from `before` on, to claims that have waited for them.
    fn retry(&mut self, before: usize, changes: &mut Vec<Change>) {
        if self.waiting.is_empty() {
            return;
        }
        let lost = changes[before..].iter().filter_map(|change| match change {
            Change::Lost(piece) => Some(piece.first),
            Change::Gained(_) => None,
        });
        let waited = lost.flat_map(|by| {
            let those = (by, Source(0), 0)..=(by, Source(u64::MAX), u64::MAX);
            self.behind.range(those)
        });
        let waited: Vec<(Source, u64)> =
            waited.map(|(_, source, first)| (*source, *first)).collect();
        let mut in_vain = 0;
        for (source, first) in waited {
            self.end_wait(source, first);
            let Some(usage) = self.said.get(&(source, first)).copied() else {
                continue;
            };
            match self.taken_by(first, usage) {
                None => self.give(source, first, usage, changes),
                Some(by) if in_vain < IN_VAIN_MAX => {
                    in_vain += 1;
                    self.wait(source, first, by);
                }
                Some(_) => {
                    self.said.remove(&(source, first));
                    self.refused += 1;
                }
            }
        }
    }
}

/// The blocks' users: who waits does not count.
impl PartialEq for Claims {
    fn eq(&self, other: &Claims) -> bool {
        self.pieces == other.pieces
    }
}

fn piece(first: u64, (usage, [high, low]): (Use, [u32; 2])) -> Piece {
    Piece {
        first,
        usage,
        source: Source(u64::from(high) << 32 | u64::from(low)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inode(number: u32) -> Source {
        Source::new(Says::Inode(number))
    }

    fn holder(claims: &Claims, block: u64) -> Option<Source> {
        claims.at(block).map(|piece| piece.source)
    }

    #[test]
    fn whoever_has_waited_gets_what_the_first_one_loses() {
        let (mut claims, mut changes) = (Claims::new(100), Vec::new());
        claims.say(inode(1), vec![(100, Use::data(50))], &mut changes);
        for number in 0..10 {
            let own = 100 + 5 * u64::from(number);
            claims.say(inode(2 + number), vec![(own, Use::data(5))], &mut changes);
            assert_eq!(holder(&claims, own), Some(inode(1)));
        }
        changes.clear();
        claims.say(inode(1), Vec::new(), &mut changes);
        assert_eq!(changes.len(), 11, "one lost, ten gained");
        for number in 0..10 {
            let own = 100 + 5 * u64::from(number);
            assert_eq!(holder(&claims, own), Some(inode(2 + number)));
        }
        assert_eq!(claims.refused(), 0);
    }

    #[test]
    fn a_file_system_in_which_all_claim_the_same_block_pays_for_that_once() {
        let (mut claims, mut changes) = (Claims::new(1 << 18), Vec::new());
        let all = 2 * WAITING_MAX as u32;
        for number in 0..all {
            claims.say(inode(number), vec![(7, Use::data(1))], &mut changes);
        }
        assert_eq!(claims.waiting.len(), WAITING_MAX);
        claims.say(inode(0), Vec::new(), &mut changes);
        assert_eq!(holder(&claims, 7), Some(inode(1)));
        assert_eq!(claims.waiting.len(), IN_VAIN_MAX);
        // each time one of those that are left has it, and those that wait for something else are not looked at
        claims.say(inode(all), vec![(20, Use::data(1))], &mut changes);
        claims.say(inode(all + 1), vec![(20, Use::data(1))], &mut changes);
        for number in 1..=IN_VAIN_MAX as u32 {
            claims.say(inode(number), Vec::new(), &mut changes);
            assert_eq!(holder(&claims, 7), Some(inode(number + 1)));
        }
        assert_eq!(claims.waiting.len(), 1);
        assert_eq!(claims.waiting.len(), claims.behind.len());
        assert_eq!(holder(&claims, 20), Some(inode(all)));
    }

    /// What a source says: runs of data, and blocks that list blocks.
    fn said() -> impl Strategy<Value = (u32, Vec<(u64, Use)>)> {
        let usage = prop_oneof![
            3 => (1u32..6).prop_map(Use::data),
            1 => (0u8..2).prop_map(|depth| Use::tree(Shape::Extents, depth)),
        ];
        (0u32..12, proptest::collection::vec((0u64..40, usage), 0..5))
    }

    proptest! {
        /// Whatever sources say, in whatever order: no two pieces share a block, each claim has its blocks or waits behind a piece that has
        /// some of them, and none waits for what is free.
        #[test]
        fn a_claim_has_its_blocks_or_waits_for_who_has_them(
            steps in proptest::collection::vec(said(), 0..60),
        ) {
            let (mut claims, mut changes) = (Claims::new(64), Vec::new());
            for (number, uses) in steps {
                // the last ones are said by blocks
                let source = match number {
                    9.. => Source::new(Says::Tree(u64::from(number))),
                    _ => inode(number),
                };
                claims.say(source, uses, &mut changes);
                let pieces: Vec<Piece> = claims.between(0, u64::MAX).collect();
                prop_assert!(pieces.windows(2).all(|two| two[0].end() <= two[1].first));
                prop_assert_eq!(pieces.len() + claims.waiting.len(), claims.said.len());
                prop_assert_eq!(claims.waiting.len(), claims.behind.len());
                for ((source, first), by) in &claims.waiting {
                    prop_assert!(claims.behind.contains(&(*by, *source, *first)));
                    let usage = claims.said[&(*source, *first)];
                    let has = claims.at(*by).expect("who it waits for is there");
                    prop_assert_eq!(has.first, *by);
                    prop_assert!(has.first < first + usage.blocks() && *first < has.end());
                }
            }
        }
    }
}

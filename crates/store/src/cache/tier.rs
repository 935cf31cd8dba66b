//! All items of one size: a slab, its shards, and the protocol between them.
//!
//! A read looks up the slot and its generation under the shard's lock, reads the slab without any lock, and takes the lock
//! again to check that the generation is still the same; if not, the slot was reused meanwhile and the read starts again. So an
//! eviction never waits for a reader, and a reader never gets a part of another chunk.

use std::path::{Path, PathBuf};

use floe_image::{Hash, Kind, chunk_hash};
use parking_lot::Mutex;

use super::shard::{Counters, Found, Shard};
use super::slab::Slab;
use crate::StoreError;
use crate::error::is_full;

/// Most shards: more than threads that fault at the same time on a large host. A thread that is preempted while it holds a lock
/// holds up only 1/64 of the others. The price is that neighbours in an image aren't neighbours in the slab: reading many of them
/// with one call was 15 to 30 % faster with one shard, but nobody reads so, and one chunk was read as fast.
const SHARDS_MAX: u64 = 64;
/// With fewer slots a shard, it would be a matter of luck when a shard is full.
const SLOTS_PER_SHARD_MIN: u64 = 4096;
/// How often a read starts again when its slot is reused meanwhile, and a write when others are writing to every free slot.
const ATTEMPTS_MAX: usize = 64;

/// How many items are evicted before holes are made in the file for them.
const SHRINK_BATCH: u64 = 1 << 16;

/// What came of a look for an item that was not to access the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// It was copied.
    Here,
    /// The cache doesn't have it.
    Missing,
    /// The cache has it, and reading it accesses the disk.
    OnDisk,
}

pub(super) struct Tier {
    kind: Kind,
    dir: PathBuf,
    slab: Slab,
    shards: Box<[Mutex<Shard>]>,
}

/// The slots of a tier that a pin holds: one bit a slot, by shard; at most 1/32768 of the chunks' bytes.
pub(super) struct PinSet(Box<[Mutex<Vec<u64>>]>);

impl PinSet {
    /// Adds a slot; returns true if it was not in the set.
    fn insert(&self, shard: usize, local: u32) -> bool {
        let mut words = self.0[shard].lock();
        let (word, bit) = (local as usize / 64, 1u64 << (local % 64));
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        let fresh = words[word] & bit == 0;
        words[word] |= bit;
        fresh
    }
}

impl Tier {
    pub fn open(dir: &Path, name: &str, kind: Kind, budget_bytes: u64) -> Result<Tier, StoreError> {
        let slot_bytes = kind.raw_size();
        let slots = (budget_bytes / slot_bytes as u64).clamp(1, u64::from(u32::MAX) / 2);
        let wanted = (slots / SLOTS_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        // The largest power of two that isn't above `wanted`.
        let slab = Slab::open(dir, name, slot_bytes, 1 << wanted.ilog2())?;
        let shards = u64::from(slab.shards);
        let per_shard = slots.div_ceil(shards) as u32;
        let mut all: Vec<Shard> = (0..shards).map(|_| Shard::new(per_shard)).collect();
        let count = slab.shards;
        slab.recover(u64::from(per_shard) * shards, &mut |slot, hash| {
            // A read could never find an entry in another shard than its hash's: leave the slot free.
            if shard_of(&hash, count) == (slot % count) as usize {
                all[(slot % count) as usize].recover(slot / count, &hash);
            }
        })?;
        Ok(Tier {
            kind,
            dir: dir.to_path_buf(),
            slab,
            shards: all.into_iter().map(Mutex::new).collect(),
        })
    }

    pub fn pin_set(&self) -> PinSet {
        PinSet(self.shards.iter().map(|_| Mutex::new(Vec::new())).collect())
    }

    pub fn release_pins(&self, set: &PinSet) {
        for (shard, words) in self.shards.iter().zip(&set.0) {
            let words = std::mem::take(&mut *words.lock());
            let mut shard = shard.lock();
            for (i, mut word) in words.into_iter().enumerate() {
                while word != 0 {
                    shard.remove_pin(i as u32 * 64 + word.trailing_zeros());
                    word &= word - 1;
                }
            }
        }
    }

    fn shard(&self, hash: &Hash) -> usize {
        shard_of(hash, self.slab.shards)
    }

    fn slot(&self, shard: usize, local: u32) -> u32 {
        local * self.slab.shards + shard as u32
    }

    fn pin_slot(shard: &mut Shard, number: usize, local: u32, pin: Option<&PinSet>) {
        if let Some(set) = pin
            && set.insert(number, local)
        {
            shard.add_pin(local);
        }
    }

    pub fn contains(&self, hash: &Hash) -> bool {
        self.shards[self.shard(hash)].lock().find(hash).is_some()
    }

    /// Marks an item as used and pins it, without reading it; returns whether it is here.
    pub fn touch(&self, hash: &Hash, pin: Option<&PinSet>) -> bool {
        let number = self.shard(hash);
        let mut shard = self.shards[number].lock();
        let Some(found) = shard.touch(hash) else {
            return false;
        };
        Self::pin_slot(&mut shard, number, found.local, pin);
        true
    }

    /// Looks an item up for reading; counts the hit or the miss.
    fn look_up(&self, number: usize, hash: &Hash, pin: Option<&PinSet>) -> Option<Found> {
        let mut shard = self.shards[number].lock();
        match shard.touch(hash) {
            Some(found) => {
                shard.counters.hits += 1;
                Self::pin_slot(&mut shard, number, found.local, pin);
                Some(found)
            }
            None => {
                shard.counters.misses += 1;
                None
            }
        }
    }

    /// Copies the item to `out`; returns false if it isn't here (or turned out to be damaged).
    pub fn read(&self, hash: &Hash, out: &mut [u8], pin: Option<&PinSet>) -> bool {
        let read = |slab: &Slab, slot, out: &mut [u8]| slab.read(slot, out).map(|()| true);
        self.read_by(hash, out, pin, read) == Got::Here
    }

    /// Copies the item to `out` as [`Tier::read`] does, unless the disk would have to be accessed for it.
    pub fn read_now(&self, hash: &Hash, out: &mut [u8], pin: Option<&PinSet>) -> Got {
        self.read_by(hash, out, pin, Slab::read_now)
    }

    /// Copies the item to `out` by `read`, which returns false if it would have to access the disk.
    fn read_by(
        &self,
        hash: &Hash,
        out: &mut [u8],
        pin: Option<&PinSet>,
        read: impl Fn(&Slab, u32, &mut [u8]) -> std::io::Result<bool>,
    ) -> Got {
        let number = self.shard(hash);
        for _ in 0..ATTEMPTS_MAX {
            let Some(found) = self.look_up(number, hash, pin) else {
                return Got::Missing;
            };
            let read = read(&self.slab, self.slot(number, found.local), out);
            if let Ok(false) = read {
                return Got::OnDisk;
            }
            match self.settle(number, hash, &found, out, read.is_ok()) {
                Some(true) => return Got::Here,
                Some(false) => return Got::Missing,
                None => {}
            }
        }
        Got::Missing
    }

    /// Ends a read: returns `None` if the slot was reused meanwhile, else whether `bytes` are the item. A damaged item is
    /// dropped.
    fn settle(
        &self,
        number: usize,
        hash: &Hash,
        found: &Found,
        bytes: &[u8],
        read_ok: bool,
    ) -> Option<bool> {
        let good = read_ok && (found.verified || chunk_hash(bytes) == *hash);
        let mut shard = self.shards[number].lock();
        if !shard.unchanged(found) {
            return None;
        }
        if good {
            shard.set_verified(found.local);
            return Some(true);
        }
        // This is rare, so the I/O may be under the lock; after it, the slot may already have a new owner's entry.
        self.slab.clear(self.slot(number, found.local));
        shard.drop_item(found.local);
        shard.counters.corrupt += 1;
        drop(shard);
        let kind = self.kind.name();
        tracing::warn!(item = %hash.short(), kind, "a cached item was damaged and is dropped; it will be fetched again");
        Some(false)
    }

    /// Stores an item whose hash the caller has checked.
    pub fn write(&self, hash: &Hash, data: &[u8], pin: Option<&PinSet>) -> Result<(), StoreError> {
        let number = self.shard(hash);
        let mut must_evict = false;
        for _ in 0..ATTEMPTS_MAX {
            let local = {
                let mut shard = self.shards[number].lock();
                if let Some(found) = shard.touch(hash) {
                    if shard.is_verified(found.local) {
                        Self::pin_slot(&mut shard, number, found.local, pin);
                        return Ok(());
                    }
                    // The old copy was not checked since the start, and here is a good one.
                    shard.drop_item(found.local);
                }
                let claimed = if must_evict {
                    shard.claim_by_eviction()
                } else {
                    shard.claim()
                };
                match claimed {
                    Some(local) => local,
                    None if shard.writing() > 0 => {
                        drop(shard);
                        std::thread::yield_now();
                        continue;
                    }
                    None => return Err(self.full(must_evict)),
                }
            };
            let slot = self.slot(number, local);
            match self.slab.write(slot, hash, data) {
                Ok(()) => {
                    let mut shard = self.shards[number].lock();
                    if !shard.commit(local, hash, true) {
                        self.slab.clear(slot);
                    }
                    if let Some(found) = shard.touch(hash) {
                        Self::pin_slot(&mut shard, number, found.local, pin);
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.slab.clear(slot);
                    self.shards[number].lock().release(local);
                    if !is_full(&error) || must_evict {
                        return Err(StoreError::io("write", &self.dir, error));
                    }
                    // The disk has no free blocks, but the slot of an evicted item has its own.
                    must_evict = true;
                }
            }
        }
        Err(self.full(must_evict))
    }

    fn full(&self, disk: bool) -> StoreError {
        let why = if disk {
            "the disk is full and"
        } else {
            "the budget is used up and"
        };
        StoreError::Full {
            path: self.dir.clone(),
            why: format!("{why} running machines need every {} in it", self.kind.name()),
            fix: "stop a machine, free space on the disk, or give the cache a larger budget (`--cache-bytes`)".to_owned(),
        }
    }

    /// Evicts up to `bytes`, from every shard in turn, and gives the blocks back. Returns the bytes freed.
    pub fn shrink(&self, bytes: u64) -> Result<u64, StoreError> {
        let size = self.kind.raw_size() as u64;
        let mut freed = 0;
        while freed < bytes {
            let batch = (bytes - freed).div_ceil(size).min(SHRINK_BATCH);
            let slots = self.evict_some(batch as usize);
            if slots.is_empty() {
                break;
            }
            freed += self.give_back(slots)?;
        }
        Ok(freed)
    }

    /// Drops those of the items that nobody has pinned, and gives their blocks back. Returns the bytes freed.
    pub fn forget(&self, hashes: &[Hash]) -> Result<u64, StoreError> {
        let forget = |hash: &Hash| {
            let number = self.shard(hash);
            let local = self.shards[number].lock().forget(hash)?;
            Some(self.slot(number, local))
        };
        let mut freed = 0;
        for some in hashes.chunks(SHRINK_BATCH as usize) {
            freed += self.give_back(some.iter().filter_map(forget).collect())?;
        }
        Ok(freed)
    }

    /// Gives the blocks of slots back that were taken out of the index; they can be claimed then. Returns the bytes freed.
    ///
    /// Holes are made for runs of neighbours: one for each item would take a disk minutes for a gibibyte. Until its hole is
    /// made a slot is in no free list; otherwise the hole could destroy what somebody writes there.
    fn give_back(&self, mut slots: Vec<u32>) -> Result<u64, StoreError> {
        slots.sort_unstable();
        let punched = slots.chunk_by(|a, b| a + 1 == *b).try_for_each(|run| {
            self.slab.clear_run(run[0], run.len() as u32);
            self.slab.punch(run[0], run.len() as u32)
        });
        let freed = slots.len() as u64 * self.kind.raw_size() as u64;
        for slot in slots {
            let shard = (slot % self.slab.shards) as usize;
            self.shards[shard]
                .lock()
                .free_evicted(slot / self.slab.shards);
        }
        punched.map_err(|e| StoreError::io("punch a hole in", &self.dir, e))?;
        Ok(freed)
    }

    /// Evicts up to `count` items, from every shard in turn; returns their slots, which can't be claimed yet.
    fn evict_some(&self, count: usize) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut before = None;
        while before != Some(slots.len()) && slots.len() < count {
            before = Some(slots.len());
            for (number, shard) in self.shards.iter().enumerate() {
                if slots.len() < count
                    && let Some(local) = shard.lock().evict()
                {
                    slots.push(self.slot(number, local));
                }
            }
        }
        slots
    }

    /// Checks every item. Stops and returns false when `step` returns false.
    pub fn verify(&self, dropped: &mut Vec<Hash>, step: &mut dyn FnMut() -> bool) -> bool {
        let mut buffer = vec![0u8; self.kind.raw_size()];
        for (number, shard) in self.shards.iter().enumerate() {
            let mut local = 0;
            loop {
                let item = {
                    let shard = shard.lock();
                    if local >= shard.len() {
                        break;
                    }
                    shard.item(local)
                };
                if let Some((hash, found)) = item {
                    let read = self
                        .slab
                        .read(self.slot(number, local), &mut buffer)
                        .is_ok();
                    let unchecked = Found {
                        verified: false,
                        ..found
                    };
                    if self.settle(number, &hash, &unchecked, &buffer, read) == Some(false) {
                        dropped.push(hash);
                    }
                    if !step() {
                        return false;
                    }
                }
                local += 1;
            }
        }
        true
    }

    /// Returns the number of items, the number of pinned items, and the counts of events.
    pub fn counts(&self) -> (u64, u64, Counters) {
        let mut total = Counters::default();
        let (mut items, mut pinned) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            items += u64::from(shard.ready());
            pinned += u64::from(shard.pinned());
            total.hits += shard.counters.hits;
            total.misses += shard.counters.misses;
            total.evictions += shard.counters.evictions;
            total.corrupt += shard.counters.corrupt;
        }
        (items, pinned, total)
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        self.slab.sync()
    }
}

/// Returns the shard of a hash, by other bytes than those of the shard's own table.
fn shard_of(hash: &Hash, shards: u32) -> usize {
    let bytes = hash.as_bytes();
    (u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) & (shards - 1)) as usize
}

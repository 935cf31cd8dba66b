//! One shard of the index: which slot holds which hash, who pins it, what is evicted next. It does no I/O; the owner locks it.
//!
//! A shard owns its slots for ever (slot `local` of shard `s` is slot `local * shards + s` of the slab), so one lock covers a
//! look-up, an eviction and the slot's reuse. It costs 48 bytes a slot, about 1.2 % of the chunks' bytes; keeping hashes only
//! on disk would save 32 of them and cost a read for each eviction.

use floe_image::Hash;
use hashbrown::HashTable;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Claimed by a writer; it is in no index, so nobody reads it.
    Writing,
    Ready,
}

struct Slot {
    hash: Hash,
    /// Changes whenever the slot's content does: a reader that finds the same generation afterwards has read the right bytes.
    generation: u32,
    pins: u32,
    state: State,
    /// Set by a use: CLOCK passes over the slot once more before it evicts the item.
    referenced: bool,
    /// Whether it was written by this process, or checked since the cache was opened.
    verified: bool,
}

/// A slot, as a reader needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub local: u32,
    pub generation: u32,
    pub verified: bool,
}

#[derive(Default, Clone, Copy)]
pub(super) struct Counters {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub corrupt: u64,
}

pub(super) struct Shard {
    index: HashTable<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: u32,
    hand: u32,
    ready: u32,
    writing: u32,
    pinned: u32,
    pub counters: Counters,
}

/// Returns the key for the index: the first eight bytes, as hashes are uniformly distributed already.
fn key(hash: &Hash) -> u64 {
    let bytes = hash.as_bytes();
    u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ])
}

impl Shard {
    pub fn new(capacity: u32) -> Shard {
        Shard {
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            hand: 0,
            ready: 0,
            writing: 0,
            pinned: 0,
            counters: Counters::default(),
        }
    }

    pub fn ready(&self) -> u32 {
        self.ready
    }

    pub fn writing(&self) -> u32 {
        self.writing
    }

    pub fn pinned(&self) -> u32 {
        self.pinned
    }

    /// Returns how many slots were ever used; all local numbers are below that.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn find(&self, hash: &Hash) -> Option<u32> {
        self.index
            .find(key(hash), |&local| self.slots[local as usize].hash == *hash)
            .copied()
    }

    /// Looks an item up for reading, which counts as a use.
    pub fn touch(&mut self, hash: &Hash) -> Option<Found> {
        let local = self.find(hash)?;
        let slot = &mut self.slots[local as usize];
        slot.referenced = true;
        Some(Found {
            local,
            generation: slot.generation,
            verified: slot.verified,
        })
    }

    /// Returns the item in slot `local`, if there is one.
    pub fn item(&self, local: u32) -> Option<(Hash, Found)> {
        let slot = self.slots.get(local as usize)?;
        (slot.state == State::Ready).then_some((
            slot.hash,
            Found {
                local,
                generation: slot.generation,
                verified: slot.verified,
            },
        ))
    }

    /// Returns whether the slot still holds what `found` saw.
    pub fn unchanged(&self, found: &Found) -> bool {
        self.slots[found.local as usize].generation == found.generation
    }

    pub fn set_verified(&mut self, local: u32) {
        self.slots[local as usize].verified = true;
    }

    pub fn is_verified(&self, local: u32) -> bool {
        self.slots[local as usize].verified
    }

    /// Claims a slot for writing: a free one, a new one, or that of an evicted item. `None` if everything is pinned or being
    /// written.
    pub fn claim(&mut self) -> Option<u32> {
        if let Some(local) = self.free.pop() {
            self.slots[local as usize].state = State::Writing;
            self.writing += 1;
            return Some(local);
        }
        if (self.slots.len() as u32) < self.capacity {
            self.slots.push(Slot {
                hash: Hash::ZERO,
                generation: 0,
                pins: 0,
                state: State::Writing,
                referenced: false,
                verified: false,
            });
            self.writing += 1;
            return Some(self.slots.len() as u32 - 1);
        }
        self.claim_by_eviction()
    }

    /// Claims the slot of an evicted item, which has disk blocks already, for when the disk has no more.
    pub fn claim_by_eviction(&mut self) -> Option<u32> {
        let local = self.evict()?;
        self.slots[local as usize].state = State::Writing;
        self.writing += 1;
        Some(local)
    }

    /// Evicts one item by CLOCK: goes through the unpinned items in turn, but spares those that were used since the last round.
    /// The slot is free then, but not in the free list. `None` if nothing can be evicted.
    pub fn evict(&mut self) -> Option<u32> {
        if self.pinned >= self.slots.len() as u32 {
            return None;
        }
        for _ in 0..self.slots.len() * 2 {
            let local = self.hand;
            self.hand = if local as usize + 1 >= self.slots.len() {
                0
            } else {
                local + 1
            };
            let slot = &mut self.slots[local as usize];
            if slot.state != State::Ready || slot.pins > 0 {
                continue;
            }
            if slot.referenced {
                slot.referenced = false;
                continue;
            }
            self.unlink(local);
            self.counters.evictions += 1;
            return Some(local);
        }
        None
    }

    /// Takes an item out that nobody has pinned. Its slot is free then, but not in the free list. `None` if it is not here, or pinned.
    pub fn forget(&mut self, hash: &Hash) -> Option<u32> {
        let local = self.find(hash)?;
        let slot = &self.slots[local as usize];
        if slot.state != State::Ready || slot.pins > 0 {
            return None;
        }
        self.unlink(local);
        Some(local)
    }

    /// Lets a slot that [`Shard::evict`] or [`Shard::forget`] returned be claimed again.
    pub fn free_evicted(&mut self, local: u32) {
        self.free.push(local);
    }

    fn unlink(&mut self, local: u32) {
        let hash = self.slots[local as usize].hash;
        if let Ok(entry) = self.index.find_entry(key(&hash), |&other| other == local) {
            entry.remove();
        }
        let slot = &mut self.slots[local as usize];
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.verified = false;
        self.ready -= 1;
    }

    /// Drops an item and frees its slot. Pins on the slot still count and will hold whatever is stored there next: that does no
    /// harm, and the sets of the pins stay right.
    pub fn drop_item(&mut self, local: u32) {
        self.unlink(local);
        self.free.push(local);
    }

    /// Makes the item in a claimed slot findable. Returns false if another writer was faster: the slot is free again.
    pub fn commit(&mut self, local: u32, hash: &Hash, verified: bool) -> bool {
        self.writing -= 1;
        if self.find(hash).is_some() {
            self.slots[local as usize].state = State::Free;
            self.free.push(local);
            return false;
        }
        let slot = &mut self.slots[local as usize];
        slot.hash = *hash;
        slot.state = State::Ready;
        slot.referenced = verified;
        slot.verified = verified;
        slot.generation = slot.generation.wrapping_add(1);
        self.ready += 1;
        let slots = &self.slots;
        self.index
            .insert_unique(key(hash), local, |&other| key(&slots[other as usize].hash));
        true
    }

    /// Gives a claimed slot back unwritten.
    pub fn release(&mut self, local: u32) {
        self.writing -= 1;
        self.slots[local as usize].state = State::Free;
        self.free.push(local);
    }

    /// For recovery: notes that slot `local` may hold `hash`. Slots before it that were not mentioned are free.
    pub fn recover(&mut self, local: u32, hash: &Hash) {
        if local >= self.capacity || (local as usize) < self.slots.len() {
            return;
        }
        while self.slots.len() <= local as usize {
            let next = self.slots.len() as u32;
            self.slots.push(Slot {
                hash: Hash::ZERO,
                generation: 0,
                pins: 0,
                state: State::Free,
                referenced: false,
                verified: false,
            });
            if next != local {
                self.free.push(next);
            }
        }
        self.slots[local as usize].state = State::Writing;
        self.writing += 1;
        self.commit(local, hash, false);
    }

    pub fn add_pin(&mut self, local: u32) {
        let slot = &mut self.slots[local as usize];
        slot.pins += 1;
        if slot.pins == 1 {
            self.pinned += 1;
        }
    }

    pub fn remove_pin(&mut self, local: u32) {
        let slot = &mut self.slots[local as usize];
        slot.pins -= 1;
        if slot.pins == 0 {
            self.pinned -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shard: &mut Shard, n: u32) -> Vec<Hash> {
        (0..n)
            .map(|i| {
                let hash = Hash::of(&i.to_le_bytes());
                let local = shard.claim().expect("room");
                assert!(shard.commit(local, &hash, true));
                hash
            })
            .collect()
    }

    #[test]
    fn what_was_used_since_the_last_round_outlives_what_was_not() {
        let mut shard = Shard::new(8);
        let hashes = fill(&mut shard, 8);
        // The first eviction clears the use mark of every item, then evicts the oldest.
        let first = shard.claim().unwrap();
        shard.commit(first, &Hash::of(b"new"), true);
        assert!(shard.find(&hashes[0]).is_none());
        shard.touch(&hashes[1]).unwrap();
        let second = shard.claim().unwrap();
        shard.release(second);
        assert!(shard.find(&hashes[1]).is_some() && shard.find(&hashes[2]).is_none());
    }

    #[test]
    fn a_pinned_slot_is_never_claimed() {
        let mut shard = Shard::new(4);
        let hashes = fill(&mut shard, 4);
        for hash in &hashes {
            let found = shard.touch(hash).unwrap();
            shard.add_pin(found.local);
        }
        assert_eq!(shard.claim(), None);
        let local = shard.find(&hashes[2]).unwrap();
        shard.remove_pin(local);
        assert_eq!(shard.claim(), Some(local));
    }

    #[test]
    fn a_reused_slot_has_another_generation() {
        let mut shard = Shard::new(1);
        let hashes = fill(&mut shard, 1);
        let before = shard.touch(&hashes[0]).unwrap();
        let local = shard.claim().unwrap();
        assert!(!shard.unchanged(&before));
        shard.commit(local, &Hash::of(b"x"), true);
        assert!(!shard.unchanged(&before));
    }
}

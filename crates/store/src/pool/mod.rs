//! Substrates in memory: each chunk once, however many substrates have it, compressed in groups, within a budget.
//!
//! A substrate is an image of which only its *own* items are held here: what its base image has is read from the repository. Its
//! bytes there are complete, so whatever is here may be dropped at any time: when the budget is used up, the substrate that was
//! used least recently goes, whole.
//!
//! Nothing here reads, writes or knows a clock. Who admits a substrate asks for a plan, reads and compresses what is lacking
//! ([`Packing`]) without holding the pool, and hands that in:
//!
//! ```text
//! plan(items) -> what is lacking -> Packing -> admit(id, items, packed) -> who had to go for it
//! find(wants) -> groups and the rest, which is in the backup; find_of(id, wants): the same for one substrate's items alone
//! ```
//! An item costs 49 bytes beside its compressed content, and four for each substrate that has it. A group of which half is not
//! used any more is compressed anew without that half, a few groups at a time ([`SubstratePool::thin_some`]): whoever holds the pool
//! keeps page faults waiting.

mod group;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use floe_image::{FormatError, Hash, Kind};
use hashbrown::HashTable;

use group::{Dictionary, Group};
pub use group::{Packed, Packing};

/// Regions of an image that are small, and much alike in all machines.
pub const SMALL_REGIONS: [&str; 3] = ["device", "vram", "thumb"];
/// How many groups are compressed anew at a time: some 30 ms of work.
const THINNED_AT_ONCE_MAX: usize = 8;
/// Bytes that an item takes in the table: a number, and a byte that the table keeps for it.
const TABLE_ENTRY_BYTES: u64 = 5;

/// An item of a substrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolItem {
    /// Whether it is a chunk or a segment.
    pub kind: Kind,
    /// Its name.
    pub hash: Hash,
    /// Whether it is of a small part of its machine (the device state), which other machines have almost alike.
    pub small: bool,
}

/// What is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes that all of it takes, lists included. Never more than the budget.
    pub bytes: u64,
    /// Bytes of compressed items among them.
    pub compressed_bytes: u64,
    /// Bytes of those items before compression, each counted once.
    pub raw_bytes: u64,
    /// Bytes of those items before compression, each counted for each substrate that has it.
    pub referred_bytes: u64,
    /// How many substrates are in memory.
    pub substrates: u64,
}

/// What came of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Whether the substrate is in memory now. If not, it alone takes more than it may.
    pub held: bool,
    /// The substrates that went for it.
    pub evicted: Vec<Hash>,
    /// By how many bytes the memory grew for it, before others went. If it is not in memory: how many it would take alone.
    pub added_bytes: u64,
}

/// Items that went while they were counted on: read them too, and admit again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking(pub Vec<PoolItem>);

/// Items in one group.
pub struct PoolPiece {
    group: Arc<Group>,
    slots: Vec<u16>,
    /// Their neighbours that may be given too.
    others: Vec<u16>,
}

impl PoolPiece {
    /// Unpacks the group. `sink` gets the wanted items first and then their neighbours, each verified.
    pub fn read(&self, sink: &mut dyn FnMut(Kind, Hash, &[u8])) -> Result<(), FormatError> {
        let items = self.group.unpack()?;
        for slot in self.slots.iter().chain(&self.others) {
            let slot = usize::from(*slot);
            sink(self.group.kind, self.group.hashes[slot], &items[slot]);
        }
        Ok(())
    }

    /// Returns the wanted items.
    pub fn wanted(&self) -> impl Iterator<Item = (Kind, Hash)> + '_ {
        let hashes = &self.group.hashes;
        self.slots
            .iter()
            .map(|slot| (self.group.kind, hashes[usize::from(*slot)]))
    }
}

#[derive(Clone, Copy)]
struct Item {
    group: u32,
    slot: u16,
    /// How many substrates have it; 0 for a vacant place in the list.
    users: u32,
}

struct GroupPlace {
    group: Arc<Group>,
    /// How many of its items are used.
    live: u16,
}

struct Held {
    /// In ascending order.
    items: Box<[u32]>,
    /// When it was used last: a count of uses.
    used_at: u64,
}

/// See the module.
pub struct SubstratePool {
    budget_bytes: u64,
    uses: u64,
    items: Vec<Item>,
    vacant_items: Vec<u32>,
    by_hash: HashTable<u32>,
    groups: Vec<Option<GroupPlace>>,
    vacant_groups: Vec<u32>,
    /// Groups of which half or more may be unused.
    loose: BTreeSet<u32>,
    substrates: BTreeMap<Hash, Held>,
    dictionary: Option<Dictionary>,
    usage: PoolUsage,
}

fn key(hash: &Hash) -> u64 {
    let b = hash.as_bytes();
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

impl SubstratePool {
    /// Returns an empty pool that takes `budget_bytes` of memory at most.
    pub fn new(budget_bytes: u64) -> SubstratePool {
        SubstratePool {
            budget_bytes,
            uses: 0,
            items: Vec::new(),
            vacant_items: Vec::new(),
            by_hash: HashTable::new(),
            groups: Vec::new(),
            vacant_groups: Vec::new(),
            loose: BTreeSet::new(),
            substrates: BTreeMap::new(),
            dictionary: None,
            usage: PoolUsage::default(),
        }
    }

    /// Returns the budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Changes the budget; returns the substrates that went for it.
    pub fn resize(&mut self, budget_bytes: u64) -> Vec<Hash> {
        self.budget_bytes = budget_bytes;
        self.make_room(budget_bytes, None)
    }

    /// Returns what is in memory.
    pub fn usage(&self) -> PoolUsage {
        self.usage
    }

    /// Whether a substrate is in memory.
    pub fn holds(&self, id: &Hash) -> bool {
        self.substrates.contains_key(id)
    }

    /// Notes that a substrate is used now. Returns whether it is in memory.
    pub fn touch(&mut self, id: &Hash) -> bool {
        self.uses += 1;
        let held = self.substrates.get_mut(id);
        held.map(|held| held.used_at = self.uses).is_some()
    }

    /// Returns those of a substrate's items that are not in memory, and what compresses them.
    pub fn plan(&self, items: &[PoolItem]) -> (Vec<PoolItem>, Packing) {
        let mut seen = HashSet::new();
        let lacking = items.iter().filter(|item| seen.insert(item.hash));
        let lacking = lacking.filter(|item| self.lookup(item.kind, &item.hash).is_none());
        (
            lacking.copied().collect(),
            Packing::new(self.dictionary.clone()),
        )
    }

    /// Lets substrates go, those that were used least recently first, until `bytes` are given back or nothing is left. Returns them.
    pub fn give_back(&mut self, bytes: u64) -> Vec<Hash> {
        let most = self.usage.bytes.saturating_sub(bytes);
        self.make_room(most, None)
    }

    /// Takes a substrate in, if all of them take `bytes_max` then at most, and no more than the budget. Substrates that were used less
    /// recently go for it, unless it alone is more than that.
    pub fn admit(
        &mut self,
        id: Hash,
        items: &[PoolItem],
        packed: Packed,
        bytes_max: u64,
    ) -> Result<Admitted, Lacking> {
        let bytes_max = bytes_max.min(self.budget_bytes);
        if self.touch(&id) {
            return Ok(Admitted {
                held: true,
                evicted: Vec::new(),
                added_bytes: 0,
            });
        }
        let brought: HashSet<(Kind, Hash)> = packed
            .groups
            .iter()
            .flat_map(|group| group.hashes.iter().map(|hash| (group.kind, *hash)))
            .collect();
        let there = |item: &&PoolItem| {
            brought.contains(&(item.kind, item.hash))
                || self.lookup(item.kind, &item.hash).is_some()
        };
        let lacking: Vec<PoolItem> = items.iter().filter(|item| !there(item)).copied().collect();
        if !lacking.is_empty() {
            return Err(Lacking(lacking));
        }
        // one that would not even fit alone sends nobody away
        let alone = self.alone_bytes_max(items, &packed);
        if alone > bytes_max {
            return Ok(Admitted {
                held: false,
                evicted: Vec::new(),
                added_bytes: alone,
            });
        }
        let before = self.usage.bytes;
        if self.dictionary.is_none()
            && let Some(dictionary) = packed.dictionary
        {
            self.usage.bytes += dictionary.len() as u64;
            self.dictionary = Some(dictionary);
        }
        let mut wanted: HashSet<Hash> = items.iter().map(|item| item.hash).collect();
        for group in packed.groups {
            self.insert(group, &wanted);
        }
        let mut refs = Vec::with_capacity(wanted.len());
        for item in items.iter().filter(|item| wanted.remove(&item.hash)) {
            // an item that was brought under a zero count of users would be a mistake of `insert`
            let Some(number) = self.lookup(item.kind, &item.hash) else {
                continue;
            };
            self.items[number as usize].users += 1;
            self.usage.referred_bytes += item.kind.raw_size() as u64;
            refs.push(number);
        }
        self.usage.bytes += held_bytes(refs.len());
        self.usage.substrates += 1;
        let used_at = self.uses;
        refs.sort_unstable();
        let items = refs.into_boxed_slice();
        self.substrates.insert(id, Held { items, used_at });
        let added_bytes = self.usage.bytes - before;
        let evicted = self.make_room(bytes_max, Some(&id));
        let held = self.usage.bytes <= bytes_max;
        if !held {
            self.release(&id);
        }
        Ok(Admitted {
            held,
            evicted,
            added_bytes,
        })
    }

    /// Returns the most bytes that a substrate takes if all others go: groups that it shares with them stay whole.
    fn alone_bytes_max(&self, items: &[PoolItem], packed: &Packed) -> u64 {
        let (mut seen, mut groups) = (HashSet::new(), HashSet::new());
        for item in items.iter().filter(|item| seen.insert(item.hash)) {
            if let Some(number) = self.lookup(item.kind, &item.hash) {
                groups.insert(self.items[number as usize].group);
            }
        }
        let there = groups.iter().map(|group| self.group(*group).memory_bytes());
        there.sum::<u64>() + packed.growth_bytes_max(seen.len())
    }

    /// Lets substrates go, those that were used least recently first, until the rest takes `bytes_max` at most. `but` stays.
    fn make_room(&mut self, bytes_max: u64, but: Option<&Hash>) -> Vec<Hash> {
        let mut gone = Vec::new();
        let mut thinned = false;
        while self.usage.bytes > bytes_max {
            // what went may have left enough
            if !gone.is_empty() && !std::mem::replace(&mut thinned, true) {
                self.thin_some();
                continue;
            }
            let others = self.substrates.iter().filter(|(id, _)| Some(*id) != but);
            let Some(oldest) = others.min_by_key(|(_, held)| held.used_at) else {
                break;
            };
            let oldest = *oldest.0;
            self.release(&oldest);
            gone.push(oldest);
        }
        gone
    }

    /// Drops a substrate; returns whether it was here.
    pub fn release(&mut self, id: &Hash) -> bool {
        let Some(held) = self.substrates.remove(id) else {
            return false;
        };
        self.usage.substrates -= 1;
        self.usage.bytes -= held_bytes(held.items.len());
        let mut thinned = HashSet::new();
        for number in held.items.iter().copied() {
            let item = &mut self.items[number as usize];
            item.users -= 1;
            let (users, group) = (item.users, item.group);
            let kind = self.group(group).kind;
            self.usage.referred_bytes -= kind.raw_size() as u64;
            if users == 0 {
                self.forget(number, kind);
                thinned.insert(group);
            }
        }
        for number in thinned {
            match &self.groups[number as usize] {
                Some(place) if place.live == 0 => self.thin(number),
                _ => drop(self.loose.insert(number)),
            }
        }
        if self.substrates.is_empty()
            && let Some(dictionary) = self.dictionary.take()
        {
            self.usage.bytes -= dictionary.len() as u64;
        }
        true
    }

    /// Returns the groups that hold these items, and the items that are not here.
    pub fn find(&self, wants: &[(Kind, Hash)]) -> (Vec<PoolPiece>, Vec<(Kind, Hash)>) {
        self.find_where(wants, &|_| true)
    }

    /// Does the same for the items of one substrate: what others alone have is not here, not even as a neighbour.
    pub fn find_of(
        &self,
        id: &Hash,
        wants: &[(Kind, Hash)],
    ) -> (Vec<PoolPiece>, Vec<(Kind, Hash)>) {
        match self.substrates.get(id) {
            Some(held) => {
                self.find_where(wants, &|number| held.items.binary_search(&number).is_ok())
            }
            None => (Vec::new(), wants.to_vec()),
        }
    }

    /// Returns what is found of the items whose numbers may be known.
    fn find_where(
        &self,
        wants: &[(Kind, Hash)],
        may: &dyn Fn(u32) -> bool,
    ) -> (Vec<PoolPiece>, Vec<(Kind, Hash)>) {
        let mut pieces: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
        let mut rest = Vec::new();
        for (kind, hash) in wants {
            match self.lookup(*kind, hash).filter(|number| may(*number)) {
                Some(number) => {
                    let item = self.items[number as usize];
                    pieces.entry(item.group).or_default().push(item.slot);
                }
                None => rest.push((*kind, *hash)),
            }
        }
        let pieces = pieces.into_iter().map(|(number, mut slots)| {
            slots.sort_unstable();
            slots.dedup();
            let group = self.group(number).clone();
            let hashes = (0u16..).zip(&group.hashes);
            let others = hashes.filter(|(slot, hash)| {
                // one that nobody has any more is nobody's
                let known = || self.lookup(group.kind, hash).is_some_and(may);
                !slots.contains(slot) && known()
            });
            let others = others.map(|(slot, _)| slot).collect();
            PoolPiece {
                group,
                slots,
                others,
            }
        });
        (pieces.collect(), rest)
    }

    fn group(&self, number: u32) -> &Arc<Group> {
        let place = self.groups[number as usize].as_ref();
        &place.expect("items refer to groups that exist").group
    }

    fn lookup(&self, kind: Kind, hash: &Hash) -> Option<u32> {
        let found = self.by_hash.find(key(hash), |number| {
            let item = &self.items[*number as usize];
            let group = self.group(item.group);
            group.kind == kind && group.hashes[usize::from(item.slot)] == *hash
        });
        found.copied()
    }

    /// Adds a group for those of its items that are wanted and not here yet.
    fn insert(&mut self, group: Group, wanted: &HashSet<Hash>) {
        let new = |(slot, hash): (usize, &Hash)| {
            let is_new = wanted.contains(hash) && self.lookup(group.kind, hash).is_none();
            is_new.then_some((slot as u16, *hash))
        };
        let new: Vec<(u16, Hash)> = group.hashes.iter().enumerate().filter_map(new).collect();
        if new.is_empty() {
            return;
        }
        let kind = group.kind;
        self.usage.bytes += group.memory_bytes();
        self.usage.compressed_bytes += group.compressed_bytes();
        let place = GroupPlace {
            group: Arc::new(group),
            live: 0,
        };
        let number = match self.vacant_groups.pop() {
            Some(number) => {
                self.groups[number as usize] = Some(place);
                number
            }
            None => {
                self.groups.push(Some(place));
                self.groups.len() as u32 - 1
            }
        };
        for (slot, hash) in new {
            // a group that holds an item twice needs it once
            if self.lookup(kind, &hash).is_some() {
                continue;
            }
            let item = Item {
                group: number,
                slot,
                users: 0,
            };
            let at = match self.vacant_items.pop() {
                Some(at) => {
                    self.items[at as usize] = item;
                    at
                }
                None => {
                    self.items.push(item);
                    self.items.len() as u32 - 1
                }
            };
            let (items, groups) = (&self.items, &self.groups);
            self.by_hash.insert_unique(key(&hash), at, |number| {
                let item = &items[*number as usize];
                let place = groups[item.group as usize].as_ref();
                place.map_or(0, |place| key(&place.group.hashes[usize::from(item.slot)]))
            });
            self.usage.bytes += size_of::<Item>() as u64 + TABLE_ENTRY_BYTES;
            self.usage.raw_bytes += kind.raw_size() as u64;
            if let Some(place) = &mut self.groups[number as usize] {
                place.live += 1;
            }
        }
    }

    /// Forgets an item that no substrate has any more.
    fn forget(&mut self, number: u32, kind: Kind) {
        let item = self.items[number as usize];
        let hash = self.group(item.group).hashes[usize::from(item.slot)];
        if let Ok(found) = self
            .by_hash
            .find_entry(key(&hash), |other| *other == number)
        {
            found.remove();
        }
        self.vacant_items.push(number);
        self.usage.bytes -= size_of::<Item>() as u64 + TABLE_ENTRY_BYTES;
        self.usage.raw_bytes -= kind.raw_size() as u64;
        if let Some(place) = &mut self.groups[item.group as usize] {
            place.live -= 1;
        }
    }

    /// Compresses some groups anew of which half or more is unused. Returns whether there may be more.
    pub fn thin_some(&mut self) -> bool {
        for _ in 0..THINNED_AT_ONCE_MAX {
            let Some(number) = self.loose.pop_first() else {
                return false;
            };
            self.thin(number);
        }
        !self.loose.is_empty()
    }

    /// Drops a group that has no items any more, and compresses one anew of which half is not used.
    fn thin(&mut self, number: u32) {
        let Some(place) = &self.groups[number as usize] else {
            return;
        };
        let (group, live) = (place.group.clone(), usize::from(place.live));
        if live * 2 > group.hashes.len() {
            return;
        }
        if live == 0 {
            self.groups[number as usize] = None;
            self.vacant_groups.push(number);
            self.usage.bytes -= group.memory_bytes();
            self.usage.compressed_bytes -= group.compressed_bytes();
            return;
        }
        // it was packed by this process: if its memory went bad, readers find that out and read the backup
        let Ok(all) = group.unpack() else { return };
        let mut kept: Vec<(u32, Hash, Vec<u8>)> = Vec::with_capacity(live);
        for ((slot, hash), bytes) in group.hashes.iter().enumerate().zip(all) {
            let here = self.lookup(group.kind, hash).filter(|at| {
                let item = &self.items[*at as usize];
                item.group == number && usize::from(item.slot) == slot
            });
            if let Some(at) = here {
                kept.push((at, *hash, bytes));
            }
        }
        let numbers: Vec<u32> = kept.iter().map(|(at, _, _)| *at).collect();
        let items: Vec<(Hash, Vec<u8>)> = kept
            .into_iter()
            .map(|(_, hash, bytes)| (hash, bytes))
            .collect();
        let Ok(smaller) = Group::pack(group.kind, &items, group.dictionary()) else {
            return;
        };
        for (slot, at) in numbers.into_iter().enumerate() {
            self.items[at as usize].slot = slot as u16;
        }
        self.usage.bytes = self.usage.bytes - group.memory_bytes() + smaller.memory_bytes();
        self.usage.compressed_bytes =
            self.usage.compressed_bytes - group.compressed_bytes() + smaller.compressed_bytes();
        if let Some(place) = &mut self.groups[number as usize] {
            place.group = Arc::new(smaller);
        }
    }
}

impl Packed {
    /// Returns by how many bytes the memory grows at most if a substrate of so many items is taken in with this.
    pub fn growth_bytes_max(&self, items: usize) -> u64 {
        let groups: u64 = self.groups.iter().map(Group::memory_bytes).sum();
        let tables = items as u64 * (size_of::<Item>() as u64 + TABLE_ENTRY_BYTES);
        let dictionary = self.dictionary.as_ref().map_or(0, |bytes| bytes.len());
        groups + tables + held_bytes(items) + dictionary as u64
    }
}

/// Returns the bytes that a substrate's own list takes.
fn held_bytes(items: usize) -> u64 {
    (items * size_of::<u32>() + size_of::<(Hash, Held)>()) as u64
}

//! Which machine's tag is the lowest, without asking all of them.
//!
//! Each machine is in some ordered sets, by its tags: a request changes the place of one machine in two or three of them, and the
//! first of a set is what a search through all machines would find. Machines with a cap are left out, because whether they are above
//! it changes with time alone; they are asked one by one. The tests of `choose` compare every choice with such a search.

use super::Vsip;
use super::machine::{AHEAD, BULK, INTERACTIVE, Keys, Machine, Tag};
use crate::Limit;
use std::collections::{BTreeMap, BTreeSet};

/// How a request may be taken; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Starving,
    Urgent,
    InTurn,
    Last,
}

/// A lane from which a request may be taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub level: Level,
    /// The lowest goes first among those of one level.
    pub key: f64,
    pub lane: usize,
    pub place: usize,
}

impl Candidate {
    pub fn is_before(&self, other: &Candidate) -> bool {
        let keys = self.key.total_cmp(&other.key);
        let order = self.level.cmp(&other.level).then(keys);
        let order = order.then(self.lane.cmp(&other.lane));
        order.then(self.place.cmp(&other.place)).is_lt()
    }
}

/// Machines in the order of their tags, by their places.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// What those with interactive requests have `used`.
    urgent: BTreeSet<(Tag, usize)>,
    /// The turns of the lanes that a guest waits for, those of the bulk lanes with their delay.
    in_turn: BTreeSet<(Tag, usize, usize)>,
    /// The turns of those with requests that no guest waits for.
    ahead: BTreeSet<(Tag, usize)>,
    /// The turns of those at work, except of those that go last.
    first: BTreeSet<(Tag, usize)>,
    /// The turns of those at work that go last.
    last: BTreeSet<(Tag, usize)>,
    /// Those at work that want nothing, by when they last did.
    idle: BTreeSet<(u64, usize)>,
    /// Those with a cap.
    pub capped: BTreeSet<usize>,
    /// Those that may be about to send their next interactive request.
    pub thinking: BTreeSet<usize>,
    /// The weights of those at work, in [`Limit::WEIGHT_PARTS`], and how many have each.
    by_weight: BTreeMap<u32, usize>,
    weights: u64,
    count: usize,
}

/// Returns a number for a tag: of two tags the lower one has the lower number.
fn number(tag: f64) -> Tag {
    let bits = tag.to_bits();
    match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    }
}

/// Returns the tag of a number.
fn tag(number: Tag) -> f64 {
    f64::from_bits(match number >> 63 {
        0 => !number,
        _ => number & !(1 << 63),
    })
}

/// Replaces an entry of a set.
fn put<K: Ord>(set: &mut BTreeSet<K>, old: Option<K>, new: Option<K>) {
    if old == new {
        return;
    }
    if let Some(old) = old {
        set.remove(&old);
    }
    set.extend(new);
}

impl Keys {
    /// Where a machine is to be, given the time and for how long it is at work after it last did anything.
    fn of<T>(machine: &Machine<T>, now_us: u64, grace_us: u64) -> Keys {
        let busy = machine.is_busy();
        let at_work = machine.is_at_work(now_us, grace_us);
        let mut keys = Keys {
            idle: (at_work && !busy).then_some(machine.last_us),
            weight: if at_work {
                machine.limit.weight_parts()
            } else {
                0
            },
            ..Keys::default()
        };
        if machine.limit.cap_percent < 100 {
            return keys;
        }
        let turn = number(machine.turn);
        if at_work {
            match machine.goes_last() {
                true => keys.last = Some(turn),
                false => keys.first = Some(turn),
            }
        }
        for (lane, key) in keys.in_turn.iter_mut().enumerate() {
            if !machine.lanes[lane].queue.is_empty() {
                *key = Some(match lane {
                    BULK => number(machine.bulk_turn()),
                    _ => turn,
                });
            }
        }
        if !machine.lanes[INTERACTIVE].queue.is_empty() {
            keys.urgent = Some(number(machine.used));
        }
        keys.ahead = (!machine.lanes[AHEAD].queue.is_empty()).then_some(turn);
        keys
    }
}

impl Index {
    fn put(&mut self, place: usize, old: Keys, new: Keys) {
        let at = |key: Option<Tag>| key.map(|key| (key, place));
        put(&mut self.urgent, at(old.urgent), at(new.urgent));
        put(&mut self.ahead, at(old.ahead), at(new.ahead));
        put(&mut self.first, at(old.first), at(new.first));
        put(&mut self.last, at(old.last), at(new.last));
        put(&mut self.idle, at(old.idle), at(new.idle));
        for (lane, (old, new)) in old.in_turn.into_iter().zip(new.in_turn).enumerate() {
            let at = |key: Option<Tag>| key.map(|key| (key, lane, place));
            put(&mut self.in_turn, at(old), at(new));
        }
        if old.weight != new.weight {
            self.weigh(old.weight, new.weight);
        }
        self.weights = self.weights + u64::from(new.weight) - u64::from(old.weight);
        self.count = self.count + usize::from(new.weight > 0) - usize::from(old.weight > 0);
    }

    fn weigh(&mut self, old: u32, new: u32) {
        if let Some(count) = self.by_weight.get_mut(&old) {
            *count -= 1;
            if *count == 0 {
                self.by_weight.remove(&old);
            }
        }
        if new > 0 {
            *self.by_weight.entry(new).or_default() += 1;
        }
    }

    /// Returns the lowest weight of the machines at work.
    pub fn lightest(&self) -> f64 {
        let first = self.by_weight.first_key_value();
        let parts = f64::from(Limit::WEIGHT_PARTS);
        first.map_or(1.0, |(weight, _)| f64::from(*weight) / parts)
    }

    /// Returns the weights of the machines at work, and how many there are.
    pub fn at_work(&self) -> (f64, usize) {
        let parts = f64::from(Limit::WEIGHT_PARTS);
        (self.weights as f64 / parts, self.count)
    }

    /// Returns the earliest turn of the machines at work without a cap that don't go last, and of those that do; infinite if there
    /// are none.
    pub fn turns(&self) -> (f64, f64) {
        let lowest = |set: &BTreeSet<(Tag, usize)>| {
            let first = set.first();
            first.map_or(f64::INFINITY, |(number, _)| tag(*number))
        };
        (lowest(&self.first), lowest(&self.last))
    }

    /// Returns the lanes without a cap of one level, the first one to go first. An interactive lane is in both of the first two levels.
    pub fn lanes(&self, level: Level) -> Box<dyn Iterator<Item = Candidate> + '_> {
        let of = move |(number, lane, place): (Tag, usize, usize)| Candidate {
            level,
            key: tag(number),
            lane,
            place,
        };
        match level {
            Level::Urgent => {
                let all = self.urgent.iter();
                Box::new(all.map(move |(key, place)| of((*key, INTERACTIVE, *place))))
            }
            Level::InTurn => Box::new(self.in_turn.iter().map(move |entry| of(*entry))),
            Level::Last => {
                let all = self.ahead.iter();
                Box::new(all.map(move |(key, place)| of((*key, AHEAD, *place))))
            }
            Level::Starving => Box::new(std::iter::empty()),
        }
    }
}

impl<T> Vsip<T> {
    /// Puts a machine where it belongs, after anything has changed that decides that.
    pub(super) fn reindex(&mut self, place: usize) {
        let grace_us = self.config.grace_us;
        let machine = &mut self.machines[place];
        let new = Keys::of(machine, self.now_us, grace_us);
        let old = std::mem::replace(&mut machine.keys, new);
        if old != new {
            self.index.put(place, old, new);
        }
    }

    /// Puts all machines where they belong.
    pub(super) fn reindex_all(&mut self) {
        self.index = Index::default();
        for (place, machine) in self.machines.iter_mut().enumerate() {
            machine.keys = Keys::default();
            if machine.limit.cap_percent < 100 {
                self.index.capped.insert(place);
            }
            if machine.may_think() {
                self.index.thinking.insert(place);
            }
        }
        (0..self.machines.len()).for_each(|place| self.reindex(place));
    }

    /// Takes the machines off that have wanted nothing for so long that they are no longer at work.
    pub(super) fn retire(&mut self, now_us: u64) {
        while let Some((last_us, place)) = self.index.idle.first().copied()
            && last_us + self.config.grace_us <= now_us
        {
            self.reindex(place);
        }
    }
}

//! Which request is served next.

use super::config::{BULK_YIELDS, GUARD_EVERY, GUARD_LOOKS, LOST_US, URGENT_EXTRA};
use super::machine::{AHEAD, BULK, INTERACTIVE, LANES, Waiting};
use super::{Flight, Vsip};
use crate::{Op, Who};

/// How a request may be taken; the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Starving,
    Urgent,
    InTurn,
    Last,
}

/// A lane from which a request may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    level: Level,
    /// The lowest goes first among those of one level.
    key: f64,
    lane: usize,
    place: usize,
}

impl Candidate {
    fn is_before(&self, other: &Candidate) -> bool {
        let keys = self.key.total_cmp(&other.key);
        let order = self.level.cmp(&other.level).then(keys);
        order.then(self.lane.cmp(&other.lane)).is_lt()
    }
}

impl<T: Send> Vsip<T> {
    /// Takes the request that is to be served next, if one may be.
    pub(super) fn take_next(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let free = (self.depth.limit() + URGENT_EXTRA).saturating_sub(self.flights.len());
        if free == 0 {
            self.wake_us = self.lost_us();
            return None;
        }
        let guards = self.unguarded >= GUARD_EVERY && self.guard_at_us <= now_us;
        if free <= URGENT_EXTRA && self.urgent_queued == 0 && !guards {
            self.wake_us = self.lost_us();
            return None;
        }
        self.go_on(now_us);
        let writes = self.may_write(now_us);
        if guards && let Some(taken) = self.take_starving(now_us, writes, ready) {
            return Some(taken);
        }
        let kept_for = self.kept_for(now_us);
        let others = free > URGENT_EXTRA && kept_for.is_none();
        let mut candidates = std::mem::take(&mut self.candidates);
        self.find(now_us, others, &mut candidates);
        let mut taken = None;
        while let Some(first) = take_first(&mut candidates) {
            if let Some(at) = self.find_ready(&first, writes, ready) {
                taken = self.take(now_us, &first, at);
                break;
            }
        }
        self.candidates = candidates;
        if taken.is_none() {
            self.wake_us = self.lost_us();
            if let Some((place, until_us)) = kept_for {
                self.depth.interrupt();
                self.wake_us = until_us.or(self.wake_us);
                if self.flights.is_empty() {
                    self.held = Some((now_us, self.machines[place].id));
                }
            }
        }
        taken
    }

    /// Returns when the oldest request that is under way is to be taken for lost.
    fn lost_us(&self) -> Option<u64> {
        let oldest = self.flights.iter().map(|flight| flight.taken_us).min();
        oldest.map(|taken| taken + LOST_US)
    }

    /// Collects the lanes from which a request may be taken; only urgent ones unless `others`.
    fn find(&self, now_us: u64, others: bool, candidates: &mut Vec<Candidate>) {
        candidates.clear();
        for (place, machine) in self.machines.iter().enumerate() {
            if !machine.is_busy() {
                continue;
            }
            let last = self.is_capped(now_us, machine);
            let urgent = !last && self.may_overtake(machine);
            for lane in 0..LANES {
                if machine.lanes[lane].queue.is_empty() {
                    continue;
                }
                let (level, key) = match lane {
                    INTERACTIVE if urgent => (Level::Urgent, machine.used),
                    AHEAD => (Level::Last, machine.turn),
                    _ if last => (Level::Last, machine.turn),
                    BULK => (Level::InTurn, machine.turn + BULK_YIELDS / machine.weight()),
                    _ => (Level::InTurn, machine.turn),
                };
                if others || level == Level::Urgent {
                    candidates.push(Candidate {
                        level,
                        key,
                        lane,
                        place,
                    });
                }
            }
        }
    }

    /// Returns the place in its lane of the first request that is ready.
    fn find_ready(
        &self,
        from: &Candidate,
        writes: bool,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<usize> {
        let bound = !writes && from.lane != INTERACTIVE;
        let queue = &self.machines[from.place].lanes[from.lane].queue;
        queue.iter().position(|waiting| {
            !(bound && waiting.op != Op::Read) && ready(&waiting.who, &waiting.request)
        })
    }

    /// Takes a request of the lane that has waited longest for one to be taken, if that is too long.
    fn take_starving(
        &mut self,
        now_us: u64,
        writes: bool,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let before_us = now_us.checked_sub(self.config.guard_us)?;
        let mut longest: Option<(u64, Candidate)> = None;
        for (place, machine) in self.machines.iter().enumerate() {
            for (lane, of) in machine.lanes.iter().enumerate() {
                let starves = |waiting: &Waiting<T>| waiting.since_us <= before_us;
                let first = longest.is_none_or(|(taken_us, _)| of.taken_us < taken_us);
                if of.taken_us > before_us || !first || !of.queue.front().is_some_and(starves) {
                    continue;
                }
                let candidate = Candidate {
                    level: Level::Starving,
                    key: 0.0,
                    lane,
                    place,
                };
                if self.find_ready(&candidate, writes, ready).is_some() {
                    longest = Some((of.taken_us, candidate));
                }
            }
        }
        let Some((_, candidate)) = longest else {
            self.guard_at_us = now_us + self.config.guard_us / GUARD_LOOKS;
            return None;
        };
        let at = self.find_ready(&candidate, writes, ready)?;
        self.unguarded = 0;
        self.guarded += 1;
        self.take(now_us, &candidate, at)
    }

    /// Takes a request, which is served from now on.
    fn take(&mut self, now_us: u64, from: &Candidate, at: usize) -> Option<(Who, T)> {
        let machine = &mut self.machines[from.place];
        let lane = &mut machine.lanes[from.lane];
        let waiting = lane.queue.remove(at)?;
        lane.taken_us = now_us;
        machine.in_flight += 1;
        machine.urgent_in_flight += usize::from(from.lane == INTERACTIVE);
        self.queued -= 1;
        self.urgent_queued -= usize::from(from.lane == INTERACTIVE);
        self.unguarded = self.unguarded.saturating_add(1);
        self.flights.push(Flight {
            who: waiting.who,
            op: waiting.op,
            bytes: waiting.bytes,
            cost: waiting.cost,
            lane: from.lane,
            since_us: waiting.since_us,
            taken_us: now_us,
        });
        self.charge(now_us, from.place, waiting.cost, from.level);
        Some((waiting.who, waiting.request))
    }

    /// Removes the first request that is ready, in the order in which they would be taken if all might be.
    pub(super) fn take_any(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<Waiting<T>> {
        let mut candidates = Vec::new();
        self.find(now_us, true, &mut candidates);
        while let Some(first) = take_first(&mut candidates) {
            let Some(at) = self.find_ready(&first, true, ready) else {
                continue;
            };
            let queue = &mut self.machines[first.place].lanes[first.lane].queue;
            let waiting = queue.remove(at)?;
            self.queued -= 1;
            self.urgent_queued -= usize::from(first.lane == INTERACTIVE);
            return Some(waiting);
        }
        None
    }
}

/// Removes and returns the candidate that goes first. Usually the first one is ready, so nothing is sorted.
fn take_first(candidates: &mut Vec<Candidate>) -> Option<Candidate> {
    let mut first = 0;
    for (at, candidate) in candidates.iter().enumerate().skip(1) {
        if candidate.is_before(&candidates[first]) {
            first = at;
        }
    }
    (!candidates.is_empty()).then(|| candidates.swap_remove(first))
}

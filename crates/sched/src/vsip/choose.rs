//! Which request is served next.

use super::config::{GUARD_EVERY, GUARD_LOOKS, LEAD_MIN, LOST_US, URGENT_EXTRA};
use super::index::{Candidate, Level};
use super::machine::{AHEAD, BULK, INTERACTIVE, LANES, Waiting};
use super::{Flight, Vsip};
use crate::{Op, Who};

/// What may be taken now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Requests that are urgent.
    urgent: bool,
    /// Others that a guest waits for.
    others: bool,
    /// What no guest waits for.
    ahead: bool,
    /// Writes and flushes that aren't interactive.
    writes: bool,
    /// Only what goes at this level.
    only: Option<Level>,
}

impl Allowed {
    const ALL: Allowed = Allowed {
        urgent: true,
        others: true,
        ahead: true,
        writes: true,
        only: None,
    };

    /// Returns whether anything of a level may be taken.
    fn level(&self, level: Level) -> bool {
        let some = match level {
            Level::Urgent => self.urgent,
            Level::InTurn => self.others,
            Level::Starving | Level::Last => self.others || self.ahead,
        };
        some && self.only.is_none_or(|only| only == level)
    }

    fn lane(&self, level: Level, lane: usize) -> bool {
        let level_allowed = match (level, lane) {
            (Level::Urgent, _) => self.urgent,
            (_, AHEAD) => self.ahead,
            _ => self.others,
        };
        level_allowed && self.only.is_none_or(|only| only == level)
    }
}

impl<T: Send> Vsip<T> {
    /// Takes the request that is to be served next, if one may be.
    pub(super) fn take_next(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let free = self.free();
        let apart = self.config.ahead_apart && self.ahead_queued > 0;
        let guards = self.unguarded >= GUARD_EVERY && self.guard_at_us <= now_us;
        let full = free <= URGENT_EXTRA && self.urgent_queued == 0 && !guards;
        if (free == 0 || full) && !apart {
            self.wake_us = self.lost_us();
            return None;
        }
        self.go_on(now_us);
        let mut allowed = Allowed {
            urgent: free > 0,
            others: free > 0,
            ahead: free > 0 || apart,
            writes: self.may_write(now_us),
            only: None,
        };
        if guards && let Some(taken) = self.take_starving(now_us, allowed, ready) {
            return Some(taken);
        }
        let kept_for = self.kept_for(now_us);
        allowed.others = free > URGENT_EXTRA && kept_for.is_none();
        allowed.ahead = allowed.others || (apart && kept_for.is_none());
        let found = self.choose(now_us, allowed, ready);
        let taken = found.and_then(|(from, at)| self.take(now_us, &from, at, true));
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

    /// Returns how many more requests may be under way, the place for an interactive one included.
    pub(super) fn free(&self) -> usize {
        (self.depth.limit() + URGENT_EXTRA).saturating_sub(self.placed)
    }

    /// Returns when the oldest request that is under way is to be taken for lost.
    fn lost_us(&self) -> Option<u64> {
        self.flights.front().map(|oldest| oldest.taken_us + LOST_US)
    }

    /// Takes a request that is as urgent as the one that was taken last, to be served with it.
    pub(super) fn take_joining(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let only = self.taken_at.filter(|level| *level != Level::Starving)?;
        self.go_on(now_us);
        let allowed = Allowed {
            only: Some(only),
            writes: self.may_write(now_us),
            ..Allowed::ALL
        };
        let (from, at) = self.choose(now_us, allowed, ready)?;
        self.take(now_us, &from, at, false)
    }

    /// Returns the first lane, in the order in which they go, with a request that is allowed and ready, and its place in the lane.
    fn choose(
        &self,
        now_us: u64,
        allowed: Allowed,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Candidate, usize)> {
        let capped = self.find_capped(now_us);
        let levels = [Level::Urgent, Level::InTurn, Level::Last];
        let mut levels = levels.into_iter().filter(|level| allowed.level(*level));
        let found = levels.find_map(|level| {
            let mut capped = capped.iter().filter(|one| one.level == level).peekable();
            let mut others = self.lanes(level).peekable();
            loop {
                let next = match (others.peek(), capped.peek()) {
                    (Some(other), Some(one)) if one.is_before(other) => capped.next().copied(),
                    (Some(_), _) => others.next(),
                    (None, _) => capped.next().copied(),
                }?;
                if allowed.lane(level, next.lane)
                    && let Some(at) = self.find_ready(&next, allowed.writes, ready)
                {
                    return Some((next, at));
                }
            }
        });
        #[cfg(test)]
        assert_eq!(found, self.choose_by_search(now_us, allowed, ready));
        found
    }

    /// Returns the lanes of machines without a cap that go at a level, the first one to go first.
    fn lanes(&self, level: Level) -> impl Iterator<Item = Candidate> + '_ {
        // No machine has a longer lead than one of the lowest weight.
        let farthest = self.clock + self.lead_share().max(LEAD_MIN / self.index.lightest());
        let in_reach = move |one: &Candidate| level != Level::Urgent || one.key <= farthest;
        let lanes = self.index.lanes(level).take_while(in_reach);
        lanes.filter(move |one| {
            let overtakes = || self.may_overtake(&self.machines[one.place]);
            match (level, one.lane) {
                (Level::Urgent, _) => overtakes(),
                (Level::InTurn, INTERACTIVE) => !overtakes(),
                _ => true,
            }
        })
    }

    /// Returns the lanes of machines with a cap, the first one to go first.
    fn find_capped(&self, now_us: u64) -> Vec<Candidate> {
        let mut found = Vec::new();
        for place in &self.index.capped {
            self.find_of(now_us, *place, &mut found);
        }
        found.sort_by(|one, other| match one.is_before(other) {
            true => std::cmp::Ordering::Less,
            false => std::cmp::Ordering::Greater,
        });
        found
    }

    /// Collects the lanes of a machine from which a request may be taken.
    fn find_of(&self, now_us: u64, place: usize, found: &mut Vec<Candidate>) {
        let machine = &self.machines[place];
        if machine.queued() == 0 {
            return;
        }
        let last = self.is_capped(now_us, machine);
        let urgent = !last && self.may_overtake(machine);
        for lane in (0..LANES).filter(|lane| !machine.lanes[*lane].queue.is_empty()) {
            let (level, key) = match lane {
                INTERACTIVE if urgent => (Level::Urgent, machine.used),
                AHEAD => (Level::Last, machine.turn),
                _ if last => (Level::Last, machine.turn),
                BULK => (Level::InTurn, machine.bulk_turn()),
                _ => (Level::InTurn, machine.turn),
            };
            found.push(Candidate {
                level,
                key,
                lane,
                place,
            });
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
        let lane = &self.machines[from.place].lanes[from.lane];
        if bound && lane.reads == 0 {
            return None;
        }
        lane.queue.iter().position(|waiting| {
            !(bound && waiting.op != Op::Read) && ready(&waiting.who, &waiting.request)
        })
    }

    /// Takes a request of the lane that has waited longest for one to be taken, if that is too long.
    fn take_starving(
        &mut self,
        now_us: u64,
        allowed: Allowed,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let before_us = now_us.checked_sub(self.config.guard_us)?;
        let mut longest: Option<(u64, Candidate)> = None;
        for (place, machine) in self.machines.iter().enumerate() {
            for (lane, of) in machine.lanes.iter().enumerate() {
                let starves = |waiting: &Waiting<T>| waiting.since_us <= before_us;
                let first = longest.is_none_or(|(taken_us, _)| of.taken_us < taken_us);
                let allowed_lane = allowed.lane(Level::Starving, lane);
                if of.taken_us > before_us
                    || !first
                    || !allowed_lane
                    || !of.queue.front().is_some_and(starves)
                {
                    continue;
                }
                let candidate = Candidate {
                    level: Level::Starving,
                    key: 0.0,
                    lane,
                    place,
                };
                if self.find_ready(&candidate, allowed.writes, ready).is_some() {
                    longest = Some((of.taken_us, candidate));
                }
            }
        }
        let Some((_, candidate)) = longest else {
            self.guard_at_us = now_us + self.config.guard_us / GUARD_LOOKS;
            return None;
        };
        let at = self.find_ready(&candidate, allowed.writes, ready)?;
        self.unguarded = 0;
        self.guarded += 1;
        self.take(now_us, &candidate, at, true)
    }

    /// Takes a request, which is served from now on: by itself, or together with the one that was taken last.
    fn take(
        &mut self,
        now_us: u64,
        from: &Candidate,
        at: usize,
        by_itself: bool,
    ) -> Option<(Who, T)> {
        let waiting = self.remove(from, at)?;
        let machine = &mut self.machines[from.place];
        machine.lanes[from.lane].taken_us = now_us;
        machine.in_flight += 1;
        if from.lane == INTERACTIVE {
            machine.urgent_in_flight += 1;
            self.index.thinking.insert(from.place);
        }
        self.unguarded = self.unguarded.saturating_add(1);
        let cost = match by_itself {
            true => waiting.cost,
            false => waiting.cost - 1.0,
        };
        let flight = Flight {
            who: waiting.who,
            op: waiting.op,
            bytes: waiting.bytes,
            cost,
            lane: from.lane,
            by_itself,
            charged: (0.0, 0.0),
            since_us: waiting.since_us,
            taken_us: now_us,
        };
        self.under_way(&flight, true);
        self.taken_at = Some(from.level);
        self.charge_flight(now_us, from.place, cost, flight);
        Some((waiting.who, waiting.request))
    }

    /// Removes a request from its lane.
    fn remove(&mut self, from: &Candidate, at: usize) -> Option<Waiting<T>> {
        let waiting = self.machines[from.place].lanes[from.lane].remove(at)?;
        self.queued -= 1;
        self.urgent_queued -= usize::from(from.lane == INTERACTIVE);
        self.ahead_queued -= usize::from(from.lane == AHEAD);
        Some(waiting)
    }

    /// Removes the first request that is ready, in the order in which they would be taken if all might be.
    pub(super) fn take_any(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<Waiting<T>> {
        let (from, at) = self.choose(now_us, Allowed::ALL, ready)?;
        let waiting = self.remove(&from, at);
        self.reindex(from.place);
        waiting
    }
}

#[cfg(test)]
impl<T: Send> Vsip<T> {
    /// What [`Vsip::choose`] has to return, found by asking all machines.
    fn choose_by_search(
        &self,
        now_us: u64,
        allowed: Allowed,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Candidate, usize)> {
        let mut all = Vec::new();
        (0..self.machines.len()).for_each(|place| self.find_of(now_us, place, &mut all));
        let mut first: Option<(Candidate, usize)> = None;
        for one in all {
            if allowed.lane(one.level, one.lane)
                && first.is_none_or(|(first, _)| one.is_before(&first))
                && let Some(at) = self.find_ready(&one, allowed.writes, ready)
            {
                first = Some((one, at));
            }
        }
        first
    }
}

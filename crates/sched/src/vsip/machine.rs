//! What is known of one machine: what it has queued, what it has had, and how its interactive programs read.

use super::config::{BULK_YIELDS, HOLD_HITS_MIN, SECOND_US};
use super::waits::{Rate, Waits};
use crate::{Class, Limit, MachineId, Op, Purpose, Who};
use std::collections::VecDeque;

/// The queues of a machine, in the order in which they are served within its share.
pub(super) const LANES: usize = 4;
pub(super) const INTERACTIVE: usize = 0;
pub(super) const NORMAL: usize = 1;
pub(super) const BULK: usize = 2;
/// What no guest waits for: prefetch and the like, which goes after what any guest waits for.
pub(super) const AHEAD: usize = 3;

/// Returns the lane of a request. A flush may take as long as many reads, so it is one class less urgent than it says.
pub(super) fn lane_of(who: &Who, op: Op) -> usize {
    match who.purpose {
        Purpose::Demand | Purpose::Store => {}
        Purpose::Prefetch | Purpose::Push | Purpose::Seed | Purpose::Settle => return AHEAD,
    }
    match (who.class, op) {
        (Class::Interactive, Op::Flush) => NORMAL,
        (Class::Interactive, _) => INTERACTIVE,
        (Class::Normal, Op::Flush) | (Class::Bulk, _) => BULK,
        (Class::Normal, _) => NORMAL,
    }
}

/// A request that is queued.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub who: Who,
    pub op: Op,
    pub bytes: u64,
    /// What it costs, in requests of ordinary size.
    pub cost: f64,
    pub since_us: u64,
    pub request: T,
}

/// Requests of one machine and urgency, the oldest first.
#[derive(Debug)]
pub(super) struct Lane<T> {
    pub queue: VecDeque<Waiting<T>>,
    /// How many of them are reads.
    pub reads: usize,
    /// When one of them was last taken.
    pub taken_us: u64,
}

/// A tag as a number of the same order.
pub(super) type Tag = u64;

/// Where a machine is in the sets of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub urgent: Option<Tag>,
    pub in_turn: [Option<Tag>; AHEAD],
    pub ahead: Option<Tag>,
    pub first: Option<Tag>,
    pub last: Option<Tag>,
    pub idle: Option<u64>,
    /// In [`Limit::WEIGHT_PARTS`]. 0: not at work.
    pub weight: u32,
}

/// One machine. Its tags are in requests of ordinary size per weight, as the clock that they are compared with.
#[derive(Debug)]
pub(super) struct Machine<T> {
    pub id: MachineId,
    pub limit: Limit,
    /// Whether somebody has set its limit.
    pub limited: bool,
    pub gone: bool,
    pub lanes: [Lane<T>; LANES],
    /// What it has had. Below the clock: it has credit.
    pub used: f64,
    /// When its turn comes, if it waits for one; never below `used`.
    pub turn: f64,
    pub in_flight: usize,
    pub urgent_in_flight: usize,
    /// When it last submitted something, or something was done.
    pub last_us: u64,
    pub think: Think,
    pub cap: Cap,
    pub waits: [Waits; 3],
    pub rate: Rate,
    /// Where it is in the index.
    pub keys: Keys,
}

impl<T> Lane<T> {
    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        self.reads += usize::from(waiting.op == Op::Read);
        self.queue.push_back(waiting);
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Waiting<T>> {
        let waiting = self.queue.remove(at)?;
        self.reads -= usize::from(waiting.op == Op::Read);
        Some(waiting)
    }

    pub(super) fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        self.queue.retain(|waiting| keep(&waiting.request));
        let reads = self.queue.iter().filter(|waiting| waiting.op == Op::Read);
        self.reads = reads.count();
    }
}

impl<T> Machine<T> {
    pub(super) fn new(id: MachineId, now_us: u64) -> Machine<T> {
        Machine {
            id,
            limit: Limit::DEFAULT,
            limited: false,
            gone: false,
            lanes: std::array::from_fn(|_| Lane {
                queue: VecDeque::new(),
                reads: 0,
                taken_us: now_us,
            }),
            used: f64::NEG_INFINITY,
            turn: f64::NEG_INFINITY,
            in_flight: 0,
            urgent_in_flight: 0,
            last_us: 0,
            think: Think::default(),
            cap: Cap::default(),
            waits: Default::default(),
            rate: Rate::default(),
            keys: Keys::default(),
        }
    }

    pub(super) fn weight(&self) -> f64 {
        f64::from(self.limit.weight_parts()) / f64::from(Limit::WEIGHT_PARTS)
    }

    pub(super) fn queued(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.len()).sum()
    }

    /// Returns whether it has anything queued or under way.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.lanes.iter().any(|lane| !lane.queue.is_empty())
    }

    /// Returns whether all that it wants is what no guest waits for.
    pub(super) fn goes_last(&self) -> bool {
        self.urgent_in_flight == 0
            && !self.lanes[AHEAD].queue.is_empty()
            && self.lanes[..AHEAD].iter().all(|lane| lane.queue.is_empty())
    }

    /// Returns whether it counts among those that share the device: it is busy, or was a moment ago.
    pub(super) fn is_at_work(&self, now_us: u64, grace_us: u64) -> bool {
        self.in_flight > 0 || self.last_us + grace_us > now_us || self.is_busy()
    }

    /// Returns when the turn of its bulk requests is.
    pub(super) fn bulk_turn(&self) -> f64 {
        self.turn + BULK_YIELDS / self.weight()
    }

    /// Returns whether its next interactive request may be waited for now or soon.
    pub(super) fn may_think(&self) -> bool {
        self.urgent_in_flight > 0 || self.think.idle_since_us.is_some()
    }

    /// Gives back what it was charged for and didn't get: by how much that has moved `used` and `turn`.
    pub(super) fn uncharge(&mut self, (used, turn): (f64, f64)) {
        self.used -= used;
        self.turn = self.used.max(self.turn - turn);
    }

    /// Charges it for what it had.
    pub(super) fn charge(&mut self, cost: f64) {
        self.used += cost / self.weight();
        self.turn = self.turn.max(self.used);
    }
}

/// How soon a machine's next interactive request comes after the last one was done.
#[derive(Debug)]
pub(super) struct Think {
    /// The part of the latest times in which it came soon enough.
    hits: f64,
    /// When the last one was done, if none has come since.
    idle_since_us: Option<u64>,
}

impl Default for Think {
    fn default() -> Think {
        Think {
            // Believed at first: a wrong guess costs one short wait, and the next two guesses are better.
            hits: 0.75,
            idle_since_us: None,
        }
    }
}

impl Think {
    /// An interactive request came; one that came within `hold_us` would have been worth the wait.
    pub(super) fn came(&mut self, now_us: u64, hold_us: u64) {
        if let Some(since) = self.idle_since_us.take() {
            let hit = f64::from(u8::from(now_us.saturating_sub(since) <= hold_us));
            self.hits += (hit - self.hits) / 4.0;
        }
    }

    /// The last of its interactive requests is done.
    pub(super) fn done(&mut self, now_us: u64) {
        self.idle_since_us = Some(now_us);
    }

    /// Returns whether waiting for it has paid lately.
    pub(super) fn pays(&self) -> bool {
        self.hits >= HOLD_HITS_MIN
    }

    /// Returns until when its next request is to be waited for; `None` if it came.
    pub(super) fn until_us(&self, hold_us: u64) -> Option<u64> {
        self.idle_since_us.map(|since| since + hold_us)
    }
}

/// Counts what a machine with a cap has had beyond it: a bucket that a second of its cap fills.
#[derive(Debug, Default)]
pub(super) struct Cap {
    /// What it has had and not yet been forgiven, in requests of ordinary size.
    level: f64,
    at_us: u64,
}

impl Cap {
    /// Returns whether it has had more than `per_us` for a second allows.
    pub(super) fn is_over(&self, now_us: u64, per_us: f64) -> bool {
        self.level_at(now_us, per_us) > per_us * SECOND_US
    }

    pub(super) fn add(&mut self, now_us: u64, per_us: f64, cost: f64) {
        // Twice of it at most, so that a machine that had an idle device for itself isn't punished for long.
        let most = 2.0 * per_us * SECOND_US;
        self.level = (self.level_at(now_us, per_us) + cost).min(most);
        self.at_us = now_us;
    }

    fn level_at(&self, now_us: u64, per_us: f64) -> f64 {
        let past = now_us.saturating_sub(self.at_us) as f64;
        (self.level - past * per_us).max(0.0)
    }
}

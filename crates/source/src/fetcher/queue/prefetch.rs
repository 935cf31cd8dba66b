//! The part of the queue that is about prefetch: whose turn it is, and what goes into a request.

use std::time::{Duration, Instant};

use floe_image::Hash;
use floe_sched::{Op, Who};

use super::super::ahead::{LaneKey, lane_of, waits_as};
use super::super::item::{Batch, Budget, Calls, Item, Next, State, Wanted};
use super::super::{Each, FetchOrder};
use super::{Entry, Queue};
use crate::SourceError;
use crate::packed::item_name;

/// Most items that are queued for prefetch, some 200 bytes each; further ones are given up at once.
pub(super) const PREFETCH_ITEMS_MAX: u64 = 1 << 20;

/// Most items in one prefetch read.
const PREFETCH_BATCH_MAX: usize = 1024;

/// Prefetch of which nothing was read for so long goes before demand, once: as long as the policy's own guard waits.
const AHEAD_STARVES_AFTER: Duration = Duration::from_secs(2);

impl Queue {
    /// Queues an item for prefetch; returns false if there is no room for it.
    pub fn add_prefetch(&mut self, now: Instant, wanted: Wanted, each: Option<&Each>) -> bool {
        let known = self.items.get(&wanted.hash).map(|item| item.state);
        if known.is_none() && self.counts.prefetch >= PREFETCH_ITEMS_MAX {
            return false;
        }
        let item = self.items.entry(wanted.hash).or_insert_with(|| {
            self.counts.enter(State::Prefetch);
            Item::new(&wanted, State::Prefetch)
        });
        if let Some(each) = each {
            item.listeners.push((wanted.image, each.clone()));
        }
        let key = lane_of(&wanted.who, &wanted.image);
        let elsewhere = known == Some(State::Prefetch)
            && !item.ahead_twice
            && each.is_some()
            && lane_of(&item.who, &item.image) != key;
        item.ahead_twice |= elsewhere;
        if (known.is_none() || elsewhere) && self.prefetch.push_back(key, wanted.hash) {
            self.enter_lane(now, &wanted.who, key);
        }
        true
    }

    /// Returns what a prefetch thread has to do.
    pub fn next_prefetch(&mut self, now: Instant, budget: Budget) -> Next {
        if let Some(at) = self.prefetch_not_before {
            if at > now {
                return Next::Wait(Some(at));
            }
            self.prefetch_not_before = None;
        }
        let room = budget.in_flight.saturating_sub(self.in_flight);
        if self.in_flight > 0 && room < budget.batch.min(budget.in_flight) {
            return Next::Wait(None);
        }
        // A demand that no thread has taken yet goes first.
        let due = self.later.first().is_some_and(|(at, _)| *at <= now);
        let starves = self.ahead_since.map(|since| since + AHEAD_STARVES_AFTER);
        let starves = starves.filter(|_| self.order == FetchOrder::Vsip);
        if (self.counts.ready > 0 || due) && starves.is_none_or(|at| at > now) {
            return Next::Wait(starves);
        }
        let now_us = self.microseconds(now);
        let mut is_ahead = |_: &Who, entry: &Entry| matches!(entry, Entry::Ahead(_));
        while let Some((who, entry)) = self.policy.next(now_us, &mut is_ahead) {
            let Entry::Ahead(key) = entry else { break };
            let batch = self.fill(now, key, budget);
            self.lanes_queued -= 1;
            self.ahead_since = (self.lanes_queued > 0).then_some(now);
            let bytes = batch.as_ref().map_or(0, |(_, bytes)| *bytes);
            match batch {
                Some(_) => self.policy.grow(bytes),
                None => self.drop_entry(now_us, who, entry),
            }
            if self.prefetch.end_turn(&key) {
                self.enter_lane(now, &who, key);
            }
            if let Some((mut batch, _)) = batch {
                self.in_flight += bytes;
                batch.taken.push((who, bytes));
                return Next::Read(batch);
            }
        }
        let wake = self.policy.wake_us().zip(self.began);
        Next::Wait(wake.map(|(us, began)| began + Duration::from_micros(us)))
    }

    /// Fills a request from a lane of the prefetch; returns it with its raw bytes, `None` if nothing in the lane is wanted.
    fn fill(&mut self, now: Instant, key: LaneKey, budget: Budget) -> Option<(Batch, u64)> {
        let image = key.1;
        let mut batch: Option<Batch> = None;
        let mut bytes = 0;
        while let Some(hash) = self.prefetch.first(&key) {
            let item = self.items.get_mut(&hash);
            let Some(item) = item.filter(|item| item.state == State::Prefetch) else {
                self.prefetch.take_first(&key);
                continue;
            };
            if !item.is_of(&image) {
                // The image that it was queued for no longer wants it, but another one does.
                let (who, other) = (item.who, lane_of(&item.who, &item.image));
                self.prefetch.take_first(&key);
                if self.prefetch.push_back(other, hash) {
                    self.enter_lane(now, &who, other);
                }
                continue;
            }
            let size = item.kind.raw_size() as u64;
            let full = batch.as_ref().is_some_and(|batch| {
                bytes + size > budget.batch || batch.wants.len() >= PREFETCH_BATCH_MAX
            });
            if full {
                break;
            }
            self.prefetch.take_first(&key);
            let flight = self.flights + 1;
            self.counts.change(item, State::Flying(flight));
            item.charge = size;
            item.image = image;
            bytes += size;
            let who = item.who;
            let batch = batch.get_or_insert_with(|| Batch {
                flight,
                who,
                image,
                wants: Vec::new(),
                taken: Vec::new(),
            });
            batch.wants.push((item.kind, hash));
        }
        self.flights += u64::from(batch.is_some());
        batch.map(|batch| (batch, bytes))
    }

    /// Holds all prefetch back until then.
    pub fn hold_prefetch(&mut self, until: Instant) {
        self.prefetch_not_before = self.prefetch_not_before.max(Some(until));
    }

    /// Has a lane of the prefetch wait for its turn.
    pub(super) fn enter_lane(&mut self, now: Instant, who: &Who, key: LaneKey) {
        let now_us = self.microseconds(now);
        let who = waits_as(who);
        let entered = self
            .policy
            .submit(now_us, who, Op::Read, 0, Entry::Ahead(key));
        if entered.is_ok() {
            self.lanes_queued += 1;
            self.ahead_since.get_or_insert(now);
        }
    }

    /// Drops what is queued for prefetch of `image`, unless somebody else wants it.
    pub fn cancel_prefetch(&mut self, image: &Hash, calls: &mut Calls) {
        self.prefetch.retain(|hash| {
            let Some(item) = self
                .items
                .get_mut(hash)
                .filter(|item| item.state == State::Prefetch)
            else {
                return false;
            };
            let stopped = SourceError::Stopped {
                what: item_name(&(item.kind, *hash)),
            };
            let (gone, stay) = item.listeners.drain(..).partition(|(of, _)| of == image);
            item.listeners = stay;
            let gone: Vec<(Hash, Each)> = gone;
            calls.each.extend(
                gone.into_iter()
                    .map(|(_, each)| (each, item.kind, *hash, stopped.clone())),
            );
            if let Some((other, _)) = item.listeners.first() {
                item.image = *other;
            } else if item.image == *image {
                self.counts.leave(State::Prefetch);
                self.items.remove(hash);
                return false;
            }
            true
        });
    }
}

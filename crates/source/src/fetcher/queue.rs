//! Knows what is wanted and by whom: a state machine without I/O, threads or a clock.
//!
//! Each wanted hash is one [`Item`] in one of four states: ready for demand, waiting to be tried again, queued for prefetch, or
//! being read ("flying"). Everybody who wants the hash joins that item. A [`Policy`] decides the order of demands. Queues hold
//! hashes; an entry whose item has changed state meanwhile is skipped when its turn comes.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use floe_image::Hash;
use floe_sched::{Fifo, Full, Op, Policy, Who};

use super::ahead::Ahead;
use super::item::{Batch, Budget, Calls, Counts, Item, Landed, Next, State, Waiter, Wanted};
use super::{Done, Each};
use crate::packed::item_name;
use crate::wrap::retry::pause;
use crate::{RetryOptions, SourceError};

/// Most items in one demand read: when more items wait than there are threads, they share requests.
const DEMAND_BATCH_MAX: usize = 64;

/// Most demands that are queued. The kernel limits a mount's requests to far fewer; further demands fail at once.
const DEMAND_ITEMS_MAX: usize = 1 << 20;

/// Most items that are queued for prefetch, some 200 bytes each; further ones are given up at once.
const PREFETCH_ITEMS_MAX: u64 = 1 << 20;

/// Most items in one prefetch read.
const PREFETCH_BATCH_MAX: usize = 1024;

/// How often a prefetched item that nobody waits for is tried before it is given up.
const PREFETCH_ATTEMPTS: u32 = 4;

/// Pauses before failed demand is tried again: short at first and two seconds at most, so that a guest goes on soon when its
/// hub is back.
const RETRY: RetryOptions = RetryOptions {
    attempts: u32::MAX,
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_secs(2),
};

/// How long to wait before something that was missing or denied is asked for once more.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(500);

/// The outcome of adding a demand.
pub(super) enum Added {
    /// It is queued.
    Queued,
    /// The item was wanted already; this demand waits for it too.
    Joined,
    /// There is no room; the callback is given back.
    Full(Done),
}

/// Everything that is wanted and not yet here.
pub(super) struct Queue {
    items: HashMap<Hash, Item>,
    demand: Box<dyn Policy<Hash>>,
    /// Demands that are tried again later, ordered by time.
    later: BTreeSet<(Instant, Hash)>,
    /// When demands give up, ordered by time.
    deadlines: BTreeSet<(Instant, Hash)>,
    /// The zero of the policy's clock.
    began: Option<Instant>,
    prefetch: Ahead,
    prefetch_not_before: Option<Instant>,
    in_flight: u64,
    waiting: u64,
    counts: Counts,
    flights: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            items: HashMap::new(),
            demand: Box::new(Fifo::new(DEMAND_ITEMS_MAX)),
            later: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            began: None,
            prefetch: Ahead::default(),
            prefetch_not_before: None,
            in_flight: 0,
            waiting: 0,
            counts: Counts::default(),
            flights: 0,
        }
    }
}

impl Queue {
    /// Returns whether an item is wanted already.
    pub fn knows(&self, hash: &Hash) -> bool {
        self.items.contains_key(hash)
    }

    /// Returns how many demands are waiting.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Returns how many items are queued for prefetch.
    pub fn prefetch_queued(&self) -> u64 {
        self.counts.prefetch
    }

    /// Returns the raw bytes of prefetch in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns how many demanded items no thread is reading.
    pub fn demand_len(&self) -> usize {
        self.counts.ready + self.later.len()
    }

    /// Returns `now` in microseconds on the policy's clock.
    fn microseconds(&mut self, now: Instant) -> u64 {
        let began = *self.began.get_or_insert(now);
        now.saturating_duration_since(began).as_micros() as u64
    }

    /// Adds a demand for an item; it gives up at `until`.
    pub fn add_demand(
        &mut self,
        now: Instant,
        wanted: Wanted,
        until: Option<Instant>,
        done: Done,
    ) -> Added {
        let Wanted { who, hash, .. } = wanted;
        let known = self.items.get(&hash).map(|item| item.state);
        let queue = known.is_none_or(|state| state == State::Prefetch);
        if queue {
            let now_us = self.microseconds(now);
            let bytes = wanted.kind.raw_size() as u64;
            if let Err(Full(_)) = self.demand.submit(now_us, who, Op::Read, bytes, hash) {
                return Added::Full(done);
            }
        }
        let item = self.items.entry(hash).or_insert_with(|| {
            self.counts.enter(State::Demand);
            Item::new(&wanted, State::Demand)
        });
        if known.is_some() && queue {
            item.who = who;
            self.counts.change(item, State::Demand);
        }
        self.wait(wanted, until, done);
        match known {
            Some(_) => Added::Joined,
            None => Added::Queued,
        }
    }

    /// Adds a waiter to an item that is known.
    fn wait(&mut self, wanted: Wanted, until: Option<Instant>, done: Done) {
        let Some(item) = self.items.get_mut(&wanted.hash) else {
            return;
        };
        item.waiters.push(Waiter {
            image: wanted.image,
            until,
            done,
        });
        self.waiting += 1;
        if let Some(until) = until {
            self.deadlines.insert((until, wanted.hash));
        }
    }

    /// As [`Queue::add_demand`], for an unknown item that the caller reads itself at once.
    pub fn add_flying(&mut self, wanted: Wanted, until: Option<Instant>, done: Done) -> Batch {
        self.flights += 1;
        let item = Item::new(&wanted, State::Flying(self.flights));
        self.items.insert(wanted.hash, item);
        self.wait(wanted, until, done);
        Batch {
            flight: self.flights,
            who: wanted.who,
            image: wanted.image,
            wants: vec![(wanted.kind, wanted.hash)],
        }
    }

    /// Queues an item for prefetch; returns false if there is no room for it.
    pub fn add_prefetch(&mut self, wanted: Wanted, each: Option<&Each>) -> bool {
        let known = self.items.contains_key(&wanted.hash);
        if !known && self.counts.prefetch >= PREFETCH_ITEMS_MAX {
            return false;
        }
        let item = self.items.entry(wanted.hash).or_insert_with(|| {
            self.counts.enter(State::Prefetch);
            Item::new(&wanted, State::Prefetch)
        });
        if let Some(each) = each {
            item.listeners.push((wanted.image, each.clone()));
        }
        if !known {
            self.prefetch.push_back(wanted.image, wanted.hash);
        }
        true
    }

    /// Returns what a demand thread has to do. `free` is the number of threads, this one included, that share what waits. The
    /// callbacks of demands past their deadline are added to `calls`.
    pub fn next_demand(&mut self, now: Instant, free: usize, calls: &mut Calls) -> Next {
        self.expire(now, calls);
        self.try_again(now);
        let now_us = self.microseconds(now);
        let limit = self
            .counts
            .ready
            .div_ceil(free.max(1))
            .clamp(1, DEMAND_BATCH_MAX);
        let flight = self.flights + 1;
        let mut batch: Option<Batch> = None;
        while batch.as_ref().is_none_or(|batch| batch.wants.len() < limit) {
            let image = batch.as_ref().map(|batch| batch.image);
            // Items that are no longer demanded come out too, to be dropped.
            let items = &self.items;
            let mut fits = |_: &Who, hash: &Hash| {
                let item = items.get(hash).filter(|item| item.state == State::Demand);
                item.is_none_or(|item| image.is_none_or(|image| image == item.image))
            };
            let Some((_, hash)) = self.demand.next(now_us, &mut fits) else {
                break;
            };
            let Some(item) = self
                .items
                .get_mut(&hash)
                .filter(|item| item.state == State::Demand)
            else {
                continue;
            };
            self.counts.change(item, State::Flying(flight));
            let (image, who) = (item.image, item.who);
            batch
                .get_or_insert_with(|| Batch {
                    flight,
                    who,
                    image,
                    wants: Vec::new(),
                })
                .wants
                .push((item.kind, hash));
        }
        match batch {
            Some(batch) => {
                self.flights = flight;
                Next::Read(batch)
            }
            None => Next::Wait(self.wake()),
        }
    }

    /// Returns when demand may have something to do without anything being added.
    fn wake(&self) -> Option<Instant> {
        let policy = self.demand.wake_us().zip(self.began);
        let policy = policy.map(|(us, began)| began + Duration::from_micros(us));
        let later = self.later.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [policy, later, deadline].into_iter().flatten().min()
    }

    /// Submits to the policy what is to be tried again by now.
    fn try_again(&mut self, now: Instant) {
        let now_us = self.microseconds(now);
        while let Some((at, hash)) = self.later.first().copied() {
            if at > now {
                return;
            }
            self.later.pop_first();
            let Some(item) = self
                .items
                .get_mut(&hash)
                .filter(|item| item.state == State::Later(at))
            else {
                continue;
            };
            let bytes = item.kind.raw_size() as u64;
            match self.demand.submit(now_us, item.who, Op::Read, bytes, hash) {
                Ok(()) => self.counts.change(item, State::Demand),
                Err(Full(_)) => {
                    let at = now + RETRY.longest_pause;
                    self.counts.change(item, State::Later(at));
                    self.later.insert((at, hash));
                }
            }
        }
    }

    /// Queues an item for demand again: at once, or at `at`.
    fn demand_again(&mut self, now: Instant, hash: &Hash, at: Option<Instant>) {
        let Some(item) = self.items.get_mut(hash) else {
            return;
        };
        // Deadlines that passed while it was being read are looked at again from now on.
        let deadlines = item.waiters.iter().filter_map(|waiter| waiter.until);
        self.deadlines.extend(deadlines.map(|until| (until, *hash)));
        let at = at.unwrap_or(now);
        self.counts.change(item, State::Later(at));
        self.later.insert((at, *hash));
        self.try_again(now);
    }

    /// Returns what a prefetch thread has to do.
    pub fn next_prefetch(&mut self, now: Instant, budget: Budget) -> Next {
        if let Some(at) = self.prefetch_not_before {
            if at > now {
                return Next::Wait(Some(at));
            }
            self.prefetch_not_before = None;
        }
        // A demand that no thread has taken yet goes first.
        let due = self.later.first().is_some_and(|(at, _)| *at <= now);
        let overtaken = self.counts.ready > 0 || due;
        let room = budget.in_flight.saturating_sub(self.in_flight);
        if overtaken || (self.in_flight > 0 && room < budget.batch.min(budget.in_flight)) {
            return Next::Wait(None);
        }
        let flight = self.flights + 1;
        let mut batch: Option<Batch> = None;
        let mut bytes = 0;
        while let Some((lane, hash)) = self.prefetch.first() {
            let image = batch.as_ref().map(|batch| batch.image);
            if image.is_some_and(|image| image != lane) {
                break;
            }
            let Some(item) = self
                .items
                .get_mut(&hash)
                .filter(|item| item.state == State::Prefetch)
            else {
                self.prefetch.take_first();
                continue;
            };
            if item.image != lane {
                // The image that it was queued for no longer wants it, but another one does.
                self.prefetch.take_first();
                self.prefetch.push_back(item.image, hash);
                continue;
            }
            let size = item.kind.raw_size() as u64;
            let full = batch.as_ref().is_some_and(|batch| {
                bytes + size > budget.batch || batch.wants.len() >= PREFETCH_BATCH_MAX
            });
            if full {
                break;
            }
            self.prefetch.take_first();
            self.counts.change(item, State::Flying(flight));
            item.charge = size;
            bytes += size;
            let (image, who) = (item.image, item.who);
            batch
                .get_or_insert_with(|| Batch {
                    flight,
                    who,
                    image,
                    wants: Vec::new(),
                })
                .wants
                .push((item.kind, hash));
        }
        self.in_flight += bytes;
        match batch {
            Some(batch) => {
                if self
                    .prefetch
                    .first()
                    .is_some_and(|(lane, _)| lane == batch.image)
                {
                    self.prefetch.end_turn();
                }
                self.flights = flight;
                Next::Read(batch)
            }
            None => Next::Wait(None),
        }
    }

    /// Holds all prefetch back until then.
    pub fn hold_prefetch(&mut self, until: Instant) {
        self.prefetch_not_before = self.prefetch_not_before.max(Some(until));
    }

    /// Removes an item that is here now; returns who wanted it.
    pub fn landed(&mut self, hash: &Hash) -> Landed {
        let Some(item) = self.items.remove(hash) else {
            return Landed::default();
        };
        self.leave(hash, &item);
        Landed {
            done: item.waiters.into_iter().map(|waiter| waiter.done).collect(),
            each: item.listeners.into_iter().map(|(_, each)| each).collect(),
            wanted: true,
        }
    }

    /// Returns how many items of a batch have not arrived.
    pub fn undelivered(&self, batch: &Batch) -> usize {
        let flying = |hash| {
            self.items
                .get(hash)
                .is_some_and(|item| item.state == State::Flying(batch.flight))
        };
        batch.wants.iter().filter(|(_, hash)| flying(hash)).count()
    }

    /// Handles a read of `batch` that failed with `error`: items that have not arrived are queued again or given up.
    // Long: one loop over the items of a read, whose cases exclude each other.
    pub fn failed(
        &mut self,
        now: Instant,
        batch: &Batch,
        error: &SourceError,
        at_once: bool,
        calls: &mut Calls,
    ) {
        let mut prefetch_again = Vec::new();
        let mut demand_again = Vec::new();
        let mut passing = false;
        for (_, hash) in &batch.wants {
            let Some(item) = self
                .items
                .get_mut(hash)
                .filter(|item| item.state == State::Flying(batch.flight))
            else {
                continue;
            };
            self.in_flight -= std::mem::take(&mut item.charge);
            item.failures += 1;
            item.last_error = Some(error.clone());
            // A lack of descriptors or memory passes, as a lost network does. That an item is missing or denied is believed
            // only the second time: a cache or a proxy in between may be wrong for a moment.
            let transient = error.is_retryable() || matches!(error, SourceError::Local { .. });
            let denied = matches!(
                error,
                SourceError::Missing { .. } | SourceError::Denied { .. }
            );
            let once_more = denied && item.failures == 1;
            let passes = transient || once_more;
            passing |= passes;
            let later = match once_more {
                true => ONCE_MORE_AFTER,
                false => pause(&RETRY, item.failures),
            };
            if !passes {
                let (gone, stay) = item
                    .waiters
                    .drain(..)
                    .partition(|waiter| waiter.image == batch.image);
                item.waiters = stay;
                let gone: Vec<Waiter> = gone;
                self.waiting -= gone.len() as u64;
                calls
                    .done
                    .extend(gone.into_iter().map(|waiter| (waiter.done, error.clone())));
            }
            let give_up = !passes || item.failures >= PREFETCH_ATTEMPTS;
            if give_up {
                let (gone, stay) = item
                    .listeners
                    .drain(..)
                    .partition(|(image, _)| *image == batch.image || passes);
                item.listeners = stay;
                let gone: Vec<(Hash, Each)> = gone;
                calls.each.extend(
                    gone.into_iter()
                        .map(|(_, each)| (each, item.kind, *hash, error.clone())),
                );
            }
            if let Some(waiter) = item.waiters.first() {
                item.image = waiter.image;
                let at = (passes && !at_once).then(|| now + later);
                demand_again.push((*hash, at));
            } else if !give_up || !item.listeners.is_empty() {
                item.image = item
                    .listeners
                    .first()
                    .map_or(item.image, |(image, _)| *image);
                self.counts.change(item, State::Prefetch);
                prefetch_again.push((item.image, *hash, item.failures));
            } else {
                self.items.remove(hash);
            }
        }
        if let Some(failures) = prefetch_again.iter().map(|again| again.2).max()
            && passing
        {
            self.hold_prefetch(now + pause(&RETRY, failures));
        }
        for (image, hash, _) in prefetch_again.into_iter().rev() {
            self.prefetch.push_front(image, hash);
        }
        for (hash, at) in demand_again {
            self.demand_again(now, &hash, at);
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

    /// Gives everything up.
    pub fn stop(&mut self, calls: &mut Calls) {
        for (hash, item) in self.items.drain() {
            let stopped = SourceError::Stopped {
                what: item_name(&(item.kind, hash)),
            };
            calls.done.extend(
                item.waiters
                    .into_iter()
                    .map(|waiter| (waiter.done, stopped.clone())),
            );
            calls.each.extend(
                item.listeners
                    .into_iter()
                    .map(|(_, each)| (each, item.kind, hash, stopped.clone())),
            );
        }
        *self = Queue::default();
    }

    /// Drops waiters past their deadline, except those of items that are being read, and items that nobody else wants.
    fn expire(&mut self, now: Instant, calls: &mut Calls) {
        while let Some((until, hash)) = self.deadlines.first().copied() {
            if until > now {
                return;
            }
            self.deadlines.pop_first();
            self.expire_item(&hash, now, calls);
        }
    }

    fn expire_item(&mut self, hash: &Hash, now: Instant, calls: &mut Calls) {
        let Some(item) = self.items.get_mut(hash) else {
            return;
        };
        // If it is being read, its waiters end with that read: the item arrives, or fails and comes back into this queue.
        if let State::Flying(_) = item.state {
            return;
        }
        let (gone, stay) = item
            .waiters
            .drain(..)
            .partition(|waiter| waiter.until.is_some_and(|until| until <= now));
        item.waiters = stay;
        let gone: Vec<Waiter> = gone;
        if gone.is_empty() {
            return;
        }
        let what = item_name(&(item.kind, *hash));
        let error = item
            .last_error
            .clone()
            .unwrap_or_else(|| SourceError::Unreachable {
                at: "the source".into(),
                what: what.clone(),
                reason: "the time for it was over before it could be asked".into(),
            });
        self.waiting -= gone.len() as u64;
        calls
            .done
            .extend(gone.into_iter().map(|waiter| (waiter.done, error.clone())));
        if !item.waiters.is_empty() {
            return;
        }
        if let State::Later(at) = item.state {
            self.later.remove(&(at, *hash));
        }
        if item.listeners.is_empty() {
            self.counts.leave(item.state);
            self.items.remove(hash);
        } else {
            self.counts.change(item, State::Prefetch);
            self.prefetch.push_back(item.image, *hash);
        }
    }

    /// Subtracts an item from the totals.
    fn leave(&mut self, hash: &Hash, item: &Item) {
        self.in_flight -= item.charge;
        self.waiting -= item.waiters.len() as u64;
        self.counts.leave(item.state);
        if let State::Later(at) = item.state {
            self.later.remove(&(at, *hash));
        }
        for until in item.waiters.iter().filter_map(|waiter| waiter.until) {
            self.deadlines.remove(&(until, *hash));
        }
    }
}

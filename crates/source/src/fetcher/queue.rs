//! Knows what is wanted and by whom: a state machine without I/O, threads or a clock.
//!
//! Each wanted hash is one [`Item`] in one of four states: ready for demand, waiting to be tried again, queued for prefetch, or
//! being read ("flying"). Everybody who wants the hash joins that item. A [`Policy`] decides the order of demands, in which each who
//! demands an item has an entry, and whose prefetch is next, of which each lane of `ahead` has one. Queues hold hashes; an entry
//! whose item has changed state meanwhile is skipped when its turn comes.

mod prefetch;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind};
use floe_sched::{Fifo, Op, Policy, Purpose, Status, Vsip, VsipConfig, Who};

use super::ahead::{Ahead, LaneKey, lane_of};
use super::item::{Batch, Calls, Counts, Item, Landed, Next, State, Waiter, Wanted};
use super::{Done, Each, FetchOrder};
use crate::packed::item_name;
use crate::wrap::retry::pause;
use crate::{Outlook, RetryOptions, SourceError};
use prefetch::PREFETCH_ITEMS_MAX;

/// Most items in one demand read: when more items wait than there are threads, they share requests.
const DEMAND_BATCH_MAX: usize = 64;

/// Most demands that are queued. The kernel limits a mount's requests to far fewer; further demands fail at once.
const DEMAND_ITEMS_MAX: usize = 1 << 20;

/// How often a prefetched item that nobody waits for is tried before it is given up.
const PREFETCH_ATTEMPTS: u32 = 4;

/// Pauses before failed demand is tried again: short at first and two seconds at most, so that a guest goes on soon when its
/// hub is back.
const RETRY: RetryOptions = RetryOptions {
    attempts: u32::MAX,
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_secs(2),
};

/// How long to wait before something that was missing, denied or impossible to give is asked for once more.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(500);

/// What the policy puts in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// Somebody demands an item.
    Demand(Kind, Hash),
    /// A lane of the prefetch wants its turn.
    Ahead(LaneKey),
}

/// The outcome of adding a demand.
pub(super) enum Added {
    /// It is queued.
    Queued,
    /// The item was wanted already; this demand waits for it too.
    Joined,
    /// There is no room; the callback is given back.
    Full(Done),
}

/// Returns who asks for something that is waited for, whatever was said of the purpose.
fn demanding(who: Who) -> Who {
    let purpose = match who.purpose.is_waited_for() {
        true => who.purpose,
        false => Purpose::Demand,
    };
    Who { purpose, ..who }
}

/// Everything that is wanted and not yet here.
pub(super) struct Queue {
    items: HashMap<Hash, Item>,
    order: FetchOrder,
    /// Most requests for demands at a time.
    threads: usize,
    policy: Box<dyn Policy<Entry>>,
    /// How many of its entries are of prefetch.
    lanes_queued: usize,
    /// Since when no prefetch was taken while there was some.
    ahead_since: Option<Instant>,
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
    /// How long what is said to be missing, denied or impossible to give is asked for again.
    believed_after: Duration,
    /// Since when reads that somebody waits for have failed and nothing has come, and the last error.
    trouble: Option<(Instant, SourceError)>,
}

/// Makes what decides the order.
fn policy(order: FetchOrder, threads: usize) -> Box<dyn Policy<Entry>> {
    // Prefetch is bounded by itself, and has no more lanes than items.
    let most = DEMAND_ITEMS_MAX + PREFETCH_ITEMS_MAX as usize;
    match order {
        FetchOrder::Vsip => Box::new(Vsip::new(VsipConfig::link(most, threads))),
        FetchOrder::Fifo => Box::new(Fifo::new(most)),
    }
}

impl Queue {
    /// Makes an empty queue, from which at most `threads` requests for demands are taken at a time.
    pub fn new(order: FetchOrder, threads: usize) -> Queue {
        Queue {
            items: HashMap::new(),
            order,
            threads,
            policy: policy(order, threads),
            lanes_queued: 0,
            ahead_since: None,
            later: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            began: None,
            prefetch: Ahead::default(),
            prefetch_not_before: None,
            in_flight: 0,
            waiting: 0,
            counts: Counts::default(),
            flights: 0,
            believed_after: Duration::ZERO,
            trouble: None,
        }
    }

    /// Makes it ask for what is said to be missing, denied or impossible to give for so long, at least once more, before it believes that.
    pub fn believing_after(self, believed_after: Duration) -> Queue {
        Queue {
            believed_after,
            ..self
        }
    }

    /// Returns how long nothing has come while somebody waits, and the last error; `None` if something came or nobody waits.
    pub fn trouble(&self, now: Instant) -> Option<(Duration, SourceError)> {
        let (since, error) = self.trouble.as_ref().filter(|_| self.waiting > 0)?;
        Some((now.saturating_duration_since(*since), error.clone()))
    }

    /// Returns what decides the order, to be told of machines.
    pub fn policy_mut(&mut self) -> &mut dyn Policy<Entry> {
        &mut *self.policy
    }

    /// Returns what the policy knows; `None` if it keeps no account.
    pub fn status(&mut self, now: Instant) -> Option<Status> {
        let now_us = self.microseconds(now);
        self.policy.status(now_us)
    }

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

    /// Adds a demand for an item; it gives up at `until`. If `merges`, one that a prefetch is reading is read once more, for itself.
    pub fn add_demand(
        &mut self,
        now: Instant,
        wanted: Wanted,
        until: Option<Instant>,
        merges: bool,
        done: Done,
    ) -> Added {
        let Wanted { hash, kind, .. } = wanted;
        let who = demanding(wanted.who);
        let item = self.items.get(&hash);
        let known = item.map(|item| item.state);
        let is_queued = known == Some(State::Demand);
        let is_ahead = item.is_some_and(|item| !item.who.purpose.is_waited_for());
        let hurries = matches!(known, Some(State::Flying(_))) && merges && is_ahead;
        let enters = match known {
            None | Some(State::Prefetch) => true,
            Some(State::Flying(_)) if hurries => true,
            Some(State::Demand) => item.is_some_and(|item| item.may_wish(&who)),
            Some(State::Later(_) | State::Flying(_)) => false,
        };
        if enters && !self.enter(now, who, kind, hash) && !is_queued {
            return Added::Full(done);
        }
        let item = self.items.entry(hash).or_insert_with(|| {
            self.counts.enter(State::Demand);
            Item::new(&wanted, State::Demand)
        });
        item.wish(who);
        if hurries || known == Some(State::Prefetch) {
            item.who = who;
            self.counts.change(item, State::Demand);
        }
        self.wait(wanted, until, done);
        match known {
            Some(_) => Added::Joined,
            None => Added::Queued,
        }
    }

    /// Queues a demand with the policy; returns false if there is no room.
    fn enter(&mut self, now: Instant, who: Who, kind: Kind, hash: Hash) -> bool {
        if self.policy.len() - self.lanes_queued >= DEMAND_ITEMS_MAX {
            return false;
        }
        let now_us = self.microseconds(now);
        let entry = Entry::Demand(kind, hash);
        let bytes = kind.raw_size() as u64;
        self.policy
            .submit(now_us, who, Op::Read, bytes, entry)
            .is_ok()
    }

    /// Takes the demand for an item out again, which the caller then reads itself at once; `None` if others go first.
    pub fn take_here(&mut self, now: Instant, hash: &Hash) -> Option<Batch> {
        if self.counts.ready != 1 {
            return None;
        }
        let now_us = self.microseconds(now);
        let mut fits = |_: &Who, entry: &Entry| matches!(entry, Entry::Demand(_, of) if of == hash);
        let (who, entry) = self.policy.next(now_us, &mut fits)?;
        self.flights += 1;
        let mut batch = None;
        if !self.take(&mut batch, who, entry, self.flights) {
            self.drop_entry(now_us, who, entry);
        }
        batch
    }

    /// Adds the item of an entry that the policy has returned to a batch; returns false if nobody demands it any more.
    fn take(&mut self, batch: &mut Option<Batch>, who: Who, entry: Entry, flight: u64) -> bool {
        let Entry::Demand(kind, hash) = entry else {
            return false;
        };
        let item = self.items.get_mut(&hash);
        let Some(item) = item.filter(|item| item.state == State::Demand) else {
            return false;
        };
        self.counts.change(item, State::Flying(flight));
        let image = item.image;
        let batch = batch.get_or_insert_with(|| Batch {
            flight,
            who,
            image,
            wants: Vec::new(),
            taken: Vec::new(),
        });
        batch.wants.push((kind, hash));
        batch.taken.push((who, kind.raw_size() as u64));
        true
    }

    /// Tells the policy that what it returned isn't read.
    fn drop_entry(&mut self, now_us: u64, who: Who, entry: Entry) {
        let bytes = match entry {
            Entry::Demand(kind, _) => kind.raw_size() as u64,
            Entry::Ahead(_) => 0,
        };
        self.policy.dropped(now_us, who, Op::Read, bytes);
    }

    /// Tells the policy that a batch was read, and what of it has come. To be called before [`Queue::failed`].
    pub fn ended(&mut self, now: Instant, batch: &Batch) {
        let now_us = self.microseconds(now);
        let whole = batch.taken.len() != batch.wants.len();
        let missing = self.undelivered(batch);
        // The first one last: the others were a part of it.
        for (number, (who, bytes)) in batch.taken.iter().enumerate().rev() {
            let is_missing = match whole {
                true => missing == batch.wants.len(),
                false => self.is_flying(batch, &batch.wants[number].1),
            };
            match is_missing {
                true => self.policy.dropped(now_us, *who, Op::Read, *bytes),
                false => self.policy.served(now_us, *who, Op::Read, *bytes),
            }
        }
    }

    fn is_flying(&self, batch: &Batch, hash: &Hash) -> bool {
        let item = self.items.get(hash);
        item.is_some_and(|item| item.state == State::Flying(batch.flight))
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

    /// Returns what a demand thread has to do. `free` is the number of threads, this one included, that share what waits. The
    /// callbacks of demands past their deadline are added to `calls`.
    pub fn next_demand(&mut self, now: Instant, free: usize, calls: &mut Calls) -> Next {
        self.expire(now, calls);
        self.try_again(now);
        let now_us = self.microseconds(now);
        let free = free.min(self.policy.places()).max(1);
        let limit = self.counts.ready.div_ceil(free).clamp(1, DEMAND_BATCH_MAX);
        let flight = self.flights + 1;
        let mut batch: Option<Batch> = None;
        while batch.as_ref().is_none_or(|batch| batch.wants.len() < limit) {
            let image = batch.as_ref().map(|batch| batch.image);
            // Items that are no longer demanded come out too, to be dropped.
            let items = &self.items;
            let mut fits = |_: &Who, entry: &Entry| {
                let Entry::Demand(_, hash) = entry else {
                    return false;
                };
                let item = items.get(hash).filter(|item| item.state == State::Demand);
                item.is_none_or(|item| image.is_none_or(|image| image == item.image))
            };
            let next = match image {
                None => self.policy.next(now_us, &mut fits),
                Some(_) => self.policy.join(now_us, &mut fits),
            };
            let Some((who, entry)) = next else {
                break;
            };
            if !self.take(&mut batch, who, entry, flight) {
                self.drop_entry(now_us, who, entry);
            }
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
        let policy = self.policy.wake_us().zip(self.began);
        let policy = policy.map(|(us, began)| began + Duration::from_micros(us));
        let later = self.later.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [policy, later, deadline].into_iter().flatten().min()
    }

    /// Submits to the policy what is to be tried again by now.
    fn try_again(&mut self, now: Instant) {
        while let Some((at, hash)) = self.later.first().copied() {
            if at > now {
                return;
            }
            self.later.pop_first();
            let item = self.items.get(&hash);
            let Some(item) = item.filter(|item| item.state == State::Later(at)) else {
                continue;
            };
            let (kind, wishes) = (item.kind, item.wishes.clone());
            let entered = wishes
                .into_iter()
                .filter(|who| self.enter(now, *who, kind, hash));
            let state = match entered.count() {
                0 => State::Later(now + RETRY.longest_pause),
                _ => State::Demand,
            };
            if let State::Later(at) = state {
                self.later.insert((at, hash));
            }
            if let Some(item) = self.items.get_mut(&hash) {
                self.counts.change(item, state);
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

    /// Removes an item that is here now; returns who wanted it.
    pub fn landed(&mut self, hash: &Hash) -> Landed {
        let Some(item) = self.items.remove(hash) else {
            return Landed::default();
        };
        self.trouble = None;
        self.leave(hash, &item);
        Landed {
            done: item.waiters.into_iter().map(|waiter| waiter.done).collect(),
            each: item.listeners.into_iter().map(|(_, each)| each).collect(),
            wanted: true,
        }
    }

    /// Returns how many items of a batch have not arrived.
    pub fn undelivered(&self, batch: &Batch) -> usize {
        let wants = batch.wants.iter();
        wants
            .filter(|(_, hash)| self.is_flying(batch, hash))
            .count()
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
            // A lack of descriptors or memory passes, as a lost network does. That an item is missing, denied or can't be given
            // is believed only the second time, and after a while: a cache or a proxy in between may be wrong for a moment.
            let transient = error.outlook() == Outlook::Passes;
            let denied = error.outlook() == Outlook::Refused;
            let since = denied.then(|| *item.refused_since.get_or_insert(now));
            if !denied {
                item.refused_since = None;
            }
            let once_more = denied && item.failures == 1;
            let is_early =
                |since: Instant| now.saturating_duration_since(since) < self.believed_after;
            let passes = transient || once_more || since.is_some_and(is_early);
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
                prefetch_again.push((item.who, item.image, *hash, item.failures));
            } else {
                self.items.remove(hash);
            }
        }
        if let Some(failures) = prefetch_again.iter().map(|again| again.3).max()
            && passing
        {
            self.hold_prefetch(now + pause(&RETRY, failures));
        }
        for (who, image, hash, _) in prefetch_again.into_iter().rev() {
            let key = lane_of(&who, &image);
            if self.prefetch.push_front(key, hash) {
                self.enter_lane(now, &who, key);
            }
        }
        if !demand_again.is_empty() {
            let since = self.trouble.take().map_or(now, |(since, _)| since);
            self.trouble = Some((since, error.clone()));
        }
        for (hash, at) in demand_again {
            self.demand_again(now, &hash, at);
        }
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
        *self = Queue::new(self.order, self.threads).believing_after(self.believed_after);
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
            item.wishes.clear();
            self.counts.change(item, State::Prefetch);
            let (who, key) = (item.who, lane_of(&item.who, &item.image));
            if self.prefetch.push_back(key, *hash) {
                self.enter_lane(now, &who, key);
            }
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

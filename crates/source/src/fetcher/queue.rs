//! What is wanted and by whom: a state machine without I/O, threads or a clock.
//!
//! Each wanted hash is one [`Item`] in one of three states: queued for demand, queued for prefetch, or flying. Whoever wants it
//! joins the item. The two queues hold hashes; an entry whose item has moved on meanwhile is skipped when it comes up.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind};

use super::{Done, Each};
use crate::packed::item_name;
use crate::wrap::retry::pause;
use crate::{RetryOptions, SourceError};

/// Most items in one demand read: with more waiting than threads, they share requests.
const DEMAND_BATCH_MAX: usize = 64;

/// Most items in one prefetch read.
const PREFETCH_BATCH_MAX: usize = 1024;

/// Attempts at a prefetched item that nobody waits for.
const PREFETCH_ATTEMPTS: u32 = 4;

/// How demand comes back after failures: soon, and then at most every two seconds, so that a guest goes on quickly when its
/// hub is back.
const RETRY: RetryOptions = RetryOptions {
    attempts: u32::MAX,
    first_pause: Duration::from_millis(20),
    longest_pause: Duration::from_secs(2),
};

/// When something that was missing or refused is asked for once more.
const ONCE_MORE_AFTER: Duration = Duration::from_millis(500);

/// Items that a thread is to read from one image.
pub(super) struct Batch {
    /// Tells this read's items from those that were asked for again meanwhile.
    pub flight: u64,
    pub image: Hash,
    pub wants: Vec<(Kind, Hash)>,
}

/// What a thread should do now.
pub(super) enum Next {
    Read(Batch),
    /// Nothing before this time, or before something is added.
    Wait(Option<Instant>),
}

/// Calls to make once the lock is released: that somebody's item came or did not.
#[derive(Default)]
pub(super) struct Calls {
    pub done: Vec<(Done, SourceError)>,
    pub each: Vec<(Each, Kind, Hash, SourceError)>,
}

impl Calls {
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.each.is_empty()
    }

    pub fn make(self) {
        for (done, error) in self.done {
            done(Err(error));
        }
        for (each, kind, hash, error) in self.each {
            each(kind, &hash, Err(&error));
        }
    }
}

/// Those who get an item that has come.
#[derive(Default)]
pub(super) struct Landed {
    pub done: Vec<Done>,
    pub each: Vec<Each>,
    /// Whether it had been asked for at all.
    pub wanted: bool,
}

/// Somebody's demand.
struct Waiter {
    image: Hash,
    until: Option<Instant>,
    done: Done,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Demand,
    Prefetch,
    /// In the batch of this number.
    Flying(u64),
}

struct Item {
    kind: Kind,
    /// The image through which it is read next.
    image: Hash,
    state: State,
    waiters: Vec<Waiter>,
    listeners: Vec<(Hash, Each)>,
    failures: u32,
    not_before: Option<Instant>,
    last_error: Option<SourceError>,
    /// Its share of the prefetch bytes in flight.
    charge: u64,
}

impl Item {
    fn new(kind: Kind, image: Hash, state: State) -> Item {
        let (waiters, listeners) = (Vec::new(), Vec::new());
        Item {
            kind,
            image,
            state,
            waiters,
            listeners,
            failures: 0,
            not_before: None,
            last_error: None,
            charge: 0,
        }
    }
}

/// How much prefetch may be under way, in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// In one request.
    pub batch: u64,
    /// In all requests together.
    pub in_flight: u64,
}

/// All that is wanted and not yet here.
#[derive(Default)]
pub(super) struct Queue {
    items: HashMap<Hash, Item>,
    demand: VecDeque<Hash>,
    prefetch: VecDeque<Hash>,
    prefetch_not_before: Option<Instant>,
    in_flight: u64,
    waiting: u64,
    prefetch_queued: u64,
    flights: u64,
}

impl Queue {
    /// Whether somebody wants it already.
    pub fn knows(&self, hash: &Hash) -> bool {
        self.items.contains_key(hash)
    }

    /// Demands that are waiting.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Items queued for prefetch.
    pub fn prefetch_queued(&self) -> u64 {
        self.prefetch_queued
    }

    /// Raw bytes of prefetch in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Entries in the demand queue; some may be stale.
    pub fn demand_len(&self) -> usize {
        self.demand.len()
    }

    /// A guest wants `hash`. True if it was on its way to the queue or the host already.
    pub fn add_demand(
        &mut self,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        until: Option<Instant>,
        done: Done,
    ) -> bool {
        let waiter = Waiter {
            image: *image,
            until,
            done,
        };
        self.waiting += 1;
        let known = self.items.contains_key(hash);
        let item = self
            .items
            .entry(*hash)
            .or_insert_with(|| Item::new(kind, *image, State::Demand));
        item.waiters.push(waiter);
        if !known {
            self.demand.push_back(*hash);
        } else if item.state == State::Prefetch {
            item.state = State::Demand;
            item.not_before = None;
            self.prefetch_queued -= 1;
            self.demand.push_back(*hash);
        }
        known
    }

    /// As [`Queue::add_demand`] for an unknown item that the caller is going to read at once.
    pub fn add_flying(
        &mut self,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        until: Option<Instant>,
        done: Done,
    ) -> Batch {
        self.waiting += 1;
        self.flights += 1;
        let mut item = Item::new(kind, *image, State::Flying(self.flights));
        item.waiters.push(Waiter {
            image: *image,
            until,
            done,
        });
        self.items.insert(*hash, item);
        Batch {
            flight: self.flights,
            image: *image,
            wants: vec![(kind, *hash)],
        }
    }

    /// Get `hash` ahead of need.
    pub fn add_prefetch(&mut self, image: &Hash, kind: Kind, hash: &Hash, each: Option<&Each>) {
        let known = self.items.contains_key(hash);
        let item = self
            .items
            .entry(*hash)
            .or_insert_with(|| Item::new(kind, *image, State::Prefetch));
        if let Some(each) = each {
            item.listeners.push((*image, each.clone()));
        }
        if !known {
            self.prefetch.push_back(*hash);
            self.prefetch_queued += 1;
        }
    }

    /// What a demand thread should do; `free` threads, this one included, share what waits. `calls` gets those whose
    /// time is over.
    pub fn next_demand(&mut self, now: Instant, free: usize, calls: &mut Calls) -> Next {
        let mut wake: Option<Instant> = None;
        let flight = self.flights + 1;
        let mut batch: Option<Batch> = None;
        let limit = self
            .demand
            .len()
            .div_ceil(free.max(1))
            .clamp(1, DEMAND_BATCH_MAX);
        for _ in 0..self.demand.len() {
            if batch
                .as_ref()
                .is_some_and(|batch| batch.wants.len() >= limit)
            {
                break;
            }
            let Some(hash) = self.demand.pop_front() else {
                break;
            };
            self.expire(&hash, now, calls);
            let Some(item) = self
                .items
                .get_mut(&hash)
                .filter(|item| item.state == State::Demand)
            else {
                continue;
            };
            let due = item.not_before.is_none_or(|at| at <= now);
            let fits = batch.as_ref().is_none_or(|batch| batch.image == item.image);
            if due && fits {
                item.state = State::Flying(flight);
                let image = item.image;
                batch
                    .get_or_insert_with(|| Batch {
                        flight,
                        image,
                        wants: Vec::new(),
                    })
                    .wants
                    .push((item.kind, hash));
                continue;
            }
            let next = item
                .waiters
                .iter()
                .filter_map(|w| w.until)
                .chain(item.not_before)
                .min();
            wake = [wake, if due { Some(now) } else { next }]
                .into_iter()
                .flatten()
                .min();
            self.demand.push_back(hash);
        }
        match batch {
            Some(batch) => {
                self.flights = flight;
                Next::Read(batch)
            }
            None => Next::Wait(wake),
        }
    }

    /// What a prefetch thread should do.
    pub fn next_prefetch(&mut self, now: Instant, budget: Budget) -> Next {
        if let Some(at) = self.prefetch_not_before {
            if at > now {
                return Next::Wait(Some(at));
            }
            self.prefetch_not_before = None;
        }
        // A demand that no thread has taken yet goes first.
        let overtaken = self.demand.iter().any(|hash| {
            self.items.get(hash).is_some_and(|i| {
                i.state == State::Demand && i.not_before.is_none_or(|at| at <= now)
            })
        });
        let room = budget.in_flight.saturating_sub(self.in_flight);
        if overtaken || (self.in_flight > 0 && room < budget.batch.min(budget.in_flight)) {
            return Next::Wait(None);
        }
        let flight = self.flights + 1;
        let mut batch: Option<Batch> = None;
        let mut bytes = 0;
        while let Some(hash) = self.prefetch.front().copied() {
            let Some(item) = self
                .items
                .get_mut(&hash)
                .filter(|item| item.state == State::Prefetch)
            else {
                self.prefetch.pop_front();
                continue;
            };
            let size = item.kind.raw_size() as u64;
            let full = batch.as_ref().is_some_and(|batch| {
                batch.image != item.image
                    || bytes + size > budget.batch
                    || batch.wants.len() >= PREFETCH_BATCH_MAX
            });
            if full {
                break;
            }
            self.prefetch.pop_front();
            self.prefetch_queued -= 1;
            item.state = State::Flying(flight);
            item.charge = size;
            bytes += size;
            let image = item.image;
            batch
                .get_or_insert_with(|| Batch {
                    flight,
                    image,
                    wants: Vec::new(),
                })
                .wants
                .push((item.kind, hash));
        }
        self.in_flight += bytes;
        match batch {
            Some(batch) => {
                self.flights = flight;
                Next::Read(batch)
            }
            None => Next::Wait(None),
        }
    }

    /// No prefetch until then.
    pub fn hold_prefetch(&mut self, until: Instant) {
        self.prefetch_not_before = self.prefetch_not_before.max(Some(until));
    }

    /// `hash` is here: who wanted it?
    pub fn landed(&mut self, hash: &Hash) -> Landed {
        let Some(item) = self.items.remove(hash) else {
            return Landed::default();
        };
        self.leave(&item);
        Landed {
            done: item.waiters.into_iter().map(|waiter| waiter.done).collect(),
            each: item.listeners.into_iter().map(|(_, each)| each).collect(),
            wanted: true,
        }
    }

    /// How many items of a batch have not landed.
    pub fn undelivered(&self, batch: &Batch) -> usize {
        let flying = |hash| {
            self.items
                .get(hash)
                .is_some_and(|item| item.state == State::Flying(batch.flight))
        };
        batch.wants.iter().filter(|(_, hash)| flying(hash)).count()
    }

    /// A read of `batch` ended with `error`; what of it has not landed is queued again or given up.
    pub fn failed(
        &mut self,
        now: Instant,
        batch: &Batch,
        error: &SourceError,
        at_once: bool,
        calls: &mut Calls,
    ) {
        let mut prefetch_again = Vec::new();
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
            // No descriptors or memory is as passing a trouble as no network. That something is not there, or not to be had,
            // is believed at the second time: a cache or a proxy between may be wrong for a moment.
            let lasting = error.is_retryable() || matches!(error, SourceError::Local { .. });
            let denied = matches!(
                error,
                SourceError::Missing { .. } | SourceError::Denied { .. }
            );
            let once_more = denied && item.failures == 1;
            let passes = lasting || once_more;
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
                item.state = State::Demand;
                item.not_before = (passes && !at_once).then(|| now + later);
                self.demand.push_back(*hash);
            } else if !give_up || !item.listeners.is_empty() {
                item.image = item
                    .listeners
                    .first()
                    .map_or(item.image, |(image, _)| *image);
                item.state = State::Prefetch;
                prefetch_again.push((*hash, item.failures));
            } else {
                self.items.remove(hash);
            }
        }
        if let Some(failures) = prefetch_again.iter().map(|(_, failures)| *failures).max()
            && passing
        {
            self.hold_prefetch(now + pause(&RETRY, failures));
        }
        self.prefetch_queued += prefetch_again.len() as u64;
        for (hash, _) in prefetch_again.into_iter().rev() {
            self.prefetch.push_front(hash);
        }
    }

    /// Forget what is queued for prefetch of `image` and wanted by nobody else.
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
                self.prefetch_queued -= 1;
                self.items.remove(hash);
                return false;
            }
            true
        });
    }

    /// Give everything up.
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

    /// Drop the waiters of a queued item whose time is over, and the item if nobody else wants it.
    fn expire(&mut self, hash: &Hash, now: Instant, calls: &mut Calls) {
        let Some(item) = self
            .items
            .get_mut(hash)
            .filter(|item| item.state == State::Demand)
        else {
            return;
        };
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
        if item.waiters.is_empty() {
            if item.listeners.is_empty() {
                self.items.remove(hash);
            } else {
                item.state = State::Prefetch;
                self.prefetch_queued += 1;
                self.prefetch.push_back(*hash);
            }
        }
    }

    /// Take an item's numbers out of the totals.
    fn leave(&mut self, item: &Item) {
        self.in_flight -= item.charge;
        self.waiting -= item.waiters.len() as u64;
        if item.state == State::Prefetch {
            self.prefetch_queued -= 1;
        }
    }
}

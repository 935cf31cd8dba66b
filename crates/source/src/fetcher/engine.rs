//! The fetcher's threads: they ask the queue what to read, read it, store it, and answer those who wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind};
use floe_sched::{Limit, MachineId, Status, Who};
use floe_store::{Cache, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::budget::budget;
use super::item::{Batch, Budget, Calls, Next, Wanted};
use super::queue::{Added, Queue};
use super::{Done, Each, FetchOptions, FetchStats};
use crate::{Purpose, Request, Source, SourceError};

/// How long [`super::Fetcher::demand_here`] may block its caller's thread, which other guests may need.
const HERE_TIMEOUT: Duration = Duration::from_millis(50);

/// Round trip in microseconds from which a link isn't worth a caller's thread: the two thread switches saved are 1 % of it.
const HERE_RTT_US_MAX: u64 = 2_000;

/// Longest time for a prefetch read. A batch should take a quarter of a second, so a read that takes this long hangs.
const PREFETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long prefetch pauses when the cache is full: until then something may have been evicted, or somebody made room.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// Shortest time between two warnings that the cache has no room: the log may well be on the same disk.
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

static ZEROS: [u8; floe_image::SEGMENT_BYTES] = [0; floe_image::SEGMENT_BYTES];

/// What the threads of a fetcher share.
pub(super) struct Engine {
    pub source: Arc<dyn Source>,
    pub cache: Arc<Cache>,
    pub options: FetchOptions,
    state: Mutex<State>,
    demand_added: Condvar,
    prefetch_added: Condvar,
    here: AtomicUsize,
    /// When the last warning was logged that the cache has no room.
    told_full: Mutex<Option<Instant>>,
    counts: Counts,
}

struct State {
    queue: Queue,
    demand: Crew,
    prefetch: Crew,
    stopped: bool,
}

/// How many threads of one kind there are, and how many of them are idle.
#[derive(Default)]
struct Crew {
    all: usize,
    idle: usize,
}

#[derive(Default)]
struct Counts {
    demand_items: AtomicU64,
    prefetch_items: AtomicU64,
    neighbour_items: AtomicU64,
    raw_bytes: AtomicU64,
    reads: AtomicU64,
    failures: AtomicU64,
    joined: AtomicU64,
    not_cached: AtomicU64,
}

impl Engine {
    pub fn new(source: Arc<dyn Source>, cache: Arc<Cache>, options: FetchOptions) -> Engine {
        let state = State {
            queue: Queue::new(options.order, options.demand_threads.max(1))
                .believing_after(options.believed_after),
            demand: Crew::default(),
            prefetch: Crew::default(),
            stopped: false,
        };
        Engine {
            source,
            cache,
            options,
            state: Mutex::new(state),
            demand_added: Condvar::new(),
            prefetch_added: Condvar::new(),
            here: AtomicUsize::new(0),
            told_full: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// `until`: when this is given up; `None` for never.
    pub fn demand(self: &Arc<Self>, wanted: Wanted, until: Option<Instant>, done: Done) {
        let Some(done) = self.answer_from_cache(wanted.kind, &wanted.hash, done) else {
            return;
        };
        let what = || crate::packed::item_name(&(wanted.kind, wanted.hash));
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut done = done;
        if self.has_landed(&state, wanted.kind, &wanted.hash) {
            drop(state);
            match self.answer_from_cache(wanted.kind, &wanted.hash, done) {
                Some(unanswered) => done = unanswered,
                None => return,
            }
            state = self.state.lock();
        }
        if state.stopped {
            drop(state);
            return done(Err(SourceError::Stopped { what: what() }));
        }
        let merges =
            state.queue.knows(&wanted.hash) && self.source.merges(&wanted.image, &wanted.hash);
        match state.queue.add_demand(now, wanted, until, merges, done) {
            Added::Queued => {}
            Added::Joined => {
                self.counts.joined.fetch_add(1, Relaxed);
            }
            Added::Full(done) => {
                drop(state);
                return done(Err(full(what())));
            }
        }
        self.staff_demand(&mut state);
    }

    pub fn demand_here(self: &Arc<Self>, wanted: Wanted, until: Option<Instant>, done: Done) {
        let Some(_place) = self.place_here() else {
            return self.demand(wanted, until, done);
        };
        let Some(done) = self.answer_from_cache(wanted.kind, &wanted.hash, done) else {
            return;
        };
        let mut state = self.state.lock();
        if state.stopped
            || state.queue.knows(&wanted.hash)
            || self.cache.contains(wanted.kind, &wanted.hash)
        {
            drop(state);
            return self.demand(wanted, until, done);
        }
        let (now, hash) = (Instant::now(), wanted.hash);
        let what = crate::packed::item_name(&(wanted.kind, hash));
        let added = state.queue.add_demand(now, wanted, until, false, done);
        if let Added::Full(done) = added {
            drop(state);
            return done(Err(full(what)));
        }
        // Others may go first; then it waits for its turn like any.
        let Some(batch) = state.queue.take_here(now, &hash) else {
            return self.staff_demand(&mut state);
        };
        drop(state);
        let limit = HERE_TIMEOUT.min(self.options.attempt_timeout);
        self.read(&batch, true, limit, true);
    }

    pub fn prefetch(
        self: &Arc<Self>,
        who: Who,
        image: &Hash,
        items: &[(Kind, Hash)],
        each: Option<&Each>,
    ) {
        let mut refused = Vec::new();
        let (mut here, wanted): (Vec<&(Kind, Hash)>, Vec<_>) = items
            .iter()
            .partition(|(kind, hash)| hash.is_zero() || self.cache.contains(*kind, hash));
        if !wanted.is_empty() {
            let now = Instant::now();
            let mut state = self.state.lock();
            if !state.stopped {
                for item in wanted {
                    let (kind, hash) = *item;
                    if self.has_landed(&state, kind, &hash) {
                        here.push(item);
                        continue;
                    }
                    let image = *image;
                    let wanted = Wanted {
                        who,
                        image,
                        kind,
                        hash,
                    };
                    if !state.queue.add_prefetch(now, wanted, each) {
                        refused.push((kind, hash));
                    }
                }
                // All threads start at once: as soon as the link's budget allows it there is a batch for each.
                while state.prefetch.all < self.options.prefetch_threads.max(1)
                    && self.start("floe-prefetch", Engine::work_on_prefetch)
                {
                    state.prefetch.all += 1;
                }
                self.prefetch_added.notify_all();
            }
        }
        if let Some(each) = each {
            here.iter()
                .for_each(|(kind, hash)| each(*kind, hash, Ok(())));
            for (kind, hash) in &refused {
                let what = crate::packed::item_name(&(*kind, *hash));
                each(*kind, hash, Err(&SourceError::Stopped { what }));
            }
        }
    }

    pub fn cancel_prefetch(&self, image: &Hash) {
        let mut calls = Calls::default();
        self.state.lock().queue.cancel_prefetch(image, &mut calls);
        calls.make();
    }

    pub fn stop(&self) {
        let mut calls = Calls::default();
        {
            let mut state = self.state.lock();
            state.stopped = true;
            state.queue.stop(&mut calls);
        }
        self.demand_added.notify_all();
        self.prefetch_added.notify_all();
        calls.make();
    }

    pub fn limit(&self, machine: MachineId, limit: Limit) {
        let mut state = self.state.lock();
        let policy = state.queue.policy_mut();
        policy.limit(machine, limit);
    }

    pub fn gone(&self, machine: MachineId) {
        self.state.lock().queue.policy_mut().gone(machine);
    }

    pub fn status(&self) -> Option<Status> {
        self.state.lock().queue.status(Instant::now())
    }

    pub fn trouble(&self) -> Option<(Duration, SourceError)> {
        self.state.lock().queue.trouble(Instant::now())
    }

    pub fn stats(&self) -> FetchStats {
        let counts = &self.counts;
        let state = self.state.lock();
        FetchStats {
            demand_items: counts.demand_items.load(Relaxed),
            prefetch_items: counts.prefetch_items.load(Relaxed),
            neighbour_items: counts.neighbour_items.load(Relaxed),
            raw_bytes: counts.raw_bytes.load(Relaxed),
            reads: counts.reads.load(Relaxed),
            failures: counts.failures.load(Relaxed),
            joined: counts.joined.load(Relaxed),
            not_cached: counts.not_cached.load(Relaxed),
            waiting: state.queue.waiting(),
            prefetch_queued: state.queue.prefetch_queued(),
            prefetch_in_flight_bytes: state.queue.in_flight(),
        }
    }

    /// Whether an item that was not in the cache has arrived before the queue was locked: asked for now it would come twice.
    fn has_landed(&self, state: &State, kind: Kind, hash: &Hash) -> bool {
        !state.queue.knows(hash) && self.cache.contains(kind, hash)
    }

    /// Answers from the cache, or returns `done` if the item isn't there.
    fn answer_from_cache(&self, kind: Kind, hash: &Hash, done: Done) -> Option<Done> {
        if hash.is_zero() {
            done(Ok(&ZEROS[..kind.raw_size()]));
            return None;
        }
        if !self.cache.contains(kind, hash) {
            return Some(done);
        }
        match kind {
            Kind::Chunk => {
                let mut chunk = [0; floe_image::CHUNK_SIZE];
                // A chunk that can't be read from the cache is fetched again.
                if !self.cache.get(hash, &mut chunk, None).unwrap_or(false) {
                    return Some(done);
                }
                done(Ok(&chunk));
            }
            Kind::Segment => match self.cache.get_segment(hash, None) {
                Some(segment) => done(Ok(&segment.encode())),
                None => return Some(done),
            },
        }
        None
    }

    /// Starts one more demand thread if more items wait than idle threads can take.
    fn staff_demand(self: &Arc<Self>, state: &mut State) {
        let crew = &mut state.demand;
        if crew.idle < state.queue.demand_len() && crew.all < self.options.demand_threads.max(1) {
            crew.all += usize::from(self.start("floe-demand", Engine::work_on_demand));
        }
        self.demand_added.notify_one();
    }

    /// Starts a thread; returns whether it runs. If it doesn't, the others go on, and the next request tries again.
    fn start(self: &Arc<Self>, name: &str, work: fn(&Arc<Engine>)) -> bool {
        let engine = self.clone();
        let started = floe_threads::keep_running(name, move || work(&engine));
        if let Err(error) = &started {
            tracing::error!(%error, name, "cannot start a thread; raise the limit on processes");
        }
        started.is_ok()
    }

    fn work_on_demand(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.stopped {
            let mut calls = Calls::default();
            let free =
                (self.options.demand_threads.max(1) - state.demand.all) + state.demand.idle + 1;
            match state.queue.next_demand(Instant::now(), free, &mut calls) {
                Next::Read(batch) => {
                    let held_back = state.queue.prefetch_queued() > 0;
                    drop(state);
                    if held_back {
                        self.prefetch_added.notify_one();
                    }
                    calls.make();
                    self.read(&batch, true, self.options.attempt_timeout, false);
                    state = self.state.lock();
                }
                Next::Wait(until) if calls.is_empty() => {
                    state.demand.idle += 1;
                    wait(&self.demand_added, &mut state, until);
                    state.demand.idle -= 1;
                }
                Next::Wait(_) => {
                    drop(state);
                    // Items whose waiters gave up may be queued for prefetch now.
                    self.prefetch_added.notify_one();
                    calls.make();
                    state = self.state.lock();
                }
            }
        }
    }

    fn work_on_prefetch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.stopped {
            let budget = MutexGuard::unlocked(&mut state, || self.budget());
            if state.stopped {
                break;
            }
            match state.queue.next_prefetch(Instant::now(), budget) {
                Next::Read(batch) => {
                    drop(state);
                    self.read(&batch, false, PREFETCH_TIMEOUT, false);
                    state = self.state.lock();
                }
                Next::Wait(until) => {
                    state.prefetch.idle += 1;
                    wait(&self.prefetch_added, &mut state, until);
                    state.prefetch.idle -= 1;
                }
            }
        }
    }

    fn budget(&self) -> Budget {
        let link = self.source.link();
        let raw_bytes = self.counts.raw_bytes.load(Relaxed);
        let known = raw_bytes > 0 && link.wire_bytes > 0;
        let wire_per_raw = if known {
            link.wire_bytes as f64 / raw_bytes as f64
        } else {
            1.0
        };
        budget(&link, wire_per_raw, self.options.prefetch_bytes_max)
    }

    /// Reads a batch of demands or of prefetch, and handles its outcome. After a failed attempt on a caller's own thread
    /// (`here`) the items are tried again without a pause, because that attempt was short.
    fn read(self: &Arc<Self>, batch: &Batch, demand: bool, deadline: Duration, here: bool) {
        self.counts.reads.fetch_add(1, Relaxed);
        let mut who = batch.who;
        // A prefetched item may have been a demand whose deadline passed.
        if !demand && who.purpose.is_waited_for() {
            who.purpose = Purpose::Prefetch;
        }
        if demand && !who.purpose.is_waited_for() {
            who.purpose = Purpose::Demand;
        }
        let purpose = who.purpose;
        let request = Request { who, deadline };
        // If a source or a callback panics, the others must not wait for ever.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.source.read(
                &batch.image,
                &batch.wants,
                &request,
                &mut |kind, hash, bytes| {
                    self.land(demand, kind, &hash, bytes);
                },
            )
        }));
        let mut calls = Calls::default();
        {
            let mut state = self.state.lock();
            state.queue.ended(Instant::now(), batch);
            let left = state.queue.undelivered(batch);
            let error = match outcome {
                Ok(Ok(())) if left == 0 => None,
                Ok(Err(error)) => Some(error),
                Ok(Ok(())) => Some(self.odd(left, "they were not delivered, without a reason")),
                Err(_) => Some(self.odd(
                    left,
                    "reading failed in an unforeseen way (a panic, see the log)",
                )),
            };
            if let Some(error) = error {
                self.counts.failures.fetch_add(1, Relaxed);
                tracing::debug!(%error, items = left, ?purpose, "a read failed");
                state
                    .queue
                    .failed(Instant::now(), batch, &error, here, &mut calls);
            }
            // The link may take another request now.
            if state.queue.demand_len() > 0 {
                self.staff_demand(&mut state);
            }
        }
        calls.make();
        if !demand {
            // The bytes of this batch are no longer in flight, so other prefetch threads may go on.
            self.prefetch_added.notify_all();
        }
    }

    fn odd(&self, items: usize, reason: &str) -> SourceError {
        SourceError::Invalid {
            at: self.source.describe(),
            what: format!("{items} items"),
            reason: reason.into(),
        }
    }

    /// Handles an item that has arrived: stores it, then answers everybody who wants it.
    fn land(&self, demand: bool, kind: Kind, hash: &Hash, bytes: &[u8]) {
        // The cache verifies what it stores. What it has already is verified here, since these bytes go to a guest.
        let held = self.cache.contains(kind, hash);
        let stored = if held {
            Ok(())
        } else {
            self.cache.put_item(kind, hash, bytes, None)
        };
        let wrong = held && kind.verify(hash, bytes).is_err();
        if wrong || matches!(&stored, Err(StoreError::Corrupt { .. })) {
            // The source delivered bytes that it had not verified; the item counts as not delivered.
            tracing::error!(source = self.source.describe(), %hash, "unverified data was dropped");
            return;
        }
        let stored = stored.map_err(|error| SourceError::Local {
            what: hash.short(),
            reason: error.to_string(),
        });
        self.note_room(stored.as_ref().err());
        let landed = self.state.lock().queue.landed(hash);
        let counter = match (landed.wanted, demand) {
            (false, _) => &self.counts.neighbour_items,
            (true, _) if !landed.done.is_empty() => &self.counts.demand_items,
            (true, true) if landed.each.is_empty() => &self.counts.neighbour_items,
            (true, _) => &self.counts.prefetch_items,
        };
        counter.fetch_add(1, Relaxed);
        self.counts.raw_bytes.fetch_add(bytes.len() as u64, Relaxed);
        // A guest gets its bytes even if they could not be stored.
        for done in landed.done {
            done(Ok(bytes));
        }
        for each in landed.each {
            each(kind, hash, stored.as_ref().copied());
        }
    }

    /// Holds prefetch back while the cache has no room, and logs that now and then: something small may still fit in between.
    fn note_room(&self, error: Option<&SourceError>) {
        let Some(error) = error else { return };
        self.counts.not_cached.fetch_add(1, Relaxed);
        if self.is_news() {
            tracing::warn!(%error, "the cache takes nothing more; guests are served without it, prefetch waits");
        }
        self.state
            .lock()
            .queue
            .hold_prefetch(Instant::now() + FULL_PAUSE);
    }

    /// Returns whether the warning that the cache has no room is due again; notes that it is logged now.
    fn is_news(&self) -> bool {
        let now = Instant::now();
        let mut told = self.told_full.lock();
        let lately = told.is_some_and(|at| now.duration_since(at) < FULL_TOLD_EVERY);
        if !lately {
            *told = Some(now);
        }
        !lately
    }

    /// Lets the calling thread make a request itself if the link is fast enough and few others do so; `None` if not.
    fn place_here(&self) -> Option<Here<'_>> {
        let fast = self
            .source
            .link()
            .rtt_us
            .is_none_or(|rtt| rtt < HERE_RTT_US_MAX);
        let place = Here(&self.here);
        let taken = place.0.fetch_add(1, Relaxed);
        (fast && taken < self.options.here_max).then_some(place)
    }
}

/// The error of a demand for which there is no room.
fn full(what: String) -> SourceError {
    SourceError::Local {
        what,
        reason: "too many requests are waiting for chunks already".into(),
    }
}

struct Here<'a>(&'a AtomicUsize);

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn wait(added: &Condvar, state: &mut MutexGuard<'_, State>, until: Option<Instant>) {
    match until {
        Some(until) => {
            added.wait_until(state, until);
        }
        None => added.wait(state),
    }
}

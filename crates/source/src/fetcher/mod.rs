//! Fetches chunks and segments into the node's cache: demand before prefetch, each hash once, again until it is there.
//!
//! `queue` knows what is wanted by whom (in `item`s) and asks a policy of floe-sched whose turn it is; `ahead` has what is queued for
//! prefetch, `budget` says how much of it a link can take. None of them does I/O. `engine` has the threads that ask them what to do and
//! do it.

mod ahead;
mod budget;
mod engine;
mod item;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind};
use floe_sched::{Limit, MachineId, Purpose, Status, Who};
use floe_store::Cache;

use crate::{LinkEstimate, Source, SourceError};
use engine::Engine;
use item::Wanted;

pub use budget::budget;
pub use item::Budget;

/// In which order a [`Fetcher`] asks its source for what is demanded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FetchOrder {
    /// What a person waits for first, and each machine has its share of the link (vSIP).
    #[default]
    Vsip,
    /// First come, first served.
    Fifo,
}

/// Options of a [`Fetcher`]. The defaults suit a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// Most threads for demand, started when needed: how many faults are fetched at the same time.
    pub demand_threads: usize,
    /// Most threads for prefetch, started when needed.
    pub prefetch_threads: usize,
    /// Most raw bytes of prefetch in flight, however fast the link seems.
    pub prefetch_bytes_max: u64,
    /// Longest time for one attempt to read a demand.
    pub attempt_timeout: Duration,
    /// How long a demand is tried again before it fails; `None` is for ever.
    pub demand_deadline: Option<Duration>,
    /// How long a demand is tried again that is said to be missing, denied or impossible to give, at least once: what stands between this
    /// host and the source may say so for a while.
    pub believed_after: Duration,
    /// How many callers of [`Fetcher::demand_here`] may fetch on their own thread at the same time.
    pub here_max: usize,
    /// Whose demand goes first.
    pub order: FetchOrder,
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            demand_threads: 8,
            prefetch_threads: 3,
            prefetch_bytes_max: 8 << 20,
            attempt_timeout: Duration::from_secs(10),
            demand_deadline: None,
            believed_after: Duration::ZERO,
            here_max: 2,
            order: FetchOrder::default(),
        }
    }
}

/// Called once when a demanded item has arrived (with its verified bytes, which are in the cache too unless that is full),
/// can't be had, or is past its deadline. Runs on a thread of the fetcher, or on the caller's: hold no lock that it takes.
pub type Done = Box<dyn FnOnce(Result<&[u8], SourceError>) + Send>;

/// Called once for each item of a prefetch: it is in the cache now, or it was given up.
pub type Each = Arc<dyn Fn(Kind, &Hash, Result<(), &SourceError>) + Send + Sync>;

/// What a [`Fetcher`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Items that arrived while a demand waited for them.
    pub demand_items: u64,
    /// Items that arrived ahead of need.
    pub prefetch_items: u64,
    /// Items that nobody asked for, but that were in the same frames.
    pub neighbour_items: u64,
    /// Raw bytes of all three.
    pub raw_bytes: u64,
    /// Reads of the source that were started.
    pub reads: u64,
    /// Reads that failed, whole or in part.
    pub failures: u64,
    /// Demands for an item that was already wanted, and that got the same answer.
    pub joined: u64,
    /// Items that the cache had no room for.
    pub not_cached: u64,
    /// Demands that are waiting now.
    pub waiting: u64,
    /// Items queued for prefetch now.
    pub prefetch_queued: u64,
    /// Expected raw bytes of prefetch in flight now.
    pub prefetch_in_flight_bytes: u64,
}

/// Fetches wanted items from a source into the cache.
///
/// Cost: a thread for each concurrent read, started when first needed, and some 200 bytes for each item that is wanted and not
/// here. Dropping it answers everybody who waits with [`SourceError::Stopped`]; a read under way then ends by itself.
pub struct Fetcher {
    engine: Arc<Engine>,
    number: u64,
}

/// How many fetchers this process has made.
static FETCHERS: AtomicU64 = AtomicU64::new(0);

impl Fetcher {
    /// Makes a fetcher from `source` into `cache`.
    pub fn new(source: Arc<dyn Source>, cache: Arc<Cache>, options: FetchOptions) -> Fetcher {
        Fetcher {
            engine: Arc::new(Engine::new(source, cache, options)),
            number: FETCHERS.fetch_add(1, Relaxed),
        }
    }

    /// Returns its number, unique in this process. What it reads comes over one link, so the number identifies the link.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Demands an item that a guest waits for; never blocks. It overtakes all prefetch: a queued item is moved, one on its way
    /// is waited for. Errors that may pass are retried with growing pauses until [`FetchOptions::demand_deadline`]; what is
    /// missing, denied or impossible to give is asked for once more, and again for [`FetchOptions::believed_after`], then fails. What is
    /// cached is answered on this thread. The source is told `who` demands it.
    pub fn demand(
        &self,
        who: Who,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        done: impl FnOnce(Result<&[u8], SourceError>) + Send + 'static,
    ) {
        self.demand_within(who, None, image, (kind, hash), false, done);
    }

    /// As [`Fetcher::demand`], but if the link is fast (or still unknown) and fewer than [`FetchOptions::here_max`] others do
    /// so, the calling thread makes the request itself, which saves two thread switches. It blocks for at most 50 ms; a failed
    /// attempt goes to the fetcher's threads. `done` may run on this thread before this returns.
    pub fn demand_here(
        &self,
        who: Who,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        done: impl FnOnce(Result<&[u8], SourceError>) + Send + 'static,
    ) {
        self.demand_within(who, None, image, (kind, hash), true, done);
    }

    /// As [`Fetcher::demand`], or with `here` as [`Fetcher::demand_here`], but given up after `most` if that is given, whatever
    /// [`FetchOptions::demand_deadline`] says: for a guest's request that may wait no longer.
    pub fn demand_within(
        &self,
        who: Who,
        most: Option<Duration>,
        image: &Hash,
        (kind, hash): (Kind, &Hash),
        here: bool,
        done: impl FnOnce(Result<&[u8], SourceError>) + Send + 'static,
    ) {
        let (image, hash) = (*image, *hash);
        let wanted = Wanted {
            who,
            image,
            kind,
            hash,
        };
        let until = most.map_or_else(
            || self.engine.options.until(),
            |most| Some(floe_threads::from_now(most)),
        );
        match here {
            true => self.engine.demand_here(wanted, until, Box::new(done)),
            false => self.engine.demand(wanted, until, Box::new(done)),
        }
    }

    /// Demands an item for the node itself and blocks until it is there, for [`FetchOptions::demand_deadline`] at most.
    pub fn demand_wait(
        &self,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
    ) -> Result<Vec<u8>, SourceError> {
        let (tell, told) = mpsc::sync_channel(1);
        let who = Who::node(Purpose::Demand);
        self.demand_here(who, image, kind, hash, move |outcome| {
            // Can't fail: the receiver waits below for exactly this.
            let _ = tell.send(outcome.map(<[u8]>::to_vec));
        });
        told.recv().unwrap_or_else(|_| {
            Err(SourceError::Stopped {
                what: crate::packed::item_name(&(kind, *hash)),
            })
        })
    }

    /// Queues items to be fetched ahead of need, in this order, as the link allows. What is cached or on its way is skipped.
    /// Machines take turns by their shares, and each machine's images one request each, however much one of them has queued.
    pub fn prefetch(&self, who: Who, image: &Hash, items: Vec<(Kind, Hash)>) {
        self.engine.prefetch(who, image, &items, None);
    }

    /// As [`Fetcher::prefetch`], and calls `each` with the outcome of every item: on this thread for what is cached, later and
    /// on another thread for the rest.
    pub fn prefetch_with(&self, who: Who, image: &Hash, items: Vec<(Kind, Hash)>, each: Each) {
        self.engine.prefetch(who, image, &items, Some(&each));
    }

    /// Drops the queued prefetch of an image; what is on its way still arrives. Callbacks of dropped items get
    /// [`SourceError::Stopped`].
    pub fn cancel_prefetch(&self, image: &Hash) {
        self.engine.cancel_prefetch(image);
    }

    /// Sets a machine's part of the link, from now on; may be called again, with the same or another limit.
    pub fn limit(&self, machine: MachineId, limit: Limit) {
        self.engine.limit(machine, limit);
    }

    /// Reports that a machine has ended. What it has queued is still fetched, and then nothing is kept of it.
    pub fn gone(&self, machine: MachineId) {
        self.engine.gone(machine);
    }

    /// Returns whose demands wait for the link, and what was measured of it; `None` in the order [`FetchOrder::Fifo`].
    pub fn status(&self) -> Option<Status> {
        self.engine.status()
    }

    /// Returns for how long nothing has come while somebody waits for it, and why; `None` if all is well.
    pub fn trouble(&self) -> Option<(Duration, SourceError)> {
        self.engine.trouble()
    }

    /// Returns what it has done so far.
    pub fn stats(&self) -> FetchStats {
        self.engine.stats()
    }

    /// Returns the measured state of the link: traffic, bandwidth, round-trip time.
    pub fn link(&self) -> LinkEstimate {
        self.engine.source.link()
    }

    /// Returns the cache that it fills.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.engine.cache
    }

    /// Returns the source that it reads.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.engine.source
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

impl FetchOptions {
    /// Returns when a demand made now would end; `None` for never.
    fn until(&self) -> Option<Instant> {
        self.demand_deadline.map(floe_threads::from_now)
    }
}

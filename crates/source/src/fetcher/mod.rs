//! Bringing chunks and segments into the node's cache: demand first, each hash once, until they are there.
//!
//! `queue` knows what is wanted by whom (each `item`), `budget` how much prefetch a link bears; neither does I/O. `engine` is the threads
//! that ask them what to do and do it.

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
use floe_sched::{Purpose, Who};
use floe_store::Cache;

use crate::{LinkEstimate, Source, SourceError};
use engine::Engine;
use item::Wanted;

pub use budget::budget;
pub use item::Budget;

/// How a [`Fetcher`] works. The defaults suit a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// Threads for demand, started when needed: the number of faults that are fetched at the same time.
    pub demand_threads: usize,
    /// Threads for prefetch, started when needed.
    pub prefetch_threads: usize,
    /// Most raw bytes of prefetch in flight, however good the link seems.
    pub prefetch_bytes_max: u64,
    /// Longest time for one attempt at demand.
    pub attempt_timeout: Duration,
    /// How long a demand is tried again before it fails; `None` is for ever.
    pub demand_deadline: Option<Duration>,
    /// Callers of [`Fetcher::demand_here`] that may fetch on their own thread at the same time.
    pub here_max: usize,
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            demand_threads: 8,
            prefetch_threads: 3,
            prefetch_bytes_max: 8 << 20,
            attempt_timeout: Duration::from_secs(10),
            demand_deadline: None,
            here_max: 2,
        }
    }
}

/// Told once when a demanded item has come (with its verified bytes, which are in the cache too unless that is full)
/// or its deadline has passed. It runs on a thread of the fetcher, or on the caller's: hold no lock that it takes.
pub type Done = Box<dyn FnOnce(Result<&[u8], SourceError>) + Send>;

/// Told for each item of a prefetch, once: it is in the cache now, or it was given up.
pub type Each = Arc<dyn Fn(Kind, &Hash, Result<(), &SourceError>) + Send + Sync>;

/// What a [`Fetcher`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Items that came because a guest waited.
    pub demand_items: u64,
    /// Items that came ahead of need.
    pub prefetch_items: u64,
    /// Items that nobody asked for, from the same frames.
    pub neighbour_items: u64,
    /// Raw bytes of all three.
    pub raw_bytes: u64,
    /// Reads of the source.
    pub reads: u64,
    /// Reads that failed, whole or in part.
    pub failures: u64,
    /// Demands answered by an item that was already on its way.
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

/// Brings what is wanted from a source into the cache.
///
/// Cost: a thread for each concurrent read, started when first needed; some 200 bytes for each item that is wanted and not
/// here. Dropping it tells everybody who waits [`SourceError::Stopped`]; a read that is under way then ends on its own.
pub struct Fetcher {
    engine: Arc<Engine>,
    number: u64,
}

/// Fetchers made so far in this process.
static FETCHERS: AtomicU64 = AtomicU64::new(0);

impl Fetcher {
    /// Fetches from `source` into `cache`.
    pub fn new(source: Arc<dyn Source>, cache: Arc<Cache>, options: FetchOptions) -> Fetcher {
        Fetcher {
            engine: Arc::new(Engine::new(source, cache, options)),
            number: FETCHERS.fetch_add(1, Relaxed),
        }
    }

    /// Its number, which no other fetcher of this process ever has: what it reads comes over one link, and this names the link.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Get an item that a guest waits for; never blocks. It overtakes all prefetch: if it is queued there it is taken
    /// out, if it is on its way it is waited for. Errors that may pass are retried with backoff until
    /// [`FetchOptions::demand_deadline`]; missing and denied items fail at once. What is cached is answered on this thread.
    /// `who` is whose demand it is; it goes along to the source.
    pub fn demand(
        &self,
        who: Who,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        done: impl FnOnce(Result<&[u8], SourceError>) + Send + 'static,
    ) {
        let (image, hash) = (*image, *hash);
        let wanted = Wanted {
            who,
            image,
            kind,
            hash,
        };
        self.engine.demand(wanted, Box::new(done));
    }

    /// As [`Fetcher::demand`], but where the link is fast (or still unknown) and fewer than [`FetchOptions::here_max`]
    /// others do so, the calling thread itself makes the request, which saves two thread switches. It blocks for 50 ms at
    /// most; a failed attempt goes to the fetcher's threads. `done` may run on this thread before it returns.
    pub fn demand_here(
        &self,
        who: Who,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
        done: impl FnOnce(Result<&[u8], SourceError>) + Send + 'static,
    ) {
        let (image, hash) = (*image, *hash);
        let wanted = Wanted {
            who,
            image,
            kind,
            hash,
        };
        self.engine.demand_here(wanted, Box::new(done));
    }

    /// Get an item for the node itself and wait for it, as long as [`FetchOptions::demand_deadline`] says.
    pub fn demand_wait(
        &self,
        image: &Hash,
        kind: Kind,
        hash: &Hash,
    ) -> Result<Vec<u8>, SourceError> {
        let (tell, told) = mpsc::sync_channel(1);
        let who = Who::node(Purpose::Demand);
        self.demand_here(who, image, kind, hash, move |outcome| {
            // The receiver waits below for exactly this.
            let _ = tell.send(outcome.map(<[u8]>::to_vec));
        });
        told.recv().unwrap_or_else(|_| {
            Err(SourceError::Stopped {
                what: crate::packed::item_name(&(kind, *hash)),
            })
        })
    }

    /// Get items ahead of need, in this order, as the link allows. What is cached or on its way is skipped. Images take turns, a
    /// request each, however much one of them has queued.
    pub fn prefetch(&self, who: Who, image: &Hash, items: Vec<(Kind, Hash)>) {
        self.engine.prefetch(who, image, &items, None);
    }

    /// As [`Fetcher::prefetch`], and tell `each` what became of every item: on this thread for what is cached, later
    /// and on another for the rest.
    pub fn prefetch_with(&self, who: Who, image: &Hash, items: Vec<(Kind, Hash)>, each: Each) {
        self.engine.prefetch(who, image, &items, Some(&each));
    }

    /// Forget the queued prefetch of an image; what is on its way still comes. Those who were to be told get
    /// [`SourceError::Stopped`].
    pub fn cancel_prefetch(&self, image: &Hash) {
        self.engine.cancel_prefetch(image);
    }

    /// What it has done so far.
    pub fn stats(&self) -> FetchStats {
        self.engine.stats()
    }

    /// The link as it seems now: traffic, bandwidth, round-trip time.
    pub fn link(&self) -> LinkEstimate {
        self.engine.source.link()
    }

    /// The cache that it fills.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.engine.cache
    }

    /// The source that it reads.
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
    /// When a demand of now ends.
    fn until(&self) -> Option<Instant> {
        self.demand_deadline.map(|limit| Instant::now() + limit)
    }
}

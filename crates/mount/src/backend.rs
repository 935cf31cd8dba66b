//! Where an image's chunks come from, as the engine sees it.

use floe_image::{CHUNK_SIZE, Hash, Kind, Segment};
use floe_planner::{Link, LinkId};
use floe_sched::Who;
use floe_source::Fetcher;
use floe_store::{Cache, Pin};
use std::sync::Arc;

/// Told once what became of a demand: the verified bytes, or why there are none.
pub(crate) type Done = Box<dyn FnOnce(Result<&[u8], String>) + Send>;
/// Told for each prefetched item: it is in the store now, or it was given up.
pub(crate) type Each = Arc<dyn Fn(&Hash, Result<(), String>) + Send + Sync>;

/// The store and the source of one image.
pub(crate) trait Backend: Send + Sync {
    /// Copies a chunk that is here; false when it isn't.
    fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> bool;
    /// Whether a chunk is here.
    fn has(&self, hash: &Hash) -> bool;
    /// A segment table that is here.
    fn segment(&self, hash: &Hash) -> Option<Arc<Segment>>;
    /// Brings an item that is waited for, for whoever asks. With `here` the calling thread may do it if that is quick.
    fn demand(&self, who: Who, kind: Kind, hash: &Hash, here: bool, done: Done);
    /// Brings items ahead of need.
    fn prefetch(&self, who: Who, items: Vec<(Kind, Hash)>, each: Each);
    /// The link that what isn't here comes over: images with the same number share it.
    fn link_id(&self) -> LinkId;
    /// As that link is measured; `None` before anything came over it.
    fn link(&self) -> Option<Link>;
}

/// The node's cache and fetcher.
pub(crate) struct Stored {
    pub image: Hash,
    pub cache: Arc<Cache>,
    pub fetcher: Arc<Fetcher>,
    /// What was touched stays in the cache as long as the image is on the mount.
    pub pin: Pin,
}

impl Backend for Stored {
    fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> bool {
        let pin = keep.then_some(&self.pin);
        // A chunk that can't be read here (a damaged disk) is fetched again.
        self.cache.get(hash, out, pin).unwrap_or_else(|error| {
            tracing::warn!(%error, chunk = %hash.short(), "the cache failed, fetching the chunk again");
            false
        })
    }

    fn has(&self, hash: &Hash) -> bool {
        self.cache.contains(Kind::Chunk, hash)
    }

    fn segment(&self, hash: &Hash) -> Option<Arc<Segment>> {
        self.cache.get_segment(hash, Some(&self.pin))
    }

    fn demand(&self, who: Who, kind: Kind, hash: &Hash, here: bool, done: Done) {
        let done = move |result: Result<&[u8], floe_source::SourceError>| {
            done(result.map_err(|e| e.to_string()))
        };
        if here {
            self.fetcher.demand_here(who, &self.image, kind, hash, done);
        } else {
            self.fetcher.demand(who, &self.image, kind, hash, done);
        }
    }

    fn prefetch(&self, who: Who, items: Vec<(Kind, Hash)>, each: Each) {
        let each = move |_: Kind, hash: &Hash, result: Result<(), &floe_source::SourceError>| {
            each(hash, result.map_err(|e| e.to_string()));
        };
        self.fetcher
            .prefetch_with(who, &self.image, items, Arc::new(each));
    }

    fn link_id(&self) -> LinkId {
        self.fetcher.number()
    }

    fn link(&self) -> Option<Link> {
        let link = self.fetcher.link();
        let (bytes_per_s, rtt_us) = (link.bytes_per_s?, link.rtt_us?);
        Some(Link {
            bytes_per_s: bytes_per_s as f64,
            rtt_us,
        })
    }
}

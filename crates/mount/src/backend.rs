//! Where an image's chunks come from, as the mount sees it.

use floe_image::{CHUNK_SIZE, Hash, Kind, Segment};
use floe_planner::{Link, LinkId};
use floe_sched::{Limit, MachineId, Who};
use floe_source::{Done, Each, Fetcher, SourceError};
use floe_store::{Cache, Got, Pin, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// The local store and the source of one image.
pub(crate) trait Backend: Send + Sync {
    /// Copies a chunk to `out` if it is here; returns whether it was. `keep` pins it in the cache.
    fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> bool;
    /// Does the same unless a disk would have to be accessed for it.
    fn get_now(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> Got;
    /// Returns whether a chunk is here.
    fn has(&self, hash: &Hash) -> bool;
    /// Returns a segment table if it is here.
    fn segment(&self, hash: &Hash) -> Option<Arc<Segment>>;
    /// Brings an item that a request waits for, within `most`, or as long as the source's users wait by default. With `here` the calling
    /// thread may fetch it itself if that is quick.
    fn demand(
        &self,
        who: Who,
        most: Option<Duration>,
        kind: Kind,
        hash: &Hash,
        here: bool,
        done: Done,
    );
    /// Brings items that no request waits for yet.
    fn prefetch(&self, who: Who, items: Vec<(Kind, Hash)>, each: Each);
    /// Sets a machine's part of the link over which missing items come.
    fn limit(&self, machine: MachineId, limit: Limit);
    /// Reports that a machine has ended.
    fn gone(&self, machine: MachineId);
    /// Returns the number of the link over which missing items come: images with the same number share the link.
    fn link_id(&self) -> LinkId;
    /// Returns what was measured of that link; `None` before anything came over it.
    fn link(&self) -> Option<Link>;
    /// Returns why nothing has come over it lately, although somebody waits; `None` if all is well.
    fn trouble(&self) -> Option<SourceError>;
}

/// The node's cache and fetcher as a [`Backend`].
pub(crate) struct Stored {
    pub image: Hash,
    pub cache: Arc<Cache>,
    pub fetcher: Arc<Fetcher>,
    /// Keeps in the cache what was touched, as long as the image is on the mount.
    pub pin: Pin,
}

/// Returns `missing`, since a chunk that can't be read from the cache (a damaged disk) is fetched again.
fn fetch_again<T>(hash: &Hash, error: &StoreError, missing: T) -> T {
    tracing::warn!(%error, chunk = %hash.short(), "the cache failed, fetching the chunk again");
    missing
}

impl Backend for Stored {
    fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> bool {
        let got = self.cache.get(hash, out, keep.then_some(&self.pin));
        got.unwrap_or_else(|error| fetch_again(hash, &error, false))
    }

    fn get_now(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> Got {
        let got = self.cache.get_now(hash, out, keep.then_some(&self.pin));
        got.unwrap_or_else(|error| fetch_again(hash, &error, Got::Missing))
    }

    fn has(&self, hash: &Hash) -> bool {
        self.cache.contains(Kind::Chunk, hash)
    }

    fn segment(&self, hash: &Hash) -> Option<Arc<Segment>> {
        self.cache.get_segment(hash, Some(&self.pin))
    }

    fn demand(
        &self,
        who: Who,
        most: Option<Duration>,
        kind: Kind,
        hash: &Hash,
        here: bool,
        done: Done,
    ) {
        self.fetcher
            .demand_within(who, most, &self.image, (kind, hash), here, done);
    }

    fn prefetch(&self, who: Who, items: Vec<(Kind, Hash)>, each: Each) {
        self.fetcher.prefetch_with(who, &self.image, items, each);
    }

    fn limit(&self, machine: MachineId, limit: Limit) {
        self.fetcher.limit(machine, limit);
    }

    fn gone(&self, machine: MachineId) {
        self.fetcher.gone(machine);
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

    fn trouble(&self) -> Option<SourceError> {
        self.fetcher.trouble().map(|(_, error)| error)
    }
}

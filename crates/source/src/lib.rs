//! Gets a chunk by its hash, from anywhere.
//!
//! A [`Source`] answers four questions about images: which image has this name, what is its manifest, which packs hold it, and
//! what are the bytes of these chunks and segments. There is a source for a repository on this host ([`Directory`]), for the
//! same files behind any web server ([`Files`]) or in a bucket ([`Bucket`]), and for a hub ([`Hub`]). A [`Registry`] makes the
//! right one for an [`Origin`]: an address with its token and its certificate authority.
//!
//! Where somebody else brings the bytes of packs, a [`PackReader`] reads an image out of them.
//!
//! Wrappers with the same interface add to a source: [`Retry`] (tries again, with growing random pauses), [`Failover`] (several
//! sources for one image, one after the other) and [`Striped`] (several at the same time).
//!
//! A mount uses a [`Fetcher`]: it fetches chunks into the node's cache on its own threads, demand before prefetch, each hash
//! once, until they are there or their deadline has passed.
//!
//! What every source here promises:
//! - **Verified.** Bytes reach a sink only after their BLAKE3 hash matched the name that was asked for.
//! - **Bounded.** Each answer has a size limit, each call a deadline. A token goes to the server that it was given for and nowhere else:
//!   web servers and hubs may send a request on, which goes there without it; buckets, whose requests are signed, may not.
//! - **By the environment's proxies**, for what is not on this host nor one of floe's own nodes.
//!
//! Deliberately absent: deciding *what* to fetch (floe-planner), keeping it (floe-store), showing it as files (floe-mount). The
//! interface is synchronous because plain threads serve page faults; the async HTTP library below runs on the calling thread
//! (buckets' connections have a thread of their own).

mod bucket;
mod directory;
mod environment;
mod error;
mod fetcher;
mod files;
mod http;
mod hub;
mod kept;
mod link;
pub mod multicast;
mod options;
mod origin;
mod pack_reader;
mod packed;
mod registry;
mod wrap;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use floe_image::{Hash, Kind, Layout, Manifest, PackRef};

pub use bucket::{Bucket, Listed, is_bucket, is_bucket_scheme};
pub use directory::Directory;
pub use error::{Outlook, SourceError};
pub use fetcher::{Budget, Done, Each, FetchOptions, FetchOrder, FetchStats, Fetcher, budget};
pub use files::Files;
pub use floe_sched::{Class, Limit, MachineId, Purpose, Who};
pub use hub::Hub;
pub use link::{Answer, LinkEstimate, LinkMeter};
pub use options::Options;
pub use origin::Origin;
pub use pack_reader::PackReader;
pub use packed::{PackBytes, RangeReads, range_reads};
pub use registry::{Opens, Registry, Scheme};
pub use wrap::failover::Failover;
pub use wrap::retry::{Retry, RetryOptions};
pub use wrap::striped::Striped;

/// Most chunks and segments in one [`Source::read`]; a longer list is refused, because the caller's queue is the place for it.
/// 4096 chunks are 16 MiB, more than the bandwidth-delay product of any link here.
pub const READ_ITEMS_MAX: usize = 4096;

/// How a read is done, and for whom. Sources keep demand apart from other reads, so that it never queues behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks, and for what purpose.
    pub who: Who,
    /// Longest time that the whole call may take.
    pub deadline: Duration,
}

impl Request {
    /// Makes a request of the node itself for this purpose, which may take `deadline` at most.
    pub fn of(purpose: Purpose, deadline: Duration) -> Request {
        Request {
            who: Who::node(purpose),
            deadline,
        }
    }

    /// Makes a request of the node itself for something that is waited for, which may take `deadline` at most.
    pub fn demand(deadline: Duration) -> Request {
        Request::of(Purpose::Demand, deadline)
    }

    /// Makes a request of the node itself ahead of need, which may take `deadline` at most.
    pub fn prefetch(deadline: Duration) -> Request {
        Request::of(Purpose::Prefetch, deadline)
    }

    /// Returns whether somebody waits for the answer.
    pub fn is_demand(&self) -> bool {
        self.who.purpose.is_waited_for()
    }
}

/// Called once for each item that a read delivers, with kind, hash and verified bytes. Runs on the calling thread.
pub type Sink<'a> = dyn FnMut(Kind, Hash, &[u8]) + 'a;

/// A place that missing chunks come from.
///
/// Cost: a read is one request to a hub, and one for each run of neighbouring frames to a static source, so callers should pass
/// everything that they want in one call. The trait isn't async: going to a runtime's thread and back was measured to take
/// about as long as the whole request on a local network.
pub trait Source: Send + Sync {
    /// Returns what and where it is, for messages and logs. Contains no secrets.
    fn describe(&self) -> String;

    /// Returns the image that `name` (`name:tag`, or an id) points to now.
    fn resolve(&self, name: &str) -> Result<Hash, SourceError>;

    /// Returns the manifest of image `id`, verified against `id`.
    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError>;

    /// Returns which packs hold image `id`; `None` if the source doesn't use packs.
    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError>;

    /// Returns whether image `id` is known to be the reader's own. A place that knows no owners says no.
    fn is_own(&self, id: &Hash) -> Result<bool, SourceError> {
        let _ = id;
        Ok(false)
    }

    /// Reads `wants`, which belong to `image`.
    ///
    /// Every item that reaches `sink` is verified. Neighbours from the same frame may reach it too; each wanted item reaches it
    /// at most once. [`SourceError::Missing`] is returned only after everything that is there was delivered. After any other
    /// error some items may have been delivered.
    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError>;

    /// Returns what the link to this source has carried and how fast it seems. Sources without a link return zeros and `None`.
    fn link(&self) -> LinkEstimate {
        LinkEstimate::default()
    }

    /// Whether a second read of an item of this image, now that the first is under way, brings its bytes no second time. Then a demand for
    /// what a prefetch is reading is read for itself, with the urgency of a demand, instead of waiting for that prefetch.
    fn merges(&self, image: &Hash, item: &Hash) -> bool {
        let _ = (image, item);
        false
    }

    /// Whether a multicast group brings items here, as far as is known; `None` if this source is in no group.
    fn multicast(&self) -> Option<bool> {
        None
    }

    /// Returns what brings this image's packs here as files, if this source does: who stores the image need not pack it anew then.
    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        let _ = image;
        None
    }
}

/// Brings packs of an image here whole.
pub trait WholePacks: Send + Sync {
    /// Returns the packs that hold the image. They may hold more.
    fn packs(&self) -> &[PackRef];

    /// Returns which of some of them is best brought next, by its place: one that others want from here, if the source knows that.
    fn next(&self, left: &[PackRef]) -> usize {
        let _ = left;
        0
    }

    /// Returns what is in one of them, in the order of the file.
    fn items(&self, pack: &PackRef, request: &Request) -> Result<Vec<(Kind, Hash)>, SourceError>;

    /// Brings one of them here. Returns its file, which is the source's: it may be given a second name, and nobody may change it.
    /// Its bytes are as good as the source; what is in it is for the caller to verify.
    fn bring(&self, pack: &PackRef, request: &Request) -> Result<PathBuf, SourceError>;
}

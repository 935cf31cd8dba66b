//! A chunk by its hash from anywhere.
//!
//! A [`Source`] answers four questions about images: which image has this name, what is its manifest,
//! which packs hold it, and what are the bytes of these chunks and segments. There is a source for a
//! directory of images on this host ([`Directory`]), for the same directory behind any web server
//! ([`Files`]) or in an S3 bucket ([`S3`]), and for a hub ([`Hub`]). A [`Registry`] makes the right one for an [`Origin`]: an
//! address with a token and a certificate authority of its own.
//!
//! What a caller wants on top is a wrapper with the same interface: [`Retry`] (backoff with jitter), [`Failover`]
//! (several sources for one image, one after the other) and [`Striped`] (several at the same time).
//!
//! [`Fetcher`] is what a mount uses: it brings chunks into the node's cache on its own threads, demand before
//! prefetch, each hash once, until they are there or their deadline has passed.
//!
//! Promises of every source here:
//! - **Verified.** Bytes reach a sink only after their BLAKE3 hash matched the name that was asked for.
//! - **Bounded.** Each answer has a size limit, each call a deadline; redirects are not followed, and a token
//!   goes to the host that it was given for and nowhere else.
//!
//! Deliberately absent: deciding *what* to fetch (floe-planner), keeping it (floe-store), seeing it as files
//! (floe-mount). The interface is synchronous since page faults are served by plain threads; the async
//! libraries underneath run on the calling thread.

mod directory;
mod error;
mod fetcher;
mod files;
mod http;
mod hub;
mod link;
pub mod multicast;
mod origin;
mod packed;
mod registry;
mod s3;
mod wrap;

use std::time::Duration;

use floe_image::{Hash, Kind, Layout, Manifest};

pub use directory::Directory;
pub use error::SourceError;
pub use fetcher::{Budget, Done, Each, FetchOptions, FetchStats, Fetcher, budget};
pub use files::Files;
pub use floe_sched::{Class, MachineId, Purpose, Who};
pub use hub::Hub;
pub use link::{Answer, LinkEstimate, LinkMeter};
pub use origin::Origin;
pub use packed::{RangeReads, range_reads};
pub use registry::{Opens, Options, Registry, Scheme};
pub use s3::S3;
pub use wrap::failover::Failover;
pub use wrap::retry::{Retry, RetryOptions};
pub use wrap::striped::Striped;

/// Most chunks and segments in one [`Source::read`]. A longer list is refused: the caller's queue, not one
/// request, is the place for it. 4096 chunks are 16 MiB, more than any link's bandwidth-delay product here.
pub const READ_ITEMS_MAX: usize = 4096;

/// How a read is to be done, and for whom. Sources keep demand apart from the rest, so that it never queues behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks, and why.
    pub who: Who,
    /// Longest time that the whole call may take.
    pub deadline: Duration,
}

impl Request {
    /// The node itself reads for this purpose, `deadline` at most.
    pub fn of(purpose: Purpose, deadline: Duration) -> Request {
        Request {
            who: Who::node(purpose),
            deadline,
        }
    }

    /// Somebody waits, `deadline` at most.
    pub fn demand(deadline: Duration) -> Request {
        Request::of(Purpose::Demand, deadline)
    }

    /// Ahead of need, `deadline` at most.
    pub fn prefetch(deadline: Duration) -> Request {
        Request::of(Purpose::Prefetch, deadline)
    }

    /// Whether somebody waits for the answer.
    pub fn is_demand(&self) -> bool {
        self.who.purpose.is_waited_for()
    }
}

/// Takes what a read delivers: kind, hash and verified bytes. It runs on the calling thread, once per item.
pub type Sink<'a> = dyn FnMut(Kind, Hash, &[u8]) + 'a;

/// Where missing chunks come from.
///
/// Cost: a read is one request for a hub and one per run of neighbouring frames for a static source, so callers
/// pass what they know to want together. An async trait was rejected: the measured cost of a hop to a runtime's
/// thread and back is of the order of the whole request on a local network.
pub trait Source: Send + Sync {
    /// What and where it is, for messages and logs. Contains no secrets.
    fn describe(&self) -> String;

    /// The image that `name` (`name:tag`, or an id) points to now.
    fn resolve(&self, name: &str) -> Result<Hash, SourceError>;

    /// The manifest of image `id`, verified against `id`.
    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError>;

    /// Which packs hold image `id`; `None` where the source has no use for packs.
    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError>;

    /// Read `wants`, which belong to `image`.
    ///
    /// Every item that reaches `sink` is verified. Neighbours that came along in the same frame may reach it too;
    /// each wanted item reaches it at most once. [`SourceError::Missing`] comes only after everything that is there
    /// was delivered. After any other error some items may have been delivered.
    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError>;

    /// What the link to this source has carried and how good it seems. Sources without a link answer zeros.
    fn link(&self) -> LinkEstimate {
        LinkEstimate::default()
    }
}

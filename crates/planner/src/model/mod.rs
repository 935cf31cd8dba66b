//! What is learnt from earlier runs: VMTorrent's profile, or clusters with the times at which each trace touched them.

mod codec;
mod layout;
mod partition;
mod train;
mod zero;

pub use codec::{MODEL_BYTES_MAX, MODEL_CHUNKS_MAX, MODEL_SEEN_MAX, ModelError, TRACES_MAX};
pub use train::{TrainOptions, train};
pub use zero::{ACCESSES_MAX, Timed, ZeroTrace};

use floe_image::Hash;
use std::collections::BTreeSet;

/// How a model is made, and which policy it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// VMTorrent's profile (2.2.3 of its paper): every chunk that any run touched, by the mean time of its first access.
    VmTorrent,
    /// vTube's clusters (4.2.1 of its paper).
    VTube,
    /// This project's own: clusters like vTube's, but short ones, so that their times say when each chunk is needed.
    Floe,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 3] = [Method::VmTorrent, Method::VTube, Method::Floe];

    /// Returns its name in addresses and figures.
    pub fn name(self) -> &'static str {
        match self {
            Method::VmTorrent => "vmtorrent",
            Method::VTube => "vtube",
            Method::Floe => "floe",
        }
    }
}

impl std::str::FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Method, String> {
        let found = Method::ALL.into_iter().find(|m| m.name() == text);
        found.ok_or_else(|| format!("no method {text:?}: it is vmtorrent, vtube or floe"))
    }
}

/// A chunk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkAt {
    /// The region's number in the manifest.
    pub region: u8,
    /// The chunk's number in the region.
    pub chunk: u32,
}

/// A line of VMTorrent's profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which chunk.
    pub at: ChunkAt,
    /// Mean time of its first access in the traces that touched it, in milliseconds since the start.
    pub mean_ms: u32,
    /// How many traces touched it; divided by [`Model::traces`] it is the frequency.
    pub seen: u32,
}

/// When a cluster was touched in one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The trace's number; the numbers depend only on the traces' content.
    pub trace: u32,
    /// Its first access, in milliseconds since the start.
    pub first_ms: u32,
    /// Its last access, in milliseconds since the start.
    pub last_ms: u32,
}

/// Chunks that were touched together in every trace that touched them. Clusters are disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its chunks, ordered by their mean time within the cluster.
    pub chunks: Vec<ChunkAt>,
    /// The traces in which it occurs; never empty.
    pub seen: Vec<Seen>,
}

impl Cluster {
    /// Returns the mean of its first accesses, in milliseconds since the start.
    pub(crate) fn mean_ms(&self) -> u32 {
        let sum: u64 = self.seen.iter().map(|seen| u64::from(seen.first_ms)).sum();
        // no more than the greatest of them
        (sum / self.seen.len().max(1) as u64) as u32
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Profile(Vec<Row>),
    Clusters(Vec<Cluster>),
}

/// A trained model of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub(crate) method: Method,
    pub(crate) image: Hash,
    pub(crate) traces: u32,
    pub(crate) body: Body,
}

impl Model {
    /// Returns the image that it is of.
    pub fn image(&self) -> Hash {
        self.image
    }

    /// Returns how it was made.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns how many traces it was made from.
    pub fn traces(&self) -> u32 {
        self.traces
    }

    /// Returns VMTorrent's profile in its order; empty for other methods.
    pub fn rows(&self) -> &[Row] {
        match &self.body {
            Body::Profile(rows) => rows,
            Body::Clusters(_) => &[],
        }
    }

    /// Returns the clusters, ordered by their mean first access; empty for VMTorrent's profile.
    pub fn clusters(&self) -> &[Cluster] {
        match &self.body {
            Body::Profile(_) => &[],
            Body::Clusters(clusters) => clusters,
        }
    }

    /// Returns all chunks that it knows, in the order in which they were needed on average.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkAt> + '_ {
        self.timed_chunks().map(|(at, _)| at)
    }

    /// Returns the same, each with the mean time at which it or the first of its cluster was needed, in milliseconds since the start.
    pub fn timed_chunks(&self) -> impl Iterator<Item = (ChunkAt, u32)> + '_ {
        let rows = self.rows().iter().map(|row| (row.at, row.mean_ms));
        let clusters = self.clusters().iter().flat_map(|cluster| {
            let mean_ms = cluster.mean_ms();
            cluster.chunks.iter().map(move |at| (*at, mean_ms))
        });
        rows.chain(clusters)
    }

    /// Returns the numbers of the regions that it has chunks of, ascending.
    pub fn regions(&self) -> BTreeSet<u8> {
        self.chunks().map(|at| at.region).collect()
    }

    /// Returns the same model for an image that was captured from a machine of this one: what is there is mostly at the same
    /// places, and touched alike. The caller ensures that the regions are the same.
    pub fn inherited_by(self, heir: Hash) -> Model {
        Model {
            image: heir,
            ..self
        }
    }
}

/// Returns how many milliseconds after the start of `x` cluster `y` begins in the same trace. A cluster that began earlier and
/// goes on during `x` follows at once: the rest of it is still to come.
pub(crate) fn follows_after(x: &Seen, y: &Seen) -> Option<u32> {
    if y.first_ms >= x.first_ms {
        Some(y.first_ms - x.first_ms)
    } else {
        (y.last_ms >= x.first_ms).then_some(0)
    }
}

//! What to fetch next, decided without I/O and without a clock.
//!
//! A machine that runs lazily waits for every chunk that isn't there yet. The planner hears what it touched ([`Event`])
//! and answers with what should travel before it is touched ([`Action`]). It holds no chunk, opens no socket and reads no
//! clock: `now` comes in with each event, so recorded traces replay to the same decisions, and the tests are tables.
//!
//! What is known of earlier runs is a [`Model`]: [`train`] makes one of [`ZeroTrace`]s, traces with the waiting taken out
//! (`model`). With one ([`Event::Model`]) an image is streamed (`stream`): the model tells what comes next and when, the link
//! how much of it can come in time, and the machine is paused ([`Action::Buffer`]) where it would have to wait anyway. Which
//! model and which choice is [`Config::policy`]: VMTorrent's and vTube's as published, and our own, which is the default.
//!
//! Without a model neighbours are all that can be guessed:
//!
//! * Around a miss the aligned window of 1 to 64 chunks is fetched (`window`). A region's window grows while what was
//!   fetched ahead gets used and shrinks when it doesn't.
//! * What may be fetched in vain of an image is bounded by [`Config::waste_ratio_slow`] of what was touched of it, plus what the
//!   link would have carried anyway while the first answers were on their way (`budget`, `links`). On a slow link this keeps the bytes that
//!   cross it close to the bytes that are needed; on a fast one waste is cheap and time isn't.
//! * When a window is nearly used up, the next one is fetched before it is asked for.
//! * Segment tables (a chunk can't be fetched before its hash is known) are loaded in the background, memory first
//!   (`tables`).
//! * A list of chunks that are known to be wanted, [`Event::Expect`], is fetched in its order as the link allows, their tables
//!   before all others.
//!
//! Images come over different links, each with its own bandwidth, round trip and room ([`LinkId`]). What is in flight on a link is
//! bounded by that link; the images on it share its room evenly, and what one does not use the others get (`links`).
//!
//! Promises, whatever the model says: a chunk is asked for once while it is in flight; chunks that are zero or here are never
//! asked for; what is in flight on a link is bounded by the link's content; no image on a link starves; what a hostile trace adds to what our own policy fetches is
//! bounded by [`Config::speculation_ratio`]; a pause always ends.
//!
//! Not here: where traces and models are kept, how a machine is paused, who fetches.

mod budget;
mod links;
mod model;
mod pace;
mod planner;
mod stream;
mod tables;
mod window;

pub use links::Link;
pub use model::{
    ACCESSES_MAX, ChunkAt, Cluster, MODEL_BYTES_MAX, MODEL_CHUNKS_MAX, MODEL_SEEN_MAX, Method,
    Model, ModelError, Row, Seen, TRACES_MAX, Timed, TrainOptions, Transition, ZeroTrace, train,
};
pub use planner::{Counters, LinkUse, Planner};
pub use stream::{Progress, Waiting};

/// A region's number, chosen by the caller.
pub type RegionId = u32;

/// An image's number, chosen by the caller: regions of the same image have the same.
pub type ImageId = u32;

/// A link's number, chosen by the caller: images that come over the same link have the same.
pub type LinkId = u64;

/// Chunks in a block: the unit in which chunks are named to and by the planner, as the bits of a `u64`.
pub const BLOCK_CHUNKS: u32 = 64;

/// The table that names a chunk.
pub(crate) fn segment_of(chunk: u64) -> u32 {
    u32::try_from(chunk / floe_image::CHUNKS_PER_SEGMENT as u64).unwrap_or(u32::MAX)
}

/// What is fetched ahead. All policies run through the same code, so that the lab compares nothing but them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Nothing.
    DemandOnly,
    /// Neighbours of what is missed.
    Neighbours,
    /// A static plan in the order of mean first access; needs a model of [`Method::VmTorrent`].
    VmTorrent,
    /// vTube as published; needs a model of [`Method::VTube`].
    VTube,
    /// Our own; with a model of [`Method::Floe`], else neighbours.
    Floe,
}

impl Policy {
    /// The model that it needs.
    pub fn method(self) -> Option<Method> {
        match self {
            Policy::DemandOnly | Policy::Neighbours => None,
            Policy::VmTorrent => Some(Method::VmTorrent),
            Policy::VTube => Some(Method::VTube),
            Policy::Floe => Some(Method::Floe),
        }
    }
}

/// How soon a region's segment tables are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Memory: its faults stop a virtual CPU.
    Memory,
    /// Anything else; on a slow link its tables wait for the first access.
    Storage,
}

/// What the planner is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A region will be used. `segments` are the numbers of its tables that aren't all-zero and not loaded yet.
    RegionAdded {
        /// The region's number from now on.
        region: RegionId,
        /// The link that its chunks come over.
        link: LinkId,
        /// Its image.
        image: ImageId,
        /// Its size in chunks.
        chunks: u64,
        /// Tables to load, in the order in which they are wanted.
        segments: Vec<u32>,
        /// How soon.
        urgency: Urgency,
    },
    /// A region is gone.
    RegionRemoved {
        /// Its number.
        region: RegionId,
    },
    /// A chunk was touched for the first time and isn't here; the caller fetches the chunk itself.
    Miss {
        /// The region.
        region: RegionId,
        /// The chunk.
        chunk: u64,
        /// The chunks of the same block that are worth fetching: neither zero nor in the store.
        candidates: u64,
    },
    /// A chunk was touched for the first time and was here.
    Hit {
        /// The region.
        region: RegionId,
        /// The chunk.
        chunk: u64,
    },
    /// The answer to [`Action::Look`].
    Candidates {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks that are neither zero nor in the store.
        candidates: u64,
    },
    /// A fetch ended.
    Fetched {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// The chunks that were asked for.
        chunks: u64,
        /// Whether they arrived.
        ok: bool,
    },
    /// A table that the planner asked for was loaded, or could not be.
    SegmentLoaded {
        /// The region.
        region: RegionId,
        /// The table.
        segment: u32,
        /// Whether it arrived; one that didn't is asked for again, some times, after the next [`Event::LinkEstimate`].
        ok: bool,
    },
    /// What a link is measured to be; said some times a second.
    LinkEstimate {
        /// The link.
        link: LinkId,
        /// As it was measured.
        measured: Link,
    },
    /// Chunks that are known to be wanted, first one first (a profile, a preload). They don't count as guesses.
    Expect {
        /// The region.
        region: RegionId,
        /// Chunks in the order in which they will be wanted; at most [`Config::expect_max`] of an image are kept waiting.
        chunks: Vec<u64>,
    },
    /// A model of the image that these regions are of, said after [`Event::RegionAdded`] of each and, for the start to be
    /// buffered, before the machine runs. From now on every first touch is told ([`Event::Hit`], [`Event::Miss`]), and
    /// [`Event::Tick`]. A model that isn't for [`Config::policy`] is ignored. It is the caller's to see that the model is of
    /// this image ([`Model::image`]); its chunks beyond a region's end are left out here.
    Model {
        /// The regions in the manifest's order, all of one image.
        regions: Vec<RegionId>,
        /// The model.
        model: std::sync::Arc<Model>,
    },
    /// Time went on; said about every 100 ms while there is a model, also while the machine is paused.
    Tick,
}

/// What the planner wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fetch these chunks behind all demand reads, then say [`Event::Fetched`].
    Fetch {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks.
        chunks: u64,
    },
    /// Say which chunks of this block are worth fetching ([`Event::Candidates`]).
    Look {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
    },
    /// Load these tables, then say [`Event::SegmentLoaded`] for each.
    FetchSegments {
        /// The region.
        region: RegionId,
        /// The tables.
        segments: Vec<u32>,
    },
    /// The region is being read from end to end: give these chunks to the page cache, they will all be used. The block's
    /// last quarter is never among them, because touches of pushed chunks aren't seen: when all of it was touched, they count as
    /// touched too.
    Push {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks.
        chunks: u64,
    },
    /// Pause the machines of an image, or let them go on. Said when it changes; a machine that is paused is always let go on
    /// in the end, as long as [`Event::Tick`] comes.
    Buffer {
        /// The first region of the image's model.
        region: RegionId,
        /// Pause, or go on.
        pause: bool,
        /// Bytes on the wire that have to come first.
        missing_bytes: u64,
        /// How long that takes at the link's present speed, in microseconds.
        eta_us: u64,
    },
}

/// The planner's policy and limits. The defaults are argued beside each field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// What is fetched ahead.
    pub policy: Policy,
    /// Log2 of a new region's window: 8 chunks, half a frame of a pack, so a wrong guess costs little.
    pub window_log2_start: u32,
    /// Log2 of the largest window: 64 chunks, one block.
    pub window_log2_max: u32,
    /// On a slow link, chunks fetched ahead and not (yet) used for each touched one. zstd makes about 0.36 of a memory
    /// chunk, so 1.3 times the touched chunks stay below half of their uncompressed bytes, tables included.
    pub waste_ratio_slow: f64,
    /// The same on a fast link, where time is dearer than bytes.
    pub waste_ratio_fast: f64,
    /// A link is slow below this many bytes a second.
    pub slow_bytes_per_s: f64,
    /// A link is fast from this many bytes a second on.
    pub fast_bytes_per_s: f64,
    /// How much smaller a chunk is on the wire (zstd on guests' memory: 2.8 in the mean).
    pub compression: f64,
    /// The least number of chunks that may be in flight, so that a bad estimate can't stop the read-ahead.
    pub in_flight_chunks_min: u32,
    /// The most chunks in flight, whatever the link (32 MiB).
    pub in_flight_chunks_max: u32,
    /// Segment tables in flight at a time.
    pub tables_in_flight_max: u32,
    /// Chunks of [`Event::Expect`] that are kept waiting.
    pub expect_max: usize,
    /// The part of the touched chunks that neighbours may waste where a model is loaded, which knows most of what comes.
    pub waste_ratio_beside_model: f64,
    /// How far ahead vTube selects clusters (its 5.1: 16 minutes), in microseconds.
    pub lookout_us: u64,
    /// How often vTube selects without a miss (its 5.1: 2 minutes), in microseconds.
    pub hint_us: u64,
    /// How far ahead our own policy looks, in microseconds.
    pub floe_lookout_us: u64,
    /// From this probability on a cluster that two traces vouch for isn't speculation.
    pub backed_probability: f64,
    /// Speculative chunks that may lie unused for each chunk that was touched or is backed.
    pub speculation_ratio: f64,
    /// A wasted microsecond of the link costs so many saved ones.
    pub waste_price: f64,
    /// A pause for a group has to save so many times its own length.
    pub patience: f64,
    /// A pause shorter than this isn't worth the interruption, in microseconds.
    pub pause_us_min: u64,
    /// What our own policy buffers beyond the point at which the link can keep up, in microseconds of the machine's time.
    pub reserve_us: u64,
    /// A pause in which nothing arrives for so long ends: the link is down, and the guest may run on what it has.
    pub pause_idle_us_max: u64,
    /// The longest pause, in microseconds.
    pub pause_us_max: u64,
    /// The machine runs at least so long between two pauses, in microseconds.
    pub run_us_min: u64,
}

impl Config {
    /// Bytes of a chunk on the wire.
    pub(crate) fn wire_bytes(&self) -> f64 {
        floe_image::CHUNK_SIZE as f64 / self.compression
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Floe,
            window_log2_start: 3,
            window_log2_max: 6,
            waste_ratio_slow: 0.25,
            waste_ratio_fast: 1.0,
            slow_bytes_per_s: 4e6,
            fast_bytes_per_s: 50e6,
            compression: 2.8,
            in_flight_chunks_min: 16,
            in_flight_chunks_max: 8192,
            tables_in_flight_max: 8,
            expect_max: 1 << 20,
            waste_ratio_beside_model: 0.02,
            lookout_us: 16 * 60 * 1_000_000,
            hint_us: 2 * 60 * 1_000_000,
            floe_lookout_us: 5 * 60 * 1_000_000,
            backed_probability: 0.5,
            speculation_ratio: 0.15,
            waste_price: 1.5,
            patience: 0.5,
            pause_us_min: 200_000,
            reserve_us: 500_000,
            pause_idle_us_max: 5_000_000,
            pause_us_max: 10 * 60 * 1_000_000,
            run_us_min: 250_000,
        }
    }
}

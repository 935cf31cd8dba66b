//! What to fetch next, decided without I/O and without a clock.
//!
//! A machine that runs lazily waits for every chunk that isn't there yet. The planner hears what it touched ([`Event`])
//! and answers with what should travel before it is touched ([`Action`]). It holds no chunk, opens no socket and reads no
//! clock: `now` comes in with each event, so recorded traces replay to the same decisions, and the tests are tables.
//!
//! The policy (there is no profile yet, so neighbours are all that can be guessed):
//!
//! * Around a miss the aligned window of 1 to 64 chunks is fetched (`window`). A region's window grows while what was
//!   fetched ahead gets used and shrinks when it doesn't.
//! * What may be fetched in vain is bounded by [`Config::waste_ratio_slow`] of what was touched, plus what the link would
//!   have carried anyway while the first answers were on their way (`budget`). On a slow link this keeps the bytes that
//!   cross it close to the bytes that are needed; on a fast one waste is cheap and time isn't.
//! * When a window is nearly used up, the next one is fetched before it is asked for.
//! * Segment tables (a chunk can't be fetched before its hash is known) are loaded in the background, memory first
//!   (`tables`).
//! * A list of chunks that are known to be wanted, [`Event::Expect`], is fetched in its order as the link allows, their tables
//!   before all others.
//!
//! Not here: learning, profiles, clusters and the choice between buffering and streaming.

mod budget;
mod model;
mod planner;
mod tables;
mod window;

pub use budget::Link;
pub use model::{
    ACCESSES_MAX, ChunkAt, Cluster, MODEL_BYTES_MAX, MODEL_CHUNKS_MAX, MODEL_SEEN_MAX, Method,
    Model, ModelError, Row, Seen, TRACES_MAX, Timed, TrainOptions, Transition, ZeroTrace, train,
};
pub use planner::{Counters, Planner};

/// A region's number, chosen by the caller.
pub type RegionId = u32;

/// Chunks in a block: the unit in which chunks are named to and by the planner, as the bits of a `u64`.
pub const BLOCK_CHUNKS: u32 = 64;

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
    /// What the link is measured to be; said about once a second.
    LinkEstimate(Link),
    /// Chunks that are known to be wanted, first one first (a profile, a preload). They don't count as guesses.
    Expect {
        /// The region.
        region: RegionId,
        /// Chunks in the order in which they will be wanted; at most [`Config::expect_max`] are kept waiting.
        chunks: Vec<u64>,
    },
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
}

/// The planner's limits. The defaults are argued beside each field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
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
}

impl Default for Config {
    fn default() -> Self {
        Self {
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
        }
    }
}

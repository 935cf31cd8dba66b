//! Decides what to fetch next, without I/O and without a clock.
//!
//! A machine that runs while its memory is still being fetched waits for every chunk that isn't there yet. The planner is told
//! what it touched ([`Event`]) and answers with what to fetch before it is touched ([`Action`]). It holds no chunk, opens no
//! socket and reads no clock: each event comes with the time `now`, so recorded traces replay to the same decisions, and the
//! tests are tables of events. Each event of a machine and each request says [who](floe_sched::Who) it is from: which machine,
//! for what purpose, of which class.
//!
//! A [`Model`] holds what is known of earlier runs: [`train`] makes it from [`ZeroTrace`]s, which are traces with the waiting
//! taken out (`model`). With a model ([`Event::Model`]) an image is streamed (`stream`): the model says what will be needed and
//! when, the link how much of it can come in time, and a machine is paused ([`Action::Buffer`]) when it would have to wait
//! anyway. Each machine of the image ([`Event::MachineStarted`]) has its own place in the model and its own pause; what one of
//! them brings is there for all. A model is for one rule, VMTorrent's or vTube's as published or this project's own; with the default
//! [`Config::policy`] each image follows the rule of the model that it is given.
//!
//! Without a model only neighbours can be guessed:
//!
//! * Around a miss the aligned window of 1 to 64 chunks is fetched (`window`). A region's window grows while what was fetched
//!   ahead gets used, and shrinks while it doesn't.
//! * How many chunks of an image may be fetched in vain is bounded by [`Config::waste_ratio_slow`] times the touched chunks,
//!   plus what the link could have carried anyway while the first answers were on their way (`budget`, `links`). On a slow link
//!   this keeps the bytes fetched close to the bytes needed; on a fast link bytes are cheap and time isn't.
//! * When a window is nearly used up, the next one is fetched before a miss in it.
//! * Segment tables are loaded in the background, memory's first (`tables`): a chunk can't be fetched before its hash is known.
//! * Chunks that are known to be wanted, [`Event::Expect`], are fetched in their order as the link allows, their tables before
//!   all others.
//!
//! Images come over different links, each with its own bandwidth and round trip ([`LinkId`]). A link bounds what is in flight
//! on it; the images on it share that evenly, and what one image doesn't use the others get (`links`).
//!
//! Promises, whatever the model says: no chunk is asked for twice while it is in flight; chunks that are zero or here are never
//! asked for; what is in flight on a link is bounded by what the link can hold; no image on a link and no machine of an image
//! starves; what a hostile trace can make the default policy fetch is bounded by [`Config::speculation_ratio`]; a pause always ends.
//!
//! Not here: where traces and models are kept, how a machine is paused, and who fetches.

mod budget;
mod links;
mod model;
mod pace;
mod planner;
mod stream;
mod tables;
mod window;

pub use model::{
    ACCESSES_MAX, ChunkAt, Cluster, MODEL_BYTES_MAX, MODEL_CHUNKS_MAX, MODEL_SEEN_MAX, Method,
    Model, ModelError, Row, Seen, TRACES_MAX, Timed, TrainOptions, ZeroTrace, train,
};
pub use planner::{Counters, LinkUse, Planner};
pub use stream::{Progress, Waiting};

use floe_sched::{MachineId, Who};

/// A region's number, chosen by the caller.
pub type RegionId = u32;

/// An image's number, chosen by the caller: regions of the same image have the same number.
pub type ImageId = u32;

/// A link's number, chosen by the caller: images that come over the same link have the same number.
pub type LinkId = u64;

/// The measured state of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth in bytes a second, as they are on the wire.
    pub bytes_per_s: f64,
    /// Round trip in microseconds.
    pub rtt_us: u64,
}

/// Chunks in a block. Chunks are passed to and from the planner as a block's number and the bits of a `u64`.
pub const BLOCK_CHUNKS: u32 = 64;

/// Returns the number of the table that has a chunk's hash.
pub(crate) fn segment_of(chunk: u64) -> u32 {
    u32::try_from(chunk / floe_image::CHUNKS_PER_SEGMENT as u64).unwrap_or(u32::MAX)
}

/// What is fetched ahead. All policies run through the same code, so that the lab compares the policies and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Nothing.
    DemandOnly,
    /// The neighbours of missed chunks.
    Neighbours,
    /// A static plan in the order of mean first access; needs a model of [`Method::VmTorrent`].
    VmTorrent,
    /// vTube's rule as published; needs a model of [`Method::VTube`].
    VTube,
    /// The default: with a model the rule that it is for, which with one of [`Method::Floe`] is this project's own; neighbours without
    /// one.
    Floe,
}

impl Policy {
    /// Returns which kind of model it needs; `None` if it needs none. The default takes others, too.
    pub fn method(self) -> Option<Method> {
        match self {
            Policy::DemandOnly | Policy::Neighbours => None,
            Policy::VmTorrent => Some(Method::VmTorrent),
            Policy::VTube => Some(Method::VTube),
            Policy::Floe => Some(Method::Floe),
        }
    }

    /// Returns by which rule an image with a model of this kind is streamed: the default follows the model, the others know only their
    /// own. `None` if by none.
    pub(crate) fn rule(self, method: Method) -> Option<Policy> {
        let rule = match method {
            Method::VmTorrent => Policy::VmTorrent,
            Method::VTube => Policy::VTube,
            Method::Floe => Policy::Floe,
        };
        (self == Policy::Floe || self == rule).then_some(rule)
    }
}

/// How soon a region's segment tables are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Memory: its faults stop a virtual CPU.
    Memory,
    /// Anything else. On a slow link its tables are loaded when their chunks are first accessed.
    Storage,
}

/// What the caller reports to the planner. What comes late, of a region or a machine that is gone, does no harm.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A region will be used. `segments` are the numbers of those of its tables that are neither all zero nor loaded yet.
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
        /// How soon its tables are needed.
        urgency: Urgency,
    },
    /// A region was removed.
    RegionRemoved {
        /// Its number.
        region: RegionId,
    },
    /// A machine begins to use an image: if the image has a model, or gets one, the machine is streamed from now on.
    MachineStarted {
        /// The machine. One that is known already keeps its place; its class is replaced.
        who: Who,
        /// Its image.
        image: ImageId,
        /// Whether it runs already (a node took it over): then nothing is known of its place, and its start isn't buffered.
        running: bool,
    },
    /// A machine doesn't use its image any more; if it is paused, [`Action::Buffer`] ends that.
    MachineGone {
        /// The machine.
        machine: MachineId,
    },
    /// A chunk was touched for the first time and isn't here; the caller fetches the chunk itself.
    Miss {
        /// The region.
        region: RegionId,
        /// The chunk.
        chunk: u64,
        /// The chunks of the same block that are worth fetching: neither zero nor in the store.
        candidates: u64,
        /// The machine that touched it.
        who: Who,
    },
    /// A chunk was touched for the first time and was here.
    Hit {
        /// The region.
        region: RegionId,
        /// The chunk.
        chunk: u64,
        /// The machine that touched it.
        who: Who,
    },
    /// The answer to [`Action::Look`].
    Candidates {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks that are neither zero nor in the store.
        candidates: u64,
        /// For whom it was looked at.
        who: Who,
    },
    /// A fetch that the planner asked for ended.
    Fetched {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// The chunks that were asked for.
        chunks: u64,
        /// Whether they arrived.
        ok: bool,
        /// For whom they were asked.
        who: Who,
    },
    /// A table that the planner asked for was loaded, or could not be loaded.
    SegmentLoaded {
        /// The region.
        region: RegionId,
        /// The table.
        segment: u32,
        /// Whether it arrived. If not, it is asked for again after the next [`Event::LinkEstimate`], a few times at most.
        ok: bool,
    },
    /// A measurement of a link; reported several times a second.
    LinkEstimate {
        /// The link.
        link: LinkId,
        /// What was measured.
        measured: Link,
    },
    /// Chunks that are known to be wanted (a profile, a preload). They don't count as guesses.
    Expect {
        /// The region.
        region: RegionId,
        /// Chunks in the order in which they will be wanted; at most [`Config::expect_max`] of an image are kept waiting.
        chunks: Vec<u64>,
        /// Who wants them.
        who: Who,
    },
    /// A model of the image that these regions belong to. Report it after [`Event::RegionAdded`] of each region, and before the
    /// machine runs if its start is to be buffered. From now on report every first touch ([`Event::Hit`], [`Event::Miss`]) and
    /// [`Event::Tick`]. The default [`Config::policy`] follows the rule that the model is for; with another one a model that isn't for it
    /// is ignored. The caller must ensure that the model is of this
    /// image ([`Model::image`]); chunks beyond a region's end are left out here.
    Model {
        /// The regions in the manifest's order, all of one image.
        regions: Vec<RegionId>,
        /// The model.
        model: std::sync::Arc<Model>,
    },
    /// Time has passed; reported about every 100 ms while there is a model, also while the machine is paused.
    Tick,
}

/// What the planner asks the caller to do, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fetch these chunks, after all demand reads, then report [`Event::Fetched`].
    Fetch {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks.
        chunks: u64,
        /// For whom.
        who: Who,
    },
    /// Report which chunks of this block are worth fetching ([`Event::Candidates`]).
    Look {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// For whom.
        who: Who,
    },
    /// Load these tables, then report [`Event::SegmentLoaded`] for each.
    FetchSegments {
        /// The region.
        region: RegionId,
        /// The tables.
        segments: Vec<u32>,
        /// For whom; the node itself if no machine waits for them.
        who: Who,
    },
    /// The region is being read from end to end: put these chunks into the page cache, since they will all be used. The last
    /// quarter of the block is never among them, because touches of pushed chunks aren't seen: once all of that quarter was
    /// touched, the pushed chunks count as touched too.
    Push {
        /// The region.
        region: RegionId,
        /// The block.
        block: u64,
        /// Its chunks.
        chunks: u64,
        /// For whom.
        who: Who,
    },
    /// Pause a machine, or let it go on. Returned when this changes; a machine that is paused is always let go on in the end, as
    /// long as [`Event::Tick`] is reported.
    Buffer {
        /// The machine.
        machine: MachineId,
        /// True to pause it, false to let it go on.
        pause: bool,
        /// Bytes that have to come over the link before the machine may go on.
        missing_bytes: u64,
        /// How long that takes at the link's present speed, in microseconds.
        eta_us: u64,
    },
}

/// The planner's policy and limits. The reason for each default is given at its field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// What is fetched ahead.
    pub policy: Policy,
    /// Log2 of a new region's window: 8 chunks, half a frame of a pack, so a wrong guess costs little.
    pub window_log2_start: u32,
    /// Log2 of the largest window: 64 chunks, one block.
    pub window_log2_max: u32,
    /// How many chunks fetched ahead and not (yet) used are allowed for each touched one on a slow link. zstd makes a memory
    /// chunk about 0.36 of its size, so 1.3 times the touched chunks stay below half of their uncompressed bytes, tables
    /// included.
    pub waste_ratio_slow: f64,
    /// The same on a fast link, where time costs more than bytes.
    pub waste_ratio_fast: f64,
    /// A link is slow below this many bytes a second.
    pub slow_bytes_per_s: f64,
    /// A link is fast from this many bytes a second on.
    pub fast_bytes_per_s: f64,
    /// How many times smaller a chunk is on the wire (zstd on guests' memory: 2.8 on average).
    pub compression: f64,
    /// The window of chunks in flight is never smaller than this, so that a bad estimate can't stop the read-ahead.
    pub in_flight_chunks_min: u32,
    /// The most chunks in flight, whatever the link (32 MiB).
    pub in_flight_chunks_max: u32,
    /// Most segment tables in flight at a time.
    pub tables_in_flight_max: u32,
    /// Most chunks of [`Event::Expect`] that wait to be sent, for each image.
    pub expect_max: usize,
    /// Neighbours that may be fetched in vain for each touched chunk if there is a model, which knows most of what comes.
    pub waste_ratio_beside_model: f64,
    /// How far ahead vTube selects clusters (its 5.1: 16 minutes), in microseconds.
    pub lookout_us: u64,
    /// How often vTube selects without a miss (its 5.1: 2 minutes), in microseconds.
    pub hint_us: u64,
    /// How far ahead the default policy looks, in microseconds.
    pub floe_lookout_us: u64,
    /// A cluster that is at least this probable, and that two traces have, isn't speculation.
    pub backed_probability: f64,
    /// How many speculative chunks may lie unused for each chunk that was touched, or was sent because it is backed.
    pub speculation_ratio: f64,
    /// How many saved microseconds of the link are needed to justify a wasted one.
    pub waste_price: f64,
    /// A pause for a group must save at least this many times its own length.
    pub patience: f64,
    /// By our own rule, a pause shorter than this isn't worth the interruption, in microseconds: a machine that falls behind by less runs
    /// on and waits for the chunks that it touches, while the link brings the others.
    pub pause_us_min: u64,
    /// The same before the machine has touched anything, where a pause interrupts nobody.
    pub start_pause_us_min: u64,
    /// How much the default policy buffers beyond the point from which the link can keep up, in microseconds of the machine's
    /// time.
    pub reserve_us: u64,
    /// A pause in which nothing arrives for this many microseconds ends: the link is down, and the guest may run on what it
    /// has.
    pub pause_idle_us_max: u64,
    /// The longest pause, in microseconds.
    pub pause_us_max: u64,
    /// By our own rule, the shortest time that the machine runs between two pauses, in microseconds.
    pub run_us_min: u64,
}

impl Config {
    /// Returns the bytes of a chunk on the wire.
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
            pause_us_min: 2_000_000,
            start_pause_us_min: 200_000,
            reserve_us: 500_000,
            pause_idle_us_max: 5_000_000,
            pause_us_max: 10 * 60 * 1_000_000,
            run_us_min: 2_000_000,
        }
    }
}

//! Traces of an image's machines, and the figures of streaming.

use super::*;
pub use floe_traces::{ModelEntry, TraceEntry, TraceList, TraceSummary};

/// Body of `POST /v1/traces/list`: the image whose traces are wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesRequest {
    /// A local image, the id of one that was run here, or the address of one that you own on a hub.
    pub image: String,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/traces/show` and `/v1/traces/export`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The image that the trace belongs to.
    pub of: TracesRequest,
    /// Hash of the trace, or the beginning of it.
    pub trace: String,
    /// File to write, absolute path (`export` only).
    #[serde(default)]
    pub path: Option<String>,
    /// Overwrite an existing file.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/traces/import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceImportRequest {
    /// The image that the trace is for.
    pub to: TracesRequest,
    /// File to read, absolute path.
    pub path: String,
}

/// Answer of `POST /v1/traces/show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceDetail {
    /// The trace's summary.
    #[serde(flatten)]
    pub entry: TraceEntry,
    /// Its accesses by region.
    pub regions: Vec<TraceRegion>,
    /// Number of accesses in each of at most [`TRACE_PARTS`] equal parts of its length.
    pub accesses_over_time: Vec<u64>,
}

/// Number of parts into which a trace's time is divided.
pub const TRACE_PARTS: usize = 40;

/// What a trace touched in one region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceRegion {
    /// Name of the region: `ram`, `disk0`, ...
    pub region: String,
    /// Chunks that were touched.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub bytes: u64,
}

/// A trace that was written to or read from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceMoved {
    /// Its hash.
    pub hash: String,
    /// The file.
    pub path: String,
    /// Whether the trace was stored already (`import` only).
    pub known: bool,
}

/// How a machine's image is streamed (`GET /v1/machines/{name}/stream`). A chunk has 4096 bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamInfo {
    /// The machine's state.
    pub state: MachineStatus,
    /// What it waits for while it is paused for buffering.
    pub buffering: Option<Buffering>,
    /// Whether a model of earlier runs decides what is fetched ahead.
    pub model: bool,
    /// Chunks that the model expects to be needed.
    pub planned_chunks: u64,
    /// How many of these chunks are on this host.
    pub buffered_chunks: u64,
    /// First touches of chunks that were not on this host.
    pub misses: u64,
    /// All first touches of chunks.
    pub touched: u64,
    /// Bytes received since the machine began, as transferred.
    pub fetched_bytes: u64,
    /// Bytes of the compressed image that were not fetched; 0 while its size is not known.
    pub saved_bytes: u64,
    /// Measured bandwidth of the link to the sources, in bytes per second.
    pub rate_bytes_s: Option<u64>,
    /// Measured round-trip time to the sources, in microseconds.
    pub rtt_us: Option<u64>,
    /// Number of chunks fetched for each chunk touched.
    pub fetch_ratio: f64,
    /// Requests of the machine that waited for a chunk.
    pub waits: u64,
    /// Seconds that these waited in all; two CPUs that wait at the same time count twice.
    pub waited_s: f64,
    /// Times that the machine was paused for buffering.
    pub pauses: u64,
    /// Seconds of all these pauses together.
    pub paused_s: f64,
}

/// A pause in which the chunks that are needed next are fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Buffering {
    /// Bytes that are still missing.
    pub missing_bytes: u64,
    /// Estimated seconds until they have arrived.
    pub eta_s: f64,
}

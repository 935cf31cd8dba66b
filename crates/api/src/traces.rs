//! Traces of an image's machines, and the figures of streaming.

use super::*;
pub use floe_traces::{ModelEntry, TraceEntry, TraceList, TraceSummary};

/// Body of `POST /v1/traces/list`: whose traces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesRequest {
    /// A local image, the id of one that was run here, or the address of one of yours on a hub.
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
    /// Whose trace.
    pub of: TracesRequest,
    /// Which one: its hash, or the beginning of it.
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
    /// For which image.
    pub to: TracesRequest,
    /// The file, absolute path.
    pub path: String,
}

/// Answer of `POST /v1/traces/show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceDetail {
    /// The trace in figures.
    #[serde(flatten)]
    pub entry: TraceEntry,
    /// Its accesses by region.
    pub regions: Vec<TraceRegion>,
    /// Its accesses over time, in equal parts of its length (at most [`TRACE_PARTS`]).
    pub accesses_over_time: Vec<u64>,
}

/// Parts of a trace's time that are shown.
pub const TRACE_PARTS: usize = 40;

/// What a trace touched of a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceRegion {
    /// `ram`, `disk0`, ...
    pub region: String,
    /// Chunks that were touched.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A trace that was written to or read from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceMoved {
    /// Its hash.
    pub hash: String,
    /// The file.
    pub path: String,
    /// Whether it had been there already (`import` only).
    pub known: bool,
}

/// How a machine's image streams (`GET /v1/machines/{name}/stream`). A chunk has 4096 bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamInfo {
    /// How the machine is.
    pub state: MachineStatus,
    /// What it waits for while it is paused so that it need not crawl.
    pub buffering: Option<Buffering>,
    /// Whether a model of earlier runs says what is fetched ahead.
    pub model: bool,
    /// Chunks that the model expects to be wanted.
    pub planned_chunks: u64,
    /// Those of them that are here.
    pub buffered_chunks: u64,
    /// First touches of chunks that weren't here.
    pub misses: u64,
    /// First touches of chunks.
    pub touched: u64,
    /// Bytes that arrived since the machine began, as sent.
    pub fetched_bytes: u64,
    /// Bytes of the compressed image that were not fetched; 0 while its size is not known.
    pub saved_bytes: u64,
    /// Bandwidth of the link to the sources, as measured.
    pub rate_bytes_s: Option<u64>,
    /// Round-trip time to the sources.
    pub rtt_us: Option<u64>,
    /// Chunks fetched for each chunk touched.
    pub fetch_ratio: f64,
    /// Requests of the machine that waited for a chunk.
    pub waits: u64,
    /// Seconds waited in all of them; two CPUs that wait at the same time count twice.
    pub waited_s: f64,
    /// Times that the machine was paused for buffering.
    pub pauses: u64,
    /// Seconds of all these pauses.
    pub paused_s: f64,
}

/// A pause so that what comes next is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Buffering {
    /// Bytes that still have to come.
    pub missing_bytes: u64,
    /// Seconds until then, estimated.
    pub eta_s: f64,
}

//! How floe's programs talk to each other: the requests, answers and events of the node's REST interface, shared by the
//! node and its [`client`]; the types of the [`hub`]'s interface; to which hub each of the [`credentials`] may be sent; which
//! certificate [`authorities`] may vouch for which server; and the [`paths`] of a state directory, where clients find the node.
//!
//! Short calls answer one JSON object. Long calls (`import`, `run`, `capture`, ...) answer a stream of [`Event`]s, one
//! JSON object a line, that ends with exactly one [`Event::Done`] or [`Event::Error`]; a client that hangs up cancels the
//! operation. Image ids are 64 hexadecimal digits; sizes are bytes unless the name says otherwise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

mod afterwards;
pub mod authorities;
pub mod client;
mod cluster;
pub mod credentials;
mod ensembles;
mod errors;
mod exec;
mod forks;
mod forward;
mod happened;
mod hardware;
pub mod hub;
mod images;
mod independent;
mod io;
mod machines;
mod moves;
mod network;
pub mod paths;
mod pool;
mod resize;
mod sched;
mod swarm;
mod traces;
mod typing;
mod visible;
mod watching;
pub use afterwards::RestartPolicy;
pub use cluster::*;
pub use ensembles::*;
pub use errors::*;
pub use exec::*;
pub use forks::*;
pub use forward::{ForwardError, PortForward, Protocol};
pub use happened::Happened;
pub use hardware::*;
pub use images::*;
pub use independent::*;
pub use io::*;
pub use machines::*;
pub use moves::*;
pub use network::*;
pub use pool::*;
pub use resize::*;
pub use sched::*;
pub use swarm::*;
pub use traces::*;
pub use typing::*;
pub use visible::*;
pub use watching::*;

/// Version of this interface: part of every path (`/v1/...`).
pub const API_VERSION: u32 = 1;

/// Returns a number of bytes as text for people: `0 B`, `12 KiB`, `1.5 GiB`.
pub fn size_text(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    // 1023.96 would be shown as 1024.0
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// One line of a long call's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(
    clippy::large_enum_variant,
    reason = "one Done a call; boxing it would only burden its readers"
)]
pub enum Event {
    /// A stage of the work has ended. The times of all stages sum to the `total_ms` of [`Event::Done`].
    Stage {
        /// The stage's name (`resolve`, `manifest`, `mount`, `qemu`, `state`, ...).
        name: String,
        /// How long it took, in milliseconds.
        ms: f64,
    },
    /// How far the work has got.
    Progress {
        /// What is being counted (`import`, `upload`, ...).
        name: String,
        /// Units done.
        done: u64,
        /// Units in all; 0 while unknown.
        total: u64,
        /// `bytes` or `chunks`.
        unit: String,
    },
    /// Information for the user that is not an error (acceleration is off, the clock was not set, ...).
    Note {
        /// The text.
        message: String,
    },
    /// The state of one clone of a fork: it executes, or could not be started.
    Clone(CloneInfo),
    /// The operation succeeded; nothing follows.
    Done(Outcome),
    /// The operation failed; nothing follows.
    Error(ApiError),
}

/// The result of a long call. Only the fields of its kind of operation are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// Milliseconds from the request's arrival to this event.
    pub total_ms: f64,
    /// The image that was made, fetched, sent or checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSummary>,
    /// The machine that was started or changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineInfo>,
    /// What an import or a capture has stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredReport>,
    /// Where an import has put floe's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentReport>,
    /// What was transferred over the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<TransferReport>,
    /// The result of a check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyReport>,
    /// The result of rearranging an image's packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimized: Option<OptimizeReport>,
    /// File or directory that was written or mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long the guest was paused for a capture or a fork, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// The result of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkReport>,
    /// The result of changing a machine's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resized: Option<ResizeReport>,
    /// The disk that a machine was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<AttachedDisk>,
    /// The substrate that was docked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substrate: Option<SubstrateInfo>,
    /// The result of an activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated: Option<ActivateReport>,
    /// The result of activating an ensemble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<EnsembleReport>,
    /// How a machine has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<MoveReport>,
    /// How a machine was synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<SyncReport>,
}

// ---------------------------------------------------------------------------------------------------------- the node

/// What the node is and runs (`GET /v1/node`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// floe's version.
    pub version: String,
    /// [`API_VERSION`].
    pub api: u32,
    /// Process id of the node.
    pub pid: u32,
    /// State directory.
    pub home: String,
    /// The mount on which regions appear as files.
    pub mountpoint: String,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Why KVM is not used; absent if it is.
    pub accel_reason: Option<String>,
    /// Number of machines, running or not.
    pub machines: u64,
    /// Number of images in the local repository.
    pub images: u64,
    /// Number of standby QEMUs: they wait with an image's state loaded, for its next run.
    pub standby: u64,
    /// Number of QEMUs that wait without an image, for clones of machines whose guests have a ticket or that were forked before.
    #[serde(default)]
    pub blanks: u64,
    /// Seconds since the node started.
    pub uptime_s: u64,
    /// Whether the node has taken over the mount of an earlier node that had died.
    pub took_over: bool,
}

/// Answer of `GET /v1/page`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PageInfo {
    /// The page's address.
    pub url: String,
    /// The address that logs a browser in: it contains the page's token.
    pub login_url: String,
}

/// Answer of `GET /v1/doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// All checks, in the order in which they are to be read.
    pub checks: Vec<Check>,
}

/// One thing that floe needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// The result.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// The command or package that fixes it; empty if nothing is wrong.
    #[serde(default)]
    pub fix: String,
}

/// Result of a [`Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// All is well.
    Ok,
    /// Works, but slower or with less.
    Warn,
    /// Something that floe needs does not work.
    Fail,
}

/// Body of `POST /v1/shutdown`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// Power the machines down, too. Otherwise they keep running and the next node takes them over.
    #[serde(default)]
    pub stop_machines: bool,
}

/// One line of `GET /v1/events`, sent as soon as something happens on the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// Unix time in milliseconds.
    pub time_unix_ms: u64,
    /// What happened.
    pub kind: Happened,
    /// The machine, image, fork, host or node that it concerns.
    pub subject: String,
    /// Details as text.
    #[serde(default)]
    pub detail: String,
}

/// What is removed if nobody uses it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Prune {
    /// Images without a name that no machine and no fork uses.
    Images,
    /// Machines that have ended and are not about to be started again, with their disks.
    Machines,
    /// Chunks that no running machine needs, and packs that no image needs.
    Cache,
    /// All of these.
    #[default]
    All,
}

/// Body of `POST /v1/prune`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// What to look for.
    #[serde(default)]
    pub what: Prune,
    /// Remove nothing, and return what would be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer of `POST /v1/prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PruneReport {
    /// Machines that were, or would be, removed.
    pub machines: Vec<Pruned>,
    /// Images that were, or would be, removed.
    pub images: Vec<Pruned>,
    /// What the cache gave up, or would at most give up, in bytes.
    pub cache_bytes: u64,
    /// Bytes that all of that has freed; 0 for a dry run.
    pub freed_bytes: u64,
    /// What could not be removed, and why.
    pub problems: Vec<String>,
}

/// Something that nobody used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// A machine's name, or the beginning of an image's id.
    pub name: String,
    /// Bytes of the disk that it had for itself.
    pub bytes: u64,
}

// ------------------------------------------------------------------------------------------------------------- cache

/// Answer of `GET /v1/cache`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheInfo {
    /// The cache's directory.
    pub path: String,
    /// Largest size, in bytes.
    pub budget_bytes: u64,
    /// Current size, in bytes.
    pub used_bytes: u64,
    /// Number of chunks in it.
    pub chunks: u64,
    /// Bytes of chunks that running machines need, and which are therefore not removed.
    pub pinned_bytes: u64,
    /// Reads since the node started that the cache answered.
    pub hits: u64,
    /// Reads since the node started that the cache could not answer.
    pub misses: u64,
}

//! What programs of floe say to each other: the requests, answers and events of the node's REST interface, shared by the node and its
//! [`client`]; the types of the [`hub`]'s; to whom [`credentials`] may be sent and by which
//! [`authorities`] each is believed; and the [`paths`] of a state directory, where a node is found.
//!
//! Short calls answer one JSON object. Long calls (`import`, `run`, `capture`, ...) answer a stream of [`Event`]s, one
//! JSON object a line, that ends with exactly one [`Event::Done`] or [`Event::Error`]; a client that hangs up cancels the
//! operation. Image ids are 64 hexadecimal digits; sizes are bytes unless the name says otherwise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

pub mod authorities;
pub mod client;
mod cluster;
pub mod credentials;
mod forks;
mod forward;
mod happened;
pub mod hub;
mod images;
mod machines;
mod network;
pub mod paths;
mod traces;
pub use cluster::*;
pub use forks::*;
pub use forward::{ForwardError, PortForward, Protocol};
pub use happened::Happened;
pub use images::*;
pub use machines::*;
pub use network::*;
pub use traces::*;

/// Version of this interface: part of every path (`/v1/...`).
pub const API_VERSION: u32 = 1;

/// A number of bytes for a person: `0 B`, `12 KiB`, `1.5 GiB`.
pub fn size_text(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    // 1023.96 would be shown as 1024.0.
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
    /// A stage is over. The stages' times sum to the `total_ms` of [`Event::Done`].
    Stage {
        /// What was done (`resolve`, `manifest`, `mount`, `qemu`, `state`, ...).
        name: String,
        /// How long it took.
        ms: f64,
    },
    /// How far the work has come.
    Progress {
        /// What is being counted (`import`, `upload`, ...).
        name: String,
        /// Units done.
        done: u64,
        /// Units in all, 0 while unknown.
        total: u64,
        /// `bytes` or `chunks`.
        unit: String,
    },
    /// Something that the user should know and that is no error (acceleration is off, the clock was not set, ...).
    Note {
        /// The text.
        message: String,
    },
    /// A clone of a fork executes, or there will be none.
    Clone(CloneInfo),
    /// The operation succeeded; nothing follows.
    Done(Outcome),
    /// The operation failed; nothing follows.
    Error(ApiError),
}

/// What a long call came to. Only the fields that its operation has are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// Time from the request's arrival to this event.
    pub total_ms: f64,
    /// The image that was made, fetched, sent or checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSummary>,
    /// The machine that runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineInfo>,
    /// What was stored by an import or a capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredReport>,
    /// What crossed the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<TransferReport>,
    /// What a check found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyReport>,
    /// What laying an image out anew came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimized: Option<OptimizeReport>,
    /// File or directory that was written or mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long the guest stood still (capture, fork).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// What a fork came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkReport>,
}

/// What went wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// The kind: what a program can act on.
    pub code: ErrorCode,
    /// What happened, with the offending value.
    pub message: String,
    /// What to do about it; empty where nothing can be said.
    #[serde(default)]
    pub fix: String,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.fix.is_empty() {
            write!(f, " ({})", self.fix)?;
        }
        Ok(())
    }
}

impl std::error::Error for ApiError {}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request itself is wrong.
    Usage,
    /// No such image or machine.
    NotFound,
    /// Another operation on the same thing is under way, or the name is taken.
    Busy,
    /// A source, hub or the node can't be reached.
    Unreachable,
    /// It can't be done here (CPU, version, permission).
    Refused,
    /// The client hung up or asked to stop.
    Cancelled,
    /// Everything else.
    Failed,
}

impl ErrorCode {
    /// The exit code of a command that ends with this error.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorCode::Failed | ErrorCode::Busy => 1,
            ErrorCode::Usage => 2,
            ErrorCode::NotFound => 3,
            ErrorCode::Unreachable => 4,
            ErrorCode::Refused => 5,
            ErrorCode::Cancelled => 130,
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- the node

/// What the node is and runs (`GET /v1/node`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// floe's version.
    pub version: String,
    /// [`API_VERSION`].
    pub api: u32,
    /// Process id.
    pub pid: u32,
    /// State directory.
    pub home: String,
    /// The mount on which regions appear as files.
    pub mountpoint: String,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Why it isn't KVM, if it isn't.
    pub accel_reason: Option<String>,
    /// Machines known, running or not.
    pub machines: u64,
    /// Images in the local repository.
    pub images: u64,
    /// QEMUs that wait in the standby pool.
    pub standby: u64,
    /// Seconds since the node started.
    pub uptime_s: u64,
    /// Whether the mount was taken over from a node that had died.
    pub took_over: bool,
}

/// Answer of `GET /v1/page`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PageInfo {
    /// The page's address.
    pub url: String,
    /// The address that lets a browser in: it carries the page's token.
    pub login_url: String,
}

/// Answer of `GET /v1/doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Every check, in the order in which they should be read.
    pub checks: Vec<Check>,
}

/// One thing that floe needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// The command or package that puts it right; empty if nothing is wrong.
    #[serde(default)]
    pub fix: String,
}

/// Result of a [`Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Works, but slower or with less.
    Warn,
    /// Something can't work.
    Fail,
}

/// Body of `POST /v1/shutdown`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// Power the machines down too; without it they go on and the next node adopts them.
    #[serde(default)]
    pub stop_machines: bool,
}

/// One line of `GET /v1/events`: what happens on the node, as it happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// Unix time in milliseconds.
    pub time_unix_ms: u64,
    /// What happened.
    pub kind: Happened,
    /// To which machine or image.
    pub subject: String,
    /// More, for a human.
    #[serde(default)]
    pub detail: String,
}

// ------------------------------------------------------------------------------------------------------------- cache

/// Answer of `GET /v1/cache`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheInfo {
    /// Directory.
    pub path: String,
    /// Most that it may take.
    pub budget_bytes: u64,
    /// What it takes.
    pub used_bytes: u64,
    /// Chunks in it.
    pub chunks: u64,
    /// Bytes that running machines hold.
    pub pinned_bytes: u64,
    /// Reads that were answered since the node started.
    pub hits: u64,
    /// Reads that weren't.
    pub misses: u64,
}

//! What the node's REST interface speaks: requests, answers and events, shared by the node and its [`client`].
//!
//! Short calls answer one JSON object. Long calls (`import`, `run`, `capture`, ...) answer a stream of [`Event`]s, one
//! JSON object a line, that ends with exactly one [`Event::Done`] or [`Event::Error`]; a client that hangs up cancels the
//! operation. Image ids are 64 hexadecimal digits; sizes are bytes unless the name says otherwise.
//!
//! [`client`]: crate::client

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

mod forward;
pub use forward::{ForwardError, PortForward, Protocol};

/// Version of this interface: part of every path (`/v1/...`).
pub const API_VERSION: u32 = 1;

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
    /// File or directory that was written or mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long the guest stood still (capture).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
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
    /// What happened: `machine.started`, `machine.stopped`, `image.added`, `image.removed`, ...
    pub kind: String,
    /// To which machine or image.
    pub subject: String,
    /// More, for a human.
    #[serde(default)]
    pub detail: String,
}

// ------------------------------------------------------------------------------------------------------------ images

/// Query of the calls about one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ImageQuery {
    /// `name`, `name:tag`, an id or a unique prefix of one.
    pub image: String,
}

/// Answer of `GET /v1/images`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// Newest first.
    pub images: Vec<ImageSummary>,
}

/// One image, short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageSummary {
    /// BLAKE3 of the manifest.
    pub id: String,
    /// Names that point to it.
    pub names: Vec<String>,
    /// When it was made, Unix time.
    pub created_unix_s: u64,
    /// The image that it was captured over.
    pub parent: Option<String>,
    /// Whether it is a running machine's state (has `ram` and `device`).
    pub live: bool,
    /// Sum of the regions' sizes.
    pub virtual_bytes: u64,
    /// Bytes of the packs that hold it (shared packs count for every image).
    pub stored_bytes: u64,
}

/// One image, whole (`GET /v1/image`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImageDetail {
    /// The short form.
    #[serde(flatten)]
    pub summary: ImageSummary,
    /// Its regions.
    pub regions: Vec<RegionInfo>,
    /// Number of packs.
    pub packs: u64,
    /// QEMU machine type it was captured on.
    pub machine_type: Option<String>,
    /// QEMU version it was captured on.
    pub qemu_version: Option<String>,
    /// Accelerator it was captured on.
    pub accel: Option<String>,
    /// CPU model.
    pub cpu_model: Option<String>,
    /// CPU flags that a host must have.
    pub cpu_flags: Vec<String>,
    /// Virtual CPUs.
    pub cpus: Option<u32>,
    /// RAM.
    pub memory_bytes: Option<u64>,
    /// Kernel command line.
    pub cmdline: Option<String>,
    /// Devices, as QEMU takes them.
    pub devices: Vec<String>,
    /// Free text by key.
    pub labels: BTreeMap<String, String>,
}

/// One region of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionInfo {
    /// `ram`, `disk0`, `device`, ...
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Segments that are not all zero (each stands for up to 4 MiB).
    pub segments: u64,
}

/// Body of `POST /v1/images/import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Disk images (raw, qcow2, vmdk, vdi, ...) as absolute paths: `disk0`, `disk1`, ...
    #[serde(default)]
    pub disks: Vec<String>,
    /// Kernel for direct boot, absolute path.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Initial ramdisk, absolute path.
    #[serde(default)]
    pub initrd: Option<String>,
    /// Kernel command line.
    #[serde(default)]
    pub cmdline: Option<String>,
    /// `name` or `name:tag` to give it.
    #[serde(default)]
    pub name: Option<String>,
    /// RAM that its machines get if `run` doesn't say.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs that its machines get if `run` doesn't say.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What an import or a capture stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredReport {
    /// Bytes that were read.
    pub bytes_in: u64,
    /// Chunks that were new.
    pub new_chunks: u64,
    /// What they take, compressed.
    pub new_bytes_compressed: u64,
    /// Chunks that were there already.
    pub dedup_chunks: u64,
    /// Chunks of zeroes.
    pub zero_chunks: u64,
}

/// What crossed the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferReport {
    /// Bytes sent or received.
    pub wire_bytes: u64,
    /// Bytes that the other side had.
    pub skipped_bytes: u64,
    /// Whether an earlier, cut transfer was continued.
    pub resumed: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VerifyReport {
    /// Items that were read and hashed.
    pub checked: u64,
    /// What is wrong, one line each; empty if all is well.
    pub problems: Vec<String>,
}

/// Body of `POST /v1/images/tag` and `/untag`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRequest {
    /// The image (ignored by `untag`).
    #[serde(default)]
    pub image: String,
    /// `name` or `name:tag`.
    pub name: String,
}

/// Body of `POST /v1/images/remove`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveImageRequest {
    /// The image.
    pub image: String,
    /// Remove it with all of its names.
    #[serde(default)]
    pub force: bool,
}

/// Answer of `POST /v1/images/remove` and of `POST /v1/cache/gc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreedReport {
    /// Bytes given back to the disk.
    pub freed_bytes: u64,
    /// Names that are gone.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Body of `POST /v1/images/export`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The image.
    pub image: String,
    /// Region to write.
    pub region: String,
    /// File to write, absolute path.
    pub path: String,
    /// `raw` or `qcow2`.
    #[serde(default)]
    pub format: ExportFormat,
    /// Overwrite an existing file.
    #[serde(default)]
    pub force: bool,
}

/// File formats of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The bytes, sparse.
    #[default]
    Raw,
    /// QEMU's, compressed.
    Qcow2,
}

/// Body of `POST /v1/images/push`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// The local image.
    pub image: String,
    /// The hub's address, or a directory.
    pub to: String,
    /// Name there; the local one by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
    /// Let everybody read it.
    #[serde(default)]
    pub public: bool,
}

/// Body of `POST /v1/images/pull`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Address with the image's name (`https://hub/name:tag`).
    pub from: String,
    /// Local name; the remote one by default.
    #[serde(default)]
    pub name: Option<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/mounts`: show an image's regions as plain files in a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountRequest {
    /// Image: a local one, or an address.
    pub image: String,
    /// Directory, absolute path.
    pub path: String,
    /// Token for the source.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the source.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/mounts/remove`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnmountRequest {
    /// The directory.
    pub path: String,
}

/// Answer of `GET /v1/mounts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MountList {
    /// Extra views of images.
    pub mounts: Vec<MountInfo>,
}

/// One extra view of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MountInfo {
    /// Image id.
    pub image: String,
    /// The directory.
    pub path: String,
}

// ---------------------------------------------------------------------------------------------------------- machines

/// What `run` waits for before it says that the machine is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The first new byte on the console. A restored guest that has nothing to say is given `wait_timeout_s`.
    Console,
    /// The first forwarded port answers.
    Port,
    /// Nothing: the machine's CPUs run.
    #[default]
    None,
}

/// Body of `POST /v1/machines` (run).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Local image, or the address of one (hub, static server, `s3://`, directory).
    pub image: String,
    /// More places that have the same image, tried when the first fails.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The machine's name; made from the image's by default.
    #[serde(default)]
    pub name: Option<String>,
    /// RAM.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Ports of the host that lead into the guest.
    #[serde(default)]
    pub forwards: Vec<PortForward>,
    /// What to wait for.
    #[serde(default)]
    pub wait: Wait,
    /// How long; [`WAIT_TIMEOUT_S_DEFAULT`] by default.
    #[serde(default)]
    pub wait_timeout_s: Option<u64>,
    /// Kernel command line instead of the image's (fresh boots only).
    #[serde(default)]
    pub cmdline: Option<String>,
    /// Boot from the disks although the image has a running state.
    #[serde(default)]
    pub cold: bool,
    /// Token for the sources.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the sources.
    #[serde(default)]
    pub ca: Option<String>,
}

/// How long `run` waits for the guest to answer, seconds: a cold boot without KVM takes half a minute.
pub const WAIT_TIMEOUT_S_DEFAULT: u64 = 120;

/// Answer of `GET /v1/machines`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineList {
    /// By name.
    pub machines: Vec<MachineInfo>,
}

/// One machine (`GET /v1/machines/{name}`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineInfo {
    /// Its name.
    pub name: String,
    /// How it is.
    pub status: MachineStatus,
    /// Why, where that isn't obvious (disk full, guest was reset and started cold, ...).
    #[serde(default)]
    pub detail: String,
    /// Image id.
    pub image: String,
    /// The image as the user named it.
    pub image_name: String,
    /// Whether it was restored from a running state.
    pub restored: bool,
    /// Process id of its QEMU.
    pub pid: Option<u32>,
    /// RAM.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Ports.
    pub forwards: Vec<PortForward>,
    /// Creation, Unix time.
    pub created_unix_s: u64,
    /// Where its missing chunks come from.
    pub sources: Vec<String>,
    /// What its mount did so far.
    #[serde(default)]
    pub stats: MachineStats,
}

/// States of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MachineStatus {
    /// Being made.
    Starting,
    /// Its CPUs run.
    Running,
    /// Its CPUs stand still (an I/O error, or in the middle of a capture).
    Paused,
    /// No QEMU; disks are kept.
    Stopped,
    /// QEMU ended by itself, badly.
    Failed,
}

/// What the mount counted for a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineStats {
    /// Requests that had to wait for a source.
    pub misses: u64,
    /// Requests in all.
    pub requests: u64,
    /// Time spent waiting for sources.
    pub wait_ms: f64,
    /// Bytes that arrived from the sources of its image, as sent.
    pub wire_bytes: u64,
    /// Bytes that its disks hold beyond the image.
    pub overlay_bytes: u64,
}

/// Query of `GET /v1/machines/{name}/logs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Go on as the guest writes, until the client hangs up.
    #[serde(default)]
    pub follow: bool,
    /// Only the last so many bytes.
    #[serde(default)]
    pub tail_bytes: Option<u64>,
}

/// Answer of `GET /v1/machines/{name}/console`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleInfo {
    /// Unix socket of the serial console; one client at a time.
    pub socket: String,
    /// File with everything that the guest has written.
    pub log: String,
    /// Unix socket of the screen (VNC).
    pub vnc: Option<String>,
}

/// Body of `POST /v1/machines/{name}/capture`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// `name` or `name:tag` of the new image.
    #[serde(default)]
    pub name: Option<String>,
    /// End the machine instead of letting it go on.
    #[serde(default)]
    pub stop: bool,
    /// For how many seconds an isolated copy runs to learn what a resume touches first; [`REHEARSE_S_DEFAULT`] by default,
    /// 0 for not at all.
    #[serde(default)]
    pub rehearse_s: Option<u32>,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// How long a capture is rehearsed, seconds: a resumed guest answers its first user within that, even emulated.
pub const REHEARSE_S_DEFAULT: u32 = 4;
/// The longest rehearsal, seconds.
pub const REHEARSE_S_MAX: u32 = 600;

/// Body of `POST /v1/machines/{name}/stop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Don't ask the guest.
    #[serde(default)]
    pub now: bool,
    /// How long the guest may take; [`STOP_TIMEOUT_S_DEFAULT`] by default. After it QEMU is ended.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// How long a guest gets to power down, seconds (systemd gives a stopping service 90, few need 30).
pub const STOP_TIMEOUT_S_DEFAULT: u64 = 30;

/// Body of `POST /v1/machines/{name}/start`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// What to wait for.
    #[serde(default)]
    pub wait: Wait,
    /// How long; [`WAIT_TIMEOUT_S_DEFAULT`] by default.
    #[serde(default)]
    pub wait_timeout_s: Option<u64>,
}

/// Query of `DELETE /v1/machines/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct RemoveMachineQuery {
    /// End it first if it runs.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/machines/{name}/forwards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardRequest {
    /// The port; host port 0 chooses a free one.
    pub forward: PortForward,
    /// Take it away instead.
    #[serde(default)]
    pub remove: bool,
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

//! Machines: what is asked and told of them.

use super::*;

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
    /// More places that have the same image: all are read from at the same time, and what one does not give is asked of the others.
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
    /// Token for the first of image and sources that is on a hub; no other server gets it.
    #[serde(default)]
    pub token: Option<String>,
    /// Tokens for hubs among them, by address (`https://hub.example`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
    /// PEM file with the certificate authorities of all places that `cas` does not name.
    #[serde(default)]
    pub ca: Option<String>,
    /// PEM files with certificate authorities by the address that each is for (`https://hub.example`): absolute paths on the node's
    /// host. Each address must be one of image and sources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cas: BTreeMap<String, String>,
    /// Keep and send no trace of what it touches.
    #[serde(default)]
    pub no_trace: bool,
    /// Put it into a network of its own, which its clones join, instead of QEMU's user network.
    #[serde(default)]
    pub network: Option<NetworkRequest>,
    /// What its guest reaches of this host's loopback and link-local addresses by QEMU's user network; nothing by default.
    #[serde(default, skip_serializing_if = "HostAccess::is_none")]
    pub allow_host: HostAccess,
    /// Start it although the host has too little memory for it. The kernel may then end machines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
    /// What it may take of the host.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// What a machine's QEMU may take of its host, however much of it is idle. Its clones have the same limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processor time, in thousandths of a core: 1500 is one and a half cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u32>,
    /// Memory of its QEMU process: what the guest has touched, and QEMU's own. A machine that takes more is ended by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
}

impl Limits {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }
}

/// Body of `POST /v1/machines/{name}/limits`: what is absent stays as it is, 0 takes a limit away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    /// As in [`Limits::cpu_millicores`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u32>,
    /// As in [`Limits::memory_max_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
}

/// Least processor time of a machine, thousandths of a core: the kernel's own least.
pub const CPU_MILLICORES_MIN: u32 = 10;
/// Most, thousandths of a core: more cores than a host has.
pub const CPU_MILLICORES_MAX: u32 = 10_000_000;
/// Least memory of a machine's QEMU: its own, without a guest's.
pub const MEMORY_MAX_BYTES_MIN: u64 = 64 << 20;

/// What a guest reaches of the host's loopback addresses (10.0.2.2 and fec0::2 to the guest), of link-local addresses, and of the
/// metadata service of the host's cloud. Clones on the same host keep what their parent has; images hold nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostAccess {
    /// Nothing.
    #[default]
    None,
    /// All ports.
    All,
    /// These TCP and UDP ports, at most 64.
    Ports(Vec<u16>),
}

impl HostAccess {
    /// Whether it is nothing.
    pub fn is_none(&self) -> bool {
        *self == HostAccess::None
    }
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
    /// Of a clone: the fork that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned: Option<Cloned>,
    /// Its place in its family's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkInfo>,
    /// What its guest reaches of this host.
    #[serde(default, skip_serializing_if = "HostAccess::is_none")]
    pub allow_host: HostAccess,
    /// What it may take of the host.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// States of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MachineStatus {
    /// Being made.
    Starting,
    /// Its CPUs run.
    Running,
    /// Its CPUs stand still until what they need next has arrived.
    Buffering,
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
    /// Processor time that its QEMU has taken, microseconds; 0 without a control group.
    #[serde(default)]
    pub cpu_us: u64,
    /// Memory that its QEMU has; 0 without a control group. Pages that clones share count for the first that touched them.
    #[serde(default)]
    pub memory_bytes: u64,
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
    /// File with what the guest wrote last, at most 4 MiB; what it wrote before that is in the file with `.1` appended.
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
    /// As in [`RunRequest::overcommit`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
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

//! Machines: the requests and answers about them.

use super::*;

/// The sign of life for which `run` and `start` wait once the machine's CPUs run. The machine exists by then, and stays if the wait ends
/// without a sign or the client hangs up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The first new byte on the console.
    Console,
    /// floe's agent in the guest answers.
    Agent,
    /// A forwarded port answers: that of `wait_port`, or else the first one.
    Port,
    /// Nothing else: it is enough that the machine's CPUs run.
    #[default]
    None,
}

/// Body of `POST /v1/machines` (run).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// A local image, or the address of one (hub, static server, bucket, directory).
    pub image: String,
    /// More addresses of the same image. All are read from at the same time; what one fails to deliver is requested
    /// from the others.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The machine's name; by default derived from the image's.
    #[serde(default)]
    pub name: Option<String>,
    /// RAM in bytes; by default what the image says.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Virtual CPUs; by default what the image says.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Ports of the host that are forwarded to the guest.
    #[serde(default)]
    pub forwards: Vec<PortForward>,
    /// What to wait for.
    #[serde(default)]
    pub wait: Wait,
    /// With [`Wait::Port`]: the guest's port that is to answer, one of those that are forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_port: Option<u16>,
    /// Longest wait in seconds; by default [`WAIT_TIMEOUT_S_DEFAULT`].
    #[serde(default)]
    pub wait_timeout_s: Option<u64>,
    /// Kernel command line to use instead of the image's (cold boots only).
    #[serde(default)]
    pub cmdline: Option<String>,
    /// Boot from the disks even if the image has a running state.
    #[serde(default)]
    pub cold: bool,
    /// Token for the first of the image and the sources that is on a hub; no other server gets it.
    #[serde(default)]
    pub token: Option<String>,
    /// Tokens for hubs among the image and the sources, by address (`https://hub.example`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
    /// PEM file with the certificate authorities of all places that `cas` does not name.
    #[serde(default)]
    pub ca: Option<String>,
    /// PEM files with certificate authorities by the address that each is for (`https://hub.example`): absolute paths on the node's
    /// host. Each address must be one of image and sources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cas: BTreeMap<String, String>,
    /// Neither keep nor send a trace of what the machine touches.
    #[serde(default)]
    pub no_trace: bool,
    /// By which rule the image is fetched ahead of what the machine touches.
    #[serde(default, skip_serializing_if = "Prefetch::is_usual")]
    pub prefetch: Prefetch,
    /// Put the machine into a network of its own, which its clones join, instead of QEMU's user network.
    #[serde(default)]
    pub network: Option<NetworkRequest>,
    /// Which of this host's loopback and link-local addresses the guest can reach over QEMU's user network; by default
    /// none.
    #[serde(default, skip_serializing_if = "HostAccess::is_none")]
    pub allow_host: HostAccess,
    /// Start the machine even if the host has too little memory for it. The kernel may then kill machines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
    /// How much of the host's resources it may use.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// Remove it with its disks once it has ended; not together with `restart`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// When it is started again once it has ended.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_no")]
    pub restart: RestartPolicy,
    /// Park it after so many seconds in which nobody has used it and it has done next to nothing,
    /// [`PARK_AFTER_S_MIN`] to [`PARK_AFTER_S_MAX`]; by default never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub park_after_s: Option<u64>,
    /// Never ask its guest by itself to give back what it deletes; a user still can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_trim: bool,
    /// Its hardware (cold boots only).
    #[serde(default, skip_serializing_if = "Hardware::is_none")]
    pub hardware: Hardware,
    /// A CD-ROM image (ISO 9660) on the node's host, absolute path; the machine gets a copy of its own (cold boots only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<String>,
    /// What it tries to boot first; by default its disks (cold boots only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootFirst>,
    /// What cloud-init in the guest is to set up (cold boots only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedRequest>,
    /// Bring all of its image to this host in the background, so that it needs nothing from elsewhere any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independent: Option<Independent>,
    /// Whether it takes part in its image's swarm; by default as the node's other machines do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarm: Option<crate::SwarmUse>,
    /// Where the list of that swarm's nodes comes from. Unless that is the hub, [`RunRequest::swarm`] is `on` by default.
    #[serde(default, skip_serializing_if = "crate::SwarmMembers::is_hub")]
    pub swarm_members: crate::SwarmMembers,
    /// Load the image's device state whoever made it. QEMU trusts what is in it; a node that does not run as root, whose machines have
    /// no users of their own, refuses somebody else's unless this is set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
    /// Give it an identity of its own: a host name (the machine's name), a machine id, a network address and host keys that no other
    /// machine has. For captured machines in which floe's agent ran; it has no network until the agent has done that. Without this it keeps
    /// the identity that it was captured with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_identity: bool,
}

/// By which rule an image is fetched ahead of what its machines touch, once there is a model of earlier runs. Machines of one image on a
/// host share the rule: that of the one that was started last.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// floe's own: what is likely to be needed soon, with short pauses.
    #[default]
    Floe,
    /// vTube's, as published: what followed in earlier runs within a quarter of an hour, with pauses until the link can keep up with all of
    /// that.
    Vtube,
}

impl Prefetch {
    /// Returns whether it is the one that is followed if nobody says anything.
    pub fn is_usual(&self) -> bool {
        *self == Prefetch::default()
    }
}

/// How much of its host a machine may use, even if more is idle. The machine shares these limits with the clones that its guest makes, and
/// with those that these clones' guests make. A clone that a user makes ([`ForkRequest`]) gets limits of its own, as large, and shares them
/// in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processor time, in thousandths of a core: 1500 is one and a half cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u32>,
    /// Memory of the QEMU processes that share the limit, in bytes: what the guests have touched, and QEMU's own. If they use more, the
    /// kernel kills one of the machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
    /// Its share of the host's disk against those of other machines that want something: [`IO_WEIGHT_MIN`] to
    /// [`IO_WEIGHT_MAX`]; by default [`IO_WEIGHT_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u32>,
    /// The part of the host's disk, in percent, beyond which its requests wait until nobody else has any: 1 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_cap_percent: Option<u32>,
    /// How long its guest's requests wait for what no source gives, in seconds, 1 to [`IO_TIMEOUT_S_MAX`], before they fail: at a disk the
    /// guest gets an I/O error, at its memory the machine ends. What a source denies, or says that it does not have, fails when that is
    /// believed, after 90 s at most. By default as the node was started: for ever, unless it was told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_timeout_s: Option<u32>,
    /// How many clones that its guest and its clones' guests have made may exist at a time, at most [`CLONES_MAX`]; by default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<u32>,
}

impl Limits {
    /// Returns whether there is no limit at all.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns whether any of the limits is set that the kernel enforces on the QEMU process.
    pub fn bind_process(&self) -> bool {
        self.cpu_millicores.is_some() || self.memory_max_bytes.is_some()
    }
}

/// Body of `POST /v1/machines/{name}/limits`. A limit that is absent stays as it is; 0 removes it. All limits but `park_after_s` and `trim`
/// change for all machines that share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    /// As in [`Limits::cpu_millicores`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u32>,
    /// As in [`Limits::memory_max_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
    /// As in [`Limits::io_weight`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u32>,
    /// As in [`Limits::io_cap_percent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_cap_percent: Option<u32>,
    /// As in [`Limits::io_timeout_s`]; holds for requests that wait already, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_timeout_s: Option<u32>,
    /// As in [`Limits::clones`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<u32>,
    /// As in [`RunRequest::park_after_s`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub park_after_s: Option<u64>,
    /// Whether its guest is asked by itself to give back what it deletes, as the guests of new machines are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<bool>,
}

/// Shortest time of idleness after which a machine can be parked, in seconds.
pub const PARK_AFTER_S_MIN: u64 = 2;
/// Longest one, in seconds.
pub const PARK_AFTER_S_MAX: u64 = 30 * 86_400;

/// Smallest limit of processor time, in thousandths of a core: the kernel's own minimum.
pub const CPU_MILLICORES_MIN: u32 = 10;
/// Largest limit of processor time, in thousandths of a core: more cores than any host has.
pub const CPU_MILLICORES_MAX: u32 = 10_000_000;
/// Smallest memory limit of a machine's QEMU, in bytes: what QEMU itself needs, without the guest.
pub const MEMORY_MAX_BYTES_MIN: u64 = 64 << 20;

/// What a guest can reach of the host's loopback addresses (10.0.2.2 and fec0::2 to the guest), of link-local addresses,
/// and of the metadata service of the host's cloud. Clones on the same host inherit it; images do not record it.
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
    /// Returns whether nothing can be reached.
    pub fn is_none(&self) -> bool {
        *self == HostAccess::None
    }
}

/// Default time in seconds that `run` and `start` wait for a sign of life, if they are to: a cold boot without KVM takes half a minute.
pub const WAIT_TIMEOUT_S_DEFAULT: u64 = 120;

/// Answer of `GET /v1/machines`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineList {
    /// The machines, sorted by name.
    pub machines: Vec<MachineInfo>,
}

/// One machine (`GET /v1/machines/{name}`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineInfo {
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: MachineStatus,
    /// Reason for its state, where that isn't obvious (disk full, guest was reset and started cold, ...).
    #[serde(default)]
    pub detail: String,
    /// Image id.
    pub image: String,
    /// The image as the user named it.
    pub image_name: String,
    /// Whether it was restored from a running state, not booted.
    pub restored: bool,
    /// Process id of its QEMU.
    pub pid: Option<u32>,
    /// RAM in bytes that its guest has.
    pub memory_bytes: u64,
    /// How many of these bytes its guest is not known to use: when it boots, its kernel may leave memory offline that was added to the
    /// machine, until floe's agent brings it online.
    #[serde(default)]
    pub memory_unused_bytes: u64,
    /// The most RAM in bytes that it can be given while it runs; 0 from a node that does not say.
    #[serde(default)]
    pub memory_bytes_max: u64,
    /// Virtual CPUs that its guest has.
    pub cpus: u32,
    /// The most virtual CPUs that it can be given while it runs; 0 from a node that does not say.
    #[serde(default)]
    pub cpus_max: u32,
    /// Network cards that it was given while it ran: `nic1`, `nic2` ...
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<String>,
    /// The disks that it was given, by the names that its user gave them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// Ports of the host that are forwarded to the guest.
    pub forwards: Vec<PortForward>,
    /// When it was made, Unix time in seconds.
    pub created_unix_s: u64,
    /// Addresses from which its missing chunks are fetched.
    pub sources: Vec<String>,
    /// Statistics of its mount.
    #[serde(default)]
    pub stats: MachineStats,
    /// Its origin, if it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned: Option<Cloned>,
    /// Its addresses in its family's network, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkInfo>,
    /// Which of this host's loopback and link-local addresses its guest can reach.
    #[serde(default, skip_serializing_if = "HostAccess::is_none")]
    pub allow_host: HostAccess,
    /// How much of the host's resources it may use, with those that share its limits.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// After how many seconds of idleness it is parked, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub park_after_s: Option<u64>,
    /// Whether its guest is never asked by itself to give back what it deletes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_trim: bool,
    /// Why its CPUs stand still; it goes on once none of these is left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_for: Vec<PauseReason>,
    /// Whether it was switched off at its last stop, because its guest did not power down in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub switched_off: bool,
    /// Whether it is removed with its disks once it has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// When it is started again once it has ended.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_no")]
    pub restart: RestartPolicy,
    /// How often in a row it has ended soon and was, or is about to be, started again.
    #[serde(default)]
    pub restarts: u32,
    /// How far its image is brought to this host, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independence: Option<Independence>,
    /// Its part in an ensemble, if it was activated as one of its machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<InEnsemble>,
    /// How it stands between this node and another, if it is not this node's to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<MachineMove>,
}

/// Why the CPUs of a machine that should run stand still. It goes on once no reason is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// Its user paused it.
    User,
    /// What it needs next has not arrived yet.
    Buffering,
    /// It is a clone and its parent's node does not answer.
    Orphaned,
    /// Its state is being taken, for a capture or a fork.
    Capture,
    /// A disk could not take what it wrote, most often because the host's disk is full.
    Disk,
    /// The source of its image does not send a page of its memory that it has touched.
    Source,
}

impl std::fmt::Display for PauseReason {
    /// Writes the reason as a clause that "because" can stand before.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            PauseReason::User => "its user paused it",
            PauseReason::Buffering => "what it needs next has not arrived yet",
            PauseReason::Orphaned => "its parent's node does not answer",
            PauseReason::Capture => "its state is being captured or forked",
            PauseReason::Disk => "a disk can't be written",
            PauseReason::Source => "its source does not send a page of its memory",
        })
    }
}

/// States of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MachineStatus {
    /// It is being made or started.
    Starting,
    /// Its CPUs run.
    Running,
    /// Its CPUs are paused until what they need next has arrived.
    Buffering,
    /// Its CPUs are paused: by its user, because of an I/O error, for a capture, or because it needs another node.
    Paused,
    /// It has no QEMU; its disks are kept.
    Stopped,
    /// It has no QEMU; its disks and its memory are stored, and it goes on when it is woken.
    Parked,
    /// Its QEMU ended with an error.
    Failed,
}

/// Statistics of a machine, mostly counted by its mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineStats {
    /// Requests that had to wait for a source.
    pub misses: u64,
    /// All requests.
    pub requests: u64,
    /// Time spent waiting for sources, in milliseconds.
    pub wait_ms: f64,
    /// Bytes received from the sources of its image, as transferred.
    pub wire_bytes: u64,
    /// Bytes on its disks that differ from the image.
    pub overlay_bytes: u64,
    /// Processor time that its QEMU has used, in microseconds; 0 without a control group.
    #[serde(default)]
    pub cpu_us: u64,
    /// Memory of its QEMU in bytes; 0 without a control group. A page that clones share counts for the clone that
    /// touched it first.
    #[serde(default)]
    pub memory_bytes: u64,
}

/// Query of `GET /v1/machines/{name}/logs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Continue with what the guest writes, until the client disconnects.
    #[serde(default)]
    pub follow: bool,
    /// Return only this many bytes from the end.
    #[serde(default)]
    pub tail_bytes: Option<u64>,
}

/// Answer of `GET /v1/machines/{name}/console`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleInfo {
    /// Unix socket of the serial console; one client at a time.
    pub socket: String,
    /// File with the last output of the guest, at most 4 MiB; earlier output is in the file with `.1` appended.
    pub log: String,
    /// Unix socket at which VNC clients of the node's user reach the screen. It is the node's own, which counts keys and buttons that are
    /// pressed and passes everything on to QEMU; if the node has none, it is QEMU's.
    pub vnc: Option<String>,
    /// Id of the process that listens at the console's socket; absent if the machine does not run. The socket is in a directory of the user
    /// that this process runs as, so a client compares: if the peer's credentials of its connection name another process, it speaks with
    /// somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Where the guest shows itself; absent as long as it shows nothing, and if it is not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub face: Option<Face>,
}

/// Where a guest shows itself. It is the console if that has said something while the screen has nothing but what firmware and
/// boot loaders write, or nothing at all; otherwise the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Face {
    /// The screen.
    Screen,
    /// The serial console.
    Console,
}

/// Body of `POST /v1/machines/{name}/capture`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// `name` or `name:tag` of the new image.
    #[serde(default)]
    pub name: Option<String>,
    /// End the machine instead of letting it continue.
    #[serde(default)]
    pub stop: bool,
    /// For how many seconds an isolated copy runs, to learn what a resumed machine touches first; by default
    /// [`REHEARSE_S_DEFAULT`], 0 for no rehearsal.
    #[serde(default)]
    pub rehearse_s: Option<u32>,
    /// How many seconds the guest's hooks may take before its state is taken; by default [`HOOKS_S_DEFAULT`], 0 for no hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_s: Option<u32>,
    /// Free text by key.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Default length of a capture's rehearsal in seconds: a resumed guest answers its first user within that, even
/// emulated.
pub const REHEARSE_S_DEFAULT: u32 = 4;
/// The longest rehearsal, seconds.
pub const REHEARSE_S_MAX: u32 = 600;
/// How many seconds a guest's hooks may take by default, all of them together, before its machine is captured, forked or parked.
pub const HOOKS_S_DEFAULT: u32 = 10;
/// The longest that they may take, seconds.
pub const HOOKS_S_MAX: u32 = 600;

/// Body of `POST /v1/machines/{name}/stop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// End the machine without asking the guest to power down.
    #[serde(default)]
    pub now: bool,
    /// Seconds that the guest has to power down; by default [`STOP_TIMEOUT_S_DEFAULT`]. After that QEMU is ended.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// Default time that a guest gets to power down, in seconds (systemd gives a stopping service 90, few need 30).
pub const STOP_TIMEOUT_S_DEFAULT: u64 = 30;

/// Body of `POST /v1/machines/{name}/start`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// What to wait for.
    #[serde(default)]
    pub wait: Wait,
    /// With [`Wait::Port`]: the guest's port that is to answer, one of those that are forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_port: Option<u16>,
    /// Longest wait in seconds; by default [`WAIT_TIMEOUT_S_DEFAULT`].
    #[serde(default)]
    pub wait_timeout_s: Option<u64>,
    /// As in [`RunRequest::overcommit`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
}

/// Answer of `GET /v1/machines/{name}/disks`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    /// The machine's disks, by name.
    pub disks: Vec<DiskInfo>,
}

/// A disk of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskInfo {
    /// Its name: `disk0`, `disk1` ...
    pub name: String,
    /// Its size in bytes, as the guest sees it.
    pub bytes: u64,
    /// What its user calls it, if it was given to the machine under a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Id of the image that the machine's disks stand on.
    pub image: String,
    /// How it is connected; absent if it is none of the machine's numbered disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<crate::DiskModel>,
}

/// Body of `POST /v1/machines/{name}/disks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// The disk's name, or what its user calls it.
    pub disk: String,
    /// Its new size in bytes, a multiple of 4096 and not smaller than before. The guest of a machine that runs is told of it.
    pub bytes: u64,
}

/// Body of `POST /v1/machines/{name}/rename`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name.
    pub name: String,
}

/// Query of `DELETE /v1/machines/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveMachineQuery {
    /// End the machine first if it runs.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/machines/{name}/forwards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardRequest {
    /// The ports; host port 0 chooses a free one.
    pub forward: PortForward,
    /// Remove this forward instead of adding it.
    #[serde(default)]
    pub remove: bool,
}

//! Watching a node and its machines: its events, waiting for a machine, and what machines use.

use super::*;

/// Query of `GET /v1/events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Begin with what has happened since then (Unix time in milliseconds), as far as the node still knows: its last thousand
    /// events. Without it only what happens from now on is told.
    #[serde(default)]
    pub since_unix_ms: Option<u64>,
    /// Return what has happened and end, instead of waiting for more. Without a time that is all that the node still knows.
    #[serde(default)]
    pub once: bool,
}

/// Query of `GET /v1/doctor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DoctorQuery {
    /// Says which states a QEMU of this version, such as `10.0`, could not load, instead of the one that is there.
    #[serde(default)]
    pub qemu: Option<String>,
}

/// The name of the check that says which states the host's QEMU can load.
pub const STATES_CHECK: &str = "states";

/// Whether this is a version of QEMU: two or three numbers, such as 10.0 or 7.2.22.
pub fn is_qemu_version(text: &str) -> bool {
    let number =
        |part: &str| (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    (2..=3).contains(&text.split('.').count()) && text.split('.').all(number)
}

/// Query of `POST /v1/machines/{name}/park`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ParkQuery {
    /// If the memory of a fork that the machine was a clone or the parent of is not stored yet, it is stored at once and the machine parked
    /// then. Without this such a machine is refused.
    #[serde(default)]
    pub wait: bool,
    /// How many seconds the guest's hooks may take before its state is taken; by default [`HOOKS_S_DEFAULT`], 0 for no hooks.
    #[serde(default)]
    pub hooks_s: Option<u32>,
}

/// What a caller waits for a machine to do.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// It has no QEMU: it has ended, was stopped or was removed.
    #[default]
    Stopped,
    /// Its CPUs run, but for moments in which floe itself makes it stand still: to buffer, or for a capture.
    Running,
    /// It stands still until somebody does something: its user paused it, a disk can't be written, or its parent's node does not answer.
    Paused,
    /// floe's agent in its guest answers.
    Answers,
    /// It is parked.
    Parked,
}

/// Query of `GET /v1/machines/{name}/wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// What to wait for; by default until the machine has stopped.
    #[serde(default)]
    #[param(inline)]
    pub what: WaitFor,
    /// Longest wait in seconds; without it there is no limit.
    #[serde(default)]
    pub timeout_s: Option<u64>,
}

/// Body of `POST /v1/machines/{name}/restart`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// How it is stopped.
    #[serde(default)]
    pub stop: StopRequest,
    /// How it is started after that.
    #[serde(default)]
    pub start: StartRequest,
}

/// Body of `POST /v1/machines/{name}/rollback`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// An image of this node that was captured from the machine.
    pub image: String,
    /// Capture the machine, which must run, under this name before it goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
    /// How it goes on there.
    #[serde(default)]
    pub start: StartRequest,
}

/// Query of `GET /v1/usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// Ask floe's agent in each guest what its cards have received and sent, which starts a program there.
    #[serde(default)]
    pub network: bool,
}

/// What the cards of a guest have received and sent, as the guest's kernel counts it since they came up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CardTraffic {
    /// Bytes that came in; absent if that is not known.
    pub received_bytes: Option<u64>,
    /// Bytes that went out; absent if that is not known.
    pub sent_bytes: Option<u64>,
    /// Why it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// Answer of `GET /v1/usage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageList {
    /// When it was counted, Unix time in microseconds.
    pub at_unix_us: u64,
    /// The machines that have a QEMU, sorted by name.
    pub machines: Vec<MachineUsage>,
}

/// What a running machine has used of its host. The sums count from the start of its QEMU, or from when this node took it over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineUsage {
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: MachineStatus,
    /// Process id of its QEMU.
    pub pid: u32,
    /// RAM of its guest in bytes.
    pub ram_bytes: u64,
    /// Processor time of its QEMU, in microseconds.
    pub cpu_us: u64,
    /// Memory of its QEMU that nobody else uses, in bytes; absent if the kernel doesn't tell.
    pub own_bytes: Option<u64>,
    /// Memory that it shares with others, such as clones of the same image, in bytes; absent if the kernel doesn't tell.
    pub shared_bytes: Option<u64>,
    /// Bytes that its guest has read from its disks.
    pub disk_read_bytes: u64,
    /// Bytes that its guest has written to its disks.
    pub disk_write_bytes: u64,
    /// Bytes that came from the sources of its image, as transferred.
    pub fetched_bytes: u64,
    /// The traffic of its guest's cards, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<CardTraffic>,
}

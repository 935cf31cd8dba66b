//! Forks: the requests and answers about them.

use super::*;
use std::net::SocketAddrV4;

/// Body of `POST /v1/machines/{name}/fork`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// How many clones, at most [`CLONES_MAX`].
    pub clones: u32,
    /// Where the clones are to run: members of this node's cluster, by name or `https://ADDRESS:PORT`, or `here` for this
    /// node. With `insecure` also addresses of nodes' pages. If empty, they run here.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Allow hosts that are named by the address of a page to be asked, and to read the machine's memory, in clear
    /// text.
    #[serde(default)]
    pub insecure: bool,
    /// Token of those pages; by default that of this node's page.
    #[serde(default)]
    pub hosts_token: Option<String>,
    /// Other nodes also fetch what their clones have not touched, until they no longer need this node. This node
    /// stores the fork at once.
    #[serde(default)]
    pub settle: bool,
    /// Whether other nodes receive by multicast what any of them fetches.
    #[serde(default)]
    pub multicast: MulticastUse,
    /// Which placement decides how many clones each host takes: `simple`, `slurm`, or one of the operator's plug-ins. By
    /// default each host takes as many as it has room for. With a placement, empty `hosts` means all known hosts.
    #[serde(default)]
    pub placement: Option<String>,
    /// Start the clones of this host even if it has too little memory for them, as in [`RunRequest::overcommit`]. Other
    /// hosts decide for themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
    /// How many seconds the guest's hooks may take before its state is taken; by default [`HOOKS_S_DEFAULT`], 0 for no hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_s: Option<u32>,
    /// Each clone is removed with its disks so many seconds after the fork, whatever it does then, 1 to [`FORK_TTL_S_MAX`]; by default
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
}

/// Longest time to live of clones, in seconds: a year.
pub const FORK_TTL_S_MAX: u64 = 365 * 86_400;

/// Whether clones' nodes read their parent's state by multicast.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum MulticastUse {
    /// By multicast if there are at least two other hosts; what does not arrive that way is read by unicast.
    #[default]
    Auto,
    /// By unicast only.
    Off,
}

/// A multicast group of a fork, which another node may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MulticastGroup {
    /// Where requests are sent: an address and a UDP port of the parent's node.
    #[schema(value_type = String)]
    pub server: SocketAddrV4,
    /// Where answers arrive: the group's address and UDP port. The fork's token encrypts both directions.
    #[schema(value_type = String)]
    pub group: SocketAddrV4,
}

/// A host that forks can name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostInfo {
    /// The host's name.
    pub name: String,
    /// Address of its page, or `here`.
    pub address: String,
    /// Room for clones; absent if the host does not answer or takes no clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// Why there is no room.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Answer of `GET /v1/hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostList {
    /// The hosts in the order in which they are listed.
    pub hosts: Vec<HostInfo>,
}

/// Most hosts that one fork can use.
pub const FORK_HOSTS_MAX: usize = 256;
/// The text of [`Family::detail`] for a clone on another host that no longer exists.
pub const CLONE_ENDED: &str = "it has ended";
/// The name of this node among the hosts of a fork.
pub const HERE: &str = "here";

/// Body of `POST /v1/clones`: what another node requests for one clone that is to run here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneRequest {
    /// The clone's name.
    pub name: String,
    /// The fork's id.
    pub fork: String,
    /// The machine or image that was forked.
    pub parent: String,
    /// The clone's number in the fork, from 1.
    pub number: u32,
    /// Id of the image that the clone starts from.
    pub image: String,
    /// Address of the node that serves this image.
    pub source: String,
    /// Token that gives access to the image there.
    pub token: String,
    /// Whether to fetch what the clone has not touched, too.
    #[serde(default)]
    pub settle: bool,
    /// The multicast group that carries the parent's state, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// How to join the family's network, if the family has one.
    #[serde(default)]
    pub network: Option<NetworkOrder>,
    /// The clone's resource limits: those of its parent, or its part of them if its parent's guest made it.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// If its parent's guest made it: the id of the household, the machines that share these limits. Those of a household on one host share
    /// one part of that host's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub household: Option<String>,
    /// In how many seconds the clone is to be removed; hosts' clocks may differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
}

/// Answer of `GET /v1/clones/room`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// How many more clones fit on this node.
    pub clones: u32,
    /// Cores that are not promised to any machine.
    #[serde(default)]
    pub free_cpus: u32,
    /// Memory that is not promised to any machine, in bytes.
    #[serde(default)]
    pub free_memory_bytes: u64,
}

/// Most clones of one fork.
pub const CLONES_MAX: u32 = 1024;

/// The state of one clone of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CloneState {
    /// Its CPUs execute.
    Running,
    /// It could not be started.
    Failed,
    /// There was no room for it.
    NotGranted,
}

/// What became of one clone of a fork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloneInfo {
    /// Its number in the fork, from 1; 0 is the parent.
    pub number: u32,
    /// Its machine's name.
    pub name: String,
    /// The host that it runs on; absent if it is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its state.
    pub state: CloneState,
    /// Why it does not run; empty if it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Its address in its family's network, with the network's prefix length; absent if it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Milliseconds from the request until its CPUs executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<f64>,
    /// When it is removed, Unix time in seconds; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
}

/// The result of a fork.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkReport {
    /// The fork's id.
    pub id: String,
    /// The machine or image that was forked.
    pub parent: String,
    /// The image that the clones started from.
    pub image: String,
    /// Number of clones that were requested.
    pub asked: u32,
    /// Number of clones that there was room for.
    pub granted: u32,
    /// Number of clones that execute.
    pub running: u32,
    /// The allocation that a placement granted (`slurm 17`); it is held until the clones have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// Bytes that a node has to receive before its first clone executes.
    pub descriptor_bytes: u64,
    /// Number of 4 KiB chunks of memory that the parent had written since its own start.
    pub dirty_chunks: u64,
    /// The multicast group from which other nodes read, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// All clones that were requested, by number.
    pub clones: Vec<CloneInfo>,
}

/// A machine and its clones (`GET /v1/machines/{name}/family`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Family {
    /// The machine or image.
    pub name: String,
    /// Id of the fork that made this machine, if it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// Its number in that fork, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// The host that it runs on; absent if it is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its state; absent if it is an image, if it is being removed, or if its host does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<MachineStatus>,
    /// Whether it no longer needs its parent's node.
    pub settled: bool,
    /// The reason for its state, where it isn't obvious.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Its address in its family's network, with the network's prefix length; absent if it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The ports of its host that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<PortForward>,
    /// When it is removed with its disks, Unix time in seconds; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
    /// Its clones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub clones: Vec<Family>,
    /// The clones of its last fork that could not be started, each with the reason, as the fork's own answer has them. Only the node that made
    /// the fork knows them, until the next fork.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<CloneInfo>,
}

/// Body of `POST /v1/machines/{name}/kill`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KillRequest {
    /// End all clones of the machine, and the clones of those, but not the machine itself. Otherwise only the named machine
    /// is ended, which must be a clone.
    #[serde(default)]
    pub all: bool,
}

/// Answer of `POST /v1/machines/{name}/kill`: which clones were ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KillReport {
    /// Names of the clones that were ended; their disks are removed.
    pub ended: Vec<String>,
    /// Clones that could not be ended, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// Whether a clone's guest has taken an identity of its own: number, addresses, names, the time, and random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// No agent (floe-guest) runs in the guest, so it keeps its parent's identity.
    #[default]
    Foreign,
    /// The agent has not confirmed the identity yet. The clone's network is down.
    Pending,
    /// The guest has its identity, and its network is up.
    Placed,
}

impl Identity {
    /// Returns whether no agent runs in the guest.
    pub fn is_foreign(&self) -> bool {
        *self == Identity::Foreign
    }
}

/// The origin of a machine that is a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cloned {
    /// The fork's id.
    pub fork: String,
    /// Its parent's name on its parent's node.
    pub parent: String,
    /// Its number in the fork, from 1.
    pub number: u32,
    /// Whether it no longer needs its parent's node.
    pub settled: bool,
    /// Whether its guest has taken its own identity.
    #[serde(default)]
    pub identity: Identity,
    /// When it is removed with its disks, Unix time in seconds; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
}

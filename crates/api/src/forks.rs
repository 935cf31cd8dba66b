//! Forks: what is asked and told of them.

use super::*;
use std::net::SocketAddrV4;

/// Body of `POST /v1/machines/{name}/fork`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// How many clones, at most [`CLONES_MAX`].
    pub clones: u32,
    /// Where they are to run: members of this node's cluster, by name or `https://ADDRESS:PORT`, or `here` for this node. With
    /// `insecure` also addresses of nodes' pages. Empty: here.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Let hosts be asked, and read the machine's memory, in clear text: those that are named by the address of a page.
    #[serde(default)]
    pub insecure: bool,
    /// Token of those pages; that of this node's page by default.
    #[serde(default)]
    pub hosts_token: Option<String>,
    /// Other nodes pull what their clones have not touched, so that this one may go, and this one stores the fork at once.
    #[serde(default)]
    pub settle: bool,
    /// Whether other nodes get by multicast what any of them touches.
    #[serde(default)]
    pub multicast: MulticastUse,
    /// Who says which of the hosts take how many: `simple`, `slurm`, or a plug-in of the operator's. By default each host
    /// takes as many as it has room for. Without `hosts` all known hosts are meant.
    #[serde(default)]
    pub placement: Option<String>,
    /// Start the clones of this host although it has too little memory for them, as in [`RunRequest::overcommit`]. Other hosts decide
    /// for themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
}

/// Whether clones' nodes read their parent's state by multicast.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum MulticastUse {
    /// If there are two other hosts or more; by unicast what does not come.
    #[default]
    Auto,
    /// By unicast only.
    Off,
}

/// A multicast group of a fork, which another node may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MulticastGroup {
    /// Where requests go: an address and a UDP port of the parent's node.
    #[schema(value_type = String)]
    pub server: SocketAddrV4,
    /// Where answers come: the group's address and UDP port. The fork's token seals both.
    #[schema(value_type = String)]
    pub group: SocketAddrV4,
}

/// A host that is known by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostInfo {
    /// Its name.
    pub name: String,
    /// Address of its page, or `here`.
    pub address: String,
    /// Its room; none if it does not answer or takes no clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// Why it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Answer of `GET /v1/hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostList {
    /// As they are listed.
    pub hosts: Vec<HostInfo>,
}

/// Most hosts of one fork.
pub const FORK_HOSTS_MAX: usize = 256;
/// What [`Family::detail`] says of a clone on another host that is not there any more.
pub const CLONE_ENDED: &str = "it has ended";
/// This node among the hosts of a fork.
pub const HERE: &str = "here";

/// Body of `POST /v1/clones`: what another node says of a clone that is to run here.
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
    /// The image that it starts from.
    pub image: String,
    /// Where that is.
    pub source: String,
    /// What opens it there.
    pub token: String,
    /// Pull what it has not touched.
    #[serde(default)]
    pub settle: bool,
    /// Where the parent's state comes by multicast, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// Its family's network.
    #[serde(default)]
    pub network: Option<NetworkOrder>,
    /// What it may take of its host: its parent's limits.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

/// Answer of `GET /v1/clones/room`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Room {
    /// For how many more clones this node has room.
    pub clones: u32,
    /// Cores that are promised to no machine.
    #[serde(default)]
    pub free_cpus: u32,
    /// Memory that is promised to no machine.
    #[serde(default)]
    pub free_memory_bytes: u64,
}

/// Most clones of one fork.
pub const CLONES_MAX: u32 = 1024;

/// How a clone of a fork is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CloneState {
    /// It executes.
    Running,
    /// It could not be started.
    Failed,
    /// There was no room for it.
    NotGranted,
}

/// What became of one clone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloneInfo {
    /// Its number in the fork, from 1; 0 is the parent.
    pub number: u32,
    /// Its machine's name.
    pub name: String,
    /// The host that it runs on; none is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How it is.
    pub state: CloneState,
    /// Why, if it does not run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// From the call to the moment in which it executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<f64>,
}

/// What a fork came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkReport {
    /// The fork's id.
    pub id: String,
    /// The machine or image that was forked.
    pub parent: String,
    /// The image that the clones started from.
    pub image: String,
    /// Clones that were asked for.
    pub asked: u32,
    /// Clones that there was room for.
    pub granted: u32,
    /// Clones that execute.
    pub running: u32,
    /// What was granted by whom (`slurm 17`), until the clones have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// Bytes that a node needs before its first clone executes.
    pub descriptor_bytes: u64,
    /// Chunks of memory that the parent had written since its own start.
    pub dirty_chunks: u64,
    /// The multicast group over which other nodes read, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// All clones that were asked for, by number.
    pub clones: Vec<CloneInfo>,
}

/// A machine and its clones (`GET /v1/machines/{name}/family`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Family {
    /// The machine or image.
    pub name: String,
    /// The fork that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// Its number in that fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// The host that it runs on; none is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How it is; none if it is no machine, or if its host does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<MachineStatus>,
    /// Whether it can do without its parent's node.
    pub settled: bool,
    /// Why, where that isn't obvious.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Its clones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub clones: Vec<Family>,
}

/// Body of `POST /v1/machines/{name}/kill`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KillRequest {
    /// All clones of the machine, and theirs, instead of the machine, which is a clone.
    #[serde(default)]
    pub all: bool,
}

/// Which clones were ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KillReport {
    /// Their names; they are gone, with their disks.
    pub ended: Vec<String>,
    /// Those that could not be ended, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// Whether a clone's guest knows who it is: its number, addresses, names, the time, and random numbers of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// Nobody in the guest was there to be told (no floe-guest): it goes on as its parent.
    #[default]
    Foreign,
    /// It is being told. Its network is down.
    Pending,
    /// It knows, and its network is up.
    Placed,
}

impl Identity {
    /// Whether nobody in the guest could be told who it is.
    pub fn is_foreign(&self) -> bool {
        *self == Identity::Foreign
    }
}

/// What a machine that is a clone says of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cloned {
    /// The fork's id.
    pub fork: String,
    /// Its parent, on its parent's node.
    pub parent: String,
    /// Its number in the fork, from 1.
    pub number: u32,
    /// Whether it can do without its parent's node.
    pub settled: bool,
    /// Whether its guest knows who it is.
    #[serde(default)]
    pub identity: Identity,
}

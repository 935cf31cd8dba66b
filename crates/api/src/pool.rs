//! Substrates: machines that stand still in memory, docked and activated again.

use super::*;

/// Most users of a restricted substrate.
pub const SUBSTRATE_USERS_MAX: usize = 64;
/// Longest name of such a user, in bytes.
pub const SUBSTRATE_USER_BYTES_MAX: usize = 64;

/// Who may see and activate a substrate, beside its owner and the node's own user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Nobody else. It keeps its identity: its host name, keys and addresses.
    #[default]
    Private,
    /// The users that are named.
    Restricted,
    /// Everybody who may use the node.
    Public,
}

/// Body of `POST /v1/machines/{name}/dock`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DockRequest {
    /// The substrate's name.
    pub name: String,
    /// Who may see it.
    #[serde(default)]
    pub visibility: Visibility,
    /// For a restricted one: names or numbers of users of this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Make the machine small first, and remove it once the substrate is durable. This needs an agent in its guest.
    #[serde(default)]
    pub convert: bool,
    /// For how many seconds an isolated copy runs, to learn what an activated machine touches first, which is then brought before it does;
    /// by default none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rehearse_s: Option<u32>,
}

/// What a substrate is made of. Chunks are counted where they were found first: a page of memory that its base image has is
/// counted there, one that a block of its own disks has too is counted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeOf {
    /// Bytes of the machine's memory.
    pub memory_bytes: u64,
    /// Bytes of memory that are free or zero: dropped.
    pub zero_bytes: u64,
    /// Bytes of memory that the base image has: a reference.
    pub base_bytes: u64,
    /// Bytes of memory that blocks of its own disks have, which the guest has in its page cache: a reference.
    pub disk_cache_bytes: u64,
    /// Bytes of memory that it has twice: a reference.
    pub twice_bytes: u64,
    /// Bytes of memory that are its own.
    pub own_memory_bytes: u64,
    /// Bytes of its disks that differ from its base image.
    pub own_disk_bytes: u64,
    /// Bytes of device state and graphics memory.
    pub device_bytes: u64,
    /// Bytes of the tables that say which chunk is where.
    pub table_bytes: u64,
    /// Bytes that its own part takes on the disk: new packs of the backup.
    pub backup_bytes: u64,
}

/// A substrate (`GET /v1/pool/substrates/{name}`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubstrateInfo {
    /// Its name.
    pub name: String,
    /// Who may see it.
    pub visibility: Visibility,
    /// The users who may see it if it is restricted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The number of the user who docked it.
    pub owner_uid: u32,
    /// When it was docked, Unix time in seconds.
    pub docked_unix_s: u64,
    /// When it was activated last, Unix time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_unix_s: Option<u64>,
    /// The machine that it was docked from.
    pub machine: String,
    /// vCPUs of that machine.
    pub cpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Id of the image that is its backup.
    pub image: String,
    /// Id of the image below it, whose chunks are not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// What it is made of.
    pub made_of: MadeOf,
    /// What its machines forget of the identity of the machine that was docked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<String>,
    /// Whether its own chunks are in memory. If not, it is activated from its backup on the disk.
    pub in_memory: bool,
    /// By how many bytes the pool's memory grew for it: what it has in common with others was there.
    pub pool_bytes: u64,
}

/// Answer of `GET /v1/pool/substrates`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubstrateList {
    /// By name.
    pub substrates: Vec<SubstrateInfo>,
}

/// Answer of `GET /v1/pool`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Most bytes of memory that substrates may take.
    pub budget_bytes: u64,
    /// Bytes that they take, lists included.
    pub used_bytes: u64,
    /// Bytes of compressed chunks and tables among them.
    pub compressed_bytes: u64,
    /// Bytes of those before compression, each counted once.
    pub raw_bytes: u64,
    /// Bytes of those before compression, each counted for each substrate that has it.
    pub referred_bytes: u64,
    /// Substrates that the caller may see. Their backups on the disk are complete.
    pub substrates: u64,
    /// Those of them that are in memory.
    pub in_memory: u64,
    /// Most bytes that this host has for substrates now, those included that they take. The rest is promised to machines or used by
    /// others. Absent if the host's memory is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bytes: Option<u64>,
    /// How many times a substrate has left memory since the node's start because a machine needed it.
    #[serde(default)]
    pub gave_way: u64,
    /// Whether substrates are being brought back into memory.
    pub warming: bool,
    /// How long that took after the node's start or after the last change of the budget, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_ms: Option<f64>,
}

/// Body of `POST /v1/pool/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolResizeRequest {
    /// Most bytes of memory that substrates may take from now on.
    pub budget_bytes: u64,
    /// Take this budget even if this host has less for it now. Substrates come into memory as it gets free.
    #[serde(default)]
    pub overcommit: bool,
}

/// Body of `POST /v1/pool/verify`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolVerifyRequest {
    /// Names of substrates; none means all.
    #[serde(default)]
    pub names: Vec<String>,
}

/// Body of `POST /v1/pool/substrates/{name}/export`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubstrateExportRequest {
    /// Where to: the address of a hub or a bucket, a directory, or a file `FILE.floe` (absolute path).
    pub to: String,
    /// Overwrite an existing file.
    #[serde(default)]
    pub force: bool,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/pool/import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubstrateImportRequest {
    /// The substrate's name here.
    pub name: String,
    /// Where from: the address of its image on a hub, in a bucket or in a directory, or the absolute path of a file.
    pub from: String,
    /// Who may see it here; by default those who might where it was docked. The user who imports it owns it.
    #[serde(default)]
    pub visibility: Option<Visibility>,
    /// For a restricted one: names or numbers of users of this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
    /// Whether the image's device state is loaded even if somebody else made it and this node's machines have no users of their own; see
    /// [`RunRequest::trust`](crate::RunRequest::trust).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
}

/// Body of `POST /v1/pool/substrates/{name}/activate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActivateRequest {
    /// How many machines, at most [`CLONES_MAX`](crate::CLONES_MAX); 0 counts as 1.
    #[serde(default)]
    pub machines: u32,
    /// Name of the machine, or the beginning of the names of several; by default that of the substrate.
    #[serde(default)]
    pub name: Option<String>,
    /// Where they are to run: members of this node's cluster, by name or `https://ADDRESS:PORT`, or `here` for this node. If empty,
    /// they run here. At most [`FORK_HOSTS_MAX`](crate::FORK_HOSTS_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Put them into a network of their own, together, instead of QEMU's user network: they see each other and nobody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRequest>,
    /// Start them even if this host has too little memory for them.
    #[serde(default)]
    pub overcommit: bool,
    /// How long to wait for the agents of their guests, in seconds; by default [`ACTIVATE_ANSWER_S_DEFAULT`], 0 for not at all.
    #[serde(default)]
    pub answer_s: Option<u64>,
    /// Keep all of their image on this host for them, also when the substrate goes; see [`RunRequest::independent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independent: Option<Independent>,
    /// How many virtual CPUs each is brought to once its guest answers; by default as many as the machine had that was docked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// How much RAM each is brought to once its guest answers, in bytes, whole MiB; by default as much as the machine had that was docked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The address of a pool on another host that has the substrate, such as `https://pool.example:4500`; by default it is this node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Token for that pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// File with the certificate authority of that pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Disks that each is given once its guest answers, of its own: at most [`ACTIVATE_DISKS_MAX`]. With `hosts` they are empty ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<NamedDisk>,
    /// With `pool`: whether the substrate's device state is loaded even if somebody else made it and this node's machines have no users of
    /// their own; see [`RunRequest::trust`](crate::RunRequest::trust).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust: bool,
}

/// Most disks that a machine is given at its activation.
pub const ACTIVATE_DISKS_MAX: usize = 16;

/// A disk that each of the machines is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedDisk {
    /// What its user calls it.
    pub name: String,
    /// What is on it.
    pub content: AttachDiskRequest,
}

/// Default time that guests get to answer after their activation, in seconds. They run before that.
pub const ACTIVATE_ANSWER_S_DEFAULT: u64 = 60;

/// Longest time that another node's machines get to answer, in seconds: a day.
pub const EXPAND_ANSWER_S_MAX: u64 = 86_400;

/// A machine that was activated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivatedInfo {
    /// Its name.
    pub name: String,
    /// The host that it runs on; absent if it is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Its address in the network of those that were activated with it, with the network's prefix length; absent if they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// From the request until its CPUs ran, in milliseconds.
    pub first_ms: f64,
    /// From the request until the agent in its guest answered and its network was there, in milliseconds. Absent if its guest has no
    /// agent, or did not answer in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
    /// From the request until it had the size that was asked for, in milliseconds. Absent if none was, or if it has not reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_ms: Option<f64>,
    /// The disks that it was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<AttachedDisk>,
    /// What it lacks of the size or disks that were asked for and why, or that its host no longer answers; with a way out. The machine
    /// runs nevertheless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short: Vec<ApiError>,
}

/// The result of an activation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActivateReport {
    /// The substrate.
    pub substrate: String,
    /// Whether it came from this node's memory; otherwise from its backup on the disk, or from a pool on another host.
    pub from_memory: bool,
    /// The pool on another host that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The machines that run.
    pub machines: Vec<ActivatedInfo>,
    /// Those that do not, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<CloneInfo>,
}

/// Body of `POST /v1/clones/expand`: what is to be done with machines that another node has activated here, once they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpandRequest {
    /// The id of the fork that they belong to; others are left alone.
    pub fork: String,
    /// Their names, at most [`CLONES_MAX`](crate::CLONES_MAX).
    pub machines: Vec<String>,
    /// How long to wait for the agents of their guests, in seconds, at most [`EXPAND_ANSWER_S_MAX`]; 0 for not at all.
    pub answer_s: u64,
    /// The size that each is brought to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeRequest>,
    /// Empty disks that each is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<NamedDisk>,
    /// Keep all of their image on that host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independent: Option<Independent>,
}

/// Answer of `POST /v1/clones/expand`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExpandReport {
    /// Those of the machines that exist. Their times count from the request.
    pub machines: Vec<ActivatedInfo>,
    /// How long the request took there, in milliseconds.
    pub took_ms: f64,
}

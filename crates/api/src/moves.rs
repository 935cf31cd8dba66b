//! Machines that move to another node of their cluster.

use super::*;

/// Body of `POST /v1/machines/{name}/move`. It names one of `to` and `here`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The member of the cluster on which the machine is to run: its name, or `https://ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Lets the machine go on on this node, although the node that it was given to does not say that it runs there, or the one that it
    /// comes from does not give it away. If that node has it run all the same, it runs on both until they hear of each other; then the one
    /// that is too late is stopped, and what it did is kept as an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub here: bool,
    /// Copies nothing ahead while the machine runs: it is less work for both nodes, and the machine stands still for longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub still: bool,
    /// Keeps what the machine was on this node for 36 hours, or until the node ends or its disk is full, so that less has to be sent when it
    /// comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
    /// How many seconds the guest's hooks may take before its state is taken; by default [`HOOKS_S_DEFAULT`], 0 for no hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_s: Option<u32>,
    /// Lends the machine: this node keeps what it was, the other one gives it back to no other node, and if that one is gone for good,
    /// `here` has it go on from what it was when it was lent or last synced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lend: bool,
    /// With `lend`: for how many seconds it runs there without a word of this node, from [`LEASE_S_MIN`] to [`LEASE_S_MAX`]. It is parked
    /// there then, and goes on once this node answers; and `here` waits so long before it has the machine go on, so that it never runs on
    /// both. By default it runs there however long this node is silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u64>,
    /// How many virtual CPUs it is to have there; by default as many as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// How much RAM it is to have there, in bytes, whole MiB; by default as much as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Shortest lease, in seconds.
pub const LEASE_S_MIN: u64 = 30;
/// Longest lease, in seconds: a week.
pub const LEASE_S_MAX: u64 = 7 * 24 * 3600;

/// Body of `POST /v1/machines/{name}/recall`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecallRequest {
    /// The member of the cluster that has the machine: its name, or `https://ADDRESS:PORT`. By default the one that it was lent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// If any are named: only these files and directories of its guest come back, by their whole paths, each with at most 64 MiB. What else
    /// the machine has become there is thrown away, and it goes on here from what it was when it was lent or last synced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<String>,
    /// The directory of the node's host into which they are written, by its whole path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into: Option<String>,
}

/// Shortest time between two syncs of a machine, in seconds.
pub const SYNC_EVERY_S_MIN: u64 = 10;
/// Longest time between two syncs of a machine, in seconds: a week.
pub const SYNC_EVERY_S_MAX: u64 = 7 * 24 * 3600;

/// Body of `POST /v1/machines/{name}/sync`. With neither `every_s` nor `stop` it is synced once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncRequest {
    /// The member of the cluster that is told what the machine is, so that less is left to be sent when it moves there: its name, or
    /// `https://ADDRESS:PORT`. By default the one that it is lent to, or that has lent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Syncs it from now on so often, in seconds, between [`SYNC_EVERY_S_MIN`] and [`SYNC_EVERY_S_MAX`], wherever it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// With `every_s`: also syncs it sooner, once so many bytes of its disks were written and of its memory were touched for the first
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// Ends what `every_s` has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop: bool,
    /// Whether that node is from now on unable to read what it keeps of the machine while it does not run there: it is sealed with a key of
    /// this node's, which that node is told when the machine goes there. By default as it was before; at first it is readable there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<bool>,
}

/// How a machine was synced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SyncReport {
    /// The name of the node that runs it not, and knows now what it is.
    pub with: String,
    /// Bytes that crossed the network for that, as far as this node knows: it does not count those of a machine that runs elsewhere.
    pub wire_bytes: u64,
}

/// How a machine has moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveReport {
    /// The name of the node that has it now.
    pub to: String,
    /// Bytes that crossed the network for what that node lacked.
    pub wire_bytes: u64,
    /// For how long its guest stood still, as the node saw it that gave it away, in milliseconds.
    pub down_ms: f64,
    /// Why its guest does not run there yet: it is parked there. Empty if it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// Body of `POST /v1/machines/{name}/advise`. What is absent is measured, or taken from what was seen before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdviseRequest {
    /// The member of the cluster that would have the machine: its name, or `https://ADDRESS:PORT`.
    pub to: String,
    /// How long the job takes here, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_s: Option<f64>,
    /// How much faster the other host's CPUs are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Bytes a second over the link, in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bytes_s: Option<f64>,
    /// A round trip over the link, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
}

/// Whether it would pay to lend a machine to another node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Advice {
    /// The name of that node.
    pub to: String,
    /// What is advised.
    pub verdict: AdviceVerdict,
    /// Why, in words.
    pub why: String,
    /// For which part of the time the machine needs its CPUs, from 0 to 1.
    pub busy: f64,
    /// How much faster that host's CPUs do what needs them.
    pub speedup: f64,
    /// Bytes that are expected to cross the network on the way there.
    pub up_bytes: u64,
    /// Bytes that are expected to cross it on the way back.
    pub down_bytes: u64,
    /// Bytes a second over the link; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bytes_s: Option<f64>,
    /// A round trip over it, in milliseconds.
    pub round_trip_ms: f64,
    /// From how many seconds of work here on it pays; absent if it never does, or the link is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even_s: Option<f64>,
    /// How long the job takes here, in seconds; this and what follows is absent unless job and link are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here_s: Option<f64>,
    /// How long it takes there, both ways included, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub there_s: Option<f64>,
    /// What a device's battery gives for it here, in joules, by a proxy: 1.5 J a second of CPU, 2 J a million bytes, 0.2 J a second of waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here_joule: Option<f64>,
    /// The same if it is done there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub there_joule: Option<f64>,
}

/// What is advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdviceVerdict {
    /// It is done sooner there.
    Offload,
    /// It is not.
    Stay,
    /// That depends on what is not known: how long the job takes, or the link.
    Depends,
}

/// How a machine stands that is not this node's to run, because another node has it, or may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineMove {
    /// How it stands.
    pub standing: MoveStanding,
    /// The name of the other node; absent if it does not matter any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// How a machine stands between two nodes, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveStanding {
    /// It stands still while the other node brings it. It goes on here if that fails.
    Offered,
    /// It was given to the other node, which has not said yet that it runs there.
    Given,
    /// The other node runs it, and gives it back. What it was when it was lent, or last synced, is kept here.
    Lent,
    /// It is lent to this node, and its lease is over: it is parked, and goes on once the other node answers.
    Lapsed,
    /// It has come from the other node, and goes on here once that gives it away.
    Arriving,
    /// It went on on the other node without what it did here since, which is kept.
    Fenced,
}

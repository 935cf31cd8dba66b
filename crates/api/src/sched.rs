//! Where the vCPUs of a node's machines run.

use super::*;

/// What a node does for the vCPUs of its machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuSched {
    /// Those of one machine run on different cores, and close together in time.
    Sbco,
    /// Those of one machine run on different cores.
    Balance,
    /// Nothing: the kernel places them as any other threads.
    #[default]
    Off,
}

/// Whether a node does for vCPUs what its `--cpu-sched` says, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchedActing {
    /// It is told to do nothing.
    #[default]
    Off,
    /// It does.
    Acts,
    /// It compares: for some seconds everything is undone at times.
    Tries,
    /// It has measured that it does not help, and has undone everything.
    DoesNotHelp,
    /// Looking at so many vCPUs costs too much.
    Costly,
    /// The kernel does not let its user set affinities.
    Refused,
}

/// Answer of `GET /v1/sched`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SchedReport {
    /// What the node is told to do.
    pub order: CpuSched,
    /// Whether it does.
    pub acting: SchedActing,
    /// What it has last said about that; empty if there is nothing to say.
    #[serde(default)]
    pub why: String,
    /// Whether one vCPU may lend to another.
    pub lends: bool,
    /// How often a vCPU was given other cores since the node's start, taking that back included.
    pub moves: u64,
    /// How often a vCPU has lent to another since then.
    pub loans: u64,
    /// What looking and acting has taken since then, in percent of one core.
    pub own_cpu_pct: f64,
    /// The machines that run, by name.
    pub machines: Vec<SchedMachine>,
}

/// How a machine's vCPUs fare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SchedMachine {
    /// The machine's name.
    pub name: String,
    /// How many threads run its vCPUs.
    pub vcpus: u32,
    /// Whether each of them has cores of its own now.
    pub apart: bool,
    /// In how many of the latest looks several of them that were at work shared a core without need, in percent; absent if no two
    /// were at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacking_pct: Option<f64>,
    /// How many places apart they are in their run queues, at most; absent where only the kernel could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<f64>,
    /// How much less the last of them has run than their mean, in milliseconds; absent unless two want to run all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<f64>,
    /// How much of the time that they wanted to run they waited for a core lately, in percent; absent if they wanted nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_pct: Option<f64>,
    /// How many of them borrow from a sibling now.
    #[serde(default)]
    pub borrowing: u32,
    /// Why nothing is done for it; empty if it is looked after.
    #[serde(default)]
    pub why: String,
}

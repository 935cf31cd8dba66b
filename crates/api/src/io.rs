//! Whose disk requests go first on a node's host.

use super::*;

/// Smallest weight that a machine's disk requests can have.
pub const IO_WEIGHT_MIN: u32 = 1;
/// Largest one.
pub const IO_WEIGHT_MAX: u32 = 1000;
/// The weight of a machine that was given none.
pub const IO_WEIGHT_DEFAULT: u32 = 5;
/// Longest limit of how long a machine's requests wait for what no source gives, in seconds: a week.
pub const IO_TIMEOUT_S_MAX: u32 = 7 * 86_400;

/// How a node orders the requests that access its host's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoOrder {
    /// What a person waits for goes first, and each machine has its share.
    #[default]
    Vsip,
    /// First come, first served.
    Fifo,
    /// Not at all: the kernel sees them as they come.
    Off,
}

/// Answer of `GET /v1/io`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IoReport {
    /// How requests are ordered, at the disk and on links. Unless it is `vsip`, nothing else is known.
    pub order: IoOrder,
    /// Predicted throughput of the host's disk, in requests of ordinary size per second.
    pub capacity_per_s: f64,
    /// How many requests the disk is given at once, at most.
    pub depth: u32,
    /// How many it has now.
    pub in_flight: u32,
    /// How often a request was served out of its turn because it had waited too long.
    pub guarded: u64,
    /// For how long the disk was kept free for the next request of a program that a person waits for, in microseconds in total.
    pub held_us: u64,
    /// Machines that have asked for something that was not in the host's memory, or have a limit, by name.
    pub machines: Vec<IoMachine>,
    /// The links in use, over which comes what this host's disk doesn't have; none from an older node.
    #[serde(default)]
    pub links: Vec<IoLink>,
}

/// The queue before a link to the source of some machines' images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IoLink {
    /// The addresses that are asked, without secrets; none if images come from this host's repository alone.
    pub sources: Vec<String>,
    /// Predicted throughput of the link, in requests of ordinary size per second.
    pub capacity_per_s: f64,
    /// How many requests that a guest waits for it is given at once, at most.
    pub depth: u32,
    /// How many of those it has now.
    pub in_flight: u32,
    /// How often a request went out of its turn because it had waited too long.
    pub guarded: u64,
    /// How many chunks and tables are queued that nobody waits for yet.
    pub ahead_queued: u64,
    /// Machines that have asked for something over it, or have a limit, by name.
    pub machines: Vec<IoLinkMachine>,
}

/// What a machine asks of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IoLinkMachine {
    /// The machine's name.
    pub name: String,
    /// How many of its requests are queued.
    pub queued: u32,
    /// How many of them are under way.
    pub in_flight: u32,
    /// Its requests per second, lately.
    pub requests_per_s: f64,
    /// Its bytes per second, lately.
    pub bytes_per_s: f64,
    /// Requests that a person waited for.
    pub interactive: IoClass,
    /// Requests of which nothing is known.
    pub normal: IoClass,
    /// Requests whose delay nobody notices.
    pub bulk: IoClass,
}

/// A machine's disk requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IoMachine {
    /// The machine's name.
    pub name: String,
    /// Its share of the disk, against those of the other machines that want something.
    pub weight: u32,
    /// The part of the disk in percent beyond which it waits until nobody else wants anything; 100 is no bound.
    pub cap_percent: u32,
    /// How many machines share this weight and this bound, itself included; 0 from a node that does not say.
    #[serde(default)]
    pub among: u32,
    /// Whether it has had more than that part of the disk, so that it waits.
    pub capped: bool,
    /// How many of its requests are queued.
    pub queued: u32,
    /// How many of them the disk has.
    pub in_flight: u32,
    /// Its requests per second, lately.
    pub requests_per_s: f64,
    /// Its bytes per second, lately.
    pub bytes_per_s: f64,
    /// Requests per second that it would get if all machines that are at work wanted all that they can get.
    pub predicted_per_s: f64,
    /// How many requests it may still have before others, beyond its share.
    pub ahead: f64,
    /// How many keys, buttons and touches were sent to it through this node.
    pub inputs: u64,
    /// How long ago the last one was, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_input_ms: Option<u64>,
    /// How often its guest's agent has told who asks; 0 if there is none, or it is older than this node.
    #[serde(default)]
    pub agent_words: u64,
    /// How many files of its disks are known; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Why no files are known, once somebody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_unknown: Option<String>,
    /// Who in the guest asked last, the last one first.
    #[serde(default)]
    pub programs: Vec<IoProgram>,
    /// Reads of which neither the program nor the file is known; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<IoUnknown>,
    /// Requests that a person waited for.
    pub interactive: IoClass,
    /// Requests of which nothing is known.
    pub normal: IoClass,
    /// Requests whose delay nobody notices.
    pub bulk: IoClass,
}

/// Requests of one kind, since the machine's disks came to this node, or since the link was first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IoClass {
    /// How many were served.
    pub served: u64,
    /// Mean time from being queued to being served, in microseconds, of the latest few thousand.
    pub wait_mean_us: f64,
    /// Median of it, to within a fifth.
    pub wait_p50_us: u64,
    /// 99th percentile of it, to within a fifth.
    pub wait_p99_us: u64,
}

/// How it is known which program of a guest makes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoSource {
    /// The guest's agent has named the program.
    Agent,
    /// The file that the block belongs to.
    #[default]
    File,
}

/// How urgent a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoUrgency {
    /// A person waits for it.
    Interactive,
    /// Nothing is known of it.
    #[default]
    Normal,
    /// Nobody notices its delay.
    Bulk,
}

/// A program in a guest, or a file of which the programs that read it aren't known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoProgram {
    /// The program's name, or the file's path. A guest says what it is.
    pub name: String,
    /// How it is known.
    pub source: IoSource,
    /// How urgent its last request was.
    pub class: IoUrgency,
    /// Why.
    pub why: String,
    /// Its requests that came soon after inputs, of those that were compared lately.
    pub after_inputs: u32,
    /// The same soon before inputs.
    pub before_inputs: u32,
    /// All of its requests, also those for what was in the host's memory.
    pub requests: u64,
    /// How long ago it asked last, in milliseconds.
    pub since_ms: u64,
}

/// Reads of which neither the program nor the file is known: of a machine's disks, and of its memory, such as after a resume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoUnknown {
    /// How many there were.
    pub reads: u64,
    /// How urgent the last one was.
    pub class: IoUrgency,
    /// Why.
    pub why: String,
    /// How long ago that was, in milliseconds.
    pub since_ms: u64,
    /// How many came soon after the last input, with those of programs and files of which too little is known.
    pub after_input: u32,
    /// The same soon before it.
    pub before_input: u32,
}

/// Body of `POST /v1/io/list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoListRequest {
    /// The image's name or id.
    pub image: String,
}

/// What a user says of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoSaying {
    /// A person waits for it, whatever it does.
    Allow,
    /// Nobody waits for it, whatever it does.
    Forbid,
    /// Takes back what was said, and forgets what was learned of it.
    Forget,
}

/// Body of `POST /v1/io/say`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoSayRequest {
    /// The image's name or id.
    pub image: String,
    /// The program's name, as its guest calls it.
    pub program: String,
    /// What is said.
    pub say: IoSaying,
}

/// Which programs of an image, and of all images that stand on the same disk, are interactive: a person waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoList {
    /// The image's id.
    pub image: String,
    /// The hash of the disk that the image stands on. The list holds for all images and clones on that disk. Empty from an older node,
    /// which has a list for each image.
    #[serde(default)]
    pub disk: String,
    /// Programs that somebody has allowed.
    pub allowed: Vec<String>,
    /// Programs that somebody has forbidden.
    pub forbidden: Vec<String>,
    /// What machines have shown, by name.
    pub learned: Vec<IoLearned>,
}

/// What machines have shown of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoLearned {
    /// Its name.
    pub program: String,
    /// How many machines have shown something.
    pub machines: u32,
    /// How often it was judged.
    pub seen: u32,
    /// How often it was interactive then.
    pub interactive: u32,
    /// What other machines believe of it; absent as long as too little is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub believed: Option<bool>,
}

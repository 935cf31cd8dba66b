//! What a run amounts to: the paper's metrics (sections 2.3 and 5.3).
use std::collections::BTreeMap;

/// Own time within which a machine counts as launching.
const LAUNCH_NS: u64 = 1_000_000_000;

/// Why a machine stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// What it needs to start was on its way.
    Start,
    /// It waited for a chunk.
    Demand,
    /// The planner had it paused.
    Buffering,
}

/// A time in which a machine stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its beginning, in virtual nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The machine's own time, which stood still too.
    pub own_ns: u64,
    /// Why.
    pub kind: StallKind,
}

impl Stall {
    /// How long it was.
    pub fn ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Chunks that the machine touched.
    pub accessed: u64,
    /// Chunks that crossed the link, for whatever reason, or were on it at the end.
    pub fetched: u64,
    /// Accesses whose chunk had to be asked for.
    pub missed: u64,
    /// Accesses whose chunk was on its way already.
    pub late: u64,
    /// All bytes on the wire.
    pub wire_bytes: u64,
    /// Those of segment tables.
    pub table_bytes: u64,
    /// The whole run, in nanoseconds.
    pub end_ns: u64,
    /// The same without any waiting.
    pub own_ns: u64,
    /// When and why the machine stood still.
    pub stalls: Vec<Stall>,
}

/// The names of [`Run::figures`], with their units.
pub const FIGURES: [(&str, &str); 6] = [
    ("fetch_ratio", "x"),
    ("miss_rate", "%"),
    ("wait_s", "s"),
    ("launch_s", "s"),
    ("buffering_ratio", "x"),
    ("buffering_per_min", "1/min"),
];

impl Run {
    /// In the order of [`FIGURES`].
    pub fn figures(&self) -> [f64; 6] {
        [
            self.fetch_ratio(),
            self.miss_rate() * 100.0,
            self.wait_s(),
            self.launch_s(),
            self.buffering_ratio(),
            self.buffering_per_min(),
        ]
    }

    /// Fetched chunks / accessed chunks.
    pub fn fetch_ratio(&self) -> f64 {
        self.fetched as f64 / self.accessed.max(1) as f64
    }

    /// Accesses whose chunk had to be asked for / all accesses.
    pub fn miss_rate(&self) -> f64 {
        self.missed as f64 / self.accessed.max(1) as f64
    }

    /// All time in which the machine stood still, the launch included.
    pub fn wait_s(&self) -> f64 {
        self.stalls.iter().map(Stall::ns).sum::<u64>() as f64 / 1e9
    }

    /// Time until the machine has had its first second, less that second: initial buffering, or the misses of a start without.
    pub fn launch_s(&self) -> f64 {
        let within = |s: &&Stall| s.own_ns < LAUNCH_NS;
        let launch = self.stalls.iter().filter(within).map(Stall::ns);
        launch.sum::<u64>() as f64 / 1e9
    }

    /// Time paused / the whole run.
    pub fn buffering_ratio(&self) -> f64 {
        let paused = self.pauses().map(Stall::ns);
        paused.sum::<u64>() as f64 / self.end_ns.max(1) as f64
    }

    /// Pauses in a minute of the run.
    pub fn buffering_per_min(&self) -> f64 {
        self.pauses().count() as f64 / (self.end_ns.max(1) as f64 / 60e9)
    }

    fn pauses(&self) -> impl Iterator<Item = &Stall> {
        self.stalls
            .iter()
            .filter(|s| s.kind == StallKind::Buffering)
    }
}

/// Means of the figures of several runs, by key.
#[derive(Clone, Debug, Default)]
pub struct Means {
    sums: BTreeMap<String, (f64, usize)>,
}

impl Means {
    /// Adds a value.
    pub fn add(&mut self, key: String, value: f64) {
        let sum = self.sums.entry(key).or_default();
        *sum = (sum.0 + value, sum.1 + 1);
    }

    /// The mean of a key's values.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.sums.get(key).map(|(sum, n)| sum / *n as f64)
    }

    /// Key, mean, number of values; in the keys' order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, usize)> {
        self.sums
            .iter()
            .map(|(key, (sum, n))| (key.as_str(), sum / *n as f64, *n))
    }
}

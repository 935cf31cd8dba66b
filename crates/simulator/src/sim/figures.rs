//! The figures of a run: the paper's metrics (sections 2.3 and 5.3).
use std::collections::BTreeMap;

/// The beginning of a machine's own time that counts as its launch.
const LAUNCH_NS: u64 = 1_000_000_000;
/// A wait that is as long interrupts who sits in front of the machine.
const INTERRUPTION_NS: u64 = 500_000_000;
/// A machine that runs for less than a frame of a film between two waits shows nothing new: to a person they are one.
const UNSEEN_NS: u64 = 40_000_000;

/// Why a machine stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// What it needs to start had not arrived.
    Start,
    /// It waited for a chunk.
    Demand,
    /// The planner had paused it.
    Buffering,
}

/// A stall of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its beginning, in virtual nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The machine's own time, which did not advance during the stall.
    pub own_ns: u64,
    /// The reason.
    pub kind: StallKind,
}

impl Stall {
    /// Returns its length in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of chunks that the machine touched.
    pub accessed: u64,
    /// Number of chunks that crossed the link for any reason, or were on it at the end.
    pub fetched: u64,
    /// Number of accesses whose chunk had to be requested.
    pub missed: u64,
    /// Number of accesses whose chunk was on its way already.
    pub late: u64,
    /// All bytes on the wire.
    pub wire_bytes: u64,
    /// Bytes of segment tables on the wire.
    pub table_bytes: u64,
    /// Length of the whole run, in nanoseconds.
    pub end_ns: u64,
    /// Its length without any waiting, in nanoseconds.
    pub own_ns: u64,
    /// All stalls.
    pub stalls: Vec<Stall>,
}

/// The names of [`Run::figures`], with their units.
pub const FIGURES: [(&str, &str); 7] = [
    ("fetch_ratio", "x"),
    ("miss_rate", "%"),
    ("wait_s", "s"),
    ("launch_s", "s"),
    ("buffering_ratio", "x"),
    ("buffering_per_min", "1/min"),
    ("stalls_per_min", "1/min"),
];

impl Run {
    /// Returns the figures in the order of [`FIGURES`].
    pub fn figures(&self) -> [f64; FIGURES.len()] {
        [
            self.fetch_ratio(),
            self.miss_rate() * 100.0,
            self.wait_s(),
            self.launch_s(),
            self.buffering_ratio(),
            self.buffering_per_min(),
            self.stalls_per_min(),
        ]
    }

    /// Returns fetched chunks / accessed chunks.
    pub fn fetch_ratio(&self) -> f64 {
        self.fetched as f64 / self.accessed.max(1) as f64
    }

    /// Returns accesses whose chunk had to be requested / all accesses.
    pub fn miss_rate(&self) -> f64 {
        self.missed as f64 / self.accessed.max(1) as f64
    }

    /// Returns the total time of all stalls in seconds, including the launch.
    pub fn wait_s(&self) -> f64 {
        self.stalls.iter().map(Stall::ns).sum::<u64>() as f64 / 1e9
    }

    /// Returns how much longer than a second the machine's first second took: initial buffering, or the misses of a start
    /// without it.
    pub fn launch_s(&self) -> f64 {
        let within = |s: &&Stall| s.own_ns < LAUNCH_NS;
        let launch = self.stalls.iter().filter(within).map(Stall::ns);
        launch.sum::<u64>() as f64 / 1e9
    }

    /// Returns time paused / length of the run.
    pub fn buffering_ratio(&self) -> f64 {
        let paused = self.pauses().map(Stall::ns);
        paused.sum::<u64>() as f64 / self.end_ns.max(1) as f64
    }

    /// Returns pauses per minute of the run.
    pub fn buffering_per_min(&self) -> f64 {
        self.per_min(self.pauses().count())
    }

    /// Returns the interruptions per minute of the run: waits of half a second or longer once the machine has started, whether it was
    /// paused or lacked a chunk. Waits between which it hardly ran are one.
    pub fn stalls_per_min(&self) -> f64 {
        let together = |one: &Stall, next: &Stall| next.own_ns - one.own_ns < UNSEEN_NS;
        let waits = self.stalls.chunk_by(together);
        let interrupts = |wait: &&[Stall]| {
            let ns = wait.iter().map(Stall::ns).sum::<u64>();
            wait[0].kind != StallKind::Start && ns >= INTERRUPTION_NS
        };
        self.per_min(waits.filter(interrupts).count())
    }

    fn per_min(&self, count: usize) -> f64 {
        count as f64 / (self.end_ns.max(1) as f64 / 60e9)
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

    /// Returns the mean of a key's values.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.sums.get(key).map(|(sum, n)| sum / *n as f64)
    }

    /// Returns key, mean and number of values, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, usize)> {
        self.sums
            .iter()
            .map(|(key, (sum, n))| (key.as_str(), sum / *n as f64, *n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_counts_once_whatever_the_machine_waited_for() {
        const MS: u64 = 1_000_000;
        let mut run = Run::default();
        let mut now_ms = 0;
        // the machine's own time when it stalls, for how long, and why
        for (own_ms, ms, kind) in [
            (0, 900, StallKind::Start),
            (0, 3_000, StallKind::Buffering),
            (1_000, 499, StallKind::Demand),
            (2_000, 700, StallKind::Demand),
            (2_000, 2_000, StallKind::Buffering),
            (3_000, 200, StallKind::Demand),
            (3_039, 150, StallKind::Demand),
            (3_070, 150, StallKind::Demand),
            (4_000, 600, StallKind::Buffering),
        ] {
            let from_ns = (own_ms + now_ms) * MS;
            now_ms += ms;
            run.stalls.push(Stall {
                from_ns,
                to_ns: from_ns + ms * MS,
                own_ns: own_ms * MS,
                kind,
            });
        }
        run.end_ns = 30_000 * MS;
        // the second and the third of those after the start, and the last one
        assert_eq!(run.stalls_per_min(), 6.0);
        assert_eq!(run.buffering_per_min(), 6.0);
    }
}

//! `swarm-sim`: recorded workloads started on 1 to 1024 hosts at once, in virtual time, with the paper's policies and ours.
pub mod plan;
mod plots;
mod tell;

use anyhow::Context as _;
use floe_simulator::sim::sweep::parallel;
use floe_simulator::swarm_sim::Outcome;
use floe_simulator::swarm_sim::sweep::Row;
use floe_testbed::harness::{Context, Kept, Report, Samples};
use floe_testbed::traces;
use plan::{Cases, Key, MAIN, PARTS, Part, Setting, Sizes, WORKLOADS};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often it is said how far the simulation is.
const TELL_EVERY: Duration = Duration::from_secs(15);
/// How long a sitting takes if nothing else is asked for.
const MINUTES: u64 = 40;
/// What the promises need, which is simulated first.
const PROMISED: [Part; 2] = [Part::K64, Part::K16];
/// Sizes of which it is drawn what hosts receive: 16 hosts, and those of the promises.
const DRAWN: [usize; 2] = [16, 100];

/// Options of the experiment.
#[derive(clap::Args)]
pub struct Options {
    /// Simulate these parts alone, and tell what can be told of them and of what was kept
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Keep each swarm that was simulated in FILE, and take from there what this very code has simulated on this machine: a run that was
    /// cut goes on
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// Begin no further swarm after so many minutes, and tell what was done so far; with --kept the same command goes on later
    #[arg(long, value_name = "N", default_value_t = MINUTES)]
    minutes: u64,
}

/// What is told of a swarm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// The hosts' slowdowns: their mean, their median, and that which 1 % of the hosts exceed.
    pub mean: f64,
    /// See `mean`.
    pub p50: f64,
    /// See `mean`.
    pub p99: f64,
    /// Bytes that the seed sent.
    pub seed_bytes: u64,
    /// Honest hosts that were dropped.
    pub dropped: u64,
    /// Processor time of the simulation, in seconds.
    pub cpu_s: f64,
    /// What is drawn of some: pieces received in each second; and of one host alone, when its machine had each access.
    pub received: Vec<u32>,
    /// See `received`.
    pub played_us: Vec<u64>,
}

impl Told {
    fn new(key: &Key, outcome: Outcome, cpu_s: f64) -> Told {
        let slowdowns: Samples = outcome.slowdowns.iter().copied().collect();
        let mut told = Told {
            mean: outcome.mean(),
            p50: slowdowns.quantile(0.5),
            p99: slowdowns.quantile(0.99),
            seed_bytes: outcome.seed_bytes,
            dropped: outcome.dropped,
            cpu_s,
            ..Told::default()
        };
        if key.setting == MAIN && DRAWN.contains(&key.hosts) {
            told.received = outcome.received;
        }
        if key.hosts == 1 {
            told.played_us = outcome.played_us;
        }
        told
    }
}

/// All swarms that were simulated.
pub struct Swarms {
    /// The workloads as those of the promises see them.
    pub cases: Cases,
    /// What became of each.
    told: BTreeMap<Key, Told>,
    /// Whether it is a short run.
    pub sizes: Sizes,
}

impl Swarms {
    /// Returns what became of a swarm.
    pub fn told(&self, key: &Key) -> Option<&Told> {
        self.told.get(key)
    }

    /// Returns what became of the swarms of all workloads.
    fn of(&self, setting: Setting, hosts: usize, row: Row) -> Option<Vec<&Told>> {
        let keys = (0..WORKLOADS.len()).map(|workload| Key {
            setting,
            hosts,
            row,
            workload,
        });
        keys.map(|key| self.told.get(&key)).collect()
    }

    /// Returns the mean slowdown over the workloads, if all were simulated.
    pub fn mean(&self, setting: Setting, hosts: usize, row: Row) -> Option<f64> {
        let told = self.of(setting, hosts, row)?;
        Some(told.iter().map(|told| told.mean).sum::<f64>() / told.len() as f64)
    }

    /// Returns the sizes that were simulated.
    pub fn hosts(&self, setting: Setting) -> BTreeSet<usize> {
        let keys = self.told.keys().filter(|key| key.setting == setting);
        keys.map(|key| key.hosts).collect()
    }
}

/// Returns the processor time that this thread has used, in seconds.
fn thread_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-sim", context.quick);
    let began = Instant::now();
    let sizes = Sizes {
        quick: context.quick,
    };
    let of = |parts: &[Part]| -> BTreeSet<Key> {
        let parts = parts.iter();
        parts.flat_map(|part| plan::swarms(*part, sizes)).collect()
    };
    let all = of(&PARTS);
    let wanted = match &options.only[..] {
        [] => all.clone(),
        some => of(some),
    };
    let kept = options.kept.as_deref();
    let mut kept: Kept<Key, Told> = Kept::open(kept, "swarm-sim", context.quick)?;
    kept.told.retain(|key, _| all.contains(key));
    let cases = Cases::read(&traces::folder(), &all)?;
    let mut lacking: Vec<Key> = wanted.into_iter().collect();
    lacking.retain(|key| !kept.told.contains_key(key));
    // what the promises need first; of that the longest, so that no core is left with one at the end
    let promised = of(&PROMISED);
    lacking.sort_by(|a, b| {
        let later = |key: &Key| !promised.contains(key);
        let first = later(a).cmp(&later(b));
        let longest = b.work().total_cmp(&a.work());
        first.then(longest).then_with(|| a.cmp(b))
    });
    let long = Duration::from_secs(options.minutes.saturating_mul(60));
    let in_time = || began.elapsed() < long;
    let told = simulate(&lacking, &cases, &mut kept, &in_time)?;
    let lacking = all.iter().filter(|key| !told.contains_key(*key)).count();
    let swarms = Swarms { cases, told, sizes };
    tell::tell(&swarms, &mut report);
    report.lacks(lacking, all.len(), "swarms");
    if lacking == 0 {
        report.plots = plots::draw(&swarms);
    }
    Ok(report)
}

/// Simulates swarms in this order, as long as there is time to begin one. Returns what came of them, and what was kept.
fn simulate(
    keys: &[Key],
    cases: &Cases,
    kept: &mut Kept<Key, Told>,
    in_time: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<BTreeMap<Key, Told>> {
    let mut told = std::mem::take(&mut kept.told);
    let progress = Progress::new(keys);
    let kept = &*kept;
    let simulated = parallel(keys.len(), |n| {
        if !in_time() {
            return anyhow::Ok(None);
        }
        let key = keys[n];
        let before_s = thread_s();
        let outcome = cases.simulate(&key).context("a workload of no case")?;
        let told = Told::new(&key, outcome, thread_s() - before_s);
        kept.put(&key, &told)?;
        progress.done(&key, &told);
        anyhow::Ok(Some((key, told)))
    });
    for one in simulated {
        told.extend(one?);
    }
    Ok(told)
}

/// How far the simulation is.
struct Progress {
    swarms: usize,
    work: f64,
    so_far: Mutex<SoFar>,
}

struct SoFar {
    swarms: usize,
    work: f64,
    cpu_s: f64,
    told: Instant,
}

impl Progress {
    fn new(keys: &[Key]) -> Progress {
        Progress {
            swarms: keys.len(),
            work: keys.iter().map(Key::work).sum(),
            so_far: Mutex::new(SoFar {
                swarms: 0,
                work: 0.0,
                cpu_s: 0.0,
                told: Instant::now(),
            }),
        }
    }

    /// A swarm was simulated: says so now and then.
    fn done(&self, key: &Key, told: &Told) {
        let Ok(mut so_far) = self.so_far.lock() else {
            return; // another thread has panicked, and says so itself
        };
        so_far.swarms += 1;
        so_far.work += key.work();
        so_far.cpu_s += told.cpu_s;
        if so_far.told.elapsed() < TELL_EVERY && so_far.swarms < self.swarms {
            return;
        }
        so_far.told = Instant::now();
        let left_s = so_far.cpu_s * (self.work / so_far.work - 1.0);
        eprintln!(
            "swarm-sim: {} of {} swarms, {:.0} min of processor time so far, some {:.0} to come; last {}n{}.{}",
            so_far.swarms,
            self.swarms,
            so_far.cpu_s / 60.0,
            left_s / 60.0,
            key.setting.prefix(),
            key.hosts,
            key.row.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::plan::SMALL;
    use super::*;
    use std::path::Path;

    #[test]
    fn one_host_by_demand_and_by_its_profile_is_drawn_of_each_workload() {
        let sizes = Sizes { quick: false };
        let mut ones = plan::swarms(Part::Others, sizes);
        ones.retain(|key| key.hosts == 1 && key.setting.piece_kib == SMALL.piece_kib);
        let cases = Cases::read(Path::new(traces::OF_THE_TREE), &ones).unwrap();
        let simulated = |key: &Key| Told::new(key, cases.simulate(key).unwrap(), 0.0);
        let told = ones.iter().map(|key| (*key, simulated(key))).collect();
        let plots = plots::draw(&Swarms { cases, told, sizes });
        for name in WORKLOADS {
            for what in ["delay", "playback"] {
                let plot = &plots[&format!("swarm-{what}-{name}")];
                for text in [
                    "on one host, recorded times / 14",
                    "demand, 100 Mbit/s",
                    "profile, 1 Gbit/s",
                ] {
                    assert!(plot.contains(text), "{what} of {name}: {text}");
                }
            }
        }
    }
}

//! `swarm-sim`: recorded workloads started on 2 to 1024 hosts at once, in virtual time, with the paper's policies and ours.
use super::swarm_plots;
use super::train::processor_s;
use crate::harness::{Context, Report, Samples};
use crate::sim::sweep::parallel;
use crate::swarm_sim::sweep::{Case, GBIT_1, LEARNT, MBIT_100, SAME_SECOND_US, policies};
use crate::swarm_sim::{Host, Link, Outcome, PIECE_BYTES, Setup, simulate};
use crate::traces;
use std::collections::BTreeMap;

/// The three workloads of the figures: a boot from the disk, a task that only computes, and a user at a screen.
const WORKLOADS: [&str; 3] = ["boot", "document", "desktop"];
/// Sizes of the swarm; 100 is the paper's largest.
const HOSTS: [usize; 11] = [2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1024];
/// Sizes of a short run.
const HOSTS_QUICK: [usize; 3] = [2, 8, 16];
/// The paper's largest swarm, and the one of the promises.
const PAPER: usize = 100;
/// The largest swarm.
const MOST: usize = 1024;
/// Hosts that start one after the other do so within this time, in microseconds.
const STAGGERED_US: u64 = 60_000_000;

/// What is simulated: workload, number of hosts, policy.
type Key = (usize, usize, usize);

/// All swarms that start at the same second.
pub struct Swarms {
    /// The workloads.
    pub cases: Vec<Case>,
    /// The sizes, ascending.
    pub hosts: Vec<usize>,
    /// What became of them.
    pub outcomes: BTreeMap<Key, Outcome>,
}

impl Swarms {
    /// Returns the mean slowdown over the workloads.
    pub fn mean(&self, hosts: usize, policy: usize) -> f64 {
        let cases = 0..self.cases.len();
        let of = |case: usize| self.outcomes[&(case, hosts, policy)].mean();
        cases.clone().map(of).sum::<f64>() / cases.len() as f64
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-sim", context.quick);
    let mut cases = Vec::new();
    for name in WORKLOADS {
        let workload = traces::read(&traces::folder().join(name))?;
        anyhow::ensure!(workload.traces.len() > LEARNT, "{name} has too few runs");
        cases.push(Case::new(&workload));
    }
    let before_s = processor_s();
    let hosts = context.pick(HOSTS.to_vec(), HOSTS_QUICK.to_vec());
    let all = same_second(cases, hosts.clone(), MBIT_100);
    let few = hosts.into_iter().filter(|count| *count <= PAPER).collect();
    let fast = same_second(all.cases.clone(), few, GBIT_1);
    compare(&all, context, &mut report);
    tell_all(&fast, "g1.", &mut report);
    others(&all, context, &mut report);
    report.add_value("cpu_s", "s", processor_s() - before_s);
    report.plots = swarm_plots::draw(&all, &fast);
    for case in &all.cases {
        let runs = case.runs.len() as f64;
        let mean = |of: fn(&crate::swarm_sim::Recorded) -> f64| {
            case.runs.iter().map(of).sum::<f64>() / runs
        };
        let missing = |run: &crate::swarm_sim::Recorded| {
            let unknown = run.accesses.iter().filter(|a| !case.profile.contains(&a.1));
            unknown.count() as f64 / run.accesses.len().max(1) as f64
        };
        let unknown = case.runs.iter().map(missing).sum::<f64>() / runs;
        report.note(format!(
            "{}: {} runs, {:.1} MB in {:.1} s with everything in memory, on the mean; the profile has {:.1} MB, and lacks {:.1} % of what a run accesses",
            case.name,
            case.runs.len(),
            mean(|run| run.bytes() as f64 / 1e6),
            mean(|run| run.end_us as f64 / 1e6),
            (case.profile.len() as u64 * PIECE_BYTES) as f64 / 1e6,
            unknown * 100.0
        ));
    }
    let dropped: u64 = all.outcomes.values().map(|outcome| outcome.dropped).sum();
    if dropped > 0 {
        report.fail(format!("{dropped} honest hosts were dropped"));
    }
    Ok(report)
}

/// Simulates every workload, size and policy.
fn same_second(cases: Vec<Case>, hosts: Vec<usize>, link: Link) -> Swarms {
    let mut keys: Vec<Key> = Vec::new();
    for case in 0..cases.len() {
        for policy in 0..policies().len() {
            keys.extend(hosts.iter().map(|count| (case, *count, policy)));
        }
    }
    // the longest first, so that no core is left with one at the end
    keys.sort_by_key(|key| std::cmp::Reverse(key.1));
    let outcomes = parallel(keys.len(), |n| {
        let (case, count, policy) = keys[n];
        cases[case].run(count, policies()[policy].1, link, SAME_SECOND_US)
    });
    Swarms {
        outcomes: keys.into_iter().zip(outcomes).collect(),
        cases,
        hosts,
    }
}

/// Adds the figures of all sizes and policies; their names begin with `link`.
fn tell_all(all: &Swarms, link: &str, report: &mut Report) {
    for count in all.hosts.iter().copied() {
        for (policy, (name, _)) in policies().iter().enumerate() {
            let cases = 0..all.cases.len();
            let of = |case: usize| all.outcomes[&(case, count, policy)].mean();
            let samples: Samples = cases.map(of).collect();
            report.add_mean(&format!("{link}n{count}.{name}"), "x", &samples);
        }
    }
}

/// Adds the figures of all sizes, and those that have a limit.
fn compare(all: &Swarms, context: &Context, report: &mut Report) {
    let names = policies().map(|(name, _)| name);
    let number = |name: &str| names.iter().position(|other| *other == name).unwrap_or(0);
    let mut worst: f64 = 0.0;
    tell_all(all, "", report);
    for count in all.hosts.iter().copied() {
        let theirs = all.mean(count, number("p2p_p"));
        worst = worst.max(all.mean(count, 0) / theirs);
    }
    report.add_value("worst_ours_over_p2p_p", "x", worst);
    let at = context.pick(PAPER, HOSTS_QUICK[2]);
    let of = |name: &str| all.mean(at, number(name));
    for name in ["cs_d", "p2p_d", "p2p_p"] {
        let figure = report.add_value(
            &format!("{name}_over_ours_n{at}"),
            "x",
            of(name) / of("ours"),
        );
        figure.against(&format!("{name} over memory"), "x", of(name));
    }
    for (case, workload) in all.cases.iter().enumerate() {
        let profile = workload.profile.len() as f64 * PIECE_BYTES as f64;
        for (policy, name) in names.iter().enumerate() {
            let outcome = &all.outcomes[&(case, at, policy)];
            let key = format!("{}.{name}", workload.name);
            report.add_value(&format!("{key}.slowdown_n{at}"), "x", outcome.mean());
            report.add_value(
                &format!("{key}.seed_ratio_n{at}"),
                "x",
                outcome.seed_bytes as f64 / profile,
            );
        }
    }
}

/// Adds the figures of other swarms: the fast link, several workloads at once, hosts that start one after the other.
fn others(all: &Swarms, context: &Context, report: &mut Report) {
    let names = policies();
    let most = context.pick(MOST, HOSTS_QUICK[2]);
    let at = context.pick(PAPER, HOSTS_QUICK[2]);
    let cases = &all.cases;
    // ours and the paper's
    let jobs: Vec<(usize, usize)> = (0..2)
        .flat_map(|p| (0..cases.len()).map(move |c| (p, c)))
        .collect();
    let fast = parallel(jobs.len(), |n| {
        let (policy, case) = jobs[n];
        cases[case]
            .run(most, names[policy].1, GBIT_1, SAME_SECOND_US)
            .mean()
    });
    let staggered = parallel(jobs.len(), |n| {
        let (policy, case) = jobs[n];
        cases[case]
            .run(at, names[policy].1, MBIT_100, STAGGERED_US)
            .mean()
    });
    let mixed = parallel(2, |policy| mixed(cases, at, names[policy].1).mean());
    for policy in 0..2 {
        let name = names[policy].0;
        let of = |all: &[f64]| -> Samples {
            let jobs = jobs.iter().zip(all).filter(|((p, _), _)| *p == policy);
            jobs.map(|(_, value)| *value).collect()
        };
        report.add_mean(&format!("{name}_n{most}_1g"), "x", &of(&fast));
        report.add_mean(&format!("{name}_n{at}_staggered"), "x", &of(&staggered));
        report.add_value(&format!("{name}_n{at}_mixed"), "x", mixed[policy]);
    }
}

/// Hosts that run all workloads side by side, as if all were of one image: pieces of one workload are no other's.
fn mixed(cases: &[Case], count: usize, config: floe_swarm::policy::Config) -> Outcome {
    let mut base = 0;
    let shifted: Vec<Case> = cases
        .iter()
        .map(|case| {
            let mut case = case.clone();
            for run in &mut case.runs {
                run.accesses.iter_mut().for_each(|access| access.1 += base);
            }
            case.profile.iter_mut().for_each(|piece| *piece += base);
            base += case.pieces;
            case
        })
        .collect();
    let host = |n: usize| {
        let case = &shifted[n % shifted.len()];
        Host {
            run: &case.runs[n / shifted.len() % case.runs.len()],
            profile: &case.profile,
            start_us: n as u64 * 7919 % SAME_SECOND_US,
            slowness: 0.9 + 0.2 * ((n * 37 % 101) as f64 / 101.0),
            link_slowness: 1,
        }
    };
    simulate(&Setup {
        config,
        hosts: (0..count).map(host).collect(),
        pieces: base,
        link: MBIT_100,
        chance: 1,
    })
}

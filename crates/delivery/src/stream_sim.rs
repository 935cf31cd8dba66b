//! `stream-sim`: replays recorded workloads in virtual time over slow links. Each run uses a model of the workload's
//! other runs, with every prefetching policy, through the same planner code.
use super::stream_plots;
use super::stream_runs::{EVERYONE, Runs, STEADY, variation};
use super::train::processor_s;
use anyhow::Context as _;
use floe_image::Hash;
use floe_simulator::sim::sweep::{POLICIES, sweep};
use floe_simulator::sim::{FIGURES, LinkSpec, Run};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Rate, Trace};
use floe_testbed::traces::{self, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Recorded links: name, file, round trip in milliseconds. The recordings say only when packets may pass; the round trips
/// are typical of such networks when idle.
const RECORDED: [(&str, &str, u64); 3] = [
    ("att-lte", "ATT-LTE-driving-2016.down", 60),
    ("tmobile-umts", "TMobile-UMTS-driving.down", 120),
    ("verizon-lte", "Verizon-LTE-short.down", 60),
];
/// Fixed links: name, bits per second, round trip in milliseconds.
const FIXED: [(&str, u64, u64); 2] = [("7.2", 7_200_000, 120), ("14.4", 14_400_000, 60)];

/// What most figures of the comparison are held against.
const VTUBE: &str = "vTube's algorithm as published";

/// Fewest runs of a workload: one is left out, and a model learns from what at least two others share.
const RUNS_MIN: usize = 3;

/// The figures of a run, in the order of [`FIGURES`].
type Row = [f64; FIGURES.len()];

/// The indices of the figures in a row.
const FETCH_RATIO: usize = 0;
const MISS_RATE: usize = 1;
const WAIT_S: usize = 2;
const PAUSES_PER_MIN: usize = 5;
const STALLS_PER_MIN: usize = 6;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("stream-sim", context.quick);
    let mut workloads = traces::read_all(&traces::folder())?;
    for workload in &workloads {
        if workload.traces.len() < RUNS_MIN {
            let (name, runs) = (&workload.meta.workload, workload.traces.len());
            report.note(format!("{name} is left out: it has {runs} runs, and leaving one out of so few teaches nothing"));
        }
    }
    workloads.retain(|workload| workload.traces.len() >= RUNS_MIN);
    anyhow::ensure!(!workloads.is_empty(), "no workload has {RUNS_MIN} runs");
    if context.quick {
        for workload in &mut workloads {
            workload.traces.truncate(RUNS_MIN);
        }
    }
    workloads.extend(everyone(&workloads, context.pick(usize::MAX, 1))?);
    let links = links(context.quick)?;
    let before_s = processor_s();
    let runs = sweep(&workloads, &links)?;
    let took_s = processor_s() - before_s;
    let all = Runs {
        workloads,
        links,
        runs,
    };
    all.report(&mut report)?;
    report.add_value(
        "runs_per_min",
        "1/min",
        all.runs.len() as f64 / took_s * 60.0,
    );
    report.plots = stream_plots::draw(&all)?;
    for workload in &all.workloads {
        let accesses: usize = workload.traces.iter().map(|t| t.accesses.len()).sum();
        let runs = workload.traces.len();
        report.note(format!(
            "{}: {runs} runs of {} accesses on the mean, {} bytes a chunk on the wire; {:.0} % of what a run touches another one does not",
            workload.meta.workload,
            accesses / runs.max(1),
            workload.image.chunk_wire_bytes,
            variation(workload) * 100.0
        ));
    }
    Ok(report)
}

/// Combines runs of every workload of one image, at most `each` of each. The image is the one with most workloads; `None`
/// if no image has two or more.
fn everyone(workloads: &[Workload], each: usize) -> anyhow::Result<Option<Workload>> {
    let mut by_image: BTreeMap<Hash, Vec<&Workload>> = BTreeMap::new();
    for workload in workloads {
        by_image
            .entry(workload.image_id)
            .or_default()
            .push(workload);
    }
    let most = by_image.into_values().max_by_key(Vec::len);
    most.filter(|of| of.len() > 1)
        .map(|of| Workload::merged(EVERYONE, &of, each))
        .transpose()
}

/// Returns all links of the experiment; the short version has only the fixed ones.
fn links(quick: bool) -> anyhow::Result<Vec<LinkSpec>> {
    let mut links: Vec<LinkSpec> = FIXED
        .iter()
        .map(|(name, bits, rtt_ms)| LinkSpec {
            name: (*name).into(),
            rate: Rate::BitsPerSecond(*bits),
            rtt_ns: rtt_ms * 1_000_000,
        })
        .collect();
    if quick {
        return Ok(links);
    }
    for (name, file, rtt_ms) in RECORDED {
        let trace = Trace::recorded(file)?;
        links.push(LinkSpec {
            name: name.into(),
            rate: Rate::Recorded(Arc::new(trace)),
            rtt_ns: rtt_ms * 1_000_000,
        });
    }
    Ok(links)
}

impl Runs {
    /// Returns the mean of a figure.
    fn mean(&self, workload: Option<usize>, link: Option<usize>, policy: usize, at: usize) -> f64 {
        let values: Vec<f64> = self
            .of(workload, link, policy)
            .map(|run| run.figures()[at])
            .collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }

    /// Returns the mean over these workloads and all links, with equal weights.
    fn grand_mean(&self, workloads: &[usize], policy: usize) -> Row {
        let mut sums = Row::default();
        for w in workloads {
            for l in 0..self.links.len() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum += self.mean(Some(*w), Some(l), policy, at);
                }
            }
        }
        sums.map(|sum| sum / (workloads.len() * self.links.len()) as f64)
    }

    fn report(&self, report: &mut Report) -> anyhow::Result<()> {
        for (w, workload) in self.workloads.iter().enumerate() {
            for (l, link) in self.links.iter().enumerate() {
                for (p, (policy, _, _)) in POLICIES.iter().enumerate() {
                    let rows: Vec<Row> = self.of(Some(w), Some(l), p).map(Run::figures).collect();
                    for (at, (figure, unit)) in FIGURES.iter().enumerate() {
                        let samples: Samples = rows.iter().map(|row| row[at]).collect();
                        let name = &workload.meta.workload;
                        let key = format!("{name}.{}.{policy}.{figure}", link.name);
                        report.add_mean(&key, unit, &samples);
                    }
                }
            }
        }
        let all: Vec<usize> = (0..self.workloads.len()).collect();
        for (p, (policy, _, _)) in POLICIES.iter().enumerate() {
            for (value, (figure, unit)) in self.grand_mean(&all, p).iter().zip(FIGURES) {
                report.add_value(&format!("mean.{policy}.{figure}"), unit, *value);
            }
        }
        self.compare(report)
    }

    /// Adds the figures that have a limit, and checks it.
    fn compare(&self, report: &mut Report) -> anyhow::Result<()> {
        let number = |name: &str| {
            let found = POLICIES.iter().position(|(policy, _, _)| *policy == name);
            found.with_context(|| format!("no policy {name}"))
        };
        let (vmtorrent, vtube, floe) = (number("vmtorrent")?, number("vtube")?, number("floe")?);
        let all = 0..self.workloads.len();
        let of = |w: usize, policy: usize, at: usize| self.mean(Some(w), None, policy, at);
        let worst = |at: usize| {
            let ratio = |w: usize| of(w, floe, at) / of(w, vtube, at).max(1e-9);
            all.clone().map(ratio).fold(0.0, f64::max)
        };
        report.add_value("worst_fetch_over_vtube", "x", worst(FETCH_RATIO));
        report.add_value("worst_wait_over_vtube", "x", worst(WAIT_S));
        let numbers: Vec<usize> = all.clone().collect();
        let (ours, theirs) = (
            self.grand_mean(&numbers, floe),
            self.grand_mean(&numbers, vtube),
        );
        report
            .add_value("floe_wait_over_vtube", "x", ours[WAIT_S] / theirs[WAIT_S])
            .against(VTUBE, "s", theirs[WAIT_S]);
        for (name, at) in [
            ("pauses_per_min_over_vtube", PAUSES_PER_MIN),
            ("stalls_per_min_over_vtube", STALLS_PER_MIN),
        ] {
            report
                .add_value(name, "x", ours[at] / theirs[at].max(1e-9))
                .against(VTUBE, "1/min", theirs[at]);
        }
        self.compare_rest(report, &numbers, (floe, vtube));
        let most = |workloads: &mut dyn Iterator<Item = usize>| {
            let over_links = |w: usize| {
                let links = 0..self.links.len();
                links
                    .map(|l| self.mean(Some(w), Some(l), floe, FETCH_RATIO))
                    .fold(0.0, f64::max)
            };
            workloads.map(over_links).fold(0.0, f64::max)
        };
        report.add_value("floe_fetch_ratio_max", "x", most(&mut all.clone()));
        let mut steady = all.clone().filter(|w| self.is_one_of(*w, &STEADY));
        report.add_value("floe_fetch_ratio_max_steady", "x", most(&mut steady));
        report.add_value("floe_miss_rate", "%", ours[MISS_RATE]);
        let varied = self.most_variable();
        let theirs = self.mean(Some(varied), Some(0), vtube, FETCH_RATIO);
        let plan = self.mean(Some(varied), Some(0), vmtorrent, FETCH_RATIO);
        report
            .add_value("vmtorrent_over_vtube", "x", plan / theirs)
            .against("vTube's fetch ratio", "x", theirs);
        let name = &self.workloads[varied].meta.workload;
        report.note(format!(
            "vmtorrent_over_vtube: {name}, over {} Mbit/s",
            self.links[0].name
        ));
        Ok(())
    }

    /// Adds the waiting over vTube's without the workload in which vTube waits longest beside ours: a mean of a few workloads
    /// may be that of one.
    fn compare_rest(
        &self,
        report: &mut Report,
        workloads: &[usize],
        (floe, vtube): (usize, usize),
    ) {
        let ratio = |w: &usize| {
            let of = |policy: usize| self.mean(Some(*w), None, policy, WAIT_S);
            of(floe) / of(vtube).max(1e-9)
        };
        let worst = workloads
            .iter()
            .copied()
            .min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let rest = workloads.iter().copied().filter(|w| Some(*w) != worst);
        let rest: Vec<usize> = rest.collect();
        let Some(worst) = worst.filter(|_| !rest.is_empty()) else {
            return report.note("floe_wait_over_vtube_rest: there is one workload only");
        };
        let (ours, theirs) = (
            self.grand_mean(&rest, floe)[WAIT_S],
            self.grand_mean(&rest, vtube)[WAIT_S],
        );
        report
            .add_value("floe_wait_over_vtube_rest", "x", ours / theirs)
            .against(VTUBE, "s", theirs);
        report.note(format!(
            "floe_wait_over_vtube_rest: without {}, in which vTube waits longest beside ours",
            self.workloads[worst].meta.workload
        ));
    }
}

//! `cpu-sim`: machines that share cores, in virtual time: SBCO, its threshold, our own policy and others', against the kernel as it was
//! and is.

mod cell;
mod fair;
mod shapes;

use cell::{Cell, Host, NOW, Runs, THEN, VCPUS, Who};
use floe_simulator::cpu_sim::{FINITE, LockKind, Outcome, Workload};
use floe_testbed::harness::{Context, Report, Samples};
use std::collections::BTreeMap;

/// How often each cell is run, with other chances.
const ROUNDS: usize = 10;
/// Lengths of queues in which NPB is run: that of figure 4.12, and the longest of the others.
const NPB_QUEUES: [usize; 2] = [4, 12];
/// Thresholds of the sweep, in thousandths of the queue; the paper's is the middle one.
const THRESHOLDS: [u32; 5] = [333, 500, 667, 833, 1000];
/// Numbers of warehouses over which SPECjbb's mean is taken.
const WAREHOUSES: [usize; 5] = [8, 10, 12, 14, 16];

/// The cells of figures 4.6, 4.8 and 4.9, and those of NPB.
fn cells() -> Vec<Cell> {
    let parsec = FINITE
        .into_iter()
        .filter(|workload| *workload != Workload::Kernbench);
    let kernbench = [2, 4].map(|queue| (Workload::Kernbench, queue));
    let parsec = parsec.flat_map(|workload| [8, 12].map(|queue| (workload, queue)));
    let npb = NPB_QUEUES.map(|queue| (Workload::Npb, queue));
    let cells = kernbench.into_iter().chain(parsec).chain(npb);
    cells
        .map(|(workload, queue)| Cell { workload, queue })
        .collect()
}

/// Everything that was run, by kernel, queue, workload and policy.
struct Table<'a> {
    context: &'a Context,
    runs: BTreeMap<String, Runs>,
    /// How many runs were cut, by what was run and who decided.
    cut: BTreeMap<String, usize>,
}

impl Table<'_> {
    fn rounds(&self) -> usize {
        self.context.pick(ROUNDS, 2)
    }

    /// Runs machines, the first of which is measured, once for each seed.
    fn outcomes(&mut self, host: Host, who: Who, machines: &[(usize, Workload)]) -> Vec<Outcome> {
        let outcomes = cell::outcomes(host, who, machines, self.rounds());
        let measured = machines[0].1;
        let cut = outcomes.iter().filter(|outcome| !outcome.ended).count();
        if cell::ends(measured) && cut > 0 {
            let what = format!("{} by {}", measured.name(), who.name());
            *self.cut.entry(what).or_default() += cut;
        }
        outcomes
    }

    /// Runs a cell, or returns what it gave before.
    fn runs(&mut self, host: Host, cell: Cell, who: Who) -> Runs {
        let key = format!("{host:?} {cell:?} {who:?}");
        if let Some(known) = self.runs.get(&key) {
            return known.clone();
        }
        let runs = cell.runs(&self.outcomes(host, who, &cell.machines(host)));
        self.runs.insert(key, runs.clone());
        runs
    }

    /// The cost of a cell under one policy over that under another, seed by seed.
    fn over(&mut self, host: Host, cell: Cell, who: Who, other: Who) -> Samples {
        let ours = self.runs(host, cell, who).cost;
        ours.over(&self.runs(host, cell, other).cost)
    }

    /// SPECjbb's throughput beside so many disturbers, mean of 8 to 16 warehouses, over another policy's.
    fn jbb(&mut self, host: Host, disturbers: usize, who: Who, other: Who) -> Samples {
        let warehouses = self.context.pick(&WAREHOUSES[..], &WAREHOUSES[2..3]);
        let mut sums = [vec![0.0; self.rounds()], vec![0.0; self.rounds()]];
        for warehouses in warehouses {
            let cell = jbb_cell(*warehouses, disturbers);
            for (sum, who) in sums.iter_mut().zip([who, other]) {
                let runs = self.runs(host, cell, who);
                let rates = runs.cost.values().iter().map(|cost| 1.0 / cost);
                sum.iter_mut()
                    .zip(rates)
                    .for_each(|(sum, rate)| *sum += rate);
            }
        }
        let [ours, theirs] = sums;
        ours.iter()
            .zip(theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }
}

fn jbb_cell(warehouses: usize, disturbers: usize) -> Cell {
    Cell {
        workload: Workload::Jbb(warehouses),
        queue: disturbers + 1,
    }
}

/// The one with the largest median.
pub(super) fn worst(all: impl IntoIterator<Item = Samples>) -> Samples {
    let larger = |a: &Samples, b: &Samples| a.median().total_cmp(&b.median());
    all.into_iter().max_by(larger).unwrap_or_default()
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("cpu-sim", context.quick);
    let mut table = Table {
        context,
        runs: BTreeMap::new(),
        cut: BTreeMap::new(),
    };
    over_default(&mut report, &mut table, THEN, "");
    over_default(&mut report, &mut table, NOW, "eevdf.");
    over_balance(&mut report, &mut table, THEN, "");
    over_balance(&mut report, &mut table, NOW, "eevdf.");
    ours(&mut report, &mut table, THEN, "");
    ours(&mut report, &mut table, NOW, "eevdf.");
    adaptive(&mut report, &mut table, THEN, "");
    adaptive(&mut report, &mut table, NOW, "eevdf.");
    other_settings(&mut report, &mut table);
    shapes::tables(&mut report, &mut table);
    shapes::sweep(&mut report, &mut table);
    if !table.cut.is_empty() {
        let each: Vec<String> = table
            .cut
            .iter()
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        report.note(format!(
            "{} runs had not ended when they were cut, and count with the time until then: {}",
            table.cut.values().sum::<usize>(),
            each.join(", ")
        ));
    }
    fair::fairness(&mut report, context);
    fair::cost(&mut report, context);
    report.note(
        "virtual time: all figures but pick_ns are of a model (docs/cpu-scheduling.md), whose numbers were written down before the first run but where \
         that says otherwise; those of the paper stand beside them"
            .to_owned(),
    );
    Ok(report)
}

/// What the paper says of a figure, if it does.
fn beside(report: &mut Report, name: &str, unit: &str, samples: &Samples, paper: Option<f64>) {
    let figure = report.add(name, unit, samples);
    if let Some(paper) = paper {
        figure.against("the paper", unit, paper);
    }
}

/// Figures 4.6 to 4.9.
fn over_default(report: &mut Report, table: &mut Table, host: Host, base: &str) {
    let default = host.default();
    let policies = [Who::Balance, Who::Sbco, Who::Procco, Who::Cpuco];
    let mut all = Vec::new();
    for cell in cells() {
        let Cell { workload, queue } = cell;
        for who in policies {
            // the paper leaves it out after kernbench, as it is far behind
            if who == Who::Cpuco && workload != Workload::Kernbench {
                continue;
            }
            let ratio = table.over(host, cell, who, default);
            let name = format!(
                "{base}q{queue}.{}.{}_over_default",
                workload.name(),
                who.name()
            );
            report.add(&name, "x", &ratio);
            if who == Who::Sbco {
                all.push((workload, ratio));
            }
        }
    }
    let of = |workload| {
        let these = all.iter().filter(move |(other, _)| *other == workload);
        worst(these.map(|(_, ratio)| ratio.clone()))
    };
    for (workload, paper) in [
        (Workload::Kernbench, 0.86),
        (Workload::Dedup, 0.32),
        (Workload::Streamcluster, 0.48),
    ] {
        let name = format!("{base}{}_over_default", workload.name());
        let paper = base.is_empty().then_some(paper);
        beside(report, &name, "x", &of(workload), paper);
    }
    let mut every: Vec<Samples> = all.iter().map(|(_, ratio)| ratio.clone()).collect();
    for disturbers in 1..=5 {
        let throughput = table.jbb(host, disturbers, Who::Sbco, default);
        every.push(
            throughput
                .values()
                .iter()
                .map(|ratio| 1.0 / ratio)
                .collect(),
        );
        report.add(
            &format!("{base}d{disturbers}.specjbb.sbco_over_default"),
            "x",
            &throughput,
        );
    }
    report.add(&format!("{base}worst_over_default"), "x", &worst(every));
    let mut switches = Vec::new();
    for queue in [2, 4] {
        let cell = Cell {
            workload: Workload::Kernbench,
            queue,
        };
        let of_default = table.runs(host, cell, default).switches;
        for who in policies {
            let ratio = table.runs(host, cell, who).switches.over(&of_default);
            report.add(
                &format!("{base}q{queue}.{}.switches_over_default", who.name()),
                "x",
                &ratio,
            );
            if who == Who::Sbco {
                switches.push(ratio);
            }
        }
    }
    let paper = base.is_empty().then_some(0.97);
    beside(
        report,
        &format!("{base}switches_over_default"),
        "x",
        &worst(switches),
        paper,
    );
}

/// Where the lending itself shows.
fn over_balance(report: &mut Report, table: &mut Table, host: Host, base: &str) {
    for (workload, queues, paper) in [
        (Workload::Kernbench, &[4][..], 0.94),
        (Workload::Dedup, &[8, 12][..], 0.93),
        (Workload::Streamcluster, &[8, 12][..], 0.91),
    ] {
        let cells = queues.iter().map(|queue| Cell {
            workload,
            queue: *queue,
        });
        let ratios: Vec<Samples> = cells
            .map(|cell| table.over(host, cell, Who::Sbco, Who::Balance))
            .collect();
        let paper = base.is_empty().then_some(paper);
        beside(
            report,
            &format!("{base}{}_over_balance", workload.name()),
            "x",
            &worst(ratios),
            paper,
        );
    }
    for (other, paper) in [(Who::Balance, 1.04), (Who::Procco, 1.06)] {
        let mut all = Samples::default();
        for disturbers in 1..=5 {
            let ratio = table.jbb(host, disturbers, Who::Sbco, other);
            ratio.values().iter().for_each(|ratio| all.push(*ratio));
        }
        let paper = base.is_empty().then_some(paper);
        beside(
            report,
            &format!("{base}specjbb_over_{}", other.name()),
            "x",
            &all,
            paper,
        );
    }
}

/// Our own policy against SBCO and what others do, over all workloads.
fn ours(report: &mut Report, table: &mut Table, host: Host, base: &str) {
    let default = host.default();
    let others = [Who::Sbco, Who::Patched, Who::Holder, default];
    let mut all: BTreeMap<&str, Vec<Samples>> = BTreeMap::new();
    let mut all_patched = Vec::new();
    for cell in cells() {
        let Cell { workload, queue } = cell;
        for other in others {
            let ratio = table.over(host, cell, Who::Told, other);
            let against = if other == default {
                "default"
            } else {
                other.name()
            };
            let name = format!("{base}q{queue}.{}.told_over_{against}", workload.name());
            report.add(&name, "x", &ratio);
            all.entry(against).or_default().push(ratio);
        }
        let patched = table.over(host, cell, Who::Patched, default);
        let name = format!("{base}q{queue}.{}.patched_over_default", workload.name());
        report.add(&name, "x", &patched);
        all_patched.push(patched);
    }
    report
        .add(
            &format!("{base}worst_patched_over_default"),
            "x",
            &worst(all_patched),
        )
        .against("what its authors say: never a loss", "x", 1.0);
    for (against, ratios) in all {
        let product = ratios.iter().map(|ratio| ratio.median().ln()).sum::<f64>();
        let mean = (product / ratios.len() as f64).exp();
        report.add_value(&format!("{base}told_over_{against}"), "x", mean);
        report.add(
            &format!("{base}worst_told_over_{against}"),
            "x",
            &worst(ratios),
        );
    }
    // the patches' own claim: dedup, two machines that both run it
    let mut two = |who: Who| -> Samples {
        let outcomes = table.outcomes(host, who, &[(VCPUS, Workload::Dedup); 2]);
        outcomes.iter().map(|outcome| outcome.took_s).collect()
    };
    let (with, without, told) = (two(Who::Patched), two(Who::Yield), two(Who::Told));
    report
        .add(
            &format!("{base}two_dedup.patched_speed"),
            "x",
            &without.over(&with),
        )
        .against("what its authors measured", "x", 1.47);
    report.add(
        &format!("{base}two_dedup.told_speed"),
        "x",
        &without.over(&told),
    );
}

/// The adaptive threshold against the best fixed one of each workload.
fn adaptive(report: &mut Report, table: &mut Table, host: Host, base: &str) {
    let mut all = Vec::new();
    let longest = |workload| {
        if workload == Workload::Kernbench {
            4
        } else {
            8
        }
    };
    let finite = FINITE.into_iter().map(|workload| Cell {
        workload,
        queue: longest(workload),
    });
    for cell in finite.chain([jbb_cell(WAREHOUSES[2], 3)]) {
        let mut best: Option<(u32, Samples)> = None;
        for threshold in THRESHOLDS {
            let cost = table.runs(host, cell, Who::Fixed(threshold)).cost;
            if best
                .as_ref()
                .is_none_or(|(_, best)| cost.median() < best.median())
            {
                best = Some((threshold, cost));
            }
        }
        let Some((threshold, best)) = best else {
            continue;
        };
        let ratio = table.runs(host, cell, Who::Adaptive).cost.over(&best);
        let name = format!("{base}{}.adaptive_over_best", cell.workload.name());
        report.add(&name, "x", &ratio);
        let name = format!("{base}{}.best_threshold", cell.workload.name());
        report.add_value(&name, "thousandths of the queue", f64::from(threshold));
        all.push(ratio);
    }
    report.add(&format!("{base}adaptive_over_best"), "x", &worst(all));
}

/// Kernbench with other locks in the guests, and on eight cores.
fn other_settings(report: &mut Report, table: &mut Table) {
    let cell = Cell {
        workload: Workload::Kernbench,
        queue: 4,
    };
    let settings = [
        ("queued", THEN.cores, LockKind::Queued),
        ("paravirtual", THEN.cores, LockKind::Paravirtual),
        ("eight_cores", 2 * THEN.cores, LockKind::Unfair),
    ];
    for (name, cores, locks) in settings {
        for (base, modern) in [("", false), ("eevdf.", true)] {
            let host = Host {
                modern,
                cores,
                locks,
            };
            for who in [Who::Sbco, Who::Told] {
                let ratio = table.over(host, cell, who, host.default());
                let name = format!("{base}{name}.kernbench.{}_over_default", who.name());
                report.add(&name, "x", &ratio);
            }
        }
    }
}

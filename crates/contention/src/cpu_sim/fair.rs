//! Fairness between machines (figure 4.12), and what a decision costs (which section 4.4.4 promises to analyse).

use super::ROUNDS;
use super::cell::{THEN, VCPUS, Who};
use floe_sched::MachineId;
use floe_sched::cpu::{Scheduler, Stop, TaskId, WEIGHT};
use floe_simulator::cpu_sim::Workload;
use floe_simulator::sim::sweep::parallel;
use floe_testbed::harness::{Context, Report, Samples};
use std::time::Instant;

/// Periods over which processor time is compared, in seconds, and how many of each in a run.
const PERIODS: [(u64, usize); 3] = [(1, 60), (5, 24), (120, 3)];
/// Decisions that are timed at a time, and how often.
const PICKS: u32 = 20_000;
const TIMES: usize = 9;

/// In each period: the largest difference of machines' processor time, each divided by its vCPUs and times four, in milliseconds.
fn lags(who: Who, vcpus: &[usize], period_s: u64, count: usize, seed: u64) -> Vec<f64> {
    let machines = vcpus.iter().map(|vcpus| (*vcpus, Workload::Npb)).collect();
    let limit_s = 1.0 + period_s as f64 * count as f64 + 0.001;
    let outcome = THEN.run(who, machines, seed, period_s as f64, limit_s);
    let between = outcome.notes.windows(2).map(|two| {
        let ran = two[1].iter().zip(&two[0]).zip(vcpus);
        let ms: Vec<f64> = ran
            .map(|((after, before), vcpus)| {
                (after - before) as f64 / 1e6 * VCPUS as f64 / *vcpus as f64
            })
            .collect();
        let most = ms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        most - ms.iter().copied().fold(f64::INFINITY, f64::min)
    });
    between.collect()
}

/// Standard deviation over the mean, in percent.
fn rsd_pct(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    variance.sqrt() / mean.max(1e-9) * 100.0
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Figure 4.12 with four machines of four vCPUs, and with machines of two and of four side by side.
pub fn fairness(report: &mut Report, context: &Context) {
    for (name, vcpus) in [("", &[4, 4, 4, 4][..]), ("unequal.", &[4, 2, 4, 2][..])] {
        let mut ratios = Vec::new();
        let (mut lag_ms, mut rsd) = (0.0f64, 0.0f64);
        for (period_s, count) in PERIODS {
            let count = context.pick(count, 2);
            let [default, sbco, told] = [Who::Default, Who::Sbco, Who::Told].map(|who| {
                parallel(context.pick(ROUNDS, 1), |seed| {
                    lags(who, vcpus, period_s, count, seed as u64)
                })
            });
            let rsds: Samples = sbco.iter().map(|lags| rsd_pct(lags)).collect();
            let [default, sbco, told] = [default, sbco, told]
                .map(|runs| runs.iter().map(|lags| mean(lags)).collect::<Samples>());
            let of = |samples: &Samples| mean(samples.values());
            ratios.push(of(&sbco) / of(&default).max(1e-9));
            lag_ms = lag_ms.max(of(&sbco));
            rsd = rsd.max(rsds.median());
            for (who, samples) in [("sbco", &sbco), ("told", &told)] {
                report
                    .add_mean(&format!("{name}s{period_s}.{who}.lag_ms"), "ms", samples)
                    .against("the default", "ms", of(&default));
            }
            report.add(&format!("{name}s{period_s}.sbco.rsd_pct"), "%", &rsds);
        }
        let worst = ratios.into_iter().fold(0.0, f64::max);
        report
            .add_value(&format!("{name}lag_over_default"), "x", worst)
            .against("the paper: 15 to 25 ms over 20", "x", 1.25);
        report
            .add_value(&format!("{name}lag_ms"), "ms", lag_ms)
            .against("the paper, at most", "ms", 25.0);
        report
            .add_value(&format!("{name}rsd_pct"), "%", rsd)
            .against("the paper, at most", "%", 14.0);
    }
}

/// The processor time of a decision: who ran is put back, and the next one chosen.
pub fn cost(report: &mut Report, context: &Context) {
    for vcpus in [8u32, 64, 200] {
        let [plain, sbco, told] = [Who::Default, Who::Sbco, Who::Told].map(|who| {
            let times = 0..context.pick(TIMES, 2);
            times.map(|_| pick_ns(who, vcpus)).collect::<Samples>()
        });
        report
            .add(&format!("pick_ns.{vcpus}"), "ns", &sbco)
            .against("the kernel's order alone", "ns", plain.median());
        report
            .add(&format!("pick_ns.{vcpus}.told"), "ns", &told)
            .against("the kernel's order alone", "ns", plain.median());
    }
}

fn pick_ns(who: Who, vcpus: u32) -> f64 {
    let mut scheduler = Scheduler::new(THEN.base(), THEN.cores, who.policy());
    for number in 0..vcpus {
        let machine = Some(MachineId(1 + number / VCPUS as u32));
        let added = scheduler.add(TaskId(number), machine, WEIGHT);
        assert_eq!(added, Ok(()));
        scheduler.wake(u64::from(number) * 1_000, TaskId(number), None);
    }
    let (mut now_ns, mut others) = (1_000_000, Vec::new());
    let began = Instant::now();
    for turn in 0..PICKS {
        // cores choose at different times, after slices that differ
        now_ns += 500_000 + u64::from(turn.wrapping_mul(2_654_435_761) >> 12);
        let core = turn as usize % THEN.cores;
        scheduler.stop(now_ns, core, Stop::Preempted);
        std::hint::black_box(scheduler.pick(now_ns, core, &mut others));
        others.clear();
    }
    began.elapsed().as_nanos() as f64 / f64::from(PICKS)
}

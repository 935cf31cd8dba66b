//! Plots of `swarm-sim`, like the paper's figures 8 and 10.
use super::swarm_sim::Swarms;
use crate::plot::{Axes, COLOURS, Scale, Svg};
use crate::swarm_sim::PIECE_BYTES;
use crate::swarm_sim::sweep::{MBIT_100, policies};
use floe_swarm::model::{Curve, Distribution, Fetch, Setting};
use std::collections::BTreeMap;

const WIDTH: f64 = 760.0;
const AT: (f64, f64, f64, f64) = (64.0, 70.0, 670.0, 300.0);

/// Draws all plots. Returns them by name.
pub fn draw(all: &Swarms) -> BTreeMap<String, String> {
    let mut plots = BTreeMap::new();
    plots.insert("swarm-slowdown".into(), slowdown(all));
    plots.insert("swarm-rate".into(), rate(all));
    plots
}

/// Figure 8: run time over that with everything in memory, by the size of the swarm; the model's curves beside it.
fn slowdown(all: &Swarms) -> String {
    let mut svg = Svg::new(
        WIDTH,
        430.0,
        "A swarm's run time by its size, 100 Mbit/s",
        "Mean run time over the run time with everything in memory, for each policy and size; dashed: what the model predicts",
    );
    let most = all.hosts.last().copied().unwrap_or(2);
    let worst = (0..policies().len()).map(|policy| all.mean(most, policy));
    let axes = Axes {
        at: AT,
        x: Scale::Log(2.0, most as f64),
        y: Scale::Log(1.0, worst.fold(10.0, f64::max)),
    };
    axes.draw(&mut svg, "hosts", "run time / in memory");
    let mut legend = Vec::new();
    for (policy, (name, config)) in policies().iter().enumerate() {
        let points: Vec<(f64, f64)> = all
            .hosts
            .iter()
            .map(|n| (*n as f64, all.mean(*n, policy)))
            .collect();
        axes.line(&mut svg, &points, COLOURS[policy], "");
        legend.push((*name, COLOURS[policy], ""));
        if config.wardens {
            continue; // the model knows no wardens
        }
        let fetch = if config.prefetch {
            Fetch::InOrder
        } else {
            Fetch::Demand
        };
        let by = if config.peers {
            Distribution::Swarm
        } else {
            Distribution::Central
        };
        let predicted: Vec<(f64, f64)> = all
            .hosts
            .iter()
            .map(|n| (*n as f64, predicted(all, *n, by, fetch)))
            .collect();
        axes.line(&mut svg, &predicted, COLOURS[policy], "5 4");
    }
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

fn predicted(all: &Swarms, hosts: usize, by: Distribution, fetch: Fetch) -> f64 {
    let setting = Setting {
        link: MBIT_100.bits_per_s as f64 / 8.0,
        piece: PIECE_BYTES as f64,
        rtt_s: MBIT_100.rtt_us as f64 / 1e6,
        service_s: MBIT_100.service_us as f64 / 1e6,
    };
    let rate = setting.rate(hosts, by, fetch);
    let (mut sum, mut count) = (0.0, 0.0);
    for case in &all.cases {
        let of_case: f64 = case
            .runs
            .iter()
            .map(|run| curve(run).slowdown(rate, fetch))
            .sum();
        sum += of_case / case.runs.len() as f64;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

fn curve(run: &crate::swarm_sim::Recorded) -> Curve {
    let accesses = run
        .accesses
        .iter()
        .map(|(t_us, _)| (*t_us as f64 / 1e6, PIECE_BYTES as f64));
    Curve::new(accesses, run.end_us as f64 / 1e6)
}

/// Figure 10: what hosts receive over time.
fn rate(all: &Swarms) -> String {
    let mut svg = Svg::new(
        WIDTH,
        430.0,
        "What a host receives in each second",
        "Mean download rate of a host over time for a small and a large swarm, with the paper's policy and ours",
    );
    let sizes: Vec<usize> = all
        .hosts
        .iter()
        .copied()
        .filter(|n| [16, 100].contains(n))
        .collect();
    let last = all.cases.len() - 1;
    let mut lines = Vec::new();
    for (n, count) in sizes.iter().enumerate() {
        for (policy, colour) in COLOURS.into_iter().enumerate().take(2) {
            let received = &all.outcomes[&(last, *count, policy)].received;
            let mbit =
                |pieces: &u32| f64::from(*pieces) * PIECE_BYTES as f64 * 8.0 / 1e6 / *count as f64;
            let points: Vec<(f64, f64)> = received
                .iter()
                .enumerate()
                .map(|(s, v)| (s as f64 + 0.5, mbit(v)))
                .collect();
            let name = format!("{}, {count} hosts", policies()[policy].0);
            lines.push((name, points, colour, if n == 0 { "5 4" } else { "" }));
        }
    }
    let ends = lines.iter().map(|line| line.1.len() as f64);
    let axes = Axes {
        at: AT,
        x: Scale::Linear(0.0, ends.fold(1.0, f64::max).min(60.0)),
        y: Scale::Linear(0.0, 105.0),
    };
    axes.draw(&mut svg, "seconds", "Mbit/s");
    for (_, points, colour, dash) in &lines {
        let shown: Vec<(f64, f64)> = points
            .iter()
            .copied()
            .filter(|point| point.0 < 60.0)
            .collect();
        axes.line(&mut svg, &shown, colour, dash);
    }
    let legend: Vec<(&str, &str, &str)> = lines.iter().map(|l| (l.0.as_str(), l.2, l.3)).collect();
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

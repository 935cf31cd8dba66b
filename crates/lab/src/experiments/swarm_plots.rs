//! Plots of `swarm-sim`, like the paper's figures 4 to 10: what the live policies do in the simulator, and beside it what the paper's
//! model says.
use super::swarm_sim::Swarms;
use crate::plot::{Axes, COLOURS, Scale, Svg};
use crate::swarm_sim::PIECE_BYTES;
use crate::swarm_sim::sweep::{GBIT_1, MBIT_100, SAME_SECOND_US, policies};
use crate::swarm_sim::{Link, Recorded};
use floe_swarm::model::{Curve, Distribution, Fetch, Setting};
use floe_swarm::policy::Config;
use std::collections::BTreeMap;

/// The size of the swarm whose machines are followed.
const PLAYED: usize = 100;
/// What dashed lines are.
const AS_THE_MODEL: (&str, &str, &str) = ("as the model predicts", COLOURS[5], "5 4");
/// The line of a machine that waits for nothing.
const IN_MEMORY: &str = COLOURS[5];
const WIDTH: f64 = 760.0;
const AT: (f64, f64, f64, f64) = (64.0, 70.0, 670.0, 300.0);

/// Draws all plots: of swarms on the slower link, and on the faster one. Returns them by name.
pub fn draw(all: &Swarms, fast: &Swarms) -> BTreeMap<String, String> {
    let mut plots = BTreeMap::new();
    plots.insert("swarm-slowdown".into(), slowdown(all, MBIT_100));
    plots.insert("swarm-slowdown-1g".into(), slowdown(fast, GBIT_1));
    for (case, workload) in all.cases.iter().enumerate() {
        plots.insert(
            format!("swarm-playback-{}", workload.name),
            playback(all, case, false),
        );
        plots.insert(
            format!("swarm-delay-{}", workload.name),
            playback(all, case, true),
        );
    }
    plots.insert("swarm-rate".into(), rate(all));
    plots
}

/// Figures 8 and 9: run time over that with everything in memory, by the size of the swarm; the model's curves beside it.
fn slowdown(all: &Swarms, link: Link) -> String {
    let mut svg = Svg::new(
        WIDTH,
        430.0,
        &format!(
            "A swarm's run time by its size, {} Mbit/s",
            link.bits_per_s / 1_000_000
        ),
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
        let Some((by, fetch)) = in_the_model(config) else {
            continue;
        };
        let predicted: Vec<(f64, f64)> = all
            .hosts
            .iter()
            .map(|n| (*n as f64, predicted(all, *n, link, by, fetch)))
            .collect();
        axes.line(&mut svg, &predicted, COLOURS[policy], "5 4");
    }
    legend.push(AS_THE_MODEL);
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

/// Returns what the model calls a policy; it knows no wardens.
fn in_the_model(config: &Config) -> Option<(Distribution, Fetch)> {
    let fetch = match config.prefetch {
        true => Fetch::InOrder,
        false => Fetch::Demand,
    };
    let by = match config.peers {
        true => Distribution::Swarm,
        false => Distribution::Central,
    };
    (!config.wardens).then_some((by, fetch))
}

fn setting(link: Link) -> Setting {
    Setting {
        link: link.bits_per_s as f64 / 8.0,
        piece: PIECE_BYTES as f64,
        rtt_s: link.rtt_us as f64 / 1e6,
        service_s: link.service_us as f64 / 1e6,
    }
}

fn predicted(all: &Swarms, hosts: usize, link: Link, by: Distribution, fetch: Fetch) -> f64 {
    let rate = setting(link).rate(hosts, by, fetch);
    let (mut sum, mut count) = (0.0, 0.0);
    for case in &all.cases {
        let of_case: f64 = case
            .runs
            .iter()
            .map(|run| curve(run, 1.0).slowdown(rate, fetch))
            .sum();
        sum += of_case / case.runs.len() as f64;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

/// Returns M of a run on a host that computes so much slower than recorded.
fn curve(run: &Recorded, slowness: f64) -> Curve {
    let accesses = run.accesses.iter();
    let accesses = accesses.map(|(us, _)| (*us as f64 / 1e6 * slowness, PIECE_BYTES as f64));
    Curve::new(accesses, run.end_us as f64 / 1e6 * slowness)
}

/// Figures 5 to 7: what a machine of one workload has accessed by a time, with everything in memory and by each policy. With `delay`
/// figure 4: by how much it is late.
fn playback(all: &Swarms, case: usize, delay: bool) -> String {
    let hosts = *all.hosts.iter().rfind(|n| **n <= PLAYED).unwrap_or(&2);
    let name = &all.cases[case].name;
    let (title, about) = match delay {
        true => (
            format!("How late a machine is, {name} on {hosts} hosts, 100 Mbit/s"),
            "Seconds that a machine is behind one with everything in memory, over time; dashed: what the model predicts",
        ),
        false => (
            format!("What a machine has accessed, {name} on {hosts} hosts, 100 Mbit/s"),
            "Megabytes accessed over time, with everything in memory and by each policy; dashed: what the model predicts",
        ),
    };
    let mut svg = Svg::new(WIDTH, 430.0, &title, about);
    let first = all.cases[case].first_host(hosts, SAME_SECOND_US);
    let in_memory = curve(first.run, first.slowness);
    let shown = |points: &[(f64, f64)]| match delay {
        true => late(points, &in_memory),
        false => points.iter().map(|(s, bytes)| (*s, bytes / 1e6)).collect(),
    };
    let (mut lines, mut legend) = (Vec::new(), Vec::new());
    for (policy, (name, config)) in policies().iter().enumerate() {
        let played = &all.outcomes[&(case, hosts, policy)].played_us;
        let points = played.iter().enumerate();
        let points: Vec<(f64, f64)> = points
            .map(|(n, us)| (*us as f64 / 1e6, (n as u64 + 1) as f64 * PIECE_BYTES as f64))
            .collect();
        lines.push((shown(&points), COLOURS[policy], ""));
        legend.push((*name, COLOURS[policy], ""));
        if let Some((by, fetch)) = in_the_model(config) {
            let predicted = in_memory.playback(setting(MBIT_100).rate(hosts, by, fetch), fetch);
            lines.push((shown(&predicted), COLOURS[policy], "5 4"));
        }
    }
    legend.push(AS_THE_MODEL);
    if !delay {
        lines.push((shown(in_memory.points()), IN_MEMORY, ""));
        legend.push(("in memory", IN_MEMORY, ""));
    }
    // a server alone takes ten times as long as the others: the axis ends where the swarms have ended
    let swarms = lines
        .iter()
        .filter(|line| line.1 != COLOURS[3] && line.1 != COLOURS[4]);
    let ends: Vec<(f64, f64)> = swarms.filter_map(|line| line.0.last().copied()).collect();
    let end_s = ends.iter().map(|end| end.0).fold(1.0, f64::max);
    let most = ends.iter().map(|end| end.1).fold(0.0, f64::max);
    let axes = Axes {
        at: AT,
        x: Scale::up_to([end_s]),
        y: Scale::up_to([most]),
    };
    let unit = if delay { "seconds late" } else { "MB" };
    axes.draw(&mut svg, "seconds", unit);
    for (points, colour, dash) in &lines {
        let visible = points.iter().copied();
        let visible = visible.filter(|at| at.0 <= end_s && at.1 <= most * 1.05);
        axes.line(&mut svg, &visible.collect::<Vec<_>>(), colour, dash);
    }
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

/// Returns by how many seconds each access is later than with everything in memory.
fn late(points: &[(f64, f64)], in_memory: &Curve) -> Vec<(f64, f64)> {
    let memory = in_memory.points();
    let when = |bytes: f64| {
        let next = memory.partition_point(|point| point.1 < bytes);
        memory.get(next).map_or(in_memory.end_s(), |point| point.0)
    };
    points
        .iter()
        .map(|(s, bytes)| (*s, (s - when(*bytes)).max(0.0)))
        .collect()
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

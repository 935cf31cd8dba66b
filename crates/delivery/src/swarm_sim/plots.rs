//! Plots of `swarm-sim`, like the paper's figures 4 to 10: what the live policies do in the simulator, and beside it what the paper's
//! model says.
use super::Swarms;
use super::plan::{CS_D, CS_P, IN_ORDER, Key, MAIN, OURS, P2P_D, SMALL, Setting, WORKLOADS};
use floe_simulator::predict::{Modelled, curve, setting};
use floe_simulator::swarm_sim::PIECE_BYTES;
use floe_simulator::swarm_sim::sweep::Row;
use floe_swarm::model::Curve;
use floe_testbed::plot::{Axes, COLOURS, Scale, Svg};
use std::collections::BTreeMap;

/// What dashed lines are.
const AS_THE_MODEL: (&str, &str, &str) = ("as the model predicts", COLOURS[5], "5 4");
/// The line of a machine that waits for nothing.
const IN_MEMORY: &str = COLOURS[5];
const WIDTH: f64 = 760.0;
const AT: (f64, f64, f64, f64) = (64.0, 70.0, 670.0, 300.0);

/// What is drawn: our policy, and those of the model, each in a colour of its own.
const DRAWN: [Option<Modelled>; 5] = [
    None,
    Some(Modelled::P2pP),
    Some(Modelled::P2pD),
    Some(Modelled::CsP),
    Some(Modelled::CsD),
];

/// What is drawn of a host that is alone (4.3): by which policy, and which of the model's that is.
const ALONE: [(&str, Row, Modelled); 2] = [
    ("demand", CS_D, Modelled::CsD),
    ("profile", IN_ORDER, Modelled::CsP),
];
/// Its links: whether it is the fast one.
const LINKS: [(&str, bool); 2] = [("100 Mbit/s", false), ("1 Gbit/s", true)];

fn name_of(drawn: Option<Modelled>) -> &'static str {
    drawn.map_or("ours", Modelled::name)
}

/// Returns by which policy that was simulated; of VMTorrent's the faster reading.
fn row_of(all: &Swarms, setting: Setting, hosts: usize, drawn: Option<Modelled>) -> Option<Row> {
    match drawn {
        None => Some(OURS),
        Some(Modelled::P2pP) => all.paper_row(setting, hosts),
        Some(Modelled::P2pD) => Some(P2P_D),
        Some(Modelled::CsP) => Some(CS_P),
        Some(Modelled::CsD) => Some(CS_D),
    }
}

/// Draws all plots of a full run. Returns them by name.
pub fn draw(all: &Swarms) -> BTreeMap<String, String> {
    let mut plots = BTreeMap::new();
    let fast = Setting {
        gigabit: true,
        ..MAIN
    };
    plots.insert("swarm-slowdown".into(), slowdown(all, MAIN));
    plots.insert("swarm-slowdown-1g".into(), slowdown(all, fast));
    for (workload, name) in WORKLOADS.iter().enumerate() {
        for (what, delay) in [("playback", false), ("delay", true)] {
            if let Some(plot) = playback(all, workload, delay) {
                plots.insert(format!("swarm-{what}-{name}"), plot);
            }
        }
    }
    plots.insert("swarm-rate".into(), rate(all));
    plots
}

/// Figures 8 and 9: run time over that with everything in memory, by the size of the swarm; the model's curves beside it.
fn slowdown(all: &Swarms, setting: Setting) -> String {
    let mut svg = Svg::new(
        WIDTH,
        430.0,
        &format!(
            "A swarm's run time by its size, {} Mbit/s, recorded times / {}",
            setting.link().bits_per_s / 1_000_000,
            setting.faster
        ),
        "Mean run time over the run time with everything in memory, for each policy and size; dashed: what the model predicts",
    );
    let hosts: Vec<usize> = all.hosts(setting).into_iter().filter(|n| *n > 1).collect();
    let lines = DRAWN.map(|drawn| {
        let points = hosts.iter().filter_map(|n| {
            let row = row_of(all, setting, *n, drawn)?;
            Some((*n as f64, all.mean(setting, *n, row)?))
        });
        points.collect::<Vec<(f64, f64)>>()
    });
    let worst = lines.iter().flatten().map(|point| point.1);
    let most = hosts.last().copied().unwrap_or(2);
    let axes = Axes {
        at: AT,
        x: Scale::Log(2.0, most as f64),
        y: Scale::Log(1.0, worst.fold(10.0, f64::max)),
    };
    axes.draw(&mut svg, "hosts", "run time / in memory");
    let mut legend = Vec::new();
    for (n, drawn) in DRAWN.into_iter().enumerate() {
        axes.line(&mut svg, &lines[n], COLOURS[n], "");
        legend.push((name_of(drawn), COLOURS[n], ""));
        let Some(modelled) = drawn else { continue };
        let points = hosts
            .iter()
            .map(|n| (*n as f64, predicted(all, setting, *n, modelled)));
        axes.line(&mut svg, &points.collect::<Vec<_>>(), COLOURS[n], "5 4");
    }
    legend.push(AS_THE_MODEL);
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

/// Returns what the model says, the mean over the workloads.
fn predicted(all: &Swarms, setting: Setting, hosts: usize, modelled: Modelled) -> f64 {
    let cases = (0..WORKLOADS.len()).filter_map(|workload| {
        all.cases.of(&Key {
            setting,
            hosts,
            row: OURS,
            workload,
        })
    });
    let means: Vec<f64> = cases
        .map(|case| {
            let runs = case.runs.iter().map(|(run, _)| run);
            modelled.slowdown(runs, setting.piece_bytes(), setting.link(), hosts)
        })
        .collect();
    means.iter().sum::<f64>() / means.len().max(1) as f64
}

/// Figures 5 to 7: what a machine of one workload has accessed by a time on a host that is alone, with everything in memory, by demand and
/// by the profile in its order. With `delay` figure 4: by how much it is late. Links and pieces are the paper's. `None` if that was not
/// simulated.
fn playback(all: &Swarms, workload: usize, delay: bool) -> Option<String> {
    let key = |gigabit, row| Key {
        setting: Setting { gigabit, ..SMALL },
        hosts: 1,
        row,
        workload,
    };
    let case = all.cases.of(&key(false, CS_D))?;
    let (what, about) = match delay {
        true => (
            "How late a machine is",
            "Seconds that a machine is behind one with everything in memory, over time; dashed: what the model predicts",
        ),
        false => (
            "What a machine has accessed",
            "Megabytes accessed over time, with everything in memory and by each policy; dashed: what the model predicts",
        ),
    };
    let title = format!(
        "{what}: {} on one host, recorded times / {}",
        case.name, SMALL.faster
    );
    let mut svg = Svg::new(WIDTH, 430.0, &title, about);
    let piece_bytes = SMALL.piece_bytes();
    let first = case.first_host(1, SMALL.spread_us());
    let in_memory = curve(first.run, first.slowness, piece_bytes);
    let shown = |points: &[(f64, f64)]| match delay {
        true => late(points, &in_memory),
        false => points.iter().map(|(s, bytes)| (*s, bytes / 1e6)).collect(),
    };
    let (mut lines, mut names) = (Vec::new(), Vec::new());
    for (speed, gigabit) in LINKS {
        for (name, row, modelled) in ALONE {
            let key = key(gigabit, row);
            let played = all.told(&key)?.played_us.iter().zip(1u64..);
            let points: Vec<(f64, f64)> = played
                .map(|(us, pieces)| (*us as f64 / 1e6, (pieces * piece_bytes) as f64))
                .collect();
            let colour = COLOURS[names.len()];
            names.push((format!("{name}, {speed}"), colour));
            lines.push((shown(&points), colour, ""));
            let of_model = setting(key.setting.link(), piece_bytes);
            let predicted = modelled.playback(&in_memory, &of_model, 1);
            lines.push((shown(&predicted), colour, AS_THE_MODEL.2));
        }
    }
    let mut others = vec![AS_THE_MODEL];
    if !delay {
        lines.push((shown(in_memory.points()), IN_MEMORY, ""));
        others.push(("in memory", IN_MEMORY, ""));
    }
    let points = lines.iter().flat_map(|line| &line.0);
    let axes = Axes {
        at: AT,
        x: Scale::up_to(points.clone().map(|point| point.0)),
        y: Scale::up_to(points.map(|point| point.1)),
    };
    let unit = if delay { "seconds late" } else { "MB" };
    axes.draw(&mut svg, "seconds", unit);
    for (points, colour, dash) in &lines {
        axes.line(&mut svg, points, colour, dash);
    }
    let names = names.iter().map(|of| (of.0.as_str(), of.1, ""));
    svg.legend(AT.0, 44.0, &names.collect::<Vec<_>>());
    svg.legend(AT.0, 62.0, &others);
    Some(svg.finish())
}

/// Returns by how many seconds each access is later than with everything in memory.
fn late(points: &[(f64, f64)], in_memory: &Curve) -> Vec<(f64, f64)> {
    let memory = in_memory.points();
    let when = |bytes: f64| {
        let next = memory.partition_point(|point| point.1 < bytes);
        memory.get(next).map_or(in_memory.end_s(), |point| point.0)
    };
    let mut accesses = points.to_vec();
    // the end of a run is no access
    accesses.dedup_by_key(|point| point.1);
    accesses
        .iter()
        .map(|(s, bytes)| (*s, (s - when(*bytes)).max(0.0)))
        .collect()
}

/// Figure 10: what hosts receive over time.
fn rate(all: &Swarms) -> String {
    let mut svg = Svg::new(
        WIDTH,
        430.0,
        &format!(
            "What a host receives in each second, recorded times / {}",
            MAIN.faster
        ),
        "Mean download rate of a host over time for a small and a large swarm, with the paper's policy and ours",
    );
    let small = if all.sizes.paper() > 16 { 16 } else { 2 };
    let mut lines = Vec::new();
    for (hosts, dash) in [(small, "5 4"), (all.sizes.paper(), "")] {
        for (n, drawn) in DRAWN.into_iter().enumerate().take(2) {
            let told = row_of(all, MAIN, hosts, drawn).and_then(|row| {
                all.told(&Key {
                    setting: MAIN,
                    hosts,
                    row,
                    workload: WORKLOADS.len() - 1,
                })
            });
            let received: &[u32] = told.map_or(&[][..], |told| told.received.as_slice());
            let mbit =
                |pieces: &u32| f64::from(*pieces) * PIECE_BYTES as f64 * 8.0 / 1e6 / hosts as f64;
            let points: Vec<(f64, f64)> = received
                .iter()
                .enumerate()
                .map(|(s, pieces)| (s as f64 + 0.5, mbit(pieces)))
                .collect();
            let name = format!("{}, {hosts} hosts", name_of(drawn));
            lines.push((name, points, COLOURS[n], dash));
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

//! Plots of `stream-sim`'s runs, like the vTube paper's figures 2, 3, 7, 11, 12 and 13.
use super::stream_runs::Runs;
use floe_planner::{Method, Policy, ZeroTrace};
use floe_simulator::sim::sweep::{POLICIES, learn, parallel, run_one};
use floe_simulator::sim::{Run, StallKind};
use floe_testbed::plot::{Anchor, Axes, COLOURS, FAINT, INK, SOFT, Scale, Svg};
use floe_testbed::traces::Workload;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const CHUNK_MB: f64 = floe_image::CHUNK_SIZE as f64 / 1e6;
const WIDTH: f64 = 760.0;
/// The left edge of most axes.
const LEFT: f64 = 64.0;
const INNER: f64 = 670.0;

type Touched = BTreeSet<(u8, u32)>;

/// Draws all plots. Returns them by name.
pub fn draw(all: &Runs) -> anyhow::Result<BTreeMap<String, String>> {
    let varied = &all.workloads[all.most_variable()];
    let mut plots = BTreeMap::new();
    if let [one, other, ..] = &varied.traces[..] {
        plots.insert("state-accessed".into(), state_accessed(varied, one, other));
        plots.insert("clusters".into(), clusters(varied));
    }
    plots.insert("cluster-sizes".into(), cluster_sizes(all));
    plots.insert("runs".into(), runs(all));
    plots.insert("progress".into(), progress(all));
    plots.insert("overhead".into(), overhead(all));
    plots.insert("misses".into(), misses(all)?);
    Ok(plots)
}

fn touched(trace: &ZeroTrace) -> Touched {
    trace.accesses.iter().map(|a| (a.region, a.chunk)).collect()
}

/// Returns points of seconds and the MB touched by then, of the chunks for which `counts` is true.
fn growth(trace: &ZeroTrace, counts: impl Fn(&(u8, u32)) -> bool) -> Vec<(f64, f64)> {
    let (mut mb, mut values) = (0.0, vec![(0.0, 0.0)]);
    for access in &trace.accesses {
        if counts(&(access.region, access.chunk)) {
            let at_s = access.t_us as f64 / 1e6;
            values.push((at_s, mb));
            mb += CHUNK_MB;
            values.push((at_s, mb));
        }
    }
    values.push((trace.end_us as f64 / 1e6, mb));
    values
}

/// Figure 2: what two runs touch over time, and how much of it both touch.
fn state_accessed(workload: &Workload, one: &ZeroTrace, other: &ZeroTrace) -> String {
    let name = &workload.meta.workload;
    let mut svg = Svg::new(
        WIDTH,
        380.0,
        &format!("State that two runs of {name} touch"),
        "Megabytes touched over time by two runs; dashed: what the other run touches too",
    );
    let (in_one, in_other) = (touched(one), touched(other));
    let lines = [
        (growth(one, |_| true), COLOURS[0], ""),
        (growth(one, |c| in_other.contains(c)), COLOURS[0], "5 4"),
        (growth(other, |_| true), COLOURS[1], ""),
        (growth(other, |c| in_one.contains(c)), COLOURS[1], "5 4"),
    ];
    let ends = lines.iter().flat_map(|(values, _, _)| values.last());
    let axes = Axes {
        at: (LEFT, 70.0, INNER, 255.0),
        x: Scale::Linear(0.0, ends.clone().map(|v| v.0).fold(1.0, f64::max)),
        y: Scale::up_to(ends.map(|v| v.1)),
    };
    axes.draw(&mut svg, "the machine's own time (s)", "state touched (MB)");
    for (values, colour, dash) in &lines {
        axes.line(&mut svg, values, colour, dash);
    }
    svg.legend(
        LEFT,
        52.0,
        &[
            ("run 1", COLOURS[0], ""),
            ("of it, also in run 2", COLOURS[0], "5 4"),
            ("run 2", COLOURS[1], ""),
            ("of it, also in run 1", COLOURS[1], "5 4"),
        ],
    );
    svg.finish()
}

/// Figure 3: which clusters two runs touch, and when.
fn clusters(workload: &Workload) -> String {
    let name = &workload.meta.workload;
    let mut svg = Svg::new(
        WIDTH,
        400.0,
        &format!("Clusters of two runs of {name}"),
        "Each circle is a cluster of state, placed at the time at which a run touches it; its area is its size",
    );
    let model = learn(workload, Method::VTube, |n| n > 1);
    let end_s = workload.traces[..2]
        .iter()
        .map(|t| t.end_us as f64 / 1e6)
        .fold(1.0, f64::max);
    let mb: Vec<f64> = model
        .clusters()
        .iter()
        .map(|c| c.chunks.len() as f64 * CHUNK_MB)
        .collect();
    let largest = mb.iter().copied().fold(0.1, f64::max);
    svg.legend(
        LEFT,
        52.0,
        &[
            ("in both runs", COLOURS[0], ""),
            ("in this one only", COLOURS[1], ""),
        ],
    );
    for run in 0..2u32 {
        let top = 70.0 + f64::from(run) * 145.0;
        let axes = Axes {
            at: (LEFT, top, INNER, 125.0),
            x: Scale::Linear(0.0, end_s),
            y: Scale::Log(0.04, largest * 3.0),
        };
        let x_name = if run == 1 {
            "the machine's own time (s)"
        } else {
            ""
        };
        axes.draw(
            &mut svg,
            x_name,
            if run == 0 { "run 1 (MB)" } else { "run 2 (MB)" },
        );
        let mut order: Vec<usize> = (0..mb.len()).collect();
        order.sort_by(|a, b| mb[*b].total_cmp(&mb[*a]));
        // Smaller ones would only blacken the bottom of the plot.
        for n in order.into_iter().filter(|n| mb[*n] >= 0.05) {
            let cluster = &model.clusters()[n];
            let Some(seen) = cluster.seen.iter().find(|s| s.trace == run) else {
                continue;
            };
            let colour = COLOURS[usize::from(cluster.seen.len() < 2)];
            let (x, y) = axes.point(f64::from(seen.first_ms) / 1e3, mb[n]);
            svg.circle(x, y, 2.0 + 18.0 * (mb[n] / largest).sqrt(), colour);
        }
    }
    svg.finish()
}

/// Figure 7: the share of chunks in clusters smaller than a size, for each workload.
fn cluster_sizes(all: &Runs) -> String {
    let mut svg = Svg::new(
        WIDTH,
        400.0,
        "Sizes of vTube's clusters",
        "For each workload: the share of all chunks that belong to a cluster smaller than a size; the threshold of vTube's selection",
    );
    let axes = Axes {
        at: (LEFT, 90.0, INNER, 255.0),
        x: Scale::Log(0.004, 100.0),
        y: Scale::Linear(0.0, 1.0),
    };
    axes.draw(
        &mut svg,
        "size of the cluster (MB)",
        "share of chunks in smaller ones",
    );
    for (n, workload) in all.workloads.iter().enumerate() {
        let model = learn(workload, Method::VTube, |_| false);
        let mut sizes: Vec<usize> = model.clusters().iter().map(|c| c.chunks.len()).collect();
        sizes.sort_unstable();
        let total: usize = sizes.iter().sum();
        let (mut below, mut values) = (0, Vec::new());
        for size in sizes {
            let x = size as f64 * CHUNK_MB;
            values.push((x, below as f64 / total.max(1) as f64));
            below += size;
            values.push((x, below as f64 / total.max(1) as f64));
        }
        axes.line(&mut svg, &values, COLOURS[n % COLOURS.len()], "");
    }
    workload_legend(&mut svg, all);
    svg.finish()
}

/// Draws the names of the workloads in two rows.
fn workload_legend(svg: &mut Svg, all: &Runs) {
    let names = all.workloads.iter().enumerate();
    let entries: Vec<(&str, &str, &str)> = names
        .map(|(n, w)| (w.meta.workload.as_str(), COLOURS[n % COLOURS.len()], ""))
        .collect();
    let (first, rest) = entries.split_at(entries.len().min(5));
    svg.legend(LEFT, 50.0, first);
    svg.legend(LEFT, 70.0, rest);
}

/// Indices of vTube and floe in the list of policies.
const STREAMING: [usize; 2] = [2, 3];

/// Figure 11: when runs continue and when they stall.
fn runs(all: &Runs) -> String {
    let varied = all.most_variable();
    let mut svg = Svg::new(
        WIDTH,
        120.0 + 44.0 * (STREAMING.len() * all.links.len()) as f64,
        &format!(
            "A run of {} over each link",
            all.workloads[varied].meta.workload
        ),
        "For each link and policy: dark where the machine runs, light where it is paused for buffering or waits for a chunk",
    );
    let rows: Vec<(String, &Run)> = (0..all.links.len())
        .flat_map(|l| STREAMING.map(|p| (l, p)))
        .filter_map(|(l, p)| {
            let run = all.of(Some(varied), Some(l), p).next()?;
            Some((format!("{}, {}", all.links[l].name, POLICIES[p].0), run))
        })
        .collect();
    let end_s = rows.iter().map(|(_, r)| r.end_ns as f64 / 1e9);
    let axes = Axes {
        at: (150.0, 70.0, INNER - 86.0, 44.0 * rows.len() as f64),
        x: Scale::Linear(0.0, end_s.fold(1.0, f64::max)),
        y: Scale::Linear(0.0, 1.0),
    };
    svg.legend(
        150.0,
        52.0,
        &[
            ("running", COLOURS[0], ""),
            ("buffering", COLOURS[1], ""),
            ("waiting for a chunk", COLOURS[2], ""),
        ],
    );
    let at = |s: f64| axes.point(s, 0.0).0;
    for (n, (name, run)) in rows.iter().enumerate() {
        let y = 76.0 + 44.0 * n as f64;
        let end = at(run.end_ns as f64 / 1e9);
        svg.text(142.0, y + 17.0, name, Anchor::End, INK);
        svg.bar(at(0.0), y, end - at(0.0), 26.0, COLOURS[0]);
        let mut last = (f64::MIN, StallKind::Start);
        for stall in &run.stalls {
            let (from, to) = (at(stall.from_ns as f64 / 1e9), at(stall.to_ns as f64 / 1e9));
            // A stall narrower than a pixel is drawn as half a pixel, and only once.
            if stall.kind == StallKind::Demand && from < last.0 + 0.5 {
                continue;
            }
            let colour = match stall.kind {
                StallKind::Start => FAINT,
                StallKind::Buffering => COLOURS[1],
                StallKind::Demand => COLOURS[2],
            };
            svg.bar(from, y, (to - from).max(0.5), 26.0, colour);
            last = (to, stall.kind);
        }
        let pauses = run.stalls.iter().filter(|s| s.kind == StallKind::Buffering);
        let text = format!("{:.0} s waiting, {} pauses", run.wait_s(), pauses.count());
        svg.text(at(0.0), y + 37.0, &text, Anchor::Start, SOFT);
    }
    let below = Axes {
        at: (150.0, 76.0, INNER - 86.0, 44.0 * rows.len() as f64),
        x: axes.x,
        y: Scale::Log(2.0, 3.0),
    };
    below.draw(&mut svg, "time (s)", "");
    svg.finish()
}

/// Figure 12 (a, b): the progress of a steady workload over time.
fn progress(all: &Runs) -> String {
    let workload = all.steady();
    let name = &all.workloads[workload].meta.workload;
    let mut svg = Svg::new(
        WIDTH,
        380.0,
        &format!("Progress of {name} over {} Mbit/s", all.links[0].name),
        "The machine's own time against the time that has passed, for a local machine and for each policy",
    );
    let runs: Vec<&Run> = (0..POLICIES.len())
        .filter_map(|p| all.of(Some(workload), Some(0), p).next())
        .collect();
    let own_s = runs.first().map_or(1.0, |r| r.own_ns as f64 / 1e9);
    let end_s = runs.iter().map(|r| r.end_ns as f64 / 1e9);
    let axes = Axes {
        at: (LEFT, 70.0, INNER, 255.0),
        x: Scale::Linear(0.0, end_s.fold(1.0, f64::max).min(own_s * 5.0)),
        y: Scale::Linear(0.0, own_s * 1.02),
    };
    axes.draw(
        &mut svg,
        "time since the click (s)",
        "the machine's own time (s)",
    );
    axes.line(&mut svg, &[(0.0, 0.0), (own_s, own_s)], INK, "2 3");
    for (n, run) in runs.iter().enumerate() {
        let mut values = vec![(0.0, 0.0)];
        for stall in &run.stalls {
            values.push((stall.from_ns as f64 / 1e9, stall.own_ns as f64 / 1e9));
            values.push((stall.to_ns as f64 / 1e9, stall.own_ns as f64 / 1e9));
        }
        values.push((run.end_ns as f64 / 1e9, own_s));
        let Scale::Linear(_, last) = axes.x else {
            continue;
        };
        values.retain(|(x, _)| *x <= last);
        axes.line(&mut svg, &values, COLOURS[n], "");
    }
    let mut entries = vec![("local", INK, "2 3")];
    let policies = POLICIES.iter().enumerate();
    entries.extend(policies.map(|(n, (policy, _, _))| (*policy, COLOURS[n], "")));
    svg.legend(LEFT, 52.0, &entries);
    svg.finish()
}

/// Figure 12 (c): by how much waiting lengthens each workload.
fn overhead(all: &Runs) -> String {
    let mut svg = Svg::new(
        WIDTH,
        400.0,
        &format!("Waiting over {} Mbit/s, launch included", all.links[0].name),
        "For each workload and policy: seconds of waiting; the solid part is the launch",
    );
    let groups: Vec<Vec<(f64, f64)>> = (0..all.workloads.len())
        .map(|w| {
            (0..POLICIES.len())
                .map(|p| {
                    let runs: Vec<&Run> = all.of(Some(w), Some(0), p).collect();
                    let n = runs.len().max(1) as f64;
                    let wait: f64 = runs.iter().map(|r| r.wait_s()).sum();
                    let launch: f64 = runs.iter().map(|r| r.launch_s()).sum();
                    (launch / n, wait / n)
                })
                .collect()
        })
        .collect();
    let axes = Axes {
        at: (LEFT, 70.0, INNER, 250.0),
        x: Scale::Linear(0.0, 1.0),
        // Demand fetching is given in numbers: on the same scale, nothing of the others would be visible.
        y: Scale::up_to(groups.iter().flat_map(|g| &g[1..]).map(|v| v.1)),
    };
    axes.draw(&mut svg, "", "waiting (s)");
    let group_width = INNER / groups.len().max(1) as f64;
    let bar_width = group_width * 0.8 / (POLICIES.len() - 1) as f64;
    let (_, floor) = axes.point(0.0, 0.0);
    for (w, group) in groups.iter().enumerate() {
        let left = LEFT + w as f64 * group_width + group_width * 0.1;
        for (p, (launch, wait)) in group.iter().enumerate().skip(1) {
            let x = left + (p - 1) as f64 * bar_width;
            let (_, top) = axes.point(0.0, *wait);
            svg.bar(
                x,
                top,
                bar_width - 2.0,
                floor - top,
                &format!("{}77", COLOURS[p]),
            );
            let (_, top) = axes.point(0.0, *launch);
            svg.bar(x, top, bar_width - 2.0, floor - top, COLOURS[p]);
        }
        let name = &all.workloads[w].meta.workload;
        let middle = LEFT + (w as f64 + 0.5) * group_width;
        svg.text(middle, floor + 18.0, name, Anchor::Middle, INK);
        let demand = format!("{:.0} s", group[0].1);
        svg.text(middle, floor + 36.0, &demand, Anchor::Middle, SOFT);
    }
    let policies = POLICIES.iter().enumerate().skip(1);
    let entries: Vec<_> = policies
        .map(|(n, (policy, _, _))| (*policy, COLOURS[n], ""))
        .collect();
    svg.legend(LEFT, 52.0, &entries);
    svg.text(
        LEFT + INNER,
        52.0,
        "solid: the launch; pale: later; in numbers: demand alone",
        Anchor::End,
        SOFT,
    );
    svg.finish()
}

/// Figure 13 (b): misses by the number of runs that the model was trained on.
fn misses(all: &Runs) -> anyhow::Result<String> {
    let mut svg = Svg::new(
        WIDTH,
        400.0,
        &format!(
            "Misses by what was learnt, over {} Mbit/s",
            all.links[0].name
        ),
        "For each workload: the share of accesses that miss, against the number of runs that the model was made of",
    );
    let mut jobs = Vec::new();
    for (w, workload) in all.workloads.iter().enumerate() {
        let runs = workload.traces.len();
        for known in (1..runs).filter(|k| [1, 2, 3, 5, 7, 9, 12, 15].contains(k)) {
            jobs.extend((0..runs).map(|left_out| (w, known, left_out)));
        }
    }
    let rates = parallel(jobs.len(), |n| {
        let (w, known, left_out) = jobs[n];
        let workload = &all.workloads[w];
        let runs = workload.traces.len();
        // The runs that follow, wrapping around at the end.
        let rank = |n: usize| (n + runs - left_out) % runs;
        let model = learn(workload, Method::Floe, |n| rank(n) == 0 || rank(n) > known);
        let bytes = model.encode().len();
        let model = (Arc::new(model), bytes);
        let run = run_one(
            workload,
            left_out,
            &all.links[0],
            Policy::Floe,
            Some(&model),
        );
        run.map(|run| run.miss_rate() * 100.0)
    });
    let mut sums: HashMap<(usize, usize), (f64, f64)> = HashMap::new();
    for ((w, known, _), rate) in jobs.into_iter().zip(rates) {
        let sum = sums.entry((w, known)).or_default();
        *sum = (sum.0 + rate?, sum.1 + 1.0);
    }
    let mut lines: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for ((w, known), (sum, n)) in sums {
        lines.entry(w).or_default().push((known as f64, sum / n));
    }
    let points = lines.values().flatten();
    let most = points.clone().map(|p| p.0).fold(1.0, f64::max);
    let axes = Axes {
        at: (LEFT, 90.0, INNER, 255.0),
        x: Scale::Linear(0.0, most),
        y: Scale::up_to(points.map(|p| p.1)),
    };
    axes.draw(
        &mut svg,
        "runs that the model was made of",
        "misses (% of accesses)",
    );
    for (w, values) in &mut lines {
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let colour = COLOURS[w % COLOURS.len()];
        axes.line(&mut svg, values, colour, "");
        for (x, y) in values {
            let (x, y) = axes.point(*x, *y);
            svg.circle(x, y, 3.0, colour);
        }
    }
    workload_legend(&mut svg, all);
    Ok(svg.finish())
}

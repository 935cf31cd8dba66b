//! `floe-lab model`: what the paper's model says of a workload on so many hosts.
use crate::plot::{Axes, COLOURS, Scale, Svg};
use crate::swarm_sim::PIECE_BYTES;
use crate::swarm_sim::sweep::{Case, FASTER};
use crate::traces;
use anyhow::Context as _;
use floe_swarm::model::{Curve, Distribution, Fetch, Setting};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Predict how long a workload takes on n hosts that start it at once, by VMTorrent's model (its section 3)
#[derive(clap::Args)]
#[command(
    after_help = "Example: floe-lab model --workload boot --hosts 2,16,100 --mbit 100 --plot boot.svg"
)]
pub struct Arguments {
    /// A workload of lab/traces (or $FLOE_LAB_TRACES)
    #[arg(long, default_value = "boot")]
    workload: String,
    /// Numbers of hosts
    #[arg(long, value_delimiter = ',', default_values_t = [1usize, 2, 4, 8, 16, 32, 64, 100, 256, 1024])]
    hosts: Vec<usize>,
    /// Speed of each host's link, in Mbit/s
    #[arg(long, default_value_t = 100.0)]
    mbit: f64,
    /// Round trip between hosts, in microseconds
    #[arg(long, default_value_t = 500.0)]
    rtt_us: f64,
    /// What a host needs to answer a question, in microseconds
    #[arg(long, default_value_t = 500.0)]
    service_us: f64,
    /// Also draw how the run proceeds at the largest number of hosts, as an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Policies by their names in the paper.
const POLICIES: [(&str, Distribution, Fetch); 4] = [
    ("p2p_p", Distribution::Swarm, Fetch::InOrder),
    ("p2p_d", Distribution::Swarm, Fetch::Demand),
    ("cs_p", Distribution::Central, Fetch::InOrder),
    ("cs_d", Distribution::Central, Fetch::Demand),
];

impl Arguments {
    /// Prints a table of seconds, and of times as long as with everything in memory.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.mbit > 0.0,
            "a link of {} Mbit/s carries nothing",
            self.mbit
        );
        let case = Case::new(&traces::read(&traces::folder().join(&self.workload))?);
        let run = case.runs.first().context("the workload has no runs")?;
        let accesses = run.accesses.iter();
        let accesses = accesses.map(|(t_us, _)| (*t_us as f64 / 1e6, PIECE_BYTES as f64));
        let curve = Curve::new(accesses, run.end_us as f64 / 1e6);
        let setting = Setting {
            link: self.mbit * 1e6 / 8.0,
            piece: PIECE_BYTES as f64,
            rtt_s: self.rtt_us / 1e6,
            service_s: self.service_us / 1e6,
        };
        let mut text = format!(
            "{}: {:.1} MB, {:.1} s with everything in memory (the recorded time / {FASTER})\n{:>7}",
            self.workload,
            curve.bytes() / 1e6,
            curve.end_s(),
            "hosts"
        );
        for (name, ..) in POLICIES {
            let _ = write!(text, "  {name:>18}");
        }
        for hosts in &self.hosts {
            let _ = write!(text, "\n{hosts:>7}");
            for (_, by, fetch) in POLICIES {
                let slowdown = curve.slowdown(setting.rate(*hosts, by, fetch), fetch);
                let _ = write!(
                    text,
                    "  {:>9.1} s {slowdown:>5.2} x",
                    slowdown * curve.end_s()
                );
            }
        }
        writeln!(std::io::stdout(), "{text}")?;
        if let Some(path) = &self.plot {
            let hosts = self.hosts.iter().copied().max().unwrap_or(1);
            let svg = draw(&self.workload, &curve, &setting, hosts);
            std::fs::write(path, svg)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Figures 5 to 7: M, and P by each policy, over time.
fn draw(workload: &str, curve: &Curve, setting: &Setting, hosts: usize) -> String {
    let title = format!("{workload} on {hosts} hosts, as the model predicts");
    let about = "Megabytes accessed over time: with everything in memory, and by each policy";
    let mut svg = Svg::new(760.0, 430.0, &title, about);
    let mut lines = vec![("in memory", curve.points().to_vec(), COLOURS[5])];
    for (n, (name, by, fetch)) in POLICIES.into_iter().enumerate() {
        let points = curve.playback(setting.rate(hosts, by, fetch), fetch);
        lines.push((name, points, COLOURS[n]));
    }
    // a server alone may take hours: the axis ends where the swarm has ended
    let ends = lines.iter().take(3).filter_map(|line| line.1.last());
    let axes = Axes {
        at: (64.0, 70.0, 670.0, 300.0),
        x: Scale::up_to(ends.map(|point| point.0)),
        y: Scale::up_to([curve.bytes() / 1e6]),
    };
    axes.draw(&mut svg, "seconds", "MB");
    for (_, points, colour) in &lines {
        let points: Vec<(f64, f64)> = points.iter().map(|(s, bytes)| (*s, bytes / 1e6)).collect();
        axes.line(&mut svg, &points, colour, "");
    }
    let legend: Vec<(&str, &str, &str)> = lines.iter().map(|line| (line.0, line.2, "")).collect();
    svg.legend(64.0, 52.0, &legend);
    svg.finish()
}

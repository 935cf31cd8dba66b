//! What the paper's model says: of a workload on so many hosts (`floe-lab model`), and over what was simulated and measured.
use crate::swarm_sim::sweep::{Case, FASTER, LEARNT};
use crate::swarm_sim::{Link, Recorded};
use anyhow::Context as _;
use floe_swarm::model::{Curve, Distribution, Fetch, Setting};
use floe_testbed::harness::{Report, Samples};
use floe_testbed::plot::{Axes, COLOURS, Scale, Svg};
use floe_testbed::traces;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// What a reader must know of figures over the model.
pub const MODEL_NOTE: &str = "the model is the paper's section 3: its equations 9 and 10 are misprinted (9 adds seconds to bytes, 10 has the \
    transfer inside of W) and used as 8 and 12 have them; it predicts perfectly, and has no wardens, so that ours has no curve";

/// The policies that the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modelled {
    /// Peers and a profile.
    P2pP,
    /// Peers.
    P2pD,
    /// A server and a profile.
    CsP,
    /// A server.
    CsD,
}

impl Modelled {
    /// All of them.
    pub const ALL: [Modelled; 4] = [Modelled::P2pP, Modelled::P2pD, Modelled::CsP, Modelled::CsD];

    /// Its name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Modelled::P2pP => "p2p_p",
            Modelled::P2pD => "p2p_d",
            Modelled::CsP => "cs_p",
            Modelled::CsD => "cs_d",
        }
    }

    /// Returns the playback of a run as points of seconds and bytes.
    pub fn playback(self, curve: &Curve, setting: &Setting, hosts: usize) -> Vec<(f64, f64)> {
        let (rate, fetch) = self.rate(setting, hosts);
        curve.playback(rate, fetch)
    }

    fn rate(self, setting: &Setting, hosts: usize) -> (f64, Fetch) {
        let (by, fetch) = match self {
            Modelled::P2pP => (Distribution::Swarm, Fetch::InOrder),
            Modelled::P2pD => (Distribution::Swarm, Fetch::Demand),
            Modelled::CsP => (Distribution::Central, Fetch::InOrder),
            Modelled::CsD => (Distribution::Central, Fetch::Demand),
        };
        (setting.rate(hosts, by, fetch), fetch)
    }

    /// Returns the mean of runs' times over those with everything in memory.
    pub fn slowdown<'a>(
        self,
        runs: impl Iterator<Item = &'a Recorded>,
        piece_bytes: u64,
        link: Link,
        hosts: usize,
    ) -> f64 {
        let (rate, fetch) = self.rate(&setting(link, piece_bytes), hosts);
        let slowdowns = runs.map(|run| curve(run, 1.0, piece_bytes).slowdown(rate, fetch));
        let slowdowns: Vec<f64> = slowdowns.collect();
        slowdowns.iter().sum::<f64>() / slowdowns.len().max(1) as f64
    }
}

/// Returns what the model takes of links and pieces.
pub fn setting(link: Link, piece_bytes: u64) -> Setting {
    Setting {
        link: link.bits_per_s as f64 / 8.0,
        piece: piece_bytes as f64,
        rtt_s: link.rtt_us as f64 / 1e6,
        service_s: link.service_us as f64 / 1e6,
    }
}

/// Returns M of a run on a host that computes so much slower than recorded.
pub fn curve(run: &Recorded, slowness: f64, piece_bytes: u64) -> Curve {
    let accesses = run.accesses.iter();
    let accesses = accesses.map(|(us, _)| (*us as f64 / 1e6 * slowness, piece_bytes as f64));
    Curve::new(accesses, run.end_us as f64 / 1e6 * slowness)
}

/// Adds what the model says over what so many hosts really took by a policy: the model's slowdown times what they take with everything
/// local.
pub fn tell_over_real(
    report: &mut Report,
    modelled: Modelled,
    hosts: usize,
    slowdown: f64,
    local_s: f64,
    took_s: &Samples,
) {
    let model_s = slowdown * local_s;
    let ratios: Samples = took_s.values().iter().map(|real| model_s / real).collect();
    let name = format!("model_over_real_n{hosts}");
    let of = format!("{name}.{}", modelled.name());
    report
        .add(&of, "x", &ratios)
        .against("the model", "s", model_s);
    if modelled == Modelled::P2pP {
        report.add(&name, "x", &ratios);
    }
}

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
    /// Size of a piece, in KiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=8192))]
    piece_kib: u64,
    /// By what the recorded times are divided
    #[arg(long, default_value_t = f64::from(FASTER))]
    faster: f64,
    /// Also draw how the run proceeds at the largest number of hosts, as an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Arguments {
    /// Prints a table of seconds, and of times as long as with everything in memory.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.mbit > 0.0,
            "a link of {} Mbit/s carries nothing",
            self.mbit
        );
        anyhow::ensure!(
            self.faster > 0.0 && self.faster.is_finite(),
            "times can't be divided by {}",
            self.faster
        );
        let workload = traces::read(&traces::folder().join(&self.workload))?;
        let piece_bytes = self.piece_kib << 10;
        let case = Case::new(&workload, piece_bytes, self.faster, LEARNT);
        let (run, _) = case.runs.first().context("the workload has no runs")?;
        let curve = curve(run, 1.0, piece_bytes);
        let setting = Setting {
            link: self.mbit * 1e6 / 8.0,
            piece: piece_bytes as f64,
            rtt_s: self.rtt_us / 1e6,
            service_s: self.service_us / 1e6,
        };
        let mut text = format!(
            "{}: {:.1} MB, {:.1} s with everything in memory (the recorded time / {})\n{:>7}",
            self.workload,
            curve.bytes() / 1e6,
            curve.end_s(),
            self.faster,
            "hosts"
        );
        for modelled in Modelled::ALL {
            let _ = write!(text, "  {:>18}", modelled.name());
        }
        for hosts in &self.hosts {
            let _ = write!(text, "\n{hosts:>7}");
            for modelled in Modelled::ALL {
                let (rate, fetch) = modelled.rate(&setting, *hosts);
                let slowdown = curve.slowdown(rate, fetch);
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
    for (n, modelled) in Modelled::ALL.into_iter().enumerate() {
        let points = modelled.playback(curve, setting, hosts);
        lines.push((modelled.name(), points, COLOURS[n]));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm_sim::sweep::MBIT_100;

    #[test]
    fn the_model_is_told_over_what_was_measured_and_its_misprints_are_named() {
        let run = Recorded {
            accesses: (0..100).map(|n| (u64::from(n) * 10_000, n)).collect(),
            end_us: 1_000_000,
        };
        // 6.6 MB in a second, by a server of 12.5 MB/s for four hosts
        let slowdown = Modelled::CsD.slowdown([&run].into_iter(), 64 << 10, MBIT_100, 4);
        assert!((2.1..2.5).contains(&slowdown), "{slowdown}");
        let mut report = Report::new("swarm-real", true);
        let took: Samples = [20.0, 10.0].into_iter().collect();
        tell_over_real(&mut report, Modelled::P2pP, 16, 2.0, 10.0, &took);
        tell_over_real(&mut report, Modelled::CsD, 16, 2.0, 10.0, &took);
        assert_eq!(report.figures["model_over_real_n16"].value, 1.5);
        assert_eq!(report.figures["model_over_real_n16.cs_d"].value, 1.5);
        assert_eq!(report.figures.len(), 3);
        for said in ["equations 9 and 10", "ours has no curve"] {
            assert!(MODEL_NOTE.contains(said));
        }
    }
}

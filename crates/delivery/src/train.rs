//! `train`: trains models on sixteen synthetic runs of 100,000 accesses each, with every method, and measures time and
//! peak memory in a process that does nothing else.
use anyhow::{Context as _, bail};
use floe_image::Hash;
use floe_planner::{Method, TrainOptions, train};
use floe_simulator::sim::synthetic::{Shape, workload};
use floe_testbed::harness::{Context, Report, Samples};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::process::{Command, ExitCode};

/// Runs and accesses for which a limit was promised.
const RUNS: usize = 16;
const ACCESSES: u32 = 100_000;

/// The arguments of the process that trains.
#[derive(clap::Args)]
pub struct Arguments {
    /// Which model
    #[arg(long)]
    method: String,
    /// Number of runs
    #[arg(long)]
    runs: usize,
    /// Accesses of each
    #[arg(long)]
    accesses: u32,
}

/// The measurements.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    seconds: f64,
    peak_mb: f64,
    model_mb: f64,
    accesses: f64,
}

impl Arguments {
    /// Trains a model and prints the measurements.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let method: Method = self.method.parse().map_err(anyhow::Error::msg)?;
        let (_, traces) = workload(&shape(self.accesses), self.runs, 1);
        let before_s = processor_s();
        let image = Hash::of(b"made up");
        let model = train(method, &image, &traces, &TrainOptions::default());
        let seconds = processor_s() - before_s;
        let accesses: usize = traces.iter().map(|t| t.accesses.len()).sum();
        let found = Found {
            seconds,
            peak_mb: peak_mb()?,
            model_mb: model.encode().len() as f64 / 1e6,
            accesses: accesses as f64 / self.runs as f64,
        };
        println!("{}", serde_json::to_string(&found)?);
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the shape of runs that vary like a game's, with about this many accesses: 60 activities of 100.
fn shape(accesses: u32) -> Shape {
    Shape {
        activities: 100,
        activities_per_run: 60,
        start_chunks: accesses / 8,
        burst_chunks: accesses / 60,
        lonely_chunks: accesses / 50,
        ..Shape::INTERACTIVE
    }
}

/// Returns the seconds of processor time of this process, which other processes on the machine do not affect.
pub(super) fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the largest memory that this process has had, in MB.
fn peak_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|l| l.split_whitespace().next())
        .context("no VmHWM in /proc/self/status")?;
    Ok(kib.parse::<f64>()? * 1024.0 / 1e6)
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("train", context.quick);
    let (rounds, accesses) = context.pick((5, ACCESSES), (1, ACCESSES / 20));
    let (mut worst_s, mut worst_mb) = (Samples::default(), Samples::default());
    for method in Method::ALL {
        let (mut seconds, mut peak, mut size) =
            (Samples::default(), Samples::default(), Samples::default());
        for _ in 0..rounds {
            let found = train_apart(method, accesses)?;
            seconds.push(found.seconds);
            peak.push(found.peak_mb);
            size.push(found.model_mb);
            if found.accesses < f64::from(accesses) * 0.9 {
                bail!("the made-up runs have only {} accesses", found.accesses);
            }
        }
        let name = method.name();
        report.add(&format!("{name}_s"), "s", &seconds);
        report.add(&format!("{name}_mb"), "MB", &peak);
        report.add(&format!("{name}_model_mb"), "MB", &size);
        if worst_s.is_empty() || seconds.median() > worst_s.median() {
            worst_s = seconds;
        }
        if worst_mb.is_empty() || peak.median() > worst_mb.median() {
            worst_mb = peak;
        }
    }
    report.add("train_s", "s", &worst_s);
    report.add("train_mb", "MB", &worst_mb);
    report.note(format!(
        "{RUNS} made-up runs of {accesses} accesses or a few more; train_s and train_mb are the dearest method's; seconds are of one processor, training being a single thread; memory is the whole process, its traces included"
    ));
    Ok(report)
}

fn train_apart(method: Method, accesses: u32) -> anyhow::Result<Found> {
    let output = Command::new(std::env::current_exe()?)
        .args(["train-once", "--method", method.name()])
        .args(["--runs", &RUNS.to_string()])
        .args(["--accesses", &accesses.to_string()])
        .output()?;
    if !output.status.success() {
        bail!(
            "training failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

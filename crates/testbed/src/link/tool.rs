//! `floe-lab link`: the emulator for any use, with two named namespaces.
use super::{
    Bridge, Rate, Shape, Trace, Traffic, parse_bytes, parse_duration_ns, parse_rate, parse_share,
};
use anyhow::{Context, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often the statistics file is rewritten.
const STATS_EVERY: Duration = Duration::from_millis(200);

/// A slow link between two network namespaces, until Ctrl-C or the end of COMMAND.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: a page from a hub behind 7.2 Mbit/s and 120 ms\n  \
    floe-lab link --rate 7.2mbit --delay 60ms --name slow &\n  \
    ip netns exec slow-far floe hub &\n  ip netns exec slow-near curl http://10.77.0.2:7070/\n\n\
    The near end is 10.77.0.1 (namespace NAME-near), the far end 10.77.0.2 (NAME-far).\n\
    `nsenter --net=/run/netns/NAME-near CMD` changes nothing but the network; `ip netns exec` hides later mounts."
)]
pub struct Arguments {
    /// Rate of each direction, as in 7.2mbit
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Rate of what the near end sends, if it differs
    #[arg(long, value_parser = parse_rate)]
    up_rate: Option<u64>,
    /// A recorded trace (mahimahi) instead of a rate, for what the near end receives
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    trace: Option<PathBuf>,
    /// A recorded trace for what the near end sends
    #[arg(long, value_name = "FILE", requires = "trace")]
    up_trace: Option<PathBuf>,
    /// Delay one way, as in 60ms; a round trip takes twice that
    #[arg(long, value_parser = parse_duration_ns, default_value = "0ms")]
    delay: u64,
    /// The delay varies by up to this much in both directions
    #[arg(long, value_parser = parse_duration_ns, default_value = "0ms")]
    jitter: u64,
    /// Packets lost, as in 1%
    #[arg(long, value_parser = parse_share, default_value = "0")]
    loss: f64,
    /// Bytes that wait in the queue before packets are dropped (default: 100 ms of the rate)
    #[arg(long, value_parser = parse_bytes)]
    queue: Option<usize>,
    /// The namespaces are NAME-near and NAME-far
    #[arg(long, default_value = "floe")]
    name: String,
    /// Write the traffic so far, as JSON, into FILE five times a second
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// A command to run at the near end; the link ends with it
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Stats {
    seconds: f64,
    up: Traffic,
    down: Traffic,
}

impl Arguments {
    fn shape(&self, rate: Option<u64>, trace: Option<&Path>) -> anyhow::Result<Shape> {
        let rate = match (rate, trace) {
            (_, Some(path)) => {
                let bytes = std::fs::read(path)
                    .with_context(|| format!("cannot read the trace {}", path.display()))?;
                Rate::Recorded(Arc::new(
                    Trace::parse(&bytes).with_context(|| path.display().to_string())?,
                ))
            }
            (Some(bits), None) => Rate::BitsPerSecond(bits),
            (None, None) => Rate::Unlimited,
        };
        Ok(Shape {
            rate,
            delay_ns: self.delay,
            jitter_ns: self.jitter,
            loss: self.loss,
            queue_bytes: self.queue,
        })
    }

    /// Runs until Ctrl-C, SIGTERM or the command's end.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.name.is_empty()
            || !self
                .name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
            || self.name.starts_with('.')
        {
            bail!(
                "{:?} is no name for a namespace; use letters, digits, - and _",
                self.name
            );
        }
        let up = self.shape(self.up_rate.or(self.rate), self.up_trace.as_deref())?;
        let down = self.shape(self.rate, self.trace.as_deref())?;
        let ended = crate::signals::until_interrupted()?;
        eprintln!("up: {}; down: {}", up.describe(), down.describe());
        let mut bridge = Bridge::new(up, down)?;
        let near = bridge.ends.near.publish(&format!("{}-near", self.name))?;
        let far = bridge.ends.far.publish(&format!("{}-far", self.name))?;
        eprintln!(
            "near: {} in {}; far: {} in {}",
            Bridge::NEAR,
            near.display(),
            Bridge::FAR,
            far.display()
        );
        println!("ready");
        let start = Instant::now();
        let mut child = match self.command.split_first() {
            Some((program, arguments)) => {
                let mut command = bridge.ends.near.command_that_dies_with_us(program)?;
                command.args(arguments);
                Some(
                    command
                        .spawn()
                        .with_context(|| format!("cannot run {program}"))?,
                )
            }
            None => None,
        };
        let status = wait(ended, child.as_mut(), || self.write_stats(start, &bridge))?;
        self.write_stats(start, &bridge)?;
        Ok(ExitCode::from(status))
    }

    fn write_stats(&self, start: Instant, bridge: &Bridge) -> anyhow::Result<()> {
        let Some(path) = &self.stats else {
            return Ok(());
        };
        let stats = Stats {
            seconds: start.elapsed().as_secs_f64(),
            up: bridge.up.read(),
            down: bridge.down.read(),
        };
        // Renamed when complete, so that a reader never sees an incomplete file.
        let partial = path.with_extension("partial");
        std::fs::write(&partial, serde_json::to_string(&stats)?)?;
        std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Waits for the end and returns the exit code.
fn wait(
    ended: &AtomicBool,
    mut child: Option<&mut std::process::Child>,
    tick: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    loop {
        if ended.load(Relaxed) {
            if let Some(child) = child {
                let _ = child.kill();
                child.wait()?;
            }
            return Ok(130);
        }
        if let Some(status) = child
            .as_mut()
            .and_then(|child| child.try_wait().transpose())
            .transpose()?
        {
            return Ok(status
                .code()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(1));
        }
        tick()?;
        std::thread::sleep(STATS_EVERY);
    }
}

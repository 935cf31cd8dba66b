//! `exec`: commands and copies in a guest, over the port of its agent: what a command takes beyond its own spawn in the guest,
//! how fast files are copied, and how long a keystroke's echo takes beside a copy.
use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, bail};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Memory of the guest in bytes: the copied file is in it.
const MEMORY_BYTES: u64 = 768 << 20;
/// Size of the copied file in MB (10^6 bytes).
const COPY_MB: u64 = 64;
/// Commands that one shell in the guest starts, to time one.
const LOCAL: u32 = 50;
/// Time between two keystrokes: a fast typist's is ten times as long.
const KEY_EVERY: Duration = Duration::from_millis(15);

/// The floe command, and the node that it is to speak with.
pub(super) struct Floe {
    program: PathBuf,
    socket: PathBuf,
}

impl Floe {
    pub fn new(node: &Node) -> anyhow::Result<Floe> {
        Ok(Floe {
            program: super::live::floe()?,
            socket: node.client.socket().to_owned(),
        })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(&self.socket).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs it to its end, which must be a good one. Returns the time in ms.
    pub fn timed(&self, args: &[&str]) -> anyhow::Result<f64> {
        let began = Instant::now();
        let status = self.command(args).status()?;
        if !status.success() {
            bail!("floe {} failed", args.join(" "));
        }
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    }

    /// Times a shell in the guest that starts so many processes.
    fn shell(&self, count: u32) -> anyhow::Result<f64> {
        let line = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
        self.timed(&["exec", "web", "--", "sh", "-c", &line])
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("exec", context.quick);
    let guest = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    node.import_with(&guest, "guest", MEMORY_BYTES, 1)?;
    node.boot("guest", "web")?;
    let floe = Floe::new(&node)?;
    floe.timed(&["exec", "web", "--", "/bin/true"])?;

    spawns(context, &floe, &mut report)?;
    let file = context.scratch.join("file");
    let mut content = vec![0; (COPY_MB * 1_000_000) as usize];
    rand::Rng::fill(&mut rand::rng(), &mut content[..]);
    std::fs::write(&file, &content)?;
    drop(content);
    let file = file.to_str().context("the scratch directory's name")?;
    copies(context, &floe, file, &mut report)?;
    echoes(context, &floe, &mut report)?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').take(2).collect::<Vec<_>>().join(" and ");
    report.note(format!(
        "the tiny guest, one emulated CPU; {COPY_MB} MB of random bytes in its memory; load of the host {load} in 1 and 5 minutes"
    ));
    Ok(report)
}

fn spawns(context: &Context, floe: &Floe, report: &mut Report) -> anyhow::Result<()> {
    let (mut over, mut whole, mut local) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..context.pick(40, 4) {
        let here = floe.timed(&["exec", "web", "--", "/bin/true"])?;
        // what it takes to get to a shell is the same for few and for many
        let there = (floe.shell(2 * LOCAL)? - floe.shell(LOCAL)?) / f64::from(LOCAL);
        whole.push(here);
        local.push(there);
        over.push(here - there);
    }
    report.add("over_local_ms_p50", "ms", &over).against(
        "the same spawn by a shell in the guest",
        "ms",
        local.median(),
    );
    report.add("exec_ms_p50", "ms", &whole);
    Ok(())
}

fn copies(context: &Context, floe: &Floe, file: &str, report: &mut Report) -> anyhow::Result<()> {
    let speed = |ms: f64| COPY_MB as f64 * 1000.0 / ms;
    let (mut inward, mut outward, mut slower) =
        (Samples::default(), Samples::default(), Samples::default());
    let back = format!("{file}.back");
    for _ in 0..context.pick(7, 1) {
        let to = speed(floe.timed(&["cp", file, "web:/tmp/file"])?);
        let from = speed(floe.timed(&["cp", "web:/tmp/file", &back])?);
        inward.push(to);
        outward.push(from);
        slower.push(to.min(from));
    }
    if std::fs::read(file)? != std::fs::read(&back)? {
        report.fail("what came back is not what was sent");
    }
    report.add("cp_mb_s", "MB/s", &slower);
    report.add("cp_in_mb_s", "MB/s", &inward);
    report.add("cp_out_mb_s", "MB/s", &outward);
    Ok(())
}

/// A child that is ended when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn echoes(context: &Context, floe: &Floe, report: &mut Report) -> anyhow::Result<()> {
    let mut shell = floe.command(&["exec", "-it", "web", "--", "sh", "-c", "echo ready; cat"]);
    let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = Ended(shell.spawn()?);
    let (keys, screen) = (shell.0.stdin.take(), shell.0.stdout.take());
    let mut keys = keys.context("it was started with a pipe")?;
    let mut screen = screen.context("it was started with a pipe")?;
    let mut ready = [0; "ready\r\n".len()];
    screen.read_exact(&mut ready)?;
    let mut echo = |samples: &mut Samples| -> anyhow::Result<()> {
        let began = Instant::now();
        keys.write_all(b"k")?;
        let mut echo = [0; 1];
        screen.read_exact(&mut echo)?;
        samples.push(began.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(KEY_EVERY);
        Ok(())
    };
    let count = context.pick(600, 30);
    let (mut quiet, mut busy) = (Samples::default(), Samples::default());
    for _ in 0..count / 3 {
        echo(&mut quiet)?;
    }
    let over = AtomicBool::new(false);
    let copied = std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            let mut copied = 0;
            while !over.load(Ordering::Relaxed) {
                floe.timed(&["cp", "web:/tmp/file", "-"])?;
                copied += 1;
            }
            anyhow::Ok(copied)
        });
        let typed = (0..count).try_for_each(|_| echo(&mut busy));
        over.store(true, Ordering::Relaxed);
        let copied = copies
            .join()
            .map_err(|_| anyhow::anyhow!("the copy panicked"))?;
        typed.and(copied)
    })?;
    report
        .add_quantile("echo_ms_p99", "ms", &busy, 0.99)
        .against("the median, beside the same copy", "ms", busy.median());
    report.add_quantile("echo_quiet_ms_p99", "ms", &quiet, 0.99);
    report.note(format!(
        "{copied} copies of the file went beside {count} keystrokes"
    ));
    Ok(())
}

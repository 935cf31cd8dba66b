//! `exec`: commands and copies in a guest, over the port of its agent: what a command takes beyond its own spawn in the guest,
//! how fast files are copied, and how long a keystroke's echo takes beside a copy; what is left of a command that is ended, and which
//! others end with one that takes all memory.
use anyhow::{Context as _, bail, ensure};
use floe_api::{RunRequest, Wait};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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
/// Memory of the guest with systemd in bytes: a command uses it up.
const SYSTEM_MEMORY_BYTES: u64 = 512 << 20;
/// Longest time until its agent answers.
const SYSTEM_BOOT_MAX: Duration = Duration::from_secs(600);
/// Commands beside one that takes all memory.
const OTHERS: usize = 8;
/// What a command returns whose time was over, and one that SIGKILL has ended.
const ENDED: [i32; 2] = [124, 137];
/// Starts a process in a session of its own, a daemon, and one that does not mind being asked to end.
const STRAYS: &str = "setsid sleep 5001 & (setsid sleep 5002 &); setsid sh -c 'trap \"\" TERM; sleep 5003; sleep 5003' &";
/// How many of these sleep.
const COUNT: &str =
    "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '500[123]'; true";

/// The floe command, and the node that it is to speak with.
pub(super) struct Floe {
    program: PathBuf,
    socket: PathBuf,
}

impl Floe {
    pub fn new(node: &Node) -> anyhow::Result<Floe> {
        Ok(Floe {
            program: floe_testbed::live::floe()?,
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

    /// Runs a shell's line in a machine's guest, with these options, and returns its exit code and its output.
    pub fn line(
        &self,
        options: &[&str],
        machine: &str,
        line: &str,
    ) -> anyhow::Result<(Option<i32>, String)> {
        let args = [&["exec"][..], options, &[machine, "--", "sh", "-c", line]].concat();
        let done = self.command(&args).stdout(Stdio::piped()).spawn()?;
        let done = done.wait_with_output()?;
        Ok((done.status.code(), String::from_utf8(done.stdout)?))
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

    let rounds = context.pick(8, 1);
    let (mut left, mut lost) = (0, 0);
    for machine in ["web", "system"] {
        if machine == "system" {
            node.remove("web")?;
            boot_system(&node)?;
        }
        left += survivors(&floe, machine, rounds)?;
        lost += streams_lost(&floe, machine, rounds, &mut report)?;
    }
    report.add_value("survivors", "count", f64::from(left));
    report.add_value("streams_lost", "count", f64::from(lost));
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').take(2).collect::<Vec<_>>().join(" and ");
    report.note(format!(
        "the tiny guest, one emulated CPU; {COPY_MB} MB of random bytes in its memory; load of the host {load} in 1 and 5 minutes; \
         ends of {rounds} commands of either kind there and in a Debian with systemd, beside {OTHERS} others"
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

/// Boots a guest whose agent is a service of systemd, which has a policy of its own for services that use up the memory.
fn boot_system(node: &Node) -> anyhow::Result<()> {
    node.import_with(&Guest::debian()?, "system", SYSTEM_MEMORY_BYTES, 1)?;
    let request = RunRequest {
        image: "system".into(),
        name: Some("system".into()),
        cold: true,
        wait: Wait::Agent,
        wait_timeout_s: Some(SYSTEM_BOOT_MAX.as_secs()),
        ..RunRequest::default()
    };
    node.run(&request, |_| {}).map(drop)
}

/// Lets the time of commands be over that have started others. Returns how many of those were left when `floe exec` had ended.
fn survivors(floe: &Floe, machine: &str, rounds: u32) -> anyhow::Result<u32> {
    let count = || -> anyhow::Result<u32> {
        let (_, said) = floe.line(&[], machine, COUNT)?;
        let count = said.trim().parse::<u32>();
        count.with_context(|| format!("a count of processes is {said:?}"))
    };
    let (mut before, mut left) = (0, 0);
    for _ in 0..rounds {
        // it says that they run, beside those that are left of earlier rounds
        let line = format!(
            "{STRAYS} while [ $({COUNT}) -lt $(({before} + 3)) ]; do sleep 0.1; done; echo they run; sleep 5000"
        );
        let (code, said) = floe.line(&["--timeout", "20"], machine, &line)?;
        ensure!(
            (code, said.trim()) == (Some(ENDED[0]), "they run"),
            "a command whose time was to be over gave {code:?} and said {said:?}"
        );
        let now = count()?;
        left += now.saturating_sub(before);
        before = now;
    }
    Ok(left)
}

/// A command that says each byte that it is given.
struct Echo {
    /// Ended with this.
    _command: Ended,
    to: ChildStdin,
    from: ChildStdout,
}

impl Echo {
    fn start(floe: &Floe, machine: &str) -> anyhow::Result<Echo> {
        let mut command = floe.command(&["exec", "-i", machine, "--", "cat"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut command = Ended(command.spawn()?);
        let (to, from) = (command.0.stdin.take(), command.0.stdout.take());
        Ok(Echo {
            _command: command,
            to: to.context("it was started with a pipe")?,
            from: from.context("it was started with a pipe")?,
        })
    }

    /// Returns whether it goes on.
    fn answers(&mut self) -> bool {
        let told = self.to.write_all(b"k");
        told.and_then(|()| self.from.read_exact(&mut [0; 1]))
            .is_ok()
    }
}

/// Lets commands take all memory. Returns how many others ended with them.
fn streams_lost(
    floe: &Floe,
    machine: &str,
    rounds: u32,
    report: &mut Report,
) -> anyhow::Result<u32> {
    let mut lost = 0;
    for _ in 0..rounds {
        let others = (0..OTHERS).map(|_| Echo::start(floe, machine));
        let mut others = others.collect::<anyhow::Result<Vec<Echo>>>()?;
        let began = others.iter_mut().all(Echo::answers);
        ensure!(began, "a command in {machine} does not answer");
        let (code, _) = floe.line(&[], machine, "exec tail /dev/zero")?;
        if code != Some(ENDED[1]) {
            report.fail(format!(
                "a command in {machine} that took all memory gave {code:?}"
            ));
        }
        lost += others
            .iter_mut()
            .map(|other| u32::from(!other.answers()))
            .sum::<u32>();
    }
    Ok(lost)
}

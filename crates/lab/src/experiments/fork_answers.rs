//! A part of `fork`: how long until each of several clones answers a web request from outside, and a command. Compared with QEMU's own way
//! run for real: the guest is stopped, its state written to a file, and so many QEMUs load that at once, until their web servers answer.
//! Once of a light guest, once of one of 8 GB in whose memory a database is.
use super::dock::{self, Kind};
use super::exec::Floe;
use super::fork;
use super::live::{Node, at_once};
use super::park::until_it_answers;
use super::plain::{Hardware, PlainQemu};
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, ensure};
use floe_api::{CloneState, ForkRequest, ForwardRequest, PortForward, WaitFor, WaitQuery};
use std::path::Path;
use std::time::{Duration, Instant};

/// Clones at once.
const CLONES: usize = 25;
/// Memory of the light guest, bytes.
const LIGHT_BYTES: u64 = 128 << 20;
/// Memory of the other, bytes.
const HEAVY_BYTES: u64 = 8 << 30;
/// Longest time for a guest to fill its database, and for a clone to answer, emulated.
const PATIENCE: Duration = Duration::from_secs(900);
/// Time between two attempts to lead a port to a clone.
const AGAIN: Duration = Duration::from_millis(20);
/// Time between two forks: the host is quiet again.
const BETWEEN: Duration = Duration::from_secs(2);
/// A database whose table is in its memory, since it has just been written and read.
const DATABASE: Kind = Kind {
    name: "database",
    disk: Some("database"),
    works: &[],
};
/// Fills it.
const WARM: &str = "systemctl start postgresql; until su postgres -c 'psql -c \"select 1\"' >/dev/null 2>&1; do busybox sleep 1; done; \
     su postgres -c 'psql -q -c \"create table warm as select g, md5(g::text) from generate_series(1,400000) g; select count(*) from warm\"'";

/// What is forked.
struct Parent<'a> {
    /// The machine that was booted.
    booted: &'a str,
    hardware: Hardware<'a>,
    /// What its shell does before it is forked.
    work: &'a str,
    /// How the figures' names end.
    suffix: &'a str,
    /// The name of the comparison.
    ratio: &'a str,
    /// Forks that are measured, and how often QEMU's own way is.
    rounds: (usize, usize),
}

/// Adds the figures to those of `fork`. A quick run has two clones of the light guest.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let light = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("answers"), false)?;
    node.import(&light, "guest", LIGHT_BYTES)?;
    node.boot("guest", "origin")?;
    let parent = Parent {
        booted: "origin",
        hardware: Hardware::new(&light, LIGHT_BYTES, 2),
        work: "true",
        suffix: "",
        ratio: "qemu_over_ours_n25_light",
        rounds: context.pick((5, 2), (1, 1)),
    };
    compare(context, report, node, &parent)?;
    if !context.quick {
        let dir = context.scratch.join("heavy");
        let guest = with_database(&dir)?;
        let node = Node::start(None, &context.scratch.join("answers-8gb"), false)?;
        dock::boot(&node, &DATABASE, HEAVY_BYTES)?;
        let parent = Parent {
            booted: DATABASE.name,
            hardware: Hardware::new(&guest, HEAVY_BYTES, 1).with_balloon(),
            work: WARM,
            suffix: "_8gb",
            ratio: "qemu_over_ours_n25",
            rounds: (3, 2),
        };
        compare(context, report, node, &parent)?;
    }
    report.note(format!(
        "answer_ms, exec_ms: {CLONES} clones at once (2 in a quick run) of a guest that runs, from the call until each of them has answered a \
         web request through a port of the host that is led to it then, or has run a command; quantiles are over all clones of all rounds; \
         _8gb: one CPU, 8 GB, a database of 400,000 rows in its memory; QEMU's own way: from its stop until each copy has answered such a \
         request, each with a disk on top of the guest's; of 8 GB, with a balloon through which the guest gives back what is free, as ours has; \
         state_mb: how much of its memory the guest that is forked does not have free"
    ));
    Ok(())
}

/// The guest with a database as QEMU alone boots it: the kernel of the others, and its own disk.
fn with_database(dir: &Path) -> anyhow::Result<Guest> {
    std::fs::create_dir_all(dir)?;
    let debian = Guest::debian()?;
    let disk = Guest::family()?.join("database.raw");
    for (from, name) in [
        (debian.kernel(), "vmlinuz"),
        (debian.initrd(), "initrd"),
        (disk, "disk.raw"),
    ] {
        std::os::unix::fs::symlink(from, dir.join(name))?;
    }
    std::fs::write(dir.join("cmdline"), debian.cmdline()?)?;
    Guest::at(dir)
}

/// Measures clones of a machine, and QEMU's own way to as many.
fn compare(
    context: &Context,
    report: &mut Report,
    node: Node,
    parent: &Parent,
) -> anyhow::Result<()> {
    let count = context.pick(CLONES, 2);
    node.tell(parent.booted, parent.work, PATIENCE)?;
    node.capture(parent.booted, "ready", true, 0)?;
    node.remove(parent.booted).ok();
    fork::start(&node, "ready", "web")?;
    let floe = Floe::new(&node)?;
    // what is created only once is created by the first
    fork_until(&node, 1, |clone| get(&node, clone))?;
    let state_mb = held_mb(&floe, "web")?;
    let (mut answered, mut executed) = (Samples::default(), Samples::default());
    for _ in 0..parent.rounds.0 {
        for ms in fork_until(&node, count, |clone| get(&node, clone))? {
            answered.push(ms);
        }
        for ms in fork_until(&node, count, |clone| run_in(&node, &floe, clone))? {
            executed.push(ms);
        }
    }
    drop(node); // its guests would run beside QEMU's
    let theirs = plain(context, parent, count)?;
    let alternative = "QEMU's stop, migration to a file, and as many that load it at once";
    let suffix = parent.suffix;
    for (name, quantile) in [("p50", 0.5), ("p95", 0.95)] {
        let key = format!("answer_ms_{name}_n25{suffix}");
        report
            .add_quantile(&key, "ms", &answered, quantile)
            .against(alternative, "ms", theirs.quantile(quantile));
        let key = format!("exec_ms_{name}_n25{suffix}");
        report.add_quantile(&key, "ms", &executed, quantile);
    }
    let ratio = theirs.quantile(0.95) / answered.quantile(0.95);
    report.add_value(parent.ratio, "x", ratio);
    report.add_value(&format!("state_mb_n25{suffix}"), "MB", state_mb);
    Ok(())
}

/// Returns how much of its memory a machine's guest does not have free, in MB.
fn held_mb(floe: &Floe, machine: &str) -> anyhow::Result<f64> {
    let line = "while read name kib unit; do case $name in MemTotal:) all=$kib;; MemFree:) free=$kib;; esac; done < /proc/meminfo; \
                echo $((all - free))";
    let (code, said) = floe.line(&[], machine, line)?;
    ensure!(
        code == Some(0),
        "{machine} does not say how much memory is free"
    );
    let kib: f64 = said.trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Measures QEMU's own way: when each copy had answered, in ms since the guest was stopped.
fn plain(context: &Context, parent: &Parent, count: usize) -> anyhow::Result<Samples> {
    let suffix = parent.suffix;
    let dir = context.scratch.join(format!("plain-answers{suffix}"));
    let mut qemu = PlainQemu::boot(&dir, parent.hardware)?;
    qemu.tell(parent.work, PATIENCE)?;
    let mut answered = Samples::default();
    for round in 0..parent.rounds.1 {
        let dir = context.scratch.join(format!("copies{round}{suffix}"));
        for ms in qemu.copies(&dir, parent.hardware, count)?.answered.values() {
            answered.push(*ms);
        }
    }
    Ok(answered)
}

/// Forks the machine `web`, and asks all clones something at once. Returns when each had answered, in ms since the call.
fn fork_until(
    node: &Node,
    count: usize,
    ask: impl Fn(&str) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Vec<f64>> {
    std::thread::sleep(BETWEEN);
    let began = Instant::now();
    let request = ForkRequest {
        clones: count as u32,
        // what they share counts once, but the host promises each of them all of its memory
        overcommit: true,
        ..ForkRequest::default()
    };
    let outcome = node.client.fork("web", &request)?.finish(|_| {})?;
    let clones = &fork::told(&outcome)?.clones;
    for clone in clones {
        ensure!(
            clone.state == CloneState::Running,
            "{} does not run: {}",
            clone.name,
            clone.detail
        );
    }
    let times = at_once(clones.len(), |number| {
        ask(&clones[number].name)?;
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    })?;
    fork::end(node, "web")?;
    Ok(times)
}

/// Leads a port of this host to a clone's web server, and asks that for a page until it answers.
fn get(node: &Node, clone: &str) -> anyhow::Result<()> {
    until_it_answers(lead_to(node, clone)?)
}

/// Leads a port of a node's host to a clone's web server, and returns it.
pub(super) fn lead_to(node: &Node, clone: &str) -> anyhow::Result<u16> {
    let request = ForwardRequest {
        forward: PortForward {
            protocol: Default::default(),
            host_address: "127.0.0.1".into(),
            host_port: 0,
            guest_port: 80,
        },
        remove: false,
    };
    let until = Instant::now() + PATIENCE;
    loop {
        // for a moment something else may be done with the clone, or another one may have taken the port that was free
        match node.client.forward(clone, &request) {
            Ok(forward) => return Ok(forward.host_port),
            Err(_) if Instant::now() < until => std::thread::sleep(AGAIN),
            Err(error) => return Err(error).context("no port leads to a clone"),
        }
    }
}

/// Runs a command in a clone's guest, once its agent answers.
fn run_in(node: &Node, floe: &Floe, clone: &str) -> anyhow::Result<()> {
    let answers = WaitQuery {
        what: WaitFor::Answers,
        timeout_s: Some(PATIENCE.as_secs()),
    };
    node.client.wait(clone, &answers)?;
    floe.timed(&["exec", clone, "--", "/bin/true"]).map(drop)
}

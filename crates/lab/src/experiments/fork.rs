//! `fork`: how long a parent is paused, how long until n clones execute, what that costs the node, and how little a
//! clone's node needs before it starts. Compared with QEMU's own way: stop and write a migration file, and n QEMUs that load it at once.
use super::forking::{BETWEEN, FILL_MAX, FORGET_MAX, end, fork_to, start, told};
use super::hardware::own_mb;
use anyhow::Context as _;
use floe_api::Outcome;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples, cpu_times};
use floe_testbed::live::{Node, write_distinct};
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most QEMUs that wait without an image on a host.
const BLANKS_MAX: u64 = 32;
/// How many clones at once.
const NUMBERS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Memory of a light guest.
const LIGHT_BYTES: u64 = 128 << 20;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("fork", context.quick);
    let (guest, memory) = wan::guest(context)?;
    // a quick run uses a guest of 256 MB
    let light = [
        ("pause_ms_p50_64mb", context.pick(64, 16)),
        ("pause_ms_p50_256mb", context.pick(256, 32)),
    ];
    let descriptors = pauses(context, &mut report, &guest, memory, &light, None)?;
    report.add("descriptor_kb", "kB", &descriptors);
    // a guest of 1 GB has no room for that much
    let heavy = [("pause_ms_p50_1024mb", context.pick(1024, 64))];
    let busy = Some("pause_ms_p50_1024mb_busy");
    pauses(context, &mut report, &guest, memory * 2, &heavy, busy)?;
    clones(context, &mut report)?;
    from_blanks(context, &mut report)?;
    super::fork_answers::add(context, &mut report)?;
    super::fork_hosts::add(context, &mut report)?;
    report.note(
        "pauses: two CPUs, so many MB of bytes, no two pages alike, written to memory since the guest's start, and what the guest itself wrote \
         (1024 MB in a guest of 2 GB, the others of 1 GB); busy: while it also writes 64 MB again and again; \
         clones: of a guest of busybox with 128 MB, from the call until the last one executes; own CPU: that of the node's \
         process until then, divided by the number of clones",
    );
    Ok(report)
}

/// Measures the parent's pause for each number of MB that it has written since its own start; `figures` has names of
/// figures with their MB, in ascending order. `busy` names the same pause while the guest writes again and again. Returns the sizes of the
/// descriptors in kB.
fn pauses(
    context: &Context,
    report: &mut Report,
    guest: &Guest,
    memory: u64,
    figures: &[(&str, u64)],
    busy: Option<&str>,
) -> anyhow::Result<Samples> {
    let scratch = context.scratch.join(format!("pauses-{}", memory >> 20));
    let node = Node::start(None, &scratch, false)?;
    node.import(guest, "guest", memory)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();
    let hardware = Hardware::new(guest, memory, 2);
    let mut plain = PlainQemu::boot(&scratch.join("plain"), hardware)?;
    let mut migrations = Samples::default();
    for _ in 0..context.pick(3, 1) {
        let state = scratch.join("state");
        migrations.push(plain.save(&state)?.as_secs_f64() * 1000.0);
    }
    drop(plain);
    start(&node, "booted", "web")?;
    let mut descriptors = Samples::default();
    let mut filled = 0;
    let rounds = context.pick(9, 2);
    let mut tell = |key: &str, pauses: &Samples| {
        report.add(key, "ms", pauses).against(
            "QEMU's stop and migrate of an idle guest to a file",
            "ms",
            migrations.median(),
        );
    };
    for &(key, megabytes) in figures {
        fill(&node, "web", megabytes - filled, key)?;
        filled = megabytes;
        tell(key, &pauses_of(&node, rounds, &mut descriptors)?);
    }
    if let (Some(key), Some((filled, _))) = (busy, figures.last()) {
        node.tell("web", &write_again_and_again(filled), FILL_MAX)?;
        tell(key, &pauses_of(&node, rounds, &mut descriptors)?);
    }
    Ok(descriptors)
}

/// Forks the machine `web` so many times, into one clone each. Returns its pauses in ms, and adds the sizes of the descriptors in kB.
fn pauses_of(node: &Node, rounds: usize, descriptors: &mut Samples) -> anyhow::Result<Samples> {
    let mut pauses = Samples::default();
    for _ in 0..rounds {
        let outcome = fork(node, "web", 1)?;
        pauses.push(outcome.pause_ms.context("a fork tells its pause")?);
        descriptors.push(told(&outcome)?.descriptor_bytes as f64 / 1e3);
        end(node, "web")?;
    }
    Ok(pauses)
}

/// Measures the time from the call until the last of n clones executes.
fn clones(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let guest = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("clones"), false)?;
    node.import(&guest, "guest", LIGHT_BYTES)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();
    let hardware = Hardware::new(&guest, LIGHT_BYTES, 2);
    let mut plain = PlainQemu::boot(&context.scratch.join("light"), hardware)?;
    let mut theirs = BTreeMap::new();
    for n in NUMBERS {
        let mut last = Samples::default();
        for round in 0..context.pick(2, 1) {
            let dir = context.scratch.join(format!("light{n}-{round}"));
            let copies = plain.copies(&dir, hardware, n as usize)?;
            last.push(copies.running.quantile(1.0));
        }
        theirs.insert(n, last.median());
    }
    drop(plain);
    start(&node, "booted", "web")?;
    fork(&node, "web", 1)?;
    end(&node, "web")?;
    let pid = node.client.node()?.pid;
    let mut cpu = Samples::default();
    for n in NUMBERS {
        let mut running = Samples::default();
        for _ in 0..context.pick(7, 1) {
            std::thread::sleep(BETWEEN);
            let before = cpu_times(pid)?.own_ms;
            let outcome = fork(&node, "web", n)?;
            let own = cpu_times(pid)?.own_ms - before;
            let last = told(&outcome)?.clones.iter().filter_map(|c| c.running_ms);
            running.push(last.fold(0.0, f64::max));
            if n >= 8 {
                cpu.push(own / f64::from(n));
            }
            end(&node, "web")?;
        }
        report
            .add(&format!("all_running_ms_n{n}"), "ms", &running)
            .against(
                "QEMU's stop, migration to a file, and as many that load it at once",
                "ms",
                theirs[&n],
            );
    }
    report.add("own_cpu_ms_per_clone", "ms", &cpu);
    Ok(())
}

/// Measures the same with QEMUs that an earlier fork had started, and how much memory of its own one of them takes.
fn from_blanks(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let guest = Guest::tiny()?;
    let node = Node::start(None, &context.scratch.join("blanks"), true)?;
    node.import(&guest, "guest", LIGHT_BYTES)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();
    start(&node, "booted", "web")?;
    let mut own = Samples::default();
    for n in [8u32, 32] {
        let mut running = Samples::default();
        for _ in 0..context.pick(7, 1) {
            // a machine that was forked will probably be forked again, into as many clones
            fork(&node, "web", n)?;
            end(&node, "web")?;
            let until = Instant::now() + FORGET_MAX;
            // one more waits for a run, where the host's limit leaves room for it
            while node.client.node()?.blanks < u64::from(n + 1).min(BLANKS_MAX) {
                anyhow::ensure!(Instant::now() < until, "no {n} QEMUs wait for a fork");
                std::thread::sleep(Duration::from_millis(50));
            }
            waiting_mb(&node, &mut own)?;
            std::thread::sleep(BETWEEN);
            let outcome = fork(&node, "web", n)?;
            let last = told(&outcome)?.clones.iter().filter_map(|c| c.running_ms);
            running.push(last.fold(0.0, f64::max));
            end(&node, "web")?;
        }
        report.add(&format!("all_running_ms_n{n}_blank"), "ms", &running);
    }
    report.add("blank_mb", "MB", &own);
    Ok(())
}

/// Adds the memory of each QEMU that waits: it has read nothing of its RAM. The one of them that waits for a run has loaded a state, which
/// the median of many does not show.
fn waiting_mb(node: &Node, own: &mut Samples) -> anyhow::Result<()> {
    for dir in std::fs::read_dir(node.home.join("standby"))? {
        let vm = dir?.path().join("vm");
        let Ok(text) = std::fs::read_to_string(vm.join("machine.json")) else {
            continue; // it was started or ended just now
        };
        let record: serde_json::Value = serde_json::from_str(&text)?;
        if let Some(pid) = record["process"]["pid"].as_u64() {
            own.push(own_mb(pid as u32)?);
        }
    }
    Ok(())
}

/// Makes the guest write this many MB, no two pages alike, to memory that stays allocated.
fn fill(node: &Node, machine: &str, megabytes: u64, name: &str) -> anyhow::Result<()> {
    let file = format!("/dev/shm/{name}");
    let command = format!("{}; ls -l {file}", write_distinct(megabytes, &file));
    node.tell(machine, &command, FILL_MAX).map(drop)
}

/// Returns a command of a shell that, beside it, writes the first 64 MB of a file that [`fill`] has made to memory again and again.
fn write_again_and_again(name: &str) -> String {
    let copy = format!("dd if=/dev/shm/{name} of=/dev/shm/busy bs=1M count=64 conv=notrunc");
    format!("(while :; do {copy}; done) >/dev/null 2>&1 &")
}

fn fork(node: &Node, parent: &str, clones: u32) -> anyhow::Result<Outcome> {
    fork_to(node, parent, clones, Vec::new())
}

//! `activate`: from the call to the first instruction of a machine from the pool's memory, and to its guest's answer with the network in
//! place; the same of 1 to 8 machines on four hosts. Compared with a cold boot of the same guest until it answers, with QEMU's restore of
//! the full state from a file that is not in memory, and with a live migration between two QEMUs, with as many virtual CPUs: once where
//! nothing waits for the substrate and nothing of it is in the kernel's memory, and once where a QEMU waits that has loaded it.
use super::activate_ways;
use super::activation::{Activated, activate, boot};
use anyhow::{Context as _, ensure};
use floe_api::{ActivateRequest, DockRequest, KillRequest, REHEARSE_S_DEFAULT};
use floe_testbed::cluster::{host_name, join};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Segment;
use floe_testbed::live::Node;
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for a waiting QEMU to start between two activations.
const STANDBY_TIME: Duration = Duration::from_secs(3);
/// Hosts that machines are dispatched to.
const HOSTS: usize = 4;
/// How many machines at once.
const MACHINES: [u32; 4] = [1, 2, 4, 8];
/// The substrate.
const NAME: &str = "ready";
/// The machine that is docked as that.
const ORIGIN: &str = "origin";

/// Times of activations, in milliseconds.
#[derive(Default)]
struct Times {
    first: Samples,
    ready: Samples,
    stages: BTreeMap<String, Samples>,
}

impl Times {
    /// Adds one: until the last of its machines executed, and answered.
    fn push(&mut self, activated: &Activated) -> anyhow::Result<()> {
        let machines = &activated.report.machines;
        let first = machines.iter().map(|machine| machine.first_ms);
        self.first.push(first.fold(0.0, f64::max));
        let mut last: f64 = 0.0;
        for machine in machines {
            let answered = machine.network_ms;
            last = last.max(answered.with_context(|| format!("{} answers", machine.name))?);
        }
        self.ready.push(last);
        for (stage, ms) in &activated.stages {
            self.stages.entry(stage.clone()).or_default().push(*ms);
        }
        Ok(())
    }

    /// Reports the parts of the time under names that begin so.
    fn tell_stages(&self, report: &mut Report, prefix: &str) {
        for (stage, times) in &self.stages {
            let name = stage.replace(' ', "_");
            report.add(&format!("{prefix}part.{name}_ms"), "ms", times);
        }
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("activate", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let (loaded, boots) = here(context, &guest, memory, &mut report)?;
    let cold = cold(context, &guest, memory, &mut report)?;
    let (restores, migrations) = plain(context, &guest, memory)?;
    for (what, theirs, ratios) in [
        (
            "a cold boot",
            &boots,
            [
                ("boot_over_ready", &cold.ready),
                ("boot_over_loaded", &loaded.ready),
            ],
        ),
        (
            "QEMU's restore",
            &restores,
            [
                ("restore_over_first", &cold.first),
                ("restore_over_loaded", &loaded.first),
            ],
        ),
        (
            "the live migration",
            &migrations,
            [
                ("migrate_over_first", &cold.first),
                ("migrate_over_loaded", &loaded.first),
            ],
        ),
    ] {
        for (name, ours) in ratios {
            report
                .add_value(name, "x", theirs.median() / ours.median())
                .against(what, "ms", theirs.median());
        }
    }
    on_hosts(context, &guest, memory, &mut report)?;
    activate_ways::add(context, &mut report)?;
    super::cluster_ready::add(context, &mut report)?;
    report.note(
        "first_ms, ready_ms and *_over_loaded: one private machine on this host, for which a QEMU waits that has loaded this very \
         substrate; cold_*, boot_over_ready, restore_over_first and migrate_over_first: nothing waits, what earlier activations unpacked is \
         removed and the kernel's caches are dropped before each, another machine's QEMU running; ready: its agent has answered, at the \
         size that it was docked with",
    );
    report.note(format!(
        "ready_ms_n: so many clones on {HOSTS} hosts, which are network namespaces of one machine and share its processors; until the \
         last one has answered with its network in place; a copy of the docked machine was rehearsed for {REHEARSE_S_DEFAULT} s"
    ));
    Ok(report)
}

/// Measures one machine on the host of the pool, for which a QEMU waits that has loaded its substrate; and cold boots, in milliseconds.
fn here(
    context: &Context,
    guest: &Guest,
    memory: u64,
    report: &mut Report,
) -> anyhow::Result<(Times, Samples)> {
    let node = Node::start(None, &context.scratch.join("node"), true)?;
    node.import_with(guest, "guest", memory, 1)?;
    let mut boots = Samples::default();
    for round in 0..context.pick(3, 1) {
        let name = format!("boot{round}");
        boots.push(boot(&node, "guest", &name)?);
        node.remove(&name)?;
    }
    dock_one(&node, None)?;
    node.remove(ORIGIN)?;
    let (mut times, mut reads) = (Times::default(), Samples::default());
    for round in 0..=context.pick(15, 3) {
        // what the last one has unpacked is not to be found on the disk: its chunks come from the pool's memory
        node.client.cache_gc()?;
        let name = format!("m{round}");
        let request = ActivateRequest {
            name: Some(name.clone()),
            ..ActivateRequest::default()
        };
        let activated = activate(&node, NAME, request)?;
        ensure!(activated.report.from_memory, "it came from the disk");
        // the first one has no QEMU that waits for it
        if round > 0 {
            times.push(&activated)?;
            reads.push(node.machine(&name)?.stats.misses as f64);
        }
        node.remove(&name)?;
        std::thread::sleep(STANDBY_TIME);
    }
    let alternative = "a cold boot until its guest answers";
    report
        .add("first_ms_p50", "ms", &times.first)
        .against(alternative, "ms", boots.median());
    report
        .add("ready_ms_p50", "ms", &times.ready)
        .against(alternative, "ms", boots.median());
    report.add("reads_p50", "", &reads);
    times.tell_stages(report, "");
    Ok((times, boots))
}

/// Measures one machine on a host where nothing waits for it and nothing of its substrate is in the kernel's memory: QEMU's restore begins
/// like that, too. The machine that was docked runs on, so that QEMU's own program stays in memory, as it does there.
fn cold(
    context: &Context,
    guest: &Guest,
    memory: u64,
    report: &mut Report,
) -> anyhow::Result<Times> {
    let node = Node::start(None, &context.scratch.join("cold"), false)?;
    node.import_with(guest, "guest", memory, 1)?;
    dock_one(&node, None)?;
    let (mut times, mut reads) = (Times::default(), Samples::default());
    for _ in 0..context.pick(15, 3) {
        activate_ways::forget(&node)?;
        let request = ActivateRequest {
            name: Some("m".into()),
            ..ActivateRequest::default()
        };
        let activated = activate(&node, NAME, request)?;
        ensure!(activated.report.from_memory, "it came from the disk");
        times.push(&activated)?;
        reads.push(node.machine("m")?.stats.misses as f64);
        node.remove("m")?;
    }
    report.add("cold_first_ms_p50", "ms", &times.first);
    report.add("cold_ready_ms_p50", "ms", &times.ready);
    report.add("cold_reads_p50", "", &reads);
    Ok(times)
}

/// Makes the substrate, of a guest whose agent has answered: of others nobody waits for an answer. With so many seconds of rehearsal. Its
/// machine runs on.
fn dock_one(node: &Node, rehearse_s: Option<u32>) -> anyhow::Result<()> {
    boot(node, "guest", ORIGIN)?;
    let request = DockRequest {
        name: NAME.into(),
        rehearse_s,
        ..DockRequest::default()
    };
    node.client.dock(ORIGIN, &request)?.finish(|_| {})?;
    Ok(())
}

/// Measures QEMU's own ways, in milliseconds: a restore from a file that is not in memory, and a live migration.
fn plain(context: &Context, guest: &Guest, memory: u64) -> anyhow::Result<(Samples, Samples)> {
    let (dir, state) = (context.scratch.join("plain"), context.scratch.join("state"));
    let hardware = Hardware::new(guest, memory, 1);
    let mut running = PlainQemu::boot(&dir, hardware)?;
    running.save(&state)?;
    let (mut restores, mut migrations) = (Samples::default(), Samples::default());
    let rounds = context.pick(5, 1);
    for round in 0..rounds {
        let to = context.scratch.join(format!("moved{round}"));
        running = running.migrate(&to, hardware)?;
        migrations.push(running.started.as_secs_f64() * 1000.0);
    }
    drop(running);
    for _ in 0..rounds {
        forget(&state)?;
        let qemu = PlainQemu::load(&dir, hardware, &state)?;
        restores.push(qemu.started.as_secs_f64() * 1000.0);
    }
    Ok((restores, migrations))
}

/// Has the kernel forget what it holds in memory of a file.
pub(super) fn forget(path: &std::path::Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Measures 1 to 8 machines on four hosts.
fn on_hosts(
    context: &Context,
    guest: &Guest,
    memory: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let segment = Segment::new(HOSTS).context("hosts of our own need root")?;
    let mut nodes = Vec::new();
    for number in 0..HOSTS {
        segment.as_gigabit(number)?;
        let home = context.scratch.join(format!("host{number}"));
        nodes.push(Node::start(Some(segment.host(number)), &home, true)?);
    }
    join(&segment, &nodes)?;
    let first = &nodes[0];
    first.import_with(guest, "guest", memory, 1)?;
    dock_one(first, Some(REHEARSE_S_DEFAULT))?;
    first.remove(ORIGIN)?;
    let mut all = BTreeMap::new();
    for n in MACHINES {
        let mut times = Times::default();
        for round in 0..=context.pick(5, 1) {
            for node in &nodes {
                node.client.cache_gc()?;
            }
            let request = ActivateRequest {
                machines: n,
                hosts: (0..HOSTS).map(host_name).collect(),
                ..ActivateRequest::default()
            };
            let activated = activate(first, NAME, request)?;
            ensure!(activated.report.from_memory, "it came from the disk");
            // the first one has no QEMUs that wait for it
            if round > 0 {
                times.push(&activated)?;
            }
            let killed = first.client.kill(NAME, &KillRequest { all: true })?;
            ensure!(killed.failed.is_empty(), "{:?}", killed.failed);
            std::thread::sleep(STANDBY_TIME);
        }
        report.add(&format!("first_ms_n{n}"), "ms", &times.first);
        report.add(&format!("ready_ms_n{n}"), "ms", &times.ready);
        if n == MACHINES[MACHINES.len() - 1] {
            times.tell_stages(report, &format!("n{n}."));
        }
        all.insert(n, times.ready.median());
    }
    report.add_value("n8_over_n1", "x", all[&8] / all[&1]);
    Ok(())
}

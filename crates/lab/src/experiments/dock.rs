//! `dock`: what a substrate takes in the pool's memory, beyond its base image, and how long its machine stands still for it. Guests that
//! work as a web server, a database and a compiler; docked live, and made small first; compared with the memory that each of them has. Once
//! over an image that was captured at the guest's shell, and once over its disks alone. What being made small is worth by itself is told
//! by pairs: two machines of one image that have done the same work, one docked live and one made small first.
use anyhow::{Context as _, ensure};
use floe_api::{ActivateRequest, DockRequest, ImportRequest, Outcome, RunRequest, SubstrateInfo};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time for a guest to do its work: a database that starts under emulation takes a minute.
const WORK_MAX: Duration = Duration::from_secs(300);
/// Memory of a guest in a full and in a quick run, bytes.
const MEMORY: u64 = 1 << 30;
const MEMORY_QUICK: u64 = 128 << 20;
/// Name of the one substrate of this experiment at a time.
const NAME: &str = "docked";
/// Name of the machine that stands on its disks alone.
const BOOTED: &str = "booted";
/// Name of each machine of a pair.
const PAIR: &str = "pair";
/// Longest time for a guest to answer after its activation, in seconds.
const ANSWER_S_MAX: u64 = 300;

/// What a guest is used as.
pub(super) struct Kind {
    /// Its name in figures.
    pub name: &'static str,
    /// Its disk among those of the family; `None` is the tiny guest, which has none.
    pub disk: Option<&'static str>,
    /// What it does, as commands of its shell; `N` is another number each time.
    pub works: &'static [&'static str],
}

/// A web server, a database and a compiler.
pub(super) const SERVERS: [Kind; 3] = [
    Kind {
        name: "web",
        disk: Some("web"),
        works: &[
            "systemctl stop floe-http; systemctl start nginx && seq 1 100N > /var/www/html/page && \
             for i in $(seq 20); do busybox wget -q -O - http://127.0.0.1/page || break; done | busybox wc -l | busybox grep -qx $((20 * 100N))",
        ],
    },
    Kind {
        name: "database",
        disk: Some("database"),
        works: &[
            "systemctl start postgresql; until su postgres -c 'psql -c \"select 1\"' >/dev/null 2>&1; do busybox sleep 1; done; \
             su postgres -c 'psql -q -c \"create table tN as select g, md5(g::text) from generate_series(1,20000) g; select count(*) from tN\"'",
        ],
    },
    Kind {
        name: "compiler",
        disk: Some("build"),
        works: &[
            "cd /tmp; for i in $(seq 10); do printf 'int f%s(int a) { return a * %s; }\\n' $i N; done > fN.c; gcc -O2 -c fN.c -o fN.o; busybox ls -l fN.o",
        ],
    },
];

/// The guest of a quick run.
pub(super) const TINY: Kind = Kind {
    name: "tiny",
    disk: None,
    works: &["seq 1 300N > /tmp/fN; sort /tmp/fN | md5sum; x=$(seq 1 20N)"],
};

/// Imports a kind of guest under its name, and boots it as a machine of that name.
pub(super) fn boot(node: &Node, kind: &Kind, memory: u64) -> anyhow::Result<()> {
    let Some(disk) = kind.disk else {
        node.import_with(&Guest::tiny()?, kind.name, memory, 1)?;
        return node.boot(kind.name, kind.name);
    };
    let (debian, text) = (Guest::debian()?, |path: PathBuf| path.display().to_string());
    let request = ImportRequest {
        disks: vec![text(Guest::family()?.join(format!("{disk}.raw")))],
        kernel: Some(text(debian.kernel())),
        initrd: Some(text(debian.initrd())),
        cmdline: Some(debian.cmdline()?),
        name: Some(kind.name.into()),
        memory_bytes: Some(memory),
        cpus: Some(1),
        // the agent of this build: a guest that was built earlier has an older one
        agent: Some(String::new()),
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    node.boot(kind.name, kind.name)
}

/// Lets a guest do one of its kind's works.
pub(super) fn work(node: &Node, machine: &str, kind: &Kind, round: usize) -> anyhow::Result<()> {
    let work = kind.works[round % kind.works.len()].replace('N', &(round + 1).to_string());
    node.tell(machine, &work, WORK_MAX)
        .with_context(|| format!("the {} guest does not work", kind.name))?;
    Ok(())
}

/// Docks a machine live.
pub(super) fn dock(node: &Node, machine: &str, name: &str) -> anyhow::Result<Outcome> {
    dock_as(node, machine, name, false)
}

/// Docks a machine live, or makes it small first; it is gone then.
pub(super) fn dock_as(
    node: &Node,
    machine: &str,
    name: &str,
    convert: bool,
) -> anyhow::Result<Outcome> {
    let request = DockRequest {
        name: name.into(),
        convert,
        ..DockRequest::default()
    };
    Ok(node.client.dock(machine, &request)?.finish(|_| {})?)
}

/// What docks of this experiment have measured.
#[derive(Default)]
struct Measured {
    /// How long a live dock paused its machine, ms.
    pause_ms: Samples,
    /// Memory of the guests that was neither free nor zero, MB.
    used_mb: Samples,
}

impl Measured {
    /// Docks a machine live. Returns what that takes in the pool's memory, MB. The substrate is removed, so that the next one has
    /// nobody to share with.
    fn live_mb(&mut self, node: &Node, machine: &str) -> anyhow::Result<f64> {
        let outcome = dock(node, machine, NAME)?;
        let substrate = substrate_of(&outcome)?;
        let (bytes, of) = (substrate.pool_bytes, substrate.made_of);
        eprintln!("{machine} live: {bytes} bytes, {of:?}");
        self.pause_ms
            .push(outcome.pause_ms.context("a dock tells its pause")?);
        self.used_mb
            .push((of.memory_bytes - of.zero_bytes) as f64 / 1e6);
        node.client.remove_substrate(NAME)?;
        Ok(bytes as f64 / 1e6)
    }
}

/// Makes a machine small and docks it. Returns what that takes in the pool's memory, MB. The machine is gone, and its substrate.
fn converted_mb(node: &Node, machine: &str) -> anyhow::Result<f64> {
    let outcome = dock_as(node, machine, NAME, true)?;
    let substrate = substrate_of(&outcome)?;
    let (bytes, of) = (substrate.pool_bytes, substrate.made_of);
    eprintln!("{machine} converted: {bytes} bytes, {of:?}");
    node.client.remove_substrate(NAME)?;
    Ok(bytes as f64 / 1e6)
}

fn substrate_of(outcome: &Outcome) -> anyhow::Result<&SubstrateInfo> {
    let substrate = outcome.substrate.as_ref();
    let substrate = substrate.context("a dock tells its substrate")?;
    ensure!(
        substrate.in_memory,
        "the pool has no room for {}",
        substrate.machine
    );
    Ok(substrate)
}

/// What one kind of guest takes.
struct OfKind {
    live_mb: f64,
    converted_mb: f64,
}

/// Measures machines of an image that was captured at its guest's shell.
fn over_captured(
    node: &Node,
    kind: &Kind,
    rounds: usize,
    measured: &mut Measured,
) -> anyhow::Result<OfKind> {
    node.capture(kind.name, "ready", false, 0)?;
    let mut live = Samples::default();
    for round in 0..rounds {
        work(node, kind.name, kind, round)?;
        live.push(measured.live_mb(node, kind.name)?);
    }
    Ok(OfKind {
        live_mb: live.median(),
        converted_mb: converted_mb(node, kind.name)?,
    })
}

/// Measures a machine that was booted from its disks, so that nothing below it has its kernel or any memory. It is the one that
/// was booted, by way of the pool.
fn over_disks(node: &Node, kind: &Kind) -> anyhow::Result<OfKind> {
    dock(node, kind.name, NAME)?;
    let request = ActivateRequest {
        name: Some(BOOTED.into()),
        answer_s: Some(ANSWER_S_MAX),
        ..ActivateRequest::default()
    };
    node.client.activate(NAME, &request)?.finish(|_| {})?;
    node.client.remove_substrate(NAME)?;
    work(node, BOOTED, kind, 0)?;
    Ok(OfKind {
        live_mb: Measured::default().live_mb(node, BOOTED)?,
        converted_mb: converted_mb(node, BOOTED)?,
    })
}

/// What docks of one way take in the pool's memory, and what that consists of before it is compressed, MB.
#[derive(Default)]
struct Parts {
    all: Samples,
    own_memory: Samples,
    own_disk: Samples,
    device: Samples,
    tables: Samples,
}

impl Parts {
    fn push(&mut self, substrate: &SubstrateInfo) {
        let (of, mb) = (substrate.made_of, |bytes: u64| bytes as f64 / 1e6);
        self.all.push(mb(substrate.pool_bytes));
        self.own_memory.push(mb(of.own_memory_bytes));
        self.own_disk.push(mb(of.own_disk_bytes));
        self.device.push(mb(of.device_bytes));
        self.tables.push(mb(of.table_bytes));
    }

    fn tell(&self, report: &mut Report, kind: &str, way: &str) {
        report.add(&format!("{kind}.pair_{way}_mb"), "MB", &self.all);
        for (part, samples) in [
            ("own_memory", &self.own_memory),
            ("own_disk", &self.own_disk),
            ("device", &self.device),
            ("tables", &self.tables),
        ] {
            report.add(&format!("{kind}.pair_{way}_{part}_mb"), "MB", samples);
        }
    }
}

/// Measures pairs of machines of the image `ready`: docked live, and made small first.
fn pairs(node: &Node, kind: &Kind, rounds: usize) -> anyhow::Result<[Parts; 2]> {
    let mut both: [Parts; 2] = Default::default();
    for round in 0..rounds {
        for (parts, convert) in both.iter_mut().zip([false, true]) {
            let request = RunRequest {
                image: "ready".into(),
                name: Some(PAIR.into()),
                ..RunRequest::default()
            };
            node.run(&request, |_| {})?;
            work(node, PAIR, kind, round)?;
            let outcome = dock_as(node, PAIR, NAME, convert)?;
            parts.push(substrate_of(&outcome)?);
            node.client.remove_substrate(NAME)?;
            if !convert {
                node.remove(PAIR)?;
            }
        }
    }
    Ok(both)
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("dock", context.quick);
    let kinds = context.pick(&SERVERS[..], std::slice::from_ref(&TINY));
    let memory = context.pick(MEMORY, MEMORY_QUICK);
    let mut measured = Measured::default();
    let [mut live, mut small, mut booted_live, mut booted_small]: [Samples; 4] = Default::default();
    let mut pair_ratio = Samples::default();
    for kind in kinds {
        let node = Node::start(None, &context.scratch.join(kind.name), false)?;
        boot(&node, kind, memory)?;
        let booted = over_disks(&node, kind)?;
        let captured = over_captured(&node, kind, context.pick(5, 2), &mut measured)?;
        let [pair_live, pair_small] = pairs(&node, kind, context.pick(3, 1))?;
        pair_live.tell(&mut report, kind.name, "live");
        pair_small.tell(&mut report, kind.name, "converted");
        for ratio in pair_small.all.over(&pair_live.all).values() {
            pair_ratio.push(*ratio);
        }
        for (what, of) in [("", &captured), ("booted_", &booted)] {
            let mut put = |figure: &str, mb: f64| {
                report.add_value(&format!("{}.{what}{figure}", kind.name), "MB", mb);
            };
            put("live_mb", of.live_mb);
            put("converted_mb", of.converted_mb);
        }
        live.push(captured.live_mb);
        small.push(captured.converted_mb);
        booted_live.push(booted.live_mb);
        booted_small.push(booted.converted_mb);
    }
    report.add_mean("converted_mb", "MB", &small);
    report.add_mean("live_mb", "MB", &live).against(
        "memory that is not free or zero",
        "MB",
        measured.used_mb.median(),
    );
    report.add_mean("booted_converted_mb", "MB", &booted_small);
    report.add_mean("booted_live_mb", "MB", &booted_live);
    report.add("live_pause_ms_p50", "ms", &measured.pause_ms);
    report.add("pair_converted_over_live", "x", &pair_ratio);
    report.note(
        "each substrate is alone in the pool, and docked while its guest rests after some work; base image: the guest captured at its shell, \
         and for booted_* its disks and kernel alone; pair_*: two machines of that image, each after the same one work",
    );
    Ok(report)
}

//! `dock`: what a substrate takes in the pool's memory, beyond its base image, and how long its machine stands still for it. Guests that
//! work as a web server, a database and a compiler; docked live, and made small first; compared with the memory that each of them has.
use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, ensure};
use floe_api::{DockRequest, ImportRequest, Outcome};
use std::path::PathBuf;
use std::time::Duration;

/// Longest time for a guest to do its work: a database that starts under emulation takes a minute.
const WORK_MAX: Duration = Duration::from_secs(300);
/// Memory of a guest in a full and in a quick run, bytes.
const MEMORY: u64 = 1 << 30;
const MEMORY_QUICK: u64 = 128 << 20;
/// Name of the one substrate of this experiment at a time.
const NAME: &str = "docked";

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
            "systemctl start nginx || nginx; seq 1 100N > /var/www/html/page; for i in $(seq 20); do busybox wget -q -O - http://127.0.0.1/page | busybox wc -l; done",
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
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    node.boot(kind.name, kind.name)
}

/// Lets a guest do one of its kind's works.
pub(super) fn work(node: &Node, kind: &Kind, round: usize) -> anyhow::Result<()> {
    let work = kind.works[round % kind.works.len()].replace('N', &(round + 1).to_string());
    node.tell(kind.name, &work, WORK_MAX)
        .with_context(|| format!("the {} guest does not work", kind.name))?;
    Ok(())
}

/// Docks a machine live.
pub(super) fn dock(node: &Node, machine: &str, name: &str) -> anyhow::Result<Outcome> {
    dock_as(node, machine, name, false)
}

/// Docks a machine live, or makes it small first; it is gone then.
fn dock_as(node: &Node, machine: &str, name: &str, convert: bool) -> anyhow::Result<Outcome> {
    let request = DockRequest {
        name: name.into(),
        convert,
        ..DockRequest::default()
    };
    Ok(node.client.dock(machine, &request)?.finish(|_| {})?)
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("dock", context.quick);
    let kinds = context.pick(&SERVERS[..], std::slice::from_ref(&TINY));
    let memory = context.pick(MEMORY, MEMORY_QUICK);
    let (mut all, mut pauses) = (Samples::default(), Samples::default());
    let (mut memory_mb, mut small) = (Samples::default(), Samples::default());
    for kind in kinds {
        let node = Node::start(None, &context.scratch.join(kind.name), false)?;
        boot(&node, kind, memory)?;
        let mut sizes = Samples::default();
        for round in 0..context.pick(5, 2) {
            work(&node, kind, round)?;
            let outcome = dock(&node, kind.name, NAME)?;
            let substrate = outcome.substrate.context("a dock tells its substrate")?;
            ensure!(
                substrate.in_memory,
                "the pool has no room for {}",
                kind.name
            );
            sizes.push(substrate.pool_bytes as f64 / 1e6);
            pauses.push(outcome.pause_ms.context("a dock tells its pause")?);
            let of = substrate.made_of;
            eprintln!("{} round {round}: {of:?}", kind.name);
            memory_mb.push((of.memory_bytes - of.zero_bytes) as f64 / 1e6);
            // alone in the pool, the next one shares with nobody
            node.client.remove_substrate(NAME)?;
        }
        let outcome = dock_as(&node, kind.name, NAME, true)?;
        let substrate = outcome.substrate.context("a dock tells its substrate")?;
        eprintln!("{} converted: {:?}", kind.name, substrate.made_of);
        let converted_mb = substrate.pool_bytes as f64 / 1e6;
        report.add_value(&format!("{}.converted_mb", kind.name), "MB", converted_mb);
        small.push(converted_mb);
        report.add(&format!("{}.live_mb", kind.name), "MB", &sizes);
        all.push(sizes.median());
    }
    report.add_mean("converted_mb", "MB", &small);
    report.add_mean("live_mb", "MB", &all).against(
        "memory that is not free or zero",
        "MB",
        memory_mb.median(),
    );
    report.add("live_pause_ms_p50", "ms", &pauses);
    report.note(
        "each substrate is alone in the pool, and docked while its guest rests after some work",
    );
    Ok(report)
}

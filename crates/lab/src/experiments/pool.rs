//! `pool`: how many substrates of different machines fit 8 GB of the host's memory; and how much memory many substrates take that were
//! made of ten guests again and again, after different work. Compared with the same number of substrates that share nothing.
use super::dock::{Kind, TINY, boot, dock, work};
use anyhow::{Context as _, ensure};
use floe_testbed::harness::{Context, Report, Samples, own_memory};
use floe_testbed::live::Node;
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory of each guest in bytes.
const MEMORY: u64 = 256 << 20;
/// What all guests can do: read, write, compute. Ten guests do each of these with other numbers.
const WORKS: &[&str] = &[
    "busybox find /usr/bin -type f | busybox head -n 4N | busybox xargs busybox cat | busybox md5sum",
    "busybox head -c 50N000 /dev/urandom > /var/tmp/random-N; busybox md5sum /var/tmp/random-N",
    "busybox seq 1 40N0 | busybox sort -r > /var/tmp/sorted-N; busybox wc -l /var/tmp/sorted-N",
    "busybox tar -cf /var/tmp/etc-N.tar /etc; busybox ls -l /var/tmp/etc-N.tar",
    "python3 -c 'x = [str(i * N) for i in range(50000)]; print(len(x))'",
    "busybox grep -rl N /etc | busybox wc -l",
    "x=$(busybox seq 1 20N0); echo ${#x}",
];
/// The guests: as a small office has them.
const OFFICE: [Kind; 10] = [
    kind("plain"),
    kind("web"),
    kind("database"),
    kind("cache"),
    kind("build"),
    kind("scripts"),
    kind("mail"),
    kind("names"),
    kind("code"),
    kind("files"),
];
/// Substrates of each guest: 130 in all.
const EACH: usize = 13;
/// Machines of each guest that are booted for the count of different ones.
const DIFFERENT_EACH: usize = 2;
/// Time in which a node gives back what it needed to read substrates.
const REST: Duration = Duration::from_secs(5);
/// The memory that is to be filled.
const POOL_BYTES: f64 = 8.0 * 1e9;
/// A budget that all of them fit.
const BUDGET: u64 = 8 << 30;
/// Longest time until a killed node's pool is warm again.
const WARM_MAX: Duration = Duration::from_secs(600);

const fn kind(name: &'static str) -> Kind {
    Kind {
        name,
        disk: Some(name),
        works: WORKS,
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("pool", context.quick);
    let kinds = context.pick(&OFFICE[..], std::slice::from_ref(&TINY));
    different(context, kinds, &mut report)?;
    let home = context.scratch.join("node");
    let node = with_budget(&home)?;
    let mut docks = Samples::default();
    let mut alone = 0;
    for kind in kinds {
        boot(&node, kind, MEMORY)?;
        for round in 0..context.pick(EACH, 3) {
            work(&node, kind.name, kind, round)?;
            let outcome = dock(&node, kind.name, &format!("{}-{round}", kind.name))?;
            let substrate = outcome.substrate.context("a dock tells its substrate")?;
            ensure!(substrate.in_memory, "{} is not in memory", substrate.name);
            docks.push(outcome.total_ms);
            alone = alone.max(substrate.pool_bytes);
        }
        node.remove(kind.name)?;
        let status = node.client.pool()?;
        eprintln!("{}: {status:?}", kind.name);
    }
    let status = node.client.pool()?;
    ensure!(
        status.in_memory == status.substrates,
        "some were sent to the disk"
    );
    let each = status.used_bytes as f64 / status.in_memory as f64;
    report.add_value("substrates", "", status.in_memory as f64);
    report.add_value("guests", "", kinds.len() as f64);
    report.add_value("used_mb", "MB", status.used_bytes as f64 / 1e6);
    report.add_value("each_mb", "MB", each / 1e6).against(
        "the largest of them, when it was docked",
        "MB",
        alone as f64 / 1e6,
    );
    report.add_value("substrates_in_8gb", "", POOL_BYTES / each);
    report.add_value(
        "raw_over_used",
        "x",
        status.referred_bytes as f64 / status.used_bytes as f64,
    );
    report.add("dock_ms_p50", "ms", &docks);
    drop(node);
    let node = Node::start(None, &home, false)?;
    let warm = warm_ms(&node)?;
    report.add_value("warm_s", "s", warm / 1e3);
    report.note("each substrate is a real machine's, docked live after work of its own; warm: all back in memory after a restart");
    let of_each = context.pick(DIFFERENT_EACH, 2);
    report.note(format!(
        "different_in_8gb is extrapolated from {} machines, {of_each} of each guest, which were each booted by itself and docked once after some \
         work: 8 GB over what each of them takes of the memory of the node's process that is no file's, beyond that of the same node without \
         any; that many were never there",
        of_each * kinds.len()
    ));
    Ok(report)
}

/// Starts a node whose pool has room for all.
pub(super) fn with_budget(home: &Path) -> anyhow::Result<Node> {
    let node = Node::start(None, home, false)?;
    node.client.resize_pool(&floe_api::PoolResizeRequest {
        budget_bytes: BUDGET,
        overcommit: true,
    })?;
    Ok(node)
}

/// Measures what substrates take of the host's memory whose machines have nothing in common but what they were booted from.
fn different(context: &Context, kinds: &[Kind], report: &mut Report) -> anyhow::Result<()> {
    let home = context.scratch.join("different");
    let node = with_budget(&home)?;
    std::thread::sleep(REST);
    let empty = own_memory(node.process()?)?;
    for kind in kinds {
        for round in 0..context.pick(DIFFERENT_EACH, 2) {
            match round {
                0 => boot(&node, kind, MEMORY)?,
                _ => node.boot(kind.name, kind.name)?,
            }
            work(&node, kind.name, kind, round)?;
            dock(&node, kind.name, &format!("{}-{round}", kind.name))?;
            node.remove(kind.name)?;
        }
    }
    drop(node);
    // one that has docked nothing itself, so that all that it has are the substrates
    let node = Node::start(None, &home, false)?;
    warm_ms(&node)?;
    std::thread::sleep(REST);
    let status = node.client.pool()?;
    let count = status.in_memory as f64;
    let resident = own_memory(node.process()?)?.saturating_sub(empty) as f64;
    report
        .add_value("different_in_8gb", "", POOL_BYTES / (resident / count))
        .against(
            "by the pool's own count of its bytes",
            "",
            POOL_BYTES / (status.used_bytes as f64 / count),
        );
    report.add_value("different_mb", "MB", resident / count / 1e6);
    report.add_value("different_substrates", "", count);
    Ok(())
}

/// Waits until all substrates are back in memory. Returns how long that took the node, in ms.
pub(super) fn warm_ms(node: &Node) -> anyhow::Result<f64> {
    let until = Instant::now() + WARM_MAX;
    loop {
        let status = node.client.pool()?;
        if let (false, Some(ms)) = (status.warming, status.warm_ms) {
            ensure!(
                status.in_memory == status.substrates,
                "some did not come back"
            );
            return Ok(ms);
        }
        ensure!(
            Instant::now() < until,
            "the pool is not warm within {WARM_MAX:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

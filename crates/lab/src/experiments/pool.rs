//! `pool`: how much memory many substrates take, made from ten different guests after different work, and how many of them fit 8 GB.
//! Compared with the same number of substrates that share nothing.
use super::dock::{Kind, TINY, boot, dock, work};
use super::live::Node;
use crate::harness::{Context, Report, Samples};
use anyhow::{Context as _, ensure};
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
    let home = context.scratch.join("node");
    let node = Node::start(None, &home, false)?;
    node.client.resize_pool(&floe_api::PoolResizeRequest {
        budget_bytes: BUDGET,
        overcommit: true,
    })?;
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
    let until = Instant::now() + WARM_MAX;
    let warm = loop {
        let status = node.client.pool()?;
        if let (false, Some(ms)) = (status.warming, status.warm_ms) {
            ensure!(
                status.in_memory == status.substrates,
                "some did not come back"
            );
            break ms;
        }
        ensure!(
            Instant::now() < until,
            "the pool is not warm within {WARM_MAX:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    report.add_value("warm_s", "s", warm / 1e3);
    report.note("each substrate is a real machine's, docked live after work of its own; warm: all back in memory after a restart");
    Ok(report)
}

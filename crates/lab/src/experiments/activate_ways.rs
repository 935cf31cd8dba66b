//! A part of `activate`: one machine of the pool until its guest answers, by what waits for it on its host: nothing, a QEMU without an
//! image, or one that has loaded this very substrate; just after the docking, after a restart of the node, and from the backup on the disk
//! instead of from memory; made small before, made larger then; and of guests of 128 MB to 2 GB. The guest is the tiny one.
use super::activation::{activate, boot};
use super::dock::{dock, dock_as};
use super::pool::{warm_ms, with_budget};
use anyhow::{Context as _, ensure};
use floe_api::{ActivateRequest, PoolResizeRequest};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{Node, drop_caches, write_distinct};
use std::time::{Duration, Instant};

/// Memory of the guest, bytes.
const MEMORY: u64 = 128 << 20;
/// What it is made larger to: bytes, and virtual CPUs.
const LARGER: (u64, u32) = (256 << 20, 2);
/// Memory of guests of different sizes, MB (2^20 bytes). An eighth of it is written.
const SIZES_MB: [u64; 5] = [128, 256, 512, 1024, 2048];
/// The machine that is docked, again and again.
const ORIGIN: &str = "origin";
/// The machine that is activated.
const MACHINE: &str = "m";
/// Longest time for a guest to write, and for a QEMU to be started ahead.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often that is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What one way measures.
#[derive(Default)]
struct Way {
    first: Samples,
    ready: Samples,
    reads: Samples,
    /// Whether a QEMU waits that is to be taken.
    waits: bool,
    /// How often none was taken though one waited: these activations do not count.
    not_taken: usize,
}

impl Way {
    /// Returns that of activations for which a QEMU waits.
    fn that_waits() -> Way {
        Way {
            waits: true,
            ..Way::default()
        }
    }

    /// Activates a substrate and removes its machine.
    fn measure(&mut self, node: &Node, substrate: &str, from_memory: bool) -> anyhow::Result<()> {
        let request = ActivateRequest {
            name: Some(MACHINE.into()),
            ..ActivateRequest::default()
        };
        let activated = activate(node, substrate, request)?;
        ensure!(
            activated.report.from_memory == from_memory,
            "{substrate} came from the disk, or not from there"
        );
        if self.waits && !activated.stages.contains_key("standby") {
            self.not_taken += 1;
            return node.remove(MACHINE);
        }
        let machine = activated.report.machines.first();
        let machine = machine.context("a machine runs")?;
        self.first.push(machine.first_ms);
        self.ready
            .push(machine.network_ms.context("its guest answers")?);
        self.reads.push(node.machine(MACHINE)?.stats.misses as f64);
        node.remove(MACHINE)
    }

    fn tell(&self, report: &mut Report, name: &str) {
        report.add(&format!("{name}_first_ms"), "ms", &self.first);
        report.add(&format!("{name}_ready_ms"), "ms", &self.ready);
        report.add(&format!("{name}_reads"), "", &self.reads);
        if self.not_taken > 0 {
            report.note(format!(
                "{name}: {} activations more took no QEMU that waited, and do not count",
                self.not_taken
            ));
        }
    }
}

/// Adds the figures to those of `activate`.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let guest = Guest::tiny()?;
    nothing_waits(context, &guest, report)?;
    something_waits(context, &guest, report)?;
    sizes(context, &guest, report)?;
    report.note(
        "of a busybox of 128 MB with one CPU, docked while it runs; <way>_reads: its requests that waited for a chunk, which came from the \
         pool's memory, or from the disk; before each activation what earlier ones unpacked is removed and the kernel's caches are \
         dropped, but for the first one after a docking",
    );
    report.note("sizes: an eighth of each guest's memory is written, no two pages alike; nothing waits for them");
    Ok(())
}

/// Forgets what earlier activations have unpacked, on the disk and in the kernel's memory.
pub(super) fn forget(node: &Node) -> anyhow::Result<()> {
    node.client.cache_gc()?;
    drop_caches()
}

/// Imports the guest and boots a machine of it until its agent answers.
fn boot_origin(node: &Node, guest: &Guest) -> anyhow::Result<()> {
    node.import_with(guest, "guest", MEMORY, 1)?;
    boot(node, "guest", ORIGIN).map(drop)
}

/// Measures a node that starts no QEMU ahead.
fn nothing_waits(context: &Context, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let home = context.scratch.join("nothing");
    let mut node = with_budget(&home)?;
    boot_origin(&node, guest)?;
    let (mut docked, mut pool, mut disk) = (Way::default(), Way::default(), Way::default());
    let rounds = context.pick(15, 3);
    for round in 0..rounds {
        let name = format!("docked{round}");
        dock(&node, ORIGIN, &name)?;
        docked.measure(&node, &name, true)?;
        node.client.remove_substrate(&name)?;
    }
    docked.tell(report, "after_dock");
    dock(&node, ORIGIN, "ready")?;
    for _ in 0..rounds {
        forget(&node)?;
        pool.measure(&node, "ready", true)?;
    }
    pool.tell(report, "nothing");
    larger(context, &node, report)?;
    let resize = |budget_bytes| {
        node.client.resize_pool(&PoolResizeRequest {
            budget_bytes,
            overcommit: true,
        })
    };
    let budget = node.client.pool()?.budget_bytes;
    resize(0)?;
    for _ in 0..rounds {
        forget(&node)?;
        disk.measure(&node, "ready", false)?;
    }
    resize(budget)?;
    disk.tell(report, "disk");
    report
        .add_value(
            "pool_over_disk",
            "x",
            pool.ready.median() / disk.ready.median(),
        )
        .against(
            "the same substrate from its backup on the disk",
            "ms",
            disk.ready.median(),
        );
    let mut small = Way::default();
    dock_as(&node, ORIGIN, "small", true)?;
    for _ in 0..rounds {
        forget(&node)?;
        small.measure(&node, "small", true)?;
    }
    small.tell(report, "converted");
    let mut restarted = Way::default();
    for _ in 0..context.pick(5, 1) {
        drop(node);
        node = Node::start(None, &home, false)?;
        warm_ms(&node)?;
        forget(&node)?;
        restarted.measure(&node, "ready", true)?;
    }
    restarted.tell(report, "restarted");
    Ok(())
}

/// Measures until a machine has more CPUs and memory than its substrate had.
fn larger(context: &Context, node: &Node, report: &mut Report) -> anyhow::Result<()> {
    let mut sized = Samples::default();
    for _ in 0..context.pick(7, 1) {
        forget(node)?;
        let request = ActivateRequest {
            name: Some(MACHINE.into()),
            memory_bytes: Some(LARGER.0),
            cpus: Some(LARGER.1),
            ..ActivateRequest::default()
        };
        let activated = activate(node, "ready", request)?;
        let machine = activated.report.machines.first();
        let machine = machine.context("a machine runs")?;
        let size_ms = machine.size_ms;
        sized.push(size_ms.with_context(|| format!("it stays small: {:?}", machine.short))?);
        node.remove(MACHINE)?;
    }
    report.add("larger_ms", "ms", &sized);
    Ok(())
}

/// Measures a node on which QEMUs wait.
fn something_waits(context: &Context, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let node = Node::start(None, &context.scratch.join("something"), true)?;
    boot_origin(&node, guest)?;
    dock(&node, ORIGIN, "ready")?;
    // once a machine with this hardware was started from an image, one QEMU waits for its next start, and one for another image
    Way::default().measure(&node, "ready", true)?;
    let (mut loaded, mut blank) = (Way::that_waits(), Way::that_waits());
    let rounds = context.pick(15, 3);
    for _ in 0..rounds {
        until("a QEMU that has loaded the substrate", || {
            Ok(node.client.node()?.standby > 0)
        })?;
        forget(&node)?;
        loaded.measure(&node, "ready", true)?;
    }
    for round in 0..rounds {
        let name = format!("docked{round}");
        dock(&node, ORIGIN, &name)?;
        until("a QEMU without an image", || {
            Ok(node.client.node()?.blanks > 0)
        })?;
        forget(&node)?;
        blank.measure(&node, &name, true)?;
        node.client.remove_substrate(&name)?;
    }
    loaded.tell(report, "loaded");
    blank.tell(report, "blank");
    Ok(())
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(
            Instant::now() < until,
            "{what} does not wait within {PATIENCE:?}"
        );
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Measures guests of different sizes.
fn sizes(context: &Context, guest: &Guest, report: &mut Report) -> anyhow::Result<()> {
    let mut medians = Vec::new();
    for &size_mb in context.pick(&SIZES_MB[..], &SIZES_MB[..2]) {
        let node = with_budget(&context.scratch.join(format!("size{size_mb}")))?;
        node.import_with(guest, "guest", size_mb << 20, 1)?;
        boot(&node, "guest", ORIGIN)?;
        let fill = write_distinct(size_mb / 8, "/dev/shm/filled");
        node.tell(ORIGIN, &fill, PATIENCE)?;
        // the machine runs on: what QEMU itself is read from stays in memory as it does for the other ways
        dock(&node, ORIGIN, "ready")?;
        let mut way = Way::default();
        for _ in 0..context.pick(9, 2) {
            forget(&node)?;
            way.measure(&node, "ready", true)?;
        }
        report.add(&format!("size_ready_ms_{size_mb}mb"), "ms", &way.ready);
        medians.push(way.ready.median());
    }
    let (slowest, fastest) = (
        medians.iter().copied().fold(f64::MIN, f64::max),
        medians.iter().copied().fold(f64::MAX, f64::min),
    );
    report.add_value("size_spread", "x", slowest / fastest);
    Ok(())
}

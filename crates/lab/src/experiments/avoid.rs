//! `avoid`: what it costs a clone on another host to fill memory that was free at the fork. Compared with a guest that
//! neither zeroes pages when it frees them nor reports them, so that their last content is fetched only to be
//! overwritten. Of a machine that was booted, and of one that was started from an image in which that memory was in use.
use super::forking::fork_to;
use anyhow::{Context as _, ensure};
use floe_api::RunRequest;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Namespace;
use floe_testbed::live::{Node, write_distinct};
use std::time::{Duration, Instant};

const PARENTS: &str = "10.79.0.1";
const CLONES: &str = "10.79.0.2";
const PAGE_PORT: u16 = 7171;
const MEMORY: u64 = 1 << 30;
/// Longest time for an emulated guest to write that much.
const PATIENCE: Duration = Duration::from_secs(600);
/// The file that the guest fills, in memory.
const FILE: &str = "/dev/shm/filled";

/// How a guest treats the pages that it frees.
struct Way {
    name: &'static str,
    /// Options on its kernel's command line.
    words: &'static str,
    /// A command that is run before the memory is written.
    before: &'static str,
    /// Whether it reports free pages, so that its QEMU gives their memory back.
    reports: bool,
    /// Whether the machine is captured and started from its image before it frees the memory.
    restored: bool,
}

/// Debian's kernel with the options of floe's guests: freed pages are zero, and so they are zero in an image.
const AVOIDING: Way = Way {
    name: "avoiding",
    words: "init_on_free=1",
    before: "true",
    reports: false,
    restored: false,
};
/// With Debian's own options, a freed page is reported through the balloon.
const REPORTING: Way = Way {
    name: "reporting",
    words: "init_on_free=0",
    before: "true",
    reports: true,
    restored: false,
};
/// The two of them, started from an image.
const RESTORED: Way = Way {
    name: "restored",
    restored: true,
    ..AVOIDING
};
const RESTORED_REPORTING: Way = Way {
    name: "restored-reporting",
    restored: true,
    ..REPORTING
};
/// With Debian's own options, a freed page keeps its content. Without the balloon, free pages are not reported.
const NOT_AVOIDING: Way = Way {
    name: "not-avoiding",
    words: "init_on_free=0",
    before: "rmmod virtio_balloon",
    reports: false,
    restored: false,
};
/// Longest time until a guest has reported what it has freed, and how often that is looked for.
const REPORT_MAX: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("avoid", context.quick);
    let megabytes: u64 = context.pick(512, 64);
    let (parents, clones) = (Namespace::new()?, Namespace::new()?);
    parents.join_by_veth(&clones, &format!("{PARENTS}/30"), &format!("{CLONES}/30"))?;
    let ways = [
        AVOIDING,
        NOT_AVOIDING,
        REPORTING,
        RESTORED,
        RESTORED_REPORTING,
    ];
    let mut fetched: [Samples; 5] = Default::default();
    for round in 0..context.pick(2, 1) {
        for (way, fetched) in ways.iter().zip(&mut fetched) {
            let scratch = context.scratch.join(format!("{}{round}", way.name));
            let page = |address| format!("--web={address}:{PAGE_PORT}");
            let start = |namespace, name: &str, page: String| {
                Node::start_with(Some(namespace), &scratch.join(name), &[&page])
            };
            let parent = start(&parents, "parent", page(PARENTS))?;
            let host = start(&clones, "host", page(CLONES))?;
            fetched.push(fill(&parent, &host, way, megabytes)?);
        }
    }
    let [with, without, reporting, restored, restored_reporting] = fetched;
    report
        .add("fetched_mb", "MB", &with)
        .against("avoidance off", "MB", without.median());
    report
        .add("avoidance_gain", "x", &without.over(&with))
        .against("avoidance on", "MB", with.median());
    for (key, fetched) in [
        ("reported_mb", &reporting),
        ("restored_mb", &restored),
        ("restored_reported_mb", &restored_reporting),
    ] {
        report
            .add(key, "MB", fetched)
            .against("avoidance off", "MB", without.median());
    }
    report.note(format!(
        "a guest of busybox with {} MB writes and frees {megabytes} MB, no two pages alike; its clone on another host writes {megabytes} MB \
         of zeros to memory: what that clone's node read from the parent's meanwhile; reported: it does not zero what it frees and \
         reports it; restored: it was captured before it freed anything, so that its image has what was written",
        MEMORY >> 20
    ));
    Ok(report)
}

/// Returns the MB that crossed the link while a clone filled this much memory.
fn fill(parent: &Node, host: &Node, way: &Way, megabytes: u64) -> anyhow::Result<f64> {
    let guest = Guest::tiny()?;
    let words = guest.cmdline()?;
    let words = words
        .split_whitespace()
        .filter(|word| !word.starts_with("init_on_free"));
    let cmdline: Vec<&str> = words.chain([way.words]).collect();
    parent.import_booting(&guest, "guest", MEMORY, &cmdline.join(" "))?;
    parent.boot("guest", "web")?;
    let write = format!("{}; {}", way.before, write_distinct(megabytes, FILE));
    parent.tell("web", &write, PATIENCE)?;
    if way.restored {
        parent.capture("web", "written", true, 0)?;
        parent.remove("web").ok();
        let request = RunRequest {
            image: "written".into(),
            name: Some("web".into()),
            ..RunRequest::default()
        };
        parent.run(&request, |_| {})?;
        // its QEMU has them all in its memory then, so that it shows when it gives them back
        parent.tell("web", &format!("cat {FILE} > /dev/null"), PATIENCE)?;
    }
    let held = memory_bytes(parent)?;
    parent.tell("web", &format!("rm {FILE}"), PATIENCE)?;
    if way.reports {
        // most of what was freed: the kernel reports whole blocks of 2 MB, when it has nothing else to do
        let most = held.saturating_sub((megabytes << 20) / 10 * 8);
        let until = Instant::now() + REPORT_MAX;
        while memory_bytes(parent)? > most {
            ensure!(
                Instant::now() < until,
                "the guest does not report what it has freed"
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }
    let page = format!("http://{CLONES}:{PAGE_PORT}");
    let outcome = fork_to(parent, "web", 1, vec![page])?;
    let clone = outcome.fork.and_then(|fork| fork.clones.into_iter().next());
    let clone = clone.context("a fork tells its clone")?.name;
    host.ask(&clone, PATIENCE)?;
    let bytes = || anyhow::Ok(host.machine(&clone)?.stats.wire_bytes);
    let before = bytes()?;
    let write = format!("head -c {megabytes}m /dev/zero > {FILE}; ls -l {FILE}");
    host.tell(&clone, &write, PATIENCE)?;
    Ok((bytes()? - before) as f64 / 1e6)
}

/// Returns the memory that the QEMU of the machine `web` has, in bytes.
fn memory_bytes(node: &Node) -> anyhow::Result<u64> {
    let usage = node.client.usage(&Default::default())?.machines;
    let web = usage.iter().find(|machine| machine.name == "web");
    let web = web.context("the machine has no QEMU")?;
    let sum = web
        .own_bytes
        .zip(web.shared_bytes)
        .map(|(own, shared)| own + shared);
    sum.context("the kernel does not tell what QEMU uses")
}

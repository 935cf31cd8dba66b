//! `avoid`: what it costs a clone on another host to fill memory that was free at the fork. Compared with a guest that
//! neither zeroes pages when it frees them nor reports them, so that their last content is fetched only to be
//! overwritten.
use super::fork::fork_to;
use super::live::{Node, write_distinct};
use crate::guest::Guest;
use crate::harness::{Context, Report, Samples};
use crate::link::Namespace;
use anyhow::Context as _;
use std::time::Duration;

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
    /// A command that is run before the capture.
    before: &'static str,
}

/// Debian's kernel with the options of floe's guests: freed pages are zero, and so they are zero in an image.
const AVOIDING: Way = Way {
    name: "avoiding",
    words: "init_on_free=1",
    before: "true",
};
/// With Debian's own options, a freed page keeps its content. Without the balloon, free pages are not reported.
const NOT_AVOIDING: Way = Way {
    name: "not-avoiding",
    words: "init_on_free=0",
    before: "rmmod virtio_balloon",
};

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("avoid", context.quick);
    let megabytes: u64 = context.pick(512, 64);
    let (parents, clones) = (Namespace::new()?, Namespace::new()?);
    parents.join_by_veth(&clones, &format!("{PARENTS}/30"), &format!("{CLONES}/30"))?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for round in 0..context.pick(2, 1) {
        for (way, fetched) in [(AVOIDING, &mut with), (NOT_AVOIDING, &mut without)] {
            let scratch = context.scratch.join(format!("{}{round}", way.name));
            let page = |address| format!("--web={address}:{PAGE_PORT}");
            let start = |namespace, name: &str, page: String| {
                Node::start_with(Some(namespace), &scratch.join(name), &[&page])
            };
            let parent = start(&parents, "parent", page(PARENTS))?;
            let host = start(&clones, "host", page(CLONES))?;
            fetched.push(fill(&parent, &host, &way, megabytes)?);
        }
    }
    report
        .add("fetched_mb", "MB", &with)
        .against("avoidance off", "MB", without.median());
    report
        .add("avoidance_gain", "x", &without.over(&with))
        .against("avoidance on", "MB", with.median());
    report.note(format!(
        "a guest of busybox with {} MB writes and frees {megabytes} MB, no two pages alike; its clone on another host writes {megabytes} MB \
         of zeros to memory: what that clone's node read from the parent's meanwhile",
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
    let write = format!(
        "{}; {}; rm {FILE}",
        way.before,
        write_distinct(megabytes, FILE)
    );
    parent.tell("web", &write, PATIENCE)?;
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

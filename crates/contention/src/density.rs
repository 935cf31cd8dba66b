//! `density`: sixteen clones of one image on one host: how much memory does each take beyond the first? Compared with the
//! same guest restored by QEMU's own migration file, which shares nothing.
use anyhow::Context as _;
use floe_api::RunRequest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use std::collections::BTreeMap;
use std::time::Duration;

/// Idle time after a clone's answer, before memory is counted.
const SETTLE: Duration = Duration::from_secs(10);
/// MiB of translated code that the bounded clones keep: enough for guests that mostly wait.
const EMULATOR_CACHE_MIB: &str = "8";
/// Longest time for a clone to answer while sixteen are emulated.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("density", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let clones = context.pick(16, 3);
    let home = context.scratch.join("node");
    let node = Node::start_with(None, &home, &["--emulator-cache", "0"])?;
    node.import(&guest, "guest", memory)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();
    let free = Clones::start(&node, context, clones / 2)?;
    drop(node);
    let node = Node::start_with(None, &home, &["--emulator-cache", EMULATOR_CACHE_MIB])?;
    let bounded = Clones::start(&node, context, clones)?;
    drop(node);

    let hardware = Hardware::new(&guest, memory, 2);
    let mut plain = PlainQemu::boot(&context.scratch.join("plain"), hardware)?;
    let state = context.scratch.join("state");
    plain.save(&state)?;
    drop(plain);
    let (mut before, mut copies, mut each) = (used_mb()?, Vec::new(), Samples::default());
    for n in 0..context.pick(3, 1) {
        copies.push(PlainQemu::load(
            &context.scratch.join(format!("copy{n}")),
            hardware,
            &state,
        )?);
        std::thread::sleep(SETTLE);
        let now = used_mb()?;
        each.push(now - before);
        before = now;
    }
    let alternative = ("QEMU -incoming of a migration file", "MB", each.median());
    for (key, measured) in [("mb_per_clone", &bounded), ("mb_per_clone_free", &free)] {
        let figure = report.add(key, "MB", &measured.steps);
        figure.value = measured.beyond_first;
        figure.against(alternative.0, alternative.1, alternative.2);
    }
    for (part, mb) in &bounded.parts {
        report.add(&format!("part_{part}_mb"), "MB", mb);
    }
    report.note(format!(
        "{clones} clones with --emulator-cache {EMULATOR_CACHE_MIB}M, half as many with QEMU's own choice (mb_per_clone_free); \
         the value is what all but the first took, divided by their number; the parts are from each clone's smaps"
    ));
    Ok(report)
}

/// The memory that clones of one image took.
struct Clones {
    /// MB of each clone but the first.
    steps: Samples,
    /// MB of all clones but the first, divided by their number.
    beyond_first: f64,
    parts: BTreeMap<&'static str, Samples>,
}

impl Clones {
    /// Starts clones one after another, measures, and ends them.
    fn start(node: &Node, context: &Context, clones: usize) -> anyhow::Result<Clones> {
        let mut steps = Samples::default();
        let (mut used, mut pids) = (Vec::new(), Vec::new());
        let name = |n: usize| format!("clone{n}");
        for n in 0..clones.max(2) {
            let request = RunRequest {
                image: "booted".into(),
                name: Some(name(n)),
                ..RunRequest::default()
            };
            node.run(&request, |_| {})?;
            node.ask(&name(n), ANSWER_MAX)?;
            let pid = node.machine(&name(n))?.pid;
            pids.push(pid.context("a running machine has a process")?);
            std::thread::sleep(context.pick(SETTLE, Duration::from_secs(2)));
            // Everything that the host has less of, including kernel and node; reclaimable page cache counts as free.
            used.push(used_mb()?);
            if let [.., before, now] = used[..] {
                steps.push(now - before);
            }
        }
        let parts = parts(&pids[1..])?;
        for n in 0..used.len() {
            node.remove(&name(n)).ok();
        }
        Ok(Clones {
            steps,
            beyond_first: (used[used.len() - 1] - used[0]) / (used.len() - 1) as f64,
            parts,
        })
    }
}

/// Returns the host's memory that is not available, in MB.
fn used_mb() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .with_context(|| format!("no {name} in /proc/meminfo"))?;
        Ok(line
            .split_whitespace()
            .nth(1)
            .context("a number")?
            .parse::<f64>()?
            * 1024.0
            / 1e6)
    };
    Ok(field("MemTotal:")? - field("MemAvailable:")?)
}

/// Returns what the clones' own (private) memory consists of, by kind of mapping.
fn parts(pids: &[u32]) -> anyhow::Result<BTreeMap<&'static str, Samples>> {
    let mut all: BTreeMap<&'static str, Samples> = BTreeMap::new();
    for pid in pids {
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        let mut sums: BTreeMap<&'static str, f64> = [
            ("guest_ram", 0.0),
            ("heap_and_stacks", 0.0),
            ("code_and_data", 0.0),
        ]
        .into();
        let mut kind = "heap_and_stacks";
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if first.contains('-') && !first.ends_with(':') {
                kind = match line.split_whitespace().nth(5) {
                    Some(path) if path.ends_with("/ram") => "guest_ram",
                    Some(path) if path.starts_with('/') => "code_and_data",
                    _ => "heap_and_stacks",
                };
            } else if first == "Private_Dirty:" || first == "Private_Clean:" {
                let kib: f64 = words.next().unwrap_or("0").parse()?;
                *sums.entry(kind).or_default() += kib * 1024.0 / 1e6;
            }
        }
        for (kind, mb) in sums {
            all.entry(kind).or_default().push(mb);
        }
    }
    Ok(all)
}

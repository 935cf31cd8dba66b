//! `density`: sixteen clones of one image on one host: what memory does each take beyond the first? Against the same
//! guest restored by QEMU's own migration file, which shares nothing.
use super::live::Node;
use super::plain::PlainQemu;
use super::wan;
use crate::harness::{Context, Report, Samples};
use anyhow::Context as _;
use floe::api::RunRequest;
use std::collections::BTreeMap;
use std::time::Duration;

/// Idle time after a clone has answered, before memory is counted.
const SETTLE: Duration = Duration::from_secs(10);
/// How long a clone may take to answer while sixteen are emulated.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Runs it.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("density", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let clones = context.pick(16, 3);
    let node = Node::start(None, &context.scratch.join("node"), false)?;
    node.import(&guest, "guest", memory)?;
    node.boot("guest", "origin")?;
    node.capture("origin", "booted", true, 0)?;
    node.remove("origin").ok();

    let mut steps = Samples::default();
    let mut used = Vec::new();
    let mut pids = Vec::new();
    for n in 0..clones {
        let name = format!("clone{n}");
        node.run(
            &RunRequest {
                image: "booted".into(),
                name: Some(name.clone()),
                ..RunRequest::default()
            },
            |_| {},
        )?;
        node.ask(&name, ANSWER_MAX)?;
        pids.push(
            node.machine(&name)?
                .pid
                .context("a running machine has a process")?,
        );
        std::thread::sleep(context.pick(SETTLE, Duration::from_secs(2)));
        // All that the host has less of, kernel and node included; reclaimable page cache is counted as free.
        used.push(used_mb()?);
        if let [.., before, now] = used[..] {
            steps.push(now - before);
        }
    }
    let beyond_first = (used[clones - 1] - used[0]) / (clones - 1) as f64;
    let parts = parts(&pids[1..])?;

    let mut plain = PlainQemu::boot(&context.scratch.join("plain"), &guest, memory)?;
    let state = context.scratch.join("state");
    plain.save(&state)?;
    drop(plain);
    let (mut before, mut copies, mut each) = (used_mb()?, Vec::new(), Samples::default());
    for n in 0..context.pick(3, 1) {
        copies.push(PlainQemu::load(
            &context.scratch.join(format!("copy{n}")),
            &guest,
            memory,
            &state,
        )?);
        std::thread::sleep(SETTLE);
        let now = used_mb()?;
        each.push(now - before);
        before = now;
    }
    let figure = report.add("mb_per_clone", "MB", &steps);
    figure.value = beyond_first;
    figure.against("QEMU -incoming of a migration file", "MB", each.median());
    for (part, mb) in parts {
        report.add(&format!("part_{part}_mb"), "MB", &mb);
    }
    report.note(format!("{clones} clones; the value is what all but the first took, divided by their number; the parts are from each clone's smaps"));
    Ok(report)
}

/// Memory of the host that is not available any more, in MB.
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

/// What clones' own (private) memory is made of, by kind of mapping.
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

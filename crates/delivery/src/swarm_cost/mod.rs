//! `swarm-cost`: what a swarm costs a node, in processor time, memory, waiting and room on the disk, against the same machine that gets the
//! same from the hub.
pub mod connections;
mod demand;
mod goods;

use super::swarm_real::site::{Mode, Outcome, Site, Size};
use floe_testbed::harness::{Context, Report, Samples};
use std::time::Duration;

/// Hosts besides the hub's.
const HOSTS: usize = 4;
/// The recorded times are divided by this, as in `swarm-sim`.
const FASTER: f64 = 14.0;
/// Other hosts of the one whose connections are measured, once and again.
const FEW: usize = 2;
const MANY: usize = 48;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-cost", context.quick);
    demand::run(context, &mut report)?;
    add_connections(context, &mut report)?;
    let site = Site::prepare(
        &context.scratch,
        Size {
            hosts: context.pick(HOSTS, 2),
            guests: 0,
            bits_per_s: 100_000_000,
            faster: FASTER,
            touched_bytes: context.pick(20 << 20, 4 << 20),
            image_bytes: context.pick(60 << 20, 12 << 20),
            spread: Duration::from_millis(400),
        },
    )?;
    add_nodes(context, &site, &mut report)?;
    add_alone(context, &site, &mut report)?;
    add_disk(&site, &mut report)?;
    report.note(format!(
        "{} hosts, links of 100 Mbit/s, recorded times divided by {FASTER}; {:.1} MB of pieces for each machine; of each node's process: \
         processor time from the command until its machine has done everything, the start of its QEMU in it but not QEMU's own, and the most \
         memory meanwhile that is no file's (its cache is files); what a node sends costs it time too, and a node that reads the hub alone sends \
         nothing",
        site.size.hosts,
        site.profile_bytes() / 1e6
    ));
    Ok(report)
}

/// What a node has used, of each round: the mean over all hosts, but of memory the host that had most.
#[derive(Default)]
struct Costs {
    cpu_s: Samples,
    memory_mb: Samples,
    sent_mb: Samples,
}

impl Costs {
    fn push(&mut self, outcome: &Outcome) {
        let hosts = outcome.took_s.len() as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / hosts;
        self.cpu_s.push(mean(&outcome.cpu_s));
        self.memory_mb
            .push(outcome.memory_mb.iter().copied().fold(0.0, f64::max));
        self.sent_mb.push(outcome.peer_bytes as f64 / 1e6 / hosts);
    }
}

/// Adds what nodes use that bring each other an image, and others that get the same pieces, or what they need of it, from the hub alone.
fn add_nodes(context: &Context, site: &Site, report: &mut Report) -> anyhow::Result<()> {
    let (mut swarm, mut pieces, mut hub) = (Costs::default(), Costs::default(), Costs::default());
    for round in 0..context.pick(5, 1) {
        let mut turns = [Mode::Ours, Mode::CsP, Mode::Hub];
        // the other way round every other time
        if round % 2 == 1 {
            turns.reverse();
        }
        for mode in turns {
            let outcome = site.start(mode, site.size.hosts)?;
            match mode {
                Mode::Ours => swarm.push(&outcome),
                Mode::CsP => pieces.push(&outcome),
                _ => hub.push(&outcome),
            }
        }
    }
    let alone = "the same pieces from the hub";
    report
        .add("cpu_ratio", "x", &swarm.cpu_s.over(&pieces.cpu_s))
        .against(alone, "s", pieces.cpu_s.median());
    report
        .add("cpu_over_hub", "x", &swarm.cpu_s.over(&hub.cpu_s))
        .against("single chunks from the hub", "s", hub.cpu_s.median());
    report
        .add("cpu_s_per_peer", "s", &swarm.cpu_s)
        .against(alone, "s", pieces.cpu_s.median());
    report.add("mb_host", "MB", &swarm.memory_mb).against(
        "single chunks from the hub",
        "MB",
        hub.memory_mb.median(),
    );
    report
        .add("sent_mb_per_peer", "MB", &swarm.sent_mb)
        .against(alone, "MB", pieces.sent_mb.median());
    Ok(())
}

/// Adds how long a machine waits for its disk whose node is alone, with its image's swarm and without.
fn add_alone(context: &Context, site: &Site, report: &mut Report) -> anyhow::Result<()> {
    let (mut on, mut off) = (Samples::default(), Samples::default());
    for round in 0..context.pick(7, 1) {
        let mut turns = [Mode::Asked, Mode::Hub];
        if round % 2 == 1 {
            turns.reverse();
        }
        for mode in turns {
            let waited_s: f64 = site.start(mode, 1)?.waited_s.iter().sum();
            match mode {
                Mode::Asked => on.push(waited_s),
                _ => off.push(waited_s),
            }
        }
    }
    report
        .add("demand_alone_over_hub", "x", &on.over(&off))
        .against("without the swarm", "s", off.median());
    Ok(())
}

/// Adds what the nodes keep on their disks of an image that came whole.
fn add_disk(site: &Site, report: &mut Report) -> anyhow::Result<()> {
    let image = site.image_bytes()? as f64;
    let kept = site.bring_all(Mode::Asked, site.size.hosts)?;
    let ratios: Samples = kept.iter().map(|bytes| *bytes as f64 / image).collect();
    report
        .add("disk_over_image", "x", &ratios)
        .against("its packs at the hub", "MB", image / 1e6);
    Ok(())
}

/// Adds what a connection takes in memory while pieces go over it in both directions.
fn add_connections(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let mut each = Samples::default();
    let (mut connections, mut memory) = (Samples::default(), Samples::default());
    for round in 0..context.pick(5, 1) {
        let dir = context.scratch.join(format!("links{round}"));
        let few = connections::load(&dir, FEW)?;
        let many = connections::load(&dir, context.pick(MANY, 8))?;
        let more = many.connections.saturating_sub(few.connections).max(1);
        each.push((many.memory as f64 - few.memory as f64) / 1e6 / more as f64);
        connections.push(many.connections as f64);
        memory.push(many.memory as f64 / 1e6);
    }
    report.add("mb_per_link", "MB", &each).against(
        "all of a process with many connections",
        "MB",
        memory.median(),
    );
    report.add("links", "", &connections);
    Ok(())
}

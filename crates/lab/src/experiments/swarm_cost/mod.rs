//! `swarm-cost`: what a swarm costs a node, in processor time and memory, against the same machine that gets the same from the hub; and
//! what a machine waits for a piece while others are prefetched.
mod demand;

use super::swarm_real::site::{Mode, Outcome, Site, Size};
use crate::harness::{Context, Report, Samples};
use std::time::Duration;

/// Hosts besides the hub's.
const HOSTS: usize = 4;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-cost", context.quick);
    demand::run(context, &mut report)?;
    let site = Site::prepare(
        &context.scratch,
        Size {
            hosts: context.pick(HOSTS, 2),
            bits_per_s: 100_000_000,
            touched_bytes: context.pick(20 << 20, 4 << 20),
            image_bytes: context.pick(60 << 20, 12 << 20),
            spread: Duration::from_millis(400),
        },
    )?;
    let (mut swarm, mut hub) = (Costs::default(), Costs::default());
    for round in 0..context.pick(5, 1) {
        let both = [Mode::Ours, Mode::CsP];
        // the other way round every other time
        let both = if round % 2 == 0 {
            both
        } else {
            [both[1], both[0]]
        };
        for mode in both {
            let outcome = site.start(mode, site.size.hosts)?;
            match mode {
                Mode::Ours => swarm.push(&outcome),
                _ => hub.push(&outcome),
            }
        }
    }
    report
        .add("cpu_ratio", "x", &swarm.cpu_s.over(&hub.cpu_s))
        .against("from the hub", "s", hub.cpu_s.median());
    report.add("cpu_s_per_peer", "s", &swarm.cpu_s).against(
        "from the hub",
        "s",
        hub.cpu_s.median(),
    );
    report.add("mb_per_peer", "MB", &swarm.memory_mb).against(
        "from the hub",
        "MB",
        hub.memory_mb.median(),
    );
    report
        .add("sent_mb_per_peer", "MB", &swarm.sent_mb)
        .against("from the hub", "MB", hub.sent_mb.median());
    report.note(format!(
        "{} hosts, links of 100 Mbit/s; {:.1} MB of pieces for each machine; of each node's process: processor time from the command until \
         its machine has done everything, the start of its QEMU in it but not QEMU's own, and memory then that is no file's (its cache is \
         files); what a node sends costs it time too, and a node of the hub's path sends nothing",
        site.size.hosts,
        site.profile_bytes() / 1e6
    ));
    Ok(report)
}

/// What a node has used, the mean over all hosts, of each round.
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
        self.memory_mb.push(mean(&outcome.memory_mb));
        self.sent_mb.push(outcome.peer_bytes as f64 / 1e6 / hosts);
    }
}

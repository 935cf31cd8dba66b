//! `io`: a user's launches beside noisy machines, through floe's mount and by QEMU on raw files with the host's schedulers, all of it
//! on one modelled hard disk.
//!
//! - `site`: the disk, both sides of it, and how one cell of the table is measured.
//! - `desk`: the interactive machine, a real guest. `noise`: the others. `groups`: what the host's schedulers call a machine.
mod desk;
pub(super) mod groups;
mod more;
pub(super) mod noise;
pub(super) mod site;

use crate::harness::{Context, Report, Samples};
use crate::slow_disk::Kind;
pub(super) use desk::add_to_initrd;
use floe_mount::IoScheduling;
use groups::WEIGHT;
use noise::Kind as NoiseKind;
use site::{Beside, Candidate, NOISY, Site};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const VSIP: Candidate = Candidate::Floe(IoScheduling::Vsip);

pub(super) const fn host(scheduler: &'static str, desk_weight: u32) -> Candidate {
    Candidate::Host {
        scheduler,
        desk_weight,
    }
}

/// Who is compared. A desk with a weight of its own is the most that an administrator could do for one user.
const CANDIDATES: [Candidate; 7] = [
    VSIP,
    host("bfq", WEIGHT),
    host("bfq", 1000),
    host("none", WEIGHT),
    host("mq-deadline", WEIGHT),
    host("kyber", WEIGHT),
    Candidate::Floe(IoScheduling::Off),
];
/// How many of them, the first, are measured in every round and in everything.
const MAIN: usize = 3;
/// Those of a quick run.
const QUICK: [Candidate; 3] = [VSIP, host("bfq", WEIGHT), host("none", WEIGHT)];

const fn beside(kind: NoiseKind, machines: usize) -> Beside {
    Beside {
        kind,
        machines,
        lies: false,
    }
}

/// What a launch is measured beside.
pub(super) const NOISES: [(&str, Beside); 5] = [
    ("reader1", beside(NoiseKind::Reader, 1)),
    ("reader7", beside(NoiseKind::Reader, NOISY)),
    ("boot1", beside(NoiseKind::Boot, 1)),
    ("boot7", beside(NoiseKind::Boot, NOISY)),
    ("sync7", beside(NoiseKind::Sync, NOISY)),
];

/// How long floe's schedulers have to find out what kind of disk this is. Nodes have it for as long as they run.
pub(super) const ACQUAINT: Duration = Duration::from_secs(20);

/// Samples by name, in the order in which they were measured.
pub(super) type Table = BTreeMap<String, Samples>;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("io", context.quick);
    let candidates: &[Candidate] = if context.quick { &QUICK } else { &CANDIDATES };
    let noises = if context.quick { &NOISES[..2] } else { &NOISES };
    let floes: &[IoScheduling] = if context.quick {
        &[IoScheduling::Vsip]
    } else {
        &[IoScheduling::Vsip, IoScheduling::Off]
    };
    let mut site = Site::new(&context.scratch, floes, true)?;
    site.acquaint(Kind::HardDisk, ACQUAINT)?;
    let mut table = Table::new();
    for round in 0..context.pick(3, 1) {
        // the others are measured once: nothing about them surprises
        let some = if round == 0 {
            candidates
        } else {
            &candidates[..MAIN]
        };
        for step in 0..some.len() {
            let which = if round % 2 == 0 {
                step
            } else {
                some.len() - 1 - step
            };
            launches(&mut site, some[which], noises, round, &mut table)?;
        }
        for candidate in &candidates[..context.pick(2, 1)] {
            more::beside_guests(&mut site, *candidate, round, &mut table)?;
        }
    }
    let peers = if context.quick {
        &[]
    } else {
        &CANDIDATES[1..MAIN]
    };
    for candidate in [VSIP].iter().chain(peers).chain([&VSIP]) {
        more::pages_and_film(&mut site, *candidate, context, &mut table)?;
    }
    more::shares(&mut site, VSIP, context, &mut table)?;
    tell_launches(&mut report, candidates, noises, &table);
    Ok(report)
}

/// Measures a candidate's launches, alone and beside each noise.
fn launches(
    site: &mut Site,
    candidate: Candidate,
    noises: &[(&str, Beside)],
    round: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    // the same program in each cell of a round; what the host has of its files is forgotten in between
    let lines = [format!("launch {round}")];
    let pause = Duration::from_millis(500);
    let alone = site.measure(candidate, Kind::HardDisk, None, &lines, pause)?;
    let Some(alone) = alone else {
        return Ok(());
    };
    let alone_us = alone.answers[0][0];
    let prefix = candidate.prefix();
    push(table, format!("{prefix}launch_alone_s"), alone_us / 1e6);
    for (name, beside) in noises {
        let cell = site.measure(candidate, Kind::HardDisk, Some(*beside), &lines, pause)?;
        let Some(cell) = cell else { continue };
        let us = cell.answers[0][0];
        eprintln!(
            "io: round {round}, {prefix}launch beside {name}: {:.2} s, alone {:.2} s; noise {:.0} requests/s",
            us / 1e6,
            alone_us / 1e6,
            cell.got.iter().map(|got| got.requests).sum::<f64>() / cell.seconds
        );
        push(table, format!("{prefix}launch_{name}"), us / alone_us);
    }
    Ok(())
}

fn push(table: &mut Table, name: String, value: f64) {
    table.entry(name).or_default().push(value);
}

fn tell_launches(
    report: &mut Report,
    candidates: &[Candidate],
    noises: &[(&str, Beside)],
    table: &Table,
) {
    more::tell(report, table);
    for (noise, _) in noises {
        let of =
            |candidate: &Candidate| table.get(&format!("{}launch_{noise}", candidate.prefix()));
        let peers = candidates.iter().filter(|candidate| candidate.is_peer());
        let best = peers
            .filter_map(of)
            .min_by(|a, b| a.median().total_cmp(&b.median()));
        if let Some(best) = best {
            report.add(&format!("best_peer.launch_{noise}"), "x", best);
        }
    }
}

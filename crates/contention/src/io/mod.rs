//! `io`: a user's recorded launches, pages, films and commands replayed beside noisy machines, through floe's mount and on raw files with the host's
//! schedulers and QEMU's throttle groups, all of it on one modelled disk.
//!
//! - `site`: the disk, both sides of it, and how one cell of the table is measured. `disk`: how a machine gets at its disk.
//! - `launches`: what is replayed. `replay`: what the desk asks for. `noise`: what the others do. `desk`: real guests, which validate the replay.
//! - `groups`, `throttle`: what the host's schedulers and QEMU call a machine.
//! - `parts`: what a round of each part measures. `figures`: what becomes of it. `curves`: both, over the number of noisy machines, and of what
//!   those have to do.
//! - `record`: makes the records that are replayed, in real guests.
//!
//! A run measures what promises are of, a few times. All of it, with the comparisons that are told and the curves (`--full`), takes more than a
//! day, so that it can be done in sittings (`--kept FILE --minutes N`, `--only PART`). A round of a part is kept once all candidates were
//! measured in it, in turn, or not at all.
mod curves;
mod desk;
pub(super) mod disk;
pub(super) mod figures;
pub(super) mod groups;
mod launches;
pub(super) mod noise;
mod parts;
mod record;
pub(super) mod replay;
pub(super) mod site;
mod throttle;

use figures::Table;
use floe_mount::IoScheduling;
use floe_sched::Class;
use floe_testbed::harness::{Context, Kept, Report, Samples};
use floe_testbed::traces;
use groups::WEIGHT;
pub use groups::{CpuCap, DEVICE_PERCENT};
pub(super) use launches::Launches;
use parts::Lab;
pub use record::Arguments as RecordArguments;
pub(super) use record::DIR as LAUNCHES_DIR;
use serde::{Deserialize, Serialize};
use site::{Candidate, Site};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// floe as it is delivered.
pub(super) const VSIP: Candidate = floe(IoScheduling::Vsip, None);
/// First come, first served, through the same mount.
const FIFO: Candidate = floe(IoScheduling::Fifo, None);
/// The desk's machine goes first, whatever it does: what CFQ(P) is in the paper.
const WHOLE: Candidate = floe(IoScheduling::Vsip, Some(Class::Interactive));

const fn floe(io: IoScheduling, desk: Option<Class>) -> Candidate {
    Candidate::Floe { io, desk }
}

pub(super) const fn host(scheduler: &'static str, desk_weight: u32) -> Candidate {
    Candidate::Host {
        scheduler,
        desk_weight,
    }
}

/// Who is compared. A desk with a weight of its own is the most that an administrator could do for one user.
const CANDIDATES: [Candidate; 8] = [
    VSIP,
    host("bfq", WEIGHT),
    host("none", WEIGHT),
    host("bfq", 1000),
    host("mq-deadline", WEIGHT),
    host("kyber", WEIGHT),
    Candidate::Throttled,
    FIFO,
];
/// How many of them, the first, are compared in a quick run.
const QUICK: usize = 3;

fn candidates(context: &Context) -> &'static [Candidate] {
    context.pick(&CANDIDATES[..], &CANDIDATES[..QUICK])
}

/// A part of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// Launches beside readers, boots and writers that sync, by everybody.
    Launches,
    /// Pages and films.
    Pages,
    /// Commands that read cold, beside writers that sync.
    Echo,
    /// What noisy machines get, and liars among them.
    Shares,
    /// Two machines that saturate a disk.
    Two,
    /// The paper's section 4.6.
    Mixed,
    /// A real guest.
    Live,
    /// Warm launches, pages and films beside one to seven noisy machines.
    Curves,
    /// What noisy machines have to do, beside a user who launches programs.
    Work,
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Extent {
    /// A round of everything, shortened.
    Quick,
    /// What promises are of.
    Promises,
    /// Everything.
    Full,
}

/// All parts: their names, and how many rounds each has in a run of what promises are of, and in a full one.
const PARTS: [(&str, Part, usize, usize); 9] = [
    ("launches", Part::Launches, 2, 20),
    ("pages", Part::Pages, 2, 20),
    ("echo", Part::Echo, 2, 20),
    ("shares", Part::Shares, 1, 20),
    ("two", Part::Two, 2, 20),
    ("mixed", Part::Mixed, 2, 20),
    ("live", Part::Live, 1, 6),
    ("curves", Part::Curves, 0, 20),
    ("work", Part::Work, 0, 20),
];

/// Options of the experiment.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Do everything: many rounds of each part, what promises are not of, curves, and what noisy machines have to do; more than a day
    #[arg(long)]
    full: bool,
    /// Do these parts alone, and tell what can be told of them and of what was kept
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PARTS.map(|(name, ..)| name))]
    only: Vec<String>,
    /// Keep what came of each round in FILE, and take from there what this very code has measured on this machine: one that was cut goes on
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// Begin no round after so many minutes, and tell what was done so far; the same command goes on later
    #[arg(long, value_name = "N", requires = "kept")]
    minutes: Option<f64>,
    /// Launches that floe-lab record-launches has made; what is not there is made up
    #[arg(long, value_name = "DIR", default_value = record::DIR)]
    launches: PathBuf,
}

/// A round of a part: what is kept as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Step {
    round: usize,
    part: Part,
    /// A round of a full run has more in it.
    extent: Extent,
}

/// Returns all steps: a round of each part, and then the next round, so that sittings that are too few leave each part with some.
fn steps(extent: Extent) -> Vec<Step> {
    let rounds = |(_, part, promises, full): (&str, Part, usize, usize)| match extent {
        Extent::Quick => (part, 1),
        Extent::Promises => (part, promises),
        Extent::Full => (part, full),
    };
    let parts = PARTS.map(rounds);
    let most = parts.iter().map(|(_, rounds)| *rounds).max();
    let of_round = |round: usize| {
        let parts = parts.iter().filter(move |(_, rounds)| round < *rounds);
        parts.map(move |(part, _)| Step {
            round,
            part: *part,
            extent,
        })
    };
    (0..most.unwrap_or(0)).flat_map(of_round).collect()
}

fn name_of(part: Part) -> &'static str {
    let known = PARTS.iter().find(|(_, known, ..)| *known == part);
    known.map_or("", |(name, ..)| name)
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("io", context.quick);
    let extent = match (context.quick, options.full) {
        (true, _) => Extent::Quick,
        (false, false) => Extent::Promises,
        (false, true) => Extent::Full,
    };
    let all = steps(extent);
    let is_done = |name: &String| all.iter().any(|step| name_of(step.part) == name);
    anyhow::ensure!(
        options.only.iter().all(is_done),
        "no promise is of curves and work: add --full"
    );
    let wanted = |step: &Step| {
        options.only.is_empty() || options.only.iter().any(|name| name == name_of(step.part))
    };
    let mut kept: Kept<Step, parts::Told> =
        Kept::open(options.kept.as_deref(), "io", context.quick)?;
    kept.told.retain(|step, _| all.contains(step));
    let launches = Launches::load(&options.launches)?.with_machines(&traces::folder())?;
    let lacking: Vec<Step> = all
        .iter()
        .copied()
        .filter(|step| wanted(step) && !kept.told.contains_key(step))
        .collect();
    measure(context, options, &launches, &lacking, &mut kept)?;
    let prefixes: Vec<&str> = CANDIDATES
        .iter()
        .chain([&WHOLE])
        .map(|c| c.prefix())
        .collect();
    let is_peer = |candidate: &&Candidate| candidate.is_peer() || **candidate == FIFO;
    let peers = CANDIDATES.iter().filter(is_peer);
    let peers: Vec<&str> = peers.map(|candidate| candidate.prefix()).collect();
    let table = table(&kept);
    figures::tell(&mut report, &table, &prefixes, &peers);
    curves::tell(&mut report, &table);
    let recorded = launches.recorded.len();
    report.add_value("recorded_launches", "count", recorded as f64);
    for launch in &launches.recorded {
        let (name, reads) = (&launch.name, launch.reads());
        report.add_value(&format!("{name}.reads"), "count", reads as f64);
        let megabytes = launch.read_bytes() as f64 / 1e6;
        report.add_value(&format!("{name}.read_mb"), "MB", megabytes);
    }
    note(&mut report, &launches, extent);
    report.lacks(all.len() - kept.told.len(), all.len(), "rounds");
    Ok(report)
}

/// Does what was not kept, as long as there is time.
fn measure(
    context: &Context,
    options: &Options,
    launches: &Launches,
    lacking: &[Step],
    kept: &mut Kept<Step, parts::Told>,
) -> anyhow::Result<()> {
    if lacking.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    let long = options
        .minutes
        .map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    let orders = [IoScheduling::Vsip, IoScheduling::Fifo];
    let mut site = Site::new(&context.scratch, &orders, true, launches)?;
    for (done, step) in lacking.iter().enumerate() {
        if long.is_some_and(|long| began.elapsed() >= long) {
            eprintln!("io: {} rounds are left for later", lacking.len() - done);
            break;
        }
        let mut lab = Lab {
            site: &mut site,
            launches,
            context,
            extent: step.extent,
        };
        let told = lab.round(step.part, step.round)?;
        kept.put(step, &told)?;
        kept.told.insert(*step, told);
    }
    Ok(())
}

/// Puts the samples of all rounds together, in their order.
fn table(kept: &Kept<Step, parts::Told>) -> Table {
    let mut table = Table::new();
    for told in kept.told.values() {
        for (name, value) in told {
            let samples: &mut Samples = table.entry(name.clone()).or_default();
            samples.push(*value);
        }
    }
    table
}

fn note(report: &mut Report, launches: &Launches, extent: Extent) {
    if extent == Extent::Promises {
        report.note("a short run, of what promises are of: --full has twenty rounds of each part, what is only told, and the curves");
    }
    report.note(match launches.recorded.len() {
        0 => "no launch was recorded: all are made up (60 reads that depend on each other, some milliseconds of computing between them)".to_owned(),
        recorded => format!("{recorded} recorded launches are replayed; what was not recorded is made up"),
    });
    report.note(
        "the SSD is modelled with 4,000 requests a second: with 20,000, the processors of this host would be measured; `device_over_model` and `device_cores` tell how near \
         the bare device comes to its model, and with how much of a processor",
    );
    report
        .note("the host's control groups of version 2 have no io controller: io.cost is in io-sim");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_part_has_its_rounds_and_the_first_rounds_come_first() {
        let all = steps(Extent::Full);
        let distinct: BTreeSet<Step> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.is_sorted_by_key(|step| step.round));
        let short = steps(Extent::Promises);
        for (name, part, promises, full) in PARTS {
            let count = |steps: &[Step]| steps.iter().filter(|step| step.part == part).count();
            assert_eq!((count(&short), count(&all)), (promises, full));
            assert_eq!(name_of(part), name);
            // what is replayed at least twenty times, the guest at least five
            assert!(full >= if part == Part::Live { 5 } else { 20 });
        }
        // no promise is of these
        let lacking: Vec<Part> = PARTS
            .into_iter()
            .filter(|(.., short, _)| *short == 0)
            .map(|(_, part, ..)| part)
            .collect();
        assert_eq!(lacking, [Part::Curves, Part::Work]);
        assert_eq!(steps(Extent::Quick).len(), PARTS.len());
        // what a short run has kept is none of a full one's
        assert!(short.iter().all(|step| !distinct.contains(step)));
    }

    #[test]
    fn rounds_of_several_sittings_are_told_in_their_order() {
        let mut kept: Kept<Step, parts::Told> = Kept::open(None, "io", true).unwrap();
        for (round, value) in [(1, 20.0), (0, 10.0), (2, 30.0)] {
            let part = Part::Pages;
            let told = vec![
                ("page_alone_s".to_owned(), value),
                ("page_reader7".to_owned(), 1.0),
            ];
            let extent = Extent::Quick;
            let step = Step {
                round,
                part,
                extent,
            };
            kept.told.insert(step, told);
        }
        let table = table(&kept);
        assert_eq!(table["page_alone_s"].values(), [10.0, 20.0, 30.0]);
        assert_eq!(table["page_reader7"].len(), 3);
    }
}

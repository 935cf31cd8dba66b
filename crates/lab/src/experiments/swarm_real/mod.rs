//! `swarm-real`: one image started at the same second by 2 to 16 nodes, each with a mount, a cache and a QEMU of its own, in a network
//! namespace of its own behind a slow link. How it comes to them is changed: from the hub alone, by VMTorrent's policies, by ours; and
//! what a user would take instead, all of it by BitTorrent and then the start. Each machine's disk is touched as a recorded one was.
//!
//! It takes more than an hour, so that it can be done in sittings (`--kept FILE`, `--only n16`), and goes on where it was cut.
mod guest;
mod player;
mod script;
pub(super) mod site;
mod torrent;

use crate::harness::{Context, Kept, Report, Samples};
use crate::predict::{MODEL_NOTE, Modelled, tell_over_real};
use crate::swarm_sim::{Host, Link, Outcome as Simulated, PIECE_BYTES, Recorded, Setup, simulate};
use anyhow::ensure;
use floe_swarm::policy::Config;
use serde::{Deserialize, Serialize};
use site::{Mode, Outcome, Site, Size};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use torrent::Torrent;

/// Sizes of the swarm.
const HOSTS: &[usize] = &[2, 4, 8, 16];
/// Sizes of a short run.
const HOSTS_QUICK: &[usize] = &[2];
/// The parts: one for each of [`HOSTS`], and guests that are resumed.
const PARTS: [&str; 5] = ["n2", "n4", "n8", "n16", GUESTS];
const GUESTS: &str = "guests";
/// Rounds of a full run, in which so many hosts start, and resume guests.
const ROUNDS: usize = 3;
/// How an image comes to hosts, in turn; the first few in each round.
const MODES: [Mode; 7] = [
    Mode::Ours,
    Mode::Local,
    Mode::P2pP,
    Mode::P2pD,
    Mode::Hub,
    Mode::CsP,
    Mode::CsD,
];
const OFTEN_MODES: usize = 3;
/// The recorded times are divided by this: sixteen machines as fast as in `swarm-sim` would wait for links of 20 Mbit/s and for nothing else,
/// and faster links would carry more than two processors can handle.
const FASTER: f64 = 3.0;
/// Of the largest swarm, hosts with guests that read the disk themselves.
const READING: usize = 2;
/// Hosts with guests that compute: more would wait for the processors of this machine rather than for their links.
const GUEST_HOSTS: usize = 4;
/// The paper's round trip on a local network, and what a node needs to answer, in microseconds.
const RTT_US: u64 = 500;
const SERVICE_US: u64 = 500;

/// Options of the experiment.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Do these parts alone, and tell what can be told of them and of what was kept
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PARTS)]
    only: Vec<String>,
    /// Keep what came of each run in FILE, and take from there what this very code has measured on this machine: one that was cut goes on
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Step {
    /// So many hosts start the image in a way.
    Start {
        hosts: usize,
        round: usize,
        mode: Mode,
    },
    /// So many hosts get all of it by BitTorrent.
    Torrent { hosts: usize },
    /// So many hosts resume a captured guest: both its memory and its disk come over the links.
    Resume {
        hosts: usize,
        round: usize,
        mode: Mode,
    },
}

impl Step {
    fn part(self) -> String {
        match self {
            Step::Start { hosts, .. } | Step::Torrent { hosts } => format!("n{hosts}"),
            Step::Resume { .. } => GUESTS.into(),
        }
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Told {
    /// The hosts' mean time, in seconds.
    took_s: f64,
    /// Bytes that left the hub's host, where that is of interest.
    seed_bytes: u64,
    /// The share of the processors' time that nothing used; the same.
    idle: f64,
}

impl From<Outcome> for Told {
    fn from(outcome: Outcome) -> Told {
        Told {
            took_s: outcome.mean_s(),
            seed_bytes: outcome.seed_bytes,
            idle: outcome.idle,
        }
    }
}

/// Returns the sizes of the swarm.
fn sizes(context: &Context) -> &'static [usize] {
    context.pick(HOSTS, HOSTS_QUICK)
}

fn most(context: &Context) -> usize {
    sizes(context).last().copied().unwrap_or(0)
}

/// Returns all steps, in their order.
fn steps(context: &Context) -> Vec<Step> {
    let rounds = context.pick(ROUNDS, 1);
    let mut steps = Vec::new();
    for round in 0..rounds {
        // what takes minutes is measured once: the link decides it, and nothing else
        let mut turns = match round {
            0 => MODES.to_vec(),
            _ => MODES[..OFTEN_MODES].to_vec(),
        };
        if round % 2 == 1 {
            turns.reverse();
        }
        for hosts in sizes(context).iter().copied() {
            let turns = turns.iter().copied();
            steps.extend(turns.map(|mode| Step::Start { hosts, round, mode }));
        }
    }
    let hosts = most(context);
    steps.push(Step::Torrent { hosts });
    let hosts = context.pick(GUEST_HOSTS, hosts);
    for round in 0..rounds {
        let turns = [Mode::Ours, Mode::Hub].into_iter();
        steps.extend(turns.map(|mode| Step::Resume { hosts, round, mode }));
    }
    steps
}

/// All starts: of each size and mode, what came of each round.
#[derive(Default)]
struct Runs(BTreeMap<(usize, Mode), Rounds>);

#[derive(Default)]
struct Rounds {
    /// The hosts' mean run times.
    took_s: Samples,
    /// Bytes that left the hub over those of the profile.
    seed_ratio: Samples,
    /// The share of the processors' time that nothing used.
    idle: Samples,
}

impl Runs {
    fn new(site: &Site, told: &BTreeMap<Step, Told>) -> Runs {
        let mut runs = Runs::default();
        for (step, told) in told {
            if let Step::Start { hosts, mode, .. } = *step {
                let rounds = runs.0.entry((hosts, mode)).or_default();
                rounds.took_s.push(told.took_s);
                let ratio = told.seed_bytes as f64 / site.profile_bytes();
                rounds.seed_ratio.push(ratio);
                rounds.idle.push(told.idle);
            }
        }
        runs
    }

    fn of(&self, hosts: usize, mode: Mode) -> &Rounds {
        &self.0[&(hosts, mode)]
    }
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-real", context.quick);
    let all = steps(context);
    let wanted = |step: &Step| options.only.is_empty() || options.only.contains(&step.part());
    ensure!(
        all.iter().any(wanted),
        "a short run has the parts n{} and {GUESTS} alone",
        most(context)
    );
    let kept = options.kept.as_deref();
    let mut kept: Kept<Step, Told> = Kept::open(kept, "swarm-real", context.quick)?;
    kept.told.retain(|step, _| all.contains(step));
    let site = Site::prepare(&context.scratch, size(context))?;
    measure(
        &site,
        all.iter().copied().filter(wanted),
        context,
        &mut kept,
    )?;
    let told = kept.told;
    let has = |part: &str| {
        let mut steps = all.iter().filter(|step| step.part() == part);
        steps.all(|step| told.contains_key(step))
    };
    let runs = Runs::new(&site, &told);
    for hosts in sizes(context).iter().copied() {
        if has(&format!("n{hosts}")) {
            tell(&site, &runs, hosts, &mut report);
            tell_model(&site, &runs, hosts, &mut report);
        }
    }
    let hosts = most(context);
    if has(&format!("n{hosts}"))
        && let Some(torrent) = told.get(&Step::Torrent { hosts })
    {
        tell_torrent(&runs, torrent.took_s, hosts, &mut report);
    }
    if has(GUESTS) {
        tell_guests(&told, &mut report);
    }
    note(&site, &mut report);
    report.lacks(all.len() - told.len(), all.len(), "runs");
    Ok(report)
}

/// Does what was not kept.
fn measure(
    site: &Site,
    wanted: impl Iterator<Item = Step>,
    context: &Context,
    kept: &mut Kept<Step, Told>,
) -> anyhow::Result<()> {
    let mut guest = None;
    for step in wanted {
        if kept.told.contains_key(&step) {
            continue;
        }
        let told: Told = match step {
            Step::Start { hosts, mode, .. } => site.start(mode, hosts)?.into(),
            Step::Torrent { hosts } => Told {
                took_s: by_torrent(site, hosts, &context.scratch)?,
                ..Told::default()
            },
            Step::Resume { hosts, mode, .. } => {
                let image = match guest {
                    Some(image) => image,
                    None => *guest.insert(site.capture_guest()?),
                };
                site.resume(mode, image, hosts)?.into()
            }
        };
        kept.put(&step, &told)?;
        kept.told.insert(step, told);
    }
    Ok(())
}

/// What is measured in a full run, and in a short one.
fn size(context: &Context) -> Size {
    Size {
        hosts: most(context),
        guests: context.pick(READING, 1),
        bits_per_s: 20_000_000,
        faster: FASTER,
        touched_bytes: context.pick(u64::MAX, 2 << 20),
        image_bytes: context.pick(u64::MAX, 12 << 20),
        spread: Duration::from_secs(1),
    }
}

/// Returns the mean time in which so many hosts get all of the image by BitTorrent, in seconds.
fn by_torrent(site: &Site, hosts: usize, dir: &Path) -> anyhow::Result<f64> {
    let image = dir.join("image.packs");
    let bytes = site.packed(&image)?;
    let torrent = Torrent::new(&site.segment, &image, hosts)?;
    let took = torrent.download(hosts, dir)?;
    let mean_s = mean(took.iter().map(Duration::as_secs_f64));
    eprintln!(
        "swarm-real: all {:.1} MB of the image by BitTorrent to {hosts} hosts: {mean_s:.1} s",
        bytes as f64 / 1e6
    );
    Ok(mean_s)
}

/// Adds how soon captured guests answer that are resumed on several hosts at the same second.
fn tell_guests(told: &BTreeMap<Step, Told>, report: &mut Report) {
    let mut runs: BTreeMap<(usize, Mode), Samples> = BTreeMap::new();
    for (step, told) in told {
        if let Step::Resume { hosts, mode, .. } = *step {
            runs.entry((hosts, mode)).or_default().push(told.took_s);
        }
    }
    for ((hosts, mode), took_s) in &runs {
        let name = format!("guests_n{hosts}.{}_s", mode.name());
        let figure = report.add(&name, "s", took_s);
        if let (Mode::Ours, Some(hub)) = (mode, runs.get(&(*hosts, Mode::Hub))) {
            figure.against("from the hub", "s", hub.median());
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = values.collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Returns ratios of the same rounds, or to the median if the other was not measured in each.
fn ratio(of: &Samples, to: &Samples) -> Samples {
    if of.len() == to.len() {
        return of.over(to);
    }
    let to = to.median();
    of.values().iter().map(|value| value / to).collect()
}

/// Adds run times and what follows from them.
fn tell(site: &Site, runs: &Runs, hosts: usize, report: &mut Report) {
    for mode in MODES {
        let (key, of) = (format!("n{hosts}.{}", mode.name()), runs.of(hosts, mode));
        report.add(&format!("{key}_s"), "s", &of.took_s);
        report.add(&format!("{key}.seed_upload_ratio"), "x", &of.seed_ratio);
        report.add(&format!("{key}.cpu_left"), "", &of.idle);
    }
    let of = |mode| &runs.of(hosts, mode).took_s;
    let (ours, local) = (of(Mode::Ours), of(Mode::Local));
    for mode in [Mode::CsD, Mode::P2pP, Mode::Hub] {
        let name = format!("{}_over_ours_n{hosts}", mode.name());
        report
            .add(&name, "x", &ratio(of(mode), ours))
            .against("ours", "s", ours.median());
    }
    report
        .add(
            &format!("ours_over_local_n{hosts}"),
            "x",
            &ratio(ours, local),
        )
        .against("the image is here already", "s", local.median());
    let seed = &runs.of(hosts, Mode::Ours).seed_ratio;
    report.add(&format!("seed_upload_ratio_n{hosts}"), "x", seed);
    let simulated_s = simulated(site, hosts, local.median());
    let ratio = ours.values().iter().map(|real| simulated_s / real);
    report
        .add(&format!("sim_over_real_n{hosts}"), "x", &ratio.collect())
        .against("simulated", "s", simulated_s);
}

fn tell_torrent(runs: &Runs, took_s: f64, hosts: usize, report: &mut Report) {
    let of = |mode| &runs.of(hosts, mode).took_s;
    let both = Samples::from_iter([took_s + of(Mode::Local).median()]);
    let ours = of(Mode::Ours);
    report.add(&format!("n{hosts}.bittorrent_s"), "s", &both);
    report
        .add(
            &format!("bittorrent_over_ours_n{hosts}"),
            "x",
            &ratio(&both, ours),
        )
        .against("ours", "s", ours.median());
}

/// Adds what the paper's model says over what was measured, for the policies that it knows.
fn tell_model(site: &Site, runs: &Runs, hosts: usize, report: &mut Report) {
    let local_s = runs.of(hosts, Mode::Local).took_s.median();
    for (modelled, mode) in [
        (Modelled::P2pP, Mode::P2pP),
        (Modelled::P2pD, Mode::P2pD),
        (Modelled::CsP, Mode::CsP),
        (Modelled::CsD, Mode::CsD),
    ] {
        let replayed = (0..site.replaying(hosts)).map(|host| &site.recorded[site.run_of(host)]);
        let slowdown = modelled.slowdown(replayed, PIECE_BYTES, link_of(site), hosts);
        let took_s = &runs.of(hosts, mode).took_s;
        tell_over_real(report, modelled, hosts, slowdown, local_s, took_s);
    }
}

fn link_of(site: &Site) -> Link {
    Link {
        bits_per_s: site.size.bits_per_s,
        rtt_us: RTT_US,
        service_us: SERVICE_US,
    }
}

/// Returns the run time that the simulator tells for the same hosts: the same runs over the same links. A guest that reads by itself takes no
/// time of its own.
fn simulated(site: &Site, hosts: usize, local_s: f64) -> f64 {
    let replaying = site.replaying(hosts);
    let run = &site.recorded[site.run_of(0)];
    let at_once = Recorded {
        accesses: run.accesses.iter().map(|access| (0, access.1)).collect(),
        end_us: 1,
    };
    let host = |n: usize| Host {
        run: match n < replaying {
            true => &site.recorded[site.run_of(n)],
            false => &at_once,
        },
        profile: &site.profile,
        start_us: site.start_of(n).as_micros() as u64,
        slowness: 1.0,
        link_slowness: 1,
    };
    let outcome: Simulated = simulate(&Setup {
        config: Config::ours(),
        hosts: (0..hosts).map(host).collect(),
        pieces: site.pieces,
        link: link_of(site),
        chance: hosts as u64,
    });
    mean(outcome.slowdowns.iter().copied().take(replaying)) * local_s
}

fn note(site: &Site, report: &mut Report) {
    let size = &site.size;
    report.note(MODEL_NOTE);
    report.note(format!(
        "links of {} Mbit/s each way; the recorded times are divided by {}; {:.1} MB of {:.1} MB are touched, packs' indices in it, in {:.1} s with everything in \
         memory, on the mean; the profile has {:.1} MB without indices",
        size.bits_per_s / 1_000_000,
        size.faster,
        mean(site.recorded.iter().map(|run| run.bytes() as f64 / 1e6)),
        f64::from(site.pieces) * PIECE_BYTES as f64 / 1e6,
        mean(site.recorded.iter().map(|run| run.end_us as f64 / 1e6)),
        site.profile_bytes() / 1e6
    ));
    report.note("run times are means over the hosts, from the command until the machine has done everything; each node has a QEMU, whose guest stops in its boot sector: what the recorded machine did is done to the machine's disk on the node's mount");
    report.note("of the most hosts, the last two have a guest that reads what a recorded machine read, through QEMU and without time of its own, and tells its checksum; run times are of the others");
    report.note("cpu_left is the share of all processors' time that nothing used from the first command until the last machine was done");
}

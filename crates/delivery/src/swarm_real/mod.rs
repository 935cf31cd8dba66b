//! `swarm-real`: one image started at the same second by 2 to 16 nodes, each with a mount, a cache and a QEMU of its own, in a network
//! namespace of its own behind a slow link. How it comes to them is changed: from the hub alone, by VMTorrent's policies, by ours; and
//! what a user would take instead, all of it by BitTorrent and then the start. Each machine's disk is touched as a recorded one was.
//!
//! All of it takes more than an hour, so that it can be done in sittings (`--kept FILE --minutes N`, `--only n16`): what the promises need
//! comes first, and the next sitting goes on where the last one stopped.
mod guest;
mod player;
mod script;
pub(super) mod site;
mod torrent;

use anyhow::ensure;
use floe_simulator::predict::{MODEL_NOTE, Modelled, tell_over_real};
use floe_simulator::swarm_sim::{
    Host, Link, Outcome as Simulated, PIECE_BYTES, Recorded, Setup, simulate,
};
use floe_swarm::policy::Config;
use floe_testbed::harness::{Context, Kept, Report, Samples};
use serde::{Deserialize, Serialize};
use site::{Mode, Outcome, Site, Size};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Sizes of the swarm.
const HOSTS: &[usize] = &[2, 4, 8, 16];
/// Sizes of a short run.
const HOSTS_QUICK: &[usize] = &[2];
/// The parts: one for each of [`HOSTS`], and guests that are resumed.
const PARTS: [&str; 5] = ["n2", "n4", "n8", "n16", GUESTS];
const GUESTS: &str = "guests";
/// How long a sitting takes if nothing else is asked for: all that the promises need, once.
const MINUTES: u64 = 40;
/// Rounds of a full run, in which so many hosts start, and resume guests.
const ROUNDS: usize = 3;
/// How an image comes to hosts, in turn; the first few in each round, the others once.
const MODES: [Mode; 8] = [
    Mode::Ours,
    Mode::Local,
    Mode::P2pP,
    Mode::Asked,
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
/// How many hosts resume a captured guest. Guests compute: the more there are, the more they wait for the processors of this machine.
const GUEST_HOSTS: &[usize] = &[16, 4];
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
    /// Begin no further run after so many minutes, and tell what was done so far; with --kept the same command goes on later
    #[arg(long, value_name = "N", default_value_t = MINUTES)]
    minutes: u64,
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
    /// So many hosts get all of it by BitTorrent, and start it then.
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

/// Returns all steps, those first that the promises need: all ways for the most hosts and the few for the others, once; then more rounds
/// of these; then all ways for fewer hosts.
fn steps(context: &Context) -> Vec<Step> {
    let (often, seldom) = MODES.split_at(OFTEN_MODES);
    let (sizes, most) = (sizes(context), most(context));
    let guests = context.pick(GUEST_HOSTS, HOSTS_QUICK);
    let start = |round: usize, hosts: usize, modes: &[Mode]| -> Vec<Step> {
        let mut modes = modes.to_vec();
        // none always comes after the same
        if round % 2 == 1 {
            modes.reverse();
        }
        let one = |mode| Step::Start { hosts, round, mode };
        modes.into_iter().map(one).collect()
    };
    // what takes minutes is measured once: the link decides it, and nothing else
    let mut steps = start(0, most, seldom);
    steps.push(Step::Torrent { hosts: most });
    for round in 0..context.pick(ROUNDS, 1) {
        for hosts in sizes.iter().rev().copied() {
            steps.extend(start(round, hosts, often));
        }
        for hosts in guests.iter().copied() {
            let modes = [Mode::Ours, Mode::Hub].into_iter();
            steps.extend(modes.map(|mode| Step::Resume { hosts, round, mode }));
        }
    }
    for hosts in sizes.iter().rev().copied().filter(|hosts| *hosts != most) {
        steps.extend(start(0, hosts, seldom));
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

    /// Returns what came of a way, if so many hosts have started in it.
    fn of(&self, hosts: usize, mode: Mode) -> Option<&Rounds> {
        self.0.get(&(hosts, mode))
    }

    /// Returns the hosts' mean run times of its rounds.
    fn took_s(&self, hosts: usize, mode: Mode) -> Option<&Samples> {
        Some(&self.of(hosts, mode)?.took_s)
    }
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-real", context.quick);
    let began = Instant::now();
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
    let wanted = all.iter().copied().filter(wanted);
    let long = Duration::from_secs(options.minutes.saturating_mul(60));
    let in_time = || began.elapsed() < long;
    measure(&site, wanted, &mut kept, &in_time)?;
    let told = kept.told;
    let runs = Runs::new(&site, &told);
    for hosts in sizes(context).iter().copied() {
        tell(&site, &runs, hosts, &mut report);
        tell_model(&site, &runs, hosts, &mut report);
    }
    let hosts = most(context);
    if let Some(torrent) = told.get(&Step::Torrent { hosts }) {
        tell_torrent(&runs, torrent.took_s, hosts, &mut report);
    }
    tell_guests(&told, &mut report);
    note(&site, &mut report);
    report.lacks(all.len() - told.len(), all.len(), "runs");
    Ok(report)
}

/// Does what was not kept, as long as there is time to begin something.
fn measure(
    site: &Site,
    wanted: impl Iterator<Item = Step>,
    kept: &mut Kept<Step, Told>,
    in_time: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    let mut guest = None;
    for step in wanted {
        if kept.told.contains_key(&step) || !in_time() {
            continue;
        }
        let told: Told = match step {
            Step::Start { hosts, mode, .. } => site.start(mode, hosts)?.into(),
            Step::Torrent { hosts } => {
                let (download, started) = site.by_torrent(hosts)?;
                Told {
                    took_s: download.as_secs_f64() + started.mean_s(),
                    ..Told::default()
                }
            }
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

/// Adds run times and what follows from them, as far as it was measured.
fn tell(site: &Site, runs: &Runs, hosts: usize, report: &mut Report) {
    for mode in MODES {
        if let Some(of) = runs.of(hosts, mode) {
            let key = format!("n{hosts}.{}", mode.name());
            report.add(&format!("{key}_s"), "s", &of.took_s);
            report.add(&format!("{key}.seed_upload_ratio"), "x", &of.seed_ratio);
            report.add(&format!("{key}.cpu_left"), "", &of.idle);
        }
    }
    let Some(Rounds {
        took_s: ours,
        seed_ratio,
        ..
    }) = runs.of(hosts, Mode::Ours)
    else {
        return;
    };
    report.add(&format!("seed_upload_ratio_n{hosts}"), "x", seed_ratio);
    for mode in [Mode::CsD, Mode::P2pP, Mode::Hub, Mode::Asked] {
        if let Some(other) = runs.took_s(hosts, mode) {
            let name = format!("{}_over_ours_n{hosts}", mode.name());
            let figure = report.add(&name, "x", &ratio(other, ours));
            figure.against("ours", "s", ours.median());
        }
    }
    let Some(local) = runs.took_s(hosts, Mode::Local) else {
        return;
    };
    let name = format!("ours_over_local_n{hosts}");
    let figure = report.add(&name, "x", &ratio(ours, local));
    figure.against("the image is here already", "s", local.median());
    let simulated_s = simulated(site, hosts, local.median());
    let ratio = ours.values().iter().map(|real| simulated_s / real);
    report
        .add(&format!("sim_over_real_n{hosts}"), "x", &ratio.collect())
        .against("simulated", "s", simulated_s);
}

fn tell_torrent(runs: &Runs, took_s: f64, hosts: usize, report: &mut Report) {
    let Some(ours) = runs.took_s(hosts, Mode::Ours) else {
        return;
    };
    let both = Samples::from_iter([took_s]);
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
    let Some(local) = runs.took_s(hosts, Mode::Local) else {
        return;
    };
    for (modelled, mode) in [
        (Modelled::P2pP, Mode::P2pP),
        (Modelled::P2pD, Mode::P2pD),
        (Modelled::CsP, Mode::CsP),
        (Modelled::CsD, Mode::CsD),
    ] {
        let Some(took_s) = runs.took_s(hosts, mode) else {
            continue;
        };
        let replayed = (0..site.replaying(hosts)).map(|host| &site.recorded[site.run_of(host)]);
        let slowdown = modelled.slowdown(replayed, PIECE_BYTES, link_of(site), hosts);
        tell_over_real(report, modelled, hosts, slowdown, local.median(), took_s);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(quick: bool) -> (Context, Vec<Step>) {
        let context = Context {
            quick,
            scratch: PathBuf::new(),
        };
        let steps = steps(&context);
        (context, steps)
    }

    #[test]
    fn nothing_is_measured_twice_or_left_out() {
        for quick in [false, true] {
            let (context, steps) = all(quick);
            let once: BTreeSet<Step> = steps.iter().copied().collect();
            assert_eq!(once.len(), steps.len());
            for hosts in sizes(&context).iter().copied() {
                for mode in MODES {
                    let round = 0;
                    assert!(once.contains(&Step::Start { hosts, round, mode }));
                }
            }
            assert!(steps.iter().all(|step| PARTS.contains(&&*step.part())));
        }
    }

    #[test]
    fn what_the_promises_need_comes_before_anything_is_repeated() {
        let (context, steps) = all(false);
        let again = |step: &Step| matches!(step, Step::Start { round: 1.., .. });
        let first = steps.iter().position(again).unwrap_or(steps.len());
        let hosts = most(&context);
        let mut needed = vec![Step::Torrent { hosts }];
        for mode in [Mode::CsD, Mode::Hub, Mode::P2pP] {
            let round = 0;
            needed.push(Step::Start { hosts, round, mode });
        }
        for hosts in HOSTS.iter().copied() {
            let both = [Mode::Ours, Mode::Local].into_iter();
            needed.extend(both.map(|mode| Step::Start {
                hosts,
                round: 0,
                mode,
            }));
        }
        for step in needed {
            assert!(steps[..first].contains(&step), "{step:?}");
        }
    }
}

//! `swarm-real`: one image started at the same second by 2 to 16 nodes, each with a mount, a cache and a QEMU of its own, in a network
//! namespace of its own behind a slow link. How it comes to them is changed: from the hub alone, by VMTorrent's policy, by ours; and
//! what a user would take instead, all of it by BitTorrent and then the start. Each machine's disk is touched as a recorded one was.
mod player;
mod script;
pub(super) mod site;
mod torrent;

use crate::harness::{Context, Report, Samples};
use crate::swarm_sim::{Host, Link, Outcome as Simulated, Setup, simulate};
use floe_swarm::policy::Config;
use site::{Mode, Outcome, Site, Size};
use std::collections::BTreeMap;
use std::time::Duration;
use torrent::Torrent;

/// Sizes of the swarm.
const HOSTS: [usize; 4] = [2, 4, 8, 16];
/// Sizes of a short run.
const HOSTS_QUICK: [usize; 1] = [2];
/// Rounds of a full run.
const ROUNDS: usize = 3;
/// How an image comes to hosts, in turn; the first few in each round.
const MODES: [Mode; 6] = [
    Mode::Ours,
    Mode::Local,
    Mode::P2pP,
    Mode::P2pD,
    Mode::CsP,
    Mode::CsD,
];
const QUICK_MODES: usize = 3;
/// Hosts with guests that compute: more would wait for the processors of this machine rather than for their links.
const GUEST_HOSTS: usize = 4;
/// The paper's round trip on a local network, and what a node needs to answer, in microseconds.
const RTT_US: u64 = 500;
const SERVICE_US: u64 = 500;

/// What is measured in a full run, and in a short one.
pub(super) fn size(context: &Context) -> Size {
    Size {
        hosts: context.pick(HOSTS[3], HOSTS_QUICK[0]),
        bits_per_s: 20_000_000,
        touched_bytes: context.pick(16 << 20, 2 << 20),
        image_bytes: context.pick(160 << 20, 12 << 20),
        spread: Duration::from_secs(1),
    }
}

/// All runs: of each size and mode, the hosts' mean run times.
#[derive(Default)]
struct Runs {
    took_s: BTreeMap<(usize, Mode), Samples>,
    seed_ratio: BTreeMap<(usize, Mode), Samples>,
}

impl Runs {
    fn push(&mut self, site: &Site, hosts: usize, mode: Mode, outcome: &Outcome) {
        let key = (hosts, mode);
        self.took_s.entry(key).or_default().push(outcome.mean_s());
        let ratio = outcome.seed_bytes as f64 / site.profile_bytes();
        self.seed_ratio.entry(key).or_default().push(ratio);
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-real", context.quick);
    let size = size(context);
    let all_hosts = context.pick(HOSTS.to_vec(), HOSTS_QUICK.to_vec());
    let site = Site::prepare(&context.scratch, size)?;
    let image = context.scratch.join("image.packs");
    let image_bytes = site.packed(&image)?;
    let torrent = Torrent::new(&site.segment, &image, size.hosts)?;
    let (mut runs, mut torrents) = (Runs::default(), Samples::default());
    for round in 0..context.pick(ROUNDS, 1) {
        for hosts in all_hosts.iter().copied() {
            // what takes minutes is measured once: the link decides it, and nothing else
            let modes = if round == 0 {
                &MODES[..]
            } else {
                &MODES[..QUICK_MODES]
            };
            let mut turns: Vec<Mode> = modes.to_vec();
            if round % 2 == 1 {
                turns.reverse();
            }
            for mode in turns {
                let outcome = site.start(mode, hosts)?;
                runs.push(&site, hosts, mode, &outcome);
            }
        }
        if round == 0 {
            let took = torrent.download(size.hosts, &context.scratch)?;
            let mean_s = mean(took.iter().map(Duration::as_secs_f64));
            eprintln!(
                "swarm-real: all of the image by BitTorrent to {} hosts: {mean_s:.1} s",
                size.hosts
            );
            torrents.push(mean_s);
        }
    }
    let with_guests = context.pick(GUEST_HOSTS, HOSTS_QUICK[0]);
    resume_guests(&site, with_guests, context.pick(3, 1), &mut report)?;
    tell(&site, &runs, &all_hosts, &mut report);
    tell_torrent(&runs, &torrents, size.hosts, &mut report);
    report.note(format!(
        "links of {} Mbit/s each way; {:.1} MB of {:.1} MB are touched, in {:.1} s with everything in memory, on the mean; the profile has {:.1} MB",
        size.bits_per_s / 1_000_000,
        mean(site.recorded.iter().map(|run| run.bytes() as f64 / 1e6)),
        image_bytes as f64 / 1e6,
        mean(site.recorded.iter().map(|run| run.end_us as f64 / 1e6)),
        site.profile_bytes() / 1e6
    ));
    report.note("run times are means over the hosts, from the command until the machine has done everything; each node has a QEMU, whose guest stops in its boot sector: what the recorded machine did is done to the machine's disk on the node's mount");
    Ok(report)
}

/// Adds how soon captured guests answer that are resumed on several hosts at the same second: both their memory and their disk come over
/// the links.
fn resume_guests(
    site: &Site,
    hosts: usize,
    rounds: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let image = site.capture_guest()?;
    let (mut ours, mut hub) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        ours.push(site.resume(Mode::Ours, image, hosts)?.mean_s());
        hub.push(site.resume(Mode::CsP, image, hosts)?.mean_s());
    }
    report
        .add(&format!("guests_n{hosts}.ours_s"), "s", &ours)
        .against("from the hub", "s", hub.median());
    report.add(&format!("guests_n{hosts}.cs_p_s"), "s", &hub);
    Ok(())
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
fn tell(site: &Site, runs: &Runs, all_hosts: &[usize], report: &mut Report) {
    for hosts in all_hosts.iter().copied() {
        let of = |mode| &runs.took_s[&(hosts, mode)];
        for mode in MODES {
            let key = format!("n{hosts}.{}", mode.name());
            report.add(&format!("{key}_s"), "s", of(mode));
            let seed = &runs.seed_ratio[&(hosts, mode)];
            report.add(&format!("{key}.seed_upload_ratio"), "x", seed);
        }
        let (ours, local) = (of(Mode::Ours), of(Mode::Local));
        for (name, mode) in [("cs_d", Mode::CsD), ("p2p_p", Mode::P2pP)] {
            report
                .add(
                    &format!("{name}_over_ours_n{hosts}"),
                    "x",
                    &ratio(of(mode), ours),
                )
                .against("ours", "s", ours.median());
        }
        report
            .add(
                &format!("ours_over_local_n{hosts}"),
                "x",
                &ratio(ours, local),
            )
            .against("the image is here already", "s", local.median());
        let seed = &runs.seed_ratio[&(hosts, Mode::Ours)];
        report.add(&format!("seed_upload_ratio_n{hosts}"), "x", seed);
        let simulated_s = simulated(site, hosts, local.median());
        let ratio: Samples = ours
            .values()
            .iter()
            .map(|real| simulated_s / real)
            .collect();
        report
            .add(&format!("sim_over_real_n{hosts}"), "x", &ratio)
            .against("simulated", "s", simulated_s);
    }
}

fn tell_torrent(runs: &Runs, torrents: &Samples, hosts: usize, report: &mut Report) {
    let (ours, local) = (
        &runs.took_s[&(hosts, Mode::Ours)],
        &runs.took_s[&(hosts, Mode::Local)],
    );
    let start_s = local.median();
    let both: Samples = torrents.values().iter().map(|all| all + start_s).collect();
    report.add(&format!("n{hosts}.bittorrent_s"), "s", &both);
    report
        .add(
            &format!("bittorrent_over_ours_n{hosts}"),
            "x",
            &ratio(&both, ours),
        )
        .against("ours", "s", ours.median());
}

/// Returns the run time that the simulator tells for the same hosts: the same runs over the same links.
fn simulated(site: &Site, hosts: usize, local_s: f64) -> f64 {
    let host = |n: usize| Host {
        run: &site.recorded[site.run_of(n)],
        profile: &site.profile,
        start_us: site.start_of(n).as_micros() as u64,
        slowness: 1.0,
        link_slowness: 1,
    };
    let outcome: Simulated = simulate(&Setup {
        config: Config::ours(),
        hosts: (0..hosts).map(host).collect(),
        pieces: site.pieces,
        link: Link {
            bits_per_s: site.size.bits_per_s,
            rtt_us: RTT_US,
            service_us: SERVICE_US,
        },
        chance: hosts as u64,
    });
    outcome.mean() * local_s
}

//! `io-sim`: the launches of `io` in virtual time, recorded ones where there are any, against the replay of the same ones through floe's mount and on raw
//! files on the modelled disk; and what no host here has, in the simulator alone: mClock, io.cost, and the paper's own limiter.

use super::io::groups::WEIGHT;
use super::io::replay::replay;
use super::io::site::{Candidate, SETTLE, Site};
use super::io::{LAUNCHES_DIR, Launches, VSIP, host};
use floe_mount::IoScheduling;
use floe_sched::{Fifo, Policy, Vsip, VsipConfig};
use floe_simulator::io_sim::{
    Boot, IoCost, Launcher, Limiter, MClock, Program, Reader, Request, Share, World,
};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::launch::Launch;
use floe_testbed::slow_disk::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Threads of a mount that give requests to the disk, and how many it may queue.
const WORKERS: usize = 8;
const QUEUED_MAX: usize = 1024;
/// How many requests a loop device takes at once.
const HOST_DEPTH: usize = 128;
/// What mClock reserves for the desk: half of a hard disk.
const RESERVED_PER_S: f64 = 60.0;
/// How long a simulated user launches programs, and rests in between, in seconds.
const SIMULATED_S: f64 = 600.0;
const PAUSE_S: f64 = 10.0;
/// Rounds of the replay.
const ROUNDS: usize = 20;
/// What is simulated beside the desk: noises of `io`, each with whether it boots, and how many machines.
const NOISES: [(&str, bool, u32); 4] = [
    ("reader1", false, 1),
    ("reader7", false, 7),
    ("boot1", true, 1),
    ("boot7", true, 7),
];

/// Who orders the simulated requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Vsip,
    None,
    MClock,
    IoCost,
    Limiter,
}

/// Those that are simulated only, with their names in figures.
const COMPARED: [(&str, Order); 3] = [
    ("mclock", Order::MClock),
    ("iocost", Order::IoCost),
    ("limiter", Order::Limiter),
];

fn share(machine: u32) -> Share {
    Share {
        reserved_per_s: if machine == 0 { RESERVED_PER_S } else { 0.0 },
        weight: 1.0,
    }
}

/// Simulates launches beside so many machines, which boot (as it was recorded in `launches`, if it was) or read. Returns the mean time of one, in seconds.
fn simulate(
    order: Order,
    (boots, machines): (bool, u32),
    launches: &Launches,
    launch: &Launch,
    seconds: f64,
) -> f64 {
    let policy: Box<dyn Policy<Request>> = match order {
        Order::Vsip => Box::new(Vsip::new(VsipConfig::disk(QUEUED_MAX, WORKERS))),
        Order::None => Box::new(Fifo::new(QUEUED_MAX)),
        Order::MClock => Box::new(MClock::new(share)),
        Order::IoCost => Box::new(IoCost::new(Kind::HardDisk)),
        Order::Limiter => Box::new(Limiter::new()),
    };
    let workers = match order {
        Order::Vsip => WORKERS,
        Order::None | Order::IoCost => HOST_DEPTH,
        // as few as the disk can do at once, or there would be no order
        Order::MClock | Order::Limiter => 1,
    };
    let mut programs: Vec<Box<dyn Program + '_>> =
        vec![Box::new(Launcher::new(0, PAUSE_S, launch))];
    for machine in 1..=machines {
        programs.push(match (boots, launches.boot()) {
            (true, Some(boot)) => Box::new(Launcher::boots(machine, boot)),
            (true, None) => Box::new(Boot::new(machine)),
            (false, _) => Box::new(Reader::new(machine)),
        });
    }
    let mut world = World::new(policy, Kind::HardDisk, workers, programs);
    world.run(seconds);
    world.launch_s(0)
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("io-sim", context.quick);
    let seconds = context.pick(SIMULATED_S, 200.0);
    let noises = context.pick(&NOISES[..], &NOISES[..2]);
    let launches = Launches::load(Path::new(LAUNCHES_DIR))?;
    let rounds = context.pick(ROUNDS, 1);
    let sides = [
        (VSIP, Order::Vsip, "vsip"),
        (host("none", WEIGHT), Order::None, "none"),
    ];
    let mut site = Site::new(&context.scratch, &[IoScheduling::Vsip], true, &launches)?;
    let mut real: BTreeMap<String, Samples> = BTreeMap::new();
    let mut simulated: BTreeMap<String, Samples> = BTreeMap::new();
    for round in 0..rounds {
        let mut turns = sides;
        if round % 2 == 1 {
            turns.reverse();
        }
        let launch = launches.program(round);
        for (candidate, order, name) in turns {
            for (noise, beside) in [("alone", (false, 0))].into_iter().chain(
                noises
                    .iter()
                    .map(|(noise, boots, n)| (*noise, (*boots, *n))),
            ) {
                let key = format!("{name}.{noise}");
                let took_s = measure(&mut site, candidate, &launches, noise, launch)?;
                real.entry(key.clone()).or_default().push(took_s);
                let simulated_s = simulate(order, beside, &launches, launch, seconds);
                eprintln!(
                    "io-sim: round {round}, {key}, {}: {took_s:.2} s, simulated {simulated_s:.2}",
                    launch.name
                );
                simulated.entry(key).or_default().push(simulated_s);
            }
        }
    }
    tell_real(&mut report, &real, &simulated);
    tell_compared(&mut report, &launches, seconds);
    tell_launches(&mut report, &launches, rounds);
    report.note(format!(
        "the replay and the simulator make the same requests, decided by the same code, to the same model of a hard disk; mClock ({RESERVED_PER_S} requests a \
         second reserved for the desk), io.cost (equal weights, no donations) and the paper's limiter (periods of a second) are simulated only"
    ));
    Ok(report)
}

/// Replays a launch beside this noise, or alone. Returns how long it took, in seconds.
fn measure(
    site: &mut Site,
    candidate: Candidate,
    launches: &Launches,
    noise: &str,
    launch: &Launch,
) -> anyhow::Result<f64> {
    let beside = (noise != "alone").then(|| launches.noise(noise));
    let took = site.beside(
        candidate,
        Kind::HardDisk,
        beside.as_ref(),
        SETTLE,
        |stage| {
            let replayed = replay(stage.lanes, launch, stage.machine, &mut |_| true)?;
            Ok(replayed.took_s)
        },
    )?;
    took.ok_or_else(|| anyhow::anyhow!("every host has these"))
}

/// Adds how the simulated launches are over the real ones, round by round, and the one that is farthest off.
fn tell_real(
    report: &mut Report,
    real: &BTreeMap<String, Samples>,
    simulated: &BTreeMap<String, Samples>,
) {
    let mut worst: Option<(Samples, &str)> = None;
    for (key, real) in real {
        let Some((name, noise)) = key.split_once('.') else {
            continue;
        };
        let ratio = simulated[key].over(real);
        report
            .add(&format!("{name}.sim_over_real_{noise}"), "x", &ratio)
            .against("replayed", "s", real.median());
        if worst
            .as_ref()
            .is_none_or(|(known, _)| off(&ratio) > off(known))
        {
            worst = Some((ratio, key));
        }
    }
    if let Some((ratio, key)) = worst {
        report.add("sim_over_real", "x", &ratio).against(
            &format!("replayed; the one that is farthest off, {key}"),
            "x",
            1.0,
        );
    }
}

/// Adds launches under the orders that are simulated only, over the same alone.
fn tell_compared(report: &mut Report, launches: &Launches, seconds: f64) {
    let launch = launches.program(0);
    let over_alone = |order, beside| {
        let alone = simulate(order, (false, 0), launches, launch, seconds);
        simulate(order, beside, launches, launch, seconds) / alone
    };
    for (noise, boots, machines) in NOISES {
        let vsip = over_alone(Order::Vsip, (boots, machines));
        for (name, order) in COMPARED {
            let ratio = over_alone(order, (boots, machines));
            report
                .add_value(&format!("{name}.launch_{noise}"), "x", ratio)
                .against("vSIP, simulated", "x", vsip);
        }
    }
}

/// Adds which launches so many rounds have replayed and simulated, and how many of them were recorded.
fn tell_launches(report: &mut Report, launches: &Launches, rounds: usize) {
    let used: BTreeSet<&str> = (0..rounds)
        .map(|round| launches.program(round).name.as_str())
        .collect();
    let all = launches.recorded.iter().map(|launch| launch.name.as_str());
    let all: BTreeSet<&str> = all.collect();
    let recorded = used.intersection(&all).count();
    report.add_value("recorded_launches", "count", recorded as f64);
    let of = |is_recorded| match is_recorded {
        true => "recorded in real guests",
        false => "made up",
    };
    let names: Vec<&str> = used.into_iter().collect();
    report.note(format!(
        "launches, {}: {}; boots beside them are {}",
        of(recorded > 0),
        names.join(", "),
        of(launches.boot().is_some())
    ));
}

/// How far a ratio is from 1, whichever way.
fn off(ratio: &Samples) -> f64 {
    ratio.median().ln().abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testbed::launch;

    #[test]
    fn simulated_is_over_real_and_the_farthest_counts_whichever_way() {
        let of = |values: [(&str, f64); 3]| -> BTreeMap<String, Samples> {
            let samples = values
                .iter()
                .map(|(key, value)| ((*key).to_owned(), [*value].into_iter().collect()));
            samples.collect()
        };
        let real = of([
            ("none.reader1", 2.0),
            ("vsip.alone", 1.0),
            ("vsip.boot7", 1.0),
        ]);
        let simulated = of([
            ("none.reader1", 2.1),
            ("vsip.alone", 1.1),
            ("vsip.boot7", 0.8),
        ]);
        let mut report = Report::new("io-sim", true);
        tell_real(&mut report, &real, &simulated);
        assert!((report.figures["none.sim_over_real_reader1"].value - 1.05).abs() < 1e-12);
        assert_eq!(report.figures["sim_over_real"].value, 0.8);
    }

    #[test]
    fn recorded_launches_are_simulated_where_there_are_any_and_it_is_told_which() {
        let dir = tempfile::tempdir().unwrap();
        let told = |dir: &Path| {
            let mut report = Report::new("io-sim", true);
            let launches = Launches::load(dir).unwrap();
            tell_launches(&mut report, &launches, 3);
            let simulated = simulate(Order::Vsip, (true, 1), &launches, launches.program(0), 60.0);
            assert!(simulated > 0.0);
            (
                report.figures["recorded_launches"].value,
                report.notes.join("\n"),
            )
        };
        let (number, note) = told(dir.path());
        assert!(number == 0.0 && note.contains("made up: program0, program1, program2"));
        for name in ["xpdf", "gcc", "boot"] {
            let made_up = launch::made_up(1);
            let name = name.to_owned();
            launch::store(dir.path(), &launch::Script { name, ..made_up }).unwrap();
        }
        let (number, note) = told(dir.path());
        assert!(number == 2.0 && note.contains("recorded in real guests: gcc, xpdf; boots"));
        assert!(!note.contains("made up"), "{note}");
    }

    #[test]
    fn every_order_that_is_simulated_has_its_figures() {
        let mut report = Report::new("io-sim", true);
        let dir = tempfile::tempdir().unwrap();
        let made_up = Launches::load(dir.path()).unwrap();
        tell_compared(&mut report, &made_up, 60.0);
        assert_eq!(report.figures.len(), NOISES.len() * COMPARED.len());
        let least = report.figures.values().map(|figure| figure.value);
        assert!(least.into_iter().all(|value| value > 0.9));
    }
}

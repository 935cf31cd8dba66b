//! `io-sim`: the launches of `io` in virtual time, against the same ones of a real guest through floe's mount on the modelled disk; and
//! mClock, which no host here has, in the simulator alone.

use super::io::groups::WEIGHT;
use super::io::noise;
use super::io::site::{Beside, Candidate, Site};
use super::io::{ACQUAINT, NOISES, VSIP, host};
use crate::harness::{Context, Report, Samples};
use crate::io_sim::{Boot, Launcher, MClock, Program, Reader, Request, Share, World};
use crate::slow_disk::Kind;
use floe_mount::IoScheduling;
use floe_sched::{Fifo, Policy, Vsip, VsipConfig};
use std::time::Duration;

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

/// How many of the noises are simulated: the first ones.
const SIMULATED: usize = 4;

/// Who orders the simulated requests.
#[derive(Clone, Copy)]
enum Order {
    Vsip,
    None,
    MClock,
}

fn share(machine: u32) -> Share {
    Share {
        reserved_per_s: if machine == 0 { RESERVED_PER_S } else { 0.0 },
        weight: 1.0,
    }
}

fn simulate(order: Order, beside: Option<&Beside>, overhead_us: u64, seconds: f64) -> f64 {
    let policy: Box<dyn Policy<Request>> = match order {
        Order::Vsip => Box::new(Vsip::new(VsipConfig::disk(QUEUED_MAX, WORKERS))),
        Order::None => Box::new(Fifo::new(QUEUED_MAX)),
        Order::MClock => Box::new(MClock::new(share)),
    };
    let workers = match order {
        Order::Vsip => WORKERS,
        Order::None => HOST_DEPTH,
        // as few as the disk can do at once, or there would be no order
        Order::MClock => 1,
    };
    let mut programs: Vec<Box<dyn Program>> =
        vec![Box::new(Launcher::new(0, PAUSE_S, overhead_us))];
    for machine in 1..=beside.map_or(0, |beside| beside.machines) as u32 {
        programs.push(match beside.map(|beside| beside.kind) {
            Some(noise::Kind::Boot) => Box::new(Boot::new(machine)),
            _ => Box::new(Reader::new(machine)),
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
    let noises = if context.quick {
        &NOISES[..2]
    } else {
        &NOISES[..SIMULATED]
    };
    let sides = [
        (VSIP, Order::Vsip, "vsip"),
        (host("none", WEIGHT), Order::None, "none"),
    ];
    let mut site = Site::new(&context.scratch, &[IoScheduling::Vsip], true)?;
    site.acquaint(Kind::HardDisk, ACQUAINT)?;
    let mut worst = Samples::default();
    for (candidate, order, name) in sides {
        let (alone_s, slow) = measure(&mut site, candidate, noises, context.pick(3, 1))?;
        // what the guest itself takes for a request, beyond what the model knows of
        let ideal_s = simulate(order, None, 0, seconds);
        let reads = 60.0;
        let overhead_us = ((alone_s.median() - ideal_s) / reads * 1e6).max(0.0) as u64;
        report
            .add(&format!("{name}.alone_s"), "s", &alone_s)
            .against(
                "simulated, before the guest's own time is added",
                "s",
                ideal_s,
            );
        report.add_value(&format!("{name}.overhead_us"), "us", overhead_us as f64);
        let alone = simulate(order, None, overhead_us, seconds);
        for ((noise, beside), real) in noises.iter().zip(&slow) {
            let simulated = simulate(order, Some(beside), overhead_us, seconds) / alone;
            let ratio: Samples = real.values().iter().map(|real| simulated / real).collect();
            report
                .add(&format!("{name}.sim_over_real_{noise}"), "x", &ratio)
                .against("measured, beside / alone", "x", real.median());
            if worst.is_empty() || off(&ratio) > off(&worst) {
                worst = ratio;
            }
        }
    }
    report.add("sim_over_real", "x", &worst).against(
        "measured; the one that is farthest off",
        "x",
        1.0,
    );
    let alone = simulate(Order::MClock, None, 0, seconds);
    let vsip_alone = simulate(Order::Vsip, None, 0, seconds);
    for (noise, beside) in &NOISES[..SIMULATED] {
        let over_alone = |order, alone| simulate(order, Some(beside), 0, seconds) / alone;
        let mclock = over_alone(Order::MClock, alone);
        let vsip = over_alone(Order::Vsip, vsip_alone);
        report
            .add_value(&format!("mclock.launch_{noise}"), "x", mclock)
            .against("vSIP, simulated", "x", vsip);
    }
    report.note(format!(
        "simulated and real machines make the same requests to the same model of a hard disk; the simulator knows in addition how long the guest \
         itself takes for a request, measured alone; mClock is simulated only, with {RESERVED_PER_S} requests a second reserved for the desk"
    ));
    Ok(report)
}

/// How far a ratio is from 1, whichever way.
fn off(ratio: &Samples) -> f64 {
    ratio.median().ln().abs()
}

/// Returns the real launches' times alone, and beside each noise over alone.
fn measure(
    site: &mut Site,
    candidate: Candidate,
    noises: &[(&str, Beside)],
    rounds: usize,
) -> anyhow::Result<(Samples, Vec<Samples>)> {
    let mut alone_s = Samples::default();
    let mut slow = vec![Samples::default(); noises.len()];
    let pause = Duration::from_millis(500);
    for round in 0..rounds {
        let lines = [format!("launch {round}")];
        let mut launch = |beside| -> anyhow::Result<f64> {
            let cell = site.measure(candidate, Kind::HardDisk, beside, &lines, pause)?;
            let cell = cell.ok_or_else(|| anyhow::anyhow!("every host has these"))?;
            Ok(cell.answers[0][0] / 1e6)
        };
        let alone = launch(None)?;
        alone_s.push(alone);
        for ((_, beside), slow) in noises.iter().zip(&mut slow) {
            slow.push(launch(Some(*beside))? / alone);
        }
    }
    Ok((alone_s, slow))
}

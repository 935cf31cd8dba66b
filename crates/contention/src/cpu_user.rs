//! `cpu-user`: several real machines of two vCPUs on this host's cores, with programs whose threads wait for each other by spinning. Where
//! their vCPUs run is left to the kernel, or looked after by the node (`--cpu-sched balance`, `sbco`), in turn: the node is killed and
//! started again for each, and takes the same machines over.
//!
//! What is told is what a user gets: the node's own trials, in which it undoes everything for seconds to compare, are in the figures, and so
//! is a node that has found that it does not help and has stopped.
//!
//! It takes most of an hour, so that it can be done in sittings (`--kept FILE --minutes N`), and goes on where it was cut.
use super::cpu_sim::worst;
use anyhow::{Context as _, bail, ensure};
use floe_api::{MachineStatus, SchedActing, SchedReport};
use floe_testbed::guest::{Guest, compile};
use floe_testbed::harness::{Context, Kept, Report, Samples};
use floe_testbed::live::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The program of the guests.
const PROGRAM: &str = include_str!("../../lab/guests/spin.rs");
/// Its name there.
const NAME: &str = "floe-spin";
/// What it can do; the first is what the others are a check of.
const PROGRAMS: [&str; 3] = ["lock", "barrier", "compute"];
/// How many machines there are: with two of two vCPUs on two cores nobody would have to wait long enough to be lent anything.
const MACHINES: usize = 4;
/// Bytes of RAM of each.
const MEMORY_BYTES: u64 = 128 << 20;
const ROUNDS: usize = 10;
/// How long a sitting takes if nothing else is asked for.
const MINUTES: u64 = 40;
/// How long a program runs that is measured, in seconds.
const RUN_S: u64 = 10;
/// How long one runs before that, in seconds: the node's first trial falls into it.
const WARM_S: u64 = 30;
/// Longest time for a guest to answer beyond what it was told to take: all of them share two emulated cores.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the node is asked how vCPUs fare. One that does not look after them looks only then.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Options of the experiment.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Keep what came of each run in FILE, and take from there what this very code has measured on this machine: one that was cut goes on
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// Begin no further run after so many minutes, and tell what was done so far; with --kept the same command goes on later
    #[arg(long, value_name = "N", default_value_t = MINUTES)]
    minutes: u64,
}

/// What the node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Mode {
    Off,
    Balance,
    Sbco,
}

const MODES: [Mode; 3] = [Mode::Off, Mode::Balance, Mode::Sbco];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Balance => "balance",
            Mode::Sbco => "sbco",
        }
    }

    /// What its figures' names begin with; nothing for the whole of it.
    fn prefix(self) -> &'static str {
        match self {
            Mode::Off => "off.",
            Mode::Balance => "balance.",
            Mode::Sbco => "",
        }
    }
}

/// What is measured at a time: all programs, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Step {
    round: usize,
    mode: Mode,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Told {
    /// Of each of [`PROGRAMS`], how long all machines together needed for one piece of work, in microseconds.
    took_us: Vec<f64>,
    /// The same of the machine that needed longest.
    slowest_us: Vec<f64>,
    /// How often a vCPU was moved or lent to, since the node's start.
    acted: f64,
    /// How often it was lent to, since then.
    lent: f64,
    /// What that took, in percent of a core.
    own_cpu_pct: f64,
    /// How often siblings shared a core, in percent of looks, over all machines.
    stacking_pct: f64,
    /// Whether the node had stopped by the end, because it does not help.
    stopped: bool,
}

fn steps(context: &Context) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..context.pick(ROUNDS, 1) {
        let mut modes = MODES;
        // none always comes after the same
        modes.rotate_left(round % MODES.len());
        steps.extend(modes.map(|mode| Step { round, mode }));
    }
    steps
}

/// Runs the experiment.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("cpu-user", context.quick);
    let all = steps(context);
    let mut kept: Kept<Step, Told> =
        Kept::open(options.kept.as_deref(), "cpu-user", context.quick)?;
    kept.told.retain(|step, _| all.contains(step));
    let began = Instant::now();
    let long = Duration::from_secs(options.minutes.saturating_mul(60));
    let mut site = None;
    for step in &all {
        if kept.told.contains_key(step) || began.elapsed() >= long {
            continue;
        }
        let site = match &mut site {
            Some(site) => site,
            None => site.insert(Site::start(context)?),
        };
        let told = site.measure(step.mode, context)?;
        kept.put(step, &told)?;
        kept.told.insert(*step, told);
    }
    tell(&kept.told, &mut report);
    report.lacks(all.len() - kept.told.len(), all.len(), "runs");
    Ok(report)
}

/// Adds what can be told.
fn tell(told: &BTreeMap<Step, Told>, report: &mut Report) {
    // rounds in which all of them were measured
    let rounds: Vec<[&Told; 3]> = (0..ROUNDS)
        .filter_map(|round| {
            let of = |mode| told.get(&Step { round, mode });
            Some([of(Mode::Off)?, of(Mode::Balance)?, of(Mode::Sbco)?])
        })
        .collect();
    if rounds.is_empty() {
        return;
    }
    let samples = |number: usize, value: &dyn Fn(&Told) -> f64| -> Samples {
        rounds.iter().map(|round| value(round[number])).collect()
    };
    for (number, mode) in MODES.into_iter().enumerate() {
        let prefix = mode.prefix();
        let stacking = samples(number, &|told| told.stacking_pct);
        report.add(&format!("{prefix}stacking_pct"), "%", &stacking);
        if mode == Mode::Off {
            continue;
        }
        let (mut all, mut slowest) = (Vec::new(), Vec::new());
        for (at, program) in PROGRAMS.into_iter().enumerate() {
            let default = samples(0, &|told| told.took_us[at]);
            let over = samples(number, &|told| told.took_us[at]).over(&default);
            report
                .add(&format!("{prefix}{program}_over_default"), "x", &over)
                .against("the kernel alone, a piece of work", "us", default.median());
            all.push(over);
            let default = samples(0, &|told| told.slowest_us[at]);
            slowest.push(samples(number, &|told| told.slowest_us[at]).over(&default));
        }
        let name = |figure: &str| format!("{prefix}{figure}_over_default");
        report.add(&name("worst"), "x", &worst(all));
        report.add(&name("worst_machine"), "x", &worst(slowest));
        let acted = samples(number, &|told| told.acted);
        report.add(&format!("{prefix}acted"), "count", &acted);
        let own = samples(number, &|told| told.own_cpu_pct);
        report.add(&format!("{prefix}own_cpu_pct"), "%", &own);
        let stopped = rounds.iter().filter(|round| round[number].stopped).count();
        report.add_value(&format!("{prefix}stopped_rounds"), "count", stopped as f64);
    }
    let lent = samples(2, &|told| told.lent);
    report.add("lent", "count", &lent);
    report.note(format!(
        "{MACHINES} machines of two vCPUs, {}; each program {RUN_S} s in all of them at once, after {WARM_S} s of the first; *_over_default: \
         time for a piece of work over the kernel's in the same round; the worst is that of the program with the largest median; \
         worst_machine: of the machine that took longest for a piece, over the one that took longest with the kernel alone; acted: vCPUs \
         moved and loans from the node's start to the end of a run, undoing and trials included",
        floe_testbed::guest::accelerator()
    ));
}

/// The node with its machines.
struct Site {
    node: Node,
}

fn name(number: usize) -> String {
    format!("spin{number}")
}

impl Site {
    fn start(context: &Context) -> anyhow::Result<Site> {
        let guest = guest_with(&context.scratch.join("guest"), NAME, PROGRAM)?;
        let node = Node::start_with(None, &context.scratch.join("node"), &[])?;
        node.import_with(&guest, "spin", MEMORY_BYTES, 2)?;
        for number in 0..MACHINES {
            node.boot("spin", &name(number))?;
        }
        Ok(Site { node })
    }

    /// Runs all programs while the node does as it is told.
    fn measure(&mut self, mode: Mode, context: &Context) -> anyhow::Result<Told> {
        self.node
            .kill_and_start_again(&["--cpu-sched", mode.name()])?;
        self.wait_for_machines()?;
        self.all_run(PROGRAMS[0], context.pick(WARM_S, 2))?;
        let (mut told, mut looks) = (Told::default(), Samples::default());
        for program in PROGRAMS {
            let (rates, stacking) = self.all_run(program, context.pick(RUN_S, 3))?;
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            told.took_us.push(1.0 / rates.iter().sum::<f64>());
            told.slowest_us.push(1.0 / least);
            stacking.values().iter().for_each(|part| looks.push(*part));
        }
        let after: SchedReport = self.node.client.sched()?;
        told.acted = (after.moves + after.loans) as f64;
        told.lent = after.loans as f64;
        told.own_cpu_pct = after.own_cpu_pct;
        told.stopped = after.acting == SchedActing::DoesNotHelp;
        let sum: f64 = looks.values().iter().sum();
        told.stacking_pct = sum / looks.len().max(1) as f64;
        eprintln!(
            "cpu-user: {}: {:.2?} us, acted {}, stacked {:.0} %",
            mode.name(),
            told.took_us,
            told.acted,
            told.stacking_pct
        );
        Ok(told)
    }

    fn wait_for_machines(&self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        for number in 0..MACHINES {
            loop {
                let machine = self.node.machine(&name(number))?;
                if machine.status == MachineStatus::Running && machine.pid.is_some() {
                    break;
                }
                ensure!(
                    Instant::now() < until,
                    "{} was not taken over: {}",
                    machine.name,
                    machine.detail
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Runs a program in all machines at once. Returns how many pieces of work each of them did in a microsecond, and how often siblings
    /// shared a core, in percent, at each look at each machine.
    fn all_run(&self, program: &str, seconds: u64) -> anyhow::Result<(Vec<f64>, Samples)> {
        let mut looks = Samples::default();
        let rates: anyhow::Result<Vec<f64>> = std::thread::scope(|scope| {
            let run = |number| {
                let machine = name(number);
                scope.spawn(move || {
                    run_in(&self.node, &machine, program, seconds)
                        .with_context(|| format!("{machine}: {program}"))
                })
            };
            let all: Vec<_> = (0..MACHINES).map(run).collect();
            while !all.iter().all(|one| one.is_finished()) {
                std::thread::sleep(LOOK_EVERY);
                let machines = self.node.client.sched()?.machines.into_iter();
                machines
                    .filter_map(|one| one.stacking_pct)
                    .for_each(|part| looks.push(part));
            }
            let ended = all.into_iter().map(|one| one.join());
            ended
                .map(|ended| ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?)
                .collect()
        });
        Ok((rates?, looks))
    }
}

/// Runs the program in a machine. Returns the pieces of work that it did in a microsecond.
fn run_in(node: &Node, machine: &str, program: &str, seconds: u64) -> anyhow::Result<f64> {
    let command = format!("{NAME} {program} {seconds}");
    let within = Duration::from_secs(seconds) + PATIENCE;
    rate(&said(node, machine, &command, within)?, program)
}

/// Has a guest's shell run a command, and returns what stands behind the `@` of the first line that has one.
pub(super) fn said(
    node: &Node,
    machine: &str,
    command: &str,
    within: Duration,
) -> anyhow::Result<String> {
    let mut console = node.client.attach(machine)?;
    console.set_read_timeout(Some(within))?;
    let mut lines = BufReader::new(console.try_clone()?);
    writeln!(console, "\n{command}")?;
    loop {
        let mut line = Vec::new();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => bail!("the console was closed"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("it says nothing"),
        }
        let line = String::from_utf8_lossy(&line);
        if let Some((_, said)) = line.trim().split_once('@') {
            return Ok(said.to_owned());
        }
    }
}

/// Returns how often in a microsecond a program did something that says `PROGRAM COUNT MICROSECONDS`.
pub(super) fn rate(said: &str, program: &str) -> anyhow::Result<f64> {
    let words: Vec<&str> = said.split_whitespace().collect();
    match words[..] {
        [what, count, us] if what == program => {
            let (count, us): (f64, f64) = (count.parse()?, us.parse()?);
            ensure!(count > 0.0 && us > 0.0, "it did nothing: {said}");
            Ok(count / us)
        }
        _ => bail!("it said {said:?}"),
    }
}

/// Makes the tiny guest with a program of this name in it, which is also at `bin/NAME` of `dir/root`.
pub(super) fn guest_with(dir: &Path, name: &str, program: &str) -> anyhow::Result<Guest> {
    guest_and(&Guest::tiny()?, dir, name, program)
}

/// Makes another guest without a disk in the same way.
pub fn guest_and(guest: &Guest, dir: &Path, name: &str, program: &str) -> anyhow::Result<Guest> {
    let root = dir.join("root");
    std::fs::create_dir_all(root.join("bin"))?;
    let source = dir.join("program.rs");
    std::fs::write(&source, program)?;
    compile(&source, &root.join("bin").join(name))?;
    guest.add_to_initrd(&root, &dir.join("initrd"))?;
    std::fs::copy(guest.kernel(), dir.join("vmlinuz"))?;
    std::fs::write(dir.join("cmdline"), guest.cmdline()?)?;
    Guest::at(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_comes_at_each_place_of_a_round() {
        let context = Context {
            quick: false,
            scratch: PathBuf::new(),
        };
        let steps = steps(&context);
        assert_eq!(steps.len(), ROUNDS * MODES.len());
        let firsts: Vec<Mode> = steps.chunks(3).map(|round| round[0].mode).collect();
        assert!(MODES.iter().all(|mode| firsts.contains(mode)));
    }

    #[test]
    fn ratios_are_of_the_same_round_and_the_worst_program_is_told() {
        let mut told = BTreeMap::new();
        for round in 0..ROUNDS {
            for mode in MODES {
                let slow = 1.0 + round as f64;
                let took_us = match mode {
                    Mode::Off => vec![10.0 * slow, 10.0 * slow, 10.0 * slow],
                    Mode::Balance => vec![8.0 * slow, 10.0 * slow, 10.0 * slow],
                    Mode::Sbco => vec![5.0 * slow, 10.0 * slow, 11.0 * slow],
                };
                // together they do as much: what one of them loses the others win
                let starves = if mode == Mode::Sbco { 3.0 } else { 1.0 };
                let one = Told {
                    slowest_us: vec![40.0 * slow, 40.0 * slow * starves, 40.0 * slow],
                    took_us,
                    acted: 3.0,
                    ..Told::default()
                };
                told.insert(Step { round, mode }, one);
            }
        }
        let mut report = Report::new("cpu-user", false);
        tell(&told, &mut report);
        let value = |name: &str| report.figures[name].value;
        assert!((value("lock_over_default") - 0.5).abs() < 1e-9);
        assert!((value("balance.lock_over_default") - 0.8).abs() < 1e-9);
        assert!((value("worst_over_default") - 1.1).abs() < 1e-9);
        assert!((value("worst_machine_over_default") - 3.0).abs() < 1e-9);
        assert!((value("balance.worst_machine_over_default") - 1.0).abs() < 1e-9);
        assert_eq!(report.figures["lock_over_default"].n, ROUNDS);
        // one that lacks a way is not told
        told.remove(&Step {
            round: 0,
            mode: Mode::Off,
        });
        let mut fewer = Report::new("cpu-user", false);
        tell(&told, &mut fewer);
        assert_eq!(fewer.figures["lock_over_default"].n, ROUNDS - 1);
    }
}

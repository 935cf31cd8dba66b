//! `switch`: what a switch between two processes costs in a machine's guest, against the same on its host (figures 4.1 and 4.2 of the paper
//! on SBCO). Under KVM it tells what virtualization adds; an emulated guest tells what emulation does.
//!
//! One process hands a byte to another and gets it back, both on one processor. Of that round trip half is a switch, less what one process
//! needs for the same reads, writes and touches of its memory alone.
use super::cpu_user::{guest_with, rate, said};
use anyhow::{Context as _, ensure};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The program, in the guest and on the host.
const PROGRAM: &str = include_str!("../../lab/guests/switch.rs");
const NAME: &str = "floe-switch";
/// The machine, and its image.
const MACHINE: &str = "switch";
const MEMORY_BYTES: u64 = 128 << 20;
const ROUNDS: usize = 10;
/// How long each is done at a time, in seconds.
const RUN_S: u64 = 1;
/// Longest time for the guest to answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// KiB that each process touches between two switches.
const TOUCHED_KIB: [usize; 3] = [0, 16, 64];

/// Runs the program with these words, somewhere, and returns what it says.
type Runs<'a> = dyn Fn(&str) -> anyhow::Result<String> + 'a;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("switch", context.quick);
    let dir = context.scratch.join("guest");
    let guest = guest_with(&dir, NAME, PROGRAM)?;
    let program = dir.join("root/bin").join(NAME);
    let node = Node::start_with(None, &context.scratch.join("node"), &[])?;
    node.import_with(&guest, MACHINE, MEMORY_BYTES, 1)?;
    node.boot(MACHINE, MACHINE)?;
    let core = first_core()?;
    let here = |words: &str| on_host(&program, &core, words);
    let there = |words: &str| said(&node, MACHINE, &format!("{NAME} {words}"), PATIENCE);
    let places: [&Runs<'_>; 2] = [&there, &here];
    let rounds = context.pick(ROUNDS, 1);
    for kib in TOUCHED_KIB {
        let us = in_turn(rounds, places, |runs| switch_us(runs, kib))?;
        add(&mut report, "switch", &format!("_{kib}kib"), &us);
    }
    let us = in_turn(rounds, places, |runs| each_us(runs, "call", 0))?;
    add(&mut report, "call", "", &us);
    report.note(format!(
        "a guest with one processor, {}; on the host both processes have one processor to themselves; each process touches so many KiB between \
         two switches",
        floe_testbed::guest::accelerator()
    ));
    Ok(report)
}

/// Measures something in the guest and on the host in turn.
fn in_turn(
    rounds: usize,
    places: [&Runs<'_>; 2],
    measure: impl Fn(&Runs<'_>) -> anyhow::Result<f64>,
) -> anyhow::Result<[Samples; 2]> {
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..rounds {
        for (samples, runs) in samples.iter_mut().zip(places) {
            samples.push(measure(runs)?);
        }
    }
    Ok(samples)
}

/// Adds what something takes in the guest, and how many times as long as on the host that is.
fn add(report: &mut Report, name: &str, of: &str, [guest, host]: &[Samples; 2]) {
    report
        .add(&format!("{name}_over_host{of}"), "x", &guest.over(host))
        .against("on the host", "us", host.median());
    report
        .add(&format!("{name}_us{of}"), "us", guest)
        .against("on the host", "us", host.median());
}

/// Returns how long one switch takes, in microseconds.
fn switch_us(runs: &Runs<'_>, kib: usize) -> anyhow::Result<f64> {
    let (pair, alone) = (each_us(runs, "pair", kib)?, each_us(runs, "alone", kib)?);
    of_pair(pair, alone)
}

/// Returns how long a switch takes of which a round trip has two, besides twice what one process does alone.
fn of_pair(pair_us: f64, alone_us: f64) -> anyhow::Result<f64> {
    let us = pair_us / 2.0 - alone_us;
    ensure!(
        us > 0.0,
        "a round trip of {pair_us:.2} us, and {alone_us:.2} us alone: that leaves nothing for switches. Measure on a quiet host"
    );
    Ok(us)
}

/// Returns how long the program takes to do something once, in microseconds.
fn each_us(runs: &Runs<'_>, what: &str, kib: usize) -> anyhow::Result<f64> {
    let said = runs(&format!("{what} {RUN_S} {kib}"))?;
    Ok(1.0 / rate(&said, what)?)
}

/// Runs the program on one core of this host.
fn on_host(program: &Path, core: &str, words: &str) -> anyhow::Result<String> {
    let done = Command::new("taskset")
        .args(["-c", core])
        .arg(program)
        .args(words.split(' '))
        .output()
        .context("taskset (util-linux) is missing")?;
    let said = String::from_utf8_lossy(&done.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix('@'));
    let errors = String::from_utf8_lossy(&done.stderr);
    let line = line.with_context(|| format!("{NAME} {words} said nothing: {errors}"))?;
    Ok(line.to_owned())
}

/// Returns the number of the first core that this process may use.
fn first_core() -> anyhow::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let core =
        first_of(&status).context("/proc/self/status does not tell the cores that may be used")?;
    Ok(core.to_owned())
}

/// The same, of the text of /proc/self/status.
fn first_of(status: &str) -> Option<&str> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim()
        .split(['-', ','])
        .next()
        .filter(|core| !core.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_half_of_a_round_trip_without_what_each_does_itself() {
        // 2 us of reading and writing for each of two processes, and two switches of 3 us
        let us = of_pair(2.0 * 2.0 + 2.0 * 3.0, 2.0).unwrap();
        assert!((us - 3.0).abs() < 1e-9);
        assert!(of_pair(4.0, 2.0).is_err());
    }

    #[test]
    fn the_guest_and_the_host_are_measured_in_turn() {
        let there = |words: &str| anyhow::Ok(format!("{} 4 100", &words[..4]));
        let here = |words: &str| anyhow::Ok(format!("{} 10 100", &words[..4]));
        let us = in_turn(3, [&there, &here], |runs| each_us(runs, "call", 0)).unwrap();
        let [guest, host] = us.map(|us| us.values().to_vec());
        assert_eq!((guest, host), (vec![25.0; 3], vec![10.0; 3]));
    }

    #[test]
    fn the_first_core_is_the_first_of_the_list() {
        for (list, first) in [
            ("0-1", Some("0")),
            ("3", Some("3")),
            ("2,5-7", Some("2")),
            ("", None),
        ] {
            let status = format!("Name:\tx\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
            assert_eq!(first_of(&status), first);
        }
    }
}

//! `isolation`: what a second machine on a weak device costs the first one, although it does nothing: forks, programs that are executed, a
//! byte over TCP and back, and OpenSSL, in a guest that is alone and beside an idle one, in turn (AMPhone, section 5.5, whose overheads are
//! those of one virtual phone over none).
use super::io::{CpuCap, DEVICE_PERCENT};
use anyhow::{Context as _, ensure};
use floe_api::{ImportFormat, ImportRequest, StartRequest};
use floe_testbed::guest::{Guest, compile};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{Node, import_request};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The machine that is measured.
const PERSONAL: &str = "personal";
/// The one that does nothing.
const COMPANY: &str = "company";
/// The image of both.
const IMAGE: &str = "guest";
const MEMORY_BYTES: u64 = 512 << 20;
/// The program that hands bytes over TCP, and where it is in the guest.
const TCP: &str = include_str!("../../lab/guests/tcp.rs");
const TCP_PATH: &str = "/usr/local/bin/floe-tcp";
/// The disk that brings it is a multiple of so many bytes.
const DISK_STEP_BYTES: u64 = 1 << 20;
/// How long each kind of work takes once it was found out how much of it that is, in seconds.
const WORK_S: f64 = 6.0;
/// A probe that takes less, in seconds, tells nothing.
const PROBE_S: f64 = 1.0;
/// Longest time for a command of the guest.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// How long both machines are left alone after one of them was parked or woken.
const SETTLE: Duration = Duration::from_secs(5);

/// A kind of work, of which so many units are done at a time.
struct Kind {
    name: &'static str,
    /// How many units are tried first.
    probe: u64,
    command: fn(u64) -> String,
}

/// What is measured. A shell forks for its parentheses, and executes what it has not built in.
const KINDS: [Kind; 4] = [
    Kind {
        name: "fork",
        probe: 20,
        command: |units| shell(units, "( : )"),
    },
    Kind {
        name: "exec",
        probe: 10,
        command: |units| shell(units, "/bin/true"),
    },
    Kind {
        name: "tcp",
        probe: 200,
        command: |units| format!("{TCP_PATH} {units}"),
    },
    Kind {
        name: "openssl",
        probe: 1,
        command: |units| format!("head -c {units}m /dev/zero | openssl dgst -sha512 >/dev/null"),
    },
];

/// Returns a command that does something so many times in one shell.
fn shell(units: u64, what: &str) -> String {
    format!("sh -c 'n=0; while [ $n -lt {units} ]; do {what}; n=$((n+1)); done'")
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("isolation", context.quick);
    let device = Device::new(&context.scratch)?;
    let work_s = context.pick(WORK_S, PROBE_S);
    let mut units = Vec::new();
    for kind in &KINDS {
        units.push(device.units(kind, work_s)?);
    }
    let rounds = context.pick(16, 2);
    let each_s = work_s * KINDS.len() as f64 + SETTLE.as_secs_f64();
    eprintln!(
        "isolation: {rounds} rounds of two times {each_s:.0} s: some {:.0} minutes",
        (2 * rounds) as f64 * each_s / 60.0
    );
    let mut took = vec![[Samples::default(), Samples::default()]; KINDS.len()];
    for round in 0..rounds {
        // each comes first as often as second, and nothing changes from one round to the next
        for beside in turns(round) {
            device.second(beside)?;
            for ((kind, units), took) in KINDS.iter().zip(&units).zip(&mut took) {
                let seconds = device.does(kind, *units)?;
                took[usize::from(beside)].push(seconds);
            }
        }
    }
    for (kind, [alone, beside]) in KINDS.iter().zip(&took) {
        report
            .add(
                &format!("{}_over_alone", kind.name),
                "x",
                &beside.over(alone),
            )
            .against("without the second machine", "s", alone.median());
    }
    let each: Vec<String> = KINDS
        .iter()
        .zip(&units)
        .map(|(kind, units)| format!("{units} of {}", kind.name))
        .collect();
    report.note(format!(
        "two Debian guests of one CPU, {}; the device has {DEVICE_PERCENT} % of a core for both and its node; in each run the same work: {} \
         (openssl: MiB of SHA-512); without the second machine: it is parked",
        floe_testbed::guest::accelerator(),
        each.join(", ")
    ));
    Ok(report)
}

/// Returns whether the second machine is there, for both halves of a round.
fn turns(round: usize) -> [bool; 2] {
    match round % 2 {
        0 => [false, true],
        _ => [true, false],
    }
}

/// A weak device with two machines.
struct Device {
    node: Node,
    /// Dropped after the node, whose processes it has.
    cap: CpuCap,
}

impl Device {
    /// Boots both machines, puts the program into the first one, and takes most of the processor away.
    fn new(scratch: &Path) -> anyhow::Result<Device> {
        let guest = Guest::debian()?;
        let (disk, bytes) = disk_with_program(scratch)?;
        let node = Node::start(None, &scratch.join("device"), false)?;
        let mut request = ImportRequest {
            memory_bytes: Some(MEMORY_BYTES),
            cpus: Some(1),
            format: Some(ImportFormat::Raw),
            ..import_request(&guest, IMAGE, guest.cmdline()?)
        };
        request.disks.push(disk.display().to_string());
        node.client.import(&request)?.finish(|_| {})?;
        for machine in [PERSONAL, COMPANY] {
            node.boot(IMAGE, machine)?;
        }
        let install = format!(
            "head -c {bytes} /dev/vdb >{TCP_PATH} && chmod 755 {TCP_PATH} && {TCP_PATH} 10"
        );
        node.tell(PERSONAL, &install, ANSWER_MAX)?;
        let cap = CpuCap::new(scratch, node.process()?, DEVICE_PERCENT)?;
        let device = Device { node, cap };
        for machine in [PERSONAL, COMPANY] {
            device.bound(machine)?;
        }
        Ok(device)
    }

    /// Puts a machine's QEMU under the device's quota.
    fn bound(&self, machine: &str) -> anyhow::Result<()> {
        let qemu = self.node.machine(machine)?.pid;
        self.cap
            .add(qemu.with_context(|| format!("{machine} has no QEMU"))?)
    }

    /// Has the second machine there, idle, or parked.
    fn second(&self, there: bool) -> anyhow::Result<()> {
        let runs = self.node.machine(COMPANY)?.pid.is_some();
        if there == runs {
            return Ok(());
        }
        let client = &self.node.client;
        match there {
            true => {
                let request = StartRequest::default();
                client.wake(COMPANY, &request)?.finish(|_| {})?;
                self.bound(COMPANY)?;
                self.node.ask(COMPANY, ANSWER_MAX)?;
            }
            false => {
                client.park(COMPANY, &Default::default())?.finish(|_| {})?;
                let left = self.node.machine(COMPANY)?.pid;
                ensure!(left.is_none(), "{COMPANY} is parked and has a QEMU");
            }
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Returns how long the first machine takes for so many units, in seconds.
    fn does(&self, kind: &Kind, units: u64) -> anyhow::Result<f64> {
        let command = (kind.command)(units);
        let took = self.node.tell(PERSONAL, &command, ANSWER_MAX)?;
        Ok(took.as_secs_f64())
    }

    /// Returns how many units of work take so long.
    fn units(&self, kind: &Kind, seconds: f64) -> anyhow::Result<u64> {
        let mut units = kind.probe;
        loop {
            let took = self.does(kind, units)?;
            if took >= PROBE_S {
                return Ok(((units as f64 * seconds / took).round() as u64).max(1));
            }
            units *= 4;
        }
    }
}

/// Compiles the program and makes a disk that begins with it. Returns the disk, and how many bytes of it are the program.
fn disk_with_program(scratch: &Path) -> anyhow::Result<(PathBuf, u64)> {
    let (source, disk) = (scratch.join("tcp.rs"), scratch.join("tcp.raw"));
    fs::write(&source, TCP)?;
    compile(&source, &disk)?;
    let bytes = fs::metadata(&disk)?.len();
    File::options()
        .write(true)
        .open(&disk)?
        .set_len(bytes.next_multiple_of(DISK_STEP_BYTES))?;
    Ok((disk, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_comes_first_as_often_as_second_and_nothing_changes_between_rounds() {
        let all: Vec<[bool; 2]> = (0..6).map(turns).collect();
        assert_eq!(all.iter().filter(|halves| halves[0]).count(), 3);
        assert!(all.windows(2).all(|rounds| rounds[0][1] == rounds[1][0]));
    }

    #[test]
    fn a_command_does_as_much_as_it_is_told() {
        let commands: Vec<String> = KINDS.iter().map(|kind| (kind.command)(12)).collect();
        assert_eq!(
            commands[0],
            "sh -c 'n=0; while [ $n -lt 12 ]; do ( : ); n=$((n+1)); done'"
        );
        assert!(
            commands[1].contains("-lt 12 ]; do /bin/true;"),
            "{}",
            commands[1]
        );
        assert_eq!(commands[2], "/usr/local/bin/floe-tcp 12");
        assert!(commands[3].starts_with("head -c 12m "), "{}", commands[3]);
    }
}

//! `floe top`: shows the machines of this node and how they stream, every second.

use std::collections::HashMap;
use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::error::CliError;
use super::output::{bytes, table, word};
use super::terminal::{self, Screen};
use super::{Context, sched, stream};
use floe_api::client::Client;
use floe_api::{MachineInfo, MachineStatus, SchedMachine, StreamInfo};

/// How often the figures are read.
const EVERY: Duration = Duration::from_secs(1);
/// Time between the two readings of `--once`: rates are differences.
const ONCE_EVERY: Duration = Duration::from_millis(500);
/// Unit of times in /proc: Linux shows hundredths of a second to programs on every architecture that floe runs on.
const TICKS_PER_S: u64 = 100;
/// The byte that Ctrl-C sends in raw mode.
const INTERRUPT: u8 = 3;

/// Watch the machines of this node: rates, misses, what is buffered, pauses
#[derive(Debug, Args)]
#[command(after_help = "\
Example: q or Ctrl-C leaves
  floe top
Example: for scripts
  floe top --once
  floe top --json | jq -c '.machines[] | [.name, .misses]'

  RATE   what arrives now        MISSES  first touches of chunks that were not here, of all
  RATIO  chunks fetched for each chunk touched
  AHEAD  chunks fetched and not touched yet, of those that the model of earlier runs expects
  STACKED, LAG, STEAL  how its vCPUs share the host's cores: floe sched status says more")]
pub struct Top {
    /// Show it once and end
    #[arg(long)]
    once: bool,
}

/// One reading of all figures.
#[derive(Debug, Serialize)]
struct Look {
    machines: Vec<Row>,
}

/// The figures of one machine.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    image: String,
    /// Percent of one CPU; absent if unknown.
    cpu_percent: Option<f64>,
    /// Bytes that arrive per second.
    arriving_bytes_s: f64,
    #[serde(flatten)]
    stream: StreamInfo,
    /// How its vCPUs fare; absent from a node that does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    sched: Option<SchedMachine>,
}

/// Figures of an earlier reading, for comparison.
#[derive(Default)]
struct Before {
    at: Option<Instant>,
    /// CPU seconds and fetched bytes by machine.
    sums: HashMap<String, (Option<f64>, u64)>,
}

impl Top {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let mut before = Before::default();
        if !self.once && !cx.out.json && !is_terminal() {
            return Err(CliError::usage(
                "floe top needs a terminal",
                "use --once or --json in scripts",
            ));
        }
        let look = || look(&client, &mut before);
        watch(cx, self.once, "floe top: q leaves", look, text)
    }
}

fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Shows what `look` returns: once, after a first look to compare with; or every second until the user leaves, on a terminal below a title.
pub(super) fn watch<T: Serialize>(
    cx: &Context,
    once: bool,
    title: &str,
    mut look: impl FnMut() -> Result<T, CliError>,
    text: fn(&T) -> String,
) -> Result<(), CliError> {
    if once {
        look()?;
        // the time over which the figures are taken
        std::thread::sleep(ONCE_EVERY);
        return cx.out.value(&look()?, text);
    }
    if cx.out.json || !is_terminal() {
        loop {
            cx.out.value(&look()?, text)?;
            // how often the figures are shown
            std::thread::sleep(EVERY);
        }
    }
    let no_terminal = |e| CliError::failed("cannot draw on the terminal", e);
    let screen = Screen::enter().map_err(no_terminal)?;
    loop {
        let next = Instant::now() + EVERY;
        // if the node is being replaced, an error is shown instead
        let shown = match look() {
            Ok(seen) => text(&seen),
            Err(error) => format!("{}\n", error.0.message),
        };
        let (width, height) = terminal::size();
        let text = format!("{title}\n\n{shown}");
        screen.show(&text, width, height).map_err(no_terminal)?;
        if wants_to_leave(next).map_err(no_terminal)? {
            return Ok(());
        }
    }
}

/// Reads keys until the given time. Returns true if one of them means to leave.
fn wants_to_leave(until: Instant) -> std::io::Result<bool> {
    let mut stdin = std::io::stdin();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut keyboard = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut keyboard, Some(&left)) {
            Ok(0) => return Ok(false),
            // the window's size has changed
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let mut keys = [0; 64];
        let read = stdin.read(&mut keys)?;
        // a terminal that is gone means to leave as well
        if read == 0
            || keys[..read]
                .iter()
                .any(|key| [b'q', b'Q', INTERRUPT].contains(key))
        {
            return Ok(true);
        }
    }
}

fn look(client: &Client, before: &mut Before) -> Result<Look, CliError> {
    let now = Instant::now();
    let passed = before.at.map(|at| now.duration_since(at).as_secs_f64());
    let mut sums = HashMap::new();
    let mut machines = Vec::new();
    // an older node does not know the question
    let vcpus = client.sched().map_or_else(|_| vec![], |told| told.machines);
    for machine in client.machines()?.machines {
        // the machine was removed just now
        let Ok(stream) = client.stream_info(&machine.name) else {
            continue;
        };
        let cpu_s = machine.pid.and_then(cpu_seconds);
        let then = before.sums.get(&machine.name);
        let sched = vcpus.iter().find(|one| one.name == machine.name).cloned();
        machines.push(Row {
            sched,
            ..row(&machine, stream.clone(), cpu_s, then, passed)
        });
        sums.insert(machine.name, (cpu_s, stream.fetched_bytes));
    }
    *before = Before {
        at: Some(now),
        sums,
    };
    Ok(Look { machines })
}

fn row(
    machine: &MachineInfo,
    stream: StreamInfo,
    cpu_s: Option<f64>,
    then: Option<&(Option<f64>, u64)>,
    passed_s: Option<f64>,
) -> Row {
    let passed_s = passed_s.filter(|s| *s > 0.0);
    let cpu = || {
        let used = (cpu_s? - (then?.0)?).max(0.0);
        Some(100.0 * used / passed_s?)
    };
    let arriving = || {
        let came = stream.fetched_bytes.saturating_sub(then?.1);
        Some(came as f64 / passed_s?)
    };
    Row {
        name: machine.name.clone(),
        image: machine.image_name.clone(),
        cpu_percent: cpu(),
        arriving_bytes_s: arriving().unwrap_or(0.0),
        stream,
        sched: None,
    }
}

/// Returns the CPU time of a process of this host, user's and system's.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_cpu_seconds(&stat, TICKS_PER_S)
}

/// Parses fields 14 and 15 of proc(5)'s stat; the name before them may contain anything, including brackets.
fn parse_cpu_seconds(stat: &str, ticks_per_s: u64) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / ticks_per_s.max(1) as f64)
}

fn text(seen: &Look) -> String {
    let row = |row: &Row| {
        let s = &row.stream;
        let name = match (s.state, s.buffering) {
            (MachineStatus::Buffering, Some(wait)) => format!("buffering, {:.0} s", wait.eta_s),
            (state, _) => word(&state),
        };
        let ahead = match s.planned_chunks {
            0 => "-".into(),
            planned => format!("{:.0} %", 100.0 * s.buffered_chunks as f64 / planned as f64),
        };
        let [stacked, lag, steal] = sched::figures(row.sched.as_ref());
        vec![
            row.name.clone(),
            name,
            row.cpu_percent
                .map_or_else(|| "-".into(), |cpu| format!("{cpu:.0} %")),
            stream::rate(row.arriving_bytes_s),
            bytes(s.fetched_bytes),
            format!("{} of {}", s.misses, s.touched),
            format!("{:.2}", s.fetch_ratio),
            ahead,
            format!("{} ({:.1} s)", s.pauses, s.paused_s),
            stacked,
            lag,
            steal,
        ]
    };
    table(
        &[
            "NAME", "STATE", ">CPU", ">RATE", ">FETCHED", ">MISSES", ">RATIO", ">AHEAD", ">PAUSES",
            ">STACKED", ">LAG", ">STEAL",
        ],
        seen.machines.iter().map(row),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::stream::tests::info;
    use super::*;
    use floe_api::Buffering;

    pub fn machine() -> MachineInfo {
        MachineInfo {
            name: "web".into(),
            status: MachineStatus::Running,
            detail: String::new(),
            image: "ab".repeat(32),
            image_name: "debian".into(),
            restored: true,
            pid: None,
            memory_bytes: 1 << 30,
            cards: Vec::new(),
            disks: Vec::new(),
            cpus_max: 8,
            memory_bytes_max: 0,
            memory_unused_bytes: 0,
            cpus: 1,
            accel: "tcg".into(),
            forwards: Vec::new(),
            created_unix_s: 0,
            sources: Vec::new(),
            cloned: None,
            network: None,
            allow_host: Default::default(),
            limits: Default::default(),
            park_after_s: None,
            no_trim: false,
            stats: Default::default(),
            paused_for: Vec::new(),
            switched_off: false,
            remove: false,
            restart: Default::default(),
            restarts: 0,
            independence: None,
            ensemble: None,
            moves: None,
        }
    }

    #[test]
    fn rates_are_differences_between_two_looks() {
        let then = (Some(10.0), (10 << 20) - 450_000);
        let row = row(&machine(), info(), Some(10.25), Some(&then), Some(0.5));
        assert_eq!(row.cpu_percent, Some(50.0));
        assert_eq!(row.arriving_bytes_s, 900_000.0);
        let sched = SchedMachine {
            steal_pct: Some(62.0),
            ..Default::default()
        };
        let row = Row {
            sched: Some(sched),
            ..row
        };
        let shown = text(&Look {
            machines: vec![row],
        });
        for part in [
            "62 %",
            "web",
            "running",
            "50 %",
            "7.2 Mbit/s",
            "7 of 1000",
            "1.23",
            "25 %",
            "2 (3.2 s)",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn the_first_look_and_a_machine_without_a_process_have_no_rates() {
        let row = row(&machine(), info(), None, None, None);
        assert_eq!((row.cpu_percent, row.arriving_bytes_s), (None, 0.0));
    }

    #[test]
    fn a_machine_that_buffers_says_for_how_long() {
        let paused = StreamInfo {
            state: MachineStatus::Buffering,
            buffering: Some(Buffering {
                missing_bytes: 1 << 20,
                eta_s: 3.6,
            }),
            planned_chunks: 0,
            ..info()
        };
        let row = row(&machine(), paused, None, None, None);
        let shown = text(&Look {
            machines: vec![row],
        });
        assert!(shown.contains("buffering, 4 s"), "{shown}");
    }

    #[test]
    fn cpu_time_is_read_behind_whatever_name() {
        let stat = "12 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(parse_cpu_seconds(stat, 100), Some(2.0));
        assert_eq!(parse_cpu_seconds("12 (x", 100), None);
        assert!(cpu_seconds(std::process::id()).is_some());
    }
}

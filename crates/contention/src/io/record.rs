//! `floe-lab record-launches`: makes the records that `io` replays. Programs are launched in a real desktop guest, by keys and by a shell; its QEMU traces
//! each request of its disk, when it came and when it was done; the guest's own kernel traces who asked.
//!
//! Everything is done twice: the second time is recorded, after the guest has forgotten what it has read (of warm launches, as much of it as
//! it had no room for). The disk is in this host's memory then, and what passes between an answer and the next request is the guest's own
//! computing. How many times longer an emulated guest computes than this host is measured by the same loop of the same shell in both.

use anyhow::{Context as _, bail};
use floe_testbed::guest::{Guest, READY};
use floe_testbed::launch::{self, NOBODY, Recording, noted, recorded, traced};
use floe_testbed::workloads::Session;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where records stand in the repository.
pub const DIR: &str = "lab/launches";
/// Longest time for anything that a guest is told to do, and for its QEMU to begin.
const PATIENCE: Duration = Duration::from_secs(400);
const START_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the guest looks for a window, once a second.
const LOOKS: u32 = 60;
/// Time for a window to be drawn, and for what a program does after that.
const DRAWN: Duration = Duration::from_secs(3);
/// How often the loop goes round that tells how fast a shell computes.
const ROUNDS: u32 = 100_000;
/// Times that a launch is done: the last one is recorded.
const TIMES: usize = 2;
/// What QEMU traces.
const TRACED: [&str; 3] = [
    "virtio_blk_handle_read",
    "virtio_blk_handle_write",
    "virtio_blk_req_complete",
];

/// What the guest's kernel traces, from its first second on, and where it does so.
const EVENT: &str = "block:block_bio_queue";
const TRACING: &str = "/sys/kernel/tracing";
/// Lines of that which the guest prints at a time: what is remembered of its console has room for twice as many.
const LINES: usize = 200;

/// How something is launched.
#[derive(Clone, Copy)]
enum How {
    /// By this key, together with Ctrl and Alt; then a window of this class is there.
    Key(&'static str, &'static str),
    /// By this command of a shell that goes on; then a window of this class is there.
    Starts(&'static str, &'static str),
    /// By this command of a shell, which ends.
    Runs(&'static str),
    /// By typing this address into the browser, which is started before.
    Page(&'static str),
}

/// What is recorded: a viewer, a browser, a player, a compiler, a shell, games, pictures; commands, pages, and five of the programs once more.
const ALL: &[(&str, How)] = &[
    ("xpdf", How::Key("d", "xpdf")),
    ("netsurf", How::Key("b", "netsurf")),
    ("xterm", How::Key("t", "xterm")),
    ("mines", How::Key("m", "sgt-mines")),
    (
        "mplayer",
        How::Starts("mplayer -ao null -vo x11 /root/video/zoom.avi", "mplayer"),
    ),
    ("feh", How::Starts("feh -Z /root/gallery/03/05.png", "feh")),
    (
        "gcc",
        How::Runs("gcc -std=gnu99 -O0 -c /usr/src/project/src/lapi.c -o /dev/null"),
    ),
    ("command-ls", How::Runs("ls -la /etc /usr/lib > /dev/null")),
    ("command-python", How::Runs("python3 -c pass")),
    ("command-sort", How::Runs("sort /etc/services > /dev/null")),
    (
        "command-grep",
        How::Runs("grep -c root /etc/passwd > /dev/null"),
    ),
    ("page-tutorial", How::Page("tutorial/index")),
    ("page-functions", How::Page("library/functions")),
    ("page-stdtypes", How::Page("library/stdtypes")),
    ("page-os", How::Page("library/os")),
    ("page-sqlite3", How::Page("library/sqlite3")),
    ("page-datamodel", How::Page("reference/datamodel")),
    ("page-grammar", How::Page("reference/grammar")),
    ("page-regex", How::Page("howto/regex")),
    ("page-object", How::Page("c-api/object")),
    ("page-whatsnew", How::Page("whatsnew/3.11")),
    ("warm-xpdf", How::Key("d", "xpdf")),
    ("warm-netsurf", How::Key("b", "netsurf")),
    ("warm-xterm", How::Key("t", "xterm")),
    (
        "warm-mplayer",
        How::Starts("mplayer -ao null -vo x11 /root/video/zoom.avi", "mplayer"),
    ),
    (
        "warm-feh",
        How::Starts("feh -Z /root/gallery/03/05.png", "feh"),
    ),
];
/// How the names of launches begin that come after the program was used: the guest has forgotten what it had no room for since then.
pub const WARM: &str = "warm-";
/// What it reads in between, as a backup would: more than it has memory.
const OTHER: &str = "dd if=/dev/vda of=/dev/null bs=1M count=600";
/// The record of a boot.
pub const BOOT: &str = "boot";

/// Record launches of real programs in a real guest, which floe-lab io replays
#[derive(clap::Args)]
#[command(after_help = "\
Example: all of them, into the repository (half an hour; needs the desktop guest)
  floe-lab record-launches
Example: two of them, somewhere else
  floe-lab record-launches --only xpdf,boot --out DIRECTORY")]
pub struct Arguments {
    /// Record these alone
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = names())]
    only: Vec<String>,
    /// Directory of the records, one file each
    #[arg(long, value_name = "DIR", default_value = DIR)]
    out: PathBuf,
    /// A guest built by guests/build instead of the desktop one
    #[arg(long, value_name = "DIR")]
    guest: Option<PathBuf>,
    /// Directory for the guest's QEMU and what it traces, which stays (default: one that is removed)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
}

fn names() -> Vec<&'static str> {
    let programs = ALL.iter().map(|(name, _)| *name);
    programs.chain([BOOT]).collect()
}

impl Arguments {
    /// Returns the directory for the guest's QEMU, if the user has named one.
    pub fn work(&self) -> Option<&Path> {
        self.work.as_deref()
    }

    /// Records.
    pub fn run(&self, work: &Path) -> anyhow::Result<ExitCode> {
        let guest = match &self.guest {
            Some(dir) => Guest::at(dir)?,
            None => Guest::desktop()?,
        };
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let mut recorder = Recorder {
            out: &self.out,
            slowdown: 1.0,
            machine: Machine::start(&guest, work)?,
        };
        let mut session = recorder.boot(wanted(BOOT).then_some((&guest, work)))?;
        session.type_line("floe-screen &")?;
        session.expect("floe-screen ready", PATIENCE)?;
        session.input.wake()?;
        for (name, how) in ALL.iter().filter(|(name, _)| wanted(name)) {
            recorder.program(&mut session, name, *how)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A guest in a QEMU that traces its disk's requests. Dropping it ends it.
struct Machine {
    child: Child,
    serial: PathBuf,
    monitor: PathBuf,
    trace: PathBuf,
    began_us: u64,
}

impl Machine {
    /// Starts one with a disk of its own over the guest's.
    fn start(guest: &Guest, dir: &Path) -> anyhow::Result<Machine> {
        std::fs::create_dir_all(dir)?;
        let (serial, monitor) = (dir.join("serial"), dir.join("qmp"));
        let trace = dir.join("trace");
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-nodefaults", "-display", "none", "-vga", "std"]);
        command.args(["-machine", "pc-q35-7.2", "-cpu", "Nehalem"]);
        command.args(["-accel", "tcg", "-m", "512M", "-smp", "1"]);
        command.arg("-kernel").arg(guest.kernel());
        command.arg("-initrd").arg(guest.initrd());
        let line = format!("{} trace_event={EVENT}", guest.cmdline()?);
        command.args(["-append", &line]);
        command.args(["-serial", &socket(&serial), "-qmp", &socket(&monitor)]);
        let disk = guest.disk();
        let drive = format!("file={},if=virtio,format=raw,snapshot=on", disk.display());
        // what it writes is beside the guest's disk, not in it
        command.args(["-drive", &drive]).env("TMPDIR", dir);
        command.args(["-msg", "timestamp=on", "-D"]).arg(&trace);
        command.args(TRACED.iter().flat_map(|event| ["-trace", event]));
        let log = std::fs::File::create(dir.join("log"))?;
        let began_us = unix_us()?;
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().context("cannot start qemu-system-x86_64")?;
        Ok(Machine {
            child,
            serial,
            monitor,
            trace,
            began_us,
        })
    }

    /// Connects to it as soon as its sockets are there.
    fn attach(&mut self) -> anyhow::Result<Session> {
        let start = Instant::now();
        loop {
            match Session::over(&self.serial, &self.monitor, 0) {
                Ok(session) => return Ok(session),
                Err(error) if self.child.try_wait()?.is_some() || start.elapsed() > START_MAX => {
                    bail!("the guest's QEMU does not answer: {error:#}");
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Recorder<'a> {
    out: &'a Path,
    slowdown: f64,
    machine: Machine,
}

impl Recorder<'_> {
    /// Waits until the guest has booted; where its boot is to be recorded, it boots once more, from a disk that is in this host's memory then.
    fn boot(&mut self, record: Option<(&Guest, &Path)>) -> anyhow::Result<Session> {
        let mut session = self.machine.attach()?;
        session.expect(READY, PATIENCE)?;
        if let Some((guest, work)) = record {
            drop(session);
            self.machine = Machine::start(guest, &work.join("again"))?;
            session = self.machine.attach()?;
            session.expect(READY, PATIENCE)?;
        }
        let until_us = unix_us()?;
        let asked = asked(&mut session)?;
        self.slowdown = slowdown(&mut session)?;
        eprintln!(
            "the guest computes {:.1} times longer than this host",
            self.slowdown
        );
        if record.is_some() {
            self.store(BOOT, (self.machine.began_us, until_us), &asked)?;
        }
        Ok(session)
    }

    /// Launches a program, twice.
    fn program(&self, session: &mut Session, name: &str, how: How) -> anyhow::Result<()> {
        let (mut within, mut told) = ((0, 0), String::new());
        for _ in 0..TIMES {
            if let How::Page(_) = how {
                begin(session, How::Key("b", "netsurf"))?;
                session.wait(DRAWN)?;
            }
            session.shell(forgets(name), PATIENCE)?;
            // what looks for windows is in the guest's memory then, and no part of the record
            session.window("no-such-window", 1)?;
            if let How::Page(page) = how {
                address(session, page)?;
            }
            let anew = format!("(cd {TRACING} && echo > trace && echo 1 > tracing_on)");
            session.shell(&anew, PATIENCE)?;
            let from_us = unix_us()?;
            begin(session, how).with_context(|| format!("launching {name}"))?;
            // a command is over when it has ended
            if !matches!(how, How::Runs(_)) {
                session.wait(DRAWN)?;
            }
            within = (from_us, unix_us()?);
            told = asked(session)?;
            end(session, how)?;
        }
        self.store(name, within, &told)
    }

    /// Stores what was asked for meanwhile; `told` is what the guest's kernel says of it.
    fn store(
        &self,
        name: &str,
        (input_us, until_us): (u64, u64),
        told: &str,
    ) -> anyhow::Result<()> {
        let trace = &self.machine.trace;
        let text = std::fs::read_to_string(trace);
        let text = text.with_context(|| format!("cannot read {}", trace.display()))?;
        let of = Recording {
            name,
            slowdown: (self.slowdown * 100.0).round() / 100.0,
            input_us,
            until_us,
        };
        let Some(script) = recorded(of, &noted(&text)?, &traced(told)) else {
            anyhow::ensure!(name.starts_with(WARM), "{name} has asked for nothing");
            eprintln!("{name}: the guest has forgotten nothing of it, and there is no record");
            return Ok(());
        };
        let programs = script.requests.iter().map(|request| &*request.program);
        let known = programs.clone().filter(|program| *program != NOBODY);
        let distinct: BTreeSet<&str> = known.clone().collect();
        anyhow::ensure!(
            !distinct.is_empty(),
            "{name}: the guest's kernel tells of no request who asked"
        );
        let seconds = (until_us - input_us) as f64 / 1e6;
        eprintln!(
            "{name}: {} requests in {seconds:.1} s, {} of them of {} programs",
            programs.count(),
            known.count(),
            distinct.len()
        );
        launch::store(self.out, &script)
    }
}

/// Returns what the guest's kernel has traced, which it stops to do.
fn asked(session: &mut Session) -> anyhow::Result<String> {
    // threads are traced with their processes from the first time on
    let stop = format!(
        "([ -e {TRACING}/trace ] || mount -t tracefs tracefs {TRACING}; cd {TRACING} && echo 0 > tracing_on && echo 1 > options/record-tgid)"
    );
    session.shell(&stop, PATIENCE)?;
    let (mut text, mut line) = (String::new(), 1);
    loop {
        let print = format!("tail -n +{line} {TRACING}/trace | head -n {LINES}");
        let part = session.output(&print, PATIENCE)?;
        if part.trim().is_empty() {
            return Ok(text);
        }
        text += &part;
        line += LINES;
    }
}

/// Returns the command by which the guest forgets what it has read: all, or what it has no room for.
fn forgets(name: &str) -> &'static str {
    match name.starts_with(WARM) {
        true => OTHER,
        false => "sync; echo 3 > /proc/sys/vm/drop_caches",
    }
}

/// Launches something and waits until it is there.
fn begin(session: &mut Session, how: How) -> anyhow::Result<()> {
    match how {
        How::Key(key, window) => {
            session.input.press(&["ctrl", "alt", key])?;
            anyhow::ensure!(session.window(window, LOOKS)?, "{window} has no window");
            Ok(())
        }
        How::Starts(command, window) => session.start(command, window),
        How::Runs(command) => session.shell(command, PATIENCE),
        How::Page(_) => session.input.press(&["ret"]),
    }
}

/// Types an address, which the next key opens.
fn address(session: &mut Session, page: &str) -> anyhow::Result<()> {
    session.input.press(&["ctrl", "l"])?;
    session.input.press(&["ctrl", "a"])?;
    let file = format!("file:///usr/share/doc/python3.11/html/{page}.html");
    session.input.text(&file)?;
    session.wait(DRAWN)
}

fn end(session: &mut Session, how: How) -> anyhow::Result<()> {
    match how {
        How::Key(..) | How::Page(_) => {
            session.input.press(&["alt", "f4"])?;
            session.wait(DRAWN)
        }
        How::Starts(..) => session.end_started(),
        How::Runs(_) => Ok(()),
    }
}

/// Returns how many times longer a shell computes in the guest than on this host.
fn slowdown(session: &mut Session) -> anyhow::Result<f64> {
    let round = format!("n=0; while [ $n -lt {ROUNDS} ]; do n=$((n+1)); done");
    let start = Instant::now();
    session.shell(&format!("sh -c '{round}'"), PATIENCE)?;
    let guest = start.elapsed();
    let start = Instant::now();
    let done = Command::new("sh").args(["-c", &round]).status()?;
    anyhow::ensure!(done.success(), "the shell of this host can't count");
    Ok((guest.as_secs_f64() / start.elapsed().as_secs_f64()).max(1.0))
}

fn unix_us() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_names_of_their_own_that_a_file_and_a_line_may_have() {
        let names = names();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len());
        for name in &names {
            assert!(
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                "{name}"
            );
        }
        let pages = ALL.iter().filter(|(name, _)| name.starts_with("page-"));
        assert_eq!(pages.count(), 10);
        // what is launched warm is launched cold as well
        let warm = names.iter().filter_map(|name| name.strip_prefix(WARM));
        let warm: Vec<&str> = warm.collect();
        assert!(warm.len() == 5 && warm.iter().all(|name| names.contains(name)));
    }
}

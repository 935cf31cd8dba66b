//! Keeps a leased machine from running for longer than its lease, whatever becomes of its node: a process of its own stops QEMU once the time
//! in a file is over, and lets it go on once there is a later one.
//!
//! The time is of a clock that goes on while the host sleeps. Who wakes first then, QEMU or its guard, nobody says: what a guest may do too
//! late is what it does in that moment.

use crate::{
    error::{NodeError, at},
    files::replace_file_soon,
};
use floe_threads::Ready;
use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    time::{ClockId, clock_gettime},
};
use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The file in a machine's directory that says until when it may run.
pub const LEASE_FILE: &str = "lease";
/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Where the kernel tells which start of the host this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The guards that this node has started, by the process ids of their QEMUs. Locks: itself, briefly.
#[derive(Default)]
pub struct Guards(Mutex<HashMap<u32, Child>>);

impl Guards {
    /// Has a guard look after a QEMU by the file in its machine's directory, unless one does.
    pub fn keep(&self, dir: &Path, qemu: u32) -> Result<(), NodeError> {
        let mut guards = self.0.lock();
        if guards.contains_key(&qemu) {
            return Ok(());
        }
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .arg("lease-guard")
                .arg(dir.join(LEASE_FILE))
                .arg(qemu.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                .spawn()
        });
        let guard = started.map_err(at("cannot start a guard"))?;
        guards.insert(qemu, guard);
        Ok(())
    }

    /// Forgets those that have ended.
    pub fn reap(&self) {
        let mut guards = self.0.lock();
        guards.retain(|_, guard| matches!(guard.try_wait(), Ok(None)));
    }
}

/// Milliseconds since the host was started, those included in which it slept.
pub fn boot_ms() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    (time.tv_sec as u64).saturating_mul(1000) + time.tv_nsec as u64 / 1_000_000
}

/// Writes down until when a machine may run. A power cut ends all that runs anyway.
pub fn write(dir: &Path, until_ms: u64) -> Result<(), NodeError> {
    let boot = fs::read_to_string(BOOT_ID).map_err(at(format!("cannot read {BOOT_ID}")))?;
    let text = format!("{} {until_ms}\n", boot.trim());
    replace_file_soon(&dir.join(LEASE_FILE), text.as_bytes())
}

/// Returns until when a machine may run; `None` if nothing is written of that.
pub fn read(file: &Path) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let boot = fs::read_to_string(BOOT_ID)?;
    Ok(Some(time_of(&text, boot.trim())))
}

/// Reads the file. What is of another start of the host, or no time, is over.
fn time_of(text: &str, boot: &str) -> u64 {
    let words = text.trim().split_once(' ');
    let until = words.filter(|(of, _)| *of == boot);
    let until = until.and_then(|(_, until)| until.parse().ok());
    until.unwrap_or_default()
}

/// Whether a process stands still by a signal, as a guard has it stand still. One that has ended does not.
pub fn is_stopped(pid: u32) -> bool {
    // there is none of one that has ended, and at worst it is stopped once more
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // its name may have spaces and parentheses
    let state = stat.rsplit_once(") ").map(|(_, state)| state);
    state.is_some_and(|state| state.starts_with('T'))
}

/// Guards a QEMU until it has ended, or the file is gone.
pub fn run(file: &Path, qemu: i32) -> io::Result<()> {
    // first: after the wait below its number may be another process's
    let qemu = Pid::from_raw(qemu).ok_or(io::ErrorKind::InvalidInput)?;
    let qemu = pidfd_open(qemu, PidfdFlags::empty())?;
    let lock = file.with_extension("lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(lock)?;
    // one that an earlier node has started guards on, and this one after it
    flock(&lock, FlockOperation::LockExclusive)?;
    let (mut until_ms, mut stopped) = (0, None);
    loop {
        match read(file) {
            Ok(None) => return Ok(()),
            Ok(Some(until)) => until_ms = until,
            Err(_) => {} // what was known last counts
        }
        let over = boot_ms() >= until_ms;
        if stopped != Some(over) {
            let signal = if over { Signal::STOP } else { Signal::CONT };
            pidfd_send_signal(&qemu, signal)?;
            stopped = Some(over);
        }
        let look = Instant::now() + LOOK_EVERY;
        if let Ready::Those(_) = floe_threads::ready(&[qemu.as_fd()], Some(look), None)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_another_start_of_the_host_or_none_is_over() {
        assert_eq!(time_of("b0 12345\n", "b0"), 12345);
        for text in ["b1 12345\n", "b0 x\n", "b0\n", "", "12345\n", "b0 -1\n"] {
            assert_eq!(time_of(text, "b0"), 0, "{text:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LEASE_FILE);
        assert_eq!(read(&file).unwrap(), None);
        write(dir.path(), 77).unwrap();
        assert_eq!(read(&file).unwrap(), Some(77));
        assert!(boot_ms() > 0);
    }

    #[test]
    fn a_process_is_stopped_while_its_lease_is_over_and_goes_on_when_it_is_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LEASE_FILE);
        write(dir.path(), u64::MAX).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let until = Instant::now() + crate::patience::PATIENCE;
        let becomes = |stopped: bool| {
            while is_stopped(child.id()) != stopped {
                assert!(Instant::now() < until, "it is to be stopped: {stopped}");
                std::thread::yield_now();
            }
        };
        let guarded = file.clone();
        let guard = floe_threads::spawn("guard", move || run(&guarded, pid)).unwrap();
        becomes(false);
        write(dir.path(), 1).unwrap();
        becomes(true);
        write(dir.path(), u64::MAX).unwrap();
        becomes(false);
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = guard.wait_until(Some(until), None);
        assert!(ended.come().is_some());
    }
}

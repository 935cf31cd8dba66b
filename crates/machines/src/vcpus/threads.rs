//! The threads of QEMUs as the kernel tells of them, and what can be done to them.

use floe_sched::cpu::user::{
    Action, CORES_MAX, CoreSet, Held, NiceStep, Outcome, ThreadId, ThreadSample,
};
use rustix::{
    process::{Pid, setpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{fs, io};

/// What `/proc/PID/task/TID/stat` tells that is of interest here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Clock ticks from the host's boot to its start (field 22).
    started: u64,
    /// Field 19.
    nice: i8,
    /// The core that it was on last (field 39).
    core: u16,
}

/// Parses proc(5)'s stat. The second field is a name that may contain spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // the first of them is field 3
    let field = |number: usize| fields.get(number - 3);
    Some(Stat {
        nice: field(19)?.parse().ok()?,
        started: field(22)?.parse().ok()?,
        core: field(39)?.parse().ok()?,
    })
}

/// Parses schedstat: nanoseconds that it has run and that it has waited for a core, and how often it was given one.
fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut fields = text.split_ascii_whitespace().map(str::parse);
    let mut next = || fields.next()?.ok();
    Some((next()?, next()?, next()?))
}

fn not_understood(file: &str) -> io::Error {
    io::Error::other(format!("{file} can't be understood"))
}

/// A thread is found under its own number, whatever process it is of; further below, figures are its own and not the process's.
fn dir(tid: u32) -> String {
    format!("/proc/{tid}/task/{tid}")
}

fn stat(tid: u32) -> io::Result<Stat> {
    let file = format!("{}/stat", dir(tid));
    let text = fs::read(&file)?;
    parse_stat(&String::from_utf8_lossy(&text)).ok_or_else(|| not_understood(&file))
}

fn number(tid: u32) -> io::Result<Pid> {
    let raw = i32::try_from(tid).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn allowed(tid: u32) -> io::Result<CoreSet> {
    let set = sched_getaffinity(Some(number(tid)?))?;
    let cores = 0..CORES_MAX.min(CpuSet::MAX_CPU);
    let cores = cores.filter(|core| set.is_set(*core));
    Ok(cores.map(|core| core as u16).collect())
}

fn allow(tid: u32, cores: &CoreSet) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(usize::from(core)));
    Ok(sched_setaffinity(Some(number(tid)?), &set)?)
}

/// Whether an error says that a thread has ended.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns what the kernel tells of a thread; `None` if it has ended.
pub(super) fn look(tid: u32) -> io::Result<Option<ThreadSample>> {
    let look = || {
        let stat = stat(tid)?;
        let file = format!("{}/schedstat", dir(tid));
        let sums = parse_schedstat(&fs::read_to_string(&file)?);
        let (run_ns, wait_ns, slices) = sums.ok_or_else(|| not_understood(&file))?;
        Ok(ThreadSample {
            id: ThreadId {
                tid,
                started: stat.started,
            },
            run_ns,
            wait_ns,
            slices,
            core: stat.core,
            allowed: allowed(tid)?,
            nice: stat.nice,
        })
    };
    match look() {
        Err(error) if is_gone(&error) => Ok(None),
        sample => sample.map(Some),
    }
}

/// Returns for how many nanoseconds the threads of a process have run together, and have waited for a core. Those that have ended do not
/// count.
pub fn run_and_wait_ns(pid: u32) -> io::Result<(u64, u64)> {
    let (mut run, mut wait) = (0u64, 0u64);
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let file = thread?.path().join("schedstat");
        let text = match fs::read_to_string(&file) {
            Err(error) if is_gone(&error) => continue,
            text => text?,
        };
        let sums = parse_schedstat(&text);
        let (run_ns, wait_ns, _) =
            sums.ok_or_else(|| not_understood(&file.display().to_string()))?;
        run = run.saturating_add(run_ns);
        wait = wait.saturating_add(wait_ns);
    }
    Ok((run, wait))
}

/// Returns what becomes of a change, and logs what nobody expects.
fn outcome(done: io::Result<Outcome>, of: ThreadId) -> Outcome {
    match done {
        Ok(outcome) => outcome,
        Err(error) if is_gone(&error) => Outcome::Gone,
        // a lower nice value without the right to it is EACCES
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Outcome::Refused,
        Err(error) => {
            tracing::warn!(thread = of.tid, %error, "where a vCPU runs could not be changed");
            Outcome::Failed
        }
    }
}

fn pin(thread: ThreadId, expect: &CoreSet, to: &CoreSet) -> io::Result<Outcome> {
    if stat(thread.tid)?.started != thread.started {
        return Ok(Outcome::Gone);
    }
    if allowed(thread.tid)? != *expect {
        return Ok(Outcome::Changed);
    }
    allow(thread.tid, to)?;
    Ok(Outcome::Done)
}

fn renice(step: &NiceStep) -> io::Result<Outcome> {
    let now = stat(step.thread.tid)?;
    if now.started != step.thread.started {
        return Ok(Outcome::Gone);
    }
    if now.nice != step.expect {
        return Ok(Outcome::Changed);
    }
    setpriority_process(Some(number(step.thread.tid)?), i32::from(step.to))?;
    Ok(Outcome::Done)
}

/// Does what was decided. Returns how many steps were done before the outcome.
pub(super) fn carry_out(action: &Action) -> (usize, Outcome) {
    match action {
        Action::Pin {
            thread, expect, to, ..
        } => (0, outcome(pin(*thread, expect, to), *thread)),
        Action::Nice { steps, .. } => {
            for (done, step) in steps.iter().enumerate() {
                let outcome = outcome(renice(step), step.thread);
                if outcome != Outcome::Done {
                    return (done, outcome);
                }
            }
            (steps.len(), Outcome::Done)
        }
    }
}

/// Gives a thread back what it had before, whatever it has now. One that has ended needs nothing.
pub(super) fn restore(held: &Held) -> io::Result<()> {
    let tid = held.thread.tid;
    let restore = || {
        if stat(tid)?.started != held.thread.started {
            return Ok(());
        }
        if let Some(nice) = held.nice {
            setpriority_process(Some(number(tid)?), i32::from(nice))?;
        }
        if let Some(cores) = &held.allowed {
            allow(tid, cores)?;
        }
        Ok(())
    };
    match restore() {
        Err(error) if is_gone(&error) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_the_kernel_tells_is_read_behind_whatever_name() {
        let text = "12 (CPU 0/TCG) x) R 1 12 12 0 -1 4 98 0 0 0 5 6 0 0 20 -3 1 0 59790 3 4 18 1 1 0 0 0 0 0 0 0 0 0 0 17 6 0 0 0 0 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.started, stat.nice, stat.core), (59790, -3, 6));
        assert_eq!(parse_stat("12 (x) R 1"), None);
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_schedstat("5 6 7\n"), Some((5, 6, 7)));
        assert_eq!(parse_schedstat("5 6"), None);
        assert_eq!(parse_schedstat("5 -6 7"), None);
    }

    /// A thread that lives until the sender is dropped, and its number.
    fn thread() -> (u32, mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (end, ended) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(tid as u32).unwrap();
            let _ = ended.recv();
        });
        (told.recv().unwrap(), end, thread)
    }

    #[test]
    fn a_thread_gets_other_cores_and_its_own_back_and_nobody_is_mistaken_for_it() {
        let (tid, end, thread) = thread();
        let before = look(tid).unwrap().expect("it lives");
        let one: CoreSet = before.allowed.iter().take(1).collect();
        let action = |expect: CoreSet, to: CoreSet, id: ThreadId| Action::Pin {
            machine: 1,
            thread: id,
            expect,
            to,
        };
        let pin = action(before.allowed, one, before.id);
        assert_eq!(carry_out(&pin).1, Outcome::Done);
        assert_eq!(look(tid).unwrap().unwrap().allowed, one);
        if before.allowed != one {
            assert_eq!(carry_out(&pin).1, Outcome::Changed);
        }
        let other = ThreadId {
            started: before.id.started + 1,
            ..before.id
        };
        assert_eq!(carry_out(&action(one, one, other)).1, Outcome::Gone);
        let held = |thread: ThreadId| Held {
            thread,
            allowed: Some(before.allowed),
            nice: Some(before.nice),
        };
        restore(&held(other)).unwrap();
        assert_eq!(look(tid).unwrap().unwrap().allowed, one);
        restore(&held(before.id)).unwrap();
        assert_eq!(look(tid).unwrap().unwrap().allowed, before.allowed);
        drop(end);
        thread.join().unwrap();
        assert_eq!(look(tid).unwrap(), None);
        assert_eq!(carry_out(&pin).1, Outcome::Gone);
        restore(&held(before.id)).unwrap();
    }

    #[test]
    fn nice_values_change_in_their_order_until_one_cant_be_changed() {
        let (tid, end, thread) = thread();
        let id = look(tid).unwrap().unwrap().id;
        let nice = look(tid).unwrap().unwrap().nice;
        let step = |expect: i8, to: i8| NiceStep {
            thread: id,
            expect,
            to,
        };
        // whoever runs tests as nicely as can be has no value above
        let other = if nice < 19 { nice + 1 } else { nice - 1 };
        let steps = vec![step(nice, other), step(nice, 19), step(other, nice)];
        let action = Action::Nice { machine: 1, steps };
        let may = other > nice || rustix::process::geteuid().is_root();
        let (expected, then) = match may {
            true => ((1, Outcome::Changed), other),
            false => ((0, Outcome::Refused), nice),
        };
        assert_eq!(carry_out(&action), expected);
        assert_eq!(look(tid).unwrap().unwrap().nice, then);
        drop(end);
        thread.join().unwrap();
    }
}

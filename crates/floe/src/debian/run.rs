//! Runs a program of a build and hears what it writes to standard error. [`Stop`] ends the program with all processes that it started.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process_group};

use super::{BuildError, io};

/// How many of a program's last lines are shown when it fails.
const SAID_LINES_MAX: usize = 12;
/// How much of a line is kept, bytes.
const LINE_BYTES_MAX: usize = 400;

/// Tells a build to end. Any thread may do so while another runs the build's programs.
#[derive(Debug, Default)]
pub struct Stop(Mutex<Wish>);

#[derive(Debug, Default)]
struct Wish {
    stopped: bool,
    /// The process group of the program that runs.
    group: Option<Pid>,
}

impl Stop {
    /// Ends the program that runs, which cleans up, and lets none start any more.
    pub fn stop(&self) {
        let mut wish = self.wish();
        wish.stopped = true;
        if let Some(group) = wish.group {
            // if it has ended meanwhile, there is nothing to do
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Whether the build is to end.
    pub fn is_stopped(&self) -> bool {
        self.wish().stopped
    }

    fn wish(&self) -> std::sync::MutexGuard<'_, Wish> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts a program in a group of its own, unless the build is to end.
    fn start(&self, name: &str, command: &mut Command) -> Result<Child, BuildError> {
        let mut wish = self.wish();
        if wish.stopped {
            return Err(BuildError::Interrupted);
        }
        let child = command
            .process_group(0)
            .spawn()
            .map_err(io(format!("start {name}")))?;
        wish.group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(child)
    }
}

/// Runs a program to its end; `heard` gets each line that it writes to standard error.
pub fn watched(
    name: &'static str,
    command: &mut Command,
    stop: &Stop,
    heard: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = stop.start(name, command)?;
    let mut said = VecDeque::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = &line[..line.len().min(LINE_BYTES_MAX)];
            let line = String::from_utf8_lossy(line);
            let line = line.trim_end();
            heard(line);
            if said.len() == SAID_LINES_MAX {
                said.pop_front();
            }
            said.push_back(line.to_owned());
        }
    }
    let ended = {
        // No signal may go to the group once its leader is reaped: the number may be another's.
        let status = wait_unreaped(&child);
        let mut wish = stop.wish();
        wish.group = None;
        status.and_then(|()| child.wait())
    };
    let status = ended.map_err(io(format!("wait for {name}")))?;
    if stop.is_stopped() {
        return Err(BuildError::Interrupted);
    }
    if status.success() {
        return Ok(());
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    };
    let said: String = said.iter().map(|line| format!("\n  {line}")).collect();
    Err(BuildError::Program {
        program: name,
        how,
        said,
    })
}

/// Waits for a child's end, and leaves it to be reaped.
fn wait_unreaped(child: &Child) -> std::io::Result<()> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_fails_is_shown_with_its_last_words() {
        let mut lines = 0;
        let script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do echo line-$n >&2; done; exit 3";
        let failed = watched("sh", &mut shell(script), &Stop::default(), &mut |_| {
            lines += 1
        });
        let text = failed.unwrap_err().to_string();
        assert_eq!(lines, 14);
        assert!(
            text.starts_with("sh failed (exit code 3)\n  line-3\n"),
            "{text}"
        );
        assert!(text.ends_with("line-14"), "{text}");
    }

    #[test]
    fn a_wish_ends_the_program_with_all_that_it_has_started() {
        let stop = Stop::default();
        // both hold the pipe, so that this returns only when both have ended
        let script = "sleep 1000 & echo started >&2; sleep 1000";
        let ended = watched("sh", &mut shell(script), &stop, &mut |line| {
            assert_eq!(line, "started");
            stop.stop();
        });
        assert!(matches!(ended, Err(BuildError::Interrupted)), "{ended:?}");
        let after = watched("sh", &mut shell("echo never >&2"), &stop, &mut |_| {
            panic!("it was started")
        });
        assert!(matches!(after, Err(BuildError::Interrupted)));
    }
}

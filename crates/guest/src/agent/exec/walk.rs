//! The processes of a command where the guest's kernel has no control groups: found by what it tells of all processes.
//!
//! To a command belong its first process, those of the session that this leads, those that have the command's mark in their environment,
//! and what these have started. A process is missed if it has a session of its own, lacks the variable, and its parent has ended.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};

/// The variable that marks what a command starts.
pub(super) const MARK: &str = "FLOE_COMMAND";
/// How much of a process's environment is looked at, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// What is known of a process.
struct Seen {
    process: u32,
    parent: u32,
    session: u32,
    marked: bool,
}

/// Returns the processes of the command with this first process and this mark.
pub(super) fn members(first: u32, mark: &str) -> io::Result<Vec<u32>> {
    let mark = format!("{MARK}={mark}");
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(process) = name.to_str().and_then(|name| name.parse().ok()) {
            all.extend(look(process, mark.as_bytes())?);
        }
    }
    Ok(of(first, &all))
}

/// Looks at a process; `None` if it has ended.
fn look(process: u32, mark: &[u8]) -> io::Result<Option<Seen>> {
    let Some(stat) = if_lives(fs::read(format!("/proc/{process}/stat")))? else {
        return Ok(None);
    };
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{process}/environ"));
    let read = file.and_then(|file| {
        let mut some = file.take(ENVIRONMENT_BYTES_MAX);
        some.read_to_end(&mut environment)
    });
    match read {
        // another user's, for an agent that is not root
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        read => {
            if if_lives(read)?.is_none() {
                return Ok(None);
            }
        }
    }
    let marked = environment.split(|byte| *byte == 0).any(|it| it == mark);
    Ok(parse(process, &String::from_utf8_lossy(&stat), marked))
}

/// Returns what was asked about a process; `None` if it has ended meanwhile.
fn if_lives<T>(asked: io::Result<T>) -> io::Result<Option<T>> {
    match asked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        asked => asked.map(Some),
    }
}

/// Reads a line of `/proc/PID/stat`; `None` if it is that of a process that has ended and was not waited for.
fn parse(process: u32, stat: &str, marked: bool) -> Option<Seen> {
    // the name before it may contain anything
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(Seen {
        process,
        parent,
        session,
        marked,
    })
}

/// Returns those of a command.
fn of(first: u32, all: &[Seen]) -> Vec<u32> {
    let is_known = |seen: &&Seen| seen.process == first || seen.session == first || seen.marked;
    let mut found: BTreeSet<u32> = all
        .iter()
        .filter(is_known)
        .map(|seen| seen.process)
        .collect();
    loop {
        let is_child =
            |seen: &&Seen| found.contains(&seen.parent) && !found.contains(&seen.process);
        let more: Vec<u32> = all
            .iter()
            .filter(is_child)
            .map(|seen| seen.process)
            .collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::sys;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_commands_processes_are_those_of_its_session_its_mark_and_what_they_have_started() {
        let seen = |process, parent, session, marked| Seen {
            process,
            parent,
            session,
            marked,
        };
        let all = [
            seen(1, 0, 1, false),
            // of its session, though its parent has ended
            seen(11, 1, 10, false),
            // of a session of its own, and its child
            seen(12, 11, 12, false),
            seen(13, 12, 13, false),
            // a daemon that it has left, and what that has started without a mark
            seen(20, 1, 20, true),
            seen(21, 20, 21, false),
            // others
            seen(30, 1, 30, false),
            seen(31, 30, 30, false),
        ];
        assert_eq!(of(10, &all), [11, 12, 13, 20, 21]);
        assert!(of(30, &all[..1]).is_empty());
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let seen = parse(7, "7 (a) Z 9 (b)) S 3 7 5 0 -1 4194560", true).unwrap();
        assert_eq!((seen.process, seen.parent, seen.session), (7, 3, 5));
        assert!(
            parse(7, "7 (sh) Z 3 7 5 0 -1", true).is_none(),
            "it has ended"
        );
        for broken in ["", "7 (sh", "7 (sh) S 3", "7 (sh) S x 7 5"] {
            assert!(parse(7, broken, false).is_none(), "{broken}");
        }
    }

    #[test]
    fn what_has_a_session_of_its_own_and_no_parent_is_found_and_ended() {
        let mark = format!("test-{}", std::process::id());
        let line = "setsid sh -c 'echo one; sleep 1000; :' & (setsid sh -c 'echo two; sleep 1000; :' &); sleep 1000; :";
        let mut command = Command::new("sh");
        command.args(["-c", line]).env(MARK, &mark);
        let mut first = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(first.stdout.take().unwrap());
        let mut lines = Vec::new();
        for _ in 0..2 {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            lines.push(line);
        }
        lines.sort();
        assert_eq!(lines, ["one\n", "two\n"]);
        let found = members(first.id(), &mark).unwrap();
        assert!(found.len() >= 3 && found.contains(&first.id()), "{found:?}");
        assert!(!found.contains(&std::process::id()));
        // a shell may just be starting its sleep, so all are ended until nobody holds the pipe
        let ends = std::thread::spawn(move || said.read_line(&mut String::new()));
        while !ends.is_finished() {
            for process in members(first.id(), &mark).unwrap() {
                sys::signal(process, libc::SIGKILL as u8);
            }
            std::thread::yield_now();
        }
        assert_eq!(ends.join().unwrap().unwrap(), 0);
        assert!(!first.wait().unwrap().success());
    }
}

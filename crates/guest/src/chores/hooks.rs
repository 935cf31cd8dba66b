//! Runs what this machine's owner wants done before it becomes small, after it is its own size again, and once it knows the others
//! that were activated with it.
//!
//! A hook is an executable file in [`DIR`]. It is called with the word `stop`, `start` or `joined`: to stop in the order of their
//! names, up to the first that fails, and for the others in the opposite order, all of them, also those that were never told to stop.

use crate::files::if_there;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Where the hooks are.
pub const DIR: &str = "/etc/floe/dock.d";
/// How long one hook may take; then it is ended, with all that it started in its process group.
pub const HOOK_LIMIT: Duration = Duration::from_secs(30);
/// How many hooks there may be: so many that all of them can take as long as they may.
pub const HOOKS_MAX: usize = 16;
/// How much of a hook's last words is told, in bytes.
const WORDS_BYTES: i64 = 200;

/// What a hook did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The name of its file.
    pub name: String,
    /// Why it failed, if it did.
    pub why: Option<String>,
}

/// What the hooks did, in the order in which they ran.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// Each hook that was called.
    pub ran: Vec<Ran>,
}

/// Calls the hooks of a directory. `word` is `stop`, `start` or `joined`.
pub(super) fn run(dir: &Path, word: &str, limit: Duration) -> Result<Hooks, String> {
    let stop = match word {
        "stop" => true,
        "start" | "joined" => false,
        other => return Err(format!("{other:?} is not stop, start or joined")),
    };
    let mut hooks = find(dir)?;
    if !stop {
        hooks.reverse();
    }
    let mut done = Hooks::default();
    for hook in hooks {
        let name = hook.file_name().unwrap_or_default().to_string_lossy();
        let why = call(&hook, word, limit).err();
        let failed = why.is_some();
        let name = name.into_owned();
        done.ran.push(Ran { name, why });
        if stop && failed {
            break;
        }
    }
    Ok(done)
}

/// Returns the executable files of a directory by name; none if there is no directory.
fn find(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let said = |error: std::io::Error| format!("{}: {error}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(said)?,
    };
    let mut hooks = Vec::new();
    for entry in entries {
        let path = entry.map_err(said)?.path();
        let executable =
            |meta: fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        if if_there(&path, fs::metadata(&path))?.is_some_and(executable) {
            hooks.push(path);
        }
    }
    hooks.sort();
    match hooks.len() <= HOOKS_MAX {
        true => Ok(hooks),
        false => Err(format!("{} has more than {HOOKS_MAX} hooks", dir.display())),
    }
}

fn call(hook: &Path, word: &str, limit: Duration) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    // not a pipe: what a hook leaves running would hold that open
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let words = rustix::fs::memfd_create("hook", flags).map_err(|error| said(error.into()))?;
    let words = File::from(words);
    let copy = || words.try_clone().map(Stdio::from).map_err(said);
    let mut child = Command::new(hook)
        .arg(word)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(copy()?)
        .stderr(copy()?)
        .process_group(0)
        .spawn()
        .map_err(said)?;
    let group = rustix::process::Pid::from_child(&child);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(child.wait()); // nobody waits any more for one that was ended
    });
    match told.recv_timeout(limit) {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{status}: {}", last_words(words))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            Err(format!(
                "it took more than {} s and was ended",
                limit.as_secs()
            ))
        }
    }
}

/// Returns the last of what a hook wrote, on one line.
fn last_words(mut from: File) -> String {
    let mut bytes = Vec::new();
    let length = from.seek(SeekFrom::End(0)).unwrap_or_default();
    let back = i64::try_from(length).unwrap_or(i64::MAX).min(WORDS_BYTES);
    let read = from
        .seek(SeekFrom::End(-back))
        .and_then(|_| from.read_to_end(&mut bytes));
    match read {
        // control characters take six bytes each in the answer, which has a limit
        Ok(_) => String::from_utf8_lossy(&bytes)
            .trim()
            .replace(char::is_control, " "),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(dir: &Path, name: &str, script: &str) {
        // written by another process: a test beside this one may start a process while the file is open, which keeps it busy
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let path = dir.join(name);
        let written = Command::new("sh")
            .args(["-c", write, "sh"])
            .arg(path)
            .arg(script)
            .status();
        assert!(written.unwrap().success());
    }

    fn names(hooks: &Hooks) -> Vec<&str> {
        hooks.ran.iter().map(|ran| ran.name.as_str()).collect()
    }

    #[test]
    fn hooks_stop_in_order_up_to_one_that_fails_and_all_start_again() {
        let dir = tempfile::tempdir().unwrap();
        let long = Duration::from_secs(60);
        assert_eq!(
            run(&dir.path().join("none"), "stop", long),
            Ok(Hooks::default())
        );
        let log = dir.path().join("log");
        let say = format!("echo $1 $0 >> {}", log.display());
        hook(
            dir.path(),
            "20-web",
            &format!("{say}; [ $1 = start ] || {{ echo users are there; exit 3; }}"),
        );
        hook(dir.path(), "10-sleep", &format!("{say}; sleep 30 & exit 0"));
        hook(dir.path(), "30-never", &say);
        let stopped = run(dir.path(), "stop", long).unwrap();
        assert_eq!(names(&stopped), ["10-sleep", "20-web"]);
        assert_eq!(
            stopped.ran[0].why, None,
            "what it leaves running is not waited for"
        );
        let why = stopped.ran[1].why.clone().unwrap();
        assert!(
            why.contains('3') && why.contains("users are there"),
            "{why}"
        );
        let started = run(dir.path(), "start", long).unwrap();
        assert_eq!(names(&started), ["30-never", "20-web", "10-sleep"]);
        let joined = run(dir.path(), "joined", long).unwrap();
        assert_eq!(names(&joined), names(&started));
        assert_eq!(fs::read_to_string(log).unwrap().lines().count(), 8);
        assert!(run(dir.path(), "pause", long).is_err());
        for number in 0..HOOKS_MAX {
            hook(dir.path(), &format!("40-{number}"), "exit 0");
        }
        assert!(run(dir.path(), "stop", long).unwrap_err().contains("hooks"));
    }

    #[test]
    fn a_hook_that_takes_too_long_is_ended_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        hook(dir.path(), "10-hangs", "sleep 1000");
        let hung = run(dir.path(), "stop", Duration::from_millis(100)).unwrap();
        let why = hung.ran[0].why.clone().unwrap();
        assert!(why.contains("was ended"), "{why}");
    }
}

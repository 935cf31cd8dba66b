//! Runs the programs of this machine's owner before and after something happens to the machine as a whole. A hook is an executable file,
//! called as root.
//!
//! Those in [`DOCK_DIR`] get one word: `stop` before the machine is docked, while it is still its usual size; `start` after it was
//! activated and is that size again; `joined` once it knows the machines that were activated together with it. Those in [`DIR`] get
//! `freeze` or `thaw`, as the hooks of QEMU's guest agent do, and what for: a capture, fork or park. Whatever follows, a hook that was
//! frozen is also thawed: in the machine itself, and in each copy of it. That a `thaw` is owed is noted in [`OWED_PATH`], a file in memory,
//! so that copies have it, too.
//!
//! For `stop` and `freeze` hooks are called in the order of their names, up to the first that fails. For the other words all of them are
//! called in the opposite order, also those that were never told to stop.

use crate::files::{content, if_there, replace};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Where the hooks of captures, forks and parks are.
pub const DIR: &str = "/etc/floe/hooks.d";
/// The file that is there while they are owed the word `thaw`.
pub const OWED_PATH: &str = "/run/floe.thaw";
/// What that file says in a machine whose state was loaded: why it was is known to its node only.
pub(crate) const COPIED: &str = "copied";
/// Where the hooks of docks are.
pub const DOCK_DIR: &str = "/etc/floe/dock.d";
/// How long one hook of a dock may take; then it is ended, with all that it started in its process group.
pub const HOOK_LIMIT: Duration = Duration::from_secs(30);
/// How many hooks there may be: so many that all of them can take as long as they may.
pub const HOOKS_MAX: usize = 16;
/// Mode of the note that a call is owed.
const MODE: u32 = 0o644;
/// Mode of the file that is locked while they are called.
const LOCK_MODE: u32 = 0o600;
/// How much of the end of a hook's output is reported, in bytes.
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
    /// Those that were thawed because one of them had failed to freeze.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<Ran>,
}

/// Whether there are hooks of captures, forks and parks. Too many of them, or a directory that can't be read, counts as well: that error is
/// reported when they are to run.
pub(crate) fn any() -> bool {
    !find(Path::new(DIR)).is_ok_and(|hooks| hooks.is_empty())
}

/// Notes that the hooks are owed the word `thaw`, and since what.
pub(crate) fn owe(note: &Path, since: &str) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{}: {error}", note.display());
    replace(note, format!("{since}\n").as_bytes(), MODE).map_err(said)
}

/// Calls the hooks of a directory with `freeze` or `thaw` and what it is for. `limit_ms`: how long all of them may take together. If one
/// fails to freeze, those that were called are thawed, which may take as long again.
pub(super) fn around(
    dir: &Path,
    note: &Path,
    word: &str,
    what: &str,
    limit_ms: &str,
) -> Result<Hooks, String> {
    let limit = limit_ms.parse::<u64>().map(Duration::from_millis);
    let limit = limit.map_err(|_| format!("{limit_ms:?} is no time in ms"))?;
    let _alone = alone(note)?;
    let hooks = find(dir)?;
    let since = content(note)?;
    // a node that was started anew meanwhile does not know since when they are frozen
    let what = match (word, since.trim()) {
        ("thaw", since) if !since.is_empty() && since != COPIED => since,
        _ => what,
    };
    match word {
        "freeze" if hooks.is_empty() => Ok(Hooks::default()),
        "freeze" if since.trim() == COPIED => {
            Err("they are still to be told how this copy came about; try again in a moment".into())
        }
        "freeze" => freeze(&hooks, note, what, limit),
        "thaw" => {
            let hooks: Vec<_> = hooks.into_iter().rev().collect();
            thaw(&hooks, note, what, limit)
        }
        other => Err(format!("{other:?} is not freeze or thaw")),
    }
}

/// Waits until nobody else calls these hooks. If a node is killed during a freeze, the freeze goes on here while the next node already asks
/// for a thaw: without this lock, hooks that are frozen after the thaw would stay frozen.
fn alone(note: &Path) -> Result<File, String> {
    let path = note.with_extension("thaw-lock");
    let said = |error: std::io::Error| format!("{}: {error}", path.display());
    // nobody else may open it: who can, can lock it
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOCK_MODE)
        .open(&path)
        .map_err(said)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| said(error.into()))?;
    Ok(file)
}

fn freeze(hooks: &[PathBuf], note: &Path, what: &str, limit: Duration) -> Result<Hooks, String> {
    // beforehand: whoever finds this program ended has them thawed
    owe(note, what)?;
    let began = Instant::now();
    let mut done = Hooks::default();
    for (at, hook) in hooks.iter().enumerate() {
        let left = limit.saturating_sub(began.elapsed());
        let why = call(hook, &["freeze", what], left, limit).err();
        let failed = why.is_some();
        done.ran.push(ran(hook, why));
        if failed {
            let called: Vec<_> = hooks[..=at].iter().rev().cloned().collect();
            done.undone = thaw(&called, note, what, limit)?.ran;
            break;
        }
    }
    Ok(done)
}

/// Thaws all of them, whatever becomes of each: one that hangs may use up its own part of the time, and what others have left of theirs.
fn thaw(hooks: &[PathBuf], note: &Path, what: &str, limit: Duration) -> Result<Hooks, String> {
    let began = Instant::now();
    let mut done = Hooks::default();
    for (hook, waiting) in hooks.iter().zip((1..=hooks.len() as u32).rev()) {
        let part = limit.saturating_sub(began.elapsed()) / waiting;
        let why = call(hook, &["thaw", what], part, part).err();
        done.ran.push(ran(hook, why));
    }
    if_there(note, fs::remove_file(note))?;
    Ok(done)
}

fn ran(hook: &Path, why: Option<String>) -> Ran {
    let name = hook.file_name().unwrap_or_default().to_string_lossy();
    Ran {
        name: name.into_owned(),
        why,
    }
}

/// Calls the hooks of a dock. `word` is `stop`, `start` or `joined`.
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
        let why = call(&hook, &[word], limit, limit).err();
        let failed = why.is_some();
        done.ran.push(ran(&hook, why));
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

/// Calls a hook, which has the time that is `left` of a limit.
fn call(hook: &Path, words: &[&str], left: Duration, limit: Duration) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    // not a pipe: what a hook leaves running would hold that open
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let said_by = rustix::fs::memfd_create("hook", flags).map_err(|error| said(error.into()))?;
    let said_by = File::from(said_by);
    let copy = || said_by.try_clone().map(Stdio::from).map_err(said);
    let mut child = Command::new(hook)
        .args(words)
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
    match told.recv_timeout(left) {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{status}: {}", last_words(said_by))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            Err(format!(
                "it took more than {:.1} s and was ended",
                limit.as_secs_f64()
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

    /// Calls the hooks of a directory for a capture, with a minute for all of them.
    fn calls(dir: &Path, note: &Path, word: &str) -> Hooks {
        around(dir, note, word, "capture", "60000").unwrap()
    }

    #[test]
    fn hooks_freeze_in_order_and_thaw_backwards_and_that_is_owed_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let (hooks, note) = (dir.path().join("hooks.d"), dir.path().join("thaw"));
        assert_eq!(calls(&hooks, &note, "freeze"), Hooks::default());
        assert!(!note.exists(), "nothing is owed where there are no hooks");
        fs::create_dir(&hooks).unwrap();
        let log = dir.path().join("log");
        let say = format!("echo $1 $2 ${{0##*/}} >> {}", log.display());
        hook(&hooks, "10-db", &say);
        hook(&hooks, "20-web", &say);
        assert_eq!(names(&calls(&hooks, &note, "freeze")), ["10-db", "20-web"]);
        assert_eq!(fs::read_to_string(&note).unwrap(), "capture\n");
        assert_eq!(names(&calls(&hooks, &note, "thaw")), ["20-web", "10-db"]);
        assert!(!note.exists());
        let lines = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        let expected = [
            "freeze capture 10-db",
            "freeze capture 20-web",
            "thaw capture 20-web",
            "thaw capture 10-db",
        ];
        assert_eq!(lines, expected);
        assert!(around(&hooks, &note, "pause", "capture", "1").is_err());
        assert!(around(&hooks, &note, "freeze", "capture", "long").is_err());
    }

    #[test]
    fn a_thaw_is_for_what_they_were_frozen_for_and_in_a_copy_for_what_its_node_says() {
        let dir = tempfile::tempdir().unwrap();
        let (hooks, note) = (dir.path().join("hooks.d"), dir.path().join("thaw"));
        fs::create_dir(&hooks).unwrap();
        let log = dir.path().join("log");
        hook(&hooks, "10-db", &format!("echo $1 $2 >> {}", log.display()));
        let thaw = || around(&hooks, &note, "thaw", "clone", "60000").unwrap();
        // its node was killed, and the next one knows nothing of a capture
        calls(&hooks, &note, "freeze");
        thaw();
        owe(&note, COPIED).unwrap();
        let why = around(&hooks, &note, "freeze", "fork", "60000").unwrap_err();
        assert!(why.contains("try again"), "{why}");
        thaw();
        let lines = fs::read_to_string(&log).unwrap();
        assert_eq!(lines, "freeze capture\nthaw capture\nthaw clone\n");
    }

    #[test]
    fn hooks_that_are_still_being_frozen_are_thawed_after_that() {
        let dir = tempfile::tempdir().unwrap();
        let (hooks, note) = (dir.path().join("hooks.d"), dir.path().join("thaw"));
        fs::create_dir(&hooks).unwrap();
        let log = dir.path().join("log");
        let (begun, go) = (dir.path().join("begun"), dir.path().join("go"));
        let made = Command::new("mkfifo").args([&begun, &go]).status();
        assert!(made.unwrap().success());
        let waits = format!("echo > {}; cat {}", begun.display(), go.display());
        let says = format!("echo $1 >> {}", log.display());
        hook(
            &hooks,
            "10-db",
            &format!("[ $1 = thaw ] || {{ {waits}; }}; {says}"),
        );
        std::thread::scope(|scope| {
            let frozen = scope.spawn(|| calls(&hooks, &note, "freeze"));
            fs::read(&begun).unwrap(); // ends once the hook has been called
            let thawed = scope.spawn(|| calls(&hooks, &note, "thaw"));
            fs::write(&go, "").unwrap();
            assert_eq!(names(&frozen.join().unwrap()), ["10-db"]);
            assert_eq!(names(&thawed.join().unwrap()), ["10-db"]);
        });
        assert_eq!(fs::read_to_string(&log).unwrap(), "freeze\nthaw\n");
        assert!(!note.exists(), "nothing is owed any more");
    }

    #[test]
    fn a_hook_that_fails_to_freeze_has_those_before_it_thawed_and_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (hooks, note) = (dir.path().join("hooks.d"), dir.path().join("thaw"));
        fs::create_dir(&hooks).unwrap();
        hook(&hooks, "10-db", "exit 0");
        let fails = "[ $1 = thaw ] || { echo users are there; exit 3; }";
        hook(&hooks, "20-web", fails);
        hook(&hooks, "30-never", "exit 0");
        let done = calls(&hooks, &note, "freeze");
        assert_eq!(names(&done), ["10-db", "20-web"]);
        let why = done.ran[1].why.clone().unwrap();
        assert!(
            why.contains('3') && why.ends_with("users are there"),
            "{why}"
        );
        let undone: Vec<&str> = done.undone.iter().map(|ran| ran.name.as_str()).collect();
        assert_eq!(undone, ["20-web", "10-db"]);
        assert!(!note.exists(), "nothing is owed any more");
    }

    #[test]
    fn one_hook_that_hangs_takes_no_time_from_those_that_thaw_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let (hooks, note) = (dir.path().join("hooks.d"), dir.path().join("thaw"));
        fs::create_dir(&hooks).unwrap();
        hook(&hooks, "10-db", "exit 0");
        // a hook that hangs is ended, or this test would last as long as it sleeps
        hook(&hooks, "20-hangs", "sleep 1000");
        let done = around(&hooks, &note, "thaw", "fork", "2000").unwrap();
        assert_eq!(names(&done), ["20-hangs", "10-db"]);
        assert!(done.ran[0].why.as_ref().unwrap().contains("was ended"));
        let frozen = around(&hooks, &note, "freeze", "fork", "500").unwrap();
        let why = frozen.ran.last().unwrap().why.clone().unwrap();
        assert!(why.contains("was ended"), "{why}");
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

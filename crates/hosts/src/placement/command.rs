//! Runs a tool that must answer within a bounded time and with a bounded answer, or is killed.

use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Longest answer that is read, in bytes: a line for each of many thousand nodes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How long a tool gets to end after it was asked to.
const END_WITHIN: Duration = Duration::from_secs(5);

/// What came of running a tool.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Its exit code; `None` if it took too long and was ended, or was killed by a signal.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Answer {
    /// Returns the reason that the tool gives.
    pub fn why(&self) -> String {
        let last = self.err.lines().rfind(|line| !line.trim().is_empty());
        match (last, self.code) {
            (Some(line), _) => line.trim().to_owned(),
            (None, Some(code)) => format!("it ended with code {code}"),
            (None, None) => "it took too long".into(),
        }
    }
}

/// Runs a command, and kills any processes that it leaves behind. Returns an error if it could not be started.
pub(super) fn run(
    mut command: Command,
    input: &[u8],
    patience: Duration,
) -> Result<Answer, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is not installed"),
        _ => format!("{name} does not start: {error}"),
    })?;
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    floe_threads::scope(|scope| {
        scope.spawn("tool-in", move || {
            // a tool that does not read its input does not need it
            let _ = stdin.map(|mut stdin| stdin.write_all(input));
        });
        let out = scope.spawn("tool-out", move || read(out));
        let err = scope.spawn("tool-err", move || read(err));
        let code = wait(&mut child, patience);
        Ok(Answer {
            code,
            out: out.join().unwrap_or_default(),
            err: err.join().unwrap_or_default(),
        })
    })
}

fn read(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // the answer is cut off here; the rest must still be read, or the tool would block for ever
        let _ = from.by_ref().take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until the tool has ended, kills what it left behind, and returns its exit code.
fn wait(child: &mut Child, patience: Duration) -> Option<i32> {
    let group = Pid::from_child(child);
    let in_time = ended_within(child, patience);
    if !in_time {
        // SIGTERM first: salloc then withdraws a request that is still waiting
        let _ = kill_process_group(group, Signal::TERM);
        ended_within(child, END_WITHIN);
    }
    // the tool has not been reaped yet, so its group id cannot belong to anybody else
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait().ok()?;
    status.code().filter(|_| in_time)
}

/// Waits until a process has ended, at most for `patience`, and does not reap it. Returns whether it has ended.
fn ended_within(child: &Child, patience: Duration) -> bool {
    let until = Instant::now().checked_add(patience);
    let ended = floe_threads::ended(child, until, None);
    ended.is_ok_and(|ended| ended.come().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Answer {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, b"question\n", patience).unwrap()
    }

    #[test]
    fn a_tool_is_heard_out_and_one_that_never_ends_is_ended() {
        let long = Duration::from_secs(60);
        let answer = shell("cat; echo because >&2; exit 3", long);
        assert_eq!(
            (answer.code, answer.out.as_str(), answer.why()),
            (Some(3), "question\n", "because".into())
        );
        assert_eq!(
            shell("exec 2>&-; exit 4", long).why(),
            "it ended with code 4"
        );
        let answer = shell("echo begun; exec sleep 1000", Duration::from_millis(50));
        assert_eq!(
            (answer.code, answer.why()),
            (None, "it took too long".into())
        );
        // a process that it leaves behind does not keep anybody waiting either
        let answer = shell("echo begun; sleep 1000; :", Duration::from_millis(50));
        assert_eq!(answer.code, None);
        // on a busy host it may not have begun yet
        assert!(["", "begun\n"].contains(&answer.out.as_str()));
        let answer = shell("sleep 1000 & echo done", long);
        assert_eq!((answer.code, answer.out.as_str()), (Some(0), "done\n"));
        let missing = run(Command::new("/nowhere/tool"), b"", long).unwrap_err();
        assert!(missing.contains("not installed"), "{missing}");
    }
}

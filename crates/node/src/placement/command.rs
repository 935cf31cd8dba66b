//! Running a tool that answers in a bounded time with a bounded answer, or is ended.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Longest answer that is read: a line for each of many thousand nodes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How often it is looked whether a tool has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long one that was asked to end gets.
const END_WITHIN: Duration = Duration::from_secs(5);

/// What a tool said.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Its exit code; `None` if it was ended because it took too long, or by a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Answer {
    /// What it gives as its reason.
    pub fn why(&self) -> String {
        let last = self.err.lines().rfind(|line| !line.trim().is_empty());
        match (last, self.code) {
            (Some(line), _) => line.trim().to_owned(),
            (None, Some(code)) => format!("it ended with code {code}"),
            (None, None) => "it took too long".into(),
        }
    }
}

/// Runs a command, and ends what it has started and left when it ends. `Err` if it could not be started at all.
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
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // one that does not read its input does not want it
            let _ = stdin.map(|mut stdin| stdin.write_all(input));
        });
        let out = scope.spawn(move || read(out));
        let err = scope.spawn(move || read(err));
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
        // what has been read is what there is; the rest must flow off, or the tool would wait for ever
        let _ = from.by_ref().take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Its exit code, once it has ended and nothing that it has started holds its output any more.
fn wait(child: &mut Child, patience: Duration) -> Option<i32> {
    let group = Pid::from_child(child);
    let in_time = ended_within(group, patience);
    if !in_time {
        // asked first: salloc gives a request back that it still waits for
        let _ = kill_process_group(group, Signal::TERM);
        ended_within(group, END_WITHIN);
    }
    // it is still to be waited for, so that the group cannot be somebody else's
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait().ok()?;
    status.code().filter(|_| in_time)
}

/// Whether it has ended; it is not waited for.
fn ended_within(pid: Pid, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), look) {
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
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
        // nor does what it has left behind keep anybody waiting
        let answer = shell("echo begun; sleep 1000; :", Duration::from_millis(50));
        assert_eq!(answer.code, None);
        // a busy host may not have let it begin
        assert!(["", "begun\n"].contains(&answer.out.as_str()));
        let answer = shell("sleep 1000 & echo done", long);
        assert_eq!((answer.code, answer.out.as_str()), (Some(0), "done\n"));
        let missing = run(Command::new("/nowhere/tool"), b"", long).unwrap_err();
        assert!(missing.contains("not installed"), "{missing}");
    }
}

//! A client of the guest agent (qemu-guest-agent), which answers over a virtio serial port if the guest has one.
//!
//! What it sends comes from inside the guest: its length is bounded, and only success or failure is taken from it.

mod wire;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::socket;
pub use wire::{Answer, parse};

/// Longest answer that is read, in bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Separates earlier answers from the next one (`guest-sync-delimited`): no JSON text contains it.
const SENTINEL: u8 = 0xff;

/// How often the agent is asked whether a program has ended.
const STATUS_AGAIN: Duration = Duration::from_millis(50);

/// Returns the time since 1970.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Why a command to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum QgaError {
    /// Nobody answered within this time: the guest has no agent, or it has not started yet.
    #[error("no guest agent answered within {0:?}; install qemu-guest-agent in the guest")]
    Silent(Duration),
    /// The agent refused the command.
    #[error("the guest agent refused {command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// The agent's message.
        description: String,
    },
    /// The answer can't be understood.
    #[error("the guest agent's answer can't be understood: {0}")]
    Garbage(String),
    /// The socket failed.
    #[error("the guest agent's socket: {0}")]
    Io(#[from] io::Error),
}

/// A conversation with the agent. There can be only one at a time, because the serial port is shared.
pub struct Agent {
    stream: UnixStream,
    deadline: Instant,
    limit: Duration,
}

impl Agent {
    /// Connects to the port at which this process listens, and synchronises; everything together may take `limit`.
    pub fn connect(path: &Path, pid: u32, limit: Duration) -> Result<Agent, QgaError> {
        Agent::over(socket::connect(path, pid)?, limit)
    }

    /// The same over a connected socket.
    pub(crate) fn over(stream: UnixStream, limit: Duration) -> Result<Agent, QgaError> {
        let mut agent = Agent {
            stream,
            deadline: floe_threads::from_now(limit),
            limit,
        };
        let id = rand::random::<u32>();
        let sync = json!({"execute": "guest-sync-delimited", "arguments": {"id": id}});
        agent.send(&[&[SENTINEL], sync.to_string().as_bytes(), b"\n"].concat())?;
        loop {
            // The rest of an earlier conversation ends with the sentinel or has another number.
            if agent.answer(true)? == Answer::Return(json!(id)) {
                return Ok(agent);
            }
        }
    }

    /// Runs one command and returns its result.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QgaError> {
        let line = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.send(line.as_bytes())?;
        match self.answer(false)? {
            Answer::Return(value) => Ok(value),
            Answer::Error(description) => Err(QgaError::Refused {
                command: command.into(),
                description,
            }),
        }
    }

    /// Returns an error if the agent does not answer.
    pub fn ping(&mut self) -> Result<(), QgaError> {
        self.execute("guest-ping", json!({})).map(drop)
    }

    /// Sets the guest's clock to the host's current time, to the second at least. The agent's own command for that needs the
    /// program `hwclock` in the guest; where that fails, the agent is asked to run `date`.
    pub fn set_time(&mut self) -> Result<(), QgaError> {
        let time = json!({"time": now().as_nanos() as u64});
        match self.execute("guest-set-time", time) {
            Err(QgaError::Refused { description, .. }) => {
                tracing::debug!(description, "the guest's clock is set by date");
                self.set_time_by_date()
            }
            set => set.map(drop),
        }
    }

    /// Sets the guest's clock with the program `date`, which takes whole seconds in every guest.
    fn set_time_by_date(&mut self) -> Result<(), QgaError> {
        const COMMAND: &str = "guest-exec";
        let time = format!("@{}", (now() + Duration::from_millis(500)).as_secs());
        let run = json!({"path": "date", "arg": ["-u", "-s", time], "capture-output": true});
        let started = self.execute(COMMAND, run)?;
        let pid = started["pid"].as_i64();
        let pid = pid.ok_or_else(|| QgaError::Garbage("no pid of date".into()))?;
        loop {
            let status = self.execute("guest-exec-status", json!({"pid": pid}))?;
            if status["exited"] == true {
                return match status["exitcode"].as_i64() {
                    Some(0) => Ok(()),
                    code => Err(QgaError::Refused {
                        command: COMMAND.into(),
                        description: match code {
                            Some(code) => format!("date ended with exit code {code}"),
                            None => "date was killed".into(),
                        },
                    }),
                };
            }
            // the agent reports no end by itself: it answers commands and does nothing else
            std::thread::sleep(STATUS_AGAIN.min(self.left()?));
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), QgaError> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(bytes).map_err(|e| self.failed(e))
    }

    /// Returns the next line; with `delimited`, the next one after a sentinel.
    fn answer(&mut self, delimited: bool) -> Result<Answer, QgaError> {
        let mut line = Vec::new();
        let mut wanted = !delimited;
        let mut byte = [0; 1];
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(e) => return Err(self.failed(e)),
            }
            match byte[0] {
                SENTINEL => {
                    line.clear();
                    wanted = true;
                }
                b'\n' if line.is_empty() => {}
                b'\n' if !wanted => line.clear(),
                b'\n' => return parse(&line).map_err(QgaError::Garbage),
                _ if line.len() == ANSWER_BYTES_MAX => {
                    return Err(QgaError::Garbage(format!(
                        "longer than {ANSWER_BYTES_MAX} bytes"
                    )));
                }
                b => line.push(b),
            }
        }
    }

    fn left(&self) -> Result<Duration, QgaError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(QgaError::Silent(self.limit))
        } else {
            Ok(left)
        }
    }

    fn failed(&self, e: io::Error) -> QgaError {
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => QgaError::Silent(self.limit),
            _ => e.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// An agent on a socket that first sends the rest of an earlier conversation.
    fn fake(
        before: &'static [u8],
        answers: &'static [&'static str],
    ) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qga");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut out = stream.try_clone().unwrap();
            let mut lines = BufReader::new(stream).split(b'\n');
            let sync = lines.next().unwrap().unwrap();
            assert_eq!(sync[0], SENTINEL);
            let sync: Value = serde_json::from_slice(&sync[1..]).unwrap();
            out.write_all(before).unwrap();
            out.write_all(&[SENTINEL]).unwrap();
            writeln!(out, "{}", json!({"return": sync["arguments"]["id"]})).unwrap();
            for answer in answers {
                let _ = lines.next();
                writeln!(out, "{answer}").unwrap();
            }
            let _ = lines.next();
        });
        (dir, path)
    }

    fn connect(path: &Path, limit: Duration) -> Result<Agent, QgaError> {
        Agent::connect(path, std::process::id(), limit)
    }

    #[test]
    fn the_clock_is_set_whatever_was_left_on_the_port() {
        let (_dir, path) = fake(b"{\"return\": 5}\n{\"retu", &["{\"return\": {}}"]);
        let mut agent = connect(&path, Duration::from_secs(5)).unwrap();
        agent.set_time().unwrap();
    }

    #[test]
    fn a_date_that_fails_in_the_guest_is_no_clock_that_was_set() {
        let unsupported = r#"{"error": {"class": "Unsupported", "desc": "no hwclock"}}"#;
        let started = r#"{"return": {"pid": 7}}"#;
        let runs = r#"{"return": {"exited": false}}"#;
        for (last, set) in [
            (r#"{"return": {"exited": true, "exitcode": 0}}"#, true),
            (r#"{"return": {"exited": true, "exitcode": 1}}"#, false),
            (r#"{"return": {"exited": true, "signal": 9}}"#, false),
        ] {
            let answers = vec![unsupported, started, runs, last].leak();
            let (_dir, path) = fake(b"", answers);
            let mut agent = connect(&path, Duration::from_secs(60)).unwrap();
            assert_eq!(agent.set_time().is_ok(), set, "{last}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_agents_words() {
        let refused = r#"{"error": {"class": "GenericError", "desc": "not here"}}"#;
        let (_dir, path) = fake(b"", vec![refused, refused].leak());
        let error = connect(&path, Duration::from_secs(5))
            .unwrap()
            .set_time()
            .unwrap_err();
        assert!(error.to_string().contains("not here"), "{error}");
    }

    #[test]
    fn silence_and_endless_talk_both_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qga");
        let listener = UnixListener::bind(&path).unwrap();
        let error = connect(&path, Duration::from_millis(30)).err().unwrap();
        assert!(matches!(error, QgaError::Silent(_)), "{error}");
        drop(listener.accept());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let error = connect(&path, Duration::from_secs(5)).err().unwrap();
        assert!(matches!(error, QgaError::Garbage(_)), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}

//! A QMP client: sends commands, receives an answer to each, and events, over one Unix socket.
//!
//! A thread reads. It assigns answers to commands by number; events are passed to the function that was given when
//! connecting. After the first line that is not QMP, nothing more is trusted: the connection is closed, and every waiting
//! or new command fails with that reason.

pub mod wire;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use floe_threads::Pulse;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::socket;
pub use wire::{Event, Message, WireError};

/// Longest time for a command that does no I/O: QEMU's main loop can be busy with a guest's reset or a slow disk.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a command has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QmpError {
    /// QEMU refused it.
    #[error("QEMU refused {command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class, such as `CommandNotFound` for an unknown command.
        class: String,
        /// QEMU's message.
        description: String,
    },
    /// QEMU did not answer in time.
    #[error("QEMU did not answer {command} within {limit:?}; it may be waiting for a disk")]
    Timeout {
        /// The command.
        command: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The connection is closed: QEMU has ended, or has sent something that is not QMP.
    #[error("the connection to QEMU is closed: {reason}")]
    Closed {
        /// Why the connection was closed.
        reason: String,
    },
}

impl QmpError {
    /// Returns whether QEMU does not know the command at all.
    pub fn is_unknown_command(&self) -> bool {
        matches!(self, QmpError::Refused { class, .. } if class == "CommandNotFound")
    }
}

type Answer = Result<Value, (String, String)>;

#[derive(Default)]
struct Waiting {
    commands: HashMap<u64, Sender<Answer>>,
    closed: Option<String>,
}

/// A connection to one QEMU. It can be shared at little cost; commands of several threads are answered independently.
pub struct Qmp {
    stream: Mutex<UnixStream>,
    waiting: Arc<Mutex<Waiting>>,
    /// Beats when the connection is closed.
    ended: Arc<Pulse>,
    next_id: AtomicU64,
}

impl Qmp {
    /// Connects to this process and negotiates. The reading thread calls `on_event` for each event, in order; it must not block and
    /// must not run commands.
    pub fn connect(
        path: &Path,
        pid: u32,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Qmp, QmpError> {
        let stream = socket::connect(path, pid).map_err(|e| QmpError::Closed {
            reason: format!("{}: {e}", path.display()),
        })?;
        Qmp::over(stream, on_event)
    }

    /// The same over a connected socket.
    pub fn over(
        stream: UnixStream,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Qmp, QmpError> {
        let closed = |e: io::Error| QmpError::Closed {
            reason: e.to_string(),
        };
        let reader = stream.try_clone().map_err(closed)?;
        // A QEMU that stops reading must not block its node forever.
        stream
            .set_write_timeout(Some(COMMAND_TIMEOUT))
            .map_err(closed)?;
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let shared = waiting.clone();
        let ended = Arc::new(Pulse::new());
        let beats = ended.clone();
        let reads = floe_threads::spawn("qmp", move || {
            let reason = read_all(reader, &shared, on_event);
            let mut waiting = shared.lock();
            waiting.closed = Some(reason);
            // Dropping the senders wakes every waiting command.
            waiting.commands.clear();
            drop(waiting);
            beats.beat();
        });
        reads.map_err(|e| closed(e.into()))?;
        let qmp = Qmp {
            stream: Mutex::new(stream),
            waiting,
            ended,
            next_id: AtomicU64::new(1),
        };
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and waits up to [`COMMAND_TIMEOUT`] for its result.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.run(command, arguments, None, COMMAND_TIMEOUT)
    }

    /// The same with another time limit.
    pub fn execute_within(
        &self,
        command: &str,
        arguments: Value,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        self.run(command, arguments, None, limit)
    }

    /// Runs a command that takes a descriptor (`getfd`, `add-fd`).
    pub fn execute_with_fd(
        &self,
        command: &str,
        arguments: Value,
        fd: BorrowedFd<'_>,
    ) -> Result<Value, QmpError> {
        self.run(command, arguments, Some(fd), COMMAND_TIMEOUT)
    }

    /// Runs a command of the human monitor and returns what it prints.
    pub fn human(&self, line: &str) -> Result<String, QmpError> {
        let value = self.execute("human-monitor-command", json!({"command-line": line}))?;
        Ok(value.as_str().unwrap_or_default().to_string())
    }

    /// Returns why the connection is closed; `None` if it is open.
    pub fn closed(&self) -> Option<String> {
        self.waiting.lock().closed.clone()
    }

    /// Waits until the connection is closed and all events before that were handled, at most for `limit`.
    pub fn wait_closed(&self, limit: Duration) {
        let until = Instant::now().checked_add(limit);
        self.ended.wait_for(until, None, || self.closed());
    }

    /// Sends a command without waiting for its result.
    pub fn begin(&self, command: &str, arguments: Value) -> Result<Pending, QmpError> {
        self.send(command, arguments, None)
    }

    fn run(
        &self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        self.send(command, arguments, fd)?.wait(limit)
    }

    fn send(
        &self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Pending, QmpError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = bounded(1);
        {
            let mut waiting = self.waiting.lock();
            if let Some(reason) = &waiting.closed {
                return Err(QmpError::Closed {
                    reason: reason.clone(),
                });
            }
            waiting.commands.insert(id, sender);
        }
        let line = format!(
            "{}\n",
            json!({"execute": command, "arguments": arguments, "id": id})
        );
        if let Err(e) = send(&mut self.stream.lock(), line.as_bytes(), fd) {
            let mut waiting = self.waiting.lock();
            waiting.commands.remove(&id);
            let reason = waiting.closed.clone().unwrap_or_else(|| e.to_string());
            return Err(QmpError::Closed { reason });
        }
        Ok(Pending {
            command: command.to_owned(),
            id,
            receiver,
            waiting: self.waiting.clone(),
        })
    }
}

/// A command that was sent and whose result can be waited for.
pub struct Pending {
    command: String,
    id: u64,
    receiver: Receiver<Answer>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Pending {
    /// Waits for the result.
    pub fn wait(self, limit: Duration) -> Result<Value, QmpError> {
        match self.receiver.recv_timeout(limit) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err((class, description))) => Err(QmpError::Refused {
                command: self.command,
                class,
                description,
            }),
            Err(RecvTimeoutError::Timeout) => {
                self.waiting.lock().commands.remove(&self.id);
                Err(QmpError::Timeout {
                    command: self.command,
                    limit,
                })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let reason = self.waiting.lock().closed.clone();
                Err(QmpError::Closed {
                    reason: reason.unwrap_or_else(|| "it ended".into()),
                })
            }
        }
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the reading thread.
        let _ = self.stream.lock().shutdown(std::net::Shutdown::Both);
    }
}

/// Reads until the connection ends, and returns why it ended.
fn read_all(
    stream: UnixStream,
    waiting: &Mutex<Waiting>,
    mut on_event: impl FnMut(Event),
) -> String {
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = wire::LINE_BYTES_MAX as u64 + 1;
        match reader.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) => return "QEMU closed it".into(),
            Ok(_) => {}
            Err(e) => return e.to_string(),
        }
        let message = match wire::parse(&line) {
            Ok(message) => message,
            Err(e) => {
                let _ = reader.get_ref().shutdown(std::net::Shutdown::Both);
                return e.to_string();
            }
        };
        let (id, answer) = match message {
            Message::Greeting => continue,
            Message::Event(event) => {
                on_event(event);
                continue;
            }
            Message::Return { id, value } => (id, Ok(value)),
            Message::Error {
                id,
                class,
                description,
            } => (id, Err((class, description))),
        };
        // An answer to a command that timed out, or to none, is dropped.
        if let Some(sender) = id.and_then(|id| waiting.lock().commands.remove(&id)) {
            let _ = sender.send(answer);
        }
    }
}

fn send(stream: &mut UnixStream, line: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(fd) = fd else {
        return stream.write_all(line);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    let flags = rustix::net::SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(stream.as_fd(), &[IoSlice::new(line)], &mut ancillary, flags)?;
    stream.write_all(&line[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that answers the negotiation and then sends `lines`, one for each command that it receives.
    fn fake(lines: Vec<Vec<u8>>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut out = theirs.try_clone().unwrap();
            let mut commands = BufReader::new(theirs).lines();
            out.write_all(b"{\"QMP\": {}}\n").unwrap();
            let mut answers = vec![b"{\"return\": {}, \"id\": 1}\n".to_vec()];
            answers.extend(lines);
            for answer in answers {
                if commands.next().is_none() || out.write_all(&answer).is_err() {
                    return;
                }
            }
            // Keep the connection until the client closes it.
            while commands.next().is_some_and(|l| l.is_ok()) {}
        });
        ours
    }

    #[test]
    fn garbage_closes_the_connection_with_its_reason() {
        for garbage in [&b"\xff\xfe{\n"[..], b"[1, 2]\n", b"{\"hello\": 1}\n", b"\n"] {
            let qmp = Qmp::over(fake(vec![garbage.to_vec()]), |_| {}).unwrap();
            let error = qmp.execute("query-status", json!({})).unwrap_err();
            assert!(error.to_string().contains("not QMP"), "{error}");
            let again = qmp.execute("query-status", json!({})).unwrap_err();
            assert!(
                matches!(again, QmpError::Closed { .. }),
                "nothing is believed afterwards: {again}"
            );
        }
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let qmp = Qmp::over(fake(vec![vec![b'x'; wire::LINE_BYTES_MAX + 100]]), |_| {}).unwrap();
        let error = qmp.execute("query-status", json!({})).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }

    #[test]
    fn an_answer_to_nobody_is_ignored_and_events_are_told() {
        let (sender, events) = bounded(8);
        let says =
            b"{\"return\": 1, \"id\": 99}\n{\"event\": \"STOP\"}\n{\"return\": 2, \"id\": 2}\n"
                .to_vec();
        let qmp = Qmp::over(fake(vec![says]), move |e| sender.send(e.name).unwrap()).unwrap();
        assert_eq!(qmp.execute("x", json!({})).unwrap(), json!(2));
        assert_eq!(events.recv().unwrap(), "STOP");
    }

    #[test]
    fn a_silent_qemu_is_given_up_on() {
        let qmp = Qmp::over(fake(vec![]), |_| {}).unwrap();
        let error = qmp
            .execute_within("stop", json!({}), Duration::from_millis(20))
            .unwrap_err();
        assert!(matches!(error, QmpError::Timeout { .. }), "{error}");
    }
}

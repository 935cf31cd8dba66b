//! Processes that users start in a guest: their streams share the guest's port, and each is a connection to the node.
//!
//! ```text
//! port's reader -> Streams::heard -> queue of a process -> relay -> its user
//! port's writer <- Streams::to_send <------ Mux <--------- relay <-'
//! ```
//! Nothing piles up: a guest may send as much as [`floe_guest::exec::mux`] gave it credit for, which it gets when its user has
//! taken the bytes; a user's bytes are read when there is room for them.

use crate::agents::{Agents, why_silent};
use floe_api::{ExecRequest, Program};
use floe_ground::error::{NodeError, busy, refused, usage};
use floe_guest::exec::{
    frame::{Channel, DATA_BYTES_MAX, Frame, Message, Messages, Outcome},
    mux::{Mux, STREAMS_MAX, Side, Violation},
    request::{REQUEST_BYTES_MAX, Request, What},
};
use floe_inventory::inventory::Entry;
use floe_machine::Machine;
use floe_threads::{Cancel, from_now};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Notify,
};

mod queue;
use queue::Queue;

/// How long a call waits for an agent that has not answered yet: the node, or the machine, may have just started.
const AGENT_WAIT: Duration = Duration::from_secs(5);
/// How long an agent has to answer a request: it may have died without a word, and a busy guest starts processes slowly; a clone's, which
/// gives it an identity of its own first, later still.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How many bytes are handed to the port at a time.
const BATCH_BYTES: usize = 32 << 10;
/// How many bytes of a user are read at a time.
const READ_BYTES: usize = 64 << 10;
/// How long a user waits who sends more signals than the port takes.
const CROWDED: Duration = Duration::from_millis(5);
/// Longest message of an ssh connection that may be a key: what ssh sends for one has 36 to 100 bytes.
const SSH_KEY_BYTES_MAX: usize = 128;
/// The number of the one stream of a user's connection.
const ONLY: u32 = 1;

/// What is known of a guest's agent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    /// It has not answered.
    Silent,
    /// It knows no frames.
    Old,
    Ready,
}

pub(super) struct Inner {
    agent: Agent,
    mux: Mux,
    /// Each conversation with an agent has its own number.
    conversation: u64,
    open: BTreeMap<u32, Ear>,
    next: u32,
}

/// Where a process's frames go.
struct Ear {
    frames: Arc<Queue>,
    room: Arc<Notify>,
    /// Whether the agent has said anything about it; its user knows too.
    answered: Arc<AtomicBool>,
}

/// The processes of one machine.
pub struct Streams {
    inner: Mutex<Inner>,
    /// Wakes the port's writer, and those who wait for the agent.
    changed: Condvar,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams::new()
    }
}

impl Streams {
    /// Makes the streams of a guest whose agent has not answered.
    pub fn new() -> Streams {
        let inner = Inner {
            agent: Agent::Silent,
            mux: Mux::new(Side::Node),
            conversation: 0,
            open: BTreeMap::new(),
            next: 0,
        };
        Streams {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        }
    }

    /// The agent has answered; returns the number of the conversation that begins.
    pub fn begin(&self, frames: bool) -> u64 {
        self.lose("the agent was greeted anew");
        let mut inner = self.inner.lock();
        inner.agent = if frames { Agent::Ready } else { Agent::Old };
        self.changed.notify_all();
        inner.conversation
    }

    /// The conversation is over: what runs in the guest goes on, and nobody here knows of it.
    pub fn lose(&self, why: &str) {
        let mut inner = self.inner.lock();
        inner.agent = Agent::Silent;
        inner.conversation += 1;
        inner.mux = Mux::new(Side::Node);
        for (stream, ear) in std::mem::take(&mut inner.open) {
            let outcome = Outcome::Lost { why: why.into() };
            ear.frames.push(Frame::Over { stream, outcome });
        }
        self.changed.notify_all();
    }

    /// Whether no agent has answered, or the one that had has gone.
    pub(super) fn is_silent(&self) -> bool {
        self.inner.lock().agent == Agent::Silent
    }

    /// Whether any process runs in the guest for somebody.
    pub fn any_open(&self) -> bool {
        !self.inner.lock().open.is_empty()
    }

    /// Waits for bytes for the port; `None` once the conversation is over.
    pub fn to_send(&self, conversation: u64) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock();
        loop {
            if inner.conversation != conversation {
                return None;
            }
            let mut bytes = Vec::new();
            while bytes.len() < BATCH_BYTES - DATA_BYTES_MAX && inner.mux.next(&mut bytes) {}
            if !bytes.is_empty() {
                return Some(bytes);
            }
            self.changed.wait(&mut inner);
        }
    }

    /// Takes a frame of the guest.
    pub fn heard(&self, frame: Frame) -> Result<(), Violation> {
        let mut inner = self.inner.lock();
        if inner.agent != Agent::Ready {
            return Ok(()); // of an earlier conversation, perhaps of the machine that this one was cloned from
        }
        let frame = inner.mux.received(frame)?;
        let over = matches!(frame, Some(Frame::Over { .. }));
        if let Some((stream, frame)) = frame.and_then(|frame| Some((frame.stream()?, frame)))
            && let Some(ear) = inner.open.get_mut(&stream)
        {
            ear.answered.store(true, Ordering::Relaxed);
            match frame {
                Frame::Credit { .. } => ear.room.notify_one(),
                frame => ear.frames.push(frame),
            }
            if over {
                inner.open.remove(&stream);
            }
        }
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits a moment for an agent that can start processes.
    pub(super) fn ready(&self, name: &str) -> Result<MutexGuard<'_, Inner>, NodeError> {
        let until = Instant::now() + AGENT_WAIT;
        let mut inner = self.inner.lock();
        while inner.agent == Agent::Silent {
            if self.changed.wait_until(&mut inner, until).timed_out() {
                return Err(refused(
                    format!("no agent answers in {name}"),
                    format!("if it still boots, wait; if it has none: floe agent install {name}"),
                ));
            }
        }
        if inner.agent == Agent::Old {
            return Err(refused(
                format!("the agent in {name} is older than this command"),
                format!("replace it: floe agent install {name}"),
            ));
        }
        Ok(inner)
    }

    fn start(self: &Arc<Self>, name: &str, request: &Request) -> Result<Process, NodeError> {
        let Some(bytes) = request.encode() else {
            return Err(usage(
                format!(
                    "the command and its environment are longer than {REQUEST_BYTES_MAX} bytes"
                ),
                format!("write it to a file: floe cp FILE {name}:/tmp/, and run that"),
            ));
        };
        let mut inner = self.ready(name)?;
        inner.next += 1;
        let stream = inner.next;
        if !inner.mux.open(stream, request.terminal.is_some(), bytes) {
            return Err(busy(
                format!("{STREAMS_MAX} commands and copies of {name} are under way"),
                "wait for some to end",
            ));
        }
        let frames = Arc::<Queue>::default(); // bounded by the guest's credit
        let room = Arc::new(Notify::new());
        let answered = Arc::<AtomicBool>::default();
        let kept = Ear {
            frames: frames.clone(),
            room: room.clone(),
            answered: answered.clone(),
        };
        inner.open.insert(stream, kept);
        let conversation = inner.conversation;
        self.changed.notify_all();
        Ok(Process {
            streams: self.clone(),
            conversation,
            stream,
            frames,
            room,
            answered,
            typed: None,
        })
    }

    /// Waits until the agent has said something about a process that was to start.
    fn await_answer(&self, name: &str, process: &Process) -> Result<(), NodeError> {
        let until = Instant::now() + ANSWER_WAIT;
        let mut inner = self.inner.lock();
        while !process.answered.load(Ordering::Relaxed) {
            if inner.conversation != process.conversation {
                return Err(refused(
                    format!("the agent in {name} has ended"),
                    format!("if it does not start again by itself: floe agent install {name}"),
                ));
            }
            if self.changed.wait_until(&mut inner, until).timed_out() {
                return Err(refused(
                    format!("the agent in {name} does not answer any more"),
                    format!("if the machine runs (floe ps {name}): floe agent install {name}"),
                ));
            }
        }
        Ok(())
    }

    /// Does something about a stream of a conversation, unless that is over.
    fn with<T>(&self, conversation: u64, act: impl FnOnce(&mut Mux) -> T) -> Option<T> {
        let mut inner = self.inner.lock();
        if inner.conversation != conversation {
            return None;
        }
        let done = act(&mut inner.mux);
        drop(inner);
        self.changed.notify_all();
        Some(done)
    }
}

/// A process in a guest, for whoever has started it. Dropping it leaves the process to itself.
pub struct Process {
    streams: Arc<Streams>,
    conversation: u64,
    stream: u32,
    frames: Arc<Queue>,
    room: Arc<Notify>,
    answered: Arc<AtomicBool>,
    /// The machine, if what is sent to the process may be typed by a person.
    typed: Option<Typed>,
}

/// What counts as typed by a person.
struct Typed {
    entry: Arc<Entry>,
    /// Messages up to so many bytes; longer ones are files.
    bytes_max: usize,
}

impl Typed {
    /// Returns which part of a request's input counts as typed: all of it on a terminal; single keys in an encrypted connection (ssh).
    fn of(entry: &Arc<Entry>, program: &Program, on_terminal: bool) -> Option<Typed> {
        let bytes_max = match program {
            _ if on_terminal => usize::MAX,
            Program::Dial { .. } => SSH_KEY_BYTES_MAX,
            _ => return None,
        };
        let entry = entry.clone();
        Some(Typed { entry, bytes_max })
    }

    fn note(&self, bytes: usize) {
        if bytes <= self.bytes_max {
            self.entry.has_input();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let stream = self.stream;
        self.streams
            .with(self.conversation, |mux| mux.close(stream));
        self.streams.inner.lock().open.remove(&stream);
    }
}

/// What a process has written, and how it ended.
#[derive(Debug)]
pub(super) struct Said {
    pub outcome: Outcome,
    pub output: Vec<u8>,
    pub errors: Vec<u8>,
}

impl Process {
    /// Waits for its end, and returns it with up to `most` bytes of each of its outputs; `None` if `limit` is over before, or nobody
    /// wants it any more. What is more is read and dropped.
    pub(super) fn outcome(
        &mut self,
        limit: Duration,
        most: usize,
        cancel: &Cancel,
    ) -> Option<Said> {
        let until = from_now(limit);
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let streams = self.streams.clone();
        let _woken = cancel.on_cancel(move || {
            // whoever has looked at the switch under this lock waits by now
            drop(streams.inner.lock());
            streams.changed.notify_all();
        });
        loop {
            // frames are queued under this lock
            let mut inner = self.streams.inner.lock();
            let frame = loop {
                if let Some(frame) = self.frames.pop() {
                    break frame;
                }
                if cancel.is_cancelled() {
                    return None;
                }
                if self
                    .streams
                    .changed
                    .wait_until(&mut inner, until)
                    .timed_out()
                {
                    return None;
                }
            };
            drop(inner);
            match frame {
                Frame::Data { channel, bytes, .. } => {
                    let kept = match channel {
                        Channel::Errors => &mut errors,
                        _ => &mut output,
                    };
                    let room = most.saturating_sub(kept.len()).min(bytes.len());
                    kept.extend(&bytes[..room]);
                    let (stream, length) = (self.stream, bytes.len());
                    self.streams.with(self.conversation, |mux| {
                        mux.consumed(stream, channel, length);
                    });
                }
                Frame::Over { outcome, .. } => {
                    return Some(Said {
                        outcome,
                        output,
                        errors,
                    });
                }
                _ => {}
            }
        }
    }

    /// Carries its streams to and from its user's connection until either ends.
    pub async fn relay(self, user: impl AsyncRead + AsyncWrite) {
        let (from_user, to_user) = tokio::io::split(user);
        let streams = self.streams.clone();
        let line = Line {
            streams: &streams,
            conversation: self.conversation,
            stream: self.stream,
            typed: self.typed.as_ref(),
        };
        if let Some(typed) = line.typed.filter(|typed| typed.bytes_max == usize::MAX) {
            typed.note(0); // somebody has just started it, and waits for what it shows
        }
        let down = line.down(&self.frames, to_user);
        let up = line.up(&self.room, from_user);
        tokio::select! { () = down => (), () = up => () }
    }
}

struct Line<'a> {
    streams: &'a Streams,
    conversation: u64,
    stream: u32,
    typed: Option<&'a Typed>,
}

impl Line<'_> {
    /// From the guest to the user. A user who reads nothing stops the process, and nobody else.
    async fn down(&self, frames: &Queue, mut to_user: impl AsyncWrite + Unpin) {
        loop {
            let mut bytes = Vec::new();
            let mut taken = [0; Channel::ALL.len()];
            let mut over = false;
            let mut next = Some(frames.next().await);
            while let Some(frame) = next {
                over |= matches!(frame, Frame::Over { .. });
                if let Frame::Data { channel, bytes, .. } = &frame {
                    taken[*channel as usize] += bytes.len();
                }
                renumbered(frame).encode(&mut bytes);
                next = match bytes.len() < BATCH_BYTES {
                    true => frames.pop(),
                    false => None,
                };
            }
            if to_user.write_all(&bytes).await.is_err() || to_user.flush().await.is_err() {
                return;
            }
            if over {
                let _ = to_user.shutdown().await; // it has all that there is
                return;
            }
            let stream = self.stream;
            self.streams.with(self.conversation, |mux| {
                for channel in Channel::ALL {
                    mux.consumed(stream, channel, taken[channel as usize]);
                }
            });
        }
    }

    /// From the user to the guest.
    async fn up(&self, room: &Notify, mut from_user: impl AsyncRead + Unpin) {
        let mut messages = Messages::default();
        let mut buffer = vec![0; READ_BYTES];
        let (stream, channel) = (self.stream, Channel::Input);
        loop {
            let count = match from_user.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            };
            for message in messages.feed(&buffer[..count]) {
                match message {
                    Message::Frame(Ok(Frame::Data {
                        channel: Channel::Input,
                        bytes,
                        ..
                    })) => {
                        if let Some(typed) = self.typed {
                            typed.note(bytes.len());
                        }
                        self.send(room, &bytes).await;
                    }
                    Message::Frame(Ok(Frame::End { .. })) => {
                        let end = |mux: &mut Mux| mux.finish(stream, channel);
                        self.streams.with(self.conversation, end);
                    }
                    Message::Frame(Ok(Frame::Signal { number, .. })) => {
                        self.tell(Frame::Signal { stream, number }).await;
                    }
                    Message::Frame(Ok(Frame::Size { columns, rows, .. })) => {
                        let size = Frame::Size {
                            stream,
                            columns,
                            rows,
                        };
                        self.tell(size).await;
                    }
                    // it does not speak the protocol
                    _ => return,
                }
            }
        }
    }

    async fn send(&self, room: &Notify, mut bytes: &[u8]) {
        let (stream, channel) = (self.stream, Channel::Input);
        while !bytes.is_empty() {
            let sent = self.streams.with(self.conversation, |mux| {
                let count = mux.room(stream, channel).min(bytes.len());
                mux.send(stream, channel, &bytes[..count]);
                count
            });
            match sent {
                // the process is over, which the other direction reports
                None => return,
                Some(0) => room.notified().await,
                Some(count) => bytes = &bytes[count..],
            }
        }
    }

    async fn tell(&self, frame: Frame) {
        let tell = |mux: &mut Mux| mux.tell(frame.clone());
        while self.streams.with(self.conversation, tell) == Some(false) {
            tokio::time::sleep(CROWDED).await;
        }
    }
}

/// Returns a frame with the number that a user's connection knows.
fn renumbered(mut frame: Frame) -> Frame {
    match &mut frame {
        Frame::Data { stream, .. }
        | Frame::End { stream, .. }
        | Frame::Started { stream, .. }
        | Frame::Over { stream, .. } => *stream = ONLY,
        // a guest sends no others to a user
        _ => {}
    }
    frame
}

/// Returns an error if a machine has no port for an agent.
pub(super) fn check_port(name: &str, vm: &Machine) -> Result<(), NodeError> {
    if vm.has_floe_port() {
        return Ok(());
    }
    Err(refused(
        format!("{name} has no port for floe's agent"),
        format!("it gets one at its next cold start: floe stop {name} && floe start {name}"),
    ))
}

/// Returns the request for a process of root's, which the agent ends after `limit`.
pub(super) fn as_root(what: What, arguments: Vec<String>, limit: Duration) -> Request {
    Request {
        what,
        arguments,
        environment: Vec::new(),
        user: String::new(),
        directory: "/".into(),
        terminal: None,
        timeout_ms: Some(limit.as_millis().min(u128::from(u64::MAX)) as u64),
        detached: false,
    }
}

fn request_of(request: &ExecRequest) -> Request {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let form = |bytes: bool, sparse: bool| match (bytes, sparse) {
        (true, _) => "bytes",
        (false, true) => "sparse",
        (false, false) => "archive",
    };
    let (what, arguments): (What, Vec<String>) = match &request.program {
        Program::Command(words) => (What::Command, words.clone()),
        Program::Send {
            path,
            bytes,
            sparse,
        } => (What::Tool, words(&["send", form(*bytes, *sparse), path])),
        Program::Receive {
            path,
            name,
            bytes,
            sparse,
        } => (
            What::Tool,
            words(&["receive", form(*bytes, *sparse), path, name]),
        ),
        Program::Dial { port } => (What::Tool, words(&["dial", &port.to_string()])),
        Program::Authorize { key } => (What::Tool, words(&["authorize", key])),
    };
    Request {
        what,
        arguments,
        environment: request.environment.clone(),
        user: request.user.clone(),
        directory: request.directory.clone(),
        terminal: request.terminal.map(|size| (size.columns, size.rows)),
        timeout_ms: request.timeout_ms,
        detached: request.detach,
    }
}

impl Agents {
    /// Starts a process in a machine's guest.
    pub fn exec(&self, name: &str, request: &ExecRequest) -> Result<Process, NodeError> {
        if matches!(&request.program, Program::Command(words) if words.is_empty()) {
            return Err(usage(
                "there is no command",
                "name one: floe exec NAME -- ls",
            ));
        }
        let (program, on_terminal) = (&request.program, request.terminal.is_some());
        let request = request_of(request);
        let texts = [&request.arguments, &request.environment]
            .into_iter()
            .flatten();
        if texts
            .chain([&request.user, &request.directory])
            .any(|text| text.contains('\0'))
        {
            return Err(usage(
                "a zero byte can't be passed to a process",
                "leave it out",
            ));
        }
        let entry = self.inventory.get(name)?;
        let mut process = self.begin(name, &entry.vm()?, &request)?;
        process.typed = Typed::of(&entry, program, on_terminal);
        Ok(process)
    }

    /// Starts a process in a QEMU's guest; the agent has answered about it when this returns.
    pub(super) fn begin(
        &self,
        name: &str,
        vm: &Arc<Machine>,
        request: &Request,
    ) -> Result<Process, NodeError> {
        check_port(name, vm)?;
        let streams = self.streams_of(vm);
        let entry = self.inventory.get(name).ok();
        let waited = entry.as_ref().map_or(0, |entry| entry.waits());
        let silent = |error: NodeError| match &entry {
            Some(entry) => why_silent(entry, waited, error),
            None => error,
        };
        let started = streams.start(name, request);
        let process = started.map_err(|error| match streams.is_silent() {
            true => silent(error),
            false => error,
        })?;
        streams.await_answer(name, &process).map_err(silent)?;
        Ok(process)
    }
}

#[cfg(test)]
mod tests;

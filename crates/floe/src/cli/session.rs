//! The streams of a process in a guest, on a connection to the node.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::error::CliError;
use super::visible;
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest};
use floe_guest::exec::frame::{Channel, DATA_BYTES_MAX, Frame, Message, Messages, Outcome};

/// The number of the one stream of a connection.
pub const ONLY: u32 = 1;
/// How much of what a tool says about its failure is kept, in bytes.
const ERRORS_BYTES_MAX: usize = 4096;
/// How much is read at a time.
const READ_BYTES: usize = 64 << 10;

/// A process of a guest.
pub struct Session {
    machine: String,
    stream: UnixStream,
    messages: Messages,
    ready: VecDeque<Frame>,
}

impl Session {
    /// Starts a process.
    pub fn start(
        client: &Client,
        machine: &str,
        request: &ExecRequest,
    ) -> Result<Session, CliError> {
        let (stream, early) = client.exec(machine, request)?;
        let mut session = Session {
            machine: machine.to_owned(),
            stream,
            messages: Messages::default(),
            ready: VecDeque::new(),
        };
        session
            .feed(&early)
            .map_err(|error| broke(machine, error))?;
        Ok(session)
    }

    /// The connection, to wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// A second handle to the connection, to cut it.
    pub fn line(&self) -> Result<UnixStream, CliError> {
        let line = self.stream.try_clone();
        line.map_err(|e| CliError::failed("cannot copy a descriptor", e))
    }

    /// Makes reads and writes of the connection return at once instead of waiting.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// The connection, to write encoded frames to.
    pub fn writer(&self) -> impl Write + '_ {
        &self.stream
    }

    fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        for message in self.messages.feed(bytes) {
            match message {
                Message::Frame(Ok(frame)) => self.ready.push_back(frame),
                _ => return Err(io::Error::other("the node says what is no frame")),
            }
        }
        Ok(())
    }

    /// Returns a frame that has come, without reading.
    pub fn come(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Reads once. Returns false at the end.
    pub fn read(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; READ_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(count) => self.feed(&buffer[..count]).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
            // the node was not done with what it got from here
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Waits for the next frame and returns it. If the connection ends, that is a frame which says that the process is lost.
    fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.come() {
                return Ok(frame);
            }
            if !self.read()? {
                return Ok(lost());
            }
        }
    }

    /// Reads until the process ends. Unless it ended well, returns an error with what it wrote to standard error.
    pub fn conclude(mut self, mut said: Vec<u8>) -> Result<(), CliError> {
        loop {
            match self.next().map_err(|error| broke(&self.machine, error))? {
                Frame::Data {
                    channel: Channel::Errors,
                    bytes,
                    ..
                } => keep(&mut said, &bytes),
                Frame::Over { outcome, .. } => return self.judge(outcome, &said),
                _ => {}
            }
        }
    }

    fn judge(&self, outcome: Outcome, said: &[u8]) -> Result<(), CliError> {
        let said = String::from_utf8_lossy(said);
        match outcome {
            Outcome::Exited(0) => {
                if !said.is_empty() {
                    eprint!("{}", visible::text(&said));
                }
                Ok(())
            }
            Outcome::Lost { why } => Err(gone(&self.machine, &why)),
            Outcome::NotStarted { why, .. } => {
                let text = format!("{} cannot do that: {why}", self.machine);
                Err(CliError::new(ErrorCode::Failed, text, ""))
            }
            _ => {
                let text = format!("{}: {}", self.machine, said.trim_end());
                Err(CliError::new(ErrorCode::Failed, text, ""))
            }
        }
    }
}

fn lost() -> Frame {
    Frame::Over {
        stream: ONLY,
        outcome: Outcome::Lost {
            why: "the node has ended".into(),
        },
    }
}

/// Whether a write failed because the process has ended: the node takes nothing more then, and its last output can still be read.
pub fn is_over(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// The error for a process of which nothing more is known.
pub fn gone(machine: &str, why: &str) -> CliError {
    let text = format!("the connection to the guest of {machine} ended: {why}");
    let fix = format!("what runs there goes on; look with floe ps {machine} and floe exec");
    CliError::new(ErrorCode::Unreachable, text, fix)
}

/// The error for a connection that failed.
pub fn broke(machine: &str, error: io::Error) -> CliError {
    CliError::failed(&format!("the connection to {machine} broke"), error)
}

fn keep(said: &mut Vec<u8>, bytes: &[u8]) {
    let room = ERRORS_BYTES_MAX.saturating_sub(said.len());
    said.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// A process's output, to read.
pub struct Output<'a> {
    /// The process.
    pub session: &'a mut Session,
    /// What it has said about errors.
    pub said: Vec<u8>,
    /// How it ended, if it has.
    outcome: Option<Outcome>,
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> Output<'a> {
    /// Makes a reader of a process's output.
    pub fn new(session: &'a mut Session) -> Output<'a> {
        Output {
            session,
            said: Vec::new(),
            outcome: None,
            bytes: Vec::new(),
            at: 0,
        }
    }

    /// Returns an error unless the process ended well. `read` is how reading its output went.
    pub fn conclude(self, read: io::Result<()>, what: &str) -> Result<(), CliError> {
        // what the guest says is why there is too little to read
        match (self.outcome, read) {
            (Some(outcome), Ok(())) => self.session.judge(outcome, &self.said),
            (Some(outcome), Err(error)) => {
                self.session.judge(outcome, &self.said)?;
                Err(CliError::failed(what, error))
            }
            (None, Err(error)) => Err(CliError::failed(what, error)),
            (None, Ok(())) => Err(gone(&self.session.machine, "it is not over")),
        }
    }

    /// Reads what is left, which is the process's end.
    pub fn finish(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }
}

impl Read for Output<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.bytes.len() {
            if self.outcome.is_some() {
                return Ok(0);
            }
            match self.session.next()? {
                Frame::Data {
                    channel: Channel::Output,
                    bytes,
                    ..
                } => (self.bytes, self.at) = (bytes, 0),
                Frame::Data { bytes, .. } => keep(&mut self.said, &bytes),
                Frame::Over { outcome, .. } => self.outcome = Some(outcome),
                _ => {}
            }
        }
        let count = out.len().min(self.bytes.len() - self.at);
        out[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// A process's input, to write.
pub struct Input<'a> {
    /// The process.
    pub session: &'a mut Session,
}

impl Input<'_> {
    /// Ends the input.
    pub fn finish(&mut self) -> io::Result<()> {
        self.frame(&Frame::End {
            stream: ONLY,
            channel: Channel::Input,
        })
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.session.stream.write_all(&bytes)
    }
}

impl Write for Input<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(DATA_BYTES_MAX)];
        if !piece.is_empty() {
            self.frame(&Frame::Data {
                stream: ONLY,
                channel: Channel::Input,
                bytes: piece.to_vec(),
            })?;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

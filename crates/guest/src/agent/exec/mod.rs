//! The processes that users of the node have started here, and their streams.
//!
//! A process belongs to nobody but the guest: when its command goes away, it goes on. Then its input ends, and what it writes
//! is read and dropped, so that it does not stop at a full pipe. If its command was ended, its terminal hangs up, as that of
//! any session does; if the node was restarted, or this is a clone of the machine in which it was started, the terminal stays.
//!
//! A command whose time is over, or whose user wants its end, is [ended](ending) with all that it has [started](tree).

mod ending;
mod groups;
mod start;
mod tree;
mod user;
mod walk;

use super::sys;
use crate::exec::frame::{Channel, DATA_BYTES_MAX, Frame, Outcome};
use crate::exec::mux::{Mux, Side, Violation};
use crate::exec::request::{Request, What};
use ending::Ending;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use tree::{Tree, Trees};

/// How long the rest of a terminal's output may take after its process has ended, in ms.
const LAST_WORDS_MS: u64 = 1_000;
/// Most processes and pipes that nobody listens to; beyond that the oldest lose what they write to.
const LEFT_MAX: usize = 128;
/// How much of a stream is read in one round: with what makes frames of it, it is as much as the kernel's driver takes in two
/// writes of 32 KiB.
const READ_BYTES: usize = 64_000;
/// How many bytes are handed to the port at a time, at most: a frame more than is read at a time.
const BATCH_BYTES: usize = READ_BYTES + (16 << 10);
/// How many pieces of its input a process is given at a time.
const PIECES_MAX: usize = 16;
/// The key that ends a terminal's input.
const END_KEY: u8 = 4;

/// The output channels, in the order of [`Process::outputs`].
const OUTPUTS: [Channel; 2] = [Channel::Output, Channel::Errors];

struct Process {
    /// Its stream; `None` once nobody listens.
    stream: Option<u32>,
    pid: u32,
    /// It and what it has started.
    tree: Tree,
    status: Option<ExitStatus>,
    is_tool: bool,
    terminal: bool,
    input: Option<File>,
    /// Bytes for its input that it has not taken yet.
    unread: VecDeque<Vec<u8>>,
    input_ends: bool,
    outputs: [Option<File>; 2],
    /// After its end: how many bytes of each output, not read yet, it had written itself.
    left: [usize; 2],
    /// When the rest of its output is no longer waited for.
    last_words_ms: u64,
    ending: Ending,
}

/// What a descriptor that is waited for belongs to.
#[derive(Clone, Copy)]
pub(super) enum Polled {
    ChildEnds,
    Input(usize),
    Output(usize, usize),
}

/// All processes.
pub(super) struct Processes {
    mux: Mux,
    /// Whether the node knows frames.
    open: bool,
    all: Vec<Process>,
    trees: Trees,
    child_ends: File,
    /// Where output is read to.
    buffer: Vec<u8>,
}

impl Processes {
    pub fn new() -> io::Result<Processes> {
        Ok(Processes {
            mux: Mux::new(Side::Guest),
            open: false,
            all: Vec::new(),
            trees: Trees::new(),
            child_ends: sys::child_ends()?,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// A node has said hello: whatever an earlier one asked for, this one knows nothing of it.
    pub fn begin(&mut self, frames: bool) {
        self.mux = Mux::new(Side::Guest);
        self.open = frames;
        for process in &mut self.all {
            process.leave(false);
        }
        self.forget_oldest();
    }

    /// Lists what is to be waited for.
    pub fn poll<'a>(&'a self, fds: &mut Vec<(BorrowedFd<'a>, i16)>, polled: &mut Vec<Polled>) {
        fds.push((self.child_ends.as_fd(), libc::POLLIN));
        polled.push(Polled::ChildEnds);
        for (at, process) in self.all.iter().enumerate() {
            if let Some(input) = process
                .input
                .as_ref()
                .filter(|_| !process.unread.is_empty())
            {
                fds.push((input.as_fd(), libc::POLLOUT));
                polled.push(Polled::Input(at));
            }
            for (which, output) in process.outputs.iter().enumerate() {
                if let Some(output) = output.as_ref().filter(|_| self.room(process, which) > 0) {
                    fds.push((output.as_fd(), libc::POLLIN));
                    polled.push(Polled::Output(at, which));
                }
            }
        }
    }

    /// Returns the time of the next thing to do without an event, in ms.
    pub fn next_ms(&self) -> Option<u64> {
        let times = self.all.iter().flat_map(|process| {
            // a pipe's end is an event; that of a terminal which others hold is not
            let over = process.ending.is_done() && process.stream.is_some() && process.terminal;
            let words = over.then_some(process.last_words_ms);
            [words, process.ending.next_ms()]
        });
        times.flatten().min()
    }

    fn room(&self, process: &Process, which: usize) -> usize {
        match process.stream {
            None => READ_BYTES,
            Some(stream) => {
                let room = self.mux.room(stream, OUTPUTS[which]).min(READ_BYTES);
                match process.status {
                    Some(_) => room.min(process.left[which]),
                    None => room,
                }
            }
        }
    }

    /// Does what a descriptor is ready for.
    pub fn ready(&mut self, now_ms: u64, polled: Polled) {
        match polled {
            Polled::ChildEnds => self.children_ended(now_ms),
            Polled::Input(at) => self.feed(at),
            Polled::Output(at, which) => self.listen(at, which),
        }
    }

    fn children_ended(&mut self, now_ms: u64) {
        let mut signals = [0; 1024];
        while self
            .child_ends
            .read(&mut signals)
            .is_ok_and(|count| count > 0)
        {}
        for process in self.all.iter_mut().filter(|p| p.status.is_none()) {
            let Some(status) = sys::status_of(process.pid) else {
                continue;
            };
            process.status = Some(status);
            process.ending.over(now_ms);
            process.last_words_ms = now_ms + LAST_WORDS_MS;
            for (left, output) in process.left.iter_mut().zip(&process.outputs) {
                *left = match (output, process.terminal) {
                    (None, _) => 0,
                    // the kernel hangs the terminal up, and says when all of it was read
                    (Some(_), true) => usize::MAX,
                    // what others that hold the pipe still write is not the process's
                    (Some(output), false) => sys::readable(output.as_fd()).unwrap_or(0),
                };
            }
        }
    }

    fn feed(&mut self, at: usize) {
        let process = &mut self.all[at];
        while let (Some(input), false) = (&mut process.input, process.unread.is_empty()) {
            let unread = process.unread.iter().take(PIECES_MAX);
            let pieces: Vec<IoSlice<'_>> = unread.map(|bytes| IoSlice::new(bytes)).collect();
            let count = match input.write_vectored(&pieces) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // it reads no more
                    process.input = None;
                    break;
                }
            };
            process.took(count);
            if let Some(stream) = process.stream {
                self.mux.consumed(stream, Channel::Input, count);
            }
        }
        if process.input.is_none() {
            let dropped = process.unread.drain(..).map(|bytes| bytes.len()).sum();
            if let Some(stream) = process.stream {
                self.mux.consumed(stream, Channel::Input, dropped);
            }
        }
        if process.input_ends && process.unread.is_empty() {
            process.input_ends = false;
            match (process.terminal, &mut process.input) {
                // a terminal that takes nothing more has a line that its reader must take first
                (true, Some(input)) => drop(input.write(&[END_KEY])),
                _ => process.input = None,
            }
        }
    }

    fn listen(&mut self, at: usize, which: usize) {
        let room = self.room(&self.all[at], which);
        let process = &mut self.all[at];
        let Some(output) = process.outputs[which].as_mut().filter(|_| room > 0) else {
            return;
        };
        let count = match output.read(&mut self.buffer[..room]) {
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            // a terminal that nobody has open any more
            Err(_) => 0,
        };
        if process.status.is_some() {
            process.left[which] = process.left[which].saturating_sub(count);
        }
        if count == 0 {
            process.outputs[which] = None;
            process.left[which] = 0;
        }
        match process.stream {
            Some(stream) if count == 0 => self.mux.finish(stream, OUTPUTS[which]),
            Some(stream) => self.mux.send(stream, OUTPUTS[which], &self.buffer[..count]),
            None => {}
        }
    }

    /// Gives every process what has come for it.
    pub fn feed_all(&mut self) {
        for at in 0..self.all.len() {
            if !self.all[at].unread.is_empty() {
                self.feed(at);
            }
        }
    }

    /// Takes a frame of the node. Input waits for [`Processes::feed_all`], so that what comes together is handed on together.
    pub fn heard(&mut self, now_ms: u64, frame: Frame) -> Result<(), Violation> {
        if !self.open {
            return Ok(()); // of an earlier life of this machine
        }
        let Some(frame) = self.mux.received(frame)? else {
            return Ok(());
        };
        let of = |frame: &Frame| {
            let stream = frame.stream();
            let mut all = self.all.iter();
            all.position(|process| stream.is_some() && process.stream == stream)
        };
        match (of(&frame), frame) {
            (
                _,
                Frame::Open {
                    stream, request, ..
                },
            ) => self.start(now_ms, stream, &request),
            (Some(at), Frame::Data { bytes, .. }) => {
                self.all[at].unread.push_back(bytes);
            }
            (Some(at), Frame::End { .. }) => {
                self.all[at].input_ends = true;
                self.feed(at);
            }
            (Some(at), Frame::Signal { number, .. }) => self.all[at].signal(now_ms, number),
            (Some(at), Frame::Size { columns, rows, .. }) => {
                if let Some(input) = self.all[at]
                    .input
                    .as_ref()
                    .filter(|_| self.all[at].terminal)
                {
                    let _ = sys::set_size(input.as_fd(), columns, rows);
                }
            }
            (Some(at), Frame::Close { stream }) => {
                self.all[at].leave(true);
                self.mux.end(stream, Outcome::Exited(0));
                self.feed(at);
                self.forget_oldest();
            }
            // a detached process's stream has ended already; so has one that did not start
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, now_ms: u64, stream: u32, request: &[u8]) {
        let Some(request) = Request::decode(request) else {
            let why = "the agent does not understand the request; is the node newer?".into();
            return self.mux.end(stream, Outcome::NotStarted { code: 126, why });
        };
        let (started, tree) = match self.trees.start(&request) {
            Ok(started) => started,
            Err((code, why)) => {
                return self.mux.end(stream, Outcome::NotStarted { code, why });
            }
        };
        let pid = started.pid;
        self.mux.tell(Frame::Started { stream, pid });
        if request.detached {
            self.mux.end(stream, Outcome::Exited(0));
        }
        self.all.push(Process {
            stream: (!request.detached).then_some(stream),
            pid,
            tree,
            status: None,
            is_tool: request.what == What::Tool,
            terminal: request.terminal.is_some(),
            input: started.input,
            unread: VecDeque::new(),
            input_ends: false,
            outputs: started.outputs,
            left: [0; 2],
            last_words_ms: 0,
            ending: Ending::new(request.timeout_ms.map(|ms| now_ms.saturating_add(ms))),
        });
        self.forget_oldest();
    }

    /// Ends what is over, by time or by itself.
    pub fn settle(&mut self, now_ms: u64) {
        for process in &mut self.all {
            let Process { ending, tree, .. } = process;
            if let Some(number) = ending.step(now_ms, || tree.is_left()) {
                tree.signal(number);
            }
        }
        for process in self.all.iter_mut().filter(|p| p.ending.is_done()) {
            let said =
                process.left == [0; 2] || now_ms >= process.last_words_ms && process.terminal;
            if let Some(stream) = process.stream.filter(|_| said) {
                self.mux.end(stream, process.outcome());
                process.stream = None;
                process.input = None;
                process.unread.clear();
            }
        }
        let mut at = 0;
        while let Some(process) = self.all.get(at) {
            match process.is_of_use() {
                true => at += 1,
                false => self.trees.end(self.all.remove(at).tree),
            }
        }
    }

    fn forget_oldest(&mut self) {
        let mut left = self.all.iter().filter(|p| p.stream.is_none()).count();
        for process in &mut self.all {
            if left <= LEFT_MAX {
                break;
            }
            if process.stream.is_none() {
                left -= 1;
                process.outputs = [None, None];
            }
        }
    }

    /// Returns the next bytes for the port; empty if there are none for now.
    pub fn next_frames(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.open && bytes.len() < BATCH_BYTES - DATA_BYTES_MAX && self.mux.next(&mut bytes) {
        }
        bytes
    }
}

impl Process {
    /// Forgets so many bytes of its input, which it has taken.
    fn took(&mut self, mut count: usize) {
        while let Some(bytes) = self.unread.front_mut() {
            if count < bytes.len() {
                bytes.drain(..count);
                return;
            }
            count -= bytes.len();
            self.unread.pop_front();
        }
    }

    /// Returns whether it is still to be kept: because it runs, somebody waits for it, or others still hold its pipes, which must be read
    /// on.
    fn is_of_use(&self) -> bool {
        let open = self.outputs.iter().any(Option::is_some);
        !self.ending.is_done() || self.stream.is_some() || open && !self.terminal
    }

    fn signal(&mut self, now_ms: u64, number: u8) {
        if ending::wants_end(number) {
            if self.ending.told(now_ms, number) {
                self.tree.signal(number);
            }
        } else if self.status.is_none() {
            // once it was waited for, its number may be another's
            sys::signal_group(self.pid, number);
        }
    }

    /// Nobody listens any more; `on_purpose` if whoever started it has ended that.
    fn leave(&mut self, on_purpose: bool) {
        self.stream = None;
        if !self.terminal {
            self.input_ends = true;
        }
        if self.is_tool || (self.terminal && on_purpose) {
            // a tool sees that what it wrote or read is over; a terminal's session is hung up by the kernel
            self.outputs = [None, None];
            self.unread.clear();
            self.input = None;
        }
        if self.unread.is_empty() && self.input_ends {
            self.input = None;
        }
    }

    fn outcome(&self) -> Outcome {
        let Some(status) = self.status.filter(|_| !self.ending.timed_out()) else {
            return Outcome::TimedOut;
        };
        match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Exited(code as u8), // eight bits, by the kernel
            (None, signal) => Outcome::Signalled(signal.unwrap_or(0) as u8),
        }
    }
}

//! The guests' consoles: lines of text from QEMU's sockets, which exist as long as QEMU does, whatever happens to the
//! node.
use super::model::{Guest, Line, Progress};
use super::schedule::Moment;
use super::storm::Event;
use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How often a reader checks whether it should end, and how often a closed console is tried again.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest line, in bytes: a guest's own lines have some hundred.
const LINE_BYTES_MAX: usize = 4096;

/// State that the threads of a run share.
pub struct Shared {
    /// When the run began: all times are relative to this.
    pub start: Instant,
    /// The two machines.
    pub guests: Mutex<Vec<Guest>>,
    /// Events for the storm.
    pub events: Mutex<Sender<Event>>,
    /// Set at the end of the run.
    pub over: AtomicBool,
    /// Odd from a blow until everything is up again.
    pub blows: std::sync::atomic::AtomicU64,
    /// Held while a machine is captured or forked, because it refuses a second operation.
    pub busy: [Mutex<()>; 2],
}

impl Shared {
    /// Returns the time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sends an event to the storm, which may have ended.
    pub fn tell(&self, event: Event) {
        let _ = self.events.lock().send(event);
    }

    /// Reports that work of this kind begins.
    pub fn began(&self, moment: Moment) {
        self.tell(Event::Began(moment));
    }

    /// Returns a value that tells later whether there was a blow in between.
    pub fn calm(&self) -> Calm<'_> {
        Calm {
            shared: self,
            blows: self.blows.load(Relaxed),
        }
    }
}

/// Tells whether anything was hit since it was made, or was down at that moment.
pub struct Calm<'a> {
    shared: &'a Shared,
    blows: u64,
}

impl Calm<'_> {
    /// Returns whether nothing was hit or down.
    pub fn held(&self) -> bool {
        self.blows.is_multiple_of(2) && self.shared.blows.load(Relaxed) == self.blows
    }
}

/// A console from which lines are read.
struct Console {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Console {
    fn open(socket: &Path) -> std::io::Result<Console> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
        Ok(Console {
            stream,
            pending: Vec::new(),
        })
    }

    /// Returns the lines that have arrived; none if nothing has arrived for a while. An error means the end of the
    /// console.
    fn lines(&mut self) -> std::io::Result<Vec<String>> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => self.pending.extend_from_slice(&buffer[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        let mut lines = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        if self.pending.len() > LINE_BYTES_MAX {
            self.pending.clear();
        }
        Ok(lines)
    }
}

/// Reads the console of one of the two machines until the run is over.
pub fn follow(shared: Arc<Shared>, index: usize, socket: PathBuf) {
    while !shared.over.load(Relaxed) {
        let Ok(mut console) = Console::open(&socket) else {
            std::thread::sleep(LOOK_EVERY);
            continue;
        };
        while let Ok(lines) = console.lines() {
            for line in lines {
                let now = shared.now();
                let (answer, stepped) = {
                    let mut guests = shared.guests.lock();
                    // the run has ended and removed them
                    let Some(guest) = guests.get_mut(index) else {
                        return;
                    };
                    let steps = guest.steps;
                    (guest.hear(now, &line), guest.steps > steps)
                };
                if stepped {
                    shared.tell(Event::Progress(index));
                }
                if let Some(answer) = answer {
                    let _ = console.stream.write_all(answer.as_bytes());
                }
            }
            if shared.over.load(Relaxed) {
                return;
            }
        }
    }
}

/// Steps in which a guest reads its whole disk and memory: 16, and one that may already be under way.
pub(super) const STEPS_FOR_ALL: u64 = 17;
/// Writes per step.
pub(super) const WRITES_PER_STEP: u64 = 16;

/// What came of a copy's verification of its whole disk and memory.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// What is wrong.
    pub wrong: Vec<String>,
    /// How far the copy has come.
    pub now: Progress,
}

/// Reads a copy's console until the copy has verified its whole disk and memory. `at_least` is what was acknowledged
/// before the copy was made, and `original` what its original had found wrong by then.
pub fn verify_copy(
    socket: &Path,
    at_least: u64,
    original: &Progress,
    patience: Duration,
    go_on: impl Fn() -> bool,
) -> anyhow::Result<Verified> {
    let until = Instant::now() + patience;
    let mut console = Console::open(socket).context("its console")?;
    let mut first: Option<u64> = None;
    let mut wrong = Vec::new();
    loop {
        for line in console.lines()? {
            match Line::parse(&line) {
                Some(Line::Bad(what)) => wrong.push(what),
                Some(Line::Hello) => bail!("its guest has started anew: it lost its memory"),
                Some(Line::Progress(now)) => {
                    let first = *first.get_or_insert(now.acked);
                    if first < at_least {
                        wrong.push(format!(
                            "it is at write {first}, but {at_least} was acknowledged before"
                        ));
                        return Ok(Verified { wrong, now });
                    }
                    if now.acked >= first + STEPS_FOR_ALL * WRITES_PER_STEP {
                        let more = now.lost > original.lost
                            || now.wrong_disk > original.wrong_disk
                            || now.wrong_ram > original.wrong_ram;
                        if more && wrong.is_empty() {
                            wrong.push(format!("it found {now:?}"));
                        }
                        return Ok(Verified { wrong, now });
                    }
                }
                None => {}
            }
        }
        if !go_on() {
            bail!("the run is over");
        }
        if Instant::now() > until {
            bail!("it did not verify everything within {patience:?}; it began at {first:?}");
        }
    }
}

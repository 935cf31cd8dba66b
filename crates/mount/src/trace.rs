//! A machine's trace: which chunk it touched first, when, and how long it waited. Always on: recording an access costs a lock
//! and some bytes of memory, and never waits for the disk; a thread of its own (`crew`) appends to the files four times a second.

use crate::MountError;
use floe_image::{Access, Hash, TraceHeader, TraceReader, TraceWriter};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file's name in the machine's directory.
const FILE: &str = "trace";
/// Most bytes of a trace: 8 M accesses at their longest, 32 GiB of chunks. Later accesses aren't recorded.
const TRACE_BYTES_MAX: u64 = 208 << 20;

/// How often traces are written out.
const WRITE_OUT_EVERY: Duration = Duration::from_millis(250);
/// Most bytes that wait to be written out. If the disk takes nothing for so long, later accesses aren't recorded.
const WAITING_BYTES_MAX: usize = 4 << 20;

pub(crate) struct Trace {
    path: PathBuf,
    start_unix_us: u64,
    state: Mutex<State>,
    /// Locked while it is written, and before `state`, which is not locked for that long.
    file: Mutex<File>,
}

/// Ends the thread that writes traces out.
#[derive(Default)]
pub(crate) struct Writer {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Writer {
    /// Waits until traces are to be written out; returns false once this is closed.
    pub(crate) fn next(&self) -> bool {
        let mut closed = self.closed.lock();
        if !*closed {
            self.changed.wait_for(&mut closed, WRITE_OUT_EVERY);
        }
        !*closed
    }

    pub(crate) fn close(&self) {
        *self.closed.lock() = true;
        self.changed.notify_all();
    }
}

/// How many pauses are remembered, to subtract them from the waiting time of accesses.
const PAUSES_REMEMBERED: usize = 16;

struct State {
    /// Microseconds of all pauses that are over.
    paused_us: u64,
    /// Start and end of the last pauses, in Unix microseconds; a pause that goes on ends at `u64::MAX`.
    pauses: VecDeque<(u64, u64)>,
    writer: TraceWriter<Vec<u8>>,
    /// Bytes that were written out, the file's length.
    bytes: u64,
}

fn now_unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros() as u64)
}

impl Trace {
    /// Continues the trace in `dir` if it is of this machine and image, else starts a new one.
    pub(crate) fn open(dir: &Path, image: Hash, machine: &str) -> Result<Self, MountError> {
        let path = dir.join(FILE);
        let io = |e| MountError::io("open the trace", &path)(e);
        let old = match std::fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Ok(found) if found.len() > TRACE_BYTES_MAX => Vec::new(),
            found => found.and_then(|_| std::fs::read(&path)).map_err(io)?,
        };
        let going_on = TraceReader::new(&old)
            .ok()
            .filter(|r| r.header().image == image && r.header().machine == machine);
        let (start_unix_us, writer, bytes) = match going_on {
            Some(mut reader) => {
                reader.by_ref().for_each(drop);
                (
                    reader.header().start_unix_us,
                    TraceWriter::resume(Vec::new(), &reader),
                    reader.valid_bytes() as u64,
                )
            }
            None => {
                let header = TraceHeader {
                    image,
                    machine: machine.to_owned(),
                    start_unix_us: now_unix_us(),
                };
                (
                    header.start_unix_us,
                    TraceWriter::new(Vec::new(), &header).map_err(io)?,
                    0,
                )
            }
        };
        let file = floe_store::private::options()
            .append(true)
            .open(&path)
            .map_err(io)?;
        file.set_len(bytes).map_err(io)?;
        Ok(Self {
            path,
            start_unix_us,
            state: Mutex::new(State {
                paused_us: 0,
                pauses: VecDeque::new(),
                writer,
                bytes,
            }),
            file: Mutex::new(file),
        })
    }

    /// Records the first access to a chunk, which was answered now after `wait_us` microseconds.
    pub(crate) fn push(&self, region: u8, chunk: u64, wait_us: u64) {
        let Ok(chunk) = u32::try_from(chunk) else {
            return;
        };
        let now = now_unix_us();
        let mut state = self.state.lock();
        let wait_us = wait_us - state.paused_between(now.saturating_sub(wait_us), now);
        let t_us = now
            .saturating_sub(self.start_unix_us)
            .saturating_sub(state.paused_until(now))
            .saturating_sub(wait_us);
        if state.bytes < TRACE_BYTES_MAX && state.writer.get_mut().len() < WAITING_BYTES_MAX {
            // Writing to memory fails only for a region number that no manifest allows.
            let _ = state.writer.push(Access {
                region,
                chunk,
                t_us,
                wait_us,
            });
        }
    }

    /// Notes that the machine is paused for buffering, or goes on. No time passes in a trace in between.
    pub(crate) fn pause(&self, pause: bool) {
        self.state.lock().pause(pause, now_unix_us());
    }

    /// Appends what was recorded to the file, and returns its path.
    pub(crate) fn write_out(&self) -> Result<&Path, MountError> {
        let mut file = self.file.lock();
        let (bytes, length) = {
            let mut state = self.state.lock();
            (std::mem::take(state.writer.get_mut()), state.bytes)
        };
        let written = file.write_all(&bytes);
        let mut state = self.state.lock();
        if let Err(error) = written {
            // Accesses are told relative to those before them: what a full disk has not taken is written again, and whole.
            let _ = file.set_len(length);
            let newer = std::mem::replace(state.writer.get_mut(), bytes);
            state.writer.get_mut().extend_from_slice(&newer);
            return Err(MountError::io("append to the trace", &self.path)(error));
        }
        state.bytes += bytes.len() as u64;
        Ok(&self.path)
    }
}

impl State {
    fn pause(&mut self, pause: bool, now: u64) {
        let open = self.pauses.back().is_some_and(|p| p.1 == u64::MAX);
        if pause && !open {
            self.pauses.push_back((now, u64::MAX));
            if self.pauses.len() > PAUSES_REMEMBERED {
                self.pauses.pop_front();
            }
        } else if !pause
            && open
            && let Some(last) = self.pauses.back_mut()
        {
            last.1 = now;
            self.paused_us += now.saturating_sub(last.0);
        }
    }

    /// Returns the microseconds of pauses between two times.
    fn paused_between(&self, from: u64, to: u64) -> u64 {
        let within = |p: &(u64, u64)| p.1.min(to).saturating_sub(p.0.max(from));
        self.pauses.iter().map(within).sum::<u64>().min(to - from)
    }

    /// Returns the microseconds of all pauses up to `now`.
    fn paused_until(&self, now: u64) -> u64 {
        let open = self.pauses.back().filter(|p| p.1 == u64::MAX);
        self.paused_us + open.map_or(0, |p| now.saturating_sub(p.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn time_in_pauses_is_neither_the_machines_nor_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let trace = Trace::open(dir.path(), Hash::of(b"x"), "web").unwrap();
        let mut state = trace.state.lock();
        state.pause(true, 1000);
        state.pause(true, 1100);
        assert_eq!(state.paused_until(1500), 500);
        state.pause(false, 2000);
        state.pause(false, 2500);
        assert_eq!(state.paused_until(5000), 1000);
        assert_eq!(state.paused_between(900, 1200), 200);
        assert_eq!(state.paused_between(1500, 2300), 500);
        assert_eq!(state.paused_between(2000, 2300), 0);
    }

    #[test]
    fn a_trace_goes_on_after_a_crash_that_cut_its_tail() {
        let dir = tempfile::tempdir().unwrap();
        let trace = Trace::open(dir.path(), Hash::of(b"x"), "web").unwrap();
        (0..10).for_each(|chunk| trace.push(1, chunk, 7));
        let path = trace.write_out().unwrap().to_owned();
        let len = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len - 1)
            .unwrap();
        let trace = Trace::open(dir.path(), Hash::of(b"x"), "web").unwrap();
        trace.push(2, 99, 0);
        trace.write_out().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let chunks: Vec<u32> = TraceReader::new(&bytes).unwrap().map(|a| a.chunk).collect();
        assert_eq!(chunks, [0, 1, 2, 3, 4, 5, 6, 7, 8, 99]);
    }

    #[test]
    fn what_a_full_disk_has_not_taken_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let trace = Trace::open(dir.path(), Hash::of(b"x"), "web").unwrap();
        trace.push(1, 5, 0);
        trace.write_out().unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut *trace.file.lock(), full);
        trace.push(1, 6, 0);
        trace.write_out().unwrap_err();
        trace.push(1, 7, 0);
        *trace.file.lock() = file;
        let bytes = std::fs::read(trace.write_out().unwrap()).unwrap();
        let chunks: Vec<u32> = TraceReader::new(&bytes).unwrap().map(|a| a.chunk).collect();
        assert_eq!(chunks, [5, 6, 7]);
    }

    #[test]
    fn another_images_trace_is_not_continued() {
        let dir = tempfile::tempdir().unwrap();
        Trace::open(dir.path(), Hash::of(b"x"), "web")
            .unwrap()
            .write_out()
            .unwrap();
        let trace = Trace::open(dir.path(), Hash::of(b"y"), "web").unwrap();
        let bytes = std::fs::read(trace.write_out().unwrap()).unwrap();
        assert_eq!(
            TraceReader::new(&bytes).unwrap().header().image,
            Hash::of(b"y")
        );
    }
}

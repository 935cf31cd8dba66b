//! The kernel's tracing: an instance of the agent's own, so that whoever else traces this guest isn't disturbed.

use super::event;
use super::gather::Gathered;
use crate::agent::sys;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Memory of each CPU for what was not read yet, in KiB: some 500 requests. More are overwritten, and not told of.
const BUFFER_KIB: &str = "64";
/// How much is read at a time, and how many times in a row.
const READ_BYTES: usize = 4 << 10;
const READS_MAX: usize = 32;
/// Threads, and programs' names, that are remembered.
const KNOWN_MAX: usize = 512;
/// How long a program's name is believed, in ms: it changes when the program starts another one in its place.
const NAME_MS: u64 = 1000;

/// An open trace.
pub(super) struct Trace {
    dir: PathBuf,
    pipe: File,
    line: Vec<u8>,
    /// Whether a device is a disk of the machine's, and no part or copy of one that is in the trace again.
    disks: HashMap<(u32, u32), bool>,
    /// Threads' processes.
    processes: HashMap<u32, u32>,
    /// Processes' names, and until when they are believed.
    names: HashMap<u32, (String, u64)>,
}

impl Trace {
    /// Opens it in the kernel's file system for tracing, which is mounted if it isn't yet.
    pub fn open(tracing: &Path) -> io::Result<Trace> {
        if !tracing.join("instances").try_exists()? {
            sys::mount(c"tracefs", tracing, None)?;
        }
        let dir = tracing.join("instances/floe");
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let event = dir.join("events/block/block_bio_queue");
        // of an earlier agent
        fs::write(event.join("enable"), "0")?;
        fs::write(dir.join("trace"), "")?;
        fs::write(dir.join("buffer_size_kb"), BUFFER_KIB)?;
        // older kernels tell of the first one in any case, and of writes as well, which are left out then
        let _ = fs::write(dir.join("buffer_percent"), "0");
        let _ = fs::write(event.join("filter"), "rwbs ~ \"R*\"");
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(dir.join("trace_pipe"))?;
        fs::write(dir.join("tracing_on"), "1")?;
        fs::write(event.join("enable"), "1")?;
        Ok(Trace {
            dir,
            pipe,
            line: Vec::new(),
            disks: HashMap::new(),
            processes: HashMap::new(),
            names: HashMap::new(),
        })
    }

    /// Is ready when something was read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Reads what has come.
    pub fn read(&mut self, now_ms: u64, gathered: &mut Gathered) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Ok(count @ 1..) = self.pipe.read(&mut buffer) else {
                return;
            };
            for &byte in &buffer[..count] {
                if byte != b'\n' {
                    self.line.push(byte);
                    continue;
                }
                let line = std::mem::take(&mut self.line);
                self.event(now_ms, &String::from_utf8_lossy(&line), gathered);
                self.line = line;
                self.line.clear();
            }
            if self.line.len() > READ_BYTES {
                self.line.clear();
            }
        }
    }

    fn event(&mut self, now_ms: u64, line: &str, gathered: &mut Gathered) {
        let Some(event) = event::parse(line) else {
            return;
        };
        if self.is_disk(event.device) {
            let name = self.program(now_ms, event.thread, event.name);
            gathered.part(&name, event.first, event.count);
        }
    }

    /// Whether a device is hardware: what is made of disks (of the device mapper, loops) is in the trace a second time below.
    fn is_disk(&mut self, (major, minor): (u32, u32)) -> bool {
        if self.disks.len() >= KNOWN_MAX {
            self.disks.clear();
        }
        *self.disks.entry((major, minor)).or_insert_with(|| {
            let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
            link.is_ok_and(|to| !to.components().any(|part| part.as_os_str() == "virtual"))
        })
    }

    /// Returns the name of the program that a thread belongs to: threads have names of their own.
    fn program(&mut self, now_ms: u64, thread: u32, name: &str) -> String {
        if self.processes.len() >= KNOWN_MAX {
            self.processes.clear();
        }
        if self.names.len() >= KNOWN_MAX {
            self.names.clear();
        }
        let process = *self
            .processes
            .entry(thread)
            .or_insert_with(|| process_of(thread).unwrap_or(thread));
        if process == thread {
            return name.to_owned();
        }
        let known = self.names.get(&process);
        if let Some((known, _)) = known.filter(|(_, until_ms)| now_ms < *until_ms) {
            return known.clone();
        }
        let found = fs::read_to_string(format!("/proc/{process}/comm"));
        let found = found.map_or_else(|_| name.to_owned(), |text| text.trim_end().to_owned());
        let until_ms = now_ms + NAME_MS;
        self.names.insert(process, (found.clone(), until_ms));
        found
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // if this fails, requests are traced that nobody reads: a microsecond each
        let _ = fs::write(self.dir.join("events/block/block_bio_queue/enable"), "0");
    }
}

fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

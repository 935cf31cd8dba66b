//! `floe-lab slow-disk`: a file system of one file, `disk`, whose reads, writes and flushes take as long as the model says. A process of its
//! own, so that it can be ended whatever waits for it.
//!
//! It speaks as much of the kernel's FUSE protocol (`include/uapi/linux/fuse.h`) as a loop device over that file needs.

use super::model::{Kind, Model};
use anyhow::{Context as _, bail};
use floe_sched::Op;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead, IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `floe-lab slow-disk DIR BYTES`: serves `DIR/mnt/disk`, whose bytes are in `DIR/bytes`, until its input ends. A line on its input says how
/// fast it is from now on: `fast`, `hard-disk`, `ssd` or `small-ssd`; each is answered by `ok` and the number of requests that it has served.
#[derive(clap::Args)]
pub struct Arguments {
    dir: PathBuf,
    bytes: u64,
}

/// Bytes of the longest READ and WRITE.
const IO_BYTES_MAX: usize = 1 << 20;
/// How many asynchronous requests the kernel sends at a time: more than a loop device has.
const BACKGROUND_MAX: u16 = 256;
const IN_HEADER_BYTES: usize = 40;
const WRITE_IN_BYTES: usize = 40;
const ROOT: u64 = 1;
const DISK: u64 = 2;
/// For how long names and attributes hold, in seconds.
const VALID_S: u64 = 1 << 30;
/// The process's priority among those that the kernel runs before all others.
const PRIORITY: i32 = 10;

/// A reply that is due: when, its order, and what is sent.
type Due = Reverse<(u64, u64, Reply)>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Reply {
    unique: u64,
    body: Vec<u8>,
}

struct State {
    /// `None`: nothing takes any time.
    model: Option<Model>,
    due: BinaryHeap<Due>,
    served: u64,
    closed: bool,
}

struct Disk {
    device: OwnedFd,
    bytes: File,
    size: u64,
    began: Instant,
    state: Mutex<State>,
    added: Condvar,
}

impl Arguments {
    /// Serves until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let bytes = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.dir.join("bytes"))?;
        bytes.set_len(self.bytes)?;
        let point = self.dir.join("mnt");
        std::fs::create_dir_all(&point)?;
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .context("cannot open /dev/fuse")?;
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let data = std::ffi::CString::new(data)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(
            "slow-disk",
            &point,
            "fuse.slow-disk",
            flags,
            data.as_c_str(),
        )
        .context("cannot mount; this needs root")?;
        super::sys::be_first(PRIORITY);
        let disk = Arc::new(Disk {
            device,
            bytes,
            size: self.bytes,
            began: Instant::now(),
            state: Mutex::new(State {
                model: None,
                due: BinaryHeap::new(),
                served: 0,
                closed: false,
            }),
            added: Condvar::new(),
        });
        let serves = disk.clone();
        let serving = std::thread::spawn(move || serves.serve());
        let replies = disk.clone();
        std::thread::spawn(move || replies.reply_when_due());
        println!("ready");
        std::io::stdout().flush()?;
        let obeyed = disk.obey();
        // lazily: whoever still waits gets an error when this process is gone
        let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
        drop(serving);
        obeyed?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Disk {
    /// Does what the lines of the input say.
    fn obey(&self) -> anyhow::Result<()> {
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let served = {
                let mut state = self.state.lock();
                state.model = match line.as_str() {
                    "fast" => None,
                    name => match Kind::named(name) {
                        Some(kind) => Some(Model::new(kind, 1)),
                        None => {
                            bail!("a slow disk is fast, hard-disk, ssd or small-ssd, not {name:?}")
                        }
                    },
                };
                state.served
            };
            println!("ok {served}");
            std::io::stdout().flush()?;
        }
        Ok(())
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn serve(&self) {
        let mut request = vec![0; IO_BYTES_MAX + IN_HEADER_BYTES + WRITE_IN_BYTES + 4096];
        loop {
            use rustix::io::Errno;
            match rustix::io::read(&self.device, &mut request) {
                Ok(bytes) => self.handle(&request[..bytes]),
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(_) => break,
            }
        }
        self.state.lock().closed = true;
        self.added.notify_all();
    }

    // The numbers are those of `enum fuse_opcode`.
    fn handle(&self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (opcode, unique, node) = (word(4), long(8), long(16));
        let body = IN_HEADER_BYTES;
        match opcode {
            1 if node == ROOT && request[body..] == *b"disk\0" => {
                let entry = Out::default()
                    .long(DISK)
                    .long(0)
                    .long(VALID_S)
                    .long(VALID_S);
                self.send(unique, 0, &entry.long(0).attr(self, DISK).0);
            }
            1 => self.send(unique, libc::ENOENT, &[]),
            3 => {
                let out = Out::default().long(VALID_S).long(0);
                self.send(unique, 0, &out.attr(self, node).0);
            }
            // direct I/O, and writes beside each other
            14 => self.send(
                unique,
                0,
                &Out::default().long(0).word(1 | 1 << 6).word(0).0,
            ),
            27 => self.send(unique, 0, &Out::default().long(0).long(0).0),
            15 => self.read(unique, long(body + 8), word(body + 16) as usize),
            16 => {
                let (offset, bytes) = (long(body + 8), word(body + 16) as usize);
                let data = &request[body + WRITE_IN_BYTES..][..bytes];
                match self.bytes.write_all_at(data, offset) {
                    Ok(()) => {
                        let out = Out::default().word(bytes as u32).word(0);
                        self.later(unique, Op::Write, offset, bytes as u64, out.0);
                    }
                    Err(_) => self.send(unique, libc::EIO, &[]),
                }
            }
            17 => self.send(unique, 0, &[0; 80]),
            18 | 29 | 25 | 38 => self.send(unique, 0, &[]),
            20 => self.later(unique, Op::Flush, 0, 0, Vec::new()),
            26 => self.send(unique, 0, &self.init(word(body + 8)).0),
            // FORGET and BATCH_FORGET have no answer
            2 | 42 => {}
            _ => self.send(unique, libc::ENOSYS, &[]),
        }
    }

    /// Returns what INIT is answered: FUSE 7.31, asynchronous and large requests.
    fn init(&self, max_readahead: u32) -> Out {
        const FLAGS: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22;
        let background = u32::from(BACKGROUND_MAX) | u32::from(BACKGROUND_MAX) << 16;
        Out::default()
            .word(7)
            .word(31)
            .word(max_readahead)
            .word(FLAGS)
            .word(background)
            .word(IO_BYTES_MAX as u32)
            .word(1)
            .word((IO_BYTES_MAX / 4096) as u32)
            .zeros(32)
    }

    fn read(&self, unique: u64, offset: u64, bytes: usize) {
        let bytes = (self.size.saturating_sub(offset) as usize).min(bytes);
        let mut data = vec![0; bytes];
        match self.bytes.read_exact_at(&mut data, offset) {
            Ok(()) => self.later(unique, Op::Read, offset, bytes as u64, data),
            Err(_) => self.send(unique, libc::EIO, &[]),
        }
    }

    /// Answers a request when the model says that it is done.
    fn later(&self, unique: u64, op: Op, offset: u64, bytes: u64, body: Vec<u8>) {
        let mut state = self.state.lock();
        state.served += 1;
        let now_us = self.now_us();
        let number = state.served;
        let Some(model) = &mut state.model else {
            drop(state);
            return self.send(unique, 0, &body);
        };
        let due = model.accept(now_us, op, offset, bytes);
        state
            .due
            .push(Reverse((due, number, Reply { unique, body })));
        self.added.notify_one();
    }

    fn reply_when_due(&self) {
        crate::link::exact_timers();
        let mut state = self.state.lock();
        while !state.closed {
            let Some(Reverse((due, _, _))) = state.due.peek() else {
                self.added.wait(&mut state);
                continue;
            };
            let until = self.began + Duration::from_micros(*due);
            if Instant::now() < until {
                self.added.wait_until(&mut state, until);
                continue;
            }
            if let Some(Reverse((_, _, reply))) = state.due.pop() {
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    self.send(reply.unique, 0, &reply.body);
                });
            }
        }
    }

    fn send(&self, unique: u64, errno: i32, body: &[u8]) {
        let header = Out::default()
            .word((16 + body.len()) as u32)
            .word((-errno) as u32)
            .long(unique);
        // whoever asked may be gone
        let _ = rustix::io::writev(&self.device, &[IoSlice::new(&header.0), IoSlice::new(body)]);
    }
}

/// A message that is being encoded.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn word(mut self, value: u32) -> Out {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn long(mut self, value: u64) -> Out {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, bytes: usize) -> Out {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }

    fn attr(self, disk: &Disk, node: u64) -> Out {
        let (mode, links, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 2, 0),
            _ => (libc::S_IFREG | 0o600, 1, disk.size),
        };
        self.long(node)
            .long(size)
            .long(size / 512)
            .zeros(36)
            .word(mode)
            .word(links)
            .zeros(12)
            .word(4096)
            .word(0)
    }
}

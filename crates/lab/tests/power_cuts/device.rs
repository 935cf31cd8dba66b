//! A block device that records every write and flush in order, and can show what it would hold after a power cut at any
//! of them.
//!
//! It is a file in this test's own FUSE file system, with a loop device on it: everything that the kernel's real ext4 or
//! xfs sends to its disk arrives here (data, journal, mmap'ed pages that were written back), as dm-log-writes would
//! record it if the kernel had that. So no model of a file system is needed: the real one decides what a rename or a
//! truncation leaves, when it mounts the remains. Recording the processes' calls instead (a passthrough file system,
//! strace) would require guessing that.
use super::abi::{self, Attr, FATTR_SIZE, IN_HEADER_BYTES, init, op};
use super::hosts;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a disk writes atomically: parts of this size of an unflushed write may survive.
const SECTOR: usize = 512;
/// The only file of the file system is its root.
const ROOT: u64 = 1;
/// Longest write that the kernel may send at once.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A recorded operation.
#[derive(Clone)]
pub enum Op {
    /// Bytes written at an offset.
    Write(u64, Arc<[u8]>),
    /// Zeros written at an offset, and their number.
    Zero(u64, u64),
    /// Everything before is durable.
    Flush,
}

/// All recorded operations, in order.
#[derive(Default)]
pub struct Log {
    pub ops: Vec<Op>,
}

struct Disk {
    /// The current content.
    file: File,
    bytes: u64,
    log: Arc<Mutex<Log>>,
}

impl Disk {
    /// Answers the kernel until the file system is unmounted, one request after the other, so that the log has the disk's
    /// order.
    fn serve(&self, mut device: File) {
        let mut request = vec![0; WRITE_BYTES_MAX + 4096];
        loop {
            let length = match device.read(&mut request) {
                Ok(length) => length,
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                Err(_) => continue, // the request was withdrawn, or the read interrupted
            };
            let Some((header, body)) = abi::parse(&request[..length]) else {
                panic!("{length} bytes are no request of {IN_HEADER_BYTES} bytes and more");
            };
            let answer = match header.opcode {
                op::FORGET | op::BATCH_FORGET | op::INTERRUPT => continue,
                opcode => self.answer(opcode, body),
            };
            let (error, body) = match answer {
                Ok(body) => (0, body),
                Err(error) => (-error, Vec::new()),
            };
            let mut bytes = abi::out_header(body.len(), error, header.unique).to_vec();
            bytes.extend(body);
            let _ = device.write(&bytes);
        }
    }

    fn answer(&self, opcode: u32, body: &[u8]) -> Result<Vec<u8>, i32> {
        let attributes = abi::attr_out(&Attr {
            ino: ROOT,
            size: self.bytes,
            mode: libc::S_IFREG | 0o600,
            links: 1,
            uid: 0,
            gid: 0,
        });
        let eio = |_| libc::EIO;
        match opcode {
            op::INIT => {
                let (_, _, offered) = abi::parse_init(body).ok_or(libc::EPROTO)?;
                let wanted = init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT;
                let pages = (WRITE_BYTES_MAX / 4096) as u16;
                Ok(abi::init_out(
                    offered & wanted,
                    4096,
                    16,
                    WRITE_BYTES_MAX as u32,
                    pages,
                ))
            }
            op::GETATTR => Ok(attributes),
            op::SETATTR => match abi::parse_setattr(body) {
                Some((what, size)) if what & FATTR_SIZE != 0 && size != self.bytes => {
                    Err(libc::EPERM)
                }
                _ => Ok(attributes),
            },
            op::OPEN => Ok(abi::open_out(0)),
            op::READ => {
                let (at, size) = abi::parse_read(body).ok_or(libc::EPROTO)?;
                let mut data = vec![0; u64::from(size).min(self.bytes.saturating_sub(at)) as usize];
                self.file.read_exact_at(&mut data, at).map_err(eio)?;
                Ok(data)
            }
            op::WRITE => {
                let (at, _, data) = abi::parse_write(body).ok_or(libc::EPROTO)?;
                self.file.write_all_at(data, at).map_err(eio)?;
                self.log.lock().ops.push(Op::Write(at, data.into()));
                Ok(abi::Out::default().u32(data.len() as u32).u32(0).0)
            }
            // the loop device sends this for a discard or for zeros
            op::FALLOCATE => {
                let (at, bytes, mode) = abi::parse_fallocate(body).ok_or(libc::EPROTO)?;
                if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32 == 0 {
                    return Err(libc::EOPNOTSUPP);
                }
                zero(&self.file, at, bytes).map_err(eio)?;
                self.log.lock().ops.push(Op::Zero(at, bytes));
                Ok(Vec::new())
            }
            op::FSYNC => {
                self.log.lock().ops.push(Op::Flush);
                Ok(Vec::new())
            }
            op::STATFS => Ok(abi::statfs_out()),
            op::RELEASE | op::DESTROY => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        }
    }
}

fn zero(file: &File, at: u64, bytes: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, at, bytes)?)
}

/// Runs a tool of the host and returns its output.
pub fn tool(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output
        .unwrap_or_else(|error| panic!("{program}: {error}; `make deps` installs what is needed"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Longest time until nobody uses a file system any more whose processes have all been told to end.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A file system on a loop device, mounted until this is dropped.
///
/// The loop device goes with the mount, and the mount with its namespace, so neither outlives this test even if that is
/// killed.
pub struct Mounted {
    pub dir: PathBuf,
}

impl Mounted {
    /// Mounts the file system that is in a file.
    pub fn new(file: &Path, dir: &Path) -> Mounted {
        std::fs::create_dir_all(dir).unwrap();
        let dir = dir.to_owned();
        tool(
            "mount",
            &["-o".as_ref(), "loop".as_ref(), file.as_ref(), dir.as_ref()],
        );
        Mounted { dir }
    }

    /// Unmounts the file system, once nobody uses it any more: a process that was killed closes its files a moment after it
    /// can't be found any more. xfs refuses to mount a second file system with the same id (it says that the superblock is
    /// bad), so none of a recording may still be mounted when the next one is.
    pub fn unmount(self) {
        let until = Instant::now() + UNUSED_MAX;
        while let Err(error) = unmount(&self.dir, UnmountFlags::empty()) {
            let waits = error == rustix::io::Errno::BUSY && Instant::now() < until;
            let users = || hosts::users_of(&self.dir);
            assert!(
                waits,
                "{}: {error}; used by {:#?}",
                self.dir.display(),
                users()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // does nothing after an orderly end
        hosts::end_leftovers(&self.dir);
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// A file as which the recording device appears, until this is dropped.
struct Shown(PathBuf);

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The recording device with a new file system on it.
pub struct Recorder {
    log: Arc<Mutex<Log>>,
    bytes: u64,
    /// The place in the log at which the new file system was mounted.
    from: usize,
    mounted: Mounted,
    shown: Shown,
    server: JoinHandle<()>,
}

impl Recorder {
    /// Makes a recorder; `kind` is `ext4` or `xfs`.
    pub fn new(scratch: &Path, kind: &str, bytes: u64) -> Recorder {
        let (backing, shown) = (scratch.join("backing"), scratch.join("shown"));
        File::create(&shown).unwrap();
        let file = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(true)
            .open(&backing)
            .unwrap();
        file.set_len(bytes).unwrap();
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        let options = format!(
            "fd={},rootmode=100600,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("floe-recorder", &shown, "fuse", flags, options.as_c_str()).unwrap();
        let shown = Shown(shown);
        let log = Arc::<Mutex<Log>>::default();
        let disk = Disk {
            file,
            bytes,
            log: log.clone(),
        };
        let server = std::thread::spawn(move || disk.serve(device));
        let force = if kind == "ext4" { "-F" } else { "-f" };
        tool(
            &format!("mkfs.{kind}"),
            &["-q".as_ref(), force.as_ref(), shown.0.as_ref()],
        );
        let mounted = Mounted::new(&shown.0, &scratch.join("state"));
        let from = log.lock().ops.len();
        Recorder {
            log,
            bytes,
            from,
            mounted,
            shown,
            server,
        }
    }

    /// Returns the mount point of the file system.
    pub fn dir(&self) -> &Path {
        &self.mounted.dir
    }

    /// Returns the number of operations so far: a place in the log.
    pub fn at(&self) -> usize {
        self.log.lock().ops.len()
    }

    /// Ends the recording and returns what was recorded.
    pub fn end(self) -> Replay {
        self.mounted.unmount();
        drop(self.shown);
        self.server.join().unwrap();
        Replay {
            ops: std::mem::take(&mut self.log.lock().ops),
            from: self.from,
            bytes: self.bytes,
        }
    }
}

/// What survives of the writes that were not flushed before a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: only what was flushed.
    Nothing,
    /// All of them.
    Everything,
    /// Each of their sectors or not, at random from this seed.
    Some(u64),
}

/// A recording that can be replayed.
pub struct Replay {
    pub ops: Vec<Op>,
    /// The first place to cut at: before it the file system was still being made.
    pub from: usize,
    bytes: u64,
}

impl Replay {
    /// Writes to `to` what the disk would hold after a cut behind the first `cut` operations.
    pub fn cut(&self, cut: usize, kept: Kept, to: &Path) {
        let file = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(true)
            .open(to)
            .unwrap();
        file.set_len(self.bytes).unwrap();
        let flushed = self.ops[..cut]
            .iter()
            .rposition(|op| matches!(op, Op::Flush))
            .unwrap_or(0);
        for op in &self.ops[..flushed] {
            match op {
                Op::Write(at, data) => file.write_all_at(data, *at).unwrap(),
                Op::Zero(at, bytes) => zero(&file, *at, *bytes).unwrap(),
                Op::Flush => {}
            }
        }
        let mut random = StdRng::seed_from_u64(match kept {
            Kept::Some(seed) => seed,
            _ => 0,
        });
        for op in &self.ops[flushed..cut] {
            let keep = || match kept {
                Kept::Nothing => false,
                Kept::Everything => true,
                Kept::Some(_) => random.random_bool(0.5),
            };
            apply_in_part(&file, op, keep);
        }
    }

    /// Returns the places directly behind each flush.
    pub fn flushes(&self) -> Vec<usize> {
        let flushes = self
            .ops
            .iter()
            .enumerate()
            .filter(|(_, op)| matches!(op, Op::Flush));
        flushes.map(|(at, _)| at + 1).collect()
    }
}

fn apply_in_part(file: &File, op: &Op, mut keep: impl FnMut() -> bool) {
    match op {
        Op::Write(at, data) => {
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if keep() {
                    file.write_all_at(sector, at + (index * SECTOR) as u64)
                        .unwrap();
                }
            }
        }
        Op::Zero(at, bytes) if keep() => zero(file, *at, *bytes).unwrap(),
        Op::Zero(..) | Op::Flush => {}
    }
}

//! A block device that remembers every write and flush, in their order, and what it holds after a power cut at any of them.
//!
//! It is a file of a FUSE file system of our own, with a loop device on it: whatever the kernel's real ext4 or xfs sends to its disk
//! comes here (data, journal, mmap'ed pages that were written back), which is what dm-log-writes would record where a kernel has it. So no
//! model of a file system is needed: what a rename or a truncation leaves is decided by the real one, when it mounts what is left.
//! Recording the calls of the processes instead (a passthrough file system, strace) would have to guess that.
use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// What a disk writes in one go: a write that was not flushed may be there in parts of this size.
const SECTOR: usize = 512;
const FILE: &str = "disk";
const FILE_INODE: u64 = 2;
/// How long the kernel may keep what it knows of the file: it never changes.
const TTL: Duration = Duration::from_secs(3600);

/// One thing that came.
#[derive(Clone)]
pub enum Op {
    /// Bytes at an offset.
    Write(u64, Arc<[u8]>),
    /// Zeroes at an offset, so many.
    Zero(u64, u64),
    /// All before it is durable.
    Flush,
}

/// Everything that came, in its order.
#[derive(Default)]
pub struct Log {
    pub ops: Vec<Op>,
}

struct Disk {
    file: File,
    bytes: u64,
    log: Arc<Mutex<Log>>,
}

impl Disk {
    fn attributes(&self, inode: u64) -> FileAttr {
        let (kind, perm, size) = match inode {
            FILE_INODE => (FileType::RegularFile, 0o600, self.bytes),
            _ => (FileType::Directory, 0o700, 0),
        };
        FileAttr {
            ino: inode,
            size,
            blocks: size / SECTOR as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Disk {
    fn lookup(&mut self, _: &Request<'_>, _: u64, name: &OsStr, reply: ReplyEntry) {
        match name == FILE {
            true => reply.entry(&TTL, &self.attributes(FILE_INODE), 0),
            false => reply.error(libc::ENOENT),
        }
    }

    fn getattr(&mut self, _: &Request<'_>, inode: u64, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(inode));
    }

    fn open(&mut self, _: &Request<'_>, _: u64, _: i32, reply: ReplyOpen) {
        reply.opened(0, 0);
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        let left = self.bytes.saturating_sub(offset as u64);
        let mut data = vec![0; u64::from(size).min(left) as usize];
        match self.file.read_exact_at(&mut data, offset as u64) {
            Ok(()) => reply.data(&data),
            Err(_) => reply.error(libc::EIO),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        data: &[u8],
        _: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        if self.file.write_all_at(data, offset as u64).is_err() {
            return reply.error(libc::EIO);
        }
        self.log.lock().ops.push(Op::Write(offset as u64, data.into()));
        reply.written(data.len() as u32);
    }

    fn fallocate(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        length: i64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // What a loop device makes of a discard or of zeroes to be written.
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(libc::EOPNOTSUPP);
        }
        match zero(&self.file, offset as u64, length as u64) {
            Ok(()) => {
                self.log.lock().ops.push(Op::Zero(offset as u64, length as u64));
                reply.ok();
            }
            Err(_) => reply.error(libc::EIO),
        }
    }

    fn fsync(&mut self, _: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.log.lock().ops.push(Op::Flush);
        reply.ok();
    }

    fn flush(&mut self, _: &Request<'_>, _: u64, _: u64, _: u64, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn zero(file: &File, at: u64, bytes: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, at, bytes)?)
}

/// Runs a tool of the host; its output.
pub fn tool(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; `make deps` installs what is needed"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A file system on a loop device on a file, mounted until this is dropped.
pub struct Mounted {
    device: String,
    pub dir: PathBuf,
}

impl Mounted {
    pub fn new(file: &Path, dir: &Path) -> Mounted {
        let device = tool("losetup", &["--find".as_ref(), "--show".as_ref(), file.as_ref()]);
        let mounted = Mounted {
            device,
            dir: dir.to_owned(),
        };
        tool("mount", &[mounted.device.as_ref(), dir.as_ref()]);
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for program in [
            vec!["umount".as_ref(), self.dir.as_os_str()],
            vec!["losetup".as_ref(), "--detach".as_ref(), self.device.as_ref()],
        ] {
            let _ = Command::new(program[0]).args(&program[1..]).status();
        }
    }
}

/// The recording device with a fresh file system on it.
pub struct Recorder {
    pub log: Arc<Mutex<Log>>,
    pub mounted: Option<Mounted>,
    session: Option<BackgroundSession>,
    bytes: u64,
}

impl Recorder {
    /// `kind` is `ext4` or `xfs`.
    pub fn new(scratch: &Path, kind: &str, bytes: u64) -> Recorder {
        let (backing, shown, dir) = (scratch.join("backing"), scratch.join("shown"), scratch.join("state"));
        for dir in [&shown, &dir] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let file = File::options().create(true).read(true).write(true).truncate(true).open(&backing).unwrap();
        file.set_len(bytes).unwrap();
        let log = Arc::<Mutex<Log>>::default();
        let disk = Disk {
            file,
            bytes,
            log: log.clone(),
        };
        let options = [MountOption::FSName("floe-recorder".into()), MountOption::RW];
        let session = fuser::spawn_mount2(disk, &shown, &options).unwrap();
        let disk = shown.join(FILE);
        let quiet: &[&OsStr] = match kind {
            "ext4" => &["-q".as_ref(), "-F".as_ref()],
            _ => &["-q".as_ref(), "-f".as_ref()],
        };
        tool(&format!("mkfs.{kind}"), &[quiet, &[disk.as_os_str()]].concat());
        Recorder {
            log,
            mounted: Some(Mounted::new(&disk, &dir)),
            session: Some(session),
            bytes,
        }
    }

    /// Where the file system is mounted.
    pub fn dir(&self) -> &Path {
        &self.mounted.as_ref().expect("it is mounted until the end").dir
    }

    /// How much has come so far: a place in the log.
    pub fn at(&self) -> usize {
        self.log.lock().ops.len()
    }

    /// Ends it; what was recorded.
    pub fn end(mut self) -> Replay {
        drop(self.mounted.take());
        drop(self.session.take());
        Replay {
            ops: std::mem::take(&mut self.log.lock().ops),
            bytes: self.bytes,
        }
    }
}

/// What is kept of the writes that were not flushed before a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// None: only what was flushed.
    Nothing,
    /// All of them.
    Everything,
    /// Each sector of them by chance, from this seed.
    Some(u64),
}

/// What was recorded.
pub struct Replay {
    pub ops: Vec<Op>,
    bytes: u64,
}

impl Replay {
    /// What the disk holds after a cut behind the first `cut` operations.
    pub fn cut(&self, cut: usize, kept: Kept, to: &Path) {
        let file = File::options().create(true).read(true).write(true).truncate(true).open(to).unwrap();
        file.set_len(self.bytes).unwrap();
        let flushed = self.ops[..cut].iter().rposition(|op| matches!(op, Op::Flush)).unwrap_or(0);
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

    /// Places right behind a flush.
    pub fn flushes(&self) -> Vec<usize> {
        let flushes = self.ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::Flush));
        flushes.map(|(at, _)| at + 1).collect()
    }
}

fn apply_in_part(file: &File, op: &Op, mut keep: impl FnMut() -> bool) {
    match op {
        Op::Write(at, data) => {
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if keep() {
                    file.write_all_at(sector, at + (index * SECTOR) as u64).unwrap();
                }
            }
        }
        Op::Zero(at, bytes) if keep() => zero(file, *at, *bytes).unwrap(),
        Op::Zero(..) | Op::Flush => {}
    }
}

//! How a machine of the experiment gets at its disk: a file of floe's mount, a raw file in a control group of its own, or the same file
//! behind one of QEMU's throttle groups.

use super::throttle::Connection;
use floe_sched::Op;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// What buffers of direct I/O are aligned to.
const ALIGNED: usize = 4096;

/// Where a machine's disk is.
#[derive(Clone, Debug)]
pub enum Target {
    /// A file, and the control group of those who use it.
    File {
        path: PathBuf,
        group: Option<PathBuf>,
    },
    /// An export of QEMU's storage daemon.
    Throttled { socket: PathBuf, export: String },
}

/// A disk that one thread has opened.
pub enum Disk {
    File(File),
    Throttled(Connection),
}

impl Target {
    /// Opens it for the thread that calls, which enters its control group.
    pub fn open(&self) -> anyhow::Result<Disk> {
        match self {
            Target::File { path, group } => {
                if let Some(group) = group {
                    // 0 is the thread that writes
                    std::fs::write(group.join("tasks"), "0")?;
                }
                let mut options = File::options();
                let options = options.read(true).write(true);
                Ok(Disk::File(options.custom_flags(libc::O_DIRECT).open(path)?))
            }
            Target::Throttled { socket, export } => {
                Ok(Disk::Throttled(Connection::open(socket, export)?))
            }
        }
    }
}

impl Disk {
    /// Makes a request, and waits until it is done.
    pub fn request(&mut self, op: Op, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match (self, op) {
            (Disk::File(file), Op::Read) => file.read_exact_at(bytes, offset),
            (Disk::File(file), Op::Write) => file.write_all_at(bytes, offset),
            (Disk::File(file), Op::Flush) => file.sync_data(),
            (Disk::Throttled(connection), op) => connection.request(op, offset, bytes),
        }
    }
}

/// Bytes that direct I/O may use.
pub struct Buffer {
    bytes: Vec<u8>,
    from: usize,
}

impl Buffer {
    /// Makes one that is full of `byte`.
    pub fn new(bytes: usize, byte: u8) -> Buffer {
        let all = vec![byte; bytes + ALIGNED];
        let from = all.as_ptr().align_offset(ALIGNED);
        Buffer { bytes: all, from }
    }

    /// Returns its first bytes.
    pub fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.from..][..bytes]
    }
}

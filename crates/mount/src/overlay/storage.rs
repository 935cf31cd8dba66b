//! What a layer needs of the file system: kept narrow, so that tests can use a disk that fails.

use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// How many zeros are written at a time where holes can't be made.
const ZEROS_BYTES: usize = 1 << 20;

/// Asks the file system for something about `path`. All that a disk asks for when it is opened goes this way, so that a test can have
/// each single thing fail.
pub(crate) fn access<T>(path: &Path, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    #[cfg(test)]
    failing::before(path)?;
    #[cfg(not(test))]
    let _ = path;
    ask()
}

/// A file of fixed length.
pub(crate) trait Storage: Send + Sync {
    /// Fills `out` with the bytes from `offset` on.
    fn read(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `out` likewise if that takes no access to the disk; returns whether it did.
    fn read_now(&self, out: &mut [u8], offset: u64) -> io::Result<bool>;
    /// Writes all of `data`; it is durable after the next [`Storage::sync`] that succeeds.
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes bytes zero and gives their space back.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Makes what was written durable. After a failure *anything* written since the last success may be lost, even if the next
    /// call succeeds: see `unsynced`.
    fn sync(&self) -> io::Result<()>;
    /// Returns how many bytes the file takes on the disk.
    fn stored_bytes(&self) -> u64;
}

impl Storage for File {
    fn read(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }

    fn read_now(&self, out: &mut [u8], offset: u64) -> io::Result<bool> {
        floe_store::read_now(self, out, offset)
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self, punch, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(self, offset, len),
            done => Ok(done?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn stored_bytes(&self) -> u64 {
        self.metadata().map_or(0, |m| m.blocks() * 512)
    }
}

/// Writes ranges of a file (offset and length) that are only in the page cache to the disk, and waits until they are there. The disk may
/// still keep them in a cache of its own, and whatever is needed to find them again may be missing: only a sync makes them durable.
/// An error is reported to this descriptor of the file and to no other one of those that it is to be reported to.
pub(crate) fn write_out(file: &File, mut ranges: Vec<(u64, u64)>) -> io::Result<()> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.0 + last.1;
        if touches {
            last.1 = last.1.max(next.0 + next.1 - last.0);
        }
        touches
    });
    // All are begun before the first one is waited for, so that the disk can put them in its order.
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    for flags in [libc::SYNC_FILE_RANGE_WRITE, wait] {
        for (offset, len) in &ranges {
            sync_range(file, *offset, *len, flags)?;
        }
    }
    Ok(())
}

fn sync_range(file: &File, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
    let (offset, len) = (offset as i64, len as i64);
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call reads and writes no memory of this process.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn write_zeros(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = 0;
    while at < len {
        let n = (len - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..n as usize], offset + at)?;
        at += n;
    }
    Ok(())
}

/// Has a single thing fail that is asked of the file system.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::RefCell;
    use std::io;
    use std::path::{Path, PathBuf};

    thread_local! {
        static FAULT: RefCell<Option<Fault>> = const { RefCell::new(None) };
    }

    /// Which access fails, with which error, and what it was about once it has.
    struct Fault {
        left: usize,
        errno: i32,
        met: Option<PathBuf>,
    }

    /// Fails if this access is the one that is to.
    pub(super) fn before(path: &Path) -> io::Result<()> {
        FAULT.with_borrow_mut(|fault| match fault {
            Some(fault) if fault.met.is_none() && fault.left == 0 => {
                fault.met = Some(path.to_owned());
                Err(io::Error::from_raw_os_error(fault.errno))
            }
            Some(fault) => {
                fault.left = fault.left.saturating_sub(1);
                Ok(())
            }
            None => Ok(()),
        })
    }

    /// Returns what comes of `doing` if its access of this number fails, and the path that it was about; `None` if there are fewer.
    pub(crate) fn with_fault<T>(
        number: usize,
        errno: i32,
        doing: impl FnOnce() -> T,
    ) -> (T, Option<PathBuf>) {
        let (left, met) = (number, None);
        FAULT.set(Some(Fault { left, errno, met }));
        let done = doing();
        (done, FAULT.take().and_then(|fault| fault.met))
    }
}

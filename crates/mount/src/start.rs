//! What happens before the first request is served: the agreement with the kernel, and the buffers of the threads that serve it.

use crate::MountError;
use crate::abi::{self, init, op};
use crate::device::Device;
use crate::pinned::Pinned;
use std::io;
use std::path::Path;

/// Bytes of the longest READ and WRITE: what the kernel sends at most, unless `fs.fuse.max_pages_limit` was raised.
pub(crate) const IO_BYTES_MAX: usize = 1 << 20;
/// The same in pages.
const IO_PAGES_MAX: u16 = (IO_BYTES_MAX / 4096) as u16;
/// Bytes of readahead: one page. Zero would mean the kernel's default (128 KiB, which makes a fault five times as slow).
const READAHEAD_BYTES: u32 = 4096;
/// How many background requests (asynchronous direct I/O of disks) the kernel sends at a time.
const BACKGROUND_MAX: u16 = 256;
/// Number of threads for what may take long: whatever accesses the host's disk. As many requests are in the disk's own queue at
/// most, where an SSD needs some to be busy. Each has a buffer of a megabyte.
pub(crate) const WORKERS: usize = 8;

/// Returns how many bytes a request's buffer must have.
fn request_bytes(max_write: usize) -> usize {
    max_write + abi::IN_HEADER_BYTES + abi::WRITE_IN_BYTES + 4096
}

/// Answers INIT, the first request of a new connection; returns the longest WRITE agreed on.
pub(crate) fn negotiate(device: &Device, mountpoint: &Path) -> Result<usize, MountError> {
    let cannot = |reason: String, fix: &'static str| MountError::Cannot {
        path: mountpoint.to_owned(),
        reason,
        fix: fix.into(),
    };
    let init = || MountError::io("read INIT from /dev/fuse for", mountpoint);
    let mut buf = Pinned::new(request_bytes(IO_BYTES_MAX)).map_err(init())?;
    let n = device.read(&mut buf).map_err(init())?;
    let request = n
        .and_then(|n| abi::parse(&buf[..n]))
        .filter(|(h, _)| h.opcode == op::INIT);
    let Some((header, body)) = request else {
        return Err(cannot(
            "the kernel did not start with INIT".into(),
            "unmount what is there and try again",
        ));
    };
    let Some((major, minor, offered)) = abi::parse_init(body) else {
        return Err(cannot(
            "INIT is cut off".into(),
            "this kernel speaks another FUSE; use Linux 5.9 or newer",
        ));
    };
    if major != abi::KERNEL_MAJOR || minor < abi::KERNEL_MINOR_MIN {
        device.reply_errno(header.unique, libc::EPROTO);
        let reason = format!("the kernel speaks FUSE {major}.{minor}");
        return Err(cannot(
            reason,
            "use Linux 5.9 or newer; a takeover needs Linux 6.9",
        ));
    }
    // Not asked for: the writeback cache (a completed write must have reached this process), and automatic invalidation.
    let wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::EXPLICIT_INVAL_DATA
        | init::INIT_EXT
        | init::HAS_RESEND;
    let flags = wanted & offered;
    if flags & init::HAS_RESEND == 0 {
        tracing::warn!(
            "this kernel can't send requests again (Linux 6.9 can): a restarted node loses those that were under way"
        );
    }
    let body = abi::init_out(
        flags,
        READAHEAD_BYTES,
        BACKGROUND_MAX,
        IO_BYTES_MAX as u32,
        IO_PAGES_MAX,
    );
    device.reply(header.unique, &body);
    Ok(IO_BYTES_MAX)
}

/// The buffers that the threads of a mount read requests into and answer from, made before the first request is read.
pub(crate) struct Buffers {
    /// One for each descriptor.
    pub requests: Vec<Pinned>,
    /// One for each descriptor, then one for each worker.
    pub replies: Vec<Pinned>,
}

impl Buffers {
    /// Buffers for `devices` descriptors and the workers.
    pub(crate) fn new(devices: usize, max_write: usize) -> io::Result<Self> {
        let many = |n: usize, bytes| {
            (0..n)
                .map(|_| Pinned::new(bytes))
                .collect::<io::Result<_>>()
        };
        // Requests first: if only some may be locked, it should be these.
        let requests: Vec<Pinned> = many(devices, request_bytes(max_write))?;
        let replies: Vec<Pinned> = many(devices + WORKERS, abi::OUT_HEADER_BYTES + IO_BYTES_MAX)?;
        let all = || requests.iter().chain(&replies);
        let bytes: usize = all().map(|b| b.len()).sum();
        let locked: usize = all().filter(|b| b.is_locked()).map(|b| b.len()).sum();
        tracing::debug!(bytes, locked, "buffers of the mount are in memory");
        if locked < bytes {
            tracing::info!(
                bytes,
                locked,
                "not all buffers of the mount could be locked in memory; raise RLIMIT_MEMLOCK (LimitMEMLOCK= of the unit), \
                 or a node that is killed under memory pressure may pause a machine"
            );
        }
        Ok(Self { requests, replies })
    }
}

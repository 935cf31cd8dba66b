//! `/dev/fuse`: opens, clones and mounts it, reads requests and writes answers.

use crate::pinned::Pinned;
use crate::refused::{self, Around};
use crate::{MountError, abi};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// `_IOR(229, 0, uint32_t)`: makes a descriptor a further one, with a queue of its own, of an existing connection.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_E500u32 as libc::Ioctl;

/// How many dead mounts are removed from one mountpoint at most.
const DEAD_MAX: usize = 1000;
/// How long a mount may take to answer before it counts as alive but busy.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// One descriptor of a connection. A request must be answered on the descriptor that it was read from.
pub(crate) struct Device(OwnedFd);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/fuse",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Returns another descriptor for the same connection.
    pub(crate) fn another(&self) -> io::Result<Self> {
        let fd = open_device()?;
        let from = self.0.as_raw_fd() as u32;
        // SAFETY: the request reads one u32 behind the pointer, which lives until the call returns, and writes no memory.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const from) };
        if rc == 0 {
            Ok(Self(fd))
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Returns the length of the next request, or `None` when the file system is unmounted. Reads only into pinned memory: if a
    /// reader were killed while a page of its buffer is missing, the request would end with EIO.
    pub(crate) fn read(&self, buf: &mut Pinned) -> io::Result<Option<usize>> {
        use rustix::io::Errno;
        loop {
            match rustix::io::read(&self.0, &mut **buf) {
                Ok(n) => return Ok(Some(n)),
                // ENOENT: the request was withdrawn while it was being read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns whether the connection is still alive. An error does not say that it isn't.
    pub(crate) fn alive(&self) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now)))?;
        Ok(!fds[0].revents().contains(PollFlags::ERR))
    }

    /// Answers a request with a body.
    pub(crate) fn reply(&self, unique: u64, body: &[u8]) {
        self.send(&[
            IoSlice::new(&abi::out_header(body.len(), 0, unique)),
            IoSlice::new(body),
        ]);
    }

    /// Answers a request without a body: success (0) or an errno.
    pub(crate) fn reply_errno(&self, unique: u64, errno: i32) {
        self.send(&[IoSlice::new(&abi::out_header(0, -errno, unique))]);
    }

    /// Answers a request from a buffer that begins with room for the header.
    pub(crate) fn reply_in_place(&self, unique: u64, buf: &mut [u8]) {
        let header = abi::out_header(buf.len() - abi::OUT_HEADER_BYTES, 0, unique);
        buf[..abi::OUT_HEADER_BYTES].copy_from_slice(&header);
        self.send(&[IoSlice::new(buf)]);
    }

    /// Sends a message that doesn't answer any request.
    pub(crate) fn notify(&self, code: i32, head: &[u8], data: &[u8]) -> io::Result<()> {
        let header = abi::out_header(head.len() + data.len(), code, 0);
        let parts = [
            IoSlice::new(&header),
            IoSlice::new(head),
            IoSlice::new(data),
        ];
        let parts = if data.is_empty() {
            &parts[..2]
        } else {
            &parts[..]
        };
        rustix::io::writev(&self.0, parts)?;
        Ok(())
    }

    fn send(&self, parts: &[IoSlice<'_>]) {
        // ENOENT: the request was interrupted and nobody waits any more. ENODEV: unmounted. Nothing is left to do in either
        // case.
        if let Err(error) = rustix::io::writev(&self.0, parts)
            && error != rustix::io::Errno::NOENT
            && error != rustix::io::Errno::NODEV
        {
            tracing::error!(%error, "the kernel refused an answer");
        }
    }
}

/// Mounts a new connection on `mountpoint`: directly as root, with fusermount3 otherwise.
pub(crate) fn mount(mountpoint: &Path, allow_other: bool) -> Result<Device, MountError> {
    let cannot = |reason: String, fix: &'static str| MountError::Cannot {
        path: mountpoint.to_owned(),
        reason,
        fix: fix.into(),
    };
    if !rustix::process::geteuid().is_root() {
        return fusermount(mountpoint, allow_other);
    }
    let fix_device =
        "load the kernel's fuse module (`modprobe fuse`), and give a container --device /dev/fuse";
    let fd = open_device().map_err(|e| cannot(format!("/dev/fuse: {e}"), fix_device))?;
    let other = if allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions{other}\0",
        fd.as_raw_fd()
    );
    let data = std::ffi::CString::from_vec_with_nul(data.into_bytes())
        .expect("the options have one NUL, at their end");
    rustix::mount::mount(
        "floe",
        mountpoint,
        "fuse.floe",
        MountFlags::NOSUID | MountFlags::NODEV,
        data.as_c_str(),
    )
    .map_err(|e| refused::by_kernel(mountpoint, &e.to_string(), &Around::look()))?;
    Ok(Device(fd))
}

fn fusermount(mountpoint: &Path, allow_other: bool) -> Result<Device, MountError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let cannot = |reason: String, fix: &'static str| MountError::Cannot {
        path: mountpoint.to_owned(),
        reason,
        fix: fix.into(),
    };
    let io = MountError::io("socketpair for fusermount3 on", mountpoint);
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| io(e.into()))?;
    // The child inherits a duplicate without CLOEXEC, which is closed here once fusermount3 has ended.
    let inherited = rustix::io::fcntl_dupfd_cloexec(&theirs, 3)
        .map_err(|e| cannot(e.to_string(), "raise the limit of open files"))?;
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())
        .map_err(|e| cannot(e.to_string(), "this should not happen"))?;
    let other = if allow_other { ",allow_other" } else { "" };
    let output = Command::new("fusermount3")
        .args([
            "-o",
            &format!("fsname=floe,subtype=floe,nosuid,nodev,default_permissions{other}"),
            "--",
        ])
        .arg(mountpoint)
        .env("_FUSE_COMMFD", inherited.as_raw_fd().to_string())
        .output()
        .map_err(|e| cannot(format!("fusermount3: {e}"), "install the package fuse3"))?;
    drop((inherited, theirs));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refused::by_fusermount(mountpoint, &said, &Around::look()));
    }
    let mut byte = [0; 1];
    match crate::supervisor::receive(&ours, &mut byte) {
        Ok((_, Some(fd))) => Ok(Device(fd)),
        Ok((_, None)) => Err(cannot(
            "fusermount3 sent no descriptor".into(),
            "install the package fuse3",
        )),
        Err(e) => Err(cannot(
            format!("fusermount3's socket: {e}"),
            "install the package fuse3",
        )),
    }
}

/// Mounts on an empty directory, and unmounts at once, to see whether this process can. Nothing answers there meanwhile: nobody else may
/// know the directory.
pub fn try_mount(dir: &Path) -> Result<(), MountError> {
    // without a process behind it the mount answers at once, with an error
    drop(mount(dir, false)?);
    unmount(dir).map_err(MountError::io("unmount what was tried on", dir))
}

/// Unmounts, now or as soon as nobody uses the mount.
pub(crate) fn unmount(mountpoint: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(mountpoint, UnmountFlags::DETACH)?);
    }
    let status = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mountpoint)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("fusermount3 -u failed"))
    }
}

/// Unmounts all that dead nodes left on a mountpoint ("Transport endpoint is not connected"), one by one; returns how many.
pub(crate) fn unmount_dead(mountpoint: &Path) -> Result<usize, MountError> {
    for count in 0..DEAD_MAX {
        if !is_dead(mountpoint) {
            return Ok(count);
        }
        unmount(mountpoint).map_err(MountError::io(
            "unmount what a dead node left on",
            mountpoint,
        ))?;
    }
    Ok(DEAD_MAX)
}

/// Returns whether the process behind a mount is gone. Asks with statvfs, which the kernel never answers from its cache. A
/// mount that just doesn't answer isn't dead: the asking thread goes on waiting for it.
fn is_dead(mountpoint: &Path) -> bool {
    let path = mountpoint.to_owned();
    let asked = floe_threads::spawn("floe-ask", move || rustix::fs::statvfs(&path).map(drop));
    let until = Instant::now().checked_add(ANSWER_WAIT);
    let told = asked
        .ok()
        .and_then(|asked| asked.wait_until(until, None).come());
    matches!(told, Some(Ok(Err(rustix::io::Errno::NOTCONN))))
}

/// Ends a connection at once, so that everybody who waits for an answer gets an error. Needs fusectl to be mounted.
pub(crate) fn abort(device_number: u64) {
    let path = format!(
        "/sys/fs/fuse/connections/{}/abort",
        rustix::fs::minor(device_number)
    );
    if let Err(error) = std::fs::write(&path, "1") {
        tracing::debug!(path, %error, "could not abort the connection; it ends when its last file is closed");
    }
}

/// Makes the kernel send all requests again that were read and not answered.
pub(crate) fn resend(device: &Device) -> io::Result<()> {
    device.notify(abi::notify::RESEND, &[], &[])
}

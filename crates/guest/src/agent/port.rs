//! The virtio port, whose other end is a socket of the node.

use super::{PORT_NAME, PORT_PATH, sys};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait when the port is full: its other end either reads or is gone.
const WRITE_WAIT: Duration = Duration::from_secs(2);
/// How often to check whether the other end is back.
const GONE_LOOK: Duration = Duration::from_millis(5);

/// The open port.
pub(super) struct Port {
    file: File,
    /// What was to be written and did not fit.
    unsent: Vec<u8>,
    /// How much of it was written.
    sent: usize,
}

/// Returns the port's device: the given path, udev's, or where the kernel has it if there is no udev.
pub(super) fn find(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = given {
        return Some(path.to_owned());
    }
    // one that can't be looked at can't be opened either, which is told
    if Path::new(PORT_PATH).try_exists().unwrap_or(true) {
        return Some(PORT_PATH.into());
    }
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find_map(|port| {
        let name = std::fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim() == PORT_NAME).then(|| Path::new("/dev").join(port.file_name()))
    })
}

impl Port {
    pub fn open(path: &Path) -> io::Result<Port> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        Ok(Port {
            file: options.open(path)?,
            unsent: Vec::new(),
            sent: 0,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads from the port. Returns 0 if nobody is at the other end, `None` if there is nothing to read.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.file.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes a line, after what is left of frames. If it can't be written, it is lost; the caller then never gets an answer
    /// and must time out.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let began = Instant::now();
        self.unsent.extend_from_slice(line);
        while self.has_unsent() {
            if self.flush()? {
                continue;
            }
            let left = WRITE_WAIT.saturating_sub(began.elapsed());
            if left.is_zero() {
                // half a message may have gone: the next one begins on a line of its own
                (self.unsent, self.sent) = (b"\n".to_vec(), 0);
                return Err(io::ErrorKind::TimedOut.into());
            }
            // a message may arrive from the other end before the kernel knows that somebody is there
            if sys::poll_one(self.fd(), libc::POLLOUT, left)? & libc::POLLOUT == 0 {
                std::thread::sleep(GONE_LOOK.min(left));
            }
        }
        Ok(())
    }

    /// Whether something is left of what was to be written.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Writes frames, as far as that is possible at once; [`Port::flush`] writes the rest. Nothing may be left of earlier ones.
    pub fn begin(&mut self, frames: Vec<u8>) -> io::Result<()> {
        (self.unsent, self.sent) = (frames, 0);
        self.flush().map(drop)
    }

    /// Writes what is left, as far as that is possible at once. Returns whether that was anything.
    pub fn flush(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while self.has_unsent() {
            match self.file.write(&self.unsent[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
            moved = true;
        }
        if !self.has_unsent() {
            self.unsent.clear();
            self.sent = 0;
        }
        Ok(moved)
    }
}

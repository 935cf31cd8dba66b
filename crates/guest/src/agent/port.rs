//! The virtio port, which ends in a socket of the node's.

use super::{PORT_NAME, PORT_PATH, sys};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a full port is waited for: its other end reads, or is gone.
const WRITE_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether somebody is there again.
const GONE_LOOK: Duration = Duration::from_millis(5);

/// The port, open.
pub(super) struct Port {
    file: File,
}

/// Where the port is: at the path given, at udev's, or wherever the kernel has it if there is no udev.
pub(super) fn find(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = given {
        return Some(path.to_owned());
    }
    if Path::new(PORT_PATH).exists() {
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
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What is there to read: 0 if nobody is at the other end, `None` if there is nothing.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.file.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes a line. What can't be written is lost: its answer will never come, and the loop knows how to live with that.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let began = Instant::now();
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = WRITE_WAIT.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    // what the other end has said may be here before the kernel has heard that it is there
                    if sys::poll_one(self.fd(), libc::POLLOUT, left)? & libc::POLLOUT == 0 {
                        std::thread::sleep(GONE_LOOK.min(left));
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

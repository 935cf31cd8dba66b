//! Where a unix socket is.
//!
//! A socket's address has room for 107 bytes of a path, and a state directory may be deeper than that. A longer path is passed by a
//! descriptor of its directory: what is below `/proc/self/fd` is short.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Longest path in a socket's address, in bytes: `sun_path` has 108, one of them for the end.
const PATH_BYTES_MAX: usize = 107;
/// Longest name of the socket's own file behind a longer path, in bytes: what `/proc/self/fd/`, a descriptor of ten digits and a slash
/// leave.
const NAME_BYTES_MAX: usize = PATH_BYTES_MAX - 25;

/// The address of a unix socket, whatever the length of its path; of use for as long as this value is there.
#[derive(Debug)]
pub struct Address {
    path: PathBuf,
    /// The directory that a short path leads through.
    _dir: Option<OwnedFd>,
}

impl Address {
    /// Makes the address of the socket at `path`. The directory of a long path must be there, and the name of the socket's own file
    /// must be shorter than 83 bytes.
    pub fn of(path: &Path) -> io::Result<Address> {
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Address {
                path: path.to_owned(),
                _dir: None,
            });
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if name.as_bytes().len() > NAME_BYTES_MAX {
            let why = format!(
                "the socket's name has {} bytes, and {NAME_BYTES_MAX} at most may it have; give it a shorter one",
                name.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let fd = dir.as_raw_fd().to_string();
        Ok(Address {
            path: Path::new("/proc/self/fd").join(fd).join(name),
            _dir: Some(dir),
        })
    }

    /// Returns a path to the socket that fits into an address.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Connects to the socket at `path`, however long that is.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(Address::of(path)?.path())
}

/// Listens on a new socket at `path`, however long that is.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(Address::of(path)?.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_socket_may_be_as_deep_as_a_file() {
        let dir = tempfile::tempdir().unwrap();
        for depth in [1, 70, 71, 72, 120, 250] {
            let deep = dir.path().join("d".repeat(depth)).join("e".repeat(depth));
            std::fs::create_dir_all(&deep).unwrap();
            let socket = deep.join("node.sock");
            let absent = connect(&socket).unwrap_err();
            assert_eq!(absent.kind(), io::ErrorKind::NotFound, "{depth}");
            let listener = listen(&socket).unwrap();
            connect(&socket).unwrap().write_all(b"through").unwrap();
            let mut got = String::new();
            let mut accepted = listener.accept().unwrap().0;
            accepted.read_to_string(&mut got).unwrap();
            assert_eq!(got, "through", "{depth}");
            drop(listener);
            let left = connect(&socket).unwrap_err();
            assert_eq!(left.kind(), io::ErrorKind::ConnectionRefused, "{depth}");
        }
    }

    #[test]
    fn a_name_that_fits_into_no_address_is_refused_with_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("d".repeat(90)).join("s".repeat(83));
        let error = Address::of(&socket).unwrap_err().to_string();
        assert!(error.contains("has 83 bytes, and 82 at most"), "{error}");
    }
}

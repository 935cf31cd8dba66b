//! Allows one hub per folder: a lock that ends with the process, however that ends.

use super::HubError;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The lock on a hub's folder, held until this is dropped. `floe hub token` and similar commands do not need it: they only
/// change the catalogue, which has its own locks.
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that is just being started has a copy of the descriptor until it becomes its program.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Takes the lock, or returns who holds it. The lock's file is never removed: otherwise two hubs could lock two
    /// different files.
    pub fn take(dir: &Path) -> Result<Lock, HubError> {
        std::fs::create_dir_all(dir).map_err(HubError::file("cannot create", dir))?;
        let path = dir.join("hub.lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::file("cannot open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let lock = Lock { file, path };
                lock.write("starting")?;
                Ok(lock)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut by = String::new();
                let _ = (&mut file).take(200).read_to_string(&mut by);
                let by = match by.trim() {
                    "" => "which has not said who it is",
                    known => known,
                };
                Err(HubError::Served {
                    dir: dir.to_owned(),
                    by: by.to_owned(),
                })
            }
            Err(error) => Err(HubError::file("cannot lock", &path)(error.into())),
        }
    }

    /// Writes the hub's address into the file, for a process that tries to lock the same folder.
    pub fn tell(&mut self, addr: SocketAddr) -> Result<(), HubError> {
        self.write(&format!("on {addr}"))
    }

    fn write(&self, what: &str) -> Result<(), HubError> {
        let mut file = &self.file;
        let text = format!("process {} {what}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(HubError::file("cannot write", &self.path))
    }
}

//! Disk space that the node keeps back for itself.
//!
//! A full disk pauses the guests that write to it, and somebody has to make room. To do that the node must still be able to
//! change machines' records: to stop, remove or start a machine. So a file occupies some space that nobody else can take, and
//! shrinks piece by piece when a small write finds no space. It grows again when there is plenty.

use crate::error::{NodeError, at};
use floe_store::private;
use parking_lot::Mutex;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// How many bytes are kept back: enough for a few hundred small files.
const RESERVE_BYTES: u64 = 2 << 20;
/// How many bytes are given up at a time: a record, its directory and what the file system adds.
const PIECE_BYTES: u64 = 128 << 10;
/// With so many free bytes the reserve is filled again.
const PLENTY_BYTES: u64 = 16 * RESERVE_BYTES;

/// The reserve of a state directory; without a file it does nothing.
#[derive(Default)]
pub struct Reserve {
    file: Option<(PathBuf, Mutex<File>)>,
}

impl Reserve {
    /// Keeps space back in this file, as far as there is some. What an earlier node kept back is still there; where not even the file
    /// finds room, nothing is kept back.
    pub fn open(path: PathBuf) -> Result<Reserve, NodeError> {
        let opened = private::options()
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(at(format!("cannot open {}", path.display())));
        let file = match opened {
            Err(error) if is_full(&error) => return Ok(Reserve::default()),
            opened => opened?,
        };
        let reserve = Reserve {
            file: Some((path, Mutex::new(file))),
        };
        reserve.refill();
        Ok(reserve)
    }

    /// Fills the reserve again if there is plenty of space.
    pub fn refill(&self) {
        let Some((path, file)) = &self.file else {
            return;
        };
        let file = file.lock();
        let whole = file
            .metadata()
            .is_ok_and(|meta| meta.len() >= RESERVE_BYTES);
        if whole || free_bytes(path) < PLENTY_BYTES {
            return;
        }
        let flags = rustix::fs::FallocateFlags::empty();
        if let Err(error) = rustix::fs::fallocate(&*file, flags, 0, RESERVE_BYTES) {
            tracing::debug!(%error, "no room is kept back on the disk");
        }
    }

    /// Gives up a piece; returns false if none is left.
    fn give(&self) -> bool {
        let Some((_, file)) = &self.file else {
            return false;
        };
        let file = file.lock();
        let len = file.metadata().map_or(0, |meta| meta.len());
        len > 0 && file.set_len(len.saturating_sub(PIECE_BYTES)).is_ok()
    }

    /// Does a small write, with space from the reserve if the disk is full.
    pub fn write<T>(&self, write: impl Fn() -> Result<T, NodeError>) -> Result<T, NodeError> {
        loop {
            match write() {
                // others may have taken the space: give up another piece
                Err(error) if is_full(&error) && self.give() => {}
                done => return done,
            }
        }
    }

    /// Makes space for a few files of a QEMU that is about to be started.
    pub fn make_room(&self) {
        while let Some((path, _)) = &self.file
            && free_bytes(path) < PIECE_BYTES
            && self.give()
        {}
    }
}

/// Returns how many bytes are free on the disk of a file or directory; 0 if that cannot be found out.
pub fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether an error is that a disk or a quota is full.
pub fn is_full(error: &NodeError) -> bool {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    matches!(error, NodeError::Io { source, .. } if full.contains(&source.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_write_that_finds_no_room_gets_it_from_the_reserve_until_that_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        std::fs::write(&path, vec![0; 3 * PIECE_BYTES as usize]).unwrap();
        let reserve = Reserve {
            file: Some((
                path.clone(),
                Mutex::new(File::options().write(true).open(&path).unwrap()),
            )),
        };
        let full = || at("write")(io::ErrorKind::StorageFull.into());
        let tries = Cell::new(0);
        let write = |until: u32| {
            tries.set(tries.get() + 1);
            (tries.get() >= until).then_some(()).ok_or_else(full)
        };
        reserve.write(|| write(3)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), PIECE_BYTES);
        tries.set(0);
        assert!(reserve.write(|| write(9)).is_err());
        assert_eq!(tries.get(), 2, "one piece was left");
        let other =
            || -> Result<(), NodeError> { Err(at("write")(io::ErrorKind::NotFound.into())) };
        assert!(reserve.write(other).is_err());
    }
}

//! One layer of a disk: a sparse file of data and the map of what is in it.

use super::CHUNK;
use super::layer_files::{data_path, map_path, take_away};
use super::map::{Map, SECTOR, boot_id, sectors};
use super::storage::{self, Storage, access};
use super::unsynced::{Failure, Unsynced};
use crate::MountError;
use parking_lot::RwLock;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A layer. The top layer is written; those below are frozen.
pub(crate) struct Layer {
    pub number: u32,
    dir: PathBuf,
    data: Box<dyn Storage>,
    map: Map,
    /// Checksums of what was written to `data` since it was last durable.
    unsynced: Unsynced,
    /// Writers hold it shared from the write of the data to its checksum; whoever compares the two holds it alone.
    writing: RwLock<()>,
    /// Set while the map's header and the directory entries aren't known to be durable.
    new: AtomicBool,
}

impl Layer {
    /// Makes a new layer. What is there of its number is no layer's and is taken away first.
    pub(crate) fn create(
        dir: &Path,
        live_dir: &Path,
        number: u32,
        disk_bytes: u64,
    ) -> Result<Self, MountError> {
        take_away(dir, number)?;
        Self::make(dir, live_dir, number, disk_bytes).inspect_err(|_| {
            // nobody wrote to it; a larger one than the disk must not be found when the disk is opened
            if let Err(error) = take_away(dir, number) {
                tracing::warn!(%error, "a half-made layer stays");
            }
        })
    }

    fn make(dir: &Path, live_dir: &Path, number: u32, disk_bytes: u64) -> Result<Self, MountError> {
        let path = data_path(dir, number);
        let io = |e| MountError::io("make the layer", &path)(e);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let data = access(&path, || options.open(&path)).map_err(io)?;
        access(&path, || data.set_len(disk_bytes)).map_err(io)?;
        // The map is made last: a layer exists when its map does.
        let map = Map::create(&map_path(dir, number), live_dir, disk_bytes)?;
        let unsynced = Unsynced::new(map.failure_path(), boot_id()?);
        Ok(Self::of(dir, number, data, map, unsynced))
    }

    /// Opens a layer of a disk that has `disk_bytes` now, and may have had fewer when the layer was made.
    pub(crate) fn open(
        dir: &Path,
        live_dir: &Path,
        number: u32,
        disk_bytes: u64,
    ) -> Result<Self, MountError> {
        let path = data_path(dir, number);
        let io = |e| MountError::io("open the layer", &path)(e);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let data = access(&path, || options.open(&path)).map_err(io)?;
        let map = Map::open(&map_path(dir, number), live_dir, disk_bytes)?;
        // Never made shorter: what a guest wrote may be at the end.
        if access(&path, || data.metadata()).map_err(io)?.len() < map.disk_bytes() {
            access(&path, || data.set_len(map.disk_bytes())).map_err(io)?;
        }
        // What a killed node had written and not flushed is made durable by the next flush.
        map.marks.something();
        let unsynced = Unsynced::open(map.failure_path(), boot_id()?)?;
        Ok(Self::of(dir, number, data, map, unsynced))
    }

    fn of(dir: &Path, number: u32, data: File, map: Map, unsynced: Unsynced) -> Self {
        Self {
            number,
            dir: dir.to_owned(),
            data: Box::new(data),
            map,
            unsynced,
            writing: RwLock::new(()),
            new: AtomicBool::new(true),
        }
    }

    /// Returns the same layer on other files.
    #[cfg(test)]
    pub(crate) fn on(mut self, data: Box<dyn Storage>, map: Box<dyn Storage>) -> Self {
        (self.data, self.map.durable) = (data, map);
        self
    }

    /// Returns the size in bytes that the disk had when the layer was made; nothing beyond is in it.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.map.disk_bytes()
    }

    pub(crate) fn mask(&self, chunk: u64) -> u8 {
        self.map.get(chunk)
    }

    pub(crate) fn present(&self) -> u64 {
        self.map.present()
    }

    /// Returns how many bytes the data takes on the local disk.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.data.stored_bytes()
    }

    /// Reads bytes. After a failed sync, bytes that aren't as they were written are an error (EIO) and never returned.
    pub(crate) fn read(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        if !self.unsynced.has_failed() {
            return self.data.read(out, offset);
        }
        let _alone = self.writing.write();
        let end = offset + out.len() as u64;
        if !self.unsynced.is_right(offset, end, &*self.data)? {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.data.read(out, offset)
    }

    /// Reads bytes if that takes no access to the disk; returns whether it did. After a failed sync it always would.
    pub(crate) fn read_now(&self, out: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.unsynced.has_failed() {
            return Ok(false);
        }
        self.data.read_now(out, offset)
    }

    /// Writes whole sectors. The map is set after the data, so that no reader sees sectors before they are there.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(SECTOR) && (data.len() as u64).is_multiple_of(SECTOR));
        let _shared = self.writing.read();
        self.data.write(data, offset)?;
        self.unsynced.wrote(offset, data);
        self.mark(offset, data.len() as u64);
        Ok(())
    }

    /// Makes whole sectors zero: a hole in the data file reads as zeros and takes no space.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let _shared = self.writing.read();
        self.data.punch(offset, len)?;
        self.unsynced.zeroed(offset, len);
        self.mark(offset, len);
        Ok(())
    }

    /// Sets the map's bits for bytes that are in the data file already.
    fn mark(&self, offset: u64, len: u64) {
        let end = offset + len;
        let chunks = offset / CHUNK..end.div_ceil(CHUNK);
        self.map
            .mark(chunks.map(|chunk| (chunk, sectors(chunk, offset, end))));
    }

    /// Writes ranges of the data (offset and length) that are only in the page cache to the disk, and waits for that. Makes nothing
    /// durable. An error that this meets is the next [`Layer::flush`]'s all the same, because that has another descriptor.
    pub(crate) fn write_out(&self, ranges: Vec<(u64, u64)>) -> io::Result<()> {
        let data = File::open(data_path(&self.dir, self.number))?;
        storage::write_out(&data, ranges)
    }

    /// Makes everything written so far durable; returns whether there was anything to do. After a failure it fails until
    /// everything that may have been lost was written again.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        self.map.marks.flush(|pages| self.make_durable(pages))
    }

    fn make_durable(&self, pages: &[usize]) -> io::Result<()> {
        self.make_good()?;
        let pages = self.map.snapshot(pages);
        self.unsynced.begin();
        if let Err(error) = self.data.sync() {
            self.unsynced.failed(&error);
            return Err(error);
        }
        self.unsynced.succeeded();
        let new = self.new.load(Ordering::Acquire);
        self.map.write(&pages, new)?;
        if new {
            File::open(&self.dir)?.sync_all()?;
            self.new.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// After a failed sync: writes again all sectors that read back right. Fails (EIO) if any doesn't, or can't be checked.
    fn make_good(&self) -> io::Result<()> {
        let Some(failure) = self.unsynced.failure() else {
            return Ok(());
        };
        let mut all = !failure.unknown;
        self.unsynced.recount();
        for chunk in self.unsynced.suspects() {
            // Locks for one chunk at a time, so that the disk's writers needn't wait for all of them.
            let _alone = self.writing.write();
            all &= self.unsynced.make_good(chunk, &*self.data)?;
        }
        if all {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    /// Returns why flushes fail, if they do.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.unsynced.failure()
    }

    /// Accepts the data as it is now, and forgets a failure.
    pub(crate) fn accept_losses(&self) {
        self.unsynced.accept_losses();
    }

    /// Returns whether so much was written without a flush that the mount should flush by itself.
    pub(crate) fn wants_flush(&self) -> bool {
        self.unsynced.is_half_full()
    }

    /// Gives the data file another name (a hard link).
    pub(crate) fn link(&self, to: &Path) -> io::Result<()> {
        std::fs::hard_link(data_path(&self.dir, self.number), to)
    }

    /// Removes the live map of a layer that is durable, and the record of its failure.
    pub(crate) fn close(&self) {
        self.map.remove_live();
        self.unsynced.remove();
    }

    /// Removes the files. Readers that have the layer open go on reading it.
    pub(crate) fn remove(&self) {
        self.close();
        remove_files(&self.dir, self.number);
    }
}

/// Removes a layer's files, the map first. What is left if that fails is set aside by the next start.
fn remove_files(dir: &Path, number: u32) {
    for path in [map_path(dir, number), data_path(dir, number)] {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a layer that is no longer needed stays");
        }
    }
}

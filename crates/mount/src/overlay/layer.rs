//! One layer of a disk: a sparse file of data and the map of what is in it.

use super::map::{Map, SECTOR};
use crate::MountError;
use floe_image::CHUNK_SIZE;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const CHUNK: u64 = CHUNK_SIZE as u64;

/// A layer. The top one is written, those below are frozen.
pub(crate) struct Layer {
    pub number: u32,
    dir: PathBuf,
    data: File,
    map: Map,
    /// Something was written since it was last made durable.
    unflushed: AtomicBool,
    /// A flush that finds nothing to do must not end before one that is doing it.
    flushing: Mutex<()>,
    /// Its directory entries aren't known to be durable yet.
    new: AtomicBool,
}

fn data_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("layer-{number}.data"))
}

pub(crate) fn map_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("layer-{number}.map"))
}

/// The bits of the sectors that `from..to` (bytes, multiples of 512) covers in `chunk`.
pub(crate) fn sectors(chunk: u64, from: u64, to: u64) -> u8 {
    let first = from.max(chunk * CHUNK) / SECTOR % 8;
    let end = to.min((chunk + 1) * CHUNK).div_ceil(SECTOR) - chunk * 8;
    ((1u16 << end) - (1u16 << first)) as u8
}

impl Layer {
    pub(crate) fn create(
        dir: &Path,
        live_dir: &Path,
        number: u32,
        disk_bytes: u64,
    ) -> Result<Self, MountError> {
        let path = data_path(dir, number);
        let io = |e| MountError::io("make the layer", &path)(e);
        let data = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        data.set_len(disk_bytes).map_err(io)?;
        // The map last: a layer is there when its map is.
        let map = Map::create(&map_path(dir, number), live_dir, disk_bytes)?;
        Ok(Self {
            number,
            dir: dir.to_owned(),
            data,
            map,
            unflushed: AtomicBool::new(false),
            flushing: Mutex::new(()),
            new: AtomicBool::new(true),
        })
    }

    pub(crate) fn open(
        dir: &Path,
        live_dir: &Path,
        number: u32,
        disk_bytes: u64,
    ) -> Result<Self, MountError> {
        let path = data_path(dir, number);
        let io = |e| MountError::io("open the layer", &path)(e);
        let data = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io)?;
        if data.metadata().map_err(io)?.len() != disk_bytes {
            data.set_len(disk_bytes).map_err(io)?;
        }
        let map = Map::open(&map_path(dir, number), live_dir, disk_bytes)?;
        // What a killed node had written and not flushed is flushed with the next flush.
        Ok(Self {
            number,
            dir: dir.to_owned(),
            data,
            map,
            unflushed: AtomicBool::new(true),
            flushing: Mutex::new(()),
            new: AtomicBool::new(true),
        })
    }

    pub(crate) fn mask(&self, chunk: u64) -> u8 {
        self.map.get(chunk)
    }

    pub(crate) fn present(&self) -> u64 {
        self.map.present()
    }

    /// Bytes on the local disk.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.data.metadata().map_or(0, |m| m.blocks() * 512)
    }

    pub(crate) fn read(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.data.read_exact_at(out, offset)
    }

    /// Writes whole sectors. The map is set after the data, so nobody sees sectors before they are there.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        debug_assert!(offset.is_multiple_of(SECTOR) && (data.len() as u64).is_multiple_of(SECTOR));
        self.data.write_all_at(data, offset)?;
        self.mark(offset, data.len() as u64);
        Ok(())
    }

    /// Makes whole sectors zero: a hole in the data file reads as zeros and takes no space.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.data, punch, offset, len) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => self.write_zeros(offset, len)?,
            Err(e) => return Err(e.into()),
        }
        self.mark(offset, len);
        Ok(())
    }

    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < len {
            let n = (len - at).min(zeros.len() as u64);
            self.data.write_all_at(&zeros[..n as usize], offset + at)?;
            at += n;
        }
        Ok(())
    }

    fn mark(&self, offset: u64, len: u64) {
        self.unflushed.store(true, Ordering::Release);
        let end = offset + len;
        for chunk in offset / CHUNK..end.div_ceil(CHUNK) {
            self.map.set(chunk, sectors(chunk, offset, end));
        }
    }

    /// Makes everything written so far durable; whether there was anything to do.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        let _one = self.flushing.lock();
        if !self.unflushed.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let done = self.map.make_durable(&self.data).and_then(|_| {
            if self.new.load(Ordering::Acquire) {
                // The map's header and both files' directory entries.
                File::open(map_path(&self.dir, self.number))?.sync_all()?;
                File::open(&self.dir)?.sync_all()?;
                self.new.store(false, Ordering::Release);
            }
            Ok(())
        });
        if done.is_err() {
            self.unflushed.store(true, Ordering::Release);
        }
        done.map(|()| true)
    }

    /// Gives the data file another name.
    pub(crate) fn link(&self, to: &Path) -> io::Result<()> {
        std::fs::hard_link(data_path(&self.dir, self.number), to)
    }

    /// Removes the live map of a layer that is durable.
    pub(crate) fn close(&self) {
        self.map.remove_live();
    }

    /// Removes the files. Who still reads the layer goes on reading it.
    pub(crate) fn remove(&self) {
        self.map.remove_live();
        remove_files(&self.dir, self.number);
    }
}

/// Removes a layer's files, the map first.
pub(crate) fn remove_files(dir: &Path, number: u32) {
    let _ = std::fs::remove_file(map_path(dir, number));
    let _ = std::fs::remove_file(data_path(dir, number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_masks_cover_exactly_the_bytes_that_are_in_the_chunk() {
        assert_eq!(sectors(0, 0, 4096), 0xFF);
        assert_eq!(sectors(1, 4096 + 512, 4096 + 1024), 0b10);
        assert_eq!(sectors(1, 0, 4096 + 1024), 0b11);
        assert_eq!(sectors(1, 4096 + 3584, 1 << 20), 0b1000_0000);
    }
}

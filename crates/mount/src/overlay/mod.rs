//! A machine's disk: layers of written sectors over a region of an image.
//!
//! ```text
//! <machine>/disks/<disk>/base.json        what the layers are relative to, and the number of the lowest one
//!                        layer-<n>.data   sparse, as long as the disk when the layer was made
//!                        layer-<n>.map    which sectors are in it (see `map`)
//! ```
//! The layer with the highest number is the top layer, which is written; all below are frozen. There is no list of layers: a
//! freeze makes the files of the next one, and a power cut that loses them loses nothing that was flushed. What is found there at
//! a start and belongs to no layer is set aside, never removed (see `found`). A chunk that is
//! written as a whole never needs the base; of a partial write only the sectors are recorded, and a read merges them.
//!
//! A disk that is grown, in use or not, gets a new top layer of its new size: no layer ever changes its length. The record has the
//! size, and is written first; a disk whose top layer is shorter than the record says gets that layer when it is opened.

mod behind;
#[cfg(test)]
mod failing_disk;
#[cfg(test)]
mod failing_open;
mod found;
mod frozen;
#[cfg(test)]
mod interleavings;
mod layer;
mod layer_files;
mod map;
mod marks;
#[cfg(test)]
mod power_loss;
mod storage;
mod unsynced;

/// Where `marks` takes its atomics from.
mod sync {
    pub(super) use std::sync::Mutex;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
}

pub use frozen::FrozenDisk;

use crate::MountError;
use crate::image::{Image, Reading};
use behind::Behind;
pub(crate) use behind::{Dirty, Unwritten};
use floe_image::{CHUNK_SIZE, Hash};
use floe_store::{Durability, private};
pub(crate) use layer::Layer;
pub(crate) use map::remove_earlier_boots;
use map::{DISK_BYTES_MAX, SECTOR, sectors};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use storage::access;
pub(crate) use unsynced::Failure;

const CHUNK: u64 = CHUNK_SIZE as u64;
/// Most layers of a disk: each read searches all of them.
const LAYERS_MAX: usize = 256;
/// Most layers that are looked for: one more, which a disk that was grown may get when it is opened.
const LAYERS_OPENED_MAX: usize = LAYERS_MAX + 1;
const BASE_VERSION: u32 = 1;
/// The name of a disk's record in its directory.
pub(crate) const RECORD: &str = "base.json";
/// Most bytes of `base.json`.
const BASE_BYTES_MAX: u64 = 4096;

/// The content of `base.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BaseRecord {
    version: u32,
    disk_bytes: u64,
    image: Option<Hash>,
    region: Option<String>,
    first_layer: u32,
}

impl BaseRecord {
    /// Decodes what [`BaseRecord::write`] wrote; the error says what is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes)
            .map_err(|e| format!("this is not a disk's base record: {e}"))?;
        if record.version != BASE_VERSION {
            return Err(format!(
                "the record has version {}, this floe reads {BASE_VERSION}; use a newer floe",
                record.version
            ));
        }
        if record.disk_bytes > DISK_BYTES_MAX || !record.disk_bytes.is_multiple_of(SECTOR) {
            return Err(format!("{} bytes are no size of a disk", record.disk_bytes));
        }
        Ok(record)
    }

    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, MountError> {
        let path = dir.join(RECORD);
        let bytes = match access(&path, || std::fs::metadata(&path)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(m) if m.len() > BASE_BYTES_MAX => {
                return Err(MountError::Overlay {
                    path,
                    reason: format!("{} bytes are too many for a base record", m.len()),
                });
            }
            found => found.and_then(|_| access(&path, || std::fs::read(&path))),
        };
        let bytes = bytes.map_err(MountError::io("read", &path))?;
        Self::decode(&bytes)
            .map(Some)
            .map_err(|reason| MountError::Overlay { path, reason })
    }

    fn write(&self, dir: &Path) -> Result<(), MountError> {
        let path = dir.join(RECORD);
        let bytes = serde_json::to_vec(self).expect("a record has only strings and numbers");
        let replace = || floe_store::replace_file(&path, &bytes, 0o600, Durability::Durable);
        access(&path, replace).map_err(MountError::io("write", &path))
    }

    pub(crate) fn image(&self) -> Option<Hash> {
        self.image
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }
}

/// The region of an image that a disk's layers are based on.
#[derive(Clone)]
pub(crate) struct Base {
    pub image: Arc<Image>,
    pub region: usize,
}

impl Base {
    pub(crate) fn size(&self) -> u64 {
        self.image.regions[self.region].size
    }

    /// Reads bytes of it, as [`Disk::read`] does of a disk.
    pub(crate) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
        reading: &mut Reading<'_>,
    ) -> Result<(), Stop> {
        self.image.read(self.region, offset, out, reading);
        all_read(reading)
    }
}

/// Returns what still has to be done for what was read.
fn all_read(reading: &Reading<'_>) -> Result<(), Stop> {
    match (reading.on_disk, reading.needs.is_empty()) {
        (true, _) => Err(Stop::OnDisk),
        (false, true) => Ok(()),
        (false, false) => Err(Stop::Needs),
    }
}

/// A disk's layers at one moment, the lowest first, and their base.
#[derive(Clone)]
pub(crate) struct Chain {
    layers: Vec<Arc<Layer>>,
    base: Option<Base>,
}

/// Why an operation on a disk can't be completed now.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Chunks of the base must be fetched first (they are in the [`Reading`]).
    Needs,
    /// The host's disk must be accessed, and the [`Reading`] is not to.
    OnDisk,
    /// It failed with this errno.
    Errno(i32),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What has the wanted sectors of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Base,
    Layer(usize),
    Mixed,
}

impl Chain {
    fn top(&self) -> &Layer {
        self.layers.last().expect("a disk has at least one layer")
    }

    pub(crate) fn base_image(&self) -> Option<Arc<Image>> {
        self.base.as_ref().map(|b| b.image.clone())
    }

    pub(crate) fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// Returns whether any of these bytes is in a layer, and so may differ from the base.
    pub(crate) fn has(&self, bytes: &Range<u64>) -> bool {
        let mut chunks = bytes.start / CHUNK..bytes.end.div_ceil(CHUNK);
        chunks.any(|chunk| self.layers.iter().any(|layer| layer.mask(chunk) != 0))
    }

    /// Returns what has the sectors `wanted` of a chunk: one layer, the base, or several of them.
    fn owner(&self, chunk: u64, wanted: u8) -> Owner {
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let has = layer.mask(chunk) & wanted;
            if has == wanted {
                return Owner::Layer(i);
            }
            if has != 0 {
                return Owner::Mixed;
            }
        }
        Owner::Base
    }

    /// Reads bytes of the disk. Neighbouring chunks with the same owner are read together.
    pub(crate) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
        reading: &mut Reading<'_>,
    ) -> io::Result<()> {
        let end = offset + out.len() as u64;
        let mut from = offset;
        while from < end {
            let owner = self.owner_at(from, end);
            let mut to = ((from / CHUNK + 1) * CHUNK).min(end);
            while owner != Owner::Mixed && to < end && self.owner_at(to, end) == owner {
                to = (to + CHUNK).min(end);
            }
            let piece = &mut out[(from - offset) as usize..(to - offset) as usize];
            match owner {
                Owner::Layer(i) => read_layer(&self.layers[i], piece, from, reading)?,
                Owner::Base => self.read_base(from, piece, reading),
                Owner::Mixed => self.merge(from, piece, reading)?,
            }
            from = to;
        }
        Ok(())
    }

    fn owner_at(&self, from: u64, end: u64) -> Owner {
        let chunk = from / CHUNK;
        self.owner(chunk, sectors(chunk, from, end))
    }

    fn read_base(&self, offset: u64, out: &mut [u8], reading: &mut Reading<'_>) {
        match &self.base {
            Some(base) => {
                base.image.read(base.region, offset, out, reading);
                if !reading.needs.is_empty() && reading.image.is_none() {
                    reading.image = Some(base.image.clone());
                }
            }
            None => out.fill(0),
        }
    }

    /// Reads a part of one chunk whose sectors are in several places.
    fn merge(&self, offset: u64, out: &mut [u8], reading: &mut Reading<'_>) -> io::Result<()> {
        let chunk = offset / CHUNK;
        let end = offset + out.len() as u64;
        let wanted = sectors(chunk, offset, end);
        let have = self.layers.iter().fold(0, |have, l| have | l.mask(chunk));
        if wanted & !have != 0 {
            self.read_base(offset, out, reading);
        }
        self.apply(offset, out, reading)
    }

    /// Copies the layers' sectors of a part of one chunk over what is in `out`, from the lowest layer up.
    fn apply(&self, offset: u64, out: &mut [u8], reading: &mut Reading<'_>) -> io::Result<()> {
        let chunk = offset / CHUNK;
        let end = offset + out.len() as u64;
        let wanted = sectors(chunk, offset, end);
        for layer in &self.layers {
            let mask = layer.mask(chunk) & wanted;
            for sector in (0..8).filter(|s| mask >> s & 1 == 1) {
                let start = (chunk * CHUNK + sector * SECTOR).max(offset);
                let stop = (chunk * CHUNK + (sector + 1) * SECTOR).min(end);
                let piece = &mut out[(start - offset) as usize..(stop - offset) as usize];
                read_layer(layer, piece, start, reading)?;
            }
        }
        Ok(())
    }
}

/// Reads bytes of a layer, or notes that the disk would have to be accessed if `reading` is not to.
fn read_layer(
    layer: &Layer,
    out: &mut [u8],
    offset: u64,
    reading: &mut Reading<'_>,
) -> io::Result<()> {
    if !reading.now {
        return layer.read(out, offset);
    }
    reading.on_disk |= !layer.read_now(out, offset)?;
    Ok(())
}

/// A machine's disk.
pub(crate) struct Disk {
    pub name: String,
    /// The number of its region in its machine's trace, if that region is in the image that the machine began with.
    pub traced: Option<u8>,
    /// In bytes, the top layer's. It only grows, after the layer with the new part was put on top.
    size: AtomicU64,
    dir: PathBuf,
    live_dir: PathBuf,
    /// Writers hold it shared while they write, so that a freeze waits for them. A reader takes the chain along, which costs it one
    /// count whatever the number of layers; who changes it puts another in its place.
    chain: RwLock<Arc<Chain>>,
    /// Held while a part of a sector is read, changed and written back.
    partial: Mutex<()>,
    /// Held while the disk is frozen or frozen layers are dropped.
    changing: Mutex<()>,
    /// Writes out what is only in the page cache.
    pub behind: Behind,
}

impl Disk {
    /// Returns the directory of a disk in its machine's directory.
    pub(crate) fn dir(machine_dir: &Path, disk: &str) -> PathBuf {
        machine_dir.join("disks").join(disk)
    }

    /// Opens the disk in `dir`; a new one is based on `fresh`. `find` returns an image that is on the mount.
    pub(crate) fn open(
        dir: &Path,
        live_dir: &Path,
        name: &str,
        size: u64,
        fresh: Option<Base>,
        find: impl Fn(&Hash) -> Option<Arc<Image>>,
    ) -> Result<Self, MountError> {
        let bad = |reason: String| MountError::Overlay {
            path: dir.to_owned(),
            reason,
        };
        if !size.is_multiple_of(SECTOR) || size == 0 || size > DISK_BYTES_MAX {
            return Err(bad(format!(
                "{size} bytes are no size of a disk; give a multiple of 512, at most {DISK_BYTES_MAX}"
            )));
        }
        access(dir, || private::make_dirs(dir)).map_err(MountError::io("make", dir))?;
        let traced = fresh.as_ref().map(|base| base.region as u8);
        let (record, base) = match BaseRecord::read(dir)? {
            Some(record) => {
                let base =
                    recorded_base(&record, find).map_err(|image| MountError::BaseMissing {
                        machine: dir.display().to_string(),
                        disk: name.to_owned(),
                        image,
                    })?;
                (record, base)
            }
            None => {
                found::nothing_written(dir)?;
                let record = BaseRecord {
                    version: BASE_VERSION,
                    disk_bytes: size,
                    image: fresh.as_ref().map(|b| b.image.id),
                    region: fresh
                        .as_ref()
                        .map(|b| b.image.regions[b.region].name.clone()),
                    first_layer: 1,
                };
                record.write(dir)?;
                (record, fresh)
            }
        };
        if record.disk_bytes != size {
            return Err(bad(format!(
                "the disk has {} bytes, not {size}; add the machine with the size that it has",
                record.disk_bytes
            )));
        }
        if base.as_ref().is_some_and(|b| b.size() > size) {
            return Err(bad(format!(
                "the disk of {size} bytes is smaller than the region that it is based on"
            )));
        }
        let layers = found::open_layers(dir, live_dir, record.first_layer, size)?;
        Ok(Self {
            name: name.to_owned(),
            traced,
            size: AtomicU64::new(size),
            dir: dir.to_owned(),
            live_dir: live_dir.to_owned(),
            chain: RwLock::new(Arc::new(Chain { layers, base })),
            partial: Mutex::new(()),
            changing: Mutex::new(()),
            behind: Behind::default(),
        })
    }

    /// Returns its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Makes the disk larger, which may be in use: what is beyond its old end reads as zeros. Durable when it returns. A disk is
    /// never made smaller, since its end may be in use.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), MountError> {
        let _one = self.changing.lock();
        let bad = |reason: String| MountError::Overlay {
            path: self.dir.clone(),
            reason,
        };
        let size = self.size();
        if !bytes.is_multiple_of(SECTOR) || bytes > DISK_BYTES_MAX {
            return Err(bad(format!(
                "{bytes} bytes are no size of a disk; give a multiple of 512, at most {DISK_BYTES_MAX}"
            )));
        }
        if bytes < size {
            return Err(bad(format!(
                "the disk has {size} bytes, and what is at its end would be lost with {bytes}"
            )));
        }
        if bytes == size {
            return Ok(());
        }
        let number = self.next_layer()?;
        let before =
            BaseRecord::read(&self.dir)?.ok_or_else(|| bad("its record is gone".into()))?;
        let record = BaseRecord {
            disk_bytes: bytes,
            ..before.clone()
        };
        record.write(&self.dir)?;
        let new = Layer::create(&self.dir, &self.live_dir, number, bytes).inspect_err(|_| {
            if let Err(error) = before.write(&self.dir) {
                tracing::warn!(dir = %self.dir.display(), %error, "the disk has its new size once it is opened again");
            }
        })?;
        Arc::make_mut(&mut self.chain.write())
            .layers
            .push(Arc::new(new));
        self.size.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Returns the number of the next layer; an error if there are too many. The caller holds `changing`.
    fn next_layer(&self) -> Result<u32, MountError> {
        let chain = self.chain.read();
        let n = chain.layers.len();
        if n < LAYERS_MAX {
            return Ok(chain.top().number + 1);
        }
        Err(MountError::Overlay {
            path: self.dir.clone(),
            reason: format!(
                "there are {n} layers already; publish the machine so that they can be dropped"
            ),
        })
    }

    fn bounds(&self, offset: u64, len: u64) -> Result<u64, Stop> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(end),
            _ => Err(Stop::Errno(libc::EFBIG)),
        }
    }

    /// Returns the layers and the base as they are now.
    pub(crate) fn chain(&self) -> Arc<Chain> {
        self.chain.read().clone()
    }

    /// Reads bytes, which must lie within the disk (EFBIG otherwise).
    pub(crate) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
        reading: &mut Reading<'_>,
    ) -> Result<(), Stop> {
        self.bounds(offset, out.len() as u64)?;
        self.chain().read(offset, out, reading)?;
        all_read(reading)
    }

    /// Writes bytes. Only a write of parts of sectors needs what was there before.
    pub(crate) fn write(
        &self,
        offset: u64,
        data: &[u8],
        reading: &mut Reading<'_>,
    ) -> Result<(), Stop> {
        let end = self.bounds(offset, data.len() as u64)?;
        if offset.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR) {
            let chain = self.chain.read();
            return Ok(chain.top().write(offset, data)?);
        }
        let _one = self.partial.lock();
        let from = offset / SECTOR * SECTOR;
        let to = end.next_multiple_of(SECTOR);
        let mut whole = vec![0; (to - from) as usize];
        let first = SECTOR as usize;
        let last = whole.len() - first;
        self.read(from, &mut whole[..first], reading)?;
        self.read(to - SECTOR, &mut whole[last..], reading)?;
        whole[(offset - from) as usize..][..data.len()].copy_from_slice(data);
        let chain = self.chain.read();
        Ok(chain.top().write(from, &whole)?)
    }

    /// Makes bytes zero and gives their space back.
    pub(crate) fn zero(
        &self,
        offset: u64,
        len: u64,
        reading: &mut Reading<'_>,
    ) -> Result<(), Stop> {
        let end = self.bounds(offset, len.min(self.size().saturating_sub(offset)))?;
        let (from, to) = (offset.next_multiple_of(SECTOR), end / SECTOR * SECTOR);
        if from >= to {
            return self.write(offset, &vec![0; (end - offset) as usize], reading);
        }
        self.write(offset, &vec![0; (from - offset) as usize], reading)?;
        self.write(to, &vec![0; (end - to) as usize], reading)?;
        let chain = self.chain.read();
        Ok(chain.top().zero(from, to - from)?)
    }

    /// Makes all completed writes durable; returns whether there were any.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        // The lowest layer first: no layer becomes durable before those that it lies on.
        let position = self.behind.position();
        let mut any = false;
        for layer in &self.chain().layers {
            any |= layer.flush()?;
        }
        self.behind.synced(position);
        Ok(any)
    }

    /// Returns the layer that is written.
    pub(crate) fn top(&self) -> Arc<Layer> {
        let chain = self.chain.read();
        let top = chain.layers.last();
        top.expect("a disk has at least one layer").clone()
    }

    /// Returns why flushes fail, if they do: the failure of the lowest layer that has one.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.chain().layers.iter().find_map(|layer| layer.failure())
    }

    /// Forgets failures; see [`crate::MachineHandle::accept_losses`].
    pub(crate) fn accept_losses(&self) {
        self.chain().layers.iter().for_each(|l| l.accept_losses());
    }

    /// Returns whether so much was written without a flush that the mount should flush by itself.
    pub(crate) fn wants_flush(&self) -> bool {
        self.chain.read().top().wants_flush()
    }

    /// Puts a new layer on top, and returns the layers below it.
    pub(crate) fn freeze(&self) -> Result<FrozenDisk, MountError> {
        let _one = self.changing.lock();
        let number = self.next_layer()?;
        let new = Arc::new(Layer::create(
            &self.dir,
            &self.live_dir,
            number,
            self.size(),
        )?);
        let mut chain = self.chain.write();
        let frozen = chain.clone();
        Arc::make_mut(&mut chain).layers.push(new);
        drop(chain);
        Ok(FrozenDisk::new(self.name.clone(), frozen))
    }

    /// Returns what an earlier freeze left, given the number of its highest layer; `None` if nothing of it is left.
    pub(crate) fn frozen(&self, last_layer: u32) -> Option<FrozenDisk> {
        let mut chain = Chain::clone(&self.chain());
        if chain.top().number <= last_layer {
            return None;
        }
        chain.layers.retain(|layer| layer.number <= last_layer);
        (!chain.layers.is_empty()).then(|| FrozenDisk::new(self.name.clone(), Arc::new(chain)))
    }

    /// Returns whether nothing was ever written to it.
    pub(crate) fn is_untouched(&self) -> bool {
        let chain = self.chain.read();
        chain.layers.len() == 1 && chain.top().present() == 0
    }

    /// Returns the number of layers.
    pub(crate) fn height(&self) -> usize {
        self.chain.read().layers.len()
    }

    /// Returns whether this disk still has any of the frozen layers.
    pub(crate) fn has_frozen(&self, frozen: &FrozenDisk) -> bool {
        frozen.is_of(&self.chain.read())
    }

    /// Makes `base` the disk's base, and drops the layers up to the last frozen one, whose content it has.
    pub(crate) fn drop_frozen(&self, frozen: &FrozenDisk, base: Base) -> Result<(), MountError> {
        let _one = self.changing.lock();
        if base.size() > self.size() {
            let reason = "the new base is larger than the disk".to_owned();
            return Err(MountError::Overlay {
                path: self.dir.clone(),
                reason,
            });
        }
        let last = frozen.last_layer();
        let first_layer = last + 1;
        if !self.has_frozen(frozen) {
            // A later freeze was already published and dropped, or it was a freeze of another disk of this name.
            return Ok(());
        }
        let record = BaseRecord {
            version: BASE_VERSION,
            disk_bytes: self.size(),
            image: Some(base.image.id),
            region: Some(base.image.regions[base.region].name.clone()),
            first_layer,
        };
        record.write(&self.dir)?;
        let mut chain = self.chain.write();
        let layers = chain.layers.iter().cloned();
        let (old, layers): (Vec<Arc<Layer>>, Vec<_>) = layers.partition(|l| l.number <= last);
        let base = Some(base);
        *chain = Arc::new(Chain { layers, base });
        drop(chain);
        old.iter().for_each(|layer| layer.remove());
        Ok(())
    }

    /// Removes the live maps, which aren't needed after the last flush.
    pub(crate) fn close(&self) {
        self.chain().layers.iter().for_each(|l| l.close());
    }

    /// Returns how many bytes the layers take on the local disk, and the number of layers.
    pub(crate) fn stored(&self) -> (u64, u64) {
        let chain = self.chain();
        (
            chain.layers.iter().map(|l| l.stored_bytes()).sum(),
            chain.layers.len() as u64,
        )
    }
}

/// Returns the base that a record names, `None` if it names none; the error is the image that isn't on the mount.
fn recorded_base(
    record: &BaseRecord,
    find: impl Fn(&Hash) -> Option<Arc<Image>>,
) -> Result<Option<Base>, Hash> {
    let (Some(id), Some(region)) = (&record.image, &record.region) else {
        return Ok(None);
    };
    let image = find(id).ok_or(*id)?;
    let region = image.region(region).ok_or(*id)?;
    Ok(Some(Base { image, region }))
}

//! Checksums of what was written to a layer's data since it was last known to be durable, and what to do when a sync fails.
//!
//! # The trouble
//!
//! When Linux can't write a page to the disk it marks the page clean all the same, and reports the error once, to the next
//! `fdatasync`. The `fdatasync` after that succeeds: nothing is left to write. What was to be written may still be in the page
//! cache, or be gone (some file systems throw such pages away at once, all may do so later), and then reads give what was there
//! *before*. So it doesn't help to sync again. QEMU, which pauses the guest at a failed flush and flushes again when it goes
//! on, would tell the guest that its data is safe.
//!
//! # What is done
//!
//! - Every sector written since the last `fdatasync` that succeeded has a checksum here (CRC-32): computing them runs at some
//!   10 GB/s, storing them takes 44 bytes a chunk. A sync that succeeds drops them.
//! - After a sync that failed, the layer *has failed*. Each further flush first reads all those sectors back. Sectors with the
//!   right checksum (in the page cache or, by luck, on the disk) are written again, so that they are dirty and the next
//!   `fdatasync` really writes them. Only when all sectors were right and that sync succeeds is the flush answered with
//!   success; then nothing was lost.
//! - Sectors that read back as something else are lost. As long as there are any, flushes fail with EIO, and so does a read of
//!   such a sector: old bytes are never returned as if they were the new ones. A guest that writes these sectors again (or
//!   discards them) repairs that.
//! - A failure survives the node: the checksums go into a file beside the live maps, in memory that outlives the process, and
//!   every later write to a failed layer is added there. The next node continues from that file.
//!
//! # What it can't do
//!
//! - Writes of an earlier node that it had not synced have no checksums here (if it was killed before any failure). If the
//!   first sync of the next node fails, those sectors can't be checked, and the layer stays failed. The same happens if more
//!   than [`CHUNKS_MAX`] chunks were written since a sync; from half of that on the mount syncs by itself, so this takes a disk
//!   that accepts writes and never finishes a sync.
//! - If a node is killed while the kernel is still in the failing `fdatasync`, the error is reported to nobody.
//! - Two writes of one sector at the same time may leave either content, as on any disk; if it isn't the one whose checksum
//!   came last, a failure counts the sector as lost.
//! - The durable map isn't covered and needn't be: after a failure its pages are written again from the live map, in memory.

use super::CHUNK;
use super::map::SECTOR;
use super::storage::{Storage, access};
use crate::MountError;
use floe_image::CHUNK_SIZE;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most chunks whose checksums are kept for a layer: 1 GiB of writes, some 20 MB of checksums.
pub(crate) const CHUNKS_MAX: usize = 1 << 18;
/// Bytes at either end of a discarded range that the file system may write as zeros instead of making a hole, because they
/// share one of its blocks with bytes outside the range: the size of its largest block.
const BLOCK_BYTES_MAX: u64 = 64 << 10;
/// First bytes of a failed layer's file. Then come the host's boot id, and a byte that is 1 if some writes have no record.
const MAGIC: &[u8; 8] = b"FLOEUNSY";
const HEADER_BYTES: usize = 25;
/// Bytes of a record: the chunk's number, the mask of sectors, 3 unused bytes, a checksum for each sector.
const RECORD_BYTES: usize = 44;

/// The checksums of those sectors of a chunk whose bits are in the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    mask: u8,
    sums: [u32; 8],
}

impl Sums {
    fn set(&mut self, sector: usize, sum: u32) {
        self.mask |= 1 << sector;
        self.sums[sector] = sum;
    }

    /// Copies the checksums of the sectors in `mask` from another chunk's.
    fn take(&mut self, from: &Self, mask: u8) {
        for sector in (0..8).filter(|s| mask & 1 << s != 0) {
            self.set(sector, from.sums[sector]);
        }
    }

    fn record(&self, chunk: u64) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[..8].copy_from_slice(&chunk.to_le_bytes());
        out[8] = self.mask;
        for (at, sum) in out[12..].chunks_exact_mut(4).zip(&self.sums) {
            at.copy_from_slice(&sum.to_le_bytes());
        }
        out
    }

    fn decode(record: &[u8; RECORD_BYTES]) -> (u64, Self) {
        let chunk = record.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let mut sums = [0; 8];
        for (sum, bytes) in sums.iter_mut().zip(record[12..].chunks_exact(4)) {
            *sum = bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        }
        let mask = record[8];
        (chunk, Self { mask, sums })
    }
}

/// Groups ascending sectors and their checksums by chunk.
fn by_chunk(sectors: impl Iterator<Item = (u64, u32)>) -> Vec<(u64, Sums)> {
    let mut chunks: Vec<(u64, Sums)> = Vec::new();
    for (sector, sum) in sectors {
        let chunk = sector / 8;
        if chunks.last().is_none_or(|(last, _)| *last != chunk) {
            chunks.push((chunk, Sums::default()));
        }
        if let Some((_, sums)) = chunks.last_mut() {
            sums.set((sector % 8) as usize, sum);
        }
    }
    chunks
}

/// What was written between two syncs.
#[derive(Default)]
struct Written {
    chunks: HashMap<u64, Sums>,
    /// Whether more was written, without checksums.
    unknown: bool,
}

#[derive(Default)]
struct State {
    /// What was written since the sync under way began, or since the last one ended.
    later: Written,
    /// What the sync under way makes durable.
    syncing: Written,
    /// The errno of the sync that failed, until everything was written again.
    failed: Option<i32>,
    /// How many sectors didn't read back as they were written, when last checked.
    lost: u64,
}

/// Why a disk's flushes fail, and go on failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The errno that the host's disk gave.
    pub errno: i32,
    /// Bytes that the guest wrote and that read back as something else.
    pub lost_bytes: u64,
    /// Whether some of what was written can't be checked.
    pub unknown: bool,
}

/// The checksums of one layer.
pub(crate) struct Unsynced {
    state: Mutex<State>,
    /// Whether `state.failed` is set; readers check it without the lock.
    has_failed: AtomicBool,
    /// The file that the checksums go to at a failure.
    path: PathBuf,
    boot: [u8; 16],
}

impl Unsynced {
    /// Returns the state of a layer to which nothing was written yet.
    pub(crate) fn new(path: PathBuf, boot: [u8; 16]) -> Self {
        Self {
            state: Mutex::default(),
            has_failed: AtomicBool::new(false),
            path,
            boot,
        }
    }

    /// Returns the state of a layer that an earlier process had open. What that one had not synced isn't known, but its failure
    /// is.
    pub(crate) fn open(path: PathBuf, boot: [u8; 16]) -> Result<Self, MountError> {
        let this = Self::new(path, boot);
        let mut state = this.state.lock();
        state.later.unknown = true;
        if let Some(written) = this.load()? {
            state.failed = Some(libc::EIO);
            state.later = written;
            this.has_failed.store(true, Ordering::Release);
        }
        drop(state);
        Ok(this)
    }

    /// Returns what a failed layer's file says; `None` if there is none of this boot of the host.
    fn load(&self) -> Result<Option<Written>, MountError> {
        let bytes = match access(&self.path, || std::fs::read(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(MountError::io("read", &self.path))?,
        };
        // The file gets its name when all of it is written: it is only cut off, or zeros, after a power cut.
        let head = bytes.first_chunk::<HEADER_BYTES>();
        let Some(head) = head.filter(|head| head[..8] == *MAGIC && head[8..24] == self.boot) else {
            return Ok(None);
        };
        let mut chunks: HashMap<u64, Sums> = HashMap::new();
        // A record that was cut off belongs to a write that was never answered, and that will come again.
        let records = bytes[HEADER_BYTES..].chunks_exact(RECORD_BYTES);
        for record in records.filter_map(|r| r.first_chunk()) {
            let (chunk, sums) = Sums::decode(record);
            chunks.insert(chunk, sums);
        }
        let unknown = head[24] != 0;
        Ok(Some(Written { chunks, unknown }))
    }

    /// Records that sectors were written with `data`.
    pub(crate) fn wrote(&self, offset: u64, data: &[u8]) {
        // The checksums are computed before the lock is taken.
        let sums = data.chunks(SECTOR as usize).map(crc32fast::hash);
        self.record(by_chunk((offset / SECTOR..).zip(sums)));
    }

    /// Records that whole sectors were made zero. Only the ends get checksums: the file system's journal covers the holes
    /// between.
    pub(crate) fn zeroed(&self, offset: u64, len: u64) {
        let zero = crc32fast::hash(&[0; SECTOR as usize]);
        let end = offset + len;
        let first_end = end.min(offset.saturating_add(BLOCK_BYTES_MAX));
        let last_start = first_end.max(end.saturating_sub(BLOCK_BYTES_MAX));
        self.forget(first_end / SECTOR..last_start / SECTOR);
        let edges = (offset / SECTOR..first_end / SECTOR).chain(last_start / SECTOR..end / SECTOR);
        self.record(by_chunk(edges.map(|sector| (sector, zero))));
    }

    fn forget(&self, sectors: std::ops::Range<u64>) {
        let state = &mut *self.state.lock();
        if sectors.is_empty() {
            return;
        }
        let clear = |chunk: u64, sums: &mut Sums| {
            for sector in (0..8).filter(|s| sectors.contains(&(chunk * 8 + s))) {
                sums.mask &= !(1 << sector);
            }
        };
        let chunks = sectors.start / 8..sectors.end.div_ceil(8);
        for written in [&mut state.later, &mut state.syncing] {
            if chunks.end - chunks.start > written.chunks.len() as u64 {
                written.chunks.iter_mut().for_each(|(c, s)| clear(*c, s));
                continue;
            }
            for chunk in chunks.clone() {
                if let Some(sums) = written.chunks.get_mut(&chunk) {
                    clear(chunk, sums);
                }
            }
        }
        if state.failed.is_some() {
            self.save(state);
        }
    }

    fn record(&self, written: Vec<(u64, Sums)>) {
        let state = &mut *self.state.lock();
        let was_unknown = state.later.unknown;
        let mut records = Vec::new();
        for (chunk, sums) in written {
            let full = state.later.chunks.len() >= CHUNKS_MAX;
            if full && !state.later.chunks.contains_key(&chunk) {
                state.later.unknown = true;
                continue;
            }
            let known = state.later.chunks.entry(chunk).or_default();
            known.take(&sums, sums.mask);
            if state.failed.is_some() {
                records.extend_from_slice(&known.record(chunk));
            }
        }
        if state.failed.is_some() && state.later.unknown != was_unknown {
            self.save(state);
        } else if !records.is_empty() {
            self.append(&records);
        }
    }

    /// Returns whether so much was written since the last sync that the mount should sync by itself.
    pub(crate) fn is_half_full(&self) -> bool {
        self.state.lock().later.chunks.len() >= CHUNKS_MAX / 2
    }

    /// Notes that a sync begins, which is about everything written up to now.
    pub(crate) fn begin(&self) {
        let state = &mut *self.state.lock();
        state.syncing = std::mem::take(&mut state.later);
    }

    /// Notes that the sync that began succeeded.
    pub(crate) fn succeeded(&self) {
        let state = &mut *self.state.lock();
        state.syncing = Written::default();
        state.lost = 0;
        if state.failed.take().is_some() {
            self.has_failed.store(false, Ordering::Release);
            let _ = std::fs::remove_file(&self.path);
            tracing::info!("what a failed flush may have lost was written again, and is durable");
        }
    }

    /// Accepts what is there now as what was meant, and forgets a failure.
    pub(crate) fn accept_losses(&self) {
        let state = &mut *self.state.lock();
        if state.failed.is_some() {
            tracing::warn!(path = %self.path.display(), lost_bytes = state.lost * SECTOR, "a disk is used as it is after a failure");
        }
        *state = State::default();
        self.has_failed.store(false, Ordering::Release);
        self.remove();
    }

    /// Notes that the sync that began failed: everything that it was about may be lost.
    pub(crate) fn failed(&self, error: &io::Error) {
        let state = &mut *self.state.lock();
        let before = std::mem::take(&mut state.syncing);
        state.later.unknown |= before.unknown;
        for (chunk, old) in before.chunks {
            let new = state.later.chunks.entry(chunk).or_default();
            new.take(&old, old.mask & !new.mask);
        }
        state.failed = Some(error.raw_os_error().unwrap_or(libc::EIO));
        self.has_failed.store(true, Ordering::Release);
        self.save(state);
    }

    /// Writes the file of a failed layer anew. If that fails, a killed node would forget the failure, so it is at least logged.
    fn save(&self, state: &State) {
        let mut bytes = [&MAGIC[..], &self.boot, &[u8::from(state.later.unknown)]].concat();
        for (chunk, sums) in &state.later.chunks {
            bytes.extend_from_slice(&sums.record(*chunk));
        }
        let new = self.path.with_extension("new");
        let write = || {
            let mut file = OpenOptions::new();
            file.write(true).create(true).truncate(true).mode(0o600);
            file.open(&new)?.write_all(&bytes)?;
            std::fs::rename(&new, &self.path)
        };
        if let Err(error) = write() {
            tracing::error!(path = %self.path.display(), %error, "a disk's failure could not be recorded: don't restart the node before it is put right");
        }
    }

    fn append(&self, records: &[u8]) {
        let file = OpenOptions::new().append(true).open(&self.path);
        if let Err(error) = file.and_then(|mut f: File| f.write_all(records)) {
            tracing::error!(path = %self.path.display(), %error, "a write to a failed disk could not be recorded");
        }
    }

    /// Returns whether a sync failed and that wasn't repaired since.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns what is wrong, if a sync failed and that wasn't repaired since.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let state = self.state.lock();
        let unknown = state.later.unknown || state.syncing.unknown;
        state.failed.map(|errno| Failure {
            errno,
            lost_bytes: state.lost * SECTOR,
            unknown,
        })
    }

    /// Returns the numbers of the chunks that have to be checked, ascending.
    pub(crate) fn suspects(&self) -> Vec<u64> {
        let mut chunks: Vec<u64> = self.state.lock().later.chunks.keys().copied().collect();
        chunks.sort_unstable();
        chunks
    }

    /// Starts a new check of all suspects.
    pub(crate) fn recount(&self) {
        self.state.lock().lost = 0;
    }

    /// Reads back the sectors of a chunk that have checksums, and writes those again that are right. Nobody may write the chunk
    /// meanwhile. Returns whether all were right.
    pub(crate) fn make_good(&self, chunk: u64, data: &dyn Storage) -> io::Result<bool> {
        let Some(sums) = self.state.lock().later.chunks.get(&chunk).copied() else {
            return Ok(true);
        };
        let mut wrong = 0;
        for sector in (0..8).filter(|s| sums.mask & 1 << s != 0) {
            let offset = chunk * CHUNK + sector as u64 * SECTOR;
            let mut bytes = [0; SECTOR as usize];
            let read = data.read(&mut bytes, offset);
            if read.is_ok() && crc32fast::hash(&bytes) == sums.sums[sector] {
                data.write(&bytes, offset)?;
            } else {
                wrong += 1;
            }
        }
        self.state.lock().lost += wrong;
        Ok(wrong == 0)
    }

    /// Returns whether all sectors in `from..to` (bytes) that have checksums are as they were written. Nobody may write them
    /// meanwhile.
    pub(crate) fn is_right(&self, from: u64, to: u64, data: &dyn Storage) -> io::Result<bool> {
        for chunk in from / CHUNK..to.div_ceil(CHUNK) {
            let Some(sums) = self.state.lock().later.chunks.get(&chunk).copied() else {
                continue;
            };
            let wanted = sums.mask & super::map::sectors(chunk, from, to);
            for sector in (0..CHUNK_SIZE / SECTOR as usize).filter(|s| wanted & 1 << s != 0) {
                let mut bytes = [0; SECTOR as usize];
                data.read(&mut bytes, chunk * CHUNK + sector as u64 * SECTOR)?;
                if crc32fast::hash(&bytes) != sums.sums[sector] {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Removes the file, when the layer is gone or its disk is closed and durable.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

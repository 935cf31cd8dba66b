//! The cache of a node: what was fetched for one image is never fetched again for another.
//!
//! `shard` is the index in memory (which slot holds what, CLOCK, pins), `slab` the files, `tier` the protocol between the two
//! for items of one size. A cache has two tiers: one for chunks, and one for segments with a sixteenth of the budget.

mod shard;
mod slab;
mod tier;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use floe_image::{CHUNK_SIZE, Hash, Kind, Segment};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;

use crate::{StoreError, private};
pub use slab::read_now;
pub use tier::Got;
use tier::{PinSet, Tier};

/// The segments get the budget divided by this: a dense image needs 1/128, one with few non-zero chunks in each segment up to
/// 1/10.
const SEGMENT_SHARE: u64 = 16;
/// The segments get at least this many bytes: 256 segments describe 1 GiB.
const SEGMENT_BYTES_MIN: u64 = 256 * 32 * 1024;
/// How many decoded segments stay in memory that nobody else holds: 8 MiB, the tables of 1 GiB.
const SEGMENTS_WARM: usize = 256;

/// Verified chunks and segments by hash, on the local disk, within a budget of bytes.
///
/// A [`get`](Cache::get) of a chunk in the page cache costs two short locks and one `pread`. `mmap` would save a microsecond
/// but turn every disk error into SIGBUS. Nothing is ever returned that doesn't have the hash that was asked for: items are
/// checked before they are stored, and those from an earlier run at their first read.
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    budget_bytes: u64,
    chunks: Tier,
    segments: Tier,
    decoded: Mutex<Decoded>,
    /// Locks the directory; closed, and so unlocked, after the last pin is dropped.
    _lock: File,
}

/// While this lives, what was read or written with it is not evicted. A running machine (or a push) owns one.
pub struct Pin {
    inner: Arc<Inner>,
    chunks: PinSet,
    segments: PinSet,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.inner.chunks.release_pins(&self.chunks);
        self.inner.segments.release_pins(&self.segments);
    }
}

/// Decoded segments: all that anybody holds, and the last few used.
#[derive(Default)]
struct Decoded {
    known: HashMap<Hash, Weak<Segment>>,
    warm: VecDeque<Arc<Segment>>,
    sweep_at: usize,
}

impl Decoded {
    fn get(&self, hash: &Hash) -> Option<Arc<Segment>> {
        self.known.get(hash)?.upgrade()
    }

    fn insert(&mut self, hash: &Hash, segment: Arc<Segment>) -> Arc<Segment> {
        if let Some(other) = self.get(hash) {
            return other;
        }
        if self.warm.len() >= SEGMENTS_WARM {
            self.warm.pop_front();
        }
        self.warm.push_back(segment.clone());
        self.known.insert(*hash, Arc::downgrade(&segment));
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, weak| weak.strong_count() > 0);
            self.sweep_at = self.known.len() * 2 + SEGMENTS_WARM;
        }
        segment
    }
}

/// The state of a [`Cache`], and counts of events since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Chunks held.
    pub chunks: u64,
    /// Segments held.
    pub segments: u64,
    /// Bytes held, chunks and segments together.
    pub bytes: u64,
    /// Bytes that pins keep from eviction.
    pub pinned_bytes: u64,
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// Reads that found their item.
    pub hits: u64,
    /// Reads that didn't find it.
    pub misses: u64,
    /// Items dropped to make room.
    pub evictions: u64,
    /// Items dropped because they failed their check.
    pub corrupt: u64,
}

/// The result of [`Cache::verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Items checked.
    pub checked: u64,
    /// Items that failed and were dropped; they will be fetched again.
    pub dropped: Vec<Hash>,
}

impl Cache {
    /// Opens or creates the cache in `dir`, for one process at a time ([`StoreError::Busy`] for others). What an earlier
    /// process left is found again and checked at its first read. A smaller budget than last time drops what doesn't fit.
    pub fn open(dir: &Path, budget_bytes: u64) -> Result<Cache, StoreError> {
        private::make_dirs(dir).map_err(|e| StoreError::io("create", dir, e))?;
        let lock = take_lock(dir)?;
        let segment_bytes = (budget_bytes / SEGMENT_SHARE).max(SEGMENT_BYTES_MIN);
        let chunk_bytes = budget_bytes
            .saturating_sub(segment_bytes)
            .max(budget_bytes / 2);
        let inner = Inner {
            dir: dir.to_path_buf(),
            budget_bytes: chunk_bytes + segment_bytes,
            chunks: Tier::open(dir, "chunks", Kind::Chunk, chunk_bytes)?,
            segments: Tier::open(dir, "segments", Kind::Segment, segment_bytes)?,
            decoded: Mutex::new(Decoded::default()),
            _lock: lock,
        };
        Ok(Cache {
            inner: Arc::new(inner),
        })
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Copies chunk `hash` to `out`; returns false if it isn't here (`out` then holds anything). [`Hash::ZERO`] is always here.
    pub fn get(
        &self,
        hash: &Hash,
        out: &mut [u8; CHUNK_SIZE],
        pin: Option<&Pin>,
    ) -> Result<bool, StoreError> {
        if hash.is_zero() {
            out.fill(0);
            return Ok(true);
        }
        Ok(self.inner.chunks.read(hash, out, self.chunk_pins(pin)?))
    }

    /// Copies chunk `hash` to `out` as [`Cache::get`] does, unless the disk would have to be accessed for it.
    pub fn get_now(
        &self,
        hash: &Hash,
        out: &mut [u8; CHUNK_SIZE],
        pin: Option<&Pin>,
    ) -> Result<Got, StoreError> {
        if hash.is_zero() {
            out.fill(0);
            return Ok(Got::Here);
        }
        let pins = self.chunk_pins(pin)?;
        Ok(self.inner.chunks.read_now(hash, out, pins))
    }

    /// Returns the segment `hash`, shared by everybody who holds it; `None` if it isn't here. [`Hash::ZERO`] is the empty
    /// segment.
    pub fn get_segment(&self, hash: &Hash, pin: Option<&Pin>) -> Option<Arc<Segment>> {
        let pins = self.segment_pins(pin).ok()?;
        let known = self.inner.decoded.lock().get(hash);
        if let Some(segment) = known {
            if pins.is_some() && !hash.is_zero() && !self.inner.segments.touch(hash, pins) {
                // It was evicted while somebody held it. That the cache may be full is no reason to withhold it now.
                let _ = self.inner.segments.write(hash, &segment.encode(), pins);
            }
            return Some(segment);
        }
        let segment = if hash.is_zero() {
            Segment::new()
        } else {
            let mut bytes = vec![0u8; Kind::Segment.raw_size()];
            if !self.inner.segments.read(hash, &mut bytes, pins) {
                return None;
            }
            Segment::decode(&bytes).ok()?
        };
        Some(self.inner.decoded.lock().insert(hash, Arc::new(segment)))
    }

    /// Stores a chunk of 4096 bytes after checking its hash. A zero chunk is never stored.
    pub fn put(&self, hash: &Hash, data: &[u8], pin: Option<&Pin>) -> Result<(), StoreError> {
        check(Kind::Chunk, hash, data)?;
        if hash.is_zero() {
            return Ok(());
        }
        self.inner.chunks.write(hash, data, self.chunk_pins(pin)?)
    }

    /// Stores an encoded segment of 32768 bytes after checking its hash; returns it decoded.
    pub fn put_segment(
        &self,
        hash: &Hash,
        data: &[u8],
        pin: Option<&Pin>,
    ) -> Result<Arc<Segment>, StoreError> {
        check(Kind::Segment, hash, data)?;
        if !hash.is_zero() {
            self.inner
                .segments
                .write(hash, data, self.segment_pins(pin)?)?;
        }
        let known = self.inner.decoded.lock().get(hash);
        if let Some(segment) = known {
            return Ok(segment);
        }
        let segment = Segment::decode(data).map_err(|source| StoreError::Format {
            path: self.inner.dir.clone(),
            source,
        })?;
        Ok(self.inner.decoded.lock().insert(hash, Arc::new(segment)))
    }

    /// Calls [`Cache::put`] or [`Cache::put_segment`], depending on `kind`.
    pub fn put_item(
        &self,
        kind: Kind,
        hash: &Hash,
        data: &[u8],
        pin: Option<&Pin>,
    ) -> Result<(), StoreError> {
        match kind {
            Kind::Chunk => self.put(hash, data, pin),
            Kind::Segment => self.put_segment(hash, data, pin).map(drop),
        }
    }

    /// Returns whether the item is here, without looking at its bytes.
    pub fn contains(&self, kind: Kind, hash: &Hash) -> bool {
        hash.is_zero() || self.tier(kind).contains(hash)
    }

    /// Returns a new pin that holds nothing yet. It keeps the cache open.
    pub fn pin(&self) -> Pin {
        Pin {
            inner: self.inner.clone(),
            chunks: self.inner.chunks.pin_set(),
            segments: self.inner.segments.pin_set(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        let (chunks, chunks_pinned, c) = self.inner.chunks.counts();
        let (segments, segments_pinned, s) = self.inner.segments.counts();
        let bytes = |chunks: u64, segments: u64| {
            chunks * Kind::Chunk.raw_size() as u64 + segments * Kind::Segment.raw_size() as u64
        };
        CacheStats {
            chunks,
            segments,
            bytes: bytes(chunks, segments),
            pinned_bytes: bytes(chunks_pinned, segments_pinned),
            budget_bytes: self.inner.budget_bytes,
            hits: c.hits + s.hits,
            misses: c.misses + s.misses,
            evictions: c.evictions + s.evictions,
            corrupt: c.corrupt + s.corrupt,
        }
    }

    /// Evicts items until at most `target_bytes` are held (chunks first, and nothing that is pinned), and gives the space back
    /// to the file system. Returns the bytes freed.
    pub fn gc(&self, target_bytes: u64) -> Result<u64, StoreError> {
        let excess = self.stats().bytes.saturating_sub(target_bytes);
        let mut freed = self.inner.chunks.shrink(excess)?;
        if freed < excess {
            freed += self.inner.segments.shrink(excess - freed)?;
            let mut decoded = self.inner.decoded.lock();
            decoded.warm.clear();
            decoded.known.retain(|_, weak| weak.strong_count() > 0);
        }
        Ok(freed)
    }

    /// Drops those of the chunks that nobody has pinned, and gives their space back to the file system: they lie elsewhere on this
    /// host. Returns the bytes freed.
    pub fn forget_chunks(&self, hashes: &[Hash]) -> Result<u64, StoreError> {
        self.inner.chunks.forget(hashes)
    }

    /// Checks every item against its hash and drops what fails. Calls `progress(done, total)` with items; if it returns false,
    /// stops with [`StoreError::Cancelled`].
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<CacheReport, StoreError> {
        let stats = self.stats();
        let total = stats.chunks + stats.segments;
        let mut report = CacheReport::default();
        let mut dropped = Vec::new();
        let mut step = || {
            report.checked += 1;
            progress(report.checked, total.max(report.checked))
        };
        let finished = self.inner.segments.verify(&mut dropped, &mut step)
            && self.inner.chunks.verify(&mut dropped, &mut step);
        if !finished {
            return Err(StoreError::Cancelled);
        }
        report.dropped = dropped;
        Ok(report)
    }

    /// Writes everything to stable storage. That only saves fetches after a power cut: nothing is wrong without it.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.inner.chunks.sync()?;
        self.inner.segments.sync()
    }

    fn tier(&self, kind: Kind) -> &Tier {
        match kind {
            Kind::Chunk => &self.inner.chunks,
            Kind::Segment => &self.inner.segments,
        }
    }

    fn check_pin(&self, pin: &Pin) -> Result<(), StoreError> {
        if Arc::ptr_eq(&self.inner, &pin.inner) {
            return Ok(());
        }
        let what = format!(
            "this pin belongs to {}, not to {}",
            pin.inner.dir.display(),
            self.inner.dir.display()
        );
        Err(StoreError::Invalid { what })
    }

    fn chunk_pins<'a>(&self, pin: Option<&'a Pin>) -> Result<Option<&'a PinSet>, StoreError> {
        pin.map(|pin| self.check_pin(pin).map(|()| &pin.chunks))
            .transpose()
    }

    fn segment_pins<'a>(&self, pin: Option<&'a Pin>) -> Result<Option<&'a PinSet>, StoreError> {
        pin.map(|pin| self.check_pin(pin).map(|()| &pin.segments))
            .transpose()
    }
}

/// Refuses data that doesn't have the hash or the size that it should have.
fn check(kind: Kind, hash: &Hash, data: &[u8]) -> Result<(), StoreError> {
    if data.len() != kind.raw_size() {
        return Err(StoreError::Invalid {
            what: format!(
                "{} {hash} has {} bytes, {} are needed",
                kind.name(),
                data.len(),
                kind.raw_size()
            ),
        });
    }
    let found = floe_image::chunk_hash(data);
    if found == *hash {
        return Ok(());
    }
    Err(StoreError::Corrupt {
        what: kind.name().to_owned(),
        expected: *hash,
        found,
    })
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let mut file = private::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|e| StoreError::io("open", &path, e))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            let _ = Read::by_ref(&mut file)
                .take(256)
                .read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                known => known.to_owned(),
            };
            return Err(StoreError::Busy {
                path: dir.to_path_buf(),
                holder,
            });
        }
        Err(e) => return Err(StoreError::io("lock", &path, e.into())),
    }
    let program = std::env::current_exe().ok();
    let program = program
        .as_deref()
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy();
    // The text is only for the error message of the next process that tries: a full disk must not keep a node from starting.
    let _ = file
        .set_len(0)
        .and_then(|()| write!(file, "process {} ({program})", std::process::id()));
    Ok(file)
}

#[cfg(test)]
mod tests;

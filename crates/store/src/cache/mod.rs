//! The cache.

use std::path::Path;
use std::sync::Arc;

use floe_image::{CHUNK_SIZE, Hash, Kind, Segment};

use crate::StoreError;

/// Verified chunks and segments by hash, on the local disk, within a byte budget.
pub struct Cache {}

/// While it lives, what was read or written through it is not evicted. Owned by a running machine (or a push).
pub struct Pin {}

/// Counters of a [`Cache`], since it was opened where they count events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Chunks held.
    pub chunks: u64,
    /// Segments held.
    pub segments: u64,
    /// Bytes held (chunks and segments).
    pub bytes: u64,
    /// Bytes that pins keep from eviction.
    pub pinned_bytes: u64,
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// Reads that found their item.
    pub hits: u64,
    /// Reads that didn't.
    pub misses: u64,
    /// Items dropped to make room.
    pub evictions: u64,
    /// Items dropped because they failed their check.
    pub corrupt: u64,
}

/// What [`Cache::verify`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Items checked.
    pub checked: u64,
    /// Items that failed and were dropped; they will be fetched again.
    pub dropped: Vec<Hash>,
}

#[allow(unused_variables)]
impl Cache {
    /// Open or create the cache in `dir`. One process at a time; what an earlier process left is found again and
    /// checked at its first read.
    pub fn open(dir: &Path, budget_bytes: u64) -> Result<Cache, StoreError> {
        unimplemented!()
    }
    /// Copy chunk `hash` to `out`; false when it isn't here. [`Hash::ZERO`] is always here.
    pub fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], pin: Option<&Pin>) -> Result<bool, StoreError> {
        unimplemented!()
    }
    /// Copy many chunks to `out` (4 KiB each, in order); `present[i]` tells whether chunk i was here (its bytes are
    /// untouched otherwise). Returns how many were.
    pub fn get_many(
        &self,
        hashes: &[Hash],
        out: &mut [u8],
        present: &mut [bool],
        pin: Option<&Pin>,
    ) -> Result<usize, StoreError> {
        unimplemented!()
    }
    /// The segment `hash`, shared by all who hold it.
    pub fn get_segment(&self, hash: &Hash, pin: Option<&Pin>) -> Option<Arc<Segment>> {
        unimplemented!()
    }
    /// Store a chunk of 4096 bytes, checked against its hash first.
    pub fn put(&self, hash: &Hash, data: &[u8], pin: Option<&Pin>) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// Store an encoded segment of 32768 bytes, checked against its hash first.
    pub fn put_segment(&self, hash: &Hash, data: &[u8], pin: Option<&Pin>) -> Result<Arc<Segment>, StoreError> {
        unimplemented!()
    }
    /// [`Cache::put`] or [`Cache::put_segment`] by kind.
    pub fn put_item(&self, kind: Kind, hash: &Hash, data: &[u8], pin: Option<&Pin>) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// Is the item here? Its bytes are not looked at.
    pub fn contains(&self, kind: Kind, hash: &Hash) -> bool {
        unimplemented!()
    }
    /// A new pin that holds nothing yet.
    pub fn pin(&self) -> Pin {
        unimplemented!()
    }
    /// The counters.
    pub fn stats(&self) -> CacheStats {
        unimplemented!()
    }
    /// Evict down to `target_bytes` (pins are respected) and give the space back to the file system. Returns the bytes freed.
    pub fn gc(&self, target_bytes: u64) -> Result<u64, StoreError> {
        unimplemented!()
    }
    /// Check every item against its hash and drop what fails. `progress(done, total)` in items; false stops.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<CacheReport, StoreError> {
        unimplemented!()
    }
    /// Write all to stable storage.
    pub fn flush(&self) -> Result<(), StoreError> {
        unimplemented!()
    }
}

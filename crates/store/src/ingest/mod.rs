//! The ingest.

use std::io::{self, Read};
use std::path::Path;

use floe_image::{Hash, MachineConfig};

use crate::{Repository, StoreError};

/// How to ingest.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// zstd level of frames.
    pub level: i32,
    /// Worker threads; 0 means one a core.
    pub threads: usize,
    /// The parent: chunks that it has are not stored again.
    pub parent: Option<Hash>,
    /// Other images of the repository whose chunks need not be stored again.
    pub also: Vec<Hash>,
    /// Packs are closed before they exceed this many bytes. The default suits uploads (8 MiB at most).
    pub pack_bytes_max: u64,
    /// The image's time of creation, seconds since 1970; now when None.
    pub created_unix_s: Option<u64>,
}

impl Default for IngestOptions {
    fn default() -> Self {
        IngestOptions {
            level: 1,
            threads: 0,
            parent: None,
            also: Vec::new(),
            pack_bytes_max: 8 << 20,
            created_unix_s: None,
        }
    }
}

/// Where an ingest stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestProgress<'a> {
    /// The region being read.
    pub region: &'a str,
    /// Bytes of it that are done.
    pub done_bytes: u64,
    /// Its bytes in all.
    pub total_bytes: u64,
}

/// What an ingest did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IngestStats {
    /// Bytes of regions covered, holes included.
    pub bytes_in: u64,
    /// Chunks that were all zero or holes.
    pub zero_chunks: u64,
    /// Non-zero chunks that equal the parent's at the same place.
    pub unchanged_chunks: u64,
    /// Non-zero chunks that were already stored: in this image, the parent or another image named in the options.
    pub dedup_chunks: u64,
    /// Chunks stored.
    pub new_chunks: u64,
    /// Segments stored.
    pub new_segments: u64,
    /// Bytes of stored chunks and segments before compression.
    pub new_raw_bytes: u64,
    /// Bytes of the packs written.
    pub new_stored_bytes: u64,
}

/// Builds one image in a repository, region by region. Dropped before [`Ingest::finish`], it leaves nothing behind.
pub struct Ingest {}

#[allow(unused_variables)]
impl Ingest {
    /// Begin an image.
    pub fn new(repository: &Repository, options: IngestOptions) -> Result<Ingest, StoreError> {
        unimplemented!()
    }
    /// Report progress from a worker thread, about once a segment (4 MiB); false stops the ingest.
    pub fn on_progress(
        &mut self,
        progress: impl Fn(IngestProgress<'_>) -> bool + Send + Sync + 'static,
    ) {
        unimplemented!()
    }
    /// A region from a file or block device; holes are skipped.
    pub fn region_from_file(&mut self, name: &str, path: &Path) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// A region of `size` bytes from a reader, which must not end earlier.
    pub fn region_from_reader(
        &mut self,
        name: &str,
        size: u64,
        from: impl Read + Send,
    ) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// A region of `size` bytes that differs from the parent's region `base` (or from zeros when None) in these pages,
    /// in ascending order of their chunk index.
    pub fn region_from_pages<P: AsRef<[u8]> + Send>(
        &mut self,
        name: &str,
        size: u64,
        base: Option<&str>,
        pages: impl Iterator<Item = io::Result<(u64, P)>> + Send,
    ) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// A small region from memory.
    pub fn region_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// The parent's region as it is.
    pub fn region_from_parent(&mut self, name: &str) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// What was done so far.
    pub fn stats(&self) -> IngestStats {
        unimplemented!()
    }
    /// Write the rest, check that the image is complete and publish it. Returns its id.
    pub fn finish(self, config: MachineConfig) -> Result<Hash, StoreError> {
        unimplemented!()
    }
}

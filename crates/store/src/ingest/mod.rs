//! Turns bytes into images, using all cores.
//!
//! Workers pull segments (4 MiB) from a `feed`, find zeros, hash, drop what the parent or the image itself already has,
//! compress the rest in frames of 16 chunks (`worker`) and append the frames to packs (`repository::packer`). A worker owns its segment
//! from the read to the table's hash, so nothing has to be put in order again, and the only shared state in between is a
//! sharded set of hashes. A pipeline of stages with queues was rejected, because it copies every chunk between cores.

mod feed;
mod others;
mod worker;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_image::{Hash, Layout, MachineConfig, Manifest, Region, region_name_is_valid};
use parking_lot::Mutex;

use crate::repository::{LEVEL_DEFAULT, PACK_BYTES_MAX, Packer, Scope, unix_now};
use crate::{Repository, StoreError};
pub use feed::next_data;
use feed::{Feed, FileFeed, PagesFeed, PagesState, ReaderFeed};
use others::Others;
use worker::{Job, Seen, Shared};

type ProgressFn = dyn Fn(IngestProgress<'_>) -> bool + Send + Sync;

/// A smaller pack would be mostly index.
const PACK_BYTES_MIN: u64 = 256 * 1024;

/// Options of an ingest.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// zstd level of frames; 1 where speed matters more than size.
    pub level: i32,
    /// Number of worker threads; 0 means one for each core.
    pub threads: usize,
    /// The parent image: chunks that it has aren't stored again.
    pub parent: Option<Hash>,
    /// Other images of the repository whose chunks aren't stored again.
    pub also: Vec<Hash>,
    /// Whether chunks of any other image in the repository may be reused too. The packs' indices are searched up to a limit,
    /// those of the newest images first. The new image lists the packs that it needs, so they stay when the images that they
    /// came with are removed.
    pub share: bool,
    /// A pack is closed before it exceeds this many bytes. The default suits uploads (8 MiB at most).
    pub pack_bytes_max: u64,
    /// The image's time of creation, in seconds since 1970; now if `None`.
    pub created_unix_s: Option<u64>,
}

impl Default for IngestOptions {
    fn default() -> Self {
        IngestOptions {
            level: LEVEL_DEFAULT,
            threads: 0,
            parent: None,
            also: Vec::new(),
            share: false,
            pack_bytes_max: PACK_BYTES_MAX,
            created_unix_s: None,
        }
    }
}

/// The progress of an ingest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestProgress<'a> {
    /// The region being read.
    pub region: &'a str,
    /// How many of its bytes are done.
    pub done_bytes: u64,
    /// How many bytes it has.
    pub total_bytes: u64,
}

/// What an ingest has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IngestStats {
    /// Bytes of the regions that were added, holes included; for a region made from pages, only the bytes of the pages.
    pub bytes_in: u64,
    /// Chunks that were all zero or holes.
    pub zero_chunks: u64,
    /// Non-zero chunks that equal the parent's at the same place.
    pub unchanged_chunks: u64,
    /// Non-zero chunks that were already stored: in this image, the parent, or another image that the options allow to use.
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

#[derive(Default)]
struct Counters {
    bytes_in: AtomicU64,
    zero_chunks: AtomicU64,
    unchanged_chunks: AtomicU64,
    dedup_chunks: AtomicU64,
    new_chunks: AtomicU64,
    new_segments: AtomicU64,
    new_raw_bytes: AtomicU64,
}

/// Builds one image in a repository, region by region. If it is dropped before [`Ingest::finish`] it leaves nothing behind;
/// after an error it refuses to go on.
pub struct Ingest {
    repository: Repository,
    options: IngestOptions,
    workers: usize,
    parent: Option<(Manifest, Scope)>,
    shared: Shared,
    regions: Vec<Region>,
    /// The parent to record instead of `options.parent`; see [`Ingest::sibling`].
    lineage: Option<Option<Hash>>,
    failed: bool,
}

impl Ingest {
    /// Begins an image that has all regions of the image `of`, and to which more are added. It is a sibling of that image: it
    /// gets the same parent.
    pub fn sibling(repository: &Repository, of: &Hash) -> Result<Ingest, StoreError> {
        let options = IngestOptions {
            parent: Some(*of),
            ..IngestOptions::default()
        };
        let mut ingest = Ingest::new(repository, options)?;
        let regions = ingest.parent.iter().flat_map(|(m, _)| &m.regions);
        ingest.regions = regions.cloned().collect();
        ingest.lineage = ingest.parent.as_ref().map(|(m, _)| m.parent);
        Ok(ingest)
    }

    /// Begins an image. Fails if an image that the options name isn't in the repository.
    pub fn new(repository: &Repository, options: IngestOptions) -> Result<Ingest, StoreError> {
        let parent = match &options.parent {
            Some(id) => Some((repository.manifest(id)?, repository.scope(id)?)),
            None => None,
        };
        let mut lenders: Vec<Scope> = parent.iter().map(|(_, scope)| scope.clone()).collect();
        for id in &options.also {
            lenders.push(repository.scope(id)?);
        }
        let others = match options.share {
            true => {
                let known: Vec<Hash> = options
                    .parent
                    .iter()
                    .chain(&options.also)
                    .copied()
                    .collect();
                Some(Others::new(repository, &known)?)
            }
            false => None,
        };
        let workers = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let shared = Shared {
            level: options.level,
            seen: Seen::new(),
            lenders,
            others,
            packer: Packer::new(
                repository.clone(),
                options.pack_bytes_max.max(PACK_BYTES_MIN),
            )?,
            counters: Counters::default(),
            progress: None,
        };
        Ok(Ingest {
            repository: repository.clone(),
            options,
            workers,
            parent,
            shared,
            regions: Vec::new(),
            lineage: None,
            failed: false,
        })
    }

    /// Sets a callback for progress. A worker thread calls it about once a segment (4 MiB); if it returns false the ingest
    /// stops.
    pub fn on_progress(
        &mut self,
        progress: impl Fn(IngestProgress<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.shared.progress = Some(Arc::new(progress));
    }

    /// Adds a region from a file or block device; holes are skipped. If the parent has a region of this name, only what differs
    /// from it is stored.
    pub fn region_from_file(&mut self, name: &str, path: &Path) -> Result<(), StoreError> {
        let file = File::open(path).map_err(|e| StoreError::io("open", path, e))?;
        self.region_from_open_file(name, file, path)
    }

    /// As [`Ingest::region_from_file`], from a file that is open already; `path` is its name in messages.
    pub fn region_from_open_file(
        &mut self,
        name: &str,
        mut file: File,
        path: &Path,
    ) -> Result<(), StoreError> {
        // A block device has no length in its metadata.
        let size = file
            .seek(io::SeekFrom::End(0))
            .map_err(|e| StoreError::io("find the size of", path, e))?;
        let feed = FileFeed::new(file, path.to_path_buf(), size, self.workers);
        self.region(name, size, Some(name), false, feed)
    }

    /// Adds a region of `size` bytes from a reader, which must not end earlier.
    pub fn region_from_reader(
        &mut self,
        name: &str,
        size: u64,
        from: impl Read + Send,
    ) -> Result<(), StoreError> {
        self.region(
            name,
            size,
            Some(name),
            false,
            ReaderFeed {
                size,
                state: Mutex::new((from, 0)),
            },
        )
    }

    /// Adds a region of `size` bytes that differs from the parent's region `base` (from zeros if `None`) in these pages, given
    /// in ascending order of their chunk numbers. Pages that equal the base's aren't stored. A capture's dirty memory and a
    /// disk's layers are added this way.
    pub fn region_from_pages<P: AsRef<[u8]> + Send>(
        &mut self,
        name: &str,
        size: u64,
        base: Option<&str>,
        pages: impl Iterator<Item = io::Result<(u64, P)>> + Send,
    ) -> Result<(), StoreError> {
        if let Some(base) = base
            && self.base(base).is_none()
        {
            return Err(self.no_base(base));
        }
        let feed = PagesFeed {
            size,
            state: Mutex::new(PagesState {
                pages,
                ahead: None,
                last: None,
            }),
        };
        self.region(name, size, base, true, feed)
    }

    /// Adds a small region from memory.
    pub fn region_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.region_from_reader(name, bytes.len() as u64, bytes)
    }

    /// Adds the parent's region of this name unchanged.
    pub fn region_from_parent(&mut self, name: &str) -> Result<(), StoreError> {
        self.admit(name)?;
        let region = self.base(name).cloned().ok_or_else(|| self.no_base(name))?;
        self.shared
            .counters
            .bytes_in
            .fetch_add(region.size, Ordering::Relaxed);
        self.regions.push(region);
        Ok(())
    }

    fn base(&self, name: &str) -> Option<&Region> {
        self.parent.as_ref()?.0.region(name)
    }

    fn no_base(&self, name: &str) -> StoreError {
        let what = match &self.options.parent {
            Some(id) => format!("the parent {} has no region {name:?}", id.short()),
            None => format!("region {name:?} is to differ from a parent's, and no parent is given"),
        };
        StoreError::Invalid { what }
    }

    fn admit(&self, name: &str) -> Result<(), StoreError> {
        let what = if self.failed {
            "this ingest failed before; begin a new one".to_owned()
        } else if !region_name_is_valid(name) {
            format!("{name:?} cannot name a region: 1 to 32 of a-z, 0-9 and - can")
        } else if self.regions.iter().any(|r| r.name == name) {
            format!("the image has a region {name:?} already")
        } else {
            return Ok(());
        };
        Err(StoreError::Invalid { what })
    }

    /// Adds a region. `over_base`: what the feed doesn't bring is taken from the base; otherwise it is zero.
    fn region(
        &mut self,
        name: &str,
        size: u64,
        base: Option<&str>,
        over_base: bool,
        feed: impl Feed,
    ) -> Result<(), StoreError> {
        self.admit(name)?;
        if size > floe_image::IMAGE_BYTES_MAX {
            let what = format!(
                "region {name:?} has {size} bytes, more than {} are not possible",
                floe_image::IMAGE_BYTES_MAX
            );
            return Err(StoreError::Invalid { what });
        }
        let count = Region::segments_for(size) as usize;
        let base_region = base.and_then(|base| self.base(base));
        let mut kept = Region {
            segments: vec![Hash::ZERO; count],
            ..Region::default()
        };
        if let (true, Some(base)) = (over_base, base_region) {
            let shared = count.min(base.segments.len());
            kept.segments[..shared].copy_from_slice(&base.segments[..shared]);
            let chunks = size.div_ceil(floe_image::CHUNK_SIZE as u64);
            let within = |patch: &&floe_image::Patch| u64::from(patch.chunk) < chunks;
            kept.patches = base.patches.iter().filter(within).copied().collect();
        }
        let scope = self.parent.as_ref().map(|(_, scope)| scope);
        let with_base = base_region.and_then(|region| Some((region, scope?)));
        let job = Job::new(&self.shared, feed, name, size, with_base, kept);
        let workers = self.workers.min(count.max(1));
        let result = job.run(workers, over_base);
        match result {
            Ok((segments, patches)) => {
                self.regions.push(Region {
                    name: name.to_owned(),
                    size,
                    segments,
                    patches,
                });
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Returns what was done so far; `new_stored_bytes` is complete only after [`Ingest::finish_with_stats`].
    pub fn stats(&self) -> IngestStats {
        let c = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IngestStats {
            bytes_in: get(&c.bytes_in),
            zero_chunks: get(&c.zero_chunks),
            unchanged_chunks: get(&c.unchanged_chunks),
            dedup_chunks: get(&c.dedup_chunks),
            new_chunks: get(&c.new_chunks),
            new_segments: get(&c.new_segments),
            new_raw_bytes: get(&c.new_raw_bytes),
            new_stored_bytes: self.shared.packer.bytes(),
        }
    }

    /// Writes the rest, checks that the image is complete and publishes it. Returns its id.
    pub fn finish(self, config: MachineConfig) -> Result<Hash, StoreError> {
        self.finish_with_stats(config).map(|(id, _)| id)
    }

    /// As [`Ingest::finish`]; also returns what the whole ingest did.
    pub fn finish_with_stats(
        self,
        config: MachineConfig,
    ) -> Result<(Hash, IngestStats), StoreError> {
        if self.failed {
            return Err(StoreError::Invalid {
                what: "this ingest failed before; begin a new one".to_owned(),
            });
        }
        let mut stats = self.stats();
        let manifest = Manifest {
            parent: self.lineage.unwrap_or(self.options.parent),
            created_unix_s: self.options.created_unix_s.unwrap_or_else(unix_now),
            config,
            regions: self.regions,
        };
        manifest.check().map_err(|source| StoreError::Format {
            path: self.repository.dir().join("images"),
            source,
        })?;
        let mut packs = self.shared.packer.finish()?;
        stats.new_stored_bytes = packs.iter().map(|pack| pack.file_bytes).sum();
        packs.extend(self.shared.others.iter().flat_map(Others::borrowed));
        let mut known: std::collections::HashSet<Hash> = packs.iter().map(|pack| pack.id).collect();
        for id in self.options.parent.iter().chain(&self.options.also) {
            packs.extend(
                self.repository
                    .layout(id)?
                    .packs
                    .into_iter()
                    .filter(|pack| known.insert(pack.id)),
            );
        }
        let id = self.repository.publish(&manifest, &Layout { packs })?;
        Ok((id, stats))
    }
}

#[cfg(test)]
mod others_tests;
#[cfg(test)]
mod tests;

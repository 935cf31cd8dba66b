//! What a worker does with a segment: finds zeros, hashes, finds duplicates, makes frames and the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::collections::BTreeMap;

use floe_image::{
    CHUNK_SIZE, CHUNKS_PER_SEGMENT, FRAME_MAX_CHUNKS, Hash, Kind, Patch, Region, SEGMENT_SPAN,
    Segment, compress_frame, is_zero,
};
use parking_lot::Mutex;

use super::feed::{Content, Feed};
use super::others::Others;
use super::{Counters, ProgressFn};
use crate::repository::{Packer, Scope, Walk};
use crate::{IngestProgress, StoreError};

const SEEN_SHARDS: usize = 64;

/// Most patches of a region (288 KiB of its manifest): what a reader must fetch before it starts has to stay small.
const PATCHES_IN_REGION_MAX: usize = 8192;

/// A patch takes 36 bytes; a table takes 32 for each chunk that isn't zero, and those don't compress. A table is stored anew if
/// it costs less than about eight times the patches: a reader may not need the table at all, but gets all patches.
const CHUNKS_PER_PATCH: usize = 8;

/// The hashes that this ingest has stored: 38 to 75 bytes each, about 1.5 % of the new chunks. They are whole hashes, because
/// half a hash could be forged to make a chunk disappear.
pub(super) struct Seen(Box<[Mutex<hashbrown::HashTable<Hash>>]>);

fn key(hash: &Hash) -> u64 {
    let b = hash.as_bytes();
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

impl Seen {
    pub fn new() -> Seen {
        Seen((0..SEEN_SHARDS).map(|_| Mutex::default()).collect())
    }

    /// Adds a hash; returns true the first time.
    fn insert(&self, hash: &Hash) -> bool {
        let mut shard = self.0[usize::from(hash.as_bytes()[8]) % SEEN_SHARDS].lock();
        match shard.entry(key(hash), |other| other == hash, key) {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(place) => {
                place.insert(*hash);
                true
            }
        }
    }
}

/// What is the same for all regions of the image.
pub(super) struct Shared {
    pub level: i32,
    pub seen: Seen,
    /// The parent, and the other images whose chunks may be used.
    pub lenders: Vec<Scope>,
    /// All other images of the repository, if their chunks may be used.
    pub others: Option<Others>,
    pub packer: Packer,
    pub counters: Counters,
    pub progress: Option<Arc<ProgressFn>>,
}

/// One region while it is read.
pub(super) struct Job<'a, F> {
    pub shared: &'a Shared,
    pub feed: F,
    pub name: &'a str,
    pub size: u64,
    /// The parent's region, and the scope to read it from.
    pub base: Option<(&'a Region, &'a Scope)>,
    tables: Mutex<Tables>,
    /// The number of the region's last segment, if the base is longer than the region. Its table is always stored whole,
    /// because a patch can't remove what is beyond the end.
    cut: Option<u64>,
    /// The base's table of that segment without what is beyond the end; it is stored if the feed brings nothing there.
    trimmed: Option<(u64, Segment)>,
    /// Whether the feed brought something there.
    trimmed_replaced: AtomicBool,
    done_bytes: AtomicU64,
    stop: AtomicBool,
}

/// A region's segments, and their patches.
struct Tables {
    segments: Vec<Hash>,
    patches: BTreeMap<u64, Vec<Patch>>,
}

impl Tables {
    fn set(&mut self, number: u64, table: Table) {
        self.segments[number as usize] = table.hash;
        self.patches.insert(number, table.patches);
    }
}

/// How a segment's table is stored: as the segment `hash` with patches.
struct Table {
    hash: Hash,
    patches: Vec<Patch>,
}

impl Table {
    fn whole(hash: Hash) -> Table {
        Table {
            hash,
            patches: Vec::new(),
        }
    }
}

/// The base's table of one segment.
struct Base {
    /// The hash of the stored table; zero if a new table must not be expressed as patches of it.
    hash: Hash,
    stored: Segment,
    /// The table with its patches applied.
    table: Segment,
}

impl<'a, F: Feed> Job<'a, F> {
    /// Makes a job. `kept` has the region's length, and holds what stays where the feed brings nothing.
    pub fn new(
        shared: &'a Shared,
        feed: F,
        name: &'a str,
        size: u64,
        base: Option<(&'a Region, &'a Scope)>,
        kept: Region,
    ) -> Job<'a, F> {
        let mut patches = BTreeMap::<u64, Vec<Patch>>::new();
        for patch in kept.patches {
            let number = u64::from(patch.chunk) / CHUNKS_PER_SEGMENT as u64;
            patches.entry(number).or_default().push(patch);
        }
        let segments = kept.segments;
        let longer = base.is_some_and(|(region, _)| region.size > size);
        let cut = (longer && !size.is_multiple_of(SEGMENT_SPAN)).then_some(size / SEGMENT_SPAN);
        Job {
            shared,
            feed,
            name,
            size,
            base,
            tables: Mutex::new(Tables { segments, patches }),
            cut,
            trimmed: None,
            trimmed_replaced: AtomicBool::new(false),
            done_bytes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Reads the whole feed with `workers` threads. Returns the region's segments and patches. `over_base`: what the feed
    /// doesn't bring is taken from the base.
    pub fn run(
        mut self,
        workers: usize,
        over_base: bool,
    ) -> Result<(Vec<Hash>, Vec<Patch>), StoreError> {
        if let Some(number) = self.cut.filter(|_| over_base) {
            self.trimmed = Some((number, Worker::new(&self).trim(number)?));
        }
        if workers <= 1 {
            Worker::new(&self).run()?;
        } else {
            let failed = Mutex::new(None);
            floe_threads::scope(|scope| {
                scope.spawn_some("ingest", workers, || {
                    if let Err(error) = Worker::new(&self).run() {
                        self.stop.store(true, Ordering::Relaxed);
                        failed.lock().get_or_insert(error);
                    }
                });
            });
            if let Some(error) = failed.into_inner() {
                return Err(error);
            }
        }
        if let Some((number, table)) = &self.trimmed
            && !self.trimmed_replaced.load(Ordering::Relaxed)
        {
            let table = Worker::new(&self).store_table(*number, table, None)?;
            self.tables.lock().set(*number, table);
        }
        // What the feed did not bring is the base's, and counts as done too.
        let done_bytes = self.done_bytes.load(Ordering::Relaxed);
        if let Some(report) = &self.shared.progress
            && done_bytes < self.size
        {
            let (region, total_bytes) = (self.name, self.size);
            if !report(IngestProgress {
                region,
                done_bytes: total_bytes,
                total_bytes,
            }) {
                return Err(StoreError::Cancelled);
            }
        }
        let tables = self.tables.into_inner();
        let patches = tables.patches.into_values().flatten().collect();
        Ok((tables.segments, patches))
    }
}

struct Worker<'a, F> {
    job: &'a Job<'a, F>,
    /// New chunks that didn't fill a frame yet, with their bytes.
    carry_hashes: Vec<Hash>,
    carry: Vec<u8>,
    walks: Vec<Walk>,
    /// Walks through the other images' packs, one each for chunks and segments, which are in different packs.
    other_walks: [Walk; 2],
}

impl<'a, F: Feed> Worker<'a, F> {
    fn new(job: &'a Job<'a, F>) -> Worker<'a, F> {
        let walks = job.shared.lenders.iter().map(|_| Walk::default()).collect();
        Worker {
            job,
            carry_hashes: Vec::new(),
            carry: Vec::with_capacity(FRAME_MAX_CHUNKS * CHUNK_SIZE),
            walks,
            other_walks: Default::default(),
        }
    }

    fn run(mut self) -> Result<(), StoreError> {
        let job = self.job;
        let mut buffer = vec![0u8; SEGMENT_SPAN as usize];
        while !job.stop.load(Ordering::Relaxed) {
            let Some((number, content)) = job.feed.next(&mut buffer)? else {
                return self.flush();
            };
            let table = self.segment(number, &content, &buffer)?;
            job.tables.lock().set(number, table);
            if job
                .trimmed
                .as_ref()
                .is_some_and(|(trimmed, _)| *trimmed == number)
            {
                job.trimmed_replaced.store(true, Ordering::Relaxed);
            }
            self.report(number, &content)?;
        }
        // Another worker failed and reports why.
        Ok(())
    }

    fn report(&self, number: u64, content: &Content) -> Result<(), StoreError> {
        let bytes = match content {
            Content::Pages(pages) => (pages.len() * CHUNK_SIZE) as u64,
            _ => (self.job.size - number * SEGMENT_SPAN).min(SEGMENT_SPAN),
        };
        let counters = &self.job.shared.counters;
        counters.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        let done_bytes = self.job.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let progress = IngestProgress {
            region: self.job.name,
            done_bytes,
            total_bytes: self.job.size,
        };
        match &self.job.shared.progress {
            Some(report) if !report(progress) => Err(StoreError::Cancelled),
            _ => Ok(()),
        }
    }

    /// Returns the base's table of a segment; `None` if there is none, or only zeros.
    fn base(&self, number: u64) -> Result<Option<Base>, StoreError> {
        if let Some((trimmed, table)) = &self.job.trimmed
            && *trimmed == number
        {
            // It isn't stored itself, so nothing may be expressed as patches of it.
            return Ok(Some(Base {
                hash: Hash::ZERO,
                stored: Segment::new(),
                table: table.clone(),
            }));
        }
        let Some((region, scope)) = self.job.base else {
            return Ok(None);
        };
        let number = number as usize;
        match region.segments.get(number) {
            Some(hash) if !hash.is_zero() || !region.patches_of(number).is_empty() => {
                let stored = scope.segment(hash)?;
                let mut table = stored.clone();
                region.patch(number, &mut table);
                let cut = self.job.cut == Some(number as u64);
                Ok(Some(Base {
                    hash: if cut { Hash::ZERO } else { *hash },
                    stored,
                    table,
                }))
            }
            _ => Ok(None),
        }
    }

    fn segment(
        &mut self,
        number: u64,
        content: &Content,
        buffer: &[u8],
    ) -> Result<Table, StoreError> {
        let counters = &self.job.shared.counters;
        let (pages, whole): (Vec<u16>, bool) = match content {
            Content::Hole => {
                let bytes = (self.job.size - number * SEGMENT_SPAN).min(SEGMENT_SPAN);
                counters
                    .zero_chunks
                    .fetch_add(bytes.div_ceil(CHUNK_SIZE as u64), Ordering::Relaxed);
                return Ok(Table::whole(Hash::ZERO));
            }
            Content::Whole(chunks) => ((0..*chunks as u16).collect(), true),
            Content::Pages(pages) => (pages.clone(), false),
        };
        let base = self.base(number)?;
        let mut table = match &base {
            Some(base) if !whole => base.table.clone(),
            _ => Segment::new(),
        };
        let (mut zero, mut unchanged, mut dedup) = (0, 0, 0);
        let mut fresh: Vec<(Hash, &[u8])> = Vec::new();
        for (&chunk, data) in pages.iter().zip(buffer.chunks_exact(CHUNK_SIZE)) {
            let chunk = usize::from(chunk);
            if is_zero(data) {
                zero += 1;
                table.set(chunk, Hash::ZERO);
                continue;
            }
            let hash = Hash::of(data);
            table.set(chunk, hash);
            if base
                .as_ref()
                .is_some_and(|base| base.table.get(chunk) == hash)
            {
                unchanged += 1;
            } else if self.is_new(Kind::Chunk, &hash)? {
                fresh.push((hash, data));
            } else {
                dedup += 1;
            }
        }
        counters.zero_chunks.fetch_add(zero, Ordering::Relaxed);
        counters
            .unchanged_chunks
            .fetch_add(unchanged, Ordering::Relaxed);
        counters.dedup_chunks.fetch_add(dedup, Ordering::Relaxed);
        self.frames(&fresh)?;
        self.store_table(number, &table, base.as_ref())
    }

    /// Stores a segment's table, unless it is the base's with few enough patches.
    fn store_table(
        &mut self,
        number: u64,
        table: &Segment,
        base: Option<&Base>,
    ) -> Result<Table, StoreError> {
        if table.is_zero() {
            return Ok(Table::whole(Hash::ZERO));
        }
        if let Some(base) = base.filter(|base| !base.hash.is_zero()) {
            let pairs = table.hashes().iter().zip(base.stored.hashes()).enumerate();
            let first = number as usize * CHUNKS_PER_SEGMENT;
            let patches: Vec<Patch> = pairs
                .filter(|(_, (new, old))| new != old)
                .map(|(slot, (new, _))| Patch {
                    // Can't overflow: a region has at most 2^32 chunks.
                    chunk: (first + slot) as u32,
                    hash: *new,
                })
                .collect();
            let stored = table.hashes().iter().filter(|hash| !hash.is_zero()).count();
            let count = Region::segments_for(self.job.size).max(1) as usize;
            if patches.len() <= (stored / CHUNKS_PER_PATCH).min(PATCHES_IN_REGION_MAX / count) {
                return Ok(Table {
                    hash: base.hash,
                    patches,
                });
            }
        }
        let shared = self.job.shared;
        let encoded = table.encode();
        let hash = Hash::of(&encoded);
        if self.is_new(Kind::Segment, &hash)? {
            shared.counters.new_segments.fetch_add(1, Ordering::Relaxed);
            shared
                .counters
                .new_raw_bytes
                .fetch_add(encoded.len() as u64, Ordering::Relaxed);
            let compressed = compress_frame(Kind::Segment, &[&encoded], shared.level);
            shared.packer.segment(hash, compressed)?;
        }
        Ok(Table::whole(hash))
    }

    /// Returns the table of a base that is longer than the region, cut at the region's end. The format requires that the rest
    /// of the last chunk is zero.
    fn trim(mut self, number: u64) -> Result<Segment, StoreError> {
        let Some(Base { mut table, .. }) = self.base(number)? else {
            return Ok(Segment::new());
        };
        let bytes = (self.job.size - number * SEGMENT_SPAN).min(SEGMENT_SPAN) as usize;
        for chunk in bytes.div_ceil(CHUNK_SIZE)..floe_image::CHUNKS_PER_SEGMENT {
            table.set(chunk, Hash::ZERO);
        }
        let (last, keep) = (bytes / CHUNK_SIZE, bytes % CHUNK_SIZE);
        if keep > 0
            && let Some((_, scope)) = self.job.base
        {
            let mut data = [0u8; CHUNK_SIZE];
            let wants = [(Kind::Chunk, table.get(last))];
            if !scope
                .read(&wants, &mut |_, _, bytes| {
                    data[..keep].copy_from_slice(&bytes[..keep])
                })?
                .is_empty()
            {
                let what = format!(
                    "chunk {} of the parent is in none of its packs; `floe image verify` tells more",
                    wants[0].1
                );
                return Err(StoreError::Invalid { what });
            }
            let hash = floe_image::chunk_hash(&data);
            table.set(last, hash);
            if !hash.is_zero() && self.is_new(Kind::Chunk, &hash)? {
                self.frames(&[(hash, &data)])?;
                self.flush()?;
            }
        }
        Ok(table)
    }

    fn is_new(&mut self, kind: Kind, hash: &Hash) -> Result<bool, StoreError> {
        if !self.job.shared.seen.insert(hash) {
            return Ok(false);
        }
        for (lender, walk) in self.job.shared.lenders.iter().zip(&mut self.walks) {
            if lender.pack_of(kind, hash, walk)?.is_some() {
                return Ok(false);
            }
        }
        if let Some(others) = &self.job.shared.others {
            let walk = &mut self.other_walks[usize::from(kind == Kind::Segment)];
            return Ok(!others.lend(kind, hash, walk));
        }
        Ok(true)
    }

    /// Compresses as many full frames as there are, with what was carried over, and carries the rest over.
    fn frames(&mut self, fresh: &[(Hash, &[u8])]) -> Result<(), StoreError> {
        let carry = std::mem::take(&mut self.carry);
        let mut hashes = std::mem::take(&mut self.carry_hashes);
        let mut items: Vec<&[u8]> = carry.chunks_exact(CHUNK_SIZE).collect();
        hashes.extend(fresh.iter().map(|(hash, _)| *hash));
        items.extend(fresh.iter().map(|(_, data)| *data));
        let full = items.len() / FRAME_MAX_CHUNKS * FRAME_MAX_CHUNKS;
        for (hashes, items) in hashes[..full]
            .chunks(FRAME_MAX_CHUNKS)
            .zip(items[..full].chunks(FRAME_MAX_CHUNKS))
        {
            self.frame(hashes, items)?;
        }
        self.carry = items[full..].concat();
        self.carry_hashes = hashes[full..].to_vec();
        Ok(())
    }

    fn frame(&self, hashes: &[Hash], items: &[&[u8]]) -> Result<(), StoreError> {
        let shared = self.job.shared;
        let compressed = compress_frame(Kind::Chunk, items, shared.level);
        shared
            .counters
            .new_chunks
            .fetch_add(items.len() as u64, Ordering::Relaxed);
        shared
            .counters
            .new_raw_bytes
            .fetch_add((items.len() * CHUNK_SIZE) as u64, Ordering::Relaxed);
        shared.packer.frame(Kind::Chunk, hashes, &compressed)
    }

    /// Writes what was carried over at the end of the region: no frame has chunks of two regions.
    fn flush(self) -> Result<(), StoreError> {
        if self.carry_hashes.is_empty() {
            return Ok(());
        }
        let items: Vec<&[u8]> = self.carry.chunks_exact(CHUNK_SIZE).collect();
        self.frame(&self.carry_hashes, &items)
    }
}

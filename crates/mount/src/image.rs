//! Reads an image's regions as byte ranges: the hot path of a fault. It talks to no kernel, starts no thread, and allocates
//! nothing while the chunk is in the store.

use crate::backend::Backend;
use crate::maps::Maps;
use crate::streaming::Streaming;
use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Patch, Segment};
use floe_planner::RegionId;
use floe_sched::{Purpose, Who};
use floe_source::SourceError;
use floe_store::Got;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const CHUNK: u64 = CHUNK_SIZE as u64;

/// A set of chunks, by their numbers.
pub(crate) struct Bits(Box<[AtomicU64]>);

impl Bits {
    pub(crate) fn new(n: u64) -> Self {
        Self((0..n.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn get(&self, i: u64) -> bool {
        self.0[(i / 64) as usize].load(Ordering::Relaxed) >> (i % 64) & 1 == 1
    }

    /// Sets a bit; returns whether it was clear.
    pub(crate) fn set(&self, i: u64) -> bool {
        !self.get(i)
            && self.0[(i / 64) as usize].fetch_or(1 << (i % 64), Ordering::Relaxed) >> (i % 64) & 1
                == 0
    }

    /// Clears a bit; returns whether it was set.
    pub(crate) fn clear(&self, i: u64) -> bool {
        self.get(i)
            && self.0[(i / 64) as usize].fetch_and(!(1 << (i % 64)), Ordering::Relaxed) >> (i % 64)
                & 1
                == 1
    }

    /// Returns 64 bits at once.
    fn word(&self, word: u64) -> u64 {
        self.0[word as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn set_word(&self, word: u64, bits: u64) {
        self.0[word as usize].fetch_or(bits, Ordering::Relaxed);
    }
}

/// One region of an image.
pub(crate) struct Region {
    pub name: String,
    pub size: u64,
    /// The number that the planner knows it by.
    pub id: RegionId,
    segments: Vec<Hash>,
    /// Chunks whose hash replaces the one in their table, ascending.
    patches: Vec<Patch>,
    tables: Box<[OnceLock<Arc<Segment>>]>,
    touched: Bits,
    /// Chunks that [`Image::around`] has returned.
    pushed: Bits,
    /// Chunks that were fetched ahead because the planner said so, and not touched since.
    pub ahead: Bits,
}

/// An item that must be fetched before a request can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    pub kind: Kind,
    pub hash: Hash,
    pub region: usize,
    /// The chunk's or the segment's number.
    pub index: u64,
}

/// Items that were fetched for a waiting request and that the cache had no room for.
pub(crate) type Extra = Mutex<HashMap<Hash, Box<[u8]>>>;

/// What the disks of a blank begin with, by their regions' names.
pub(crate) type Beginnings = HashMap<String, Vec<u8>>;

/// What happened to a chunk that was touched for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub region: usize,
    pub chunk: u64,
    pub missed: bool,
    pub guessed: bool,
}

/// What one read of a region collects. On the hot path of a page that was touched before both lists stay empty and unallocated;
/// a first touch adds one entry to `firsts`.
#[derive(Default)]
pub(crate) struct Reading<'a> {
    /// Set by whoever must not be held up by the host's disk: what is not in the host's page cache is not read, and `on_disk`
    /// says that there was such.
    pub now: bool,
    pub on_disk: bool,
    /// Set by the node's own reads: nothing counts as touched, and nothing is kept in the cache for it.
    pub quiet: bool,
    pub extra: Option<&'a Extra>,
    pub needs: Vec<Need>,
    pub firsts: Vec<First>,
    /// The image that the needs belong to, if the request was for a disk based on it.
    pub image: Option<Arc<Image>>,
}

/// An image on the mount.
pub(crate) struct Image {
    pub id: Hash,
    pub regions: Vec<Region>,
    pub backend: Box<dyn Backend>,
    pub missed: AtomicU64,
    pub touched: AtomicU64,
    pub zero: AtomicU64,
    /// Set when nobody wants to know which chunks are touched.
    pub unwatched: AtomicBool,
    /// Says whether all of it is on this host by now; not set as long as nobody can.
    pub looks_here: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Which file of its disks each block belongs to.
    pub maps: Maps,
    pub streaming: Streaming,
    /// Only of a blank: what its disks begin with.
    pub blank: Option<Beginnings>,
}

impl Region {
    pub(crate) fn chunks(&self) -> u64 {
        self.size.div_ceil(CHUNK)
    }

    /// Returns the numbers of the tables that are not loaded, without those that are all zero.
    pub(crate) fn missing_tables(&self) -> Vec<u32> {
        let missing = |i: &usize| !self.segments[*i].is_zero() && self.tables[*i].get().is_none();
        (0..self.segments.len())
            .filter(missing)
            .map(|i| i as u32)
            .collect()
    }

    pub(crate) fn tables(&self) -> (u64, u64) {
        let all = self.segments.iter().filter(|s| !s.is_zero()).count();
        let loaded = self.tables.iter().filter(|t| t.get().is_some()).count();
        (loaded as u64, all as u64)
    }

    pub(crate) fn segment_hash(&self, segment: u32) -> Option<Hash> {
        self.segments.get(segment as usize).copied()
    }

    pub(crate) fn set_table(&self, segment: usize, table: Arc<Segment>) {
        if let Some(slot) = self.tables.get(segment) {
            let _ = slot.set(table);
        }
    }

    /// Returns the hash of a chunk, or the number and hash of the table that must be loaded to know it.
    fn hash(&self, chunk: u64, backend: &dyn Backend) -> Result<Hash, (usize, Hash)> {
        if let Ok(at) = self
            .patches
            .binary_search_by_key(&chunk, |patch| patch.chunk.into())
        {
            return Ok(self.patches[at].hash);
        }
        let at = (chunk / CHUNKS_PER_SEGMENT as u64) as usize;
        let Some(segment) = self.segments.get(at).filter(|s| !s.is_zero()) else {
            return Ok(Hash::ZERO);
        };
        let table = match self.tables[at].get() {
            Some(table) => table,
            None => {
                let table = backend.segment(segment).ok_or((at, *segment))?;
                self.tables[at].get_or_init(|| table)
            }
        };
        Ok(table.get(chunk as usize % CHUNKS_PER_SEGMENT))
    }
}

impl Image {
    pub(crate) fn new(
        id: Hash,
        manifest: &Manifest,
        backend: Box<dyn Backend>,
        first_region: RegionId,
    ) -> Self {
        let regions = manifest.regions.iter().enumerate().map(|(i, r)| Region {
            name: r.name.clone(),
            size: r.size,
            id: first_region + i as RegionId,
            segments: r.segments.clone(),
            patches: r.patches.clone(),
            tables: r.segments.iter().map(|_| OnceLock::new()).collect(),
            touched: Bits::new(r.size.div_ceil(CHUNK)),
            pushed: Bits::new(r.size.div_ceil(CHUNK)),
            ahead: Bits::new(r.size.div_ceil(CHUNK)),
        });
        Self {
            id,
            regions: regions.collect(),
            backend,
            missed: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            zero: AtomicU64::new(0),
            unwatched: AtomicBool::new(false),
            looks_here: OnceLock::new(),
            maps: Maps::default(),
            streaming: Streaming::default(),
            blank: None,
        }
    }

    /// Returns whether all of it is on this host, so that reading it costs no link anything. Looks at the host's disk.
    pub(crate) fn is_here(&self) -> bool {
        self.looks_here.get().is_some_and(|look| look())
    }

    pub(crate) fn region(&self, name: &str) -> Option<usize> {
        self.regions.iter().position(|r| r.name == name)
    }

    /// Copies `out.len()` bytes from `offset` of a region on, zeros beyond its end. What isn't here is added to
    /// `reading.needs`; `out` is only valid if that stays empty.
    pub(crate) fn read(
        &self,
        region: usize,
        offset: u64,
        out: &mut [u8],
        reading: &mut Reading<'_>,
    ) {
        let mut at = offset;
        let mut out = out;
        while !out.is_empty() {
            let within = (at % CHUNK) as usize;
            let n = out.len().min(CHUNK_SIZE - within);
            let (piece, rest) = out.split_at_mut(n);
            match <&mut [u8; CHUNK_SIZE]>::try_from(&mut *piece) {
                Ok(whole) => self.chunk(region, at / CHUNK, whole, reading),
                Err(_) => {
                    let mut whole = [0; CHUNK_SIZE];
                    self.chunk(region, at / CHUNK, &mut whole, reading);
                    piece.copy_from_slice(&whole[within..within + n]);
                }
            }
            at += n as u64;
            out = rest;
        }
    }

    fn chunk(
        &self,
        region_index: usize,
        chunk: u64,
        out: &mut [u8; CHUNK_SIZE],
        reading: &mut Reading<'_>,
    ) {
        let region = &self.regions[region_index];
        if chunk >= region.chunks() {
            return out.fill(0);
        }
        let hash = match region.hash(chunk, &*self.backend) {
            Ok(hash) => hash,
            Err((segment, hash)) => {
                let need = Need {
                    kind: Kind::Segment,
                    hash,
                    region: region_index,
                    index: segment as u64,
                };
                if reading.needs.last() != Some(&need) {
                    reading.needs.push(need);
                }
                return;
            }
        };
        if reading.quiet {
            return self.quiet_chunk(region_index, chunk, (hash, out), reading);
        }
        if hash.is_zero() {
            let first = region.touched.set(chunk);
            self.zero.fetch_add(u64::from(first), Ordering::Relaxed);
            return out.fill(0);
        }
        let keep = reading.extra.is_some() || !region.touched.get(chunk);
        let got = match reading.now {
            true => self.backend.get_now(&hash, out, keep),
            false if self.backend.get(&hash, out, keep) => Got::Here,
            false => Got::Missing,
        };
        if got == Got::OnDisk {
            // It is touched when it is read.
            reading.on_disk = true;
            return;
        }
        let first = region.touched.set(chunk);
        let here = got == Got::Here
            || reading
                .extra
                .is_some_and(|e| e.lock().get(&hash).is_some_and(|b| copy(b, out)));
        if first {
            self.touched.fetch_add(1, Ordering::Relaxed);
            self.missed.fetch_add(u64::from(!here), Ordering::Relaxed);
            let guessed = region.ahead.clear(chunk);
            reading.firsts.push(First {
                region: region_index,
                chunk,
                missed: !here,
                guessed,
            });
        }
        if !here {
            reading.needs.push(Need {
                kind: Kind::Chunk,
                hash,
                region: region_index,
                index: chunk,
            });
        }
    }

    /// Copies the chunk with this hash; it does not count as touched by that.
    fn quiet_chunk(
        &self,
        region: usize,
        chunk: u64,
        (hash, out): (Hash, &mut [u8; CHUNK_SIZE]),
        reading: &mut Reading<'_>,
    ) {
        if hash.is_zero() {
            return out.fill(0);
        }
        let extra = reading.extra;
        let in_extra = |out: &mut [u8; CHUNK_SIZE]| {
            extra.is_some_and(|e| e.lock().get(&hash).is_some_and(|b| copy(b, out)))
        };
        let got = match reading.now {
            true => self.backend.get_now(&hash, out, false),
            false if self.backend.get(&hash, out, false) => Got::Here,
            false => Got::Missing,
        };
        match got {
            Got::Here => {}
            Got::OnDisk => reading.on_disk = true,
            Got::Missing if in_extra(out) => {}
            Got::Missing => reading.needs.push(Need {
                kind: Kind::Chunk,
                hash,
                region,
                index: chunk,
            }),
        }
    }

    /// Returns whether the table of a block of 64 chunks is in memory: then what follows reads no disk.
    pub(crate) fn knows(&self, region: usize, block: u64) -> bool {
        let state = &self.regions[region];
        let at = (block * 64 / CHUNKS_PER_SEGMENT as u64) as usize;
        let segment = state.segments.get(at);
        segment.is_none_or(|hash| hash.is_zero() || state.tables[at].get().is_some())
    }

    /// Returns a mask of the chunks in a block of 64 that are worth fetching: neither zero nor here. 0 while the block's table
    /// isn't here.
    pub(crate) fn candidates(&self, region: usize, block: u64) -> u64 {
        let state = &self.regions[region];
        let worth = |chunk: u64| match state.hash(chunk, &*self.backend) {
            Ok(hash) => !hash.is_zero() && !self.backend.has(&hash),
            Err(_) => false,
        };
        let first = block * 64;
        (0..64)
            .filter(|i| first + i < state.chunks() && worth(first + i))
            .fold(0, |mask, i| mask | 1 << i)
    }

    /// Returns the hashes of the chunks in a block whose bits are set in `chunks`, without zero ones.
    pub(crate) fn hashes(&self, region: usize, block: u64, chunks: u64) -> Vec<Hash> {
        let state = &self.regions[region];
        let set = (0..64).filter(|i| chunks >> i & 1 == 1 && block * 64 + i < state.chunks());
        set.filter_map(|i| state.hash(block * 64 + i, &*self.backend).ok())
            .filter(|hash| !hash.is_zero())
            .collect()
    }

    /// Returns a mask of the chunks in a touched chunk's block that will probably be touched too: the 16 around it once two of
    /// them were touched, the whole block once four were. Each chunk is returned once only.
    pub(crate) fn around(&self, region: usize, chunk: u64) -> u64 {
        let state = &self.regions[region];
        let (block, bit) = (chunk / 64, chunk % 64);
        let touched = state.touched.word(block);
        let near = 0xFFFF << (bit & !15);
        let window = match () {
            () if touched.count_ones() >= 4 => u64::MAX,
            () if (touched & near).count_ones() >= 2 => near,
            () => return 0,
        };
        let behind_end = (block * 64 + 64).saturating_sub(state.chunks());
        let new = window & !touched & !state.pushed.word(block) & (u64::MAX >> behind_end);
        state.pushed.set_word(block, new);
        new
    }

    /// Copies a chunk for the page cache; returns false if it isn't here, or isn't zero and `only_zero` is set. Counts as no
    /// touch.
    pub(crate) fn peek(
        &self,
        region: usize,
        chunk: u64,
        only_zero: bool,
        out: &mut [u8; CHUNK_SIZE],
    ) -> bool {
        match self.regions[region].hash(chunk, &*self.backend) {
            Ok(hash) if hash.is_zero() => {
                out.fill(0);
                true
            }
            Ok(hash) => !only_zero && self.backend.get(&hash, out, false),
            Err(_) => false,
        }
    }

    /// Takes an item that was fetched: a table goes into its region, a chunk that the cache didn't keep into `extra`.
    pub(crate) fn accept(
        &self,
        need: &Need,
        bytes: &[u8],
        extra: &Extra,
    ) -> Result<(), SourceError> {
        match need.kind {
            Kind::Segment => {
                let table = Segment::decode(bytes).map_err(|error| SourceError::Invalid {
                    at: "the source".into(),
                    what: format!("table {}", need.hash.short()),
                    reason: error.to_string(),
                })?;
                self.regions[need.region].set_table(need.index as usize, Arc::new(table));
            }
            Kind::Chunk if !self.backend.has(&need.hash) => {
                extra.lock().insert(need.hash, bytes.into());
            }
            Kind::Chunk => {}
        }
        Ok(())
    }

    /// Reads, and blocks until what isn't here was fetched. Not for threads that serve the kernel.
    pub(crate) fn read_waiting(
        &self,
        region: usize,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let extra = Extra::default();
        loop {
            let mut reading = Reading {
                extra: Some(&extra),
                ..Reading::default()
            };
            self.read(region, offset, out, &mut reading);
            if reading.needs.is_empty() {
                return Ok(());
            }
            for need in &reading.needs {
                let (tell, told) = crossbeam_channel::bounded(1);
                let done = move |result: Result<&[u8], SourceError>| {
                    let _ = tell.send(result.map(<[u8]>::to_vec));
                };
                let who = Who::node(Purpose::Store);
                self.backend
                    .demand(who, None, need.kind, &need.hash, false, Box::new(done));
                let bytes = told.recv().map_err(|_| SourceError::Stopped {
                    what: need.hash.short(),
                })??;
                self.accept(need, &bytes, &extra)?;
            }
        }
    }
}

fn copy(from: &[u8], to: &mut [u8; CHUNK_SIZE]) -> bool {
    let fits = from.len() == CHUNK_SIZE;
    if fits {
        to.copy_from_slice(from);
    }
    fits
}

//! A live layer: a machine's state at its fork, hashed but not packed, and read from where it is.
//!
//! A capture compresses what it keeps before anybody can start from it; a fork cannot wait for that. Here the pages that were
//! copied in the pause are hashed on all cores (1 GB/s each), named by a manifest over the images that the machine stands on,
//! and served at once: pages from the memory file into which they were copied, written chunks of disks from the frozen
//! layers' files, which get a second name for that. An ordinary pull of this source into the node's own repository makes it
//! durable later, under the same id; then the layer is removed. Until then the supervisor holds the memory file, with
//! everything that a node needs to find the layer again (`kept`).

use super::kept::{self, Names, Parent};
use floe_ground::error::NodeError;
use floe_image::{
    CHUNK_SIZE, FRAME_MAX_CHUNKS, Hash, Kind, MachineConfig, Manifest, Over, Region, Segment,
    chunk_hash, compress_frame, is_zero, memory_region,
};
use floe_inventory::inventory::record::Origin;
use floe_library::images::sources::Loads;
use floe_machine::{Capture, MemoryFile, Pages, Rest};
use floe_mount::{FrozenDisk, FrozenLayers, MountError};
use floe_source::{Fetcher, Request, Sink, SourceError};
use floe_threads::Cancel;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most patches of a region in a fork's manifest: 9 KiB of its descriptor. Further changes are in new tables, which clones
/// fetch when they touch them.
const PATCHES_MAX: usize = 256;
/// zstd level for measuring a descriptor's size: that of a batch read.
const LEVEL: i32 = 1;
/// How many chunks a thread hashes at a time: few enough that all cores finish together.
const HASH_AT_A_TIME: usize = 1024;

/// Bytes of one chunk.
type Chunk = [u8; CHUNK_SIZE];

/// Where a chunk's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this offset of the memory file.
    Memory(u64),
    /// The chunk with this number in one of the files of disks' layers.
    File(u16, u64),
}

/// An image that a layer is based on.
pub(super) struct Base<'a> {
    pub id: Hash,
    pub manifest: &'a Manifest,
    pub origin: Origin,
    pub fetcher: Arc<Fetcher>,
}

/// What a layer is built from, beside what was captured.
pub(super) struct Making<'a> {
    pub config: MachineConfig,
    /// The image that the machine maps.
    pub ram: Base<'a>,
    /// The image that its disks are based on.
    pub disks: Base<'a>,
    /// Regions of that image that are taken over unchanged.
    pub kept: &'a [&'a str],
    pub created_unix_s: u64,
    /// The machine that was forked.
    pub parent: Parent,
    /// The directory for the second names of files.
    pub dir: &'a Path,
}

/// What a fork keeps of its parent's state.
pub struct Layer {
    /// The image's id, which it also has once it is stored.
    pub id: Hash,
    /// The image's manifest.
    pub manifest: Manifest,
    /// How many chunks of memory the parent had written.
    pub ram_chunks: u64,
    /// The machine that was forked.
    pub(super) parent: Parent,
    /// The names under which it is kept.
    pub(super) names: Names,
    pub(super) device: Vec<u8>,
    pub(super) tables: HashMap<Hash, Arc<Segment>>,
    pub(super) chunks: HashMap<Hash, Place>,
    pub(super) memory: MemoryFile,
    /// Files with data of disks' layers, each chunk at its own offset.
    pub(super) files: Vec<File>,
    /// The images that have everything else.
    pub(super) bases: Vec<(Hash, Origin, Arc<Fetcher>)>,
    /// Thrown when it is to be stored soon, whatever else the host has to do.
    pub(super) hurry: Cancel,
}

impl Layer {
    /// Builds a layer from what was captured, with its memory in a memory file. Also returns what a clone's QEMU loads, and
    /// the parent's frozen disks.
    pub(super) fn build(
        captured: Capture<FrozenLayers>,
        making: Making<'_>,
    ) -> Result<(Layer, Loads, FrozenLayers), NodeError> {
        let Making { ram, disks, .. } = making;
        let mut building = Building::default();
        let mut regions = vec![building.bytes("device", &captured.device)?];
        let mut memory = vec![captured.ram];
        memory.extend(captured.blocks);
        for (block, pages) in memory.iter().enumerate() {
            let base = match pages.rest() {
                Rest::Zero => None,
                Rest::Base => Some(&ram),
            };
            let hashes = hash_pages(pages);
            let name = memory_region(block);
            regions.push(building.region(&name, pages.size(), base, &name, &hashes)?);
            for (at, (_, hash)) in hashes.iter().enumerate() {
                if let Some(offset) = pages.offset(at) {
                    building.place(*hash, Place::Memory(offset));
                }
            }
        }
        if captured.vram.size() > 0 {
            let hashes = hash_pages(&captured.vram);
            regions.push(building.region("vram", captured.vram.size(), None, "vram", &hashes)?);
            for (at, (_, hash)) in hashes.iter().enumerate() {
                building.keep(*hash, || Box::new(*captured.vram.nth(at).1));
            }
        }
        let mut names = Names::new(making.dir);
        for disk in captured.frozen.disks() {
            let changes = building.disk(disk, &mut names)?;
            let (base, region) = match disk.base() {
                Some((_, region)) => (Some(&disks), region),
                None => (None, ""),
            };
            let region = building.region(disk.name(), disk.size(), base, region, &changes)?;
            regions.push(region);
        }
        for name in making.kept {
            regions.extend(disks.manifest.region(name).cloned());
        }
        let manifest = Manifest {
            parent: Some(disks.id),
            created_unix_s: making.created_unix_s,
            config: making.config,
            regions,
        };
        let loads = loads(&captured.device, &captured.vram);
        let ram_chunks = memory.iter().map(|pages| pages.len() as u64).sum();
        let mut bases = vec![(ram.id, ram.origin, ram.fetcher)];
        if disks.id != bases[0].0 {
            bases.push((disks.id, disks.origin, disks.fetcher));
        }
        let unfinished = kept::Unfinished {
            memory,
            own: building.own,
            id: Hash::of(&manifest.encode()),
            manifest,
            ram_chunks,
            parent: making.parent,
            names,
            device: captured.device,
            tables: building.tables,
            chunks: building.chunks,
            files: building.files,
            bases,
        };
        Ok((unfinished.finish()?, loads, captured.frozen))
    }

    /// Returns how many bytes a clone's node receives before the clone's guest runs: manifest and device state, as they are
    /// sent. Graphics memory, if there is a picture in it, is not counted.
    pub fn descriptor_bytes(&self) -> u64 {
        let chunks: Vec<&[u8]> = self
            .device
            .chunks_exact(CHUNK_SIZE)
            .filter(|chunk| !is_zero(chunk))
            .collect();
        let frames = chunks.chunks(FRAME_MAX_CHUNKS);
        let device: usize = frames
            .map(|frame| compress_frame(Kind::Chunk, frame, LEVEL).len())
            .sum();
        let last = self.device.len() % CHUNK_SIZE;
        (self.manifest.encode().len() + device + last) as u64
    }

    /// Returns the images without which the layer cannot be read.
    pub fn bases(&self) -> impl Iterator<Item = &Hash> {
        self.bases.iter().map(|(base, ..)| base)
    }

    /// Passes one item to `sink`; returns whether this layer has it.
    fn give(&self, kind: Kind, hash: &Hash, sink: &mut Sink<'_>) -> Result<bool, SourceError> {
        let failed = |reason: String| SourceError::Local {
            what: format!("chunk {} of fork {}", hash.short(), self.id.short()),
            reason,
        };
        match kind {
            Kind::Segment => {
                let Some(table) = self.tables.get(hash) else {
                    return Ok(false);
                };
                sink(kind, *hash, &table.encode());
            }
            Kind::Chunk => match self.chunks.get(hash) {
                None => return Ok(false),
                Some(Place::Memory(offset)) => {
                    let chunk = self.memory.chunk(*offset);
                    let chunk = chunk.ok_or_else(|| failed("it is not in memory".into()))?;
                    sink(kind, *hash, chunk);
                }
                Some(Place::File(file, chunk)) => {
                    let file = self.files.get(usize::from(*file));
                    let file = file.ok_or_else(|| failed("it has no file".into()))?;
                    let bytes = read_chunk(file, *chunk).map_err(|e| failed(e.to_string()))?;
                    sink(kind, *hash, &bytes[..]);
                }
            },
        }
        Ok(true)
    }

    pub(super) fn read(
        &self,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let mut rest = Vec::new();
        for (kind, hash) in wants {
            if !self.give(*kind, hash, sink)? {
                rest.push((*kind, *hash));
            }
        }
        let mut given: HashSet<Hash> = HashSet::new();
        for (base, _, fetcher) in &self.bases {
            if rest.is_empty() {
                break;
            }
            let read = fetcher
                .source()
                .read(base, &rest, request, &mut |kind, hash, bytes| {
                    // an additional item from the base may be one that this layer has delivered already
                    if !self.chunks.contains_key(&hash) && given.insert(hash) {
                        sink(kind, hash, bytes);
                    }
                });
            match read {
                Ok(()) | Err(SourceError::Missing { .. }) => {
                    rest.retain(|(_, hash)| !given.contains(hash))
                }
                Err(error) => return Err(error),
            }
        }
        match rest.first() {
            None => Ok(()),
            Some((_, hash)) => Err(SourceError::Missing {
                at: format!("fork {}", self.id.short()),
                what: format!("{} items from {}", rest.len(), hash.short()),
            }),
        }
    }
}

/// Reads a chunk of a layer's data; bytes behind the file's end are zero.
fn read_chunk(file: &File, chunk: u64) -> io::Result<Box<Chunk>> {
    let mut bytes = Box::new([0; CHUNK_SIZE]);
    let mut done = 0;
    while done < CHUNK_SIZE {
        let at = chunk * CHUNK_SIZE as u64 + done as u64;
        match file.read_at(&mut bytes[done..], at)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(bytes)
}

/// Returns what a clone's QEMU loads.
fn loads(device: &[u8], vram: &Pages) -> Loads {
    let pages = vram.iter().filter(|(_, page)| !is_zero(&page[..]));
    Loads {
        device: device.to_vec(),
        vram: pages
            .map(|(chunk, page)| (chunk, Box::new(*page)))
            .collect(),
    }
}

/// Where a chunk is while a layer is built.
#[derive(Clone, Copy)]
pub(super) enum Whereabouts {
    Known(Place),
    /// Among the chunks that are kept by themselves, at this index.
    Own(u32),
}

/// The parts of a layer that is being built.
#[derive(Default)]
struct Building {
    tables: HashMap<Hash, Arc<Segment>>,
    chunks: HashMap<Hash, Whereabouts>,
    /// Device state, video memory, and chunks of disks that no single file has completely.
    own: Vec<Box<Chunk>>,
    files: Vec<File>,
}

/// A written chunk of a disk: its number, its hash, and its content or the layer whose file has it.
type Written = (u64, Hash, Result<u32, Box<Chunk>>);

impl Building {
    /// Adds a region over its base, with its tables.
    fn region(
        &mut self,
        name: &str,
        size: u64,
        base: Option<&Base<'_>>,
        base_region: &str,
        changes: &[(u32, Hash)],
    ) -> Result<Region, NodeError> {
        let under = base.and_then(|base| base.manifest.region(base_region));
        let over = Over::new(name, size, under, changes, PATCHES_MAX, |hash| {
            let Some(base) = base else {
                return Ok(Segment::new());
            };
            let bytes = base.fetcher.demand_wait(&base.id, Kind::Segment, hash)?;
            Segment::decode(&bytes).map_err(|error| {
                NodeError::Source(SourceError::Invalid {
                    at: base.fetcher.source().describe(),
                    what: format!("a segment of image {}", base.id.short()),
                    reason: error.to_string(),
                })
            })
        })?;
        self.tables.extend(over.tables);
        Ok(over.region)
    }

    fn place(&mut self, hash: Hash, place: Place) {
        if !hash.is_zero() {
            self.chunks.entry(hash).or_insert(Whereabouts::Known(place));
        }
    }

    fn keep(&mut self, hash: Hash, bytes: impl FnOnce() -> Box<Chunk>) {
        let at = self.own.len() as u32;
        if hash.is_zero() {
            return;
        }
        if let std::collections::hash_map::Entry::Vacant(entry) = self.chunks.entry(hash) {
            entry.insert(Whereabouts::Own(at));
            self.own.push(bytes());
        }
    }

    /// Adds a small region from memory.
    fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<Region, NodeError> {
        let mut changes = Vec::new();
        for (number, piece) in bytes.chunks(CHUNK_SIZE).enumerate() {
            let mut chunk = Box::new([0; CHUNK_SIZE]);
            chunk[..piece.len()].copy_from_slice(piece);
            let hash = chunk_hash(&chunk[..]);
            changes.push((number as u32, hash));
            self.keep(hash, || chunk);
        }
        self.region(name, bytes.len() as u64, None, "", &changes)
    }

    /// Returns the written chunks of a disk.
    fn disk(
        &mut self,
        disk: &FrozenDisk,
        names: &mut Names,
    ) -> Result<Vec<(u32, Hash)>, NodeError> {
        let written: Vec<u64> = disk.written().collect();
        let read = |at: usize| -> Result<Written, MountError> {
            let chunk = written[at];
            let bytes = disk.chunk(chunk)?;
            let layer = disk.layer_of(chunk).ok_or_else(|| Box::new(bytes));
            Ok((chunk, chunk_hash(&bytes), layer))
        };
        let mut changes = Vec::with_capacity(written.len());
        let mut files: HashMap<u32, u16> = HashMap::new();
        for read in on_all_cores(written.len(), read) {
            let (chunk, hash, layer) = read?;
            changes.push((chunk as u32, hash));
            let layer = match layer {
                _ if hash.is_zero() => continue,
                Err(bytes) => {
                    self.keep(hash, || bytes);
                    continue;
                }
                Ok(layer) => layer,
            };
            let file = match files.get(&layer) {
                Some(file) => *file,
                None => {
                    let file = self.files.len() as u16;
                    self.files.push(names.link(disk, layer)?);
                    files.insert(layer, file);
                    file
                }
            };
            self.place(hash, Place::File(file, chunk));
        }
        Ok(changes)
    }
}

/// Returns chunk number and hash of every page, in order.
fn hash_pages(pages: &Pages) -> Vec<(u32, Hash)> {
    on_all_cores(pages.len(), |at| {
        let (chunk, page) = pages.nth(at);
        (chunk, chunk_hash(page))
    })
}

/// Calls `work` for 0 to `count` - 1 in parts on all cores; returns the results in order.
fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let parts = count.div_ceil(HASH_AT_A_TIME);
    if cores.min(parts) <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<T>)>> = Mutex::default();
    floe_threads::scope(|scope| {
        scope.spawn_some("hash", cores.min(parts), || {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                let from = part * HASH_AT_A_TIME;
                let to = (from + HASH_AT_A_TIME).min(count);
                let results = (from..to).map(&work).collect();
                done.lock().push((part, results));
            }
        });
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(part, _)| *part);
    done.into_iter().flat_map(|(_, results)| results).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_all_cores_comes_back_in_order() {
        for count in [0, 1, HASH_AT_A_TIME, 5 * HASH_AT_A_TIME + 3] {
            let done = on_all_cores(count, |at| at * 2);
            assert_eq!(done, (0..count).map(|at| at * 2).collect::<Vec<_>>());
        }
    }
}

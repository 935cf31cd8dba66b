//! A live layer: what a machine was at its fork, hashed but not packed, read from where it lies.
//!
//! A capture compresses what it keeps before anybody can start from it; a fork cannot wait for that. Here the pages that were
//! copied in the pause are hashed on all cores (1 GB/s each), named by a manifest over the images that the machine stands
//! on, and served from memory at once; written chunks of disks are read from the frozen layers' files. An ordinary pull of
//! this source into the node's own repository makes it durable later, under the same id, and then it is forgotten.

use crate::node::{error::NodeError, sources::Loads};
use floe_image::{
    CHUNK_SIZE, FRAME_MAX_CHUNKS, Hash, Kind, Layout, MachineConfig, Manifest, Over, Region,
    Segment, chunk_hash, compress_frame, is_zero, memory_region,
};
use floe_machine::{Capture, Pages, Rest};
use floe_mount::{FrozenDisk, FrozenLayers, MountError};
use floe_source::{Directory, Fetcher, READ_ITEMS_MAX, Request, Sink, Source, SourceError};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most patches of a region in a fork's manifest: 9 KiB of its descriptor. What changed beyond that is told by new tables,
/// which clones fetch when they touch them.
const PATCHES_MAX: usize = 256;
/// zstd level at which a descriptor is told: that of a batch read.
const LEVEL: i32 = 1;
/// Chunks that a thread hashes at a time: small enough to share out the end evenly.
const HASH_AT_A_TIME: usize = 1024;

/// Bytes of one chunk.
type Chunk = [u8; CHUNK_SIZE];

/// Where a chunk's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Page of a memory block (0 is the memory of the machine's start), by its place in the list.
    Ram(u8, u32),
    /// The same of the video memory.
    Vram(u32),
    /// In the frozen layers of a disk, whole.
    Disk(u16, u64),
    /// Kept by itself: device state, and chunks of disks of which only some sectors were written.
    Own(u32),
}

/// An image that a layer stands on.
pub(crate) struct Base<'a> {
    pub id: Hash,
    pub manifest: &'a Manifest,
    pub fetcher: Arc<Fetcher>,
}

/// What a fork keeps of its parent.
pub(crate) struct Layer {
    /// The image's name: from now on, and once it is stored.
    pub id: Hash,
    /// The image.
    pub manifest: Manifest,
    /// The parent's disks as they were.
    pub frozen: FrozenLayers,
    /// The parent's device state.
    device: Vec<u8>,
    /// Chunks of memory that the parent had written.
    pub ram_chunks: u64,
    tables: HashMap<Hash, Arc<Segment>>,
    chunks: HashMap<Hash, Place>,
    own: Vec<Box<Chunk>>,
    /// The memory of the machine's start, and the blocks that were added to it.
    memory: Vec<Pages>,
    vram: Pages,
    /// Where everything else is.
    bases: Vec<(Hash, Arc<Fetcher>)>,
}

impl Layer {
    /// Names what was captured. `ram` is the image that the machine maps, `disks` the one that its disks stand on.
    pub fn build(
        captured: Capture<FrozenLayers>,
        config: MachineConfig,
        ram: Base<'_>,
        disks: Base<'_>,
        kept: &[&str],
        created_unix_s: u64,
    ) -> Result<Layer, NodeError> {
        let mut building = Building::default();
        let mut regions = vec![building.bytes("device", &captured.device)?];
        let mut memory = vec![captured.ram];
        memory.extend(captured.blocks);
        for (block, pages) in (0..).zip(&memory) {
            let base = match pages.rest() {
                Rest::Zero => None,
                Rest::Base => Some(&ram),
            };
            let hashes = hash_pages(pages);
            let name = memory_region(block.into());
            regions.push(building.region(&name, pages.size(), base, &name, &hashes)?);
            building.places(&hashes, |at| Place::Ram(block, at));
        }
        if captured.vram.size() > 0 {
            let hashes = hash_pages(&captured.vram);
            regions.push(building.region("vram", captured.vram.size(), None, "vram", &hashes)?);
            building.places(&hashes, Place::Vram);
        }
        for (number, disk) in captured.frozen.disks().iter().enumerate() {
            let changes = building.disk(number as u16, disk)?;
            let (base, region) = match disk.base() {
                Some((_, region)) => (Some(&disks), region),
                None => (None, ""),
            };
            let region = building.region(disk.name(), disk.size(), base, region, &changes)?;
            regions.push(region);
        }
        for name in kept {
            regions.extend(disks.manifest.region(name).cloned());
        }
        let manifest = Manifest {
            parent: Some(disks.id),
            created_unix_s,
            config,
            regions,
        };
        let encoded = manifest.encode();
        let mut bases = vec![(ram.id, ram.fetcher)];
        if disks.id != ram.id {
            bases.push((disks.id, disks.fetcher));
        }
        Ok(Layer {
            id: Hash::of(&encoded),
            device: captured.device,
            ram_chunks: memory.iter().map(|pages| pages.len() as u64).sum(),
            manifest,
            frozen: captured.frozen,
            tables: building.tables,
            chunks: building.chunks,
            own: building.own,
            memory,
            vram: captured.vram,
            bases,
        })
    }

    /// Bytes that a clone's node needs before the clone executes, as they are sent: manifest and device state. Graphics
    /// memory, if there is a picture in it, comes beside it.
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

    /// What a clone's QEMU loads.
    pub fn loads(&self) -> Loads {
        let pages = self.vram.iter().filter(|(_, page)| !is_zero(&page[..]));
        Loads {
            device: self.device.clone(),
            vram: pages
                .map(|(chunk, page)| (chunk, Box::new(*page)))
                .collect(),
        }
    }

    /// The images without which it cannot be read.
    pub fn bases(&self) -> impl Iterator<Item = &Hash> {
        self.bases.iter().map(|(base, _)| base)
    }

    /// Gives one item to `sink`; whether it is of this layer.
    fn give(&self, kind: Kind, hash: &Hash, sink: &mut Sink<'_>) -> Result<bool, SourceError> {
        match kind {
            Kind::Segment => {
                let Some(table) = self.tables.get(hash) else {
                    return Ok(false);
                };
                sink(kind, *hash, &table.encode());
            }
            Kind::Chunk => match self.chunks.get(hash) {
                None => return Ok(false),
                Some(Place::Ram(block, at)) => {
                    let pages = &self.memory[usize::from(*block)];
                    sink(kind, *hash, pages.nth(*at as usize).1);
                }
                Some(Place::Vram(at)) => sink(kind, *hash, self.vram.nth(*at as usize).1),
                Some(Place::Own(at)) => sink(kind, *hash, &self.own[*at as usize][..]),
                Some(Place::Disk(disk, chunk)) => {
                    let disk = &self.frozen.disks()[usize::from(*disk)];
                    let bytes = disk.chunk(*chunk).map_err(|error| SourceError::Local {
                        what: format!("chunk {chunk} of {}", disk.name()),
                        reason: error.to_string(),
                    })?;
                    sink(kind, *hash, &bytes);
                }
            },
        }
        Ok(true)
    }

    fn read(
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
        for (base, fetcher) in &self.bases {
            if rest.is_empty() {
                break;
            }
            let read = fetcher
                .source()
                .read(base, &rest, request, &mut |kind, hash, bytes| {
                    // a neighbour that came along may be one of this layer's, which is delivered already
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

/// What a layer is made of, while it is made.
#[derive(Default)]
struct Building {
    tables: HashMap<Hash, Arc<Segment>>,
    chunks: HashMap<Hash, Place>,
    own: Vec<Box<Chunk>>,
}

impl Building {
    /// A region over its base, with its tables.
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

    fn places(&mut self, hashes: &[(u32, Hash)], place: impl Fn(u32) -> Place) {
        for (at, (_, hash)) in hashes.iter().enumerate() {
            if !hash.is_zero() {
                self.chunks.entry(*hash).or_insert(place(at as u32));
            }
        }
    }

    fn keep(&mut self, hash: Hash, bytes: Box<Chunk>) {
        let at = self.own.len() as u32;
        if let std::collections::hash_map::Entry::Vacant(entry) = self.chunks.entry(hash) {
            entry.insert(Place::Own(at));
            self.own.push(bytes);
        }
    }

    /// A small region from memory.
    fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<Region, NodeError> {
        let mut changes = Vec::new();
        for (number, piece) in bytes.chunks(CHUNK_SIZE).enumerate() {
            let mut chunk = Box::new([0; CHUNK_SIZE]);
            chunk[..piece.len()].copy_from_slice(piece);
            let hash = chunk_hash(&chunk[..]);
            changes.push((number as u32, hash));
            if !hash.is_zero() {
                self.keep(hash, chunk);
            }
        }
        self.region(name, bytes.len() as u64, None, "", &changes)
    }

    /// The written chunks of a disk.
    fn disk(&mut self, number: u16, disk: &FrozenDisk) -> Result<Vec<(u32, Hash)>, NodeError> {
        let written: Vec<u64> = disk.written().collect();
        let read = |at: usize| -> Result<(u64, Hash, Option<Box<Chunk>>), MountError> {
            let chunk = written[at];
            let bytes = disk.chunk(chunk)?;
            let partial = (!disk.is_whole(chunk)).then(|| Box::new(bytes));
            Ok((chunk, chunk_hash(&bytes), partial))
        };
        let mut changes = Vec::with_capacity(written.len());
        for read in on_all_cores(written.len(), read) {
            let (chunk, hash, partial) = read?;
            changes.push((chunk as u32, hash));
            match partial {
                _ if hash.is_zero() => {}
                Some(bytes) => self.keep(hash, bytes),
                None => {
                    let place = Place::Disk(number, chunk);
                    self.chunks.entry(hash).or_insert(place);
                }
            }
        }
        Ok(changes)
    }
}

/// Chunk number and hash of every page, in their order.
fn hash_pages(pages: &Pages) -> Vec<(u32, Hash)> {
    on_all_cores(pages.len(), |at| {
        let (chunk, page) = pages.nth(at);
        (chunk, chunk_hash(page))
    })
}

/// `work` for 0 to `count`, in parts on all cores; the results in their order.
fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let parts = count.div_ceil(HASH_AT_A_TIME);
    if cores.min(parts) <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<T>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..cores.min(parts) {
            scope.spawn(|| {
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
        }
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(part, _)| *part);
    done.into_iter().flat_map(|(_, results)| results).collect()
}

/// The live layers of a node. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Layers(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    layers: HashMap<Hash, Arc<Layer>>,
    /// Layers that went with the node that had them in memory.
    lost: HashSet<Hash>,
}

impl Layers {
    /// One of them.
    pub fn get(&self, id: &Hash) -> Option<Arc<Layer>> {
        self.0.read().layers.get(id).cloned()
    }

    /// Enters one.
    pub fn insert(&self, layer: Arc<Layer>) {
        self.0.write().layers.insert(layer.id, layer);
    }

    /// Forgets one: it is stored now, or nobody needs it.
    pub fn remove(&self, layer: &Arc<Layer>) {
        let mut known = self.0.write();
        // a machine that stood still between two forks has given both the same name
        let is_it = |known: &Arc<Layer>| Arc::ptr_eq(known, layer);
        if known.layers.get(&layer.id).is_some_and(is_it) {
            known.layers.remove(&layer.id);
        }
    }

    /// The images that they stand on.
    pub fn bases(&self) -> Vec<Hash> {
        let known = self.0.read();
        known
            .layers
            .values()
            .flat_map(|layer| layer.bases())
            .copied()
            .collect()
    }

    /// What stands on an image, in words.
    pub fn user_of(&self, id: &Hash) -> Option<String> {
        self.bases()
            .contains(id)
            .then(|| "a fork that is not stored yet".to_owned())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.read().layers.is_empty()
    }

    /// An image that was never stored: who asks for it waits, and gets nothing wrong.
    pub fn mark_lost(&self, id: Hash) {
        self.0.write().lost.insert(id);
    }

    /// Whether an image was lost.
    pub fn is_lost(&self, id: &Hash) -> bool {
        self.0.read().lost.contains(id)
    }

    /// The layer; `None` if the image is no live layer.
    fn find(&self, id: &Hash) -> Result<Option<Arc<Layer>>, SourceError> {
        match self.get(id) {
            None if self.is_lost(id) => Err(SourceError::Unreachable {
                at: "the forks of this node".into(),
                what: format!("image {}", id.short()),
                reason: "the node ended before the fork was stored".into(),
            }),
            layer => Ok(layer),
        }
    }
}

/// All images of this node: those in its repository, and forks that are not there yet.
pub(crate) struct Local {
    layers: Layers,
    directory: Directory,
}

impl Local {
    /// Live layers before the repository.
    pub fn new(layers: Layers, directory: Directory) -> Local {
        Local { layers, directory }
    }
}

impl Source for Local {
    fn describe(&self) -> String {
        self.directory.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        let known = name.parse().ok().map(|id| self.layers.find(&id));
        match known.transpose()?.flatten() {
            Some(layer) => Ok(layer.id),
            None => self.directory.resolve(name),
        }
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        match self.layers.find(id)? {
            Some(layer) => Ok(layer.manifest.clone()),
            None => self.directory.manifest(id),
        }
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        match self.layers.find(id)? {
            Some(_) => Ok(None),
            None => self.directory.layout(id),
        }
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let Some(layer) = self.layers.find(image)? else {
            return self.directory.read(image, wants, request, sink);
        };
        if wants.len() > READ_ITEMS_MAX {
            return Err(SourceError::Unsupported {
                at: self.describe(),
                reason: format!("{} items at once; ask for {READ_ITEMS_MAX}", wants.len()),
            });
        }
        layer.read(wants, request, sink)
    }
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

    #[test]
    fn a_lost_layer_is_waited_for_and_an_unknown_one_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let repository = floe_store::Repository::create(dir.path()).unwrap();
        let layers = Layers::default();
        let local = Local::new(layers.clone(), Directory::new(repository));
        let id = Hash::of(b"fork");
        let error = local.manifest(&id).unwrap_err();
        assert!(matches!(error, SourceError::Missing { .. }), "{error}");
        layers.mark_lost(id);
        let error = local.manifest(&id).unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}

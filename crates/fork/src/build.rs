//! Builds a [`Layer`] from what was captured in a fork's pause.

use super::{
    kept::Unfinished,
    layer::{Chunk, Layer, Names, Parent, Place, Whereabouts},
};
use floe_ground::error::NodeError;
use floe_image::{
    CHUNK_SIZE, Hash, Kind, MachineConfig, Manifest, Over, Region, Segment, chunk_hash, is_zero,
    memory_region,
};
use floe_inventory::inventory::record::Origin;
use floe_library::images::sources::Loads;
use floe_machine::{Capture, Pages, Rest};
use floe_mount::{FrozenDisk, FrozenLayers, MountError};
use floe_source::{Fetcher, SourceError};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most patches of a region in a fork's manifest: 9 KiB of its descriptor. Further changes are in new tables, which clones
/// fetch when they touch them.
const PATCHES_MAX: usize = 256;
/// How many chunks a thread hashes at a time: few enough that all cores finish together.
const HASH_AT_A_TIME: usize = 1024;

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
        let unfinished = Unfinished {
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

//! Rearranges packs: chunks that are used together are stored together, so that one range read gets them.
//!
//! ```text
//! segment tables │ clusters, in the order in which they are needed │ what nobody touched, in the order of the regions
//! ```
//!
//! Each of the three parts begins a pack. A cluster is stored in one pack if it fits, and in frames of its own if it is large
//! enough (`order`). Chunks of clusters are copied from whatever pack they are in. If such a pack is the image's own (no other
//! image lists it) it is removed, and what else it holds of the image is written after the clusters. Packs without such a chunk
//! stay as they are, and so do packs shared with other images: what is copied from those is stored twice, which
//! [`Optimized::shared_bytes`] reports.
//!
//! Neither the image's id nor its manifest changes. The new packs get their names, then one rename replaces the layout, and
//! only then are the old packs removed. A kill in between leaves a complete image, and at worst packs that nothing refers to.

mod order;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use floe_image::{
    CHUNKS_PER_SEGMENT, FRAME_MAX_CHUNKS, Hash, Kind, Layout, Manifest, PackRef, Region,
    compress_frame,
};
use rustix::fs::FlockOperation;

use super::packer::{LEVEL_DEFAULT, PACK_BYTES_MAX, Packer};
use super::publish::SEGMENTS_AT_ONCE;
use super::scope::Walk;
use super::{Repository, Scope};
use crate::StoreError;
use order::{Frame, frames};

/// How many chunks are read at once, so that old packs are read in runs: 16 MiB.
const CHUNKS_AT_ONCE: usize = 4096;
/// Compressed bytes of a cluster's frames that may wait for its end: as much as one range read gets.
const CLUSTER_BYTES_HELD: u64 = 4 << 20;

/// The result of [`Rearranged::publish`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Optimized {
    /// Clusters with at least one chunk that is in no cluster before them.
    pub clusters: u64,
    /// Chunks of all clusters, each counted once.
    pub chunks: u64,
    /// Packs that held the image.
    pub packs_before: u64,
    /// Bytes of these packs.
    pub bytes_before: u64,
    /// Packs that hold it now.
    pub packs_after: u64,
    /// Bytes of these packs.
    pub bytes_after: u64,
    /// Bytes of the packs that were written.
    pub written_bytes: u64,
    /// Bytes of the packs that were removed.
    pub freed_bytes: u64,
    /// Chunks of the clusters that also stay in packs of other images, and so are stored twice.
    pub shared_chunks: u64,
    /// About how many bytes these take in the new packs: their share of their frames' compressed bytes.
    pub shared_bytes: u64,
}

/// A step at which a test may interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The new packs are written, under temporary names.
    Written,
    /// The new packs have their names.
    Placed,
    /// The layout was replaced.
    Switched,
}

type Hook<'a> = &'a dyn Fn(Step) -> Result<(), StoreError>;

/// New packs of an image that readers don't see yet. If it is dropped, everything stays as it was.
pub struct Rearranged {
    repository: Repository,
    image: Hash,
    before: Layout,
    after: Layout,
    report: Optimized,
    published: bool,
}

impl Repository {
    /// Writes an image's packs anew, so that each cluster's chunks are side by side, clusters in the order given. Chunks in no
    /// cluster follow; hashes that the image doesn't have are ignored. Every byte is verified. Calls `progress(done, total)`
    /// with bytes of chunks and segments; if it returns false, stops with [`StoreError::Cancelled`].
    pub fn rearrange(
        &self,
        id: &Hash,
        clusters: &[Vec<Hash>],
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Rearranged, StoreError> {
        self.rearrange_with(id, clusters, progress, &|_| Ok(()))
    }

    fn rearrange_with(
        &self,
        id: &Hash,
        clusters: &[Vec<Hash>],
        progress: &mut dyn FnMut(u64, u64) -> bool,
        at: Hook<'_>,
    ) -> Result<Rearranged, StoreError> {
        let (manifest, before) = (self.manifest(id)?, self.layout(id)?);
        let scope = self.scope_of(&before)?;
        if let Some((pack, why)) = scope.broken().first() {
            return Err(StoreError::Invalid {
                what: format!(
                    "pack {} cannot be read: {why}; `floe image verify` tells what is lost, pull the image again",
                    pack.id
                ),
            });
        }
        let mut copy = Copy::new(self, &scope, &before, self.packs_of_others(id)?)?;
        let clusters = copy.choose(clusters)?;
        copy.total += scope.raw_bytes_of(|pack| copy.moved[pack as usize].is_some())?;
        copy.progress = Some(progress);
        copy.tables(&manifest)?;
        copy.clusters(&frames(&clusters))?;
        copy.rest(&manifest)?;
        let total = copy.total;
        if !copy.progress.as_mut().is_none_or(|tell| tell(total, total)) {
            return Err(StoreError::Cancelled);
        }
        let report = copy.report;
        let kept = copy.kept(&before);
        at(Step::Written)?;

        let mut rearranged = Rearranged {
            repository: self.clone(),
            image: *id,
            after: before.clone(),
            before,
            report,
            published: false,
        };
        let mut packs = copy.packer.finish()?;
        rearranged.after.packs.clone_from(&packs);
        rearranged.report.written_bytes = packs.iter().map(|pack| pack.file_bytes).sum();
        let fresh: HashSet<Hash> = packs.iter().map(|pack| pack.id).collect();
        let stays = kept.into_iter().filter(|pack| !fresh.contains(&pack.id));
        let (tables, rest) = self.tables_apart(stays)?;
        packs.splice(0..0, tables);
        packs.extend(rest);
        at(Step::Placed)?;
        rearranged.after = self.check_complete(&manifest, &Layout { packs })?;
        Ok(rearranged)
    }

    /// Returns the packs that hold only segment tables, and all others.
    fn tables_apart(
        &self,
        packs: impl Iterator<Item = PackRef>,
    ) -> Result<(Vec<PackRef>, Vec<PackRef>), StoreError> {
        let (mut tables, mut rest) = (Vec::new(), Vec::new());
        for pack in packs {
            let index = self.index(&pack)?;
            match index.frames().iter().all(|f| f.kind == Kind::Segment) {
                true => tables.push(pack),
                false => rest.push(pack),
            }
        }
        Ok((tables, rest))
    }

    /// Returns the packs that other images list.
    fn packs_of_others(&self, id: &Hash) -> Result<HashSet<Hash>, StoreError> {
        let mut packs = HashSet::new();
        for other in self.image_ids()?.iter().filter(|other| *other != id) {
            match self.layout(other) {
                Ok(layout) => packs.extend(layout.packs.iter().map(|pack| pack.id)),
                // Removed meanwhile.
                Err(StoreError::NotFound { .. }) if !self.contains(other)? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(packs)
    }

    /// Returns the hashes of some chunks of an image, in the order asked for: [`Hash::ZERO`] for zeros and for chunks that the
    /// image doesn't have. A chunk is given by its region's number in the manifest and its number in the region.
    pub fn chunk_hashes(&self, id: &Hash, chunks: &[(u8, u32)]) -> Result<Vec<Hash>, StoreError> {
        let manifest = self.manifest(id)?;
        self.with_scope(id, |scope| {
            let mut hashes = vec![Hash::ZERO; chunks.len()];
            let mut order: Vec<usize> = (0..chunks.len()).collect();
            order.sort_unstable_by_key(|i| chunks[*i]);
            let place = |i: usize| (chunks[i].0, chunks[i].1 as usize / CHUNKS_PER_SEGMENT);
            for of_segment in order.chunk_by(|a, b| place(*a) == place(*b)) {
                let (region, number) = place(of_segment[0]);
                let region = manifest.regions.get(usize::from(region));
                let Some(region) = region.filter(|r| number < r.segments.len()) else {
                    continue;
                };
                let table = scope.table(region, number)?;
                for i in of_segment {
                    hashes[*i] = table.get(chunks[*i].1 as usize % CHUNKS_PER_SEGMENT);
                }
            }
            Ok(hashes)
        })
    }
}

impl Rearranged {
    /// Returns what the result will be; the bytes that are freed are known only after [`Rearranged::publish`].
    pub fn report(&self) -> Optimized {
        let sum = |layout: &Layout| layout.packs.iter().map(|pack| pack.file_bytes).sum();
        Optimized {
            packs_before: self.before.packs.len() as u64,
            bytes_before: sum(&self.before),
            packs_after: self.after.packs.len() as u64,
            bytes_after: sum(&self.after),
            ..self.report
        }
    }

    /// Lets readers see the new packs, and removes the old ones that no image needs. Fails if the image was removed or
    /// rearranged meanwhile. A reader that has the old layout and finds a pack gone reads the layout again.
    pub fn publish(self) -> Result<Optimized, StoreError> {
        self.publish_with(&|_| Ok(()))
    }

    fn publish_with(mut self, at: Hook<'_>) -> Result<Optimized, StoreError> {
        let repository = self.repository.clone();
        let _lock = repository.lock(FlockOperation::LockExclusive)?;
        if repository.layout(&self.image)? != self.before {
            return Err(StoreError::Invalid {
                what: format!(
                    "image {} was laid out anew by somebody else meanwhile; nothing was changed, try again",
                    self.image.short()
                ),
            });
        }
        let path = repository.layout_path(&self.image);
        repository.write_file(&path, &self.after.encode())?;
        self.published = true;
        repository.forget_scope(&self.before);
        at(Step::Switched)?;
        let mut report = self.report();
        report.freed_bytes = repository.remove_unlisted(&self.before)?;
        Ok(report)
    }
}

impl Drop for Rearranged {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        // If this fails, `gc` will remove what stays.
        let locked = self.repository.lock(FlockOperation::LockExclusive);
        let removed = locked.and_then(|_lock| self.repository.remove_unlisted(&self.after));
        if let Err(error) = removed {
            tracing::warn!(image = self.image.short(), %error, "packs of an abandoned layout stay until the next gc");
        }
    }
}

impl Repository {
    /// Removes the packs of a layout that no image lists; returns the bytes freed. The caller must hold the lock exclusively.
    fn remove_unlisted(&self, layout: &Layout) -> Result<u64, StoreError> {
        let listed = self.listed_packs(&self.image_ids()?)?;
        let mut freed = 0;
        for pack in layout.packs.iter().filter(|p| !listed.contains(&p.id)) {
            let path = self.pack_path(&pack.id);
            match std::fs::remove_file(&path) {
                Ok(()) => freed += pack.file_bytes,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::io("remove", &path, e)),
            }
            self.inner.indices.lock().forget(&pack.id);
        }
        Ok(freed)
    }
}

/// The state while packs are copied.
struct Copy<'a> {
    scope: &'a Scope,
    packer: Packer,
    threads: usize,
    /// For each old pack whether other images list it too.
    shared: Vec<bool>,
    /// For each old pack that is to be removed, by frame: a bit for each item that was copied, or needs no copy.
    moved: Vec<Option<HashMap<u32, u16>>>,
    /// Chunks of the clusters, by hash.
    chosen: HashSet<Hash>,
    /// Chunks of the clusters that stay in shared packs too.
    twice: HashSet<Hash>,
    progress: Option<&'a mut dyn FnMut(u64, u64) -> bool>,
    done: u64,
    total: u64,
    report: Optimized,
}

impl<'a> Copy<'a> {
    fn new(
        repository: &Repository,
        scope: &'a Scope,
        layout: &Layout,
        others: HashSet<Hash>,
    ) -> Result<Copy<'a>, StoreError> {
        let shared: Vec<bool> = layout
            .packs
            .iter()
            .map(|p| others.contains(&p.id))
            .collect();
        Ok(Copy {
            scope,
            packer: Packer::new(repository.clone(), PACK_BYTES_MAX)?,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            moved: vec![None; shared.len()],
            shared,
            chosen: HashSet::new(),
            twice: HashSet::new(),
            progress: None,
            done: 0,
            total: 0,
            report: Optimized::default(),
        })
    }

    /// Returns the clusters without the chunks that the image doesn't have. Notes which packs will be removed.
    fn choose(&mut self, clusters: &[Vec<Hash>]) -> Result<Vec<Vec<Hash>>, StoreError> {
        let mut walk = Walk::default();
        let mut found = Vec::with_capacity(clusters.len());
        for cluster in clusters {
            let mut here = Vec::with_capacity(cluster.len());
            for hash in cluster.iter().filter(|hash| !hash.is_zero()) {
                if self.chosen.contains(hash) {
                    continue;
                }
                let Some(pack) = self.scope.pack_of(Kind::Chunk, hash, &mut walk)? else {
                    continue;
                };
                self.chosen.insert(*hash);
                here.push(*hash);
                if self.shared[pack as usize] {
                    self.twice.insert(*hash);
                    self.total += Kind::Chunk.raw_size() as u64;
                } else {
                    self.moved[pack as usize].get_or_insert_default();
                }
            }
            if !here.is_empty() {
                found.push(here);
            }
        }
        self.report.clusters = found.len() as u64;
        self.report.chunks = self.chosen.len() as u64;
        self.report.shared_chunks = self.twice.len() as u64;
        Ok(found)
    }

    /// Returns the old packs that stay.
    fn kept(&self, before: &Layout) -> Vec<PackRef> {
        let packs = before.packs.iter().zip(&self.moved);
        packs
            .filter(|(_, moved)| moved.is_none())
            .map(|(pack, _)| *pack)
            .collect()
    }

    /// Returns whether the item must be copied: true once for each item of a pack that is to be removed.
    fn must_move(&mut self, kind: Kind, hash: &Hash, walk: &mut Walk) -> Result<bool, StoreError> {
        let Some(place) = self.scope.place(kind, hash, 0, walk)? else {
            return Err(StoreError::Invalid {
                what: format!(
                    "{} {hash} is in no pack of the image; `floe image verify` tells what else is missing, pull the image again",
                    kind.name()
                ),
            });
        };
        let Some(frames) = &mut self.moved[place.entry.pack as usize] else {
            return Ok(false);
        };
        let (mask, bit) = (
            frames.entry(place.entry.frame).or_default(),
            1u16 << place.slot,
        );
        let first = *mask & bit == 0;
        *mask |= bit;
        Ok(first)
    }

    fn tell(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.done += bytes as u64;
        let (done, total) = (self.done.min(self.total), self.total);
        match &mut self.progress {
            Some(progress) => match progress(done, total) {
                true => Ok(()),
                false => Err(StoreError::Cancelled),
            },
            None => Ok(()),
        }
    }

    /// Copies the segment tables of packs that are to be removed: first, because no chunk is found without its table.
    fn tables(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        let mut walk = Walk::default();
        for region in &manifest.regions {
            for hashes in region.segments.chunks(SEGMENTS_AT_ONCE) {
                let mut wanted = Vec::new();
                for hash in hashes.iter().filter(|hash| !hash.is_zero()) {
                    if self.must_move(Kind::Segment, hash, &mut walk)? {
                        wanted.push(*hash);
                    }
                }
                let compressed = self.parallel(wanted.chunks(1), Kind::Segment)?;
                for (hash, bytes) in wanted.iter().zip(compressed) {
                    self.packer.frame(Kind::Segment, &[*hash], &bytes)?;
                }
                self.tell(wanted.len() * Kind::Segment.raw_size())?;
            }
        }
        self.packer.end_pack()
    }

    /// Writes the clusters' frames; a cluster that doesn't fit into the open pack begins the next one.
    fn clusters(&mut self, frames: &[Frame]) -> Result<(), StoreError> {
        let mut held: Vec<(&Frame, Vec<u8>)> = Vec::new();
        let mut held_bytes = 0;
        for part in frames.chunks(CHUNKS_AT_ONCE / FRAME_MAX_CHUNKS) {
            let compressed = self.parallel(part.iter().map(|f| &f.hashes[..]), Kind::Chunk)?;
            for (frame, bytes) in part.iter().zip(compressed) {
                if frame.begins_cluster || held_bytes >= CLUSTER_BYTES_HELD {
                    self.put(&mut held)?;
                    held_bytes = 0;
                }
                let twice = frame
                    .hashes
                    .iter()
                    .filter(|h| self.twice.contains(h))
                    .count();
                self.report.shared_bytes += (bytes.len() * twice / frame.hashes.len()) as u64;
                held_bytes += bytes.len() as u64;
                held.push((frame, bytes));
            }
            let chunks: usize = part.iter().map(|frame| frame.hashes.len()).sum();
            self.tell(chunks * Kind::Chunk.raw_size())?;
        }
        self.put(&mut held)?;
        self.packer.end_pack()
    }

    fn put(&self, held: &mut Vec<(&Frame, Vec<u8>)>) -> Result<(), StoreError> {
        let items = held.iter().map(|(frame, _)| frame.hashes.len()).sum();
        let bytes = held.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        self.packer.make_room(bytes, items)?;
        held.drain(..)
            .try_for_each(|(frame, bytes)| self.packer.frame(Kind::Chunk, &frame.hashes, &bytes))
    }

    /// Copies the chunks in no cluster from packs that are to be removed.
    fn rest(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        let mut walk = Walk::default();
        let mut waiting = Vec::new();
        for region in &manifest.regions {
            for number in 0..region.segments.len() {
                for hash in all_chunks(self.scope, region, number)? {
                    if !self.chosen.contains(&hash)
                        && self.must_move(Kind::Chunk, &hash, &mut walk)?
                    {
                        waiting.push(hash);
                    }
                }
                if waiting.len() >= CHUNKS_AT_ONCE {
                    let full = waiting.len() - waiting.len() % FRAME_MAX_CHUNKS;
                    self.rest_out(&mut waiting, 0..full)?;
                }
            }
        }
        let all = 0..waiting.len();
        self.rest_out(&mut waiting, all)
    }

    fn rest_out(&mut self, waiting: &mut Vec<Hash>, some: Range<usize>) -> Result<(), StoreError> {
        let hashes: Vec<Hash> = waiting.drain(some).collect();
        let frames = || hashes.chunks(FRAME_MAX_CHUNKS);
        let compressed = self.parallel(frames(), Kind::Chunk)?;
        for (frame, bytes) in frames().zip(compressed) {
            self.packer.frame(Kind::Chunk, frame, &bytes)?;
        }
        self.tell(hashes.len() * Kind::Chunk.raw_size())
    }

    /// Reads and verifies frames' items, and compresses them with all cores.
    fn parallel<'f>(
        &self,
        frames: impl Iterator<Item = &'f [Hash]>,
        kind: Kind,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let frames: Vec<&[Hash]> = frames.collect();
        let wants: Vec<(Kind, Hash)> = frames
            .iter()
            .flat_map(|f| f.iter().map(|h| (kind, *h)))
            .collect();
        let mut items: HashMap<Hash, Vec<u8>> = HashMap::with_capacity(wants.len());
        let missing = self.scope.read(&wants, &mut |_, hash, bytes| {
            items.insert(hash, bytes.to_vec());
        })?;
        if let Some((_, hash)) = missing.first() {
            return Err(StoreError::damaged(
                self.scope.dir(),
                format!("{} {hash} is in none of its packs", kind.name()),
            ));
        }
        let mut out = vec![Vec::new(); frames.len()];
        let share = frames.len().div_ceil(self.threads).max(1);
        floe_threads::scope(|threads| {
            for (frames, out) in frames.chunks(share).zip(out.chunks_mut(share)) {
                let items = &items;
                threads.spawn("optimize", move || {
                    for (frame, out) in frames.iter().zip(out) {
                        let bytes: Vec<&[u8]> = frame
                            .iter()
                            .filter_map(|hash| items.get(hash))
                            .map(Vec::as_slice)
                            .collect();
                        *out = compress_frame(kind, &bytes, LEVEL_DEFAULT);
                    }
                });
            }
        });
        Ok(out)
    }
}

/// Returns all chunks that a segment and its patches name: a segment's chunks are all stored with it, even patched ones.
fn all_chunks(scope: &Scope, region: &Region, number: usize) -> Result<Vec<Hash>, StoreError> {
    let stored = scope.segment(&region.segments[number])?;
    let patches = region.patches_of(number).iter().map(|patch| patch.hash);
    let all = stored.hashes().iter().copied().chain(patches);
    Ok(all.filter(|hash| !hash.is_zero()).collect())
}

#[cfg(test)]
mod tests;

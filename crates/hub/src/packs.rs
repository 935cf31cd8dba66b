//! The packs on the hub's disk, and their indices and frames in memory.
//!
//! A [`Scope`] is a set of packs that may be read together: those of one holding, or those that an upload may build
//! on. All reads go through a scope, so that nobody can get a private image's chunks by asking another image for
//! them. All scopes share the frame cache, whose key is pack and frame, never a chunk's hash.
//!
//! Memory for each indexed item: 36 bytes in the pack's index (shared between scopes) and 16 in the scope.

use super::HubError;
use super::visible::VisibleImage;
use floe_image::{
    FormatError, FrameInfo, Hash, Kind, Location, PACK_FOOTER_BYTES, PACK_HEADER_BYTES, PackIndex,
    PackRef, check_pack_header, decompress_frame,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Shards of the frame cache: enough that two cores rarely compete for one.
const SHARDS: usize = 16;
/// Memory that a cached frame takes besides its bytes.
const FRAME_OVERHEAD_BYTES: u64 = 160;

/// A pack whose index is in memory. Its file is opened for each read: thousands of open packs would use up the
/// descriptors, and a read that needs the file waits for the disk anyway.
pub(crate) struct Pack {
    /// Identifies the pack in the frame cache.
    number: u32,
    pub reference: PackRef,
    pub index: PackIndex,
    path: PathBuf,
}

impl Pack {
    /// Reads a frame's bytes from the file, as they are stored.
    fn read(&self, file: &File, info: &FrameInfo) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; info.len as usize];
        file.read_exact_at(&mut bytes, info.offset)?;
        Ok(bytes)
    }

    pub fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }
}

/// A frame in memory: compressed as it is sent, and also raw once a part of it was needed.
pub(crate) struct Frame {
    pub info: FrameInfo,
    pub compressed: Vec<u8>,
    raw: OnceLock<Vec<u8>>,
}

impl Frame {
    /// Returns the unpacked items, one after the other.
    pub fn raw(&self) -> Result<&[u8], FormatError> {
        if let Some(raw) = self.raw.get() {
            return Ok(raw);
        }
        let raw = decompress_frame(self.info.kind, &self.compressed, self.info.items.into())?;
        Ok(self.raw.get_or_init(|| raw))
    }

    /// Returns the unpacked item at `slot`.
    pub fn item(&self, slot: u16) -> Result<&[u8], FormatError> {
        let size = self.info.kind.raw_size();
        let at = usize::from(slot) * size;
        Ok(&self.raw()?[at..at + size])
    }

    /// Checks that every item matches its hash, as disks can corrupt data. The unpacked items are kept, so unpacking
    /// is not wasted.
    fn check(&self, hashes: &[Hash]) -> Result<(), FormatError> {
        let items = self.raw()?.chunks_exact(self.info.kind.raw_size());
        for (item, hash) in items.zip(hashes) {
            self.info.kind.verify(hash, item)?;
        }
        Ok(())
    }

    /// Returns what the frame counts in the cache, in bytes: always with its raw bytes, so that the budget holds when
    /// they are unpacked.
    fn cost(&self) -> u64 {
        let raw = usize::from(self.info.items) * self.info.kind.raw_size();
        (self.compressed.len() + raw) as u64 + FRAME_OVERHEAD_BYTES
    }
}

/// The place of an item in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Position of the pack in the scope.
    pub pack: u32,
    pub at: Location,
}

/// A set of packs that may be read together. If several packs have an item, the first one is read.
pub(crate) struct Scope {
    pub packs: Vec<Arc<Pack>>,
    /// First eight bytes of each hash, and the position of the pack that has it; sorted.
    items: Vec<(u64, u32)>,
}

impl Scope {
    pub fn new(packs: Vec<Arc<Pack>>) -> Scope {
        let mut items: Vec<(u64, u32)> = packs
            .iter()
            .enumerate()
            .flat_map(|(i, pack)| {
                pack.index
                    .hashes()
                    .iter()
                    .map(move |hash| (prefix(hash), i as u32))
            })
            .collect();
        items.sort_unstable();
        items.dedup();
        Scope { packs, items }
    }

    /// Returns the number of items in all packs.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the item's place, if the scope has it and it is of this kind.
    pub fn find(&self, kind: Kind, hash: &Hash) -> Option<Place> {
        let wanted = prefix(hash);
        let from = self.items.partition_point(|(prefix, _)| *prefix < wanted);
        self.items[from..]
            .iter()
            .take_while(|(prefix, _)| *prefix == wanted)
            .find_map(|&(_, pack)| {
                let index = &self.packs[pack as usize].index;
                let at = index.lookup(hash)?;
                let found = index.frame(at.frame)?.kind;
                (found == kind).then_some(Place { pack, at })
            })
    }
}

fn prefix(hash: &Hash) -> u64 {
    let bytes = hash.as_bytes();
    u64::from_be_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ])
}

/// Frames in memory, by pack number and frame number. Eviction gives a second chance, so that a hit writes nothing but
/// one flag.
struct FrameCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_budget: u64,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Shard {
    frames: HashMap<(u32, u32), (Arc<Frame>, bool)>,
    ring: VecDeque<(u32, u32)>,
    bytes: u64,
}

impl FrameCache {
    fn new(budget: u64) -> Self {
        FrameCache {
            shards: Default::default(),
            shard_budget: budget / SHARDS as u64,
            bytes: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: (u32, u32)) -> &Mutex<Shard> {
        &self.shards[(key.0.wrapping_mul(31).wrapping_add(key.1)) as usize % SHARDS]
    }

    fn get(&self, key: (u32, u32)) -> Option<Arc<Frame>> {
        let mut shard = self.shard(key).lock();
        let (frame, used) = shard.frames.get_mut(&key)?;
        *used = true;
        Some(frame.clone())
    }

    fn put(&self, key: (u32, u32), frame: Arc<Frame>) {
        let cost = frame.cost();
        if cost > self.shard_budget {
            return;
        }
        let mut shard = self.shard(key).lock();
        if shard.frames.contains_key(&key) {
            return;
        }
        let before = shard.bytes;
        while shard.bytes + cost > self.shard_budget {
            let Some(oldest) = shard.ring.pop_front() else {
                break;
            };
            let Some((_, used)) = shard.frames.get_mut(&oldest) else {
                continue;
            };
            if std::mem::take(used) {
                shard.ring.push_back(oldest);
            } else if let Some((evicted, _)) = shard.frames.remove(&oldest) {
                shard.bytes -= evicted.cost();
            }
        }
        shard.bytes += cost;
        shard.ring.push_back(key);
        shard.frames.insert(key, (frame, false));
        let after = shard.bytes;
        drop(shard);
        let all = self
            .bytes
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        metrics::gauge!(floe_front::telemetry::HUB_CACHE_BYTES)
            .set(all.wrapping_add(after.wrapping_sub(before)) as f64);
    }
}

/// Scopes of holdings that were read lately.
#[derive(Default)]
struct Scopes {
    by_holding: HashMap<(Hash, Arc<str>), (Arc<Scope>, u64)>,
    tick: u64,
    items: usize,
}

/// The packs and their cache: see the module's documentation.
pub(crate) struct Packs {
    folder: PathBuf,
    frames: FrameCache,
    scopes: Mutex<Scopes>,
    index_items_max: usize,
    packs: Mutex<HashMap<Hash, Weak<Pack>>>,
    /// Packs whose files were found damaged.
    damaged: RwLock<HashSet<Hash>>,
    next_number: AtomicU32,
    /// Held while a scope is loaded, so that a hundred hosts that start the same image load it once.
    pub loading: Mutex<()>,
}

impl Packs {
    /// Uses the packs below `folder` (`xx/<id>.pack`).
    pub fn new(folder: PathBuf, cache_bytes: u64, index_items_max: usize) -> Packs {
        Packs {
            folder,
            frames: FrameCache::new(cache_bytes),
            scopes: Mutex::default(),
            index_items_max,
            packs: Mutex::default(),
            damaged: RwLock::default(),
            next_number: AtomicU32::new(0),
            loading: Mutex::new(()),
        }
    }

    /// Returns the path of a published pack.
    pub fn pack_path(&self, id: &Hash) -> PathBuf {
        let name = id.to_string();
        self.folder.join(&name[..2]).join(format!("{name}.pack"))
    }

    /// Returns the pack with its index in memory; reads the index from `path` unless it is in memory already.
    pub fn pack(&self, reference: &PackRef, path: PathBuf) -> Result<Arc<Pack>, HubError> {
        if let Some(pack) = self.packs.lock().get(&reference.id).and_then(Weak::upgrade)
            && pack.path == path
        {
            return Ok(pack);
        }
        let index = read_index(reference, &path).map_err(HubError::file("cannot read", &path))?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let pack = Arc::new(Pack {
            number,
            reference: *reference,
            index,
            path,
        });
        let mut packs = self.packs.lock();
        packs.retain(|_, pack| pack.strong_count() > 0);
        packs.insert(reference.id, Arc::downgrade(&pack));
        Ok(pack)
    }

    /// Returns whether a pack was found damaged.
    pub fn is_damaged(&self, pack: &Hash) -> bool {
        self.damaged.read().contains(pack)
    }

    /// Records that a pack is damaged. Returns whether this was not known.
    pub fn mark_damaged(&self, pack: &Hash) -> bool {
        self.damaged.write().insert(*pack)
    }

    /// Records that a damaged pack was replaced.
    pub fn forget_damage(&self, pack: &Hash) {
        self.damaged.write().remove(pack);
    }

    /// Returns the scope of an image, if it is in memory.
    pub fn scope(&self, image: &VisibleImage) -> Option<Arc<Scope>> {
        let mut scopes = self.scopes.lock();
        scopes.tick += 1;
        let tick = scopes.tick;
        let key = (*image.id(), image.owner().clone());
        let (scope, used) = scopes.by_holding.get_mut(&key)?;
        *used = tick;
        Some(scope.clone())
    }

    /// Keeps the scope of an image; drops those that were not read for the longest time.
    pub fn keep_scope(&self, image: &VisibleImage, scope: Arc<Scope>) {
        let key = (*image.id(), image.owner().clone());
        let mut scopes = self.scopes.lock();
        scopes.tick += 1;
        let tick = scopes.tick;
        while scopes.items + scope.len() > self.index_items_max {
            let Some(oldest) = scopes
                .by_holding
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(key, _)| key.clone())
            else {
                break;
            };
            forget(&mut scopes, &oldest);
        }
        forget(&mut scopes, &key);
        scopes.items += scope.len();
        scopes.by_holding.insert(key, (scope, tick));
    }

    /// Drops the scope of a holding that has changed.
    pub fn forget_scope(&self, id: &Hash, owner: &str) {
        forget(&mut self.scopes.lock(), &(*id, owner.into()));
    }

    /// Returns a frame if it is in memory.
    pub fn cached(&self, pack: &Pack, frame: u32) -> Option<Arc<Frame>> {
        self.frames.get((pack.number, frame))
    }

    /// Returns a frame from memory or disk, checked. `file` is the pack's, opened when first needed and kept for the
    /// next frame.
    pub fn frame(
        &self,
        pack: &Pack,
        frame: u32,
        file: &mut Option<File>,
    ) -> io::Result<Arc<Frame>> {
        if let Some(frame) = self.cached(pack, frame) {
            return Ok(frame);
        }
        let frame_data = Arc::new(self.frame_uncached(pack, frame, file)?);
        frame_data
            .check(pack.index.frame_hashes(frame))
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.frames.put((pack.number, frame), frame_data.clone());
        Ok(frame_data)
    }

    /// Reads a frame from disk without caching it: the walk of a commit must not evict what guests are reading.
    pub fn frame_uncached(
        &self,
        pack: &Pack,
        frame: u32,
        file: &mut Option<File>,
    ) -> io::Result<Frame> {
        let info = pack
            .index
            .frame(frame)
            .ok_or_else(|| io::Error::other("no such frame in the pack"))?;
        let file = match file {
            Some(file) => file,
            None => file.insert(pack.open()?),
        };
        let compressed = pack.read(file, &info)?;
        Ok(Frame {
            info,
            compressed,
            raw: OnceLock::new(),
        })
    }
}

fn forget(scopes: &mut Scopes, key: &(Hash, Arc<str>)) {
    if let Some((scope, _)) = scopes.by_holding.remove(key) {
        scopes.items -= scope.len();
    }
}

fn read_index(reference: &PackRef, path: &Path) -> io::Result<PackIndex> {
    let file = File::open(path)?;
    let mut bytes = vec![0; reference.index_bytes as usize];
    file.read_exact_at(&mut bytes, reference.index_offset)?;
    PackIndex::decode(&bytes, reference).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Checks a whole pack in memory: header, footer, index, and that every item of every frame matches its hash. Uses memory
/// beyond `bytes` only for the index and one unpacked frame, whatever the pack claims.
pub fn verify_pack(bytes: &[u8], id: &Hash) -> Result<PackRef, FormatError> {
    let truncated = |need: u64| FormatError::Truncated {
        what: "pack",
        at: 0,
        need,
        have: bytes.len() as u64,
    };
    let (header, footer) = (PACK_HEADER_BYTES as usize, PACK_FOOTER_BYTES as usize);
    if bytes.len() < header + footer {
        return Err(truncated((header + footer) as u64));
    }
    check_pack_header(&bytes[..header])?;
    let reference = PackRef::from_footer(&bytes[bytes.len() - footer..], bytes.len() as u64)?;
    if reference.id != *id {
        return Err(FormatError::Mismatch {
            what: "pack",
            expected: *id,
            found: reference.id,
        });
    }
    let at = reference.index_offset as usize;
    let index = bytes
        .get(at..at + reference.index_bytes as usize)
        .ok_or_else(|| truncated(reference.file_bytes))?;
    let index = PackIndex::decode(index, &reference)?;
    let mut raw = Vec::new();
    for (i, frame) in index.frames().iter().enumerate() {
        let at = frame.offset as usize;
        let packed = bytes
            .get(at..at + frame.len as usize)
            .ok_or_else(|| truncated(frame.offset + u64::from(frame.len)))?;
        floe_image::decompress_frame_into(frame.kind, packed, frame.items.into(), &mut raw)?;
        let items = raw.chunks_exact(frame.kind.raw_size());
        for (item, hash) in items.zip(index.frame_hashes(i as u32)) {
            frame.kind.verify(hash, item)?;
        }
    }
    Ok(reference)
}

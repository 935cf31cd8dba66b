//! Where a push takes an image from: this host's disk, or any other place.

use super::plan::{Contents, Item, raw_bytes};
use super::{Cancel, TransferError, check, passes, retry};
use floe_image::{Hash, Kind, Manifest, PackRef, PackWriter, Region, Segment, compress_frame};
use floe_source::{Purpose, Request, Source};
use floe_store::{Repository, Scope};
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

/// zstd level of frames that are packed anew.
const LEVEL: i32 = 3;
/// How many items one read of another place asks for, at most 1 MiB of chunks.
const ITEMS_AT_A_TIME: usize = 256;
/// How long one read may take: 8 MiB at 500 kbit/s.
const READ_DEADLINE: Duration = Duration::from_secs(150);

/// Where a push takes an image from.
#[derive(Clone, Copy)]
pub enum Stock<'a> {
    /// A repository on this host, whose packs are sent as they are where that is right.
    Repository(&'a Repository),
    /// Any place. What is sent on is read from there as the push comes to it; a pack for each connection is in memory, and nothing on
    /// the disk.
    Source(&'a dyn Source),
}

/// Items of an image, each once, in the order of its regions.
pub(super) struct Content {
    /// Segments with their chunks.
    pub segments: Vec<(Hash, Vec<Hash>)>,
    /// Chunks that the manifest refers to directly, beside the segments.
    pub patched: Vec<Hash>,
    pub chunks: u64,
    pub raw_bytes: u64,
}

impl Content {
    /// Returns everything, chunks before segments.
    pub fn items(&self) -> impl Iterator<Item = Item> + '_ {
        let below = self.segments.iter().flat_map(|(_, chunks)| chunks);
        let chunks = below.chain(&self.patched).map(|hash| (Kind::Chunk, *hash));
        chunks.chain(self.segments.iter().map(|(id, _)| (Kind::Segment, *id)))
    }
}

/// One image of a stock.
pub(super) struct Goods<'a> {
    stock: Stock<'a>,
    pub image: Hash,
    pub manifest: Manifest,
    /// Its packs, best first; none if the stock has no packs on this host.
    pub packs: Vec<PackRef>,
    scope: Option<Scope>,
    cancel: Cancel,
}

impl<'a> Goods<'a> {
    pub fn open(stock: Stock<'a>, image: &Hash, cancel: &Cancel) -> Result<Self, TransferError> {
        let (manifest, packs, scope) = match stock {
            Stock::Repository(repository) => {
                let layout = repository.layout(image)?;
                let scope = repository.scope_of(&layout)?;
                (repository.manifest(image)?, layout.packs, Some(scope))
            }
            Stock::Source(source) => {
                let manifest = retry(cancel, passes, || Ok(source.manifest(image)?))?;
                (manifest, Vec::new(), None)
            }
        };
        Ok(Goods {
            stock,
            image: *image,
            manifest,
            packs,
            scope,
            cancel: cancel.clone(),
        })
    }

    /// Reads the image's tables.
    pub fn content(&self) -> Result<Content, TransferError> {
        let mut content = Content {
            segments: Vec::new(),
            patched: Vec::new(),
            chunks: 0,
            raw_bytes: 0,
        };
        let mut seen = HashSet::new();
        let ids = self
            .manifest
            .regions
            .iter()
            .flat_map(|region| &region.segments);
        let ids = ids.copied().filter(|id| !id.is_zero() && seen.insert(*id));
        let ids: Vec<Item> = ids.map(|id| (Kind::Segment, id)).collect();
        let mut seen_chunks = HashSet::new();
        for part in ids.chunks(ITEMS_AT_A_TIME / 8) {
            let mut tables: HashMap<Hash, Vec<u8>> = HashMap::new();
            self.read(part, &mut |_, id, bytes| {
                tables.insert(id, bytes.to_vec());
            })?;
            for (_, id) in part {
                let bytes = tables.remove(id).unwrap_or_default();
                let segment = Segment::decode(&bytes).map_err(|e| {
                    TransferError::Options(format!("segment {id} cannot be read: {e}"))
                })?;
                let fresh = |hash: &Hash| !hash.is_zero() && seen_chunks.insert(*hash);
                let chunks: Vec<Hash> = segment.hashes().iter().copied().filter(fresh).collect();
                content.chunks += chunks.len() as u64;
                content.raw_bytes +=
                    chunks.len() as u64 * raw_bytes(Kind::Chunk) + raw_bytes(Kind::Segment);
                content.segments.push((*id, chunks));
            }
        }
        let patched = self
            .manifest
            .regions
            .iter()
            .flat_map(Region::patched_chunks);
        content.patched = patched.filter(|hash| seen_chunks.insert(*hash)).collect();
        content.chunks += content.patched.len() as u64;
        content.raw_bytes += content.patched.len() as u64 * raw_bytes(Kind::Chunk);
        Ok(content)
    }

    /// Returns the packs on this host that can be read, with their items.
    pub fn contents(&self) -> impl Iterator<Item = Contents> + '_ {
        self.packs.iter().filter_map(|pack| {
            let Stock::Repository(repository) = self.stock else {
                return None;
            };
            match repository.pack_items(pack) {
                Ok(items) => Some(Contents { pack: *pack, items }),
                // items are then read one by one, and what is damaged is reported there
                Err(error) => {
                    tracing::debug!(pack = %pack.id, %error, "cannot send a pack as it is");
                    None
                }
            }
        })
    }

    /// Returns the bytes of a pack on this host.
    pub fn pack_bytes(&self, pack: &PackRef) -> Result<Vec<u8>, TransferError> {
        let Stock::Repository(repository) = self.stock else {
            let what = format!("pack {} is not on this host", pack.id);
            return Err(TransferError::Options(what));
        };
        let path = repository.pack_path(&pack.id);
        std::fs::read(&path).map_err(|e| {
            let at = path.display();
            TransferError::Options(format!("cannot read {at}: {e}; check the repository"))
        })
    }

    /// Reads items, each of which reaches `sink` once, verified.
    fn read(
        &self,
        items: &[Item],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
    ) -> Result<(), TransferError> {
        check(&self.cancel)?;
        match (self.stock, &self.scope) {
            (Stock::Repository(_), Some(scope)) => match scope.read(items, sink)?.first() {
                None => Ok(()),
                Some((kind, hash)) => Err(TransferError::Options(format!(
                    "{} {hash} is missing in this repository; run `floe image verify`",
                    kind.name()
                ))),
            },
            (Stock::Repository(_), None) => unreachable!("a repository is opened with its scope"),
            (Stock::Source(source), _) => {
                let request = Request::of(Purpose::Settle, READ_DEADLINE);
                let mut wants: Vec<Item> = items.to_vec();
                let mut open: HashSet<Hash> = items.iter().map(|(_, hash)| *hash).collect();
                retry(&self.cancel, passes, || {
                    wants.retain(|(_, hash)| open.contains(hash));
                    if wants.is_empty() {
                        return Ok(());
                    }
                    // the source may send neighbours, too
                    let mut each = |kind, hash, bytes: &[u8]| {
                        if open.remove(&hash) {
                            sink(kind, hash, bytes);
                        }
                    };
                    Ok(source.read(&self.image, &wants, &request, &mut each)?)
                })
            }
        }
    }

    /// Packs items anew. Neighbours in the old packs stay neighbours, so a frame holds data that was used together.
    pub fn pack(&self, items: &[Item]) -> Result<(PackRef, Vec<u8>), TransferError> {
        let in_memory = |e: io::Error| TransferError::Options(format!("cannot pack: {e}"));
        let mut writer = PackWriter::new(Vec::new()).map_err(in_memory)?;
        let mut group: Vec<(Hash, Vec<u8>)> = Vec::new();
        let mut result = Ok(());
        let mut flush = |kind: Kind,
                         group: &mut Vec<(Hash, Vec<u8>)>,
                         result: &mut io::Result<()>| {
            if result.is_ok() && !group.is_empty() {
                let (hashes, bytes): (Vec<Hash>, Vec<&[u8]>) =
                    group.iter().map(|(hash, bytes)| (*hash, &**bytes)).unzip();
                *result = writer.push_frame(kind, &hashes, &compress_frame(kind, &bytes, LEVEL));
            }
            group.clear();
        };
        let mut each = |kind, hash, bytes: &[u8]| match kind {
            Kind::Chunk => {
                group.push((hash, bytes.to_vec()));
                if group.len() == kind.frame_items_max() {
                    flush(kind, &mut group, &mut result);
                }
            }
            Kind::Segment => flush(kind, &mut vec![(hash, bytes.to_vec())], &mut result),
        };
        let at_a_time = match self.stock {
            Stock::Repository(_) => items.len().max(1),
            Stock::Source(_) => ITEMS_AT_A_TIME,
        };
        for part in items.chunks(at_a_time) {
            self.read(part, &mut each)?;
        }
        flush(Kind::Chunk, &mut group, &mut result);
        result.map_err(in_memory)?;
        let (bytes, pack) = writer.finish().map_err(in_memory)?;
        Ok((pack, bytes))
    }
}

//! Reads items by hash from the packs of one image.
//!
//! A scope holds 16 bytes for each item of its packs (0.4 % of their raw size): the first eight bytes of the hash, the pack and
//! the frame, sorted. The packs' full indices are loaded and dropped as needed. Searching each pack's index in turn would need
//! no memory, but a look-up in an image of 200 packs would cost 200 times as much.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use floe_image::{
    FrameInfo, Hash, Kind, Layout, PackIndex, PackRef, Region, Segment, decompress_frame_into,
};

use super::Repository;
use crate::StoreError;

/// Most compressed bytes that are read at once when wanted frames are neighbours.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Most unwanted bytes between two wanted frames that are read too: that costs less than another call.
const GAP_BYTES_MAX: u64 = 64 * 1024;

/// One image's packs, opened for reading items by hash. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<Inner>,
}

struct Inner {
    repository: Repository,
    packs: Vec<PackRef>,
    entries: Vec<Entry>,
    /// Packs that could not be opened, and why.
    broken: Vec<(PackRef, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    prefix: u64,
    pub pack: u32,
    pub frame: u32,
}

/// Returns the first eight bytes of a hash.
pub(super) fn prefix(hash: &Hash) -> u64 {
    let b = hash.as_bytes();
    u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// A wanted item at one of its places.
pub(super) struct Piece {
    pub entry: Entry,
    info: FrameInfo,
    pub slot: usize,
    kind: Kind,
    hash: Hash,
}

/// Where a frame is, as a range read needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FramePlace {
    /// Number of the pack in the layout.
    pub pack: u32,
    /// Offset in the pack, bytes.
    pub offset: u64,
    /// Its compressed length in bytes.
    pub len: u32,
}

/// The pack used last, so that a walk in the order of addresses looks an index up only once a pack.
#[derive(Default)]
pub(crate) struct Walk {
    last: Option<(u32, Arc<PackIndex>)>,
}

impl Scope {
    pub(super) fn new(repository: Repository, layout: &Layout) -> Result<Scope, StoreError> {
        let mut entries = Vec::new();
        let mut broken = Vec::new();
        for (number, pack) in layout.packs.iter().enumerate() {
            match repository.index(pack) {
                Ok(index) => {
                    for frame in 0..index.frame_count() {
                        let hashes = index.frame_hashes(frame).iter();
                        entries.extend(hashes.map(|hash| Entry {
                            prefix: prefix(hash),
                            pack: number as u32,
                            frame,
                        }));
                    }
                }
                Err(error) => broken.push((*pack, error.to_string())),
            }
        }
        entries.sort_unstable();
        entries.shrink_to_fit();
        Ok(Scope {
            inner: Arc::new(Inner {
                repository,
                packs: layout.packs.clone(),
                entries,
                broken,
            }),
        })
    }

    /// Returns whether every pack could be opened.
    pub(super) fn is_sound(&self) -> bool {
        self.inner.broken.is_empty()
    }

    /// Returns the packs that could not be opened, and why.
    pub(super) fn broken(&self) -> &[(PackRef, String)] {
        &self.inner.broken
    }

    fn candidates(&self, hash: &Hash) -> &[Entry] {
        let prefix = prefix(hash);
        let entries = &self.inner.entries;
        let from = entries.partition_point(|e| e.prefix < prefix);
        let len = entries[from..]
            .iter()
            .take_while(|e| e.prefix == prefix)
            .count();
        &entries[from..from + len]
    }

    fn index(&self, number: u32, walk: &mut Walk) -> Result<Arc<PackIndex>, StoreError> {
        if let Some((last, index)) = &walk.last
            && *last == number
        {
            return Ok(index.clone());
        }
        let index = self
            .inner
            .repository
            .index(&self.inner.packs[number as usize])?;
        walk.last = Some((number, index.clone()));
        Ok(index)
    }

    /// Returns a place of an item, after skipping `skip` others; `None` if it has no more.
    pub(super) fn place(
        &self,
        kind: Kind,
        hash: &Hash,
        skip: usize,
        walk: &mut Walk,
    ) -> Result<Option<Piece>, StoreError> {
        let mut skipped = 0;
        for entry in self.candidates(hash) {
            let index = self.index(entry.pack, walk)?;
            let Some(info) = index.frame(entry.frame).filter(|info| info.kind == kind) else {
                continue;
            };
            let Some(slot) = index
                .frame_hashes(entry.frame)
                .iter()
                .position(|h| h == hash)
            else {
                continue;
            };
            if skipped == skip {
                return Ok(Some(Piece {
                    entry: *entry,
                    info,
                    slot,
                    kind,
                    hash: *hash,
                }));
            }
            skipped += 1;
        }
        Ok(None)
    }

    /// Returns the number of a pack that holds an item; `None` if none does.
    pub(crate) fn pack_of(
        &self,
        kind: Kind,
        hash: &Hash,
        walk: &mut Walk,
    ) -> Result<Option<u32>, StoreError> {
        Ok(self
            .place(kind, hash, 0, walk)?
            .map(|piece| piece.entry.pack))
    }

    /// Returns the repository's directory, for messages.
    pub(super) fn dir(&self) -> &std::path::Path {
        self.inner.repository.dir()
    }

    /// Returns how many bytes the items of some packs have, unpacked.
    pub(super) fn raw_bytes_of(&self, packs: impl Fn(u32) -> bool) -> Result<u64, StoreError> {
        let mut bytes = 0;
        let all = (0u32..).zip(&self.inner.packs);
        for (_, pack) in all.filter(|(number, _)| packs(*number)) {
            let index = self.inner.repository.index(pack)?;
            let sizes = index.frames().iter();
            bytes += sizes
                .map(|f| u64::from(f.items) * f.kind.raw_size() as u64)
                .sum::<u64>();
        }
        Ok(bytes)
    }

    /// Returns the frames that hold these items, each once, ordered by pack and place. Items in no pack are ignored.
    pub fn frames_of(&self, items: &[(Kind, Hash)]) -> Result<Vec<FramePlace>, StoreError> {
        let mut walk = Walk::default();
        let mut places = Vec::new();
        for (kind, hash) in items.iter().filter(|(_, hash)| !hash.is_zero()) {
            if let Some(piece) = self.place(*kind, hash, 0, &mut walk)? {
                places.push(FramePlace {
                    pack: piece.entry.pack,
                    offset: piece.info.offset,
                    len: piece.info.len,
                });
            }
        }
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    /// Returns for each item whether the packs hold it (always true for zero items).
    pub fn has(&self, items: &[(Kind, Hash)]) -> Result<Vec<bool>, StoreError> {
        let mut walk = Walk::default();
        items
            .iter()
            .map(|(kind, hash)| {
                Ok(hash.is_zero() || self.pack_of(*kind, hash, &mut walk)?.is_some())
            })
            .collect()
    }

    /// Reads items. `sink` gets each item once, verified, in the order of the packs; zero items are skipped. Returns the items
    /// that are in none of the packs. A damaged item is read from another pack that has it; if there is none, that is an error,
    /// returned after all others were delivered.
    pub fn read(
        &self,
        wants: &[(Kind, Hash)],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
    ) -> Result<Vec<(Kind, Hash)>, StoreError> {
        let mut wants: Vec<(Kind, Hash)> = wants
            .iter()
            .filter(|(_, hash)| !hash.is_zero())
            .copied()
            .collect();
        wants.sort_unstable();
        wants.dedup();
        let mut walk = Walk::default();
        let mut missing = Vec::new();
        let mut damage = None;
        let mut attempt = 0;
        while !wants.is_empty() {
            let mut pieces = Vec::with_capacity(wants.len());
            for (kind, hash) in &wants {
                match self.place(*kind, hash, attempt, &mut walk)? {
                    Some(piece) => pieces.push(piece),
                    None if attempt == 0 => missing.push((*kind, *hash)),
                    None => return Err(damage.unwrap_or_else(|| self.lost(kind, hash))),
                }
            }
            pieces.sort_unstable_by_key(|p| (p.entry.pack, p.entry.frame, p.slot));
            wants.clear();
            for of_pack in pieces.chunk_by(|a, b| a.entry.pack == b.entry.pack) {
                if let Err(error) = self.read_pack(of_pack, sink, &mut wants) {
                    damage = Some(error);
                }
            }
            attempt += 1;
        }
        match (missing.is_empty(), self.inner.broken.first()) {
            (false, Some((pack, why))) => Err(StoreError::damaged(
                self.inner.repository.pack_path(&pack.id),
                format!("{} items may be in it: {why}", missing.len()),
            )),
            _ => Ok(missing),
        }
    }

    fn lost(&self, kind: &Kind, hash: &Hash) -> StoreError {
        let why = format!(
            "{} {hash} is damaged in every pack that holds it",
            kind.name()
        );
        StoreError::damaged(self.inner.repository.dir(), why)
    }

    /// Reads pieces of one pack; those that fail are added to `failed`, and the error is the last reason.
    fn read_pack(
        &self,
        pieces: &[Piece],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
        failed: &mut Vec<(Kind, Hash)>,
    ) -> Result<(), StoreError> {
        let path = self
            .inner
            .repository
            .pack_path(&self.inner.packs[pieces[0].entry.pack as usize].id);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) => {
                failed.extend(pieces.iter().map(|p| (p.kind, p.hash)));
                return Err(StoreError::io("open", &path, e));
            }
        };
        let mut result = Ok(());
        let (mut bytes, mut raw) = (Vec::new(), Vec::new());
        let mut rest = pieces;
        while let Some(first) = rest.first() {
            let start = first.info.offset;
            let mut end = start;
            let mut count = 0;
            for piece in rest {
                let piece_end = piece.info.offset + u64::from(piece.info.len);
                if count > 0
                    && (piece.info.offset > end + GAP_BYTES_MAX
                        || piece_end - start > READ_BYTES_MAX)
                {
                    break;
                }
                end = piece_end;
                count += 1;
            }
            let (run, after) = rest.split_at(count);
            rest = after;
            bytes.resize((end - start) as usize, 0);
            if let Err(e) = file.read_exact_at(&mut bytes, start) {
                failed.extend(run.iter().map(|p| (p.kind, p.hash)));
                result = Err(StoreError::io("read", &path, e));
                continue;
            }
            for of_frame in run.chunk_by(|a, b| a.entry.frame == b.entry.frame) {
                let info = &of_frame[0].info;
                let at = (info.offset - start) as usize;
                let frame = &bytes[at..at + info.len as usize];
                if let Err(source) =
                    decompress_frame_into(info.kind, frame, info.items.into(), &mut raw)
                {
                    failed.extend(of_frame.iter().map(|p| (p.kind, p.hash)));
                    result = Err(StoreError::Format {
                        path: path.clone(),
                        source,
                    });
                    continue;
                }
                let size = info.kind.raw_size();
                for piece in of_frame {
                    let item = &raw[piece.slot * size..(piece.slot + 1) * size];
                    match piece.kind.verify(&piece.hash, item) {
                        Ok(()) => sink(piece.kind, piece.hash, item),
                        Err(source) => {
                            failed.push((piece.kind, piece.hash));
                            result = Err(StoreError::Format {
                                path: path.clone(),
                                source,
                            });
                        }
                    }
                }
            }
        }
        result
    }

    /// Returns several segments, in the order asked for. [`Hash::ZERO`] is the empty one.
    pub fn segments(&self, hashes: &[Hash]) -> Result<Vec<Segment>, StoreError> {
        let wants: Vec<(Kind, Hash)> = hashes.iter().map(|hash| (Kind::Segment, *hash)).collect();
        let mut found = std::collections::HashMap::new();
        let missing = self.read(&wants, &mut |_, hash, bytes| {
            if let Ok(segment) = Segment::decode(bytes) {
                found.insert(hash, segment);
            }
        })?;
        if let Some((_, hash)) = missing.first() {
            return Err(StoreError::NotFound {
                what: format!("segment {hash}"),
                path: self.inner.repository.dir().to_path_buf(),
                fix: "`floe image verify` tells what else is missing; pull the image again"
                    .to_owned(),
            });
        }
        Ok(hashes
            .iter()
            .map(|hash| found.get(hash).cloned().unwrap_or_default())
            .collect())
    }

    /// Returns the hashes of one segment of a region: its table with its patches applied.
    ///
    /// # Panics
    /// If the region has no such segment.
    pub fn table(&self, region: &Region, number: usize) -> Result<Segment, StoreError> {
        let mut table = self.segment(&region.segments[number])?;
        region.patch(number, &mut table);
        Ok(table)
    }

    /// Returns a segment as it is stored, without patches.
    pub fn segment(&self, hash: &Hash) -> Result<Segment, StoreError> {
        Ok(self.segments(&[*hash])?.pop().unwrap_or_default())
    }
}

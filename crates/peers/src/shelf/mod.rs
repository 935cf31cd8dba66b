//! Pieces on the local disk, with the hashes that prove them: what this host can read and pass on.
//!
//! A directory for each content: for each pack a sparse file of its bytes and one of its tree's hashes, both named by the pack's root,
//! and a [`record`] of what is in them. A piece gets there once it is verified, bytes before the record and synced between the two, so
//! that the record never promises what a power cut has taken. What came after the last record is fetched again.
mod record;

use crate::content::Content;
use crate::tree::{self, Hashes, Tree, Verified};
use bytes::Bytes;
use floe_swarm::policy::PieceId;
use rustix::fs::FallocateFlags;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// The pieces of one content that are on this host. All calls read or write files on the calling thread.
#[derive(Debug)]
pub struct Shelf {
    dir: PathBuf,
    content: Arc<Content>,
    /// What is here, 64 pieces a word.
    here: Vec<AtomicU64>,
    /// Whoever reads or writes a piece's bytes holds it shared; whoever makes holes holds it alone.
    holes: RwLock<()>,
    /// Packs with bytes that are not known to be on the disk.
    dirty: Mutex<BTreeSet<usize>>,
    /// Held while a record is made, so that a later one says what is later.
    records: Mutex<()>,
}

/// Why a range can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// This piece is not here; [`Swarm::need`](crate::Swarm::need) brings it.
    #[error("piece {0} is not here")]
    NotHere(PieceId),
    /// The content has no such pack, or the pack no such range.
    #[error("there is no such range")]
    NoSuchRange,
    /// The disk failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Shelf {
    /// Opens the shelf in a directory that is made if need be and that no other shelf uses. What an earlier run has left is here if its
    /// record is whole and of this content.
    pub fn open(dir: &Path, content: Arc<Content>) -> io::Result<Shelf> {
        std::fs::create_dir_all(dir)?;
        let words = record::load(dir, &content)?;
        Ok(Shelf {
            dir: dir.to_owned(),
            here: words.into_iter().map(AtomicU64::new).collect(),
            content,
            holes: RwLock::default(),
            dirty: Mutex::default(),
            records: Mutex::default(),
        })
    }

    /// Returns what this shelf has pieces of.
    pub fn content(&self) -> &Arc<Content> {
        &self.content
    }

    /// Whether a piece is here.
    pub fn has(&self, piece: PieceId) -> bool {
        let word = self.here.get((piece / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (piece % 64) & 1 == 1)
    }

    /// Returns all pieces that are here, in order.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> {
        (0..self.content.pieces()).filter(|piece| self.has(*piece))
    }

    /// Reads a range of a pack, all pieces of which must be here.
    pub fn read(&self, pack: usize, range: Range<u64>) -> Result<Vec<u8>, ShelfError> {
        let pieces = self.content.pieces_of(pack, range.clone());
        if pieces.is_empty() {
            return Err(ShelfError::NoSuchRange);
        }
        let _no_holes = self.no_holes();
        if let Some(lacking) = pieces.into_iter().find(|piece| !self.has(*piece)) {
            return Err(ShelfError::NotHere(lacking));
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        File::open(self.path(pack, "pack"))?.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    /// Puts a whole pack here that this host has from elsewhere. Returns whether these were its bytes; if not, nothing of them stays.
    pub fn fill(&self, pack: usize, mut from: impl Read) -> Result<bool, ShelfError> {
        let known = *self
            .content
            .packs()
            .get(pack)
            .ok_or(ShelfError::NoSuchRange)?;
        // hashed first: what is put here must be right
        let copy = tempfile::tempfile_in(&self.dir)?;
        io::copy(&mut from, &mut &copy)?;
        if copy.metadata()?.len() != known.bytes {
            return Ok(false);
        }
        let tree = Tree::of(Ordered(&copy, 0), known.bytes)?;
        if tree.pack() != known {
            return Ok(false);
        }
        for piece in self.content.pieces_of(pack, 0..known.bytes) {
            let Some((_, range)) = self.content.place(piece) else {
                continue;
            };
            let mut bytes = vec![0; (range.end - range.start) as usize];
            copy.read_exact_at(&mut bytes, range.start)?;
            let proven = tree.prove(&range, &bytes).map_err(io::Error::other)?;
            let verified = known.check(&range, &proven).map_err(io::Error::other)?;
            self.put(piece, &verified)?;
        }
        self.sync()?;
        Ok(true)
    }

    /// Puts a verified piece here.
    pub(crate) fn put(&self, piece: PieceId, verified: &Verified) -> io::Result<()> {
        let (pack, range) = self.place(piece)?;
        let _no_holes = self.no_holes();
        let write = |kind| {
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(self.path(pack, kind))
        };
        write("pack")?.write_all_at(&verified.bytes, range.start)?;
        if !verified.pairs.is_empty() {
            let hashes = write("tree")?;
            for (at, pair) in &verified.pairs {
                hashes.write_all_at(pair, *at)?;
            }
        }
        self.dirty().insert(pack);
        self.here[(piece / 64) as usize].fetch_or(1 << (piece % 64), Ordering::AcqRel);
        Ok(())
    }

    /// Returns the proven form of a piece that is here. An error if it isn't, or if the disk has not kept it as it was: what others get
    /// is verified first.
    pub(crate) fn prove(&self, piece: PieceId) -> io::Result<Bytes> {
        let (pack, range) = self.place(piece)?;
        let _no_holes = self.no_holes();
        if !self.has(piece) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let known = self.content.packs()[pack];
        let bytes = File::open(self.path(pack, "pack"))?;
        let file = match File::open(self.path(pack, "tree")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            file => Some(file?),
        };
        tree::prove(known, &range, &bytes, Hashes { pack: known, file })
    }

    /// Forgets pieces and gives their room on the disk back.
    pub(crate) fn remove(&self, pieces: &[PieceId]) -> io::Result<()> {
        for piece in pieces.iter().filter(|piece| self.has(**piece)) {
            self.here[(piece / 64) as usize].fetch_and(!(1 << (piece % 64)), Ordering::AcqRel);
        }
        // no record may promise what is a hole
        self.sync()?;
        let _alone = self.holes.write().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces.iter().copied() {
            let Some((pack, range)) = self.content.place(piece) else {
                continue;
            };
            if self.has(piece) {
                continue; // it came again meanwhile
            }
            let file = match OpenOptions::new().write(true).open(self.path(pack, "pack")) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, hole, range.start, range.end - range.start)?;
        }
        Ok(())
    }

    /// Makes all that is here outlive a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let _alone = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let words = self.here.iter().map(|word| word.load(Ordering::Acquire));
        let words: Vec<u64> = words.collect();
        // taken after the words: what they promise is among these, or was synced before
        let dirty = std::mem::take(&mut *self.dirty());
        let synced = dirty.iter().try_for_each(|pack| self.sync_pack(*pack));
        let recorded = synced.and_then(|()| record::store(&self.dir, &self.content, &words));
        if recorded.is_err() {
            self.dirty().extend(dirty);
        }
        recorded
    }

    fn sync_pack(&self, pack: usize) -> io::Result<()> {
        for kind in ["pack", "tree"] {
            match File::open(self.path(pack, kind)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                file => file?.sync_data()?,
            }
        }
        Ok(())
    }

    fn place(&self, piece: PieceId) -> io::Result<(usize, Range<u64>)> {
        self.content
            .place(piece)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn path(&self, pack: usize, kind: &str) -> PathBuf {
        let root = blake3::Hash::from_bytes(self.content.packs()[pack].root);
        self.dir.join(format!("{}.{kind}", root.to_hex()))
    }

    fn no_holes(&self) -> RwLockReadGuard<'_, ()> {
        self.holes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirty(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file from a place on, whatever else is read of it.
struct Ordered<'a>(&'a File, u64);

impl Read for Ordered<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read_at(buf, self.1)?;
        self.1 += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PIECE_BYTES;

    const LENGTH: usize = 5 * PIECE_BYTES as usize + 77;

    fn image() -> (Vec<Vec<u8>>, Arc<Content>) {
        let noise = |length: usize| {
            let mut out = vec![0; length];
            let mut hash = blake3::Hasher::new();
            hash.update(&length.to_le_bytes())
                .finalize_xof()
                .fill(&mut out);
            out
        };
        let packs = vec![noise(LENGTH), noise(100)];
        let known = packs
            .iter()
            .map(|p| Tree::of(&p[..], p.len() as u64).unwrap().pack());
        let content = Arc::new(Content::new(known.collect()).unwrap());
        (packs, content)
    }

    fn full(dir: &Path) -> (Vec<Vec<u8>>, Shelf) {
        let (packs, content) = image();
        let shelf = Shelf::open(dir, content).unwrap();
        for (number, pack) in packs.iter().enumerate() {
            assert!(shelf.fill(number, &pack[..]).unwrap());
        }
        (packs, shelf)
    }

    #[test]
    fn what_is_passed_on_is_what_was_put() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (packs, from) = full(dirs[0].path());
        let to = Shelf::open(dirs[1].path(), from.content().clone()).unwrap();
        for piece in [5, 0, 6, 2] {
            let (pack, range) = to.content().place(piece).unwrap();
            let proven = from.prove(piece).unwrap();
            let verified = to.content().packs()[pack].check(&range, &proven).unwrap();
            to.put(piece, &verified).unwrap();
            // who has a few pieces can prove those
            assert_eq!(to.prove(piece).unwrap(), proven);
            let right = &packs[pack][range.start as usize..range.end as usize];
            assert_eq!(to.read(pack, range).unwrap(), right);
        }
        assert_eq!(to.pieces().collect::<Vec<_>>(), [0, 2, 5, 6]);
        let lacks = to.read(0, 10..PIECE_BYTES + 1);
        assert!(matches!(lacks, Err(ShelfError::NotHere(1))));
        assert!(matches!(to.read(1, 0..101), Err(ShelfError::NoSuchRange)));
        assert!(to.prove(1).is_err() && to.prove(7).is_err());
        assert!(!to.fill(1, &packs[1][1..]).unwrap());
        assert!(!to.fill(1, &[0; 100][..]).unwrap());
    }

    #[test]
    fn a_record_promises_what_is_there_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (packs, shelf) = full(dir.path());
        shelf.remove(&[1, 3]).unwrap();
        assert!(shelf.prove(1).is_err());
        // a kill: nothing is told
        let content = shelf.content().clone();
        drop(shelf);
        let again = Shelf::open(dir.path(), content.clone()).unwrap();
        assert_eq!(again.pieces().collect::<Vec<_>>(), [0, 2, 4, 5, 6]);
        assert_eq!(
            again.read(0, PIECE_BYTES * 4..PIECE_BYTES * 5).unwrap(),
            packs[0][4 << 16..5 << 16]
        );
        // another content in the same place, and a damaged record
        let other = Arc::new(Content::new(content.packs()[1..].to_vec()).unwrap());
        assert_eq!(Shelf::open(dir.path(), other).unwrap().pieces().count(), 0);
        let path = dir.path().join("have");
        let mut bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let found = Shelf::open(dir.path(), content.clone()).unwrap();
            assert_eq!(found.pieces().count(), 0, "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn what_the_disk_has_changed_is_not_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let (_, shelf) = full(dir.path());
        let file = OpenOptions::new()
            .write(true)
            .open(shelf.path(0, "pack"))
            .unwrap();
        file.write_all_at(b"rot", PIECE_BYTES + 5).unwrap();
        assert!(shelf.prove(0).is_ok() && shelf.prove(1).is_err());
        let file = OpenOptions::new()
            .write(true)
            .open(shelf.path(0, "tree"))
            .unwrap();
        file.write_all_at(b"rot", 0).unwrap();
        assert!(shelf.prove(0).is_err());
    }
}

//! Pieces on the local disk, with the hashes that prove them: what this host can read and pass on.
//!
//! A directory for each content: for each pack a sparse file of its bytes and one of its tree's hashes, both named by the pack's root,
//! and a [`record`] of what is in them. A piece gets there once it is verified, bytes before the record and synced between the two, so
//! that the record never promises what a power cut has taken. What came after the last record is fetched again.
//!
//! A whole pack lies on the disk once, however many places want it: its file may have a second name, in a repository of images. Each
//! name keeps the bytes when the other one goes. So a file that has two is never made smaller here, and what is written into it are
//! the pack's own bytes.
mod record;

use crate::content::Content;
use crate::tree::{self, Hashes, Tree, Verified};
use bytes::Bytes;
use floe_swarm::policy::PieceId;
use rustix::fs::FallocateFlags;
use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tempfile::{NamedTempFile, TempPath};

/// The pieces of one content that are on this host. All calls read or write files on the calling thread.
#[derive(Debug)]
pub struct Shelf {
    dir: PathBuf,
    content: Arc<Content>,
    /// What is here, 64 pieces a word.
    here: Vec<AtomicU64>,
    /// Whoever reads or writes a piece's bytes holds it shared; whoever makes holes, or puts a file in another's place, holds it alone.
    files: RwLock<()>,
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
    /// Opens the shelf in a directory that is made if need be and that is for shelves alone, one at a time. What an earlier run has left of
    /// the content's packs is here if its record is whole, however that run numbered them; files of anything else are removed.
    pub fn open(dir: &Path, content: Arc<Content>) -> io::Result<Shelf> {
        std::fs::create_dir_all(dir)?;
        let words = record::load(dir, &content)?;
        let shelf = Shelf {
            dir: dir.to_owned(),
            here: words.into_iter().map(AtomicU64::new).collect(),
            content,
            files: RwLock::default(),
            dirty: Mutex::default(),
            records: Mutex::default(),
        };
        shelf.forget_gone()?;
        shelf.tidy()?;
        Ok(shelf)
    }

    /// Forgets what the record promises of packs whose files are gone: whoever removed the shelf was stopped in the middle.
    fn forget_gone(&self) -> io::Result<()> {
        for (number, pack) in self.content.packs().iter().enumerate() {
            let pieces = self.content.pieces_of(number, 0..pack.bytes);
            if !pieces.clone().any(|piece| self.has(piece)) {
                continue;
            }
            let proves = Tree::hashes_of(pack.bytes).is_some_and(|bytes| bytes > 0);
            let gone = is_gone(&self.path(number, "pack"))?
                || proves && is_gone(&self.path(number, "tree"))?;
            if gone {
                pieces.for_each(|piece| self.forget(piece));
            }
        }
        Ok(())
    }

    /// Removes packs that the content does not have, and names that a kill has left: each of them would keep a whole file.
    fn tidy(&self) -> io::Result<()> {
        let packs = 0..self.content.packs().len();
        let files = packs.flat_map(|pack| ["pack", "tree"].map(|kind| self.path(pack, kind)));
        let mut known: HashSet<PathBuf> = files.collect();
        known.insert(self.dir.join(record::NAME));
        let mut litter = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !known.contains(&entry.path()) && entry.file_type()?.is_file() {
                litter.push(entry.path());
            }
        }
        if !litter.is_empty() {
            self.sync()?; // no record may promise packs that are gone
        }
        litter.iter().try_for_each(std::fs::remove_file)
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
        let _as_they_are = self.as_they_are();
        if let Some(lacking) = pieces.into_iter().find(|piece| !self.has(*piece)) {
            return Err(ShelfError::NotHere(lacking));
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        File::open(self.path(pack, "pack"))?.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    /// Puts a whole pack here, as a file on the shelf's file system that becomes the shelf's. It may have other names, if nobody changes
    /// it by those. Returns whether these were the pack's bytes; if not, the name is removed and nothing else is changed.
    pub fn fill(&self, pack: usize, file: TempPath) -> Result<bool, ShelfError> {
        let known = self.content.packs().get(pack);
        let known = *known.ok_or(ShelfError::NoSuchRange)?;
        let (opened, path) = (File::open(&file)?, self.path(pack, "pack"));
        let same = is_same(&opened, &path)?;
        if same && self.lacks(pack).is_none() {
            return Ok(true);
        }
        if opened.metadata()?.len() != known.bytes {
            return Ok(false);
        }
        let tree = Tree::of(&opened, known.bytes)?;
        if tree.pack() != known {
            return Ok(false);
        }
        let mut hashes = NamedTempFile::new_in(&self.dir)?;
        hashes.write_all(tree.hashes())?;
        let alone = self.alone();
        let hashes = hashes.into_temp_path();
        hashes
            .persist(self.path(pack, "tree"))
            .map_err(|e| e.error)?;
        // renamed to another name of itself, a file would keep both
        if !same {
            file.persist(&path).map_err(|e| e.error)?;
        }
        for piece in self.content.pieces_of(pack, 0..known.bytes) {
            self.note(piece);
        }
        drop(alone);
        self.dirty().insert(pack);
        File::open(&self.dir)?.sync_all()?;
        self.sync()?;
        Ok(true)
    }

    /// Returns the file of a pack that is here whole. It may be given a second name, by which nobody may change it.
    pub fn file_of(&self, pack: usize) -> Result<PathBuf, ShelfError> {
        if pack >= self.content.packs().len() {
            return Err(ShelfError::NoSuchRange);
        }
        match self.lacks(pack) {
            Some(piece) => Err(ShelfError::NotHere(piece)),
            None => Ok(self.path(pack, "pack")),
        }
    }

    /// Returns the first piece of a pack that is not here.
    fn lacks(&self, pack: usize) -> Option<PieceId> {
        let bytes = self.content.packs()[pack].bytes;
        let mut pieces = self.content.pieces_of(pack, 0..bytes);
        pieces.find(|piece| !self.has(*piece))
    }

    fn note(&self, piece: PieceId) {
        self.here[(piece / 64) as usize].fetch_or(1 << (piece % 64), Ordering::AcqRel);
    }

    fn forget(&self, piece: PieceId) {
        self.here[(piece / 64) as usize].fetch_and(!(1 << (piece % 64)), Ordering::AcqRel);
    }

    /// Puts a verified piece here.
    pub(crate) fn put(&self, piece: PieceId, verified: &Verified) -> io::Result<()> {
        let (pack, range) = self.place(piece)?;
        let _as_they_are = self.as_they_are();
        if self.has(piece) {
            return Ok(());
        }
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
        self.note(piece);
        Ok(())
    }

    /// Returns the proven form of a piece that is here. An error if it isn't, or if the disk has not kept it as it was: what others get
    /// is verified first.
    pub(crate) fn prove(&self, piece: PieceId) -> io::Result<Bytes> {
        let (pack, range) = self.place(piece)?;
        let _as_they_are = self.as_they_are();
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

    /// Forgets pieces and gives their room on the disk back, unless it is somebody else's too.
    pub(crate) fn remove(&self, pieces: &[PieceId]) -> io::Result<()> {
        for piece in pieces.iter().filter(|piece| self.has(**piece)) {
            self.forget(*piece);
        }
        // no record may promise what is a hole
        self.sync()?;
        let _alone = self.alone();
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
            if file.metadata()?.nlink() > 1 {
                continue; // a repository reads it by its other name
            }
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

    fn as_they_are(&self) -> RwLockReadGuard<'_, ()> {
        self.files.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.files.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn dirty(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is no file of this name.
fn is_gone(name: &Path) -> io::Result<bool> {
    match std::fs::metadata(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        named => named.map(|_| false),
    }
}

/// Whether this file has this name.
fn is_same(file: &File, name: &Path) -> io::Result<bool> {
    let named = match std::fs::metadata(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named?,
    };
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (named.dev(), named.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PIECE_BYTES;
    use crate::tree::Pack;

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
            assert!(shelf.fill(number, file(dir, pack)).unwrap());
        }
        (packs, shelf)
    }

    /// A file beside a shelf.
    fn file(dir: &Path, bytes: &[u8]) -> TempPath {
        let mut file = NamedTempFile::new_in(dir).unwrap();
        file.write_all(bytes).unwrap();
        file.into_temp_path()
    }

    /// The one file of a pack, by a name in a repository and by one that the shelf may have.
    fn shared(dir: &Path, bytes: &[u8]) -> (PathBuf, TempPath) {
        let (name, other) = (dir.join("of a repository"), file(dir, b""));
        std::fs::write(&name, bytes).unwrap();
        std::fs::remove_file(&other).unwrap();
        std::fs::hard_link(&name, &other).unwrap();
        (name, other)
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
            .into_iter()
            .map(|n| n.into_string().unwrap())
            .collect()
    }

    #[test]
    fn what_the_record_promises_of_files_that_are_gone_is_not_here() {
        let dir = tempfile::tempdir().unwrap();
        let (packs, shelf) = full(dir.path());
        let content = shelf.content().clone();
        let open = || Shelf::open(dir.path(), content.clone()).unwrap();
        let kinds = ["pack", "tree"].map(|kind| shelf.path(0, kind));
        drop(shelf);
        for gone in kinds {
            std::fs::remove_file(gone).unwrap();
            let shelf = open();
            assert!(shelf.pieces().eq([6]));
            assert_eq!(shelf.read(1, 0..100).unwrap(), packs[1]);
            // it comes again
            assert!(shelf.fill(0, file(dir.path(), &packs[0])).unwrap());
            assert_eq!(open().pieces().count(), 7);
        }
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
        let before = names(dirs[1].path());
        for wrong in [&packs[1][1..], &[0; 100]] {
            assert!(!to.fill(1, file(dirs[1].path(), wrong)).unwrap());
        }
        assert_eq!(names(dirs[1].path()), before);
    }

    #[test]
    fn a_pack_that_a_repository_has_lies_on_the_disk_once_and_outlives_its_name_there() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (packs, content) = image();
        let dir = dirs[0].path();
        let shelf = Shelf::open(dir, content.clone()).unwrap();
        // some of it has come from others already
        let (_, elsewhere) = full(dirs[1].path());
        let put = |piece: PieceId| {
            let (pack, range) = content.place(piece).unwrap();
            let proven = elsewhere.prove(piece).unwrap();
            let verified = content.packs()[pack].check(&range, &proven).unwrap();
            shelf.put(piece, &verified).unwrap();
        };
        put(2);
        assert!(matches!(shelf.file_of(0), Err(ShelfError::NotHere(0))));
        assert!(matches!(shelf.file_of(2), Err(ShelfError::NoSuchRange)));
        let (name, other) = shared(dir, &packs[0]);
        assert!(shelf.fill(0, other).unwrap());
        let own = shelf.file_of(0).unwrap();
        let links = || std::fs::metadata(&own).unwrap().nlink();
        assert!(is_same(&File::open(&name).unwrap(), &own).unwrap());
        assert_eq!(links(), 2);
        // said again, it stays as it is, and no name is left over
        let before = names(dir);
        let again = file(dir, b"");
        std::fs::remove_file(&again).unwrap();
        std::fs::hard_link(&name, &again).unwrap();
        assert!(shelf.fill(0, again).unwrap());
        assert_eq!(names(dir), before);
        // what is forgotten here is not taken from the repository, and comes again
        shelf.remove(&[1, 3]).unwrap();
        assert!(!shelf.has(1) && std::fs::read(&name).unwrap() == packs[0]);
        put(1);
        put(3);
        // the repository removes it
        let reads = File::open(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        assert_eq!(links(), 1);
        let all = || shelf.read(0, 0..LENGTH as u64).unwrap();
        assert!(all() == packs[0]);
        for piece in content.pieces_of(0, 0..LENGTH as u64) {
            shelf.prove(piece).unwrap();
        }
        drop(reads);
        shelf.sync().unwrap();
        let again = Shelf::open(dir, content.clone()).unwrap();
        assert!(again.read(0, 0..LENGTH as u64).unwrap() == packs[0]);
        // from now on its room is the shelf's alone to give back
        again.remove(&[1]).unwrap();
        let mut bytes = vec![1; PIECE_BYTES as usize];
        let file = File::open(&own).unwrap();
        file.read_exact_at(&mut bytes, PIECE_BYTES).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
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
        // a damaged record, and a content that lacks a pack in the same place
        let path = dir.path().join("have");
        let mut bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let found = Shelf::open(dir.path(), content.clone()).unwrap();
            assert_eq!(found.pieces().count(), 0, "byte {at}");
            bytes[at] ^= 1;
        }
        std::fs::write(&path, &bytes).unwrap();
        let here = |content: &Arc<Content>| {
            let shelf = Shelf::open(dir.path(), content.clone()).unwrap();
            shelf.pieces().count()
        };
        file(dir.path(), b"left by a kill").keep().unwrap();
        assert_eq!(here(&content), 5);
        assert_eq!(names(dir.path()).len(), 1 + 2 * 2);
        // what a content lacks is gone for good, and nothing else
        let other = Arc::new(Content::new(content.packs()[1..].to_vec()).unwrap());
        assert_eq!((here(&other), here(&content)), (1, 1));
        assert_eq!(names(dir.path()).len(), 1 + 2);
    }

    #[test]
    fn pieces_outlive_a_content_that_numbers_their_packs_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (packs, shelf) = full(dir.path());
        shelf.remove(&[1, 3]).unwrap();
        let mut known = shelf.content().packs().to_vec();
        drop(shelf);
        let absent = Pack {
            root: [9; 32],
            bytes: 3 * PIECE_BYTES,
        };
        known.insert(0, absent);
        known.swap(1, 2);
        let anew = Arc::new(Content::new(known).unwrap());
        let shelf = Shelf::open(dir.path(), anew).unwrap();
        // three of the pack that is not here, one of the short pack, and then those of the long one
        assert_eq!(shelf.pieces().collect::<Vec<_>>(), [3, 4, 6, 8, 9]);
        assert_eq!(shelf.read(1, 0..100).unwrap(), packs[1]);
        let range = 4 * PIECE_BYTES..LENGTH as u64;
        let right = &packs[0][range.start as usize..];
        assert_eq!(shelf.read(2, range).unwrap(), right);
        assert!(
            [3, 4, 6, 8, 9]
                .iter()
                .all(|piece| shelf.prove(*piece).is_ok())
        );
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

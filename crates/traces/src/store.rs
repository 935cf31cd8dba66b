//! Traces and models on disk, in their own folders beside the images.
//!
//! ```text
//! <root>/<image id>/<owner>/<received, ms>~<uploader>~<BLAKE3>.trace
//! <root>/<image id>/<owner>/<method>~<version>~<BLAKE3 of the traces' names>.model
//! <root>/<image id>/<owner>/base                           the hash of the disk that it stands on
//! <root>/<image id>/<owner>/<region>.files                 which files its blocks belong to; whoever shows the image keeps this
//! <root>/disks/<hash of a base disk>/<owner>.programs.json which programs on it are interactive
//! ```
//!
//! A file is there whole or not at all (temporary name, fsync, rename). Everything about a file that isn't in it is in its
//! name, so there is no index that could disagree with the folder. Only image ids, hashes and user names in file names come
//! from outside, and each was parsed before.
//!
//! At most [`TRACES_MAX`] traces of an image are kept, the newest ones; the sender with the most traces loses one first, and
//! only the owner may have more than [`STRANGER_TRACES_MAX`]. Not all of them count in a model ([`TraceStore::counting`]). A
//! trace that begins with another one of the same uploader replaces it.

use super::{NAMELESS_TRACES_COUNTED, STRANGER_TRACES_COUNTED, STRANGER_TRACES_MAX, TRACES_MAX};
use floe_image::Hash;
use floe_store::private;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How many versions of a model are kept, the newest ones: a model that is being read must stay until the training after the
/// next.
const MODEL_VERSIONS: usize = 2;
/// Separates the parts of a file name; it is in no user's name and in no hash.
const SEPARATOR: char = '~';
/// The name for senders without a name. No user's name begins like this.
const NOBODY: &str = "-";
/// How the name of an unfinished file begins.
const UNFINISHED: &str = ".new-";

/// A trace that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// When it was received, in milliseconds of Unix time; no two of an image have the same time.
    pub received_ms: u64,
    /// Who sent it; `None` for a sender without a name.
    pub uploader: Option<String>,
    /// BLAKE3 of its bytes.
    pub hash: Hash,
    /// Size in bytes.
    pub bytes: u64,
}

/// The result of adding a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The hash of the trace that is stored now: its own, or that of a longer one that begins with it.
    pub hash: Hash,
    /// Whether nothing changed, because this trace or a longer one was there.
    pub known: bool,
    /// How many traces were removed for it.
    pub dropped: usize,
    /// How many traces are stored now.
    pub kept: usize,
}

/// A model that was trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModel {
    /// Which training made it, counted from 1.
    pub version: u64,
    /// The traces that it was made from, as [`TraceStore::digest`] identifies them.
    pub digest: Hash,
    /// The path of its file.
    pub path: PathBuf,
}

/// Stores traces and models in a folder; see the module's documentation.
#[derive(Debug)]
pub struct TraceStore {
    pub(super) root: PathBuf,
    /// Held while files are added, synced, or removed. It only orders changes: who reads takes the folder as it is.
    pub(super) changing: Mutex<()>,
    /// How many traces are stored of each named sender.
    authors: Mutex<HashMap<String, u64>>,
}

/// Returns how many traces of each named sender are stored in a store's folder.
pub fn count_authors(root: &Path) -> io::Result<HashMap<String, u64>> {
    let mut counts = HashMap::new();
    for image in folders(root)? {
        for owner in folders(&image)? {
            for author in traces(&owner)?.into_iter().filter_map(|t| t.uploader) {
                *counts.entry(author).or_default() += 1;
            }
        }
    }
    Ok(counts)
}

impl TraceStore {
    /// Opens the store in a folder, and removes what an earlier process did not finish.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<TraceStore> {
        let root = root.into();
        private::make_dirs(&root)?;
        for image in folders(&root)? {
            for owner in folders(&image)? {
                for (name, path) in files(&owner)? {
                    if name.starts_with(UNFINISHED) {
                        remove(&path)?;
                    }
                }
            }
        }
        Ok(TraceStore {
            authors: Mutex::new(count_authors(&root)?),
            root,
            changing: Mutex::new(()),
        })
    }

    /// Returns how many traces of this sender are stored, for all images.
    pub fn count_of(&self, author: &str) -> u64 {
        self.authors.lock().get(author).copied().unwrap_or(0)
    }

    fn has_gone(&self, trace: &Kept) {
        if let Some(author) = &trace.uploader
            && let Some(count) = self.authors.lock().get_mut(author)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns those traces of an image that count in its models: all of the owner's, and the newest few of each other sender.
    pub fn counting(kept: &[Kept], owner: &str) -> Vec<Kept> {
        let mut counts: HashMap<Option<&str>, usize> = HashMap::new();
        let mut counting: Vec<Kept> = Vec::new();
        for trace in kept.iter().rev() {
            let most = match trace.uploader.as_deref() {
                Some(name) if name == owner => TRACES_MAX,
                Some(_) => STRANGER_TRACES_COUNTED,
                None => NAMELESS_TRACES_COUNTED,
            };
            let count = counts.entry(trace.uploader.as_deref()).or_default();
            *count += 1;
            if *count <= most {
                counting.push(trace.clone());
            }
        }
        counting.reverse();
        counting
    }

    /// Returns where what is known of an image is. What else is put there goes with the image.
    pub fn folder(&self, image: &Hash, owner: &str) -> PathBuf {
        self.root.join(image.to_string()).join(owner)
    }

    /// Returns the images for which something is stored, each with its owner.
    pub fn images(&self) -> io::Result<Vec<(Hash, String)>> {
        let mut all = Vec::new();
        for image in folders(&self.root)? {
            let Some(id) = name_of(&image).and_then(|name| name.parse::<Hash>().ok()) else {
                continue;
            };
            for owner in folders(&image)? {
                all.extend(name_of(&owner).map(|name| (id, name.to_owned())));
            }
        }
        all.sort();
        Ok(all)
    }

    /// Stores a trace that [`check`](super::check) has accepted.
    pub fn add(
        &self,
        image: &Hash,
        owner: &str,
        uploader: Option<&str>,
        bytes: &[u8],
        now_ms: u64,
    ) -> io::Result<Added> {
        let _changing = self.changing.lock();
        let folder = self.folder(image, owner);
        let mut kept = traces(&folder)?;
        let hash = Hash::of(bytes);
        let same = |hash: Hash, kept: &[Kept]| Added {
            hash,
            known: true,
            dropped: 0,
            kept: kept.len(),
        };
        if kept.iter().any(|trace| trace.hash == hash) {
            return Ok(same(hash, &kept));
        }
        let mut continued = Vec::new();
        for old in kept.iter().filter(|t| t.uploader.as_deref() == uploader) {
            let there = fs::read(folder.join(file_name(old)))?;
            if there.starts_with(bytes) {
                return Ok(same(old.hash, &kept));
            }
            if bytes.starts_with(&there) {
                continued.push(old.clone());
            }
        }
        let newest = kept.iter().map(|trace| trace.received_ms).max();
        let new = Kept {
            received_ms: now_ms.max(newest.map_or(0, |newest| newest + 1)),
            uploader: uploader.map(str::to_owned),
            hash,
            bytes: bytes.len() as u64,
        };
        self.make_folder(&folder)?;
        write(&folder, &file_name(&new), bytes)?;
        if let Some(author) = uploader {
            *self.authors.lock().entry(author.to_owned()).or_default() += 1;
        }
        kept.retain(|trace| !continued.contains(trace));
        kept.push(new);
        let excess = excess(&mut kept, owner);
        for gone in continued.iter().chain(&excess) {
            remove(&folder.join(file_name(gone)))?;
            self.has_gone(gone);
        }
        Ok(Added {
            hash,
            known: false,
            dropped: continued.len() + excess.len(),
            kept: kept.len(),
        })
    }

    /// Returns the traces of an image, oldest first.
    pub fn traces(&self, image: &Hash, owner: &str) -> io::Result<Vec<Kept>> {
        traces(&self.folder(image, owner))
    }

    /// Returns a trace's bytes, if it is stored.
    pub fn read(&self, image: &Hash, owner: &str, hash: &Hash) -> io::Result<Option<Vec<u8>>> {
        let folder = self.folder(image, owner);
        match traces(&folder)?.iter().find(|trace| trace.hash == *hash) {
            Some(trace) => fs::read(folder.join(file_name(trace))).map(Some),
            None => Ok(None),
        }
    }

    /// Removes one trace; returns whether it was there.
    pub fn remove_trace(&self, image: &Hash, owner: &str, hash: &Hash) -> io::Result<bool> {
        let _changing = self.changing.lock();
        let folder = self.folder(image, owner);
        let kept = traces(&folder)?;
        let found = kept.iter().find(|trace| trace.hash == *hash);
        if let Some(trace) = found {
            remove(&folder.join(file_name(trace)))?;
            self.has_gone(trace);
        }
        Ok(found.is_some())
    }

    /// Returns a hash that identifies a set of traces, whatever their order.
    pub fn digest(traces: &[Kept]) -> Hash {
        let mut hashes: Vec<Hash> = traces.iter().map(|trace| trace.hash).collect();
        hashes.sort_unstable();
        Hash::of(&hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>())
    }

    /// Returns the newest model of a method.
    pub fn model(
        &self,
        image: &Hash,
        owner: &str,
        method: &str,
    ) -> io::Result<Option<StoredModel>> {
        Ok(models(&self.folder(image, owner), method)?.pop())
    }

    /// Stores a model as the newest one and returns its version. Of the earlier versions only the last one stays.
    pub fn add_model(
        &self,
        image: &Hash,
        owner: &str,
        method: &str,
        digest: Hash,
        bytes: &[u8],
    ) -> io::Result<u64> {
        let _changing = self.changing.lock();
        let folder = self.folder(image, owner);
        // The image was removed while the model was trained.
        if !folder.try_exists()? {
            return Err(io::ErrorKind::NotFound.into());
        }
        let old = models(&folder, method)?;
        let version = old.last().map_or(0, |model| model.version) + 1;
        write(
            &folder,
            &format!("{method}{SEPARATOR}{version:08}{SEPARATOR}{digest}.model"),
            bytes,
        )?;
        for gone in old.iter().rev().skip(MODEL_VERSIONS - 1) {
            remove(&gone.path)?;
        }
        Ok(version)
    }

    /// Makes a folder two levels below the root, if it is missing.
    pub(super) fn make_folder(&self, folder: &Path) -> io::Result<()> {
        if !folder.try_exists()? {
            private::make_dirs(folder)?;
            folder.parent().map_or(Ok(()), sync)?;
            sync(&self.root)?;
        }
        Ok(())
    }

    /// Removes everything that is stored for an owner's image.
    pub fn remove(&self, image: &Hash, owner: &str) -> io::Result<()> {
        let _changing = self.changing.lock();
        let kept = traces(&self.folder(image, owner))?;
        let folder = self.folder(image, owner);
        if_there(&folder, fs::remove_dir_all)?;
        kept.iter().for_each(|trace| self.has_gone(trace));
        // Removes the image's folder if this was the last owner; it stays if it isn't empty.
        let _ = fs::remove_dir(self.root.join(image.to_string()));
        Ok(())
    }
}

/// Removes from `kept` what is too much, and returns it: strangers' traces above their limit, then the oldest of the sender
/// with the most traces.
fn excess(kept: &mut Vec<Kept>, owner: &str) -> Vec<Kept> {
    let mut out = Vec::new();
    loop {
        let mut counts: HashMap<Option<&str>, usize> = HashMap::new();
        for trace in kept.iter() {
            *counts.entry(trace.uploader.as_deref()).or_default() += 1;
        }
        let stranger = |uploader: &Option<&str>| *uploader != Some(owner);
        let greedy = counts
            .iter()
            .filter(|(uploader, count)| stranger(uploader) && **count > STRANGER_TRACES_MAX)
            .map(|(uploader, _)| *uploader)
            .min();
        // If two senders have the same number, the owner's traces are spared.
        let most = counts
            .iter()
            .max_by_key(|(uploader, count)| (**count, stranger(uploader), **uploader))
            .map(|(uploader, _)| *uploader);
        let from = greedy.or(most.filter(|_| kept.len() > TRACES_MAX));
        let Some(from) = from.map(|uploader| uploader.map(str::to_owned)) else {
            return out;
        };
        let oldest = kept
            .iter()
            .enumerate()
            .filter(|(_, trace)| trace.uploader == from)
            .min_by_key(|(_, trace)| trace.received_ms)
            .map(|(index, _)| index);
        match oldest {
            Some(index) => out.push(kept.remove(index)),
            None => return out,
        }
    }
}

fn file_name(trace: &Kept) -> String {
    let uploader = trace.uploader.as_deref().unwrap_or(NOBODY);
    format!(
        "{:016}{SEPARATOR}{uploader}{SEPARATOR}{}.trace",
        trace.received_ms, trace.hash
    )
}

fn traces(folder: &Path) -> io::Result<Vec<Kept>> {
    let mut all = Vec::new();
    for (name, path) in files(folder)? {
        let parsed = || {
            let mut parts = name.strip_suffix(".trace")?.split(SEPARATOR);
            let received_ms = parts.next()?.parse().ok()?;
            let uploader = parts.next().filter(|name| *name != NOBODY);
            let hash = parts.next()?.parse().ok()?;
            Some((received_ms, uploader.map(str::to_owned), hash))
        };
        let Some((received_ms, uploader, hash)) = parsed() else {
            continue;
        };
        // A file that was removed meanwhile is left out.
        if let Some(found) = if_there(&path, fs::metadata)? {
            all.push(Kept {
                received_ms,
                uploader,
                hash,
                bytes: found.len(),
            });
        }
    }
    all.sort_by_key(|trace| (trace.received_ms, trace.hash));
    Ok(all)
}

fn models(folder: &Path, method: &str) -> io::Result<Vec<StoredModel>> {
    let mut all = Vec::new();
    for (name, path) in files(folder)? {
        let parsed = || {
            let mut parts = name.strip_suffix(".model")?.split(SEPARATOR);
            let version = (parts.next()? == method).then(|| parts.next()?.parse().ok())??;
            Some((version, parts.next()?.parse().ok()?))
        };
        if let Some((version, digest)) = parsed() {
            all.push(StoredModel {
                version,
                digest,
                path,
            });
        }
    }
    all.sort_by_key(|model| model.version);
    Ok(all)
}

/// Writes a file that is there whole or not at all.
pub(super) fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name)).map_err(|e| e.error)?;
    sync(folder)
}

fn sync(folder: &Path) -> io::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(at(folder))
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    if_there(path, fs::remove_file).map(drop)
}

/// Asks the system something about a file; `None` if the file is not there, and on no other error.
pub(super) fn if_there<'a, T>(
    path: &'a Path,
    ask: impl FnOnce(&'a Path) -> io::Result<T>,
) -> io::Result<Option<T>> {
    match ask(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        asked => asked.map(Some).map_err(at(path)),
    }
}

/// Names in an error the file that it is about.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

pub(super) fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Returns the files in a folder, with their names; nothing if there is no such folder.
fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in if_there(folder, fs::read_dir)?.into_iter().flatten() {
        let path = entry.map_err(at(folder))?.path();
        if let Some(name) = name_of(&path) {
            all.push((name.to_owned(), path));
        }
    }
    all.sort();
    Ok(all)
}

pub(super) fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for (_, path) in files(folder)? {
        if if_there(&path, fs::metadata)?.is_some_and(|found| found.is_dir()) {
            all.push(path);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::tests::trace;
    use super::*;

    fn image() -> Hash {
        Hash::of(b"image")
    }

    struct World {
        store: TraceStore,
        dir: tempfile::TempDir,
    }

    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        World {
            store: TraceStore::open(dir.path()).unwrap(),
            dir,
        }
    }

    impl World {
        fn add(&self, from: Option<&str>, start: u64) -> Added {
            let bytes = trace(start, &[(0, 1, 0, 0)]);
            self.store
                .add(&image(), "ann", from, &bytes, start)
                .unwrap()
        }

        fn count(&self, from: Option<&str>) -> usize {
            let all = self.store.traces(&image(), "ann").unwrap();
            all.iter()
                .filter(|trace| trace.uploader.as_deref() == from)
                .count()
        }
    }

    #[test]
    fn the_65th_trace_takes_the_oldest_ones_place() {
        let world = world();
        for start in 0..70 {
            world.add(Some("ann"), start);
        }
        let kept = world.store.traces(&image(), "ann").unwrap();
        assert_eq!(kept.len(), TRACES_MAX);
        assert_eq!(kept[0].hash, Hash::of(&trace(6, &[(0, 1, 0, 0)])));
    }

    #[test]
    fn few_of_a_strangers_traces_count_and_all_of_the_owners() {
        let world = world();
        for start in 0..10 {
            world.add(Some("ann"), start);
            world.add(Some("bob"), 100 + start);
            world.add(None, 200 + start);
        }
        let kept = world.store.traces(&image(), "ann").unwrap();
        let counting = TraceStore::counting(&kept, "ann");
        let of = |who: Option<&str>| -> Vec<&Kept> {
            counting
                .iter()
                .filter(|t| t.uploader.as_deref() == who)
                .collect()
        };
        assert_eq!(
            (of(Some("ann")).len(), of(Some("bob")).len(), of(None).len()),
            (10, STRANGER_TRACES_COUNTED, NAMELESS_TRACES_COUNTED)
        );
        // The newest ones.
        let last = trace(109, &[(0, 1, 0, 0)]);
        assert!(of(Some("bob")).iter().any(|t| t.hash == Hash::of(&last)));
        assert_eq!(world.store.count_of("bob"), 10);
        world
            .store
            .remove_trace(&image(), "ann", &Hash::of(&last))
            .unwrap();
        assert_eq!(world.store.count_of("bob"), 9);
        let again = TraceStore::open(world.dir.path()).unwrap();
        assert_eq!((again.count_of("bob"), again.count_of("ann")), (9, 10));
        again.remove(&image(), "ann").unwrap();
        assert_eq!(again.count_of("ann"), 0);
    }

    #[test]
    fn a_stranger_displaces_no_more_than_a_share() {
        let world = world();
        for start in 0..64 {
            world.add(Some("ann"), start);
        }
        for start in 100..300 {
            world.add(Some("eve"), start);
            world.add(None, start + 1000);
        }
        let shares = [Some("ann"), Some("eve"), None].map(|from| world.count(from));
        assert_eq!(shares, [32, STRANGER_TRACES_MAX, STRANGER_TRACES_MAX]);
        // And the owner's traces are accepted again.
        for start in 5000..5100 {
            world.add(Some("ann"), start);
        }
        let shares = [Some("ann"), Some("eve"), None].map(|from| world.count(from));
        assert_eq!(shares, [32, STRANGER_TRACES_MAX, STRANGER_TRACES_MAX]);
    }

    #[test]
    fn the_same_trace_is_kept_once_and_a_longer_one_instead_of_its_beginning() {
        let world = world();
        let accesses: Vec<_> = (0..50).map(|i| (0, i, u64::from(i) * 10, 1)).collect();
        let (short, long) = (trace(5, &accesses[..20]), trace(5, &accesses));
        let add = |from, bytes: &[u8]| world.store.add(&image(), "ann", from, bytes, 1).unwrap();
        assert!(!add(None, &short).known);
        assert!(add(None, &short).known);
        let grown = add(None, &long);
        assert_eq!((grown.known, grown.dropped, grown.kept), (false, 1, 1));
        // An upload that arrives late.
        let late = add(None, &short);
        assert_eq!((late.known, late.hash), (true, Hash::of(&long)));
        // Another sender's shorter trace isn't replaced.
        assert_eq!(add(Some("eve"), &short).kept, 2);
        let read = world.store.read(&image(), "ann", &Hash::of(&long)).unwrap();
        assert_eq!(read.unwrap(), long);
        assert_eq!(
            world.store.read(&image(), "bob", &Hash::of(&long)).unwrap(),
            None
        );
    }

    #[test]
    fn what_was_not_finished_is_gone_after_a_restart_and_the_rest_is_there() {
        let world = world();
        world.add(Some("ann"), 1);
        let version = world
            .store
            .add_model(&image(), "ann", "floe", Hash::ZERO, b"model");
        assert_eq!(version.unwrap(), 1);
        let folder = world.store.folder(&image(), "ann");
        fs::write(folder.join(".new-abc"), b"half").unwrap();
        let again = TraceStore::open(world.dir.path()).unwrap();
        assert!(!folder.join(".new-abc").exists());
        assert_eq!(again.traces(&image(), "ann").unwrap().len(), 1);
        assert_eq!(again.images().unwrap(), [(image(), "ann".to_owned())]);
        assert!(again.model(&image(), "ann", "floe").unwrap().is_some());
        again.remove(&image(), "ann").unwrap();
        assert!(again.images().unwrap().is_empty());
        assert!(!world.dir.path().join(image().to_string()).exists());
    }

    #[test]
    fn the_newest_model_is_the_one_and_the_one_before_stays_for_a_while() {
        let world = world();
        world.add(None, 1);
        for version in 1..=4 {
            let digest = Hash::of(&[version]);
            let kept = world
                .store
                .add_model(&image(), "ann", "floe", digest, &[version]);
            assert_eq!(kept.unwrap(), u64::from(version));
        }
        let newest = world.store.model(&image(), "ann", "floe").unwrap().unwrap();
        assert_eq!((newest.version, newest.digest), (4, Hash::of(&[4])));
        assert_eq!(fs::read(&newest.path).unwrap(), [4]);
        assert!(
            world
                .store
                .model(&image(), "ann", "vtube")
                .unwrap()
                .is_none()
        );
        let folder = world.store.folder(&image(), "ann");
        assert_eq!(models(&folder, "floe").unwrap().len(), MODEL_VERSIONS);
        // And no model is kept for an image that is gone.
        let other = Hash::of(b"gone");
        let late = world
            .store
            .add_model(&other, "ann", "floe", Hash::ZERO, b"x");
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_folder_that_can_not_be_looked_at_is_not_taken_for_an_empty_one() {
        let world = world();
        world.add(Some("ann"), 1);
        let folder = world.store.folder(&image(), "ann");
        let kept = world.dir.path().join("kept");
        fs::rename(&folder, &kept).unwrap();
        std::os::unix::fs::symlink(&folder, &folder).unwrap();
        let bytes = trace(2, &[(0, 1, 0, 0)]);
        let added = world.store.add(&image(), "ann", None, &bytes, 2);
        assert!(added.is_err() && world.store.images().is_err());
        assert!(world.store.remove(&image(), "ann").is_err());
        let model = world
            .store
            .add_model(&image(), "ann", "floe", Hash::ZERO, b"x");
        assert_ne!(model.unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_file(&folder).unwrap();
        fs::rename(&kept, &folder).unwrap();
        assert_eq!(world.count(Some("ann")), 1);
    }
}

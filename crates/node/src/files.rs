//! The files that a node keeps of its own: read up to a bound, replaced all at once, readable by the node's user only.

use super::record::Record;
use crate::error::{NodeError, at, failed};
use floe_image::{Hash, Manifest};
use floe_store::Durability;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Mode of a directory that others, such as the machines' own users, may pass on the way to what is theirs, but not list.
pub(crate) const PASSABLE_MODE: u32 = 0o711;

/// A machine's record in its directory.
pub const RECORD_FILE: &str = "machine.json";
/// Largest record that is read: a hundred times what one with the longest lists takes.
const RECORD_BYTES_MAX: u64 = 4 << 20;

impl Record {
    /// Reads the record in a machine's directory.
    pub fn load(dir: &Path) -> Result<Record, NodeError> {
        let path = dir.join(RECORD_FILE);
        let shown = path.display();
        let bytes =
            read_bounded(&path, RECORD_BYTES_MAX).map_err(at(format!("cannot read {shown}")))?;
        Record::parse(&bytes).map_err(|why| {
            failed(
                format!("{shown} is no machine's record: {why}"),
                "restore the file from a backup, or remove the machine's directory",
            )
        })
    }

    /// Writes the record, all or nothing.
    pub fn save(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file(&dir.join(RECORD_FILE), &self.bytes())
    }

    /// The same without waiting for the disk: for a machine of which nothing has to be left after a power cut yet.
    pub fn save_soon(&self, dir: &Path) -> Result<(), NodeError> {
        replace_file_soon(&dir.join(RECORD_FILE), &self.bytes())
    }
}

/// Keeps a remote image's manifest beside the machine: a restarted node needs it before it can reach anybody.
pub fn save_manifest(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// The same without waiting for the disk, of an image that is in the repository soon.
pub fn save_manifest_soon(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file_soon(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// The manifest that was kept, checked against its id.
pub fn load_manifest(dir: &Path, id: &Hash) -> Result<Manifest, NodeError> {
    let path = dir.join(format!("{id}.manifest"));
    let bytes = fs::read(&path).map_err(at(format!("cannot read {}", path.display())))?;
    let damaged = |why: String| {
        failed(
            format!("{} is damaged: {why}", path.display()),
            "pull the image again, or remove the machine",
        )
    };
    if Hash::of(&bytes) != *id {
        return Err(damaged("its hash is not its name".into()));
    }
    Manifest::decode(&bytes).map_err(|error| damaged(error.to_string()))
}

/// File of the times at which a machine was paused for buffering.
const PAUSES_FILE: &str = "pauses.json";

/// Keeps when a machine was paused for buffering: from and to, Unix time in microseconds.
pub(crate) fn save_pauses(dir: &Path, pauses: &[(u64, u64)]) -> Result<(), NodeError> {
    let bytes = serde_json::to_vec(pauses).expect("numbers");
    replace_file(&dir.join(PAUSES_FILE), &bytes)
}

/// What was kept; nothing if it can't be read, which costs a trace some of its worth.
pub(crate) fn load_pauses(dir: &Path) -> Vec<(u64, u64)> {
    let read = read_bounded(&dir.join(PAUSES_FILE), RECORD_BYTES_MAX);
    read.ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// A file's first `bytes_max` bytes: what a larger one holds is cut off there, and its parser refuses it.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What an earlier node kept in a private directory, which is made if there is none: each `NAME.json` by its NAME. One that
/// is not understood is set aside; `lost` says what it is not and what that costs.
pub(crate) fn load_kept<T>(
    dir: &Path,
    bytes_max: u64,
    parse: impl Fn(&[u8]) -> Result<T, String>,
    lost: &str,
) -> Result<BTreeMap<String, T>, NodeError> {
    make_private_dir(dir)?;
    let mut kept = BTreeMap::new();
    let entries = fs::read_dir(dir).map_err(at(format!("cannot list {}", dir.display())))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let bytes = read_bounded(&path, bytes_max).map_err(|error| error.to_string());
        match bytes.and_then(|bytes| parse(&bytes)) {
            Ok(one) => {
                kept.insert(name.to_owned(), one);
            }
            Err(why) => set_aside(&path, &why, lost),
        }
    }
    Ok(kept)
}

/// Makes a directory that only this user may look into.
pub fn make_private_dir(dir: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(at(format!("cannot make {}", dir.display())))
}

/// The files of a directory, those that were written first before the others; none if it can't be listed.
pub fn oldest_first(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = files
        .map(|file| (file.metadata().and_then(|m| m.modified()).ok(), file.path()))
        .collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// Replaces a file by one with these bytes, readable by this user only; after a crash it is the old or the new one.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    replace(path, bytes, Durability::Durable)
}

/// The same, but after a power cut it may be the old one, the new one or damaged.
pub(crate) fn replace_file_soon(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    replace(path, bytes, Durability::Soon)
}

fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), NodeError> {
    floe_store::replace_file(path, bytes, 0o600, durability)
        .map_err(at(format!("cannot write {}", path.display())))
}

/// What the names of files that were set aside end with, before the time.
const UNREADABLE: &str = ".unreadable-";
/// Files that are set aside in one directory; of more, the oldest go.
const UNREADABLE_MAX: usize = 8;

/// Gives a file that can't be understood another name, so that its place is free and somebody can look at it. `lost` says what
/// is missing without it.
pub(crate) fn set_aside(path: &Path, why: &str, lost: &str) {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("{UNREADABLE}{}", super::unix_now()));
    let aside = path.with_file_name(name);
    let (from, to) = (path.display(), aside.display());
    match fs::rename(path, &aside) {
        Ok(()) => tracing::error!("{from} {lost} ({why}); it is now {to}"),
        Err(error) => tracing::error!("{from} {lost} ({why}); it stays there: {error}"),
    }
    let beside = oldest_first(path.parent().unwrap_or(Path::new("/")));
    let is_aside = |path: &PathBuf| path.to_string_lossy().contains(UNREADABLE);
    let aside: Vec<_> = beside.into_iter().filter(is_aside).collect();
    for old in &aside[..aside.len().saturating_sub(UNREADABLE_MAX)] {
        let _ = fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::record::tests::record;

    #[test]
    fn pauses_come_back_and_damaged_ones_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load_pauses(dir.path()), []);
        save_pauses(dir.path(), &[(1, 2), (3, 4)]).unwrap();
        assert_eq!(load_pauses(dir.path()), [(1, 2), (3, 4)]);
        fs::write(dir.path().join(PAUSES_FILE), b"[[1").unwrap();
        assert_eq!(load_pauses(dir.path()), []);
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
        let mode = fs::metadata(dir.path().join(RECORD_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_understood_is_set_aside_and_does_not_pile_up() {
        let dir = tempfile::tempdir().unwrap();
        let number = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes)
                .parse::<u32>()
                .map_err(|e| e.to_string())
        };
        for round in 0..3 * UNREADABLE_MAX {
            fs::write(dir.path().join("good.json"), "7").unwrap();
            fs::write(dir.path().join(format!("bad-{round}.json")), "").unwrap();
            let kept = load_kept(dir.path(), 100, number, "is no number").unwrap();
            assert_eq!(kept, BTreeMap::from([("good".to_owned(), 7)]));
            assert!(!dir.path().join(format!("bad-{round}.json")).exists());
        }
        let names = fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 1 + UNREADABLE_MAX);
    }

    #[test]
    fn an_interrupted_write_leaves_the_old_record() {
        let dir = tempfile::tempdir().unwrap();
        record().save(dir.path()).unwrap();
        fs::write(dir.path().join("machine.json.tmp"), b"{\"versi").unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record());
    }

    #[test]
    fn a_manifest_that_is_not_what_its_name_says_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            created_unix_s: 1,
            ..Default::default()
        };
        let id = manifest.id();
        save_manifest(dir.path(), &id, &manifest).unwrap();
        assert_eq!(load_manifest(dir.path(), &id).unwrap(), manifest);
        let other = Manifest {
            created_unix_s: 2,
            ..Default::default()
        };
        fs::write(dir.path().join(format!("{id}.manifest")), other.encode()).unwrap();
        assert!(
            load_manifest(dir.path(), &id)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}

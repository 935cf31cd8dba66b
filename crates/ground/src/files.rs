//! The node's own files: read up to a bound, replaced atomically, readable by the node's user only.

use crate::error::{NodeError, at, at_named, failed, refused};
use crate::time::unix_now;
use floe_image::{Hash, Manifest};
use floe_store::Durability;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Mode of a directory that other users, such as the machines' own, may traverse to reach their files, but may not list.
pub const PASSABLE_MODE: u32 = 0o711;

/// Keeps a remote image's manifest beside the machine: a restarted node needs it before it can reach any source.
pub fn save_manifest(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// Does the same without waiting for the disk, for an image that will soon be in the repository.
pub fn save_manifest_soon(dir: &Path, id: &Hash, manifest: &Manifest) -> Result<(), NodeError> {
    replace_file_soon(&dir.join(format!("{id}.manifest")), &manifest.encode())
}

/// Reads the manifest that was kept, checked against its id.
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

/// Reads a file's first `bytes_max` bytes. Of a larger file the rest is cut off, so its parser refuses it.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads what an earlier node kept in a file; `None` if there is none. What is no file, or not what it should be, is set aside, and the
/// error is logged with `lost`, which says what is missing without it. One that can't be read now is an error: it may be whole.
pub fn load_one<T>(
    path: &Path,
    bytes_max: u64,
    parse: impl Fn(&[u8]) -> Result<T, String>,
    lost: &str,
) -> Result<Option<T>, NodeError> {
    use rustix::io::Errno;
    let is_no_file = |error: &io::Error| {
        matches!(
            Errno::from_io_error(error),
            Some(Errno::ISDIR | Errno::LOOP)
        )
    };
    let parsed = match read_bounded(path, bytes_max) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_no_file(&error) => Err(error.to_string()),
        Err(error) => return Err(at(format!("cannot read {}", path.display()))(error)),
    };
    let one = parsed.map_err(|why| set_aside(path, &why, lost));
    Ok(one.ok())
}

/// Reads what an earlier node kept in a private directory, each `NAME.json` as [`load_one`] does, by NAME. Creates the directory if needed.
pub fn load_kept<T>(
    dir: &Path,
    bytes_max: u64,
    parse: impl Fn(&[u8]) -> Result<T, String>,
    lost: &str,
) -> Result<BTreeMap<String, T>, NodeError> {
    make_private_dir(dir)?;
    let mut kept = BTreeMap::new();
    let entries = fs::read_dir(dir).map_err(at(format!("cannot list {}", dir.display())))?;
    for entry in entries {
        let path = entry.map_err(at(format!("cannot list {}", dir.display())))?;
        let path = path.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        if let Some(one) = load_one(&path, bytes_max, &parse, lost)? {
            kept.insert(name.to_owned(), one);
        }
    }
    Ok(kept)
}

/// Creates a directory that only this user can access.
pub fn make_private_dir(dir: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(at(format!("cannot make {}", dir.display())))
}

/// Returns the files of a directory, the oldest first; none if it can't be listed.
pub fn oldest_first(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<_> = files
        .map(|file| (file.metadata().and_then(|m| m.modified()).ok(), file.path()))
        .collect();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// Returns whether there may be something at a path. If that can't be found out, there may be: whoever opens it learns why it can't.
pub fn may_be_there(path: &Path) -> bool {
    let absent = |error: io::Error| {
        use io::ErrorKind as Kind;
        matches!(error.kind(), Kind::NotFound | Kind::NotADirectory)
    };
    !fs::metadata(path).is_err_and(absent)
}

/// Makes the temporary file that becomes the file at a path that a caller named, in the same directory. What is at that path is only
/// overwritten with `force`.
pub fn beside(to: &Path, force: bool) -> Result<NamedTempFile, NodeError> {
    if !force && may_be_there(to) {
        return Err(refused(
            format!("{} exists", to.display()),
            "overwrite it with --force",
        ));
    }
    let dir = to.parent().unwrap_or(Path::new("/"));
    tempfile::Builder::new()
        .prefix(".floe-export")
        .tempfile_in(dir)
        .map_err(at_named(format!("cannot write in {}", dir.display())))
}

/// Gives such a file its name once it is complete.
pub fn put_in_place(file: NamedTempFile, to: &Path) -> Result<(), NodeError> {
    let write = || {
        file.as_file().sync_all()?;
        file.persist(to).map_err(|error| error.error)?;
        let dir = to.parent().unwrap_or(Path::new("/"));
        fs::File::open(dir)?.sync_all()
    };
    write().map_err(at_named(format!("cannot write {}", to.display())))
}

/// Replaces a file with these bytes, readable by this user only. After a crash it is the old or the new one.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    replace(path, bytes, Durability::Durable)
}

/// Does the same without waiting for the disk: after a power cut the file is the old one, the new one or damaged.
pub fn replace_file_soon(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    replace(path, bytes, Durability::Soon)
}

fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), NodeError> {
    floe_store::replace_file(path, bytes, 0o600, durability)
        .map_err(at(format!("cannot write {}", path.display())))
}

/// Suffix of the names of files that were set aside, followed by the time.
const UNREADABLE: &str = ".unreadable-";
/// How many files that were set aside are kept in a directory; beyond that the oldest are deleted.
const UNREADABLE_MAX: usize = 8;

/// Renames an unreadable file, so that a new one can be written and somebody can examine this one. The log gets `why` and
/// `lost`, which says what is missing without the file.
fn set_aside(path: &Path, why: &str, lost: &str) {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("{UNREADABLE}{}", unix_now()));
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
        // what can't be read now may be whole
        let unread = dir.path().join("unread.json");
        std::os::unix::fs::symlink("x".repeat(300), &unread).unwrap();
        let error = load_kept(dir.path(), 100, number, "is no number").unwrap_err();
        assert!(
            error.to_string().contains(unread.to_str().unwrap()),
            "{error}"
        );
        assert!(unread.is_symlink());
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

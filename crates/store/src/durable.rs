//! Writes files that are there whole or not at all: temporary name, fsync, rename, fsync of the directory.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tempfile::{NamedTempFile, TempPath};

use crate::StoreError;

/// What may be left of a replaced file after a power cut. (If the process is killed, it is always the old or the new one.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The old or the new one; the call waits for the disk.
    Durable,
    /// The old one, the new one or a damaged one: for files that aren't needed after a power cut.
    Soon,
}

/// Replaces a small file all at once, with this mode: writes a temporary file beside it and renames that;
/// [`Durability::Durable`] also syncs the file and the directory.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = dir.join(temporary);
    let write = || {
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes)?;
        if durability == Durability::Durable {
            file.sync_all()?;
        }
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = write() {
        // On a full disk, half a file would take room that others need.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    match durability {
        Durability::Durable => File::open(dir)?.sync_all(),
        Durability::Soon => Ok(()),
    }
}

/// How the name of a file begins that has not got its own yet.
pub(crate) const TEMPORARY: &str = "new-";

/// Gives a file a second name in a directory, which is removed when this is dropped. On another file system, or on one where files have
/// one name each, it is copied instead.
pub fn second_name(file: &Path, dir: &Path) -> io::Result<TempPath> {
    let linked = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .make_in(dir, |name| std::fs::hard_link(file, name));
    match linked {
        Ok(linked) => Ok(linked.into_temp_path()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(e),
        Err(_) => {
            let mut copy = tempfile::Builder::new()
                .prefix(TEMPORARY)
                .tempfile_in(dir)?;
            io::copy(&mut File::open(file)?, copy.as_file_mut())?;
            Ok(copy.into_temp_path())
        }
    }
}

/// Returns whether this file has this name.
pub(crate) fn has_name(file: &File, name: &Path) -> io::Result<bool> {
    let named = match std::fs::metadata(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named?,
    };
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (named.dev(), named.ino()))
}

/// Makes a temporary file in `tmp`, a directory that the caller keeps closed to others, with its final mode. The file is
/// removed when this is dropped.
pub(crate) fn temporary(tmp: &Path, mode: u32) -> Result<NamedTempFile, StoreError> {
    let make = || {
        let file = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempfile_in(tmp)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    };
    make().map_err(|e| StoreError::io("create a file in", tmp, e))
}

/// Gives a synced temporary file its name, replacing the file that had it. Doesn't sync the directory.
pub(crate) fn rename(file: TempPath, to: &Path) -> Result<(), StoreError> {
    file.persist(to)
        .map_err(|e| StoreError::io("rename a file to", to, e.error))
}

/// Writes a whole file durably.
pub(crate) fn write_file(tmp: &Path, to: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let mut file = temporary(tmp, mode)?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(|e| StoreError::io("write", to, e))?;
    rename(file.into_temp_path(), to)?;
    sync_parent(to)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| StoreError::io("sync", dir, e))
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), StoreError> {
    sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// Makes a directory with this mode, and makes its name durable. A directory that exists keeps its mode.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<(), StoreError> {
    match std::fs::create_dir(dir) {
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(mode))
            .map_err(|e| StoreError::io("set the mode of", dir, e))
            .and_then(|()| sync_parent(dir)),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(StoreError::io("create", dir, e)),
    }
}

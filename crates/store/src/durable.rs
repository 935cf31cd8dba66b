//! Files that appear whole or not at all: temporary name, fsync, rename, fsync of the directory.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::{NamedTempFile, TempPath};

use crate::StoreError;

/// A temporary file in `tmp`, which the caller keeps closed to others; it has the mode with which it will be seen. Removed
/// when dropped.
pub(crate) fn temporary(tmp: &Path, mode: u32) -> Result<NamedTempFile, StoreError> {
    let make = || {
        let file = tempfile::Builder::new().prefix("new-").tempfile_in(tmp)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    };
    make().map_err(|e| StoreError::io("create a file in", tmp, e))
}

/// Give a synced temporary file its name, replacing what had it. The directory is not synced yet.
pub(crate) fn rename(file: TempPath, to: &Path) -> Result<(), StoreError> {
    file.persist(to)
        .map_err(|e| StoreError::io("rename a file to", to, e.error))
}

/// Write a whole file durably.
pub(crate) fn write_file(tmp: &Path, to: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let mut file = temporary(tmp, mode)?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(|e| StoreError::io("write", to, e))?;
    rename(file.into_temp_path(), to)?;
    sync_parent(to)
}

/// Make names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| StoreError::io("sync", dir, e))
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), StoreError> {
    sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// Make a directory with this mode, and its name durable. One that is there keeps its mode.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<(), StoreError> {
    match std::fs::create_dir(dir) {
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(mode))
            .map_err(|e| StoreError::io("set the mode of", dir, e))
            .and_then(|()| sync_parent(dir)),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(StoreError::io("create", dir, e)),
    }
}

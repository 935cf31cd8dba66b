//! Files that appear whole or not at all: temporary name, fsync, rename, fsync of the directory.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::{NamedTempFile, TempPath};

use crate::StoreError;

/// Published files are for any web server to read.
const FILE_MODE: u32 = 0o644;

/// A temporary file in `tmp`; removed when dropped.
pub(crate) fn temporary(tmp: &Path) -> Result<NamedTempFile, StoreError> {
    tempfile::Builder::new()
        .prefix("new-")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(tmp)
        .map_err(|e| StoreError::io("create a file in", tmp, e))
}

/// Give a synced temporary file its name, replacing what had it. The directory is not synced yet.
pub(crate) fn rename(file: TempPath, to: &Path) -> Result<(), StoreError> {
    file.persist(to)
        .map_err(|e| StoreError::io("rename a file to", to, e.error))
}

/// Write a whole file durably.
pub(crate) fn write_file(tmp: &Path, to: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = temporary(tmp)?;
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

/// Make a directory and its name durable; true when it is new.
pub(crate) fn make_dir(dir: &Path) -> Result<bool, StoreError> {
    match std::fs::create_dir(dir) {
        Ok(()) => sync_parent(dir).map(|()| true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(StoreError::io("create", dir, e)),
    }
}

//! The hub's files: how they are written, listed and removed, what they take on the disk, and when one is damaged.

use super::error::HubError;
use std::path::{Path, PathBuf};

/// What files take on the disk is counted in blocks of this size, as file systems give it: many small files are not cheap.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Returns what a file of this size takes on the disk.
pub(crate) fn on_disk(file_bytes: u64) -> u64 {
    file_bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

/// Returns whether an error means that a file's content is wrong, not that it is merely hard to read now.
pub(crate) fn is_damage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound
    )
}

/// Returns the names and paths of what is in a folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, HubError> {
    let read = || -> std::io::Result<Vec<(String, PathBuf)>> {
        std::fs::read_dir(folder)?
            .map(|entry| {
                entry.map(|entry| {
                    (
                        entry.file_name().to_string_lossy().into_owned(),
                        entry.path(),
                    )
                })
            })
            .collect()
    };
    read().map_err(HubError::file("cannot list", folder))
}

/// Removes a file that is not needed; one that stays is a warning.
pub(crate) fn remove_file(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a file");
        }
        _ => {}
    }
}

/// Removes a folder with all that is in it; one that stays is a warning.
pub(crate) fn remove_folder(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a folder");
        }
        _ => {}
    }
}

/// Writes a file atomically, so that it survives a power cut.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path
        .parent()
        .ok_or_else(|| std::io::Error::other("a file without a folder"))?;
    put_in_place(write_aside(folder, bytes)?, folder, path)
}

/// Writes a file in `folder` that has no name yet; it goes if it gets none.
pub(crate) fn write_aside(folder: &Path, bytes: &[u8]) -> std::io::Result<tempfile::NamedTempFile> {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Gives a file its name in `folder`.
pub(crate) fn put_in_place(
    file: tempfile::NamedTempFile,
    folder: &Path,
    path: &Path,
) -> std::io::Result<()> {
    file.persist(path).map_err(|e| e.error)?;
    sync_folder(folder)
}

/// Makes renames in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

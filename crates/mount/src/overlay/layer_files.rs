//! The files of a layer: what they are called, and how those are taken away that belong to no layer of the disk.

use super::map::HEADER_BYTES;
use super::storage::access;
use crate::MountError;
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the path of a layer's data in its disk's directory.
pub(crate) fn data_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("layer-{number}.data"))
}

/// Returns the path of a layer's map.
pub(crate) fn map_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("layer-{number}.map"))
}

/// Takes files away that belong to no layer of the disk: removes them if nothing was ever written into them, and sets them aside
/// otherwise.
pub(super) fn take_away(dir: &Path, number: u32) -> Result<(), MountError> {
    // The map first: a layer exists as long as its map does.
    let paths = [map_path(dir, number), data_path(dir, number)];
    if is_blank(dir, number)? {
        return paths.iter().try_for_each(|path| {
            match access(path, || std::fs::remove_file(path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(MountError::io("remove", path)(error))
                }
                _ => Ok(()),
            }
        });
    }
    let mut to = 1;
    while is_there(&aside(&paths[0], to))? || is_there(&aside(&paths[1], to))? {
        to += 1;
    }
    for path in paths {
        let to = aside(&path, to);
        match access(&path, || std::fs::rename(&path, &to)) {
            Ok(()) => tracing::warn!(
                path = %to.display(),
                "a file of a layer that belongs to no disk is set aside; docs/operations.md says what to do with it (\"Files that are set aside\")"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(MountError::io("set aside", path)(error)),
        }
    }
    Ok(())
}

/// Returns the name that a layer's file has once it is set aside.
fn aside(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("aside-{number}-{name}"))
}

fn is_there(path: &Path) -> Result<bool, MountError> {
    match access(path, || std::fs::symlink_metadata(path)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(MountError::io("look at", path)(error)),
    }
}

/// Returns whether nothing was ever written into a layer: its map has nothing but a header, and its data nothing at all.
pub(super) fn is_blank(dir: &Path, number: u32) -> Result<bool, MountError> {
    let map = is_hole(&map_path(dir, number), HEADER_BYTES as u64)?;
    Ok(map && is_hole(&data_path(dir, number), 0)?)
}

/// Returns whether a file has nothing from `offset` on, or is not there.
fn is_hole(path: &Path, offset: u64) -> Result<bool, MountError> {
    let look = || -> io::Result<bool> {
        // A directory or a link is nothing that a layer made.
        if !access(path, || std::fs::symlink_metadata(path))?.is_file() {
            return Ok(false);
        }
        let file = access(path, || File::open(path))?;
        match access(path, || Ok(rustix::fs::seek(&file, SeekFrom::Data(offset))))? {
            Err(rustix::io::Errno::NXIO) => Ok(true),
            found => Ok(found.map(|_| false)?),
        }
    };
    match look() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        looked => looked.map_err(MountError::io("look at", path)),
    }
}

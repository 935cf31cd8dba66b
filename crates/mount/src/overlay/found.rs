//! What is found in a disk's directory when it is opened: its layers, and what a power cut or a killed node left beside them.
//!
//! A layer is there if its map is. Only two things say that a map is not there: that no file has its name, and that the file's header
//! is not complete or all zeros, which is what a power cut leaves of a map that was never made durable. Any other error is one: the
//! disk isn't opened, and everything stays as it is.
//!
//! Files of a layer that belong to no layer of the disk are *set aside*: renamed, so that no later start takes them for a layer.
//! They are removed only if nothing was ever written into them.

use super::layer_files::{data_path, is_blank, map_path, take_away};
use super::map;
use super::storage::access;
use super::{LAYERS_OPENED_MAX, Layer, RECORD};
use crate::MountError;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the layers in a directory, from number `first` to the last one that is there. Makes one of this size if there is none, or the
/// top one is shorter: the disk was grown, and nothing was written since.
pub(super) fn open_layers(
    dir: &Path,
    live_dir: &Path,
    first: u32,
    size: u64,
) -> Result<Vec<Arc<Layer>>, MountError> {
    let there = numbers(dir)?;
    let mut layers = Vec::new();
    let mut next = first;
    while layers.len() < LAYERS_OPENED_MAX && map::is_made(&map_path(dir, next))? {
        layers.push(Arc::new(Layer::open(dir, live_dir, next, size)?));
        next += 1;
    }
    for above in there.range(next..) {
        refuse_written(dir, live_dir, (next, *above), size)?;
    }
    // Below are layers whose content the base has; above is what was never flushed.
    for nobodys in there.range(..first).chain(there.range(next..)) {
        take_away(dir, *nobodys)?;
    }
    if layers.last().is_none_or(|top| top.disk_bytes() < size) {
        layers.push(Arc::new(Layer::create(dir, live_dir, next, size)?));
    }
    Ok(layers)
}

/// Refuses a layer that has something in it and lies above one that isn't there: no layer is flushed before those below it are, so
/// a power cut did not do that.
fn refuse_written(
    dir: &Path,
    live_dir: &Path,
    (missing, above): (u32, u32),
    size: u64,
) -> Result<(), MountError> {
    let path = map_path(dir, above);
    if !map::is_made(&path)? {
        return Ok(());
    }
    let layer = Layer::open(dir, live_dir, above, size)?;
    if layer.present() == 0 {
        layer.close();
        return Ok(());
    }
    let reason = match above - missing {
        0 => format!("this layer is one more than the {LAYERS_OPENED_MAX} that a disk may have"),
        _ => format!(
            "this layer has what the guest wrote, but below it layer-{missing}.map is missing or has no header; put that file \
             back, or move all files of the layers above away to go on without them"
        ),
    };
    Err(MountError::Overlay { path, reason })
}

/// Refuses layers without a record of what they stand on, unless nothing was ever written into them.
pub(super) fn nothing_written(dir: &Path) -> Result<(), MountError> {
    let there = numbers(dir)?;
    for number in &there {
        if !is_blank(dir, *number)? {
            return Err(MountError::Overlay {
                path: dir.join(RECORD),
                reason: format!(
                    "it is missing, but a guest wrote to the layer {number} beside it; put it back, or move the layers away to \
                     begin anew"
                ),
            });
        }
    }
    there.iter().try_for_each(|number| take_away(dir, *number))
}

/// Returns the numbers of which there is a layer's file.
fn numbers(dir: &Path) -> Result<BTreeSet<u32>, MountError> {
    let list = || -> io::Result<BTreeSet<u32>> {
        let mut numbers = BTreeSet::new();
        for entry in access(dir, || std::fs::read_dir(dir))? {
            let name = access(dir, || entry)?.file_name();
            numbers.extend(name.to_str().and_then(number_of));
        }
        Ok(numbers)
    };
    list().map_err(MountError::io("list", dir))
}

fn number_of(name: &str) -> Option<u32> {
    let (number, kind) = name.strip_prefix("layer-")?.split_once('.')?;
    let number: u32 = number.parse().ok()?;
    let exact = [map_path, data_path].map(|path| path(Path::new(""), number));
    (kind == "map" || kind == "data")
        .then_some(number)
        .filter(|_| exact.contains(&PathBuf::from(name)))
}

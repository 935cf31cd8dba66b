//! Copies an image's packs unchanged from one directory of images to another.
//!
//! A pull fetches items in the order of their addresses and packs them anew. Between directories that would undo how the
//! packs were arranged, so packs that are mostly missing on the other side are copied whole first. They are noted like the
//! packs of an interrupted pull, and the pull that follows continues with them and fetches the rest. A pack that also holds
//! data of images outside this image's lineage is not copied, since that data must not be published along with it.

use super::unfinished::{Unfinished, is_mostly_missing};
use super::{Cancel, OnProgress, Progress, TransferError, check};
use floe_image::{Hash, Kind};
use floe_store::Repository;
use std::collections::HashSet;

/// What [`copy_packs`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the packs that were copied.
    pub bytes: u64,
    /// How many chunks in them were not there before, each counted once.
    pub chunks: u64,
}

/// Copies packs of an image to a repository that doesn't have it.
pub fn copy_packs(
    from: &Repository,
    to: &Repository,
    image: &Hash,
    cancel: &Cancel,
    progress: OnProgress<'_>,
) -> Result<Copied, TransferError> {
    if to.manifest(image).is_ok() {
        return Ok(Copied::default());
    }
    let unfinished = Unfinished::open(to, None, image, 0)?;
    let packs = from.packs_without_strangers(image)?;
    let total_bytes = packs.iter().map(|pack| pack.file_bytes).sum();
    let (mut copied, mut done_bytes) = (Copied::default(), 0);
    let mut chunks = HashSet::new();
    for pack in &packs {
        check(cancel)?;
        done_bytes += pack.file_bytes;
        if unfinished.has(pack) {
            continue;
        }
        let items = from.pack_items(pack)?;
        let there = to.has(unfinished.known(), &items)?;
        if !is_mostly_missing(&there) {
            continue;
        }
        let new = items.iter().zip(there).filter(|(_, there)| !there);
        let new = new.filter(|((kind, _), _)| *kind == Kind::Chunk);
        chunks.extend(new.map(|((_, hash), _)| *hash));
        let taken = to.adopt_pack(&from.pack_path(&pack.id))?;
        copied.bytes += taken.file_bytes;
        unfinished.note(taken);
        progress(Progress {
            done_bytes,
            total_bytes,
            wire_bytes: copied.bytes,
        });
    }
    copied.chunks = chunks.len() as u64;
    Ok(copied)
}

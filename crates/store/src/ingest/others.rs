//! The other images of a repository as lenders: what any of them has isn't stored again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, Ordering};

use floe_image::{Hash, Kind, Layout, PackRef};

use crate::repository::{Scope, Walk};
use crate::{Repository, StoreError};

/// Most bytes of packs' indices that are searched: some 15 million items, which take 240 MB in the scope and stand for 60 GB of
/// disks and memories. Items beyond that may be stored twice.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// What is known about a pack in this ingest.
const UNTOUCHED: u8 = 0;
const BORROWED: u8 = 1;
const GONE: u8 = 2;

/// The packs of all images, and which of them the new image needs.
pub(super) struct Others {
    repository: Repository,
    packs: Vec<PackRef>,
    scope: Scope,
    states: Vec<AtomicU8>,
}

impl Others {
    /// Collects the packs of all images, the newest image's first, except the packs of the images `known`.
    pub fn new(repository: &Repository, known: &[Hash]) -> Result<Others, StoreError> {
        let mut seen = HashSet::new();
        for id in known {
            seen.extend(repository.layout(id)?.packs.iter().map(|pack| pack.id));
        }
        let (mut packs, mut index_bytes) = (Vec::new(), 0);
        for layout in repository.layouts()? {
            for pack in layout.packs {
                let bytes = index_bytes + u64::from(pack.index_bytes);
                let full = bytes > INDEX_BYTES_MAX
                    || packs.len() >= floe_image::LAYOUT_PACKS_MAX as usize / 2;
                if !full && seen.insert(pack.id) {
                    packs.push(pack);
                    index_bytes = bytes;
                }
            }
        }
        let scope = repository.scope_of(&Layout {
            packs: packs.clone(),
        })?;
        Ok(Others {
            repository: repository.clone(),
            states: packs.iter().map(|_| AtomicU8::new(UNTOUCHED)).collect(),
            packs,
            scope,
        })
    }

    /// Returns whether one of the packs holds the item, and notes that the new image needs that pack. A pack that can't be read
    /// or is gone lends nothing.
    pub fn lend(&self, kind: Kind, hash: &Hash, walk: &mut Walk) -> bool {
        let Ok(Some(number)) = self.scope.pack_of(kind, hash, walk) else {
            return false;
        };
        let state = &self.states[number as usize];
        if state.load(Ordering::Acquire) == UNTOUCHED {
            let kept = self.repository.keep_pack(&self.packs[number as usize]);
            let new = if kept { BORROWED } else { GONE };
            // Another worker may have been first; then its result counts.
            let _ = state.compare_exchange(UNTOUCHED, new, Ordering::AcqRel, Ordering::Acquire);
        }
        state.load(Ordering::Acquire) == BORROWED
    }

    /// Returns the packs that the new image needs.
    pub fn borrowed(&self) -> impl Iterator<Item = PackRef> + '_ {
        let with_states = self.packs.iter().zip(&self.states);
        with_states
            .filter(|(_, state)| state.load(Ordering::Acquire) == BORROWED)
            .map(|(pack, _)| *pack)
    }
}

//! Publishes images: checks that an image is complete, then makes it visible with a rename.

use floe_image::{CHUNK_SIZE, Hash, Kind, Layout, Manifest, Region, SEGMENT_SPAN};
use rustix::fs::FlockOperation;

use super::Repository;
use super::scope::{Scope, Walk};
use crate::StoreError;

/// How many segments are read at once during the check: 2 MiB.
pub(super) const SEGMENTS_AT_ONCE: usize = 64;

impl Repository {
    /// Publishes an image atomically: it is visible whole or not at all. Fails ([`StoreError::Incomplete`]) if the packs don't
    /// hold every segment and chunk; packs that the image doesn't need are left out of its layout.
    pub fn publish(&self, manifest: &Manifest, layout: &Layout) -> Result<Hash, StoreError> {
        manifest.check().map_err(|source| StoreError::Format {
            path: self.dir().join("images"),
            source,
        })?;
        let layout = self.check_complete(manifest, layout)?;
        let bytes = manifest.encode();
        let id = Hash::of(&bytes);
        let _lock = self.lock(FlockOperation::LockShared)?;
        for pack in &layout.packs {
            let path = self.pack_path(&pack.id);
            let file_bytes = std::fs::metadata(&path)
                .map_err(|e| StoreError::io("read", &path, e))?
                .len();
            if file_bytes != pack.file_bytes {
                return Err(StoreError::Invalid {
                    what: format!(
                        "{} has {file_bytes} bytes instead of {}; fetch it again",
                        path.display(),
                        pack.file_bytes
                    ),
                });
            }
        }
        self.sync_packs(&layout.packs)?;
        self.write_file(&self.layout_path(&id), &layout.encode())?;
        self.write_file(&self.manifest_path(&id), &bytes)?;
        Ok(id)
    }

    /// Checks that the packs hold every segment and chunk; returns the layout without packs that the image doesn't need.
    pub fn check_complete(
        &self,
        manifest: &Manifest,
        layout: &Layout,
    ) -> Result<Layout, StoreError> {
        let scope = self.scope_of(layout)?;
        if let Some((pack, why)) = scope.broken().first() {
            return Err(StoreError::Invalid {
                what: format!("pack {} cannot be used: {why}", pack.id),
            });
        }
        let mut check = Check {
            scope: &scope,
            used: vec![false; layout.packs.len()],
            missing: 0,
            first: None,
        };
        for region in &manifest.regions {
            check.region(region)?;
        }
        if let Some((first, place)) = check.first {
            return Err(StoreError::Incomplete {
                image: manifest.id(),
                missing: check.missing,
                first,
                place,
            });
        }
        let packs = layout
            .packs
            .iter()
            .zip(&check.used)
            .filter(|(_, used)| **used)
            .map(|(pack, _)| *pack)
            .collect();
        Ok(Layout { packs })
    }
}

struct Check<'a> {
    scope: &'a Scope,
    used: Vec<bool>,
    missing: u64,
    first: Option<(Hash, String)>,
}

impl Check<'_> {
    /// Counts an item as used or missing; returns whether it is there.
    fn item(
        &mut self,
        kind: Kind,
        hash: &Hash,
        walk: &mut Walk,
        place: impl Fn() -> String,
    ) -> Result<bool, StoreError> {
        match self.scope.pack_of(kind, hash, walk)? {
            Some(pack) => {
                self.used[pack as usize] = true;
                Ok(true)
            }
            None => {
                self.missing += 1;
                self.first.get_or_insert_with(|| (*hash, place()));
                Ok(false)
            }
        }
    }

    /// Checks a region. All chunks of a segment are needed, even those with a patch: a segment's chunks are stored with it.
    fn region(&mut self, region: &Region) -> Result<(), StoreError> {
        let name = &region.name;
        // Chunks and segments are in different packs, so each kind has its own walk.
        let (mut chunk_walk, mut segment_walk) = (Walk::default(), Walk::default());
        for (batch, hashes) in region.segments.chunks(SEGMENTS_AT_ONCE).enumerate() {
            let mut present = Vec::new();
            for (i, hash) in hashes
                .iter()
                .enumerate()
                .filter(|(_, hash)| !hash.is_zero())
            {
                let number = batch * SEGMENTS_AT_ONCE + i;
                let place = || format!("segment {number} of region {name}");
                if self.item(Kind::Segment, hash, &mut segment_walk, place)? {
                    present.push((number, *hash));
                }
            }
            let wanted: Vec<Hash> = present.iter().map(|(_, hash)| *hash).collect();
            for ((number, _), segment) in present.iter().zip(self.scope.segments(&wanted)?) {
                for (i, hash) in segment
                    .hashes()
                    .iter()
                    .enumerate()
                    .filter(|(_, hash)| !hash.is_zero())
                {
                    let offset = *number as u64 * SEGMENT_SPAN + (i * CHUNK_SIZE) as u64;
                    let place = || format!("the chunk at offset {offset} of region {name}");
                    self.item(Kind::Chunk, hash, &mut chunk_walk, place)?;
                }
            }
        }
        for patch in region.patches.iter().filter(|patch| !patch.hash.is_zero()) {
            let place = || format!("the patch of chunk {} of region {name}", patch.chunk);
            self.item(Kind::Chunk, &patch.hash, &mut chunk_walk, place)?;
        }
        Ok(())
    }
}

//! Lists images, and describes what an image consists of.

use std::collections::{BTreeMap, HashMap, HashSet};

use floe_image::{Hash, ImageName, Kind, Layout, Manifest, PackRef, Region, lineage};

use super::publish::SEGMENTS_AT_ONCE;
use super::scope::{Walk, prefix};
use super::{Repository, Scope};
use crate::StoreError;

/// One image in [`Repository::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    /// The image.
    pub id: Hash,
    /// Its names, sorted.
    pub names: Vec<ImageName>,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its parent.
    pub parent: Option<Hash>,
    /// The sum of its regions' sizes in bytes.
    pub virtual_bytes: u64,
    /// The sum of its packs' sizes in bytes, including packs that it shares with other images.
    pub pack_bytes: u64,
    /// Bytes of those packs that another image needs too.
    pub shared_bytes: u64,
    /// The sizes of its regions by name, in bytes.
    pub regions: BTreeMap<String, u64>,
    /// Free text by key.
    pub labels: BTreeMap<String, String>,
}

/// One region in [`Repository::inspect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Chunks in it.
    pub chunks: u64,
    /// Chunks that are all zero.
    pub zero_chunks: u64,
    /// Non-zero chunks whose content is in the parent's packs too.
    pub parent_chunks: u64,
}

/// What an image consists of.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The image.
    pub id: Hash,
    /// Its names.
    pub names: Vec<ImageName>,
    /// The manifest.
    pub manifest: Manifest,
    /// Its regions.
    pub regions: Vec<RegionInfo>,
    /// Its ancestors, the parent first, up to and including the first that isn't in this repository.
    pub lineage: Vec<Hash>,
    /// Number of packs that hold it.
    pub packs: u64,
    /// Bytes of these packs.
    pub pack_bytes: u64,
    /// Bytes of its non-zero chunks that are in its parent too, uncompressed.
    pub shared_with_parent_bytes: u64,
}

impl Repository {
    /// Returns all images, the newest first. A damaged one is left out, with a warning in the log.
    pub fn list(&self) -> Result<Vec<ImageEntry>, StoreError> {
        let mut names: BTreeMap<Hash, Vec<ImageName>> = BTreeMap::new();
        for tag in self.tags()? {
            names.entry(tag.id).or_default().push(tag.name);
        }
        let mut images = Vec::new();
        let mut users: HashMap<Hash, u32> = HashMap::new();
        let mut layouts = HashMap::new();
        for id in self.image_ids()? {
            let entry = self
                .manifest(&id)
                .and_then(|manifest| Ok((manifest, self.layout(&id)?)));
            match entry {
                Ok((manifest, layout)) => {
                    for pack in &layout.packs {
                        *users.entry(pack.id).or_default() += 1;
                    }
                    images.push(ImageEntry {
                        id,
                        names: names.remove(&id).unwrap_or_default(),
                        created_unix_s: manifest.created_unix_s,
                        parent: manifest.parent,
                        virtual_bytes: manifest.total_bytes(),
                        pack_bytes: layout.packs.iter().map(|p| p.file_bytes).sum(),
                        shared_bytes: 0,
                        regions: manifest
                            .regions
                            .iter()
                            .map(|r| (r.name.clone(), r.size))
                            .collect(),
                        labels: manifest.config.labels,
                    });
                    layouts.insert(id, layout);
                }
                Err(StoreError::NotFound { .. }) => {} // removed meanwhile
                Err(error) => tracing::warn!(image = %id, %error, "an image cannot be read"),
            }
        }
        for image in &mut images {
            let packs = layouts
                .get(&image.id)
                .into_iter()
                .flat_map(|layout| &layout.packs);
            let shared = packs.filter(|pack| users.get(&pack.id).is_some_and(|count| *count > 1));
            image.shared_bytes = shared.map(|pack| pack.file_bytes).sum();
        }
        images.sort_by_key(|i| (std::cmp::Reverse(i.created_unix_s), i.id));
        Ok(images)
    }

    /// Returns the layouts of all images, the newest image's first. One that can't be read is left out.
    pub(crate) fn layouts(&self) -> Result<Vec<Layout>, StoreError> {
        let newest_first = self.list()?.into_iter();
        Ok(newest_first
            .filter_map(|entry| self.layout(&entry.id).ok())
            .collect())
    }

    /// Returns the bytes of an image's packs that another image needs too.
    pub fn shared_bytes(&self, id: &Hash) -> Result<u64, StoreError> {
        let mut others = HashSet::new();
        for other in self.image_ids()?.into_iter().filter(|other| other != id) {
            let layout = match self.layout(&other) {
                Err(StoreError::NotFound { .. }) => continue, // removed meanwhile
                layout => layout?,
            };
            others.extend(layout.packs.iter().map(|pack| pack.id));
        }
        let packs = self.layout(id)?.packs;
        let shared = packs.iter().filter(|pack| others.contains(&pack.id));
        Ok(shared.map(|pack| pack.file_bytes).sum())
    }

    /// Returns the packs of an image that hold only what the image and its ancestors (those that are here) consist of. The
    /// others came with unrelated images; what else is in them must not be given away with this image.
    pub fn packs_without_strangers(&self, id: &Hash) -> Result<Vec<PackRef>, StoreError> {
        let mut family = vec![*id];
        family.extend(self.ancestors(id)?);
        // Eight bytes of each hash are enough to tell them apart.
        let mut theirs = Vec::new();
        for member in &family {
            if self.contains(member)? {
                self.items_into(member, &mut theirs)?;
            }
        }
        theirs.sort_unstable();
        theirs.dedup();
        let mut packs = self.layout(id)?.packs;
        let mut broken = None;
        packs.retain(|pack| match self.pack_items(pack) {
            Ok(items) => items
                .iter()
                .all(|(_, hash)| theirs.binary_search(&prefix(hash)).is_ok()),
            Err(error) => {
                broken.get_or_insert(error);
                false
            }
        });
        broken.map_or(Ok(packs), Err)
    }

    fn items_into(&self, id: &Hash, items: &mut Vec<u64>) -> Result<(), StoreError> {
        let manifest = self.manifest(id)?;
        let scope = self.scope(id)?;
        for region in &manifest.regions {
            items.extend(region.segments.iter().map(prefix));
            items.extend(region.patches.iter().map(|patch| prefix(&patch.hash)));
            for hashes in region.segments.chunks(SEGMENTS_AT_ONCE) {
                for segment in scope.segments(hashes)? {
                    let stored = segment.hashes().iter().filter(|hash| !hash.is_zero());
                    items.extend(stored.map(prefix));
                }
            }
        }
        Ok(())
    }

    fn ancestors(&self, id: &Hash) -> Result<Vec<Hash>, StoreError> {
        let all = lineage(*id, |image| match self.manifest(image) {
            Ok(manifest) => Ok(manifest.parent),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        })
        .map_err(|e| StoreError::Invalid {
            what: e.to_string(),
        })?;
        Ok(all[1..].to_vec())
    }

    /// Returns what an image consists of. Reads its segments, not its chunks.
    pub fn inspect(&self, id: &Hash) -> Result<Inspection, StoreError> {
        let manifest = self.manifest(id)?;
        let layout = self.layout(id)?;
        let scope = self.scope_of(&layout)?;
        let parent = match manifest.parent {
            Some(parent) if self.contains(&parent)? => {
                Some((self.manifest(&parent)?, self.scope(&parent)?))
            }
            _ => None,
        };
        let mut regions = Vec::new();
        for region in &manifest.regions {
            let same_place = parent.as_ref().and_then(|(m, _)| m.region(&region.name));
            let mut info = RegionInfo {
                name: region.name.clone(),
                size: region.size,
                chunks: region.chunks(),
                zero_chunks: region.chunks(),
                parent_chunks: 0,
            };
            let parent_scope = parent.as_ref().map(|(_, scope)| scope);
            count(&scope, region, parent_scope, same_place, &mut info)?;
            regions.push(info);
        }
        let ancestors = self.ancestors(id)?;
        let names = self
            .tags()?
            .into_iter()
            .filter(|tag| tag.id == *id)
            .map(|tag| tag.name)
            .collect();
        Ok(Inspection {
            id: *id,
            names,
            shared_with_parent_bytes: regions
                .iter()
                .map(|r| r.parent_chunks * floe_image::CHUNK_SIZE as u64)
                .sum(),
            regions,
            lineage: ancestors,
            packs: layout.packs.len() as u64,
            pack_bytes: layout.packs.iter().map(|p| p.file_bytes).sum(),
            manifest,
        })
    }
}

/// Counts a region's non-zero chunks, and those that its parent has.
fn count(
    scope: &Scope,
    region: &Region,
    parent: Option<&Scope>,
    same_place: Option<&Region>,
    info: &mut RegionInfo,
) -> Result<(), StoreError> {
    let mut walk = Walk::default();
    for (batch, hashes) in region.segments.chunks(SEGMENTS_AT_ONCE).enumerate() {
        let mine = scope.segments(hashes)?;
        for (i, mut segment) in mine.into_iter().enumerate() {
            let number = batch * SEGMENTS_AT_ONCE + i;
            region.patch(number, &mut segment);
            let stored: Vec<&Hash> = segment.hashes().iter().filter(|h| !h.is_zero()).collect();
            info.zero_chunks = info.zero_chunks.saturating_sub(stored.len() as u64);
            let Some(parent) = parent else { continue };
            let same = |theirs: &Region| {
                theirs.segments.get(number) == Some(&hashes[i])
                    && theirs.patches_of(number) == region.patches_of(number)
            };
            if same_place.is_some_and(same) {
                info.parent_chunks += stored.len() as u64;
                continue;
            }
            for hash in stored {
                if parent.pack_of(Kind::Chunk, hash, &mut walk)?.is_some() {
                    info.parent_chunks += 1;
                }
            }
        }
    }
    Ok(())
}

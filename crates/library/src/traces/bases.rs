//! On which base disk an image stands: the lowest layer of its disk, which it shares with the images that were captured of its machines,
//! with clones, and with whatever else was made of the same disk.
//!
//! It is found by the images' parents, as far as these are here. An image may outlive its parents, so what was found is stored for those
//! that have some. An image without a disk stands on itself, or on its oldest parent.
//!
//! Locks: what was found, for an instant.

use super::{LOCAL, Traces};
use floe_ground::{
    error::{NodeError, at, failed, not_found},
    files::load_manifest,
};
use floe_image::{Hash, LineageError, Manifest, lineage};
use floe_store::StoreError;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;

/// What was found of an image.
#[derive(Clone, Copy, Debug)]
struct Found {
    base: Hash,
    /// Whether the image's manifest alone doesn't tell it.
    has_parents: bool,
    is_stored: bool,
}

/// What was found, by image.
#[derive(Default)]
pub(super) struct Bases(Mutex<HashMap<Hash, Found>>);

impl Traces {
    /// Returns the base disk of an image, whose manifest may be given.
    pub(super) fn base_of(
        &self,
        image: &Hash,
        manifest: Option<&Manifest>,
    ) -> Result<Hash, NodeError> {
        if let Some(base) = self.known_base(image)? {
            return Ok(base);
        }
        // of the oldest that was looked at
        let (mut own, mut has_parents) = (None, false);
        let lineage = lineage(*image, |id| -> Result<Option<Hash>, NodeError> {
            if let Some(base) = self.known_base(id)? {
                own = Some(base);
                return Ok(None);
            }
            let read = match manifest.filter(|_| id == image) {
                Some(_) => None,
                None => self.manifest_here(id)?,
            };
            let found = manifest.filter(|_| id == image).or(read.as_ref());
            // a parent that isn't here tells nothing
            let Some(found) = found else { return Ok(None) };
            own = Some(found.boot_disk().unwrap_or(*id));
            has_parents |= found.parent.is_some();
            Ok(found.parent)
        });
        lineage.map_err(|error| match error {
            LineageError::Lookup(_, error) => error,
            endless => failed(endless.to_string(), "pull it again, or remove it"),
        })?;
        let base = own.ok_or_else(|| {
            not_found(
                format!("image {image} is not here"),
                "list those that are with floe image ls",
            )
        })?;
        let found = Found {
            base,
            has_parents,
            is_stored: false,
        };
        self.bases.0.lock().insert(*image, found);
        Ok(base)
    }

    /// Returns what is known of an image without looking at its parents.
    fn known_base(&self, image: &Hash) -> Result<Option<Hash>, NodeError> {
        if let Some(found) = self.bases.0.lock().get(image) {
            return Ok(Some(found.base));
        }
        let stored = self.kept.store.base(image, LOCAL);
        let stored = stored.map_err(at("cannot read which disk an image stands on"))?;
        if let Some(base) = stored {
            let found = Found {
                base,
                has_parents: true,
                is_stored: true,
            };
            self.bases.0.lock().insert(*image, found);
        }
        Ok(stored)
    }

    /// Returns an image's manifest, from the repository or beside one of its machines; `None` if it is not here.
    fn manifest_here(&self, image: &Hash) -> Result<Option<Manifest>, NodeError> {
        match self.images.repo.manifest(image) {
            Err(StoreError::NotFound { .. }) => {}
            manifest => return Ok(Some(manifest?)),
        }
        // What can't be read now isn't absent: the disk that is found without it would be stored.
        let mut unreadable = None;
        for entry in self.inventory.all() {
            match load_manifest(&entry.dir, image) {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(NodeError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => unreadable = Some(error),
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    /// Looks on which disk each image of the repository stands while its parents are here, and stores that for those that have parents,
    /// and for these images.
    pub(super) fn keep_bases(&self, also: &BTreeSet<Hash>) -> Result<(), NodeError> {
        let mut images: BTreeSet<Hash> = self.images.repo.image_ids()?.into_iter().collect();
        images.extend(also);
        for image in &images {
            let base = match self.base_of(image, None) {
                Ok(base) => base,
                Err(error) => {
                    // whoever uses the image is told
                    tracing::debug!(image = image.short(), %error, "it is not known which disk it stands on");
                    continue;
                }
            };
            let found = self.bases.0.lock().get(image).copied();
            let is_wanted =
                |found: Found| !found.is_stored && (found.has_parents || also.contains(image));
            if !found.is_some_and(is_wanted) {
                continue;
            }
            let stored = self.kept.store.set_base(image, LOCAL, &base);
            stored.map_err(at("cannot store which disk an image stands on"))?;
            if let Some(found) = self.bases.0.lock().get_mut(image) {
                found.is_stored = true;
            }
            self.forget_foreign_traces(image);
        }
        Ok(())
    }

    /// Returns the base disks of all images that are here, or of which something is kept.
    pub(super) fn bases_in_use(&self) -> Result<BTreeSet<Hash>, NodeError> {
        let mut images: BTreeSet<Hash> = self.images.repo.image_ids()?.into_iter().collect();
        images.extend(self.inventory.images());
        let stored = self.kept.store.images();
        let stored = stored.map_err(at("cannot list what is kept of images"))?;
        for (image, _) in stored.into_iter().filter(|(_, owner)| owner == LOCAL) {
            // traces may be kept of an image that is not here
            if self.known_base(&image)?.is_some() {
                images.insert(image);
            }
        }
        images
            .iter()
            .map(|image| self.base_of(image, None))
            .collect()
    }

    /// Forgets what was found of an image that is removed.
    pub(super) fn forget_base(&self, image: &Hash) {
        self.bases.0.lock().remove(image);
    }
}

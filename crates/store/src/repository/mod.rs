//! The repository.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_image::{Hash, ImageName, Kind, Layout, Manifest, PackRef, Segment};

use crate::StoreError;

/// A directory of images, publishable as static files. Cheap to clone; several processes may use one directory.
#[derive(Clone)]
pub struct Repository {}

/// A tag and what it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagEntry {
    /// The name.
    pub name: ImageName,
    /// The image.
    pub id: Hash,
    /// When the tag was last moved, seconds since 1970.
    pub created_unix_s: u64,
}

/// One image in [`Repository::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    /// The image.
    pub id: Hash,
    /// Its names, sorted.
    pub names: Vec<ImageName>,
    /// When it was made, seconds since 1970.
    pub created_unix_s: u64,
    /// Its parent.
    pub parent: Option<Hash>,
    /// The sum of its regions' sizes in bytes.
    pub virtual_bytes: u64,
    /// The sum of its packs' sizes in bytes, packs shared with other images included.
    pub pack_bytes: u64,
    /// The sizes of its regions by name, in bytes.
    pub regions: BTreeMap<String, u64>,
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
    /// Non-zero chunks whose content also stands in the parent, anywhere in it.
    pub parent_chunks: u64,
}

/// What an image is made of.
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
    /// Its ancestors, the parent first, as far as they are in this repository.
    pub lineage: Vec<Hash>,
    /// Packs that hold it.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Raw bytes of its non-zero chunks that are also in its parent.
    pub shared_with_parent_bytes: u64,
}

/// One damaged thing that [`Repository::verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the repository.
    pub file: PathBuf,
    /// What is wrong, with offsets.
    pub what: String,
    /// The part of the image that is lost, when one is: "disk0, chunks 4096 to 4111".
    pub lost: Option<String>,
}

/// What [`Repository::verify`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Items (segments and chunks) checked.
    pub items: u64,
    /// Packs read.
    pub packs: u64,
    /// Everything that is wrong; empty for a sound image.
    pub damage: Vec<Damage>,
    /// Damages beyond those listed.
    pub more: u64,
}

/// What [`Repository::export`] wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// The region's size.
    pub bytes: u64,
    /// Bytes written; the rest are holes.
    pub written_bytes: u64,
}

/// What [`Repository::gc`] may remove.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Nothing younger than this goes: it may belong to an ingest or upload that is still running.
    pub min_age: Duration,
    /// Also remove images without a tag (unless they are in `keep`).
    pub untagged: bool,
    /// Images that something else refers to (running machines).
    pub keep: Vec<Hash>,
}

/// What [`Repository::gc`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Images.
    pub images: u64,
    /// Packs.
    pub packs: u64,
    /// Left-over temporary files.
    pub temporary: u64,
    /// Bytes freed.
    pub bytes: u64,
}

/// One image's packs, opened for reading items by hash. Cheap to clone.
#[derive(Clone)]
pub struct Scope {}

#[allow(unused_variables)]
impl Scope {
    /// Read items. `sink` gets each item once, verified, in pack order. Returns those that are in none of the packs.
    pub fn read(
        &self,
        wants: &[(Kind, Hash)],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
    ) -> Result<Vec<(Kind, Hash)>, StoreError> {
        unimplemented!()
    }
    /// Which of the items do the packs hold?
    pub fn has(&self, items: &[(Kind, Hash)]) -> Result<Vec<bool>, StoreError> {
        unimplemented!()
    }
    /// A segment.
    pub fn segment(&self, hash: &Hash) -> Result<Segment, StoreError> {
        unimplemented!()
    }
}

#[allow(unused_variables)]
impl Repository {
    /// Create a repository in `dir` (which may exist), or open the one that is there.
    pub fn create(dir: &Path) -> Result<Repository, StoreError> {
        unimplemented!()
    }
    /// Open the repository in `dir`.
    pub fn open(dir: &Path) -> Result<Repository, StoreError> {
        unimplemented!()
    }
    /// Its directory.
    pub fn dir(&self) -> &Path {
        unimplemented!()
    }
    /// The image that `name`, `name:tag`, a full id or a unique prefix of at least 6 hex digits means.
    pub fn resolve(&self, name: &str) -> Result<Hash, StoreError> {
        unimplemented!()
    }
    /// An image's manifest, checked against its id.
    pub fn manifest(&self, id: &Hash) -> Result<Manifest, StoreError> {
        unimplemented!()
    }
    /// An image's manifest as bytes, checked against its id.
    pub fn manifest_bytes(&self, id: &Hash) -> Result<Vec<u8>, StoreError> {
        unimplemented!()
    }
    /// Which packs hold the image.
    pub fn layout(&self, id: &Hash) -> Result<Layout, StoreError> {
        unimplemented!()
    }
    /// Where a pack is (or would be).
    pub fn pack_path(&self, id: &Hash) -> PathBuf {
        unimplemented!()
    }
    /// Point `name` at an image that is here.
    pub fn tag(&self, name: &ImageName, id: &Hash) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// Remove a name; the image stays. Returns what it pointed to.
    pub fn untag(&self, name: &ImageName) -> Result<Hash, StoreError> {
        unimplemented!()
    }
    /// All tags, sorted by name.
    pub fn tags(&self) -> Result<Vec<TagEntry>, StoreError> {
        unimplemented!()
    }
    /// All images, newest first.
    pub fn list(&self) -> Result<Vec<ImageEntry>, StoreError> {
        unimplemented!()
    }
    /// Remove an image and its tags. Its packs stay until [`Repository::gc`]; other images that share them are untouched.
    pub fn remove(&self, id: &Hash) -> Result<(), StoreError> {
        unimplemented!()
    }
    /// What the image is made of.
    pub fn inspect(&self, id: &Hash) -> Result<Inspection, StoreError> {
        unimplemented!()
    }
    /// Check manifest, segments, chunks and packs. `progress(done, total)` in pack bytes; false stops.
    pub fn verify(
        &self,
        id: &Hash,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<VerifyReport, StoreError> {
        unimplemented!()
    }
    /// Write a region to `to` from its start, sparse. `progress(done, total)` in bytes; false stops.
    pub fn export(
        &self,
        id: &Hash,
        region: &str,
        to: &File,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<ExportStats, StoreError> {
        unimplemented!()
    }
    /// A small region (device state, kernel) in memory; larger than `max_bytes` is refused.
    pub fn read_region(
        &self,
        id: &Hash,
        region: &str,
        max_bytes: u64,
    ) -> Result<Vec<u8>, StoreError> {
        unimplemented!()
    }
    /// Remove what nothing refers to.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, StoreError> {
        unimplemented!()
    }
    /// The image's packs, opened for reading by hash; kept for the next caller.
    pub fn scope(&self, id: &Hash) -> Result<Scope, StoreError> {
        unimplemented!()
    }
    /// A scope over any list of packs that are here (staged uploads, a layout not yet published).
    pub fn scope_of(&self, layout: &Layout) -> Result<Scope, StoreError> {
        unimplemented!()
    }
    /// Read items of one image; see [`Scope::read`].
    pub fn read_items(
        &self,
        id: &Hash,
        wants: &[(Kind, Hash)],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
    ) -> Result<Vec<(Kind, Hash)>, StoreError> {
        unimplemented!()
    }
    /// Which of the items do the packs of `layout` hold?
    pub fn has(&self, layout: &Layout, items: &[(Kind, Hash)]) -> Result<Vec<bool>, StoreError> {
        unimplemented!()
    }
    /// Take in a pack from a file, verified frame by frame; the file stays where it is.
    pub fn adopt_pack(&self, path: &Path) -> Result<PackRef, StoreError> {
        unimplemented!()
    }
    /// Take in a pack from a reader of at most `max_bytes`, verified frame by frame.
    pub fn adopt_pack_from(
        &self,
        from: &mut dyn Read,
        max_bytes: u64,
    ) -> Result<PackRef, StoreError> {
        unimplemented!()
    }
    /// Publish an image atomically: it is visible whole or not at all. Refused ([`StoreError::Incomplete`]) when the
    /// packs don't hold every segment and chunk.
    pub fn publish(&self, manifest: &Manifest, layout: &Layout) -> Result<Hash, StoreError> {
        unimplemented!()
    }
    /// Do the packs hold every segment and chunk? Returns the layout without packs that the image doesn't need.
    pub fn check_complete(
        &self,
        manifest: &Manifest,
        layout: &Layout,
    ) -> Result<Layout, StoreError> {
        unimplemented!()
    }
}
#[doc(hidden)]
#[allow(dead_code)]
pub(crate) type Later = Arc<()>;

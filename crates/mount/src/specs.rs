//! What a caller adds to the mount: images, and machines with their disks.

use crate::ImageHandle;
use floe_image::{Hash, Manifest};
use floe_source::Fetcher;
use floe_store::Cache;
use std::path::PathBuf;
use std::sync::Arc;

/// An image to add to the mount.
pub struct ImageSpec {
    /// Its name: the hash of the manifest.
    pub id: Hash,
    /// Its manifest, already verified.
    pub manifest: Manifest,
    /// Brings missing chunks into the cache.
    pub fetcher: Arc<Fetcher>,
    /// The local cache of chunks.
    pub cache: Arc<Cache>,
}

/// A machine to add to the mount.
pub struct MachineSpec {
    /// Its name, which is also its directory's name on the mount: `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// The user that its VMM runs as; only this user (and root) can open the files.
    pub uid: u32,
    /// The group that owns the files.
    pub gid: u32,
    /// The image that it starts from: it gets the image's `ram` and `vram`, and its disks are based on the image's regions.
    pub image: ImageHandle,
    /// The directory of its disks' layers and its trace. A machine that is added again continues what is there.
    pub dir: PathBuf,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
    /// The base disk whose list of interactive programs it has and teaches, together with all machines of that one; `None` for a list of
    /// its image alone.
    pub base: Option<Hash>,
}

/// A machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The file's name. The rules for names of regions apply (`disk0`).
    pub name: String,
    /// The region of the image that it starts from; `None` for an empty disk.
    pub base: Option<String>,
    /// Its size in bytes: a multiple of 512, at least the region's size. What is beyond the region reads as zeros.
    pub size: u64,
}

impl DiskSpec {
    /// Returns the disk that continues region `name` of an image. `size` is the region's size in bytes.
    pub fn of_region(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            base: Some(name.to_owned()),
            size,
        }
    }
}

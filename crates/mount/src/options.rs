//! What the mount is told.

use crate::{ImageHandle, Keeper};
use floe_image::{Hash, Manifest};
use floe_source::Fetcher;
use floe_store::Cache;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Threads that serve the kernel. They never wait for the network, so few do.
    pub threads: usize,
    /// What has the supervisor hold the connection; without it a killed node takes its machines along.
    pub keeper: Option<Keeper>,
    /// Where the mount keeps the disks' live maps, unless root has them in `/dev/shm`. Survives the node, needn't survive the
    /// host.
    pub runtime_dir: PathBuf,
    /// Whether other users (a machine's own) may use the mount. Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// How long a request waits for a chunk that no source gives before it fails with EIO; `None` is for ever, which keeps
    /// the guest intact (a virtual CPU that gets no memory waits, one that gets an error is gone).
    pub io_timeout: Option<Duration>,
    /// Disk requests that wait for one of the threads that may be slow. What comes on top is done by a thread that serves the
    /// kernel, so that the guest feels how slow the disk is; a flush is not, as long as something quicker waits.
    pub disk_requests_queued_max: usize,
    /// The read-ahead's limits.
    pub planner: floe_planner::Config,
}

impl MountOptions {
    /// The defaults: four threads, no supervisor, other users when we are root.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        Self {
            threads: 4,
            keeper: None,
            runtime_dir: runtime_dir.into(),
            allow_other: rustix::process::geteuid().is_root(),
            io_timeout: None,
            disk_requests_queued_max: 1024,
            planner: floe_planner::Config::default(),
        }
    }
}

/// An image to show.
pub struct ImageSpec {
    /// Its name: the hash of the manifest.
    pub id: Hash,
    /// Its manifest, already verified.
    pub manifest: Manifest,
    /// Brings missing chunks into the cache.
    pub fetcher: Arc<Fetcher>,
    /// Where the chunks are.
    pub cache: Arc<Cache>,
}

/// A machine to show.
pub struct MachineSpec {
    /// Its name, also its directory's on the mount: `[a-z0-9][a-z0-9._-]{0,62}`.
    pub name: String,
    /// The user that its VMM runs as; only it (and root) can open the files.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The image that it started from: its `ram` and `vram` are shown, its disks are the bases of new ones.
    pub image: ImageHandle,
    /// Where the disks' layers and the trace are kept. A machine that is added again goes on from what is there.
    pub dir: PathBuf,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
}

/// A machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The file's name, in the way of regions' names (`disk0`).
    pub name: String,
    /// The region of the image that it starts from; `None` is an empty disk.
    pub base: Option<String>,
    /// Its size in bytes, a multiple of 512, not less than the region's. What is beyond the region reads as zeros.
    pub size: u64,
}

impl DiskSpec {
    /// The disk that continues region `name` of an image, in its size.
    pub fn of_region(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            base: Some(name.to_owned()),
            size,
        }
    }
}

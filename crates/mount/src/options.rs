//! What a caller gives to the mount: its options, its images and its machines.

use crate::{ImageHandle, IoScheduling, Keeper};
use floe_image::{Hash, Manifest};
use floe_source::Fetcher;
use floe_store::Cache;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to mount, and how to serve the mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Threads that serve the kernel. They never wait for the network, so a few are enough.
    pub threads: usize,
    /// Has the supervisor hold the connection. Without it, machines don't survive the end of their node.
    pub keeper: Option<Keeper>,
    /// Where the mount keeps the disks' live maps, unless root has them in `/dev/shm`. Must outlive the node, but not the
    /// host's boot.
    pub runtime_dir: PathBuf,
    /// Whether other users (a machine's own) may use the mount. Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// How long a request waits for a chunk that no source gives before it fails; `None` is for ever, which keeps the guest intact (a
    /// virtual CPU that waits for memory goes on later, one that gets an error is lost). [`crate::MachineHandle::limit_waits`] sets
    /// another limit for a machine. The errno says why: EACCES (denied), ENODATA (missing), ETIMEDOUT (too slow), else EIO.
    pub io_timeout: Option<Duration>,
    /// Where there is a limit: after how long a source is believed that says that it does not have or not give a chunk, and the request
    /// fails. As the fetchers' [`floe_source::FetchOptions::believed_after`].
    pub believed_after: Duration,
    /// How many disk requests may wait for one of the threads that may be slow. Beyond that, threads that serve the kernel do
    /// them, so that the guest is slowed to the disk's speed. They do a flush only if nothing quicker waits.
    pub disk_requests_queued_max: usize,
    /// Whose disk request goes first.
    pub io: IoScheduling,
    /// Directory in which the class of each disk request is recorded, for measurements.
    pub io_trace: Option<PathBuf>,
    /// Limits of what is fetched ahead.
    pub planner: floe_planner::Config,
}

impl MountOptions {
    /// Returns the defaults: four threads, no supervisor, other users allowed when this is root.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        Self {
            threads: 4,
            keeper: None,
            runtime_dir: runtime_dir.into(),
            allow_other: rustix::process::geteuid().is_root(),
            io_timeout: None,
            believed_after: Duration::ZERO,
            disk_requests_queued_max: 1024,
            io: IoScheduling::default(),
            io_trace: None,
            planner: floe_planner::Config::default(),
        }
    }
}

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

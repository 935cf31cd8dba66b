//! How a caller wants the mount to be.

use crate::Keeper;
use std::path::PathBuf;
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

/// How the requests that access the host's disk are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoScheduling {
    /// What a person waits for goes first, and each machine has its share (vSIP).
    #[default]
    Vsip,
    /// First come, first served, through the same queue.
    Fifo,
    /// There is no queue: the threads that serve the kernel access the disk themselves, as many as may.
    Off,
}

//! Counters of the mount, its images and its machines, for the lab and `/metrics`.

use std::time::Duration;

/// Counters of the whole mount since this process started it (they start at zero after a takeover).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// READ requests for images' regions: one for each fault on a page that isn't in the page cache.
    pub region_reads: u64,
    /// Bytes that these asked for; divided by `region_reads` it is the average size of a fault.
    pub region_read_bytes: u64,
    /// READ requests for machines' disks.
    pub disk_reads: u64,
    /// Bytes that these asked for.
    pub disk_read_bytes: u64,
    /// WRITE requests for machines' disks.
    pub disk_writes: u64,
    /// Bytes that these wrote.
    pub disk_write_bytes: u64,
    /// Requests that had to wait for a chunk.
    pub waits: u64,
    /// Microseconds that these requests waited in total.
    pub wait_us: u64,
    /// Requests that are waiting now.
    pub waiting: u64,
    /// Requests that were answered with an error because they failed.
    pub errors: u64,
    /// NOTIFY_STORE messages sent.
    pub pushes: u64,
    /// Bytes that these put into the page cache.
    pub pushed_bytes: u64,
    /// Chunks whose fetching ahead the planner has ordered.
    pub ahead_chunks: u64,
    /// Touches that the planner was not told of, because too many waited for it already.
    pub touches_dropped: u64,
}

/// Counters of one image on this mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Chunks touched at least once, by any machine on this host (without zero chunks).
    pub touched_chunks: u64,
    /// How many of these weren't here when they were touched.
    pub missed_chunks: u64,
    /// Zero chunks touched at least once.
    pub zero_chunks: u64,
    /// Segment tables that are loaded, without those that are all zero.
    pub tables_loaded: u64,
    /// Segment tables in total, without those that are all zero.
    pub tables: u64,
}

/// Counters of one machine since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// First touches of memory chunks on this host that came from this machine's processes ([`crate::MachineHandle::set_pid`]).
    pub faults: u64,
    /// First touches of chunks of its disks' bases.
    pub disk_touches: u64,
    /// Disk reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Disk writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes that had something to make durable.
    pub flushes: u64,
    /// Requests of this machine that had to wait for a chunk.
    pub waits: u64,
    /// Microseconds that these requests waited in total.
    pub wait_us: u64,
    /// Bytes that its disks' layers take on the local disk.
    pub overlay_bytes: u64,
    /// Layers of the disk that has most of them.
    pub layers: u64,
}

/// How long the oldest of a machine's requests have waited for what is not on this host; `None` where none waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// For pages of its memory: a CPU, or its VMM, stands still until they come.
    pub memory: Option<Duration>,
    /// For blocks of its disks: its guest goes on until it needs them.
    pub disks: Option<Duration>,
}

impl Waits {
    /// Returns how long the oldest of all has waited.
    pub fn longest(&self) -> Option<Duration> {
        self.memory.max(self.disks)
    }
}

/// Tells the node to pause a machine, or to let it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// True to pause it, false to let it go on.
    pub pause: bool,
    /// Bytes that have to come over the link before the machine may go on.
    pub missing_bytes: u64,
    /// How long that takes at the link's present speed, in microseconds.
    pub eta_us: u64,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Bytes put into the page cache.
    pub bytes: u64,
    /// Chunks left out because they aren't here.
    pub missing: u64,
    /// NOTIFY_STORE messages sent.
    pub messages: u64,
}

/// A disk whose flushes fail, because the host's disk under it failed and what may be lost isn't written again yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDisk {
    /// The disk's name.
    pub disk: String,
    /// The errno that the host gave.
    pub errno: i32,
    /// Bytes that the guest wrote since its last successful flush and that read back as something else. They come back only if
    /// the guest writes them again.
    pub lost_bytes: u64,
    /// Whether more was written that can't be checked: by an earlier node, or too much without a flush.
    pub unknown: bool,
}

//! What the mount has done, in numbers that the lab and `/metrics` show.

/// The whole mount's counters since it was started (a takeover starts them anew).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// READ requests for regions of images: one for each cold fault.
    pub region_reads: u64,
    /// Bytes that they asked for; divided by `region_reads` it is the size of a fault.
    pub region_read_bytes: u64,
    /// READ requests for machines' disks.
    pub disk_reads: u64,
    /// Bytes that they asked for.
    pub disk_read_bytes: u64,
    /// WRITE requests for machines' disks.
    pub disk_writes: u64,
    /// Bytes that they wrote.
    pub disk_write_bytes: u64,
    /// Requests that had to wait for a chunk.
    pub waits: u64,
    /// Microseconds waited in all of them.
    pub wait_us: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests answered with an I/O error.
    pub errors: u64,
    /// NOTIFY_STORE messages sent.
    pub pushes: u64,
    /// Bytes that they put into the page cache.
    pub pushed_bytes: u64,
    /// Chunks that the planner had fetched ahead.
    pub ahead_chunks: u64,
}

/// One image's counters on this mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Chunks touched at least once, by whatever machine on this host (zero ones not counted).
    pub touched_chunks: u64,
    /// Those of them that weren't here when they were touched.
    pub missed_chunks: u64,
    /// Zero chunks touched at least once.
    pub zero_chunks: u64,
    /// Segment tables that are loaded.
    pub tables_loaded: u64,
    /// Segment tables that aren't all zero.
    pub tables: u64,
}

/// One machine's counters since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// First touches of memory chunks on this host that came from this machine's processes ([`crate::MachineHandle::set_pid`]).
    pub faults: u64,
    /// First touches of chunks of its disks' base.
    pub disk_touches: u64,
    /// Disk reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Disk writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes that reached stable storage.
    pub flushes: u64,
    /// Requests of this machine that had to wait for a chunk.
    pub waits: u64,
    /// Microseconds waited in all of them.
    pub wait_us: u64,
    /// Bytes on the local disk in the machine's layers.
    pub overlay_bytes: u64,
    /// Layers of the disk that has most.
    pub layers: u64,
}

/// Pause the machines of an image, or let them go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Pause, or go on.
    pub pause: bool,
    /// Bytes on the wire that have to come first.
    pub missing_bytes: u64,
    /// How long that takes at the link's present speed, in microseconds.
    pub eta_us: u64,
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Bytes put into the page cache.
    pub bytes: u64,
    /// Chunks left out because they aren't here.
    pub missing: u64,
    /// Messages sent.
    pub messages: u64,
}

/// A disk whose flushes fail, because the host's disk under it failed and that has not been made good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDisk {
    /// The disk's name.
    pub disk: String,
    /// The errno that the host gave.
    pub errno: i32,
    /// Bytes that the guest wrote since its last flush and that read back as something else. They come back only if the guest
    /// writes them again.
    pub lost_bytes: u64,
    /// There is more that can't be checked, because an earlier node wrote it.
    pub unknown: bool,
}

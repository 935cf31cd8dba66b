//! The numbers by which [`super::Vsip`] decides, and why they are what they are.

/// How many microseconds a second has.
pub(super) const SECOND_US: f64 = 1e6;

/// Most credit that a machine can have saved: its share of this long. A cold launch of a large program on a hard disk reads for
/// some seconds; among eight machines this pays for the first four of them.
pub(super) const CREDIT_US: f64 = 30.0 * SECOND_US;

/// Credit is a share among at least so many machines: a quarter of the device for half a minute, which is the longest launch
/// that goes first all the way.
pub(super) const CREDIT_SHARERS_MIN: f64 = 4.0;

/// The same for a machine that is new: its credit is a share among at least so many machines, so that machines that begin together begin
/// with the same credit.
pub(super) const NEW_SHARERS_MIN: f64 = 8.0;

/// How far interactive requests may take a machine without credit beyond its share, as time for which it has its share. It
/// is what a liar can gain, once: 0.4 % of two minutes.
pub(super) const LEAD_US: f64 = 0.5 * SECOND_US;

/// The same in requests, where that is more: among a hundred machines on a hard disk, half a second's share is less than one.
pub(super) const LEAD_MIN: f64 = 2.0;

/// How much faster than others a machine with credit spends it on requests that are not interactive. They don't overtake all
/// others, or everybody would stand still for seconds whenever a machine begins to work.
pub(super) const BOOST: f64 = 4.0;

/// How many requests of other machines may go before a bulk request or a flush whose turn it is. It is a delay, not a smaller share.
pub(super) const BULK_YIELDS: f64 = 8.0;

/// The starvation guard acts once in so many requests at most, so that it costs others 6 %.
pub(super) const GUARD_EVERY: u32 = 16;

/// While the guard finds nothing that starves, it looks this many times within the time after which something counts as starving.
pub(super) const GUARD_LOOKS: u64 = 16;

/// How many requests more than others interactive ones may have under way: they don't wait until one of those is done before
/// the device even knows of them.
pub(super) const URGENT_EXTRA: usize = 1;

/// A device is held free for a machine's next request only if that many requests or fewer keep it busy. One that needs more has
/// several arms or channels, of which one is free soon anyway.
pub(super) const HOLD_DEPTH_MAX: usize = 2;

/// A device is held free for at most so many times what a request takes: beyond that, waiting for a request of another machine
/// costs the user less than the wait costs the others.
pub(super) const HOLD_SERVICES: f64 = 4.0;

/// A device is held free for a machine only if this part of the times its next request came in time.
pub(super) const HOLD_HITS_MIN: f64 = 0.5;

/// For how long after an interactive request writes are bounded as while one waits: programs think between reads.
pub(super) const SESSION_US: u64 = 100_000;

/// While an interactive machine is at work, at most one part in so many of the device's depth is for writes and flushes of
/// others.
pub(super) const WRITES_PART: usize = 4;

/// The same in bytes: what an ordinary disk writes in some milliseconds. One write or flush may always be under way.
pub(super) const WRITE_BYTES_MAX: u64 = 512 << 10;

/// A request whose end nobody has reported for so long is taken for lost, so that it doesn't keep a place for ever. Devices that
/// stall come back earlier.
pub(super) const LOST_US: u64 = 120_000_000;

/// With more machines than this, those are forgotten for which nobody has set a limit and which want nothing.
pub(super) const MACHINES_MAX: usize = 1024;

/// Most bytes that a single request is charged for.
pub(super) const CHARGED_BYTES_MAX: u64 = 64 << 20;

/// What a [`super::Vsip`] has to know of what it schedules for.
#[derive(Clone, Copy, Debug)]
pub struct VsipConfig {
    /// Most requests that are queued.
    pub(super) most_queued: usize,
    /// Most requests that may be served at once.
    pub(super) depth_max: usize,
    /// How many it begins with.
    pub(super) depth_start: usize,
    /// Requests of ordinary size per second that it is believed to serve until that was measured.
    pub(super) capacity_per_s: f64,
    /// How many bytes cost as much as a request by itself.
    pub(super) bytes_per_request: f64,
    /// Longest that the device is held free for an interactive machine's next request.
    pub(super) hold_us_max: u64,
    /// For how long after a request was done its machine still counts as at work: submitting the next one takes a moment.
    pub(super) grace_us: u64,
    /// After how long a lane counts as starving: requests wait in it, and none of them was served meanwhile.
    pub(super) guard_us: u64,
    /// Whether the caller bounds what no guest waits for by itself: then such requests take no place of the depth.
    pub(super) ahead_apart: bool,
}

impl VsipConfig {
    /// A local disk, hard disk or SSD. At most `most_queued` requests are queued; `workers` threads serve them, of which one is
    /// kept for interactive requests if there are several.
    pub fn disk(most_queued: usize, workers: usize) -> VsipConfig {
        VsipConfig {
            most_queued,
            depth_max: workers.saturating_sub(URGENT_EXTRA).max(1),
            // A hard disk's. An SSD's is found within some hundred requests.
            depth_start: 1,
            // A hard disk's, too: until a faster one is known, it is held free rather too long than too short.
            capacity_per_s: 120.0,
            // A hard disk reads 1 MB, an SSD 0.1 MB, while it could have begun another request.
            bytes_per_request: (256 << 10) as f64,
            // Twice what a program computes between two reads of its launch, usually.
            hold_us_max: 33_000,
            grace_us: 10_000,
            guard_us: 500_000,
            ahead_apart: false,
        }
    }

    /// A network source whose answers are queued by this host: `workers` requests that a guest waits for can be on their way at once. How
    /// much is under way that no guest waits for is the caller's to decide; here it only waits for its turn.
    pub fn link(most_queued: usize, workers: usize) -> VsipConfig {
        VsipConfig {
            most_queued,
            depth_max: workers.saturating_sub(URGENT_EXTRA).max(1),
            // Links have round trips to fill: too few at first would make every start slow.
            depth_start: 8,
            capacity_per_s: 500.0,
            // Links are paid by the byte; a request by itself costs its headers and some work at the other end.
            bytes_per_request: (16 << 10) as f64,
            hold_us_max: 33_000,
            grace_us: 20_000,
            // Answers take round trips; nothing that waits for two seconds is taken for a hung guest.
            guard_us: 2_000_000,
            // By bytes, which is what a link is kept busy by.
            ahead_apart: true,
        }
    }
}

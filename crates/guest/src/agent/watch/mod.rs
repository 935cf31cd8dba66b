//! Tells which programs in this guest read from disks, so that the host can serve those first for which a person waits.
//!
//! The kernel reports each request, through an instance of its tracing that is the agent's own ([`trace`]): nothing is done while nobody
//! reads, and a request costs the guest some microseconds. A kernel without tracing tells only how much each process has read
//! ([`amounts`]); then `/proc` is looked through, several times a second while a disk is read, and the disks' counters once a second
//! otherwise. What comes of both is gathered by program ([`gather`]) and told a few times a second at most.

mod amounts;
mod event;
mod gather;
mod trace;

use crate::asked::Asked;
use amounts::Amounts;
use gather::Gathered;
use std::os::fd::BorrowedFd;
use std::path::Path;
use trace::Trace;

/// The least time between two looks at the kernel's trace, in ms: what comes meanwhile is told together.
const HOLD_MS: u64 = 40;
/// Programs that are told of at once, those that read most. The others follow the next time.
const TOLD_AT_ONCE: usize = 4;

/// Where that is learned from.
enum From {
    Trace(Trace),
    Amounts(Amounts),
}

/// Watches who reads, while a node wants to know.
pub(super) struct Watch {
    session: u64,
    from: From,
    gathered: Gathered,
    /// The earliest time of the next look, in ms.
    held_ms: u64,
}

impl Watch {
    /// Begins to watch, for a session with the node.
    pub fn begin(session: u64) -> Watch {
        let from = match Trace::open(Path::new("/sys/kernel/tracing")) {
            Ok(trace) => From::Trace(trace),
            Err(error) => {
                eprintln!("floe-guest: the kernel doesn't tell who reads which blocks: {error}");
                From::Amounts(Amounts::new(Path::new("/proc")))
            }
        };
        Watch {
            session,
            from,
            gathered: Gathered::default(),
            held_ms: 0,
        }
    }

    /// The session with the node that it is for.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns what to wait for.
    pub fn fd(&self, now_ms: u64) -> Option<BorrowedFd<'_>> {
        match &self.from {
            From::Trace(trace) if now_ms >= self.held_ms => Some(trace.fd()),
            _ => None,
        }
    }

    /// Returns when [`Watch::look`] is to be called even if nothing has happened.
    pub fn next_ms(&self, now_ms: u64) -> Option<u64> {
        match &self.from {
            From::Trace(_) if now_ms < self.held_ms || !self.gathered.is_empty() => {
                Some(self.held_ms)
            }
            From::Trace(_) => None,
            From::Amounts(_) => Some(self.held_ms),
        }
    }

    /// Looks at what has been read, and returns what is to be told. `is_ready` says whether [`Watch::fd`] has something.
    pub fn look(&mut self, now_ms: u64, is_ready: bool) -> Vec<Asked> {
        if now_ms < self.held_ms {
            return Vec::new();
        }
        match &mut self.from {
            From::Trace(trace) => {
                if !is_ready && self.gathered.is_empty() {
                    return Vec::new();
                }
                self.held_ms = now_ms + HOLD_MS;
                trace.read(now_ms, &mut self.gathered);
            }
            From::Amounts(amounts) => {
                self.held_ms = now_ms + amounts.look(&mut self.gathered);
            }
        }
        self.gathered.take(TOLD_AT_ONCE)
    }
}

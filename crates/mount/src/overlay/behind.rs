//! What of a disk is only in the host's page cache, and who waits for that to be written out (`writeback` has it done).

use super::Layer;
use crate::raw::Raw;
use floe_sched::Who;
use floe_sched::writeback::{FlushId, Ticket, WriteBack, WriteBackOptions};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Most bytes of a disk that are only in the page cache: some seconds of a hard disk.
const DIRTY_BYTES_MAX: u64 = 128 << 20;

/// The write-back of one disk. Locks: itself.
pub(crate) struct Behind {
    began: Instant,
    pub state: Mutex<Unwritten>,
}

/// What is dirty, and who waits for it.
pub(crate) struct Unwritten {
    pub back: WriteBack,
    /// What is dirty, the oldest first.
    pub dirty: VecDeque<Dirty>,
    /// Flushes that wait for pieces.
    pub flushes: VecDeque<(FlushId, Who, Raw)>,
    /// Writes that wait because too much is dirty.
    pub writers: HashMap<Ticket, (Who, Raw)>,
}

/// A part of a layer that is only in the page cache.
pub(crate) struct Dirty {
    pub layer: Weak<Layer>,
    pub offset: u64,
    pub bytes: u64,
}

impl Default for Behind {
    fn default() -> Behind {
        let options = WriteBackOptions {
            // The kernel writes out by itself what has been dirty for long.
            age_us: u64::MAX,
            dirty_bytes_max: DIRTY_BYTES_MAX,
            ..WriteBackOptions::default()
        };
        Behind {
            began: Instant::now(),
            state: Mutex::new(Unwritten {
                back: WriteBack::new(options),
                dirty: VecDeque::new(),
                flushes: VecDeque::new(),
                writers: HashMap::new(),
            }),
        }
    }
}

/// Offsets and lengths in a layer, in bytes.
type Ranges = Vec<(u64, u64)>;

impl Unwritten {
    /// Takes so many of the oldest dirty bytes off the list, by layer.
    pub(crate) fn oldest(&mut self, bytes: u64) -> Vec<(Arc<Layer>, Ranges)> {
        let mut found: Vec<(Arc<Layer>, Ranges)> = Vec::new();
        let mut left = bytes;
        while left > 0
            && let Some(first) = self.dirty.front_mut()
        {
            let n = left.min(first.bytes);
            let (layer, offset) = (first.layer.upgrade(), first.offset);
            first.offset += n;
            first.bytes -= n;
            if first.bytes == 0 {
                self.dirty.pop_front();
            }
            left -= n;
            let Some(layer) = layer else { continue };
            match found.iter_mut().find(|(of, _)| Arc::ptr_eq(of, &layer)) {
                Some((_, ranges)) => ranges.push((offset, n)),
                None => found.push((layer, vec![(offset, n)])),
            }
        }
        found
    }
}

impl Behind {
    /// Returns the time by which its write-back goes, in microseconds.
    pub(crate) fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Returns how far the guest has written.
    pub(crate) fn position(&self) -> u64 {
        self.state.lock().back.position()
    }

    /// Notes that everything that was written by then is on the disk.
    pub(crate) fn synced(&self, position: u64) {
        let state = &mut *self.state.lock();
        let bytes = state.back.synced(position);
        state.oldest(bytes);
    }
}

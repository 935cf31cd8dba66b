//! "Something has changed, look again."
//!
//! A pulse counts its beats. Whoever waits takes the count before it looks, so that a beat between its look and its wait is not
//! lost. The locks come from `super::sync`: the standard library's here, and loom's in `interleavings`, where this very file is
//! compiled a second time.

use super::sync::{Condvar, Mutex};
use std::sync::PoisonError;
use std::time::Instant;

/// Wakes those who wait until something has changed. What has changed, they look up themselves.
#[derive(Debug, Default)]
pub struct Pulse {
    beats: Mutex<u64>,
    beaten: Condvar,
}

/// How many beats somebody had seen when it looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Pulse {
    /// Returns a pulse that has not beaten.
    #[allow(dead_code, reason = "not in the copy that loom runs")]
    pub fn new() -> Pulse {
        Pulse::default()
    }

    /// Says that something has changed. Call it after the change, with no lock held that those who wait need.
    pub fn beat(&self) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        *beats += 1;
        self.beaten.notify_all();
    }

    /// Returns what to hand to [`Pulse::wait`]. Call it before looking.
    pub fn seen(&self) -> Seen {
        Seen(*self.beats.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a beat after `seen`, at most until `until`. Returns whether there was one.
    pub fn wait(&self, seen: Seen, until: Option<Instant>) -> bool {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        while *beats == seen.0 {
            let Some(until) = until else {
                let woken = self.beaten.wait(beats);
                beats = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.beaten.wait_timeout(beats, left);
            beats = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

//! Free space on the disk while machines run.
//!
//! What a guest writes takes space that nobody has set aside. Two things keep a short disk from stopping it for long: the
//! cache, whose content can be fetched again, shrinks before the disk is full; and machines that did find it full go on by
//! themselves once there is space. [`decide`] says how much the cache gives up; [`Room`] checks the disk and carries it out,
//! on the watcher's thread.

use floe_store::Cache;
use std::{path::PathBuf, sync::Arc};

/// The cache shrinks when fewer bytes than this are free, or less than a tenth of a smaller disk.
const LOW_BYTES: u64 = 1 << 30;
/// At how many looks after a failed request machines are asked whether they have stopped: QEMU stops a moment after that request.
const STOP_LOOKS: u32 = 5;
/// Free bytes that a new machine needs, and one that found the disk full before it goes on.
pub const WORK_BYTES: u64 = 16 << 20;

/// Size and free space of a disk, in bytes.
#[derive(Clone, Copy, Debug)]
struct Disk {
    free: u64,
    total: u64,
}

/// Returns how many bytes the cache is to give up so that twice the low limit is free, at most what it has.
fn decide(disk: Disk, cache_bytes: u64) -> u64 {
    let low = LOW_BYTES.min(disk.total / 10);
    match disk.free < low {
        true => (2 * low - disk.free).min(cache_bytes),
        false => 0,
    }
}

/// Watches the disk that holds the state directory.
pub struct Room {
    dir: PathBuf,
    cache: Arc<Cache>,
    /// The mount's count of failed requests at the last look.
    errors: u64,
    /// Whether a request has failed since machines were last let go on.
    failed: bool,
    /// At how many more looks machines are asked whether they have stopped.
    looks: u32,
}

/// What is to be done after a look at the disk.
pub struct Look {
    /// Ask machines whether they have stopped at a disk: a request has failed lately.
    pub stopped: bool,
    /// Let machines go on that found the disk full: a request has failed, and there is space now.
    pub go_on: bool,
}

impl Room {
    /// Creates a watcher of the disk that holds `dir`.
    pub fn new(dir: PathBuf, cache: Arc<Cache>) -> Room {
        Room {
            dir,
            cache,
            errors: 0,
            // one may have failed under an earlier node
            failed: true,
            looks: 0,
        }
    }

    /// Shrinks the cache if the disk is short. `errors` is the mount's count of failed requests. Returns what is to be done.
    pub fn look(&mut self, errors: u64) -> Look {
        self.looks = match errors == self.errors {
            true => self.looks.saturating_sub(1),
            false => STOP_LOOKS,
        };
        let stopped = self.looks > 0;
        let Some(disk) = self.disk() else {
            return Look {
                stopped,
                go_on: false,
            };
        };
        let cached = self.cache.stats().bytes;
        let gives = decide(disk, cached);
        if gives > 0 {
            match self.cache.gc(cached - gives) {
                Ok(0) => {}
                Ok(freed) => {
                    tracing::info!(freed, free = disk.free, "the cache made room on the disk")
                }
                Err(error) => tracing::warn!(%error, "the cache could not make room on the disk"),
            }
        }
        self.failed |= errors != self.errors;
        self.errors = errors;
        let go_on = self.failed && self.disk().is_some_and(|disk| disk.free >= WORK_BYTES);
        self.failed &= !go_on;
        Look { stopped, go_on }
    }

    /// Makes the next look return true again if there is space, because a machine could not go on.
    pub fn look_again(&mut self) {
        self.failed = true;
    }

    fn disk(&self) -> Option<Disk> {
        let stat = rustix::fs::statvfs(&self.dir).ok()?;
        Some(Disk {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gives_what_is_missing_and_no_more_than_it_has() {
        const GIB: u64 = 1 << 30;
        let large = |free| Disk {
            free,
            total: 500 * GIB,
        };
        assert_eq!(decide(large(GIB), 40 * GIB), 0);
        assert_eq!(decide(large(GIB / 2), 40 * GIB), 3 * GIB / 2);
        assert_eq!(decide(large(0), GIB), GIB);
        let small = |free| Disk { free, total: GIB };
        assert_eq!(decide(small(GIB / 5), GIB / 2), 0);
        assert_eq!(decide(small(0), GIB / 2), 2 * (GIB / 10));
    }
}

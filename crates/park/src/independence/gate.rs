//! What a pull in the background asks before it takes more: [`Pace`] with a clock, and a look at the disk.

use super::pace::Pace;
use floe_ground::reserve::free_bytes;
use floe_machines::machines::WORK_BYTES;
use floe_source::Fetcher;
use floe_store::Cache;
use floe_transfer as transfer;
use floe_transfer::{Cancel, TransferError};
use parking_lot::Mutex;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// See the module.
pub(super) struct Gate {
    pace: Mutex<Pace>,
    began: Instant,
    /// Where images are kept.
    dir: PathBuf,
    cache: Arc<Cache>,
    /// Knows whether guests wait for this image.
    fetcher: Arc<Fetcher>,
}

impl Gate {
    pub fn new(rate_bytes_s: u64, dir: PathBuf, cache: Arc<Cache>, fetcher: Arc<Fetcher>) -> Gate {
        Gate {
            pace: Mutex::new(Pace::new(rate_bytes_s)),
            began: Instant::now(),
            dir,
            cache,
            fetcher,
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("pace", &self.pace).finish()
    }
}

impl transfer::Gate for Gate {
    fn room(&self, bytes: u64) -> Result<(), TransferError> {
        // the cache gives up its part when the disk is short, and machines need some to write to
        let free = free_bytes(&self.dir).saturating_add(self.cache.stats().bytes);
        match bytes.saturating_add(WORK_BYTES) > free && bytes > 0 {
            true => Err(TransferError::NoRoom { needs: bytes, free }),
            false => Ok(()),
        }
    }

    fn pass(&self, bytes: u64, cancel: &Cancel) -> Result<(), TransferError> {
        self.room(bytes)?;
        loop {
            // at a rate that is never reached nothing else looks
            if cancel.is_cancelled() {
                return Err(TransferError::Cancelled);
            }
            let demand = self.fetcher.stats().waiting > 0;
            let now_us = self.began.elapsed().as_micros() as u64;
            let Some(wait_us) = self.pace.lock().ask(now_us, bytes, demand) else {
                return Ok(());
            };
            transfer::pause(cancel, Duration::from_micros(wait_us))?;
        }
    }
}

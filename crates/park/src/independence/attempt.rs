//! One attempt to bring a machine's image here, or to merge what it has written over that.

use super::{
    Independence, What,
    decide::{How, Wish},
    gate::Gate,
};
use floe_api::{Independence as Standing, IndependenceState, PauseReason};
use floe_ground::{error::NodeError, news::News};
use floe_image::{Hash, Kind};
use floe_inventory::inventory::{
    Entry,
    lifecycle::{Event as Life, Task},
    record::Origin,
};
use floe_mount::Mount;
use floe_source::Fetcher;
use floe_store::StoreError;
use floe_transfer as transfer;
use floe_transfer::{Cancel, Destination, Gate as _, Progress, PullOptions, TransferError};
use parking_lot::Mutex;
use std::{
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// How often a machine's progress is noted.
const NOTE_EVERY: Duration = Duration::from_millis(200);

impl Independence {
    /// Tries to bring a machine's image here; `ends` tells how that ended.
    pub(super) fn attempt(&self, entry: &Arc<Entry>, wish: &Wish, cancel: &Cancel, mut ends: Ends) {
        let before = entry.independence().unwrap_or_default();
        // one that waits for a source or for room does so until something comes
        if before.state == IndependenceState::Queued {
            self.stands(entry, IndependenceState::Copying, "", &before);
        }
        let moved = Mutex::new(Moved::default());
        let done = self.copy(entry, wish, cancel, &moved);
        let done = done.and_then(|()| self.settle(entry));
        let now = entry.independence().unwrap_or_default();
        let (state, why) = match &done {
            Ok(()) => {
                ends.how = How::Whole;
                self.stands(entry, IndependenceState::Whole, "", &now);
                let name = entry.name.as_str();
                self.core.tell(name, &News::Independent);
                return;
            }
            Err(_) if cancel.is_cancelled() => {
                ends.how = How::Cancelled;
                self.stands(entry, IndependenceState::Queued, "", &now);
                return;
            }
            Err(error) if has_no_room(error) => {
                ends.how = How::Full;
                (IndependenceState::NoRoom, error.to_api().to_string())
            }
            Err(error) => {
                ends.how = How::Away {
                    moved: moved.lock().any(),
                };
                (IndependenceState::SourceAway, error.to_api().to_string())
            }
        };
        if before.state != state {
            let name = entry.name.as_str();
            self.core.tell(name, &News::IndependentWaits(why.clone()));
        }
        self.stands(entry, state, &why, &now);
    }

    /// Notes how far a machine is; what is known of its bytes stays.
    fn stands(&self, entry: &Entry, state: IndependenceState, why: &str, bytes: &Standing) {
        entry.independence_stands(Standing {
            state,
            why: why.to_owned(),
            ..bytes.clone()
        });
    }

    /// Pulls the machine's image, and the one that its disks stand on if that is another, into the repository.
    fn copy(
        &self,
        entry: &Arc<Entry>,
        wish: &Wish,
        cancel: &Cancel,
        moved: &Mutex<Moved>,
    ) -> Result<(), NodeError> {
        let record = entry.record();
        let fetcher = self.images.sources.fetcher(&record.origin)?;
        let _storing = self.images.storing.read();
        let gate = self.gate(wish, fetcher.clone());
        let options = PullOptions {
            // one connection only: a second would take from what guests wait for
            connections: 1,
            cancel: cancel.clone(),
            gate: Some(Arc::new(gate)),
            whole_packs: true,
            ..PullOptions::default()
        };
        let note = |progress: Progress| {
            let soon = !moved.lock().notes(&progress);
            if soon && progress.done_bytes < progress.total_bytes {
                return;
            }
            entry.independence_stands(Standing {
                state: IndependenceState::Copying,
                done_bytes: progress.done_bytes,
                total_bytes: progress.total_bytes,
                left_bytes: progress.total_bytes.saturating_sub(progress.done_bytes),
                ..Default::default()
            });
        };
        let to = Destination::Repository(&self.images.repo, Some(&self.images.cache));
        for image in record.images() {
            transfer::pull(fetcher.source().as_ref(), &image, to, &options, &note)?;
            match self.forget_cached(&image) {
                Ok(bytes) => {
                    tracing::debug!(image = image.short(), bytes, "the cache need not keep it");
                }
                Err(error) => {
                    tracing::warn!(image = image.short(), %error, "a part of it lies twice on the disk");
                }
            }
        }
        Ok(())
    }

    /// Drops chunks from the cache that lie in packs of an image here, and that no machine has touched. Returns the bytes freed. Tables stay:
    /// they are small, and each fault needs one.
    fn forget_cached(&self, image: &Hash) -> Result<u64, StoreError> {
        let (repo, mut freed) = (&self.images.repo, 0);
        for pack in repo.layout(image)?.packs {
            let mut items = repo.pack_items(&pack)?;
            items.retain(|(kind, _)| *kind == Kind::Chunk);
            let chunks: Vec<Hash> = items.into_iter().map(|(_, hash)| hash).collect();
            freed += self.images.cache.forget_chunks(&chunks)?;
        }
        Ok(freed)
    }

    /// Tries to merge what a machine has written over its image; `ends` tells how that ended.
    pub(super) fn attempt_merge(
        &self,
        entry: &Arc<Entry>,
        wish: &Wish,
        cancel: &Cancel,
        mut ends: Ends,
    ) {
        let done = self.merge(entry, wish, cancel);
        let why = match &done {
            Ok(()) => {
                ends.how = How::Whole;
                String::new()
            }
            Err(_) if cancel.is_cancelled() => {
                ends.how = How::Cancelled;
                return;
            }
            Err(error) => {
                if has_no_room(error) {
                    ends.how = How::Full;
                }
                // it stays due, however little is left: some disks may stand on the new image, and others not
                if let Err(error) = entry.merges_again() {
                    tracing::warn!(machine = %entry.name, %error, "its record does not say that its disks are to be merged");
                }
                format!(
                    "what it has written still lies over its image: {}",
                    error.to_api()
                )
            }
        };
        let now = entry.independence().unwrap_or_default();
        if now.why != why {
            if !why.is_empty() {
                tracing::warn!(machine = %entry.name, why, "it is tried again");
            }
            self.stands(entry, IndependenceState::Whole, &why, &now);
        }
    }

    /// Merges what a machine has written into an image of its own, at the pace at which its image came. Its disks stand on that one alone
    /// then.
    fn merge(&self, entry: &Arc<Entry>, wish: &Wish, cancel: &Cancel) -> Result<(), NodeError> {
        let written = entry.mounted()?.stats().overlay_bytes;
        let bases = Mount::recorded_bases(&self.machines.disk_dir(&entry.record()))?;
        let mut all = true;
        if written > 0 || bases.len() > 1 {
            let fetcher = self.images.sources.fetcher(&entry.record().origin)?;
            let gate = self.gate(wish, fetcher);
            gate.room(written)?;
            let pass = |bytes| {
                gate.pass(bytes, cancel).map_err(|error| match error {
                    TransferError::NoRoom { .. } => {
                        io::Error::new(io::ErrorKind::StorageFull, error)
                    }
                    other => io::Error::other(other),
                })
            };
            all = self.parks.merge_disks(entry, cancel, &pass)?;
        }
        entry.update(|record| {
            // one that was cancelled just now is asked for anew, of what was written since
            if let Some(asked) = &mut record.independence {
                asked.merged |= all && !cancel.is_cancelled();
            }
        })
    }

    /// Returns what decides when more is taken.
    fn gate(&self, wish: &Wish, fetcher: Arc<Fetcher>) -> Gate {
        Gate::new(
            wish.rate_bytes_s,
            self.images.repo.dir().to_owned(),
            self.images.cache.clone(),
            fetcher,
        )
    }

    /// Records that a machine needs nothing from other hosts any more. If it was paused because its parent's node is silent, it goes on.
    fn settle(&self, entry: &Arc<Entry>) -> Result<(), NodeError> {
        entry.update(|record| {
            // from now on this node reads the image from its own repository
            record.origin = Origin::default();
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        })?;
        if entry.record().family.is_some() && entry.state().vm.is_some() {
            // who watches its parent's node holds the machine while it stops it
            let operation = entry.begin(Task::Continue)?;
            if operation.life().is(PauseReason::Orphaned) {
                let over = "all of its image is here".to_owned();
                operation.drive(Life::Over(PauseReason::Orphaned, over))?;
            }
        }
        entry.update(|record| {
            if let Some(asked) = &mut record.independence {
                asked.whole = true;
            }
        })
    }
}

/// Tells how an attempt ended, also if its thread has panicked.
pub(super) struct Ends {
    here: Weak<Independence>,
    what: What,
    place: String,
    how: How,
}

impl Ends {
    pub(super) fn new(here: Weak<Independence>, what: What, place: String) -> Ends {
        let how = How::Away { moved: false };
        Ends {
            here,
            what,
            place,
            how,
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(here) = self.here.upgrade() {
            here.has_ended(self.what, std::mem::take(&mut self.place), self.how);
        }
    }
}

/// What an attempt has brought so far.
#[derive(Default)]
struct Moved {
    wire_bytes: u64,
    noted: Option<Instant>,
}

impl Moved {
    /// Learns of progress; returns whether it is time to note it.
    fn notes(&mut self, progress: &Progress) -> bool {
        // each part of the way counts anew
        self.wire_bytes = self.wire_bytes.max(progress.wire_bytes);
        let soon = self.noted.is_some_and(|noted| noted.elapsed() < NOTE_EVERY);
        if !soon {
            self.noted = Some(Instant::now());
        }
        !soon
    }

    fn any(&self) -> bool {
        self.wire_bytes > 0
    }
}

fn has_no_room(error: &NodeError) -> bool {
    match error {
        NodeError::Transfer(TransferError::NoRoom { .. }) => true,
        NodeError::Transfer(TransferError::Store(error)) | NodeError::Store(error) => {
            error.is_full()
        }
        NodeError::Io { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
        _ => false,
    }
}

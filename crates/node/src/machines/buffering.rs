//! Pausing a machine so that it need not crawl (vTube 4.2.3), and letting it go on.
//!
//! The planner says through the mount when an image's machines should stand still and for how long; a thread of the node
//! tells QEMU. A machine that is paused so says `buffering`. What a user asks for wins: a start lets it go on for the rest of
//! the episode, a stop or a capture ends the pause first. Why a machine stands still is kept on the disk (`lifecycle`), so that a
//! node that starts after a crash lets it go on.

use crate::{
    error::NodeError,
    files::save_pauses,
    images::Wish,
    inventory::{Entry, Pauses, lifecycle::Event, now_us, record::PauseReason},
    machines::Machines,
};
use floe_api::{Buffering, MachineStatus, StreamInfo};
use floe_image::Hash;
use floe_machine::Status;
use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    time::Duration,
};

/// How often a pause that could not begin or end is tried again, and whether the node still is.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// So many times in a row must the planner not be waiting for anything before a pause ends without its word: no machine
/// may stand still because a word was lost.
const FORGOTTEN_AFTER: u32 = 20;

impl Entry {
    /// When it was paused for buffering: from and to, Unix time in microseconds.
    pub fn pauses(&self) -> Vec<(u64, u64)> {
        self.pauses.lock().all(now_us())
    }

    /// What it waits for, if it is paused for buffering.
    pub fn buffering(&self) -> Option<Buffering> {
        self.pauses.lock().buffering()
    }

    /// Whether it is paused for buffering, or about to be or to go on.
    pub fn stands_still(&self) -> bool {
        let pauses = self.pauses.try_lock();
        pauses.is_none_or(|pauses| pauses.since_us.is_some())
    }

    /// Whether the planner of its image waits for something.
    fn planner_buffers(&self) -> bool {
        let image = self.state.read().images.first().cloned();
        image.is_some_and(|image| image.progress().buffering.is_some())
    }

    /// Follows what the planner wishes; false if it must be tried again.
    fn follow(&self, wish: &Wish) -> Result<bool, NodeError> {
        let mut pauses = self.pauses.lock();
        pauses.buffering = wish.buffering;
        if !wish.pause {
            return self.end(&mut pauses, Event::EpisodeEnds).map(|()| true);
        }
        if !self.standing.lock().may_buffer() {
            return Ok(true);
        }
        // held while QEMU is told: no operation of the user begins in between
        let operation = self.operation.lock();
        if operation.is_some_and(|task| !task.allows_buffering()) {
            return Ok(false);
        }
        let Some(vm) = self.state.read().vm.clone() else {
            return Ok(false);
        };
        if vm.status()? != Status::Running {
            return Ok(false);
        }
        self.stand(Some(&vm), Event::Begins(PauseReason::Buffering))?;
        pauses.since_us = Some(now_us());
        Ok(true)
    }

    /// Ends a pause for buffering, if there is one.
    fn end(&self, pauses: &mut Pauses, event: Event) -> Result<(), NodeError> {
        let vm = self.state.read().vm.clone();
        self.stand(vm.as_deref(), event)?;
        if pauses.since_us.is_none() {
            return Ok(());
        }
        pauses.end(now_us());
        save_pauses(&self.dir, &pauses.over)
    }

    /// Ends a pause for buffering, because something is to be done with the machine; it may buffer again after that.
    pub fn stop_buffering(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end(&mut pauses, Event::Ends(PauseReason::Buffering))
    }

    /// Lets it go on, because its user wants it to, whatever it was waiting for.
    pub fn go_on_at_once(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end(&mut pauses, Event::UserContinues)
    }
}

impl Machines {
    /// Starts the thread that pauses machines.
    pub(crate) fn start_buffering(
        self: &Arc<Self>,
        wishes: mpsc::Receiver<Wish>,
    ) -> Result<(), NodeError> {
        let mut followed = Followed::default();
        let threads = &self.core.threads;
        threads.follow(
            "buffering",
            self,
            wishes,
            TRY_AGAIN,
            move |machines, wish| {
                followed.follow(machines, wish);
            },
        )
    }

    /// How a machine's image streams.
    pub fn stream_info(&self, name: &str) -> Result<StreamInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let state: MachineStatus = self.info_of(&entry).status;
        let (id, image, disks, fetcher, before) = {
            let state = entry.state.read();
            (
                state.record.image,
                state.images.first().cloned(),
                state.disks.clone(),
                state.fetcher.clone(),
                state.wire_before,
            )
        };
        let touches = image
            .as_ref()
            .map(|image| image.stats())
            .unwrap_or_default();
        let progress = image.map(|image| image.progress()).unwrap_or_default();
        let link = fetcher.map(|fetcher| fetcher.link()).unwrap_or_default();
        let fetched_bytes = link.wire_bytes.saturating_sub(before);
        let waited = disks.map(|disks| disks.stats()).unwrap_or_default();
        let (pauses, paused_s) = entry.pauses.lock().sum(now_us());
        let image_bytes = self.traces.image_bytes(&id).unwrap_or(0);
        let (touched, misses) = (touches.touched_chunks, touches.missed_chunks);
        let fetched = touched + progress.unused;
        Ok(StreamInfo {
            state,
            buffering: entry.buffering(),
            model: progress.planned_chunks > 0,
            planned_chunks: progress.planned_chunks,
            buffered_chunks: progress.buffered_chunks,
            misses,
            touched,
            fetched_bytes,
            saved_bytes: image_bytes.saturating_sub(fetched_bytes),
            rate_bytes_s: link.bytes_per_s,
            rtt_us: link.rtt_us,
            fetch_ratio: if touched > 0 {
                fetched as f64 / touched as f64
            } else {
                1.0
            },
            waits: waited.waits,
            waited_s: waited.wait_us as f64 / 1e6,
            pauses,
            paused_s,
        })
    }
}

/// Wishes that are to be met.
#[derive(Default)]
struct Followed {
    /// The last one of each image that is not met yet, or is to hold for machines that start later.
    unmet: HashMap<Hash, Wish>,
    /// For how many looks the planner of an image has not waited for anything.
    forgotten: HashMap<Hash, u32>,
}

impl Followed {
    /// Takes a wish in, and tries to meet all that there are.
    fn follow(&mut self, node: &Machines, wish: Option<Wish>) {
        let Followed { unmet, forgotten } = self;
        // only the last word counts
        unmet.extend(wish.map(|wish| (wish.image, wish)));
        unmet.retain(|_, wish| {
            let machines = node.inventory.all().into_iter();
            let machines: Vec<_> = machines
                .filter(|entry| entry.record().image == wish.image)
                .collect();
            let count = forgotten.entry(wish.image).or_default();
            *count = if machines.iter().any(|entry| entry.planner_buffers()) {
                0
            } else {
                *count + 1
            };
            if *count > FORGOTTEN_AFTER {
                wish.pause = false;
            }
            let mut met = true;
            for entry in machines {
                match entry.follow(wish) {
                    Ok(done) => met &= done,
                    Err(error) => {
                        met = false;
                        tracing::debug!(machine = %entry.name, %error, "buffering: QEMU was not told");
                    }
                }
            }
            // a machine that starts later is to stand still too, until the planner says that it is over
            !met || wish.pause
        });
        forgotten.retain(|image, _| unmet.contains_key(image));
    }
}

//! Pauses a machine whose guest would crawl while its image streams (vTube 4.2.3), and lets it go on.
//!
//! The planner says through the mount when an image's machines should stand still and for how long; a thread of the node
//! pauses them in QEMU. Such a machine has the status `buffering`. The user's wish takes precedence: a start lets the machine
//! go on for the rest of the episode, and a stop or a capture ends the pause first. The reason is kept on the disk
//! (`lifecycle`), so that a node that starts after a crash lets the machine go on.

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

/// How long the thread waits for a wish before it retries pauses that could not begin or end.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// After so many consecutive looks at which the planner waits for nothing, a pause ends without the planner's word: a lost
/// message must not keep a machine paused.
const FORGOTTEN_AFTER: u32 = 20;

impl Entry {
    /// Returns when it was paused for buffering: begin and end of each pause, in microseconds of Unix time.
    pub fn pauses(&self) -> Vec<(u64, u64)> {
        self.pauses.lock().all(now_us())
    }

    /// Returns what it waits for, if it is paused for buffering.
    pub fn buffering(&self) -> Option<Buffering> {
        self.pauses.lock().buffering()
    }

    /// Whether it is paused for buffering, or such a pause is just beginning or ending.
    pub fn stands_still(&self) -> bool {
        let pauses = self.pauses.try_lock();
        pauses.is_none_or(|pauses| pauses.since_us.is_some())
    }

    /// Whether the planner of its image waits for chunks.
    fn planner_buffers(&self) -> bool {
        let image = self.state.read().images.first().cloned();
        image.is_some_and(|image| image.progress().buffering.is_some())
    }

    /// Does what the planner wishes. Returns false if it must be tried again.
    fn follow(&self, wish: &Wish) -> Result<bool, NodeError> {
        let mut pauses = self.pauses.lock();
        pauses.buffering = wish.buffering;
        if !wish.pause {
            return self.end(&mut pauses, Event::EpisodeEnds).map(|()| true);
        }
        if !self.standing.lock().may_buffer() {
            return Ok(true);
        }
        // held while QEMU is told to stop, so that no operation of the user begins in between
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

    /// Ends the pause for buffering, if there is one.
    fn end(&self, pauses: &mut Pauses, event: Event) -> Result<(), NodeError> {
        let vm = self.state.read().vm.clone();
        self.stand(vm.as_deref(), event)?;
        if pauses.since_us.is_none() {
            return Ok(());
        }
        pauses.end(now_us());
        save_pauses(&self.dir, &pauses.over)
    }

    /// Ends the pause for buffering because an operation follows; the machine may buffer again after that.
    pub fn stop_buffering(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end(&mut pauses, Event::Ends(PauseReason::Buffering))
    }

    /// Lets the machine go on because its user wants that, whatever it was waiting for.
    pub fn go_on_at_once(&self) -> Result<(), NodeError> {
        let mut pauses = self.pauses.lock();
        self.end(&mut pauses, Event::UserContinues)
    }
}

impl Machines {
    /// Starts the thread that pauses machines for buffering.
    pub(crate) fn start_buffering(
        self: &Arc<Self>,
        wishes: mpsc::Receiver<Wish>,
    ) -> Result<(), NodeError> {
        let mut followed = Followed::default();
        let threads = &self.core.threads;
        Ok(threads.follow(
            "buffering",
            self,
            wishes,
            TRY_AGAIN,
            move |machines, wish| {
                followed.follow(machines, wish);
            },
        )?)
    }

    /// Returns how a machine's image streams: what has arrived, what is awaited, and how often the machine was paused.
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

/// The planner's wishes that are being carried out.
#[derive(Default)]
struct Followed {
    /// The last wish for each image that is not met yet, or that also holds for machines that start later.
    unmet: HashMap<Hash, Wish>,
    /// For each image, at how many consecutive looks its planner has not waited for anything.
    forgotten: HashMap<Hash, u32>,
}

impl Followed {
    /// Takes a wish in, if there is one, and tries to meet all that are unmet.
    fn follow(&mut self, machines: &Machines, wish: Option<Wish>) {
        let Followed { unmet, forgotten } = self;
        // only the planner's last wish for an image counts
        unmet.extend(wish.map(|wish| (wish.image, wish)));
        unmet.retain(|_, wish| {
            let entries = machines.inventory.all().into_iter();
            let entries: Vec<_> = entries
                .filter(|entry| entry.record().image == wish.image)
                .collect();
            let count = forgotten.entry(wish.image).or_default();
            *count = if entries.iter().any(|entry| entry.planner_buffers()) {
                0
            } else {
                *count + 1
            };
            if *count > FORGOTTEN_AFTER {
                wish.pause = false;
            }
            let mut met = true;
            for entry in entries {
                match entry.follow(wish) {
                    Ok(done) => met &= done,
                    Err(error) => {
                        met = false;
                        tracing::debug!(machine = %entry.name, %error, "buffering: QEMU was not told");
                    }
                }
            }
            // a wish to pause also holds for machines that start later, until the planner withdraws it
            !met || wish.pause
        });
        forgotten.retain(|image, _| unmet.contains_key(image));
    }
}

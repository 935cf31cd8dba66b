//! Pauses a machine whose guest would crawl while its image streams (vTube 4.2.3), and lets it go on.
//!
//! The planner says through the mount when a machine should stand still and for how long; a thread of the node pauses it in
//! QEMU. Such a machine has the status `buffering`. The user's wish takes precedence: a start lets the machine
//! go on for the rest of the episode, and a stop or a capture ends the pause first. The reason is kept on the disk
//! (`lifecycle`), so that a node that starts after a crash lets the machine go on.

use crate::machines::Machines;
use floe_api::{MachineStatus, StreamInfo};
use floe_ground::error::NodeError;
use floe_inventory::inventory::Entry;
use floe_library::images::Wish;
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

impl Machines {
    /// Starts the thread that pauses machines for buffering.
    pub fn start_buffering(
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
            let state = entry.state();
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
        let progress = disks.as_ref().map(|disks| disks.progress());
        let progress = progress.unwrap_or_default();
        let link = fetcher.map(|fetcher| fetcher.link()).unwrap_or_default();
        let fetched_bytes = link.wire_bytes.saturating_sub(before);
        let waited = disks.map(|disks| disks.stats()).unwrap_or_default();
        let (pauses, paused_s) = entry.paused_for_buffering();
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
    /// The last wish for each machine that is not met yet, or that holds until the planner withdraws it. By names on the mount.
    unmet: HashMap<String, Wish>,
    /// For each of these, at how many consecutive looks the planner has not waited for anything.
    forgotten: HashMap<String, u32>,
}

impl Followed {
    /// Takes a wish in, if there is one, and tries to meet all that are unmet.
    fn follow(&mut self, machines: &Machines, wish: Option<Wish>) {
        let Followed { unmet, forgotten } = self;
        // only the planner's last wish for a machine counts
        unmet.extend(wish.map(|wish| (wish.machine.clone(), wish)));
        unmet.retain(|_, wish| {
            let mut entries = machines.inventory.all().into_iter();
            let entry = entries.find(|entry| entry.state().record.mount_name == wish.machine);
            let count = forgotten.entry(wish.machine.clone()).or_default();
            *count = if entry.as_deref().is_some_and(planner_buffers) {
                0
            } else {
                *count + 1
            };
            if *count > FORGOTTEN_AFTER {
                wish.pause = false;
            }
            let met = entry.is_none_or(|entry| {
                let done = entry.follow_planner(wish.pause, wish.buffering);
                done.unwrap_or_else(|error| {
                    tracing::debug!(machine = %entry.name, %error, "buffering: QEMU was not told");
                    false
                })
            });
            // a machine that does not run yet pauses as soon as it does, unless the planner withdraws its wish
            !met || wish.pause
        });
        forgotten.retain(|machine, _| unmet.contains_key(machine));
    }
}

/// Whether the planner waits for chunks for a machine.
fn planner_buffers(entry: &Entry) -> bool {
    let disks = entry.state().disks.clone();
    disks.is_some_and(|disks| disks.progress().buffering.is_some())
}

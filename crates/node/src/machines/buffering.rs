//! Pauses a machine whose guest would crawl while its image streams (vTube 4.2.3), and lets it go on.
//!
//! The planner says through the mount when an image's machines should stand still and for how long; a thread of the node
//! pauses them in QEMU. Such a machine has the status `buffering`. The user's wish takes precedence: a start lets the machine
//! go on for the rest of the episode, and a stop or a capture ends the pause first. The reason is kept on the disk
//! (`lifecycle`), so that a node that starts after a crash lets the machine go on.

use crate::{error::NodeError, images::Wish, inventory::Entry, machines::Machines};
use floe_api::{MachineStatus, StreamInfo};
use floe_image::Hash;
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
        let progress = image.map(|image| image.progress()).unwrap_or_default();
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
            *count = if entries.iter().any(|entry| planner_buffers(entry)) {
                0
            } else {
                *count + 1
            };
            if *count > FORGOTTEN_AFTER {
                wish.pause = false;
            }
            let mut met = true;
            for entry in entries {
                match entry.follow_planner(wish.pause, wish.buffering) {
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

/// Whether the planner of a machine's image waits for chunks.
fn planner_buffers(entry: &Entry) -> bool {
    let image = entry.state().images.first().cloned();
    image.is_some_and(|image| image.progress().buffering.is_some())
}

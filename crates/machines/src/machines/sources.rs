//! Pauses machines whose guests wait for a page that does not come, and lets them go on; `waiting` decides when. Says so where a guest's
//! request has failed because it may not wait for longer.
//!
//! QEMU can't take a CPU out of a page fault. Told to stop, it stops the guest's clock and the other CPUs at once, waits for that one, and
//! answers nobody meanwhile; told to go on, it does so after that. So both are said without waiting for the answer (`lifecycle`), nothing
//! else is asked of a QEMU that hangs, and what needs its answers is refused. A clock that stood is set once the machine goes on, as after
//! any pause.

use super::{
    Machines,
    control::source_trouble,
    waiting::{Act, Waiting},
};
use floe_ground::{error::NodeError, news::News};
use floe_inventory::inventory::{Entry, lifecycle::Event};
use floe_mount::{MachineHandle, Waits};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often is looked which machines wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Machines {
    /// Starts the thread that looks after machines whose sources are silent.
    pub fn start_watching_sources(self: &Arc<Self>) -> Result<(), NodeError> {
        let bound = self.core.options.io_pause.unwrap_or(Duration::MAX);
        let (began, mut known) = (Instant::now(), HashMap::new());
        let threads = &self.core.threads;
        Ok(
            threads.keep("source-watch", self, LOOK_EVERY, move |machines| {
                machines.look_after_sources(&mut known, began.elapsed(), bound);
            })?,
        )
    }

    /// Tells users if a request of a machine's guest has failed since this was called last. Before its disks go this is called once more:
    /// a machine whose memory fails ends at once.
    pub(super) fn tell_given_up(&self, entry: &Entry, disks: &MachineHandle) {
        if let Some(why) = disks.newly_given_up() {
            let name = entry.name.as_str();
            self.core.tell(name, &News::RequestFailed(why));
        }
    }

    fn look_after_sources(
        &self,
        known: &mut HashMap<String, Waiting>,
        now: Duration,
        bound: Duration,
    ) {
        let mut before = std::mem::take(known);
        for entry in self.inventory.all() {
            let Some(disks) = entry.state().disks.clone() else {
                continue;
            };
            self.tell_given_up(&entry, &disks);
            let (waits, paused) = (disks.waits(), entry.hangs());
            if waits == Waits::default() && !paused {
                continue;
            }
            let name = entry.name.to_string();
            let mut waiting = before.remove(&name).unwrap_or_default();
            if let Some(act) = waiting.look(now, bound, waits, paused)
                && let Err(error) = pause(&entry, act, waits)
            {
                tracing::debug!(machine = %entry.name, %error, "it waits for its source, and is not paused or continued");
            }
            known.insert(name, waiting);
        }
    }
}

/// Pauses a machine, or lets it go on. One with which something else is being done is looked at again.
fn pause(entry: &Entry, act: Act, waits: Waits) -> Result<(), NodeError> {
    let event = match act {
        Act::Pause(waited) => {
            let fetcher = entry.state().fetcher.clone();
            let disks = entry.state().disks.clone();
            let why = source_trouble(fetcher.as_deref(), disks.as_ref(), waits);
            let brief = || format!("waits for its source, {} s now", waited.as_secs());
            Event::Waits(why.unwrap_or_else(brief))
        }
        Act::GoOn(lasted) => Event::Served(format!(
            "what it waited for has come, after {} s",
            lasted.as_secs()
        )),
    };
    entry.drive(event).map(drop)
}

//! The threads of a mount.

use crate::chores;
use crate::core::Core;
use crate::push;
use crate::serve;
use crate::start::Buffers;
use crate::trace::Writer;
use crate::{MountError, owner, waiting};
use floe_planner::Planner;
use floe_threads::Task;
use std::collections::HashSet;
use std::sync::{Arc, Weak};

/// Starts a thread that goes on after a panic.
fn spawn(name: String, run: impl FnMut() + Send + 'static) -> Result<Task<()>, MountError> {
    floe_threads::keep_running(name, run).map_err(not_started)
}

fn not_started(error: floe_threads::StartError) -> MountError {
    MountError::io("start a thread of", "the mount")(error.into())
}

/// Starts all threads; returns those that serve the kernel, which end when the mount is gone. The others end with `core`.
pub(crate) fn start(
    core: &Arc<Core>,
    buffers: Buffers,
    planner: Planner,
) -> Result<Vec<Task<()>>, MountError> {
    let mut replies = buffers.replies.into_iter();
    let mut serving = Vec::new();
    let devices = buffers.requests.into_iter().zip(&mut replies).enumerate();
    for (device, (mut request, mut reply)) in devices {
        let core = core.clone();
        serving.push(spawn(format!("floe-fuse-{device}"), move || {
            serve::run(&core, device, &mut request, &mut reply)
        })?);
    }
    let queues = &core.queues;
    for (i, mut reply) in replies.enumerate() {
        let (core, work) = (Arc::downgrade(core), queues.work.clone());
        spawn(format!("floe-disk-{i}"), move || {
            serve::work(&core, &work, &mut reply)
        })?;
    }
    let (weak, inbox) = (Arc::downgrade(core), queues.inbox.clone());
    // what the planner knows would not survive a panic, so it is not started again
    let plan = move || owner::run(&weak, &inbox, planner);
    floe_threads::spawn("floe-planner", plan).map_err(not_started)?;
    let (weak, chores) = (Arc::downgrade(core), queues.chores.clone());
    spawn("floe-chores".into(), move || chores::run(&weak, &chores))?;
    let (weak, pusher) = (Arc::downgrade(core), queues.pusher.clone());
    spawn("floe-push".into(), move || push::run(&weak, &pusher))?;
    let (weak, retries) = (Arc::downgrade(core), queues.retries.clone());
    spawn("floe-retry".into(), move || waiting::run(&weak, &retries))?;
    let (weak, traces) = (Arc::downgrade(core), queues.traces.clone());
    spawn("floe-traces".into(), move || write_traces(&weak, &traces))?;
    Ok(serving)
}

/// Writes all machines' traces out now and then, until the mount is gone. A disk that stands still holds up this thread only.
fn write_traces(core: &Weak<Core>, writer: &Writer) {
    let mut failed = HashSet::new();
    while writer.next() {
        let Some(core) = core.upgrade() else {
            return;
        };
        let machines: Vec<_> = core.machines.read().values().cloned().collect();
        let before = std::mem::take(&mut failed);
        for machine in machines {
            let Err(error) = machine.trace.write_out() else {
                continue;
            };
            // a disk may be full for long
            if !before.contains(&machine.id) {
                tracing::warn!(machine = machine.name, %error, "the trace could not be written; it is tried again");
            }
            failed.insert(machine.id);
        }
    }
}

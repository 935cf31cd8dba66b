//! Machines that QEMU stopped because of a disk error: the reason in words, and which of them the node lets go on.

use crate::{
    error::NodeError,
    inventory::{Entry, lifecycle::Task},
    machines::{
        Machines,
        room::{GO_ON_BYTES, Room},
    },
};
use floe_api::Happened;
use floe_machine::Status;
use floe_mount::{FailedDisk, MachineHandle};

/// Returns the message about a machine that is stopped at `disk`, and what its user can do.
pub(crate) fn why_stopped(
    name: &str,
    disk: &str,
    no_space: bool,
    disks: Option<&MachineHandle>,
) -> String {
    let failed = disks.map(MachineHandle::failed_disks).unwrap_or_default();
    let failed = failed
        .iter()
        .find(|f| f.disk == disk)
        .or(failed.first())
        .map(|f| (f.disk.as_str(), lost(f)));
    match failed {
        Some((disk, Some(lost))) => format!(
            "paused at {disk}: the host's disk failed and {lost}; put it right, then floe stop --now {name} and floe start \
             {name}: the guest starts as after a power cut, with all that it had flushed"
        ),
        Some((disk, None)) if !no_space => format!(
            "paused at {disk}: the host's disk could not keep what was written, of which nothing is lost yet; put it \
             right, then floe start {name}"
        ),
        _ if no_space => format!(
            "paused at {disk}: the host's disk is full; make room and it goes on by itself, or at once with floe start {name}"
        ),
        _ => format!("paused at {disk}: it can't be written; put it right, then floe start {name}"),
    }
}

/// Returns in words what cannot be recovered, if anything.
fn lost(failed: &FailedDisk) -> Option<String> {
    if failed.lost_bytes > 0 {
        let kib = failed.lost_bytes as f64 / 1024.0;
        return Some(format!("lost {kib:.1} KiB that the guest had written"));
    }
    failed.unknown.then(|| {
        "nobody can tell whether it kept what the guest wrote before the node was restarted".into()
    })
}

impl Machines {
    /// Lets a machine go on that stopped at a disk while no node ran: the kernel may have failed a request that was under way
    /// when the earlier node was killed. QEMU then retries it. A machine whose disk is still bad or full stays stopped.
    pub(crate) fn continue_stopped(&self, entry: &Entry) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        let Status::IoError { disk, no_space } = vm.status()? else {
            return Ok(());
        };
        let disks = entry.state.read().disks.clone();
        let name = entry.name.as_str();
        let healthy = disks.as_ref().is_some_and(|d| d.flush().is_ok());
        if !healthy || (no_space && !self.has_room(entry)) {
            let why = why_stopped(name, &disk, no_space, disks.as_ref());
            self.core.tell(Happened::MachineStoppedAtDisk, name, why);
            return Ok(());
        }
        vm.cont()?;
        let why =
            format!("a request for {disk} had failed while no node was there; it is tried again");
        self.core.tell(Happened::MachineContinued, name, why);
        Ok(())
    }

    /// Makes the cache give up space on a short disk, and lets machines go on that found the disk full.
    pub(crate) fn look_after_room(&self, room: &mut Room) {
        let errors = self.images.with_mount(|mount| Ok(mount.stats().errors));
        if !errors.is_ok_and(|errors| room.look(errors)) {
            return;
        }
        for entry in self.inventory.all() {
            if entry.state.read().vm.is_none() {
                continue;
            }
            let goes_on = entry
                .begin(Task::Continue)
                .and_then(|operation| self.continue_full(&operation));
            if let Err(error) = goes_on {
                tracing::debug!(machine = %entry.name, %error, "is looked at again");
                room.look_again();
            }
        }
    }

    /// Lets a machine go on that stopped because the disk was full, if its disks can be flushed again.
    fn continue_full(&self, entry: &Entry) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        if !matches!(vm.status()?, Status::IoError { no_space: true, .. }) {
            return Ok(());
        }
        let disks = entry.state.read().disks.clone();
        if let Some(disks) = disks {
            disks.flush()?;
        }
        vm.cont()?;
        let why = "the disk was full and has room again";
        self.core
            .tell(Happened::MachineContinued, entry.name.as_str(), why);
        Ok(())
    }

    fn has_room(&self, entry: &Entry) -> bool {
        let stat = rustix::fs::statvfs(self.disk_dir(&entry.record()));
        stat.is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) >= GO_ON_BYTES)
    }
}

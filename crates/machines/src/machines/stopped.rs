//! Machines that QEMU stopped because of a disk error: the reason in words, and which of them the node lets go on.

use crate::machines::{
    Machines,
    room::{Room, WORK_BYTES},
};
use floe_api::PauseReason;
use floe_ground::{
    error::{MAKE_ROOM, NodeError, refused},
    reserve::free_bytes,
};
use floe_inventory::inventory::{
    Entry,
    lifecycle::{Event, Phase, Task},
};
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
        _ => match disks.and_then(MachineHandle::given_up) {
            Some(why) => format!("paused at {disk}: {why}; after that floe start {name}"),
            None => format!(
                "paused at {disk}: it can't be written; put it right, then floe start {name}"
            ),
        },
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
    pub fn continue_stopped(&self, entry: &Entry) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        let Status::IoError { disk, no_space } = vm.status()? else {
            return Ok(());
        };
        let disks = entry.state().disks.clone();
        let why = why_stopped(entry.name.as_str(), &disk, no_space, disks.as_ref());
        entry.drive(Event::StoppedAtDisk(why))?;
        let healthy = disks.as_ref().is_some_and(|d| d.flush().is_ok());
        if healthy && (!no_space || self.has_room(entry)) {
            let why = format!(
                "a request for {disk} had failed while no node was there; it is tried again"
            );
            entry.drive(Event::Over(PauseReason::Disk, why))?;
        }
        Ok(())
    }

    /// Makes the cache give up space on a short disk, reports machines that have stopped at a disk, and lets those go on that found
    /// the disk full and now have room.
    pub(crate) fn look_after_room(&self, room: &mut Room) {
        for entry in self.inventory.all() {
            // what a full disk did not let it write down
            if entry.life().is_behind()
                && let Err(error) = entry.catch_up()
            {
                tracing::debug!(machine = %entry.name, %error, "its record is behind");
            }
        }
        let Ok(errors) = self.images.with_mount(|mount| Ok(mount.stats().errors)) else {
            return;
        };
        let look = room.look(errors);
        if look.stopped {
            for entry in self.inventory.all() {
                if let Err(error) = self.note_stopped(&entry) {
                    tracing::debug!(machine = %entry.name, %error, "QEMU does not tell its state");
                }
            }
        }
        if !look.go_on {
            return;
        }
        for entry in self.inventory.all() {
            if entry.state().vm.is_none() || entry.hangs() {
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

    /// Notes and reports that QEMU has stopped a machine at a disk, if that is new.
    fn note_stopped(&self, entry: &Entry) -> Result<(), NodeError> {
        let life = entry.life();
        // the QEMU of an orphaned clone may not answer, nor one that waits for its source
        let known = life.is(PauseReason::Disk) || life.orphaned().is_some() || life.hangs();
        if known || life.phase() != Phase::Running {
            return Ok(());
        }
        if let Status::IoError { disk, no_space } = entry.vm()?.status()? {
            let disks = entry.state().disks.clone();
            let why = why_stopped(entry.name.as_str(), &disk, no_space, disks.as_ref());
            entry.drive(Event::StoppedAtDisk(why))?;
        }
        Ok(())
    }

    /// Lets a machine go on that stopped because the disk was full, if its disks can be flushed again.
    fn continue_full(&self, entry: &Entry) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        if !matches!(vm.status()?, Status::IoError { no_space: true, .. }) {
            return Ok(());
        }
        self.note_stopped(entry)?;
        let disks = entry.state().disks.clone();
        if let Some(disks) = disks {
            disks.flush()?;
        }
        let why = "the disk was full and has room again".to_owned();
        entry.drive(Event::Over(PauseReason::Disk, why)).map(drop)
    }

    fn has_room(&self, entry: &Entry) -> bool {
        free_bytes(&self.disk_dir(&entry.record())) >= WORK_BYTES
    }

    /// Refuses a new machine on a disk so full that its guest would stop at its first writes.
    pub fn check_room(&self) -> Result<(), NodeError> {
        let dir = self.core.home.root();
        let free = free_bytes(dir);
        if free >= WORK_BYTES {
            return Ok(());
        }
        Err(refused(
            format!(
                "the disk of {} is full: {} KiB are free, and a new machine needs {} MiB for what its guest writes",
                dir.display(),
                free >> 10,
                WORK_BYTES >> 20
            ),
            MAKE_ROOM,
        ))
    }
}

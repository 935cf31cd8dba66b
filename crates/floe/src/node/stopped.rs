//! Machines that QEMU stopped at a disk: why, in words, and which of them a node that comes back lets go on.

use crate::node::{Node, error::NodeError, machines::Entry};
use floe_machine::Status;
use floe_mount::{FailedDisk, MachineHandle};

/// Bytes that must be free on the host's disk before a machine that found it full is let go on.
const ROOM_BYTES_MIN: u64 = 16 << 20;

/// What is said of a machine that is stopped at `disk`, and what to do.
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
            "paused at {disk}: the host's disk failed and {lost}; put it right, then floe kill {name} and floe start \
             {name}: the guest starts as after a power cut, with all that it had flushed"
        ),
        Some((disk, None)) if !no_space => format!(
            "paused at {disk}: the host's disk could not keep what was written, of which nothing is lost yet; put it \
             right, then floe start {name}"
        ),
        _ => {
            let why = if no_space {
                "the host's disk is full"
            } else {
                "it can't be written"
            };
            format!("paused at {disk}: {why}; put it right, then floe start {name}")
        }
    }
}

/// What can't be made good, if anything.
fn lost(failed: &FailedDisk) -> Option<String> {
    if failed.lost_bytes > 0 {
        let kib = failed.lost_bytes as f64 / 1024.0;
        return Some(format!("lost {kib:.1} KiB that the guest had written"));
    }
    failed.unknown.then(|| {
        "nobody can tell whether it kept what the guest wrote before the node was restarted".into()
    })
}

impl Node {
    /// Lets a machine go on that stopped at a disk while no node was there: a request that was under way when the earlier node was
    /// killed may have been ended with an error by the kernel. QEMU tries it again. Not if the disk is still bad or full.
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
            self.tell("machine.stopped-at-disk", name, why);
            return Ok(());
        }
        vm.cont()?;
        let why =
            format!("a request for {disk} had failed while no node was there; it is tried again");
        self.tell("machine.continued", name, why);
        Ok(())
    }

    fn has_room(&self, entry: &Entry) -> bool {
        let stat = rustix::fs::statvfs(self.disk_dir(&entry.record()));
        stat.is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) >= ROOM_BYTES_MIN)
    }
}

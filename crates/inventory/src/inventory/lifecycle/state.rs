//! The words for a machine's life, and which status it is shown with. No I/O.

use crate::inventory::record::Wanted;
use floe_api::{MachineStatus, PauseReason};
use std::fmt::{self, Display};

/// Where a machine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is made and started for the first time. After a crash the next node removes it.
    Creating,
    /// It has no QEMU; its disks are kept.
    Stopped,
    /// A QEMU is being started for it from its disks. After a crash the next node ends that QEMU.
    Starting,
    /// A QEMU of an earlier node should be there and has not answered this node yet.
    Left,
    /// It has a QEMU whose guest executes, or stands still for the reasons that are known.
    Running,
    /// Its guest was reset, and a QEMU is being started from its disks in place of the one that ended.
    Resetting,
    /// Its QEMU is being ended, because that was asked for.
    Stopping,
    /// Its state is stored, durably, and its QEMU is being ended. After a crash the next node ends that QEMU.
    Parking,
    /// It has no QEMU; its disks are kept, and its memory is stored.
    Parked,
    /// A QEMU loads its stored memory. After a crash the next node ends that QEMU: its guest has not executed.
    Waking,
    /// A QEMU has loaded it and is about to let the guest go on, from when on what is stored is no longer its state.
    Woken,
    /// It is being removed with its disks. After a crash the next node finishes that.
    Removing,
}

impl Phase {
    /// Returns the phase of a machine whose record a starting node has found.
    pub fn found(wanted: Wanted) -> Phase {
        match wanted {
            Wanted::Starting => Phase::Creating,
            Wanted::Running => Phase::Left,
            Wanted::Stopped => Phase::Stopped,
            Wanted::Parked => Phase::Parked,
            Wanted::Removing => Phase::Removing,
        }
    }

    /// Returns what the record says in this phase: what a node that starts after a crash is to do.
    pub fn wanted(self) -> Wanted {
        match self {
            Phase::Creating => Wanted::Starting,
            Phase::Left | Phase::Running | Phase::Resetting | Phase::Woken => Wanted::Running,
            Phase::Stopped | Phase::Starting | Phase::Stopping => Wanted::Stopped,
            Phase::Parking | Phase::Parked | Phase::Waking => Wanted::Parked,
            Phase::Removing => Wanted::Removing,
        }
    }
}

/// An operation on a machine. A machine has one at a time: a second one is refused, or waits if the first is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// It is created and started.
    Run,
    /// It is started from its disks, or continued after a pause.
    Start,
    /// It is stopped.
    Stop,
    /// Its state is saved as an image.
    Capture,
    /// It is docked as a substrate.
    Dock,
    /// Its state is copied for clones, or it is created as a clone.
    Fork,
    /// A port forward is added or removed.
    Forward,
    /// Its limits on this host's resources are changed.
    Limit,
    /// It gets another name.
    Rename,
    /// One of its disks is made larger.
    Resize,
    /// It is given more or fewer CPUs, or more or less memory.
    Size,
    /// It is given a device, or one is taken away.
    Attach,
    /// It is removed with its disks.
    Remove,
    /// Its QEMU has ended by itself, and what is left of it is cleaned up.
    End,
    /// A node that has just started takes it over.
    Adopt,
    /// It is paused, by its user or because its parent's node does not answer.
    Pause,
    /// It goes on, because a reason for its pause is over.
    Continue,
    /// Its memory is stored, and its QEMU ended.
    Park,
    /// The same, because it is idle: no user has asked for it.
    ParkIdle,
    /// It goes on from its stored memory.
    Wake,
    /// It goes back to an image that was captured from it.
    Rollback,
    /// It moves to another node, or comes from one.
    Move,
    /// The node finishes what a move has left open: no user has asked for it.
    Settle,
    /// It was made small, and gets back what was taken from it.
    Expand,
    /// The node asks the guest what it has of its hardware, after the guest or the node began anew.
    Look,
    /// What was written to its disks is merged into an image of its own: they are frozen, and later put onto that.
    Merge,
}

impl Task {
    /// Whether other tasks wait for this one instead of being refused: because it ends soon, or because no user has asked for it.
    pub fn is_short(self) -> bool {
        matches!(
            self,
            Task::Fork
                | Task::Adopt
                | Task::Pause
                | Task::Continue
                | Task::Wake
                | Task::ParkIdle
                | Task::Settle
                | Task::Expand
                | Task::Look
                | Task::Merge
        )
    }

    /// Whether no command has this task's name, so that messages name it in other words.
    pub fn is_unasked(self) -> bool {
        matches!(
            self,
            Task::End
                | Task::Adopt
                | Task::Settle
                | Task::Expand
                | Task::Look
                | Task::Merge
                | Task::ParkIdle
        )
    }

    /// Whether it can be done with what a node has of a machine that another node has, or may have.
    pub fn is_for_any_side(self) -> bool {
        matches!(
            self,
            Task::Move | Task::Settle | Task::Remove | Task::Adopt | Task::End
        )
    }

    /// Whether it can't be done while the machine's QEMU does not answer.
    pub fn needs_answers(self) -> bool {
        matches!(
            self,
            Task::Start
                | Task::Capture
                | Task::Dock
                | Task::Fork
                | Task::Forward
                | Task::Resize
                | Task::Size
                | Task::Attach
                | Task::Park
                | Task::ParkIdle
                | Task::Expand
                | Task::Look
        )
    }

    /// Whether the machine may be paused for buffering during this task, which then waits for the guest only.
    pub fn allows_buffering(self) -> bool {
        matches!(
            self,
            Task::Run
                | Task::Start
                | Task::Wake
                | Task::Forward
                | Task::Limit
                | Task::Rename
                | Task::Size
                | Task::Expand
                | Task::Look
                | Task::Merge
                | Task::Attach
        )
    }
}

impl Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Task::Run => "run",
            Task::Start => "start",
            Task::Stop => "stop",
            Task::Capture => "capture",
            Task::Dock => "dock",
            Task::Fork => "fork",
            Task::Limit => "limit",
            Task::Rename => "rename",
            Task::Resize => "disk resize",
            Task::Size => "resize",
            Task::Attach => "attach or detach",
            Task::Forward => "forward",
            Task::Remove => "rm",
            Task::End => "end",
            Task::Adopt => "adopt",
            Task::Pause => "pause",
            Task::Continue => "resume",
            Task::Park | Task::ParkIdle => "park",
            Task::Wake => "wake",
            Task::Rollback => "rollback",
            Task::Move => "move",
            Task::Settle => "the end of its move",
            Task::Expand => "expansion",
            Task::Look => "a look at its size",
            Task::Merge => "the merge of its disks",
        })
    }
}

/// Whether a reason is over once the node process that had it has ended.
pub(crate) fn ends_with_its_node(reason: PauseReason) -> bool {
    match reason {
        PauseReason::Buffering
        | PauseReason::Orphaned
        | PauseReason::Capture
        | PauseReason::Source => true,
        PauseReason::User | PauseReason::Disk => false,
    }
}

/// Whether a reason is kept by QEMU itself, which still knows it when another node asks. Such a reason needs no record; on a full
/// disk there would be no room for one.
pub(super) fn is_qemus_own(reason: PauseReason) -> bool {
    reason == PauseReason::Disk
}

/// Returns the reason that a user is told about first: the one that he can do least about.
pub fn foremost(reasons: &[PauseReason]) -> Option<PauseReason> {
    let order = [
        PauseReason::Orphaned,
        PauseReason::Source,
        PauseReason::Disk,
        PauseReason::User,
        PauseReason::Capture,
        PauseReason::Buffering,
    ];
    order.into_iter().find(|reason| reasons.contains(reason))
}

/// What is known of a machine's QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qemu {
    /// There is none, or none has answered this node.
    None,
    /// Its CPUs stand still.
    Still,
    /// Its guest executes.
    Runs,
}

/// Returns the status that a machine is shown with. `failed`: its QEMU ended badly. `why`: the foremost reason to stand still.
pub fn status(phase: Phase, qemu: Qemu, failed: bool, why: Option<PauseReason>) -> MachineStatus {
    match (phase, qemu) {
        (Phase::Left, Qemu::None) if why == Some(PauseReason::Orphaned) => MachineStatus::Paused,
        (Phase::Creating | Phase::Starting | Phase::Waking | Phase::Woken, _)
        | (Phase::Left | Phase::Resetting, Qemu::None) => MachineStatus::Starting,
        (Phase::Parked | Phase::Parking, Qemu::None) => MachineStatus::Parked,
        (_, Qemu::Still) if why == Some(PauseReason::Buffering) => MachineStatus::Buffering,
        (_, Qemu::Runs) => MachineStatus::Running,
        (_, Qemu::Still) => MachineStatus::Paused,
        (_, Qemu::None) if failed => MachineStatus::Failed,
        (_, Qemu::None) => MachineStatus::Stopped,
    }
}

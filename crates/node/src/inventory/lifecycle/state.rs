//! Which operation a machine has, and which status it is shown with. No I/O.

use crate::inventory::record::Wanted;
use floe_api::MachineStatus;
use std::fmt::{self, Display};

/// An operation on a machine. A machine has one at a time: a second one is refused, or waits if the first is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// It is created and started.
    Run,
    /// It is started from its disks, or continued after a pause.
    Start,
    /// It is stopped.
    Stop,
    /// Its state is saved as an image.
    Capture,
    /// Its state is copied for clones, or it is created as a clone.
    Fork,
    /// A port forward is added or removed.
    Forward,
    /// Its limits on this host's resources are changed.
    Limit,
    /// It is removed with its disks.
    Remove,
    /// Its QEMU has ended by itself, and what is left of it is cleaned up.
    End,
    /// A node that has just started takes it over.
    Adopt,
    /// It is paused, because its parent's node does not answer.
    Pause,
    /// It goes on, because the reason for its pause is over.
    Continue,
}

impl Task {
    /// Whether the task ends soon and was not requested by a user: other tasks then wait for it.
    pub fn is_short(self) -> bool {
        matches!(
            self,
            Task::Fork | Task::Adopt | Task::Pause | Task::Continue
        )
    }

    /// Whether the machine may be paused for buffering during this task, which then waits for the guest only.
    pub fn allows_buffering(self) -> bool {
        matches!(self, Task::Run | Task::Start | Task::Forward | Task::Limit)
    }
}

impl Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Task::Run => "run",
            Task::Start => "start",
            Task::Stop => "stop",
            Task::Capture => "capture",
            Task::Fork => "fork",
            Task::Limit => "limit",
            Task::Forward => "forward",
            Task::Remove => "rm",
            Task::End => "end",
            Task::Adopt => "adopt",
            Task::Pause => "pause",
            Task::Continue => "continue",
        })
    }
}

/// What is known of a machine's QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qemu {
    /// There is none, or none has answered this node.
    None,
    /// Its CPUs stand still.
    Still,
    /// Its guest executes.
    Runs,
}

/// Returns the status that a machine is shown with. `failed`: its QEMU ended badly. `buffering`: it is paused for that.
pub(crate) fn status(
    wanted: Wanted,
    qemu: Qemu,
    task: Option<Task>,
    failed: bool,
    buffering: bool,
) -> MachineStatus {
    match (wanted, qemu) {
        (Wanted::Running, Qemu::None) if task == Some(Task::Adopt) => MachineStatus::Starting,
        (_, Qemu::Still) if buffering => MachineStatus::Buffering,
        (Wanted::Starting, _) => MachineStatus::Starting,
        (_, Qemu::Runs) => MachineStatus::Running,
        (_, Qemu::Still) => MachineStatus::Paused,
        (_, Qemu::None) if failed => MachineStatus::Failed,
        (_, Qemu::None) => MachineStatus::Stopped,
    }
}

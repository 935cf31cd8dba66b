//! What is being done with a machine, and how it is shown. No I/O.

use crate::inventory::record::Wanted;
use floe_api::MachineStatus;
use std::fmt::{self, Display};

/// What is being done with a machine. One thing at a time: whoever begins a second one is refused, or waits for a short one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// It is made and started.
    Run,
    /// It is started from its disks, or goes on.
    Start,
    /// It is stopped.
    Stop,
    /// Its state becomes an image.
    Capture,
    /// Its state becomes clones' state, or it is made as a clone.
    Fork,
    /// A port is forwarded to it, or not any more.
    Forward,
    /// What it may take of its host is changed.
    Limit,
    /// It is removed with its disks.
    Remove,
    /// Its QEMU has ended by itself and is cleared away.
    End,
    /// A node that was started takes it over.
    Adopt,
    /// It is paused, because its parent's node does not answer.
    Pause,
    /// It goes on, because the reason for its pause is over.
    Continue,
}

impl Task {
    /// Whether it is over in a moment and is nothing that a user asked for: another task waits for it.
    pub fn is_short(self) -> bool {
        matches!(
            self,
            Task::Fork | Task::Adopt | Task::Pause | Task::Continue
        )
    }

    /// Whether it only waits for the guest, which may stand still meanwhile for want of what it needs next.
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
    /// There is none, or none that has answered this node.
    None,
    /// Its CPUs stand still.
    Still,
    /// Its guest executes.
    Runs,
}

/// How a machine is shown. `failed`: its QEMU ended badly. `buffering`: that is why it stands still.
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

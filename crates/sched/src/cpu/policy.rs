//! What a policy may decide, and the two that decide least.

use super::queues::{Queues, TaskId};
use crate::MachineId;

/// Something that host or guest report of a vCPU that runs. A policy works without reports, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// It spins: the processor left the guest because of a loop of pauses.
    Spins {
        /// Who spins.
        task: TaskId,
        /// The sibling to which it sent its last interrupt, if that has not run since.
        awaits: Option<TaskId>,
        /// Whether its guest's kernel spins.
        in_kernel: bool,
    },
    /// It was stopped while it wanted to go on.
    Preempted {
        /// Who was stopped.
        task: TaskId,
        /// Whether its guest's kernel ran: it may hold one of the kernel's locks.
        in_kernel: bool,
    },
}

/// A policy over [`Queues`]. Every method may be left as it is; what it returns are cores that should choose anew at once.
pub trait Policy: Send {
    /// Whether siblings are kept on different cores.
    fn spreads(&self) -> bool {
        true
    }

    /// Chooses who runs next on a core that is free. It may change this core's queue, and the lists of debts of others, no other queue.
    fn pick(&mut self, _now_ns: u64, queues: &mut Queues, core: usize) -> Option<TaskId> {
        queues.first(core)
    }

    /// A core has been given to a task.
    fn picked(&mut self, _queues: &mut Queues, _core: usize, _task: TaskId) -> Vec<usize> {
        Vec::new()
    }

    /// A task has left its core: it waits, sleeps, or has ended.
    fn stopped(&mut self, _queues: &mut Queues, _core: usize, _task: TaskId) -> Vec<usize> {
        Vec::new()
    }

    /// Something was told of a vCPU.
    fn told(&mut self, _now_ns: u64, _queues: &mut Queues, _tell: Tell) -> Vec<usize> {
        Vec::new()
    }

    /// Whether who holds a lock may keep its core until it has released it, if its guest told so (no guest does without a change to it).
    fn spares_holders(&self) -> bool {
        false
    }

    /// A task has ended: nothing more will be reported of it, nor of its machine if this was the last one.
    fn forget(&mut self, _task: TaskId, _machine: Option<MachineId>) {}
}

/// The kernel's default (DFT in the paper): siblings go where any task goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Policy for Plain {
    fn spreads(&self) -> bool {
        false
    }
}

/// Balanced scheduling (BAL in the paper; Sukwong and Kim): siblings on different cores, nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balance;

impl Policy for Balance {}

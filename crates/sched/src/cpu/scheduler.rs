//! A host's scheduler: events of tasks and cores in, who runs where out.

use super::base::Base;
use super::policy::{Policy, Tell};
use super::queues::{Place, Queues, TaskId};
use crate::MachineId;

/// The most tasks that a scheduler keeps.
pub const TASKS_MAX: usize = 1 << 16;

/// A task can't be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Its number is taken.
    #[error("there is a task {} already: give each task a number of its own", .0.0)]
    Known(TaskId),
    /// There are [`TASKS_MAX`] tasks.
    #[error("there are {TASKS_MAX} tasks, the most that are kept: remove those that have ended")]
    Full,
}

/// Where a task went that woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// Its core.
    pub core: usize,
    /// Whether that core should choose anew at once.
    pub reschedules: bool,
}

/// Why a task leaves its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Somebody else is to have it; the task waits.
    Preempted,
    /// It wants nothing until it is woken.
    Sleeps,
}

/// Run queues under a policy.
///
/// Times are nanoseconds of the clock of the core that is named beside them; clocks of different cores may differ. Every method that
/// returns cores names those that should choose anew at once.
pub struct Scheduler {
    queues: Queues,
    policy: Box<dyn Policy>,
}

impl Scheduler {
    /// Makes a scheduler for `cores` cores.
    pub fn new(base: Base, cores: usize, policy: Box<dyn Policy>) -> Scheduler {
        let queues = Queues::new(base, cores);
        Scheduler { queues, policy }
    }

    /// Returns the run queues.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns the policy.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Makes a task known, which sleeps.
    pub fn add(
        &mut self,
        id: TaskId,
        machine: Option<MachineId>,
        weight: u32,
    ) -> Result<(), AddError> {
        if self.queues.tasks.len() >= TASKS_MAX {
            return Err(AddError::Full);
        }
        match self.queues.add(id, machine, weight) {
            true => Ok(()),
            false => Err(AddError::Known(id)),
        }
    }

    /// Queues a task that slept and now wants a core. `waker` is the core of the one that woke it.
    pub fn wake(&mut self, now_ns: u64, id: TaskId, waker: Option<usize>) -> Option<Woken> {
        if self.queues.task(id)?.place != Place::Sleeps {
            return None;
        }
        let core = self.queues.core_for(id, self.policy.spreads(), waker);
        self.queues.charge(now_ns, core);
        self.queues.enqueue(now_ns, id, core);
        Some(Woken {
            core,
            reschedules: self.queues.preempts(id),
        })
    }

    /// Takes the running task off a core.
    pub fn stop(&mut self, now_ns: u64, core: usize, stop: Stop) -> Vec<usize> {
        let Some(id) = self.queues.stop(now_ns, core, stop == Stop::Preempted) else {
            return Vec::new();
        };
        if stop == Stop::Sleeps {
            self.queues.debts_end(id);
        }
        self.policy.stopped(&mut self.queues, core, id)
    }

    /// Chooses who runs next on a core that is free, taking a task from another core if it has none. Cores that should choose anew are
    /// added to `cores`.
    pub fn pick(&mut self, now_ns: u64, core: usize, cores: &mut Vec<usize>) -> Option<TaskId> {
        if let Some(running) = self.queues.running(core) {
            return Some(running);
        }
        if self.queues.length(core) == 0 {
            self.pull(now_ns, core);
        }
        let id = self.policy.pick(now_ns, &mut self.queues, core)?;
        self.queues.run(now_ns, id);
        cores.extend(self.policy.picked(&mut self.queues, core, id));
        Some(id)
    }

    /// A core's clock ticks: charges who runs there, and returns whether its slice is over.
    pub fn tick(&mut self, now_ns: u64, core: usize) -> bool {
        self.queues.charge(now_ns, core);
        self.queues.is_over(core)
    }

    /// Moves a task to a core that has less to do, if there is one: the kernel's load balancing.
    pub fn pull(&mut self, now_ns: u64, core: usize) -> Option<TaskId> {
        let id = self.queues.surplus_for(core, self.policy.spreads())?;
        self.queues.migrate(now_ns, id, core);
        Some(id)
    }

    /// Passes a report about a vCPU on to the policy.
    pub fn told(&mut self, now_ns: u64, tell: Tell) -> Vec<usize> {
        self.policy.told(now_ns, &mut self.queues, tell)
    }

    /// Gives a task another share, as when its machine is resized. What it was to get or had lent is undone first.
    pub fn reweigh(&mut self, id: TaskId, weight: u32) {
        self.queues.debts_end(id);
        self.queues.reweigh(id, weight);
    }

    /// Forgets a task that has ended, wherever it was.
    pub fn remove(&mut self, now_ns: u64, id: TaskId) -> Vec<usize> {
        let Some(task) = self.queues.task(id) else {
            return Vec::new();
        };
        let (place, core) = (task.place, task.core);
        let mut cores = Vec::new();
        match place {
            Place::Runs => {
                cores = self.stop(now_ns, core, Stop::Sleeps);
                cores.push(core);
            }
            Place::Waits => {
                self.queues.dequeue(now_ns, id);
                self.queues.debts_end(id);
            }
            Place::Sleeps => {}
        }
        let machine = self.queues.task(id).and_then(|task| task.machine);
        self.queues.forget(id);
        self.policy.forget(
            id,
            machine.filter(|machine| self.queues.vcpus(*machine).is_empty()),
        );
        cores
    }
}

//! Our own policy: SBCO that listens. It knows for whom a vCPU waits better than distances tell.

use super::policy::{Policy, Tell};
use super::queues::{Place, Queues, TaskId};
use super::sbco::Sbco;
use crate::MachineId;
use std::collections::BTreeSet;

/// SBCO with an adaptive threshold, and beyond it: a vCPU that spins while a sibling waits for a core gives its own away at once, and
/// lends what brings that sibling to the front of its queue.
///
/// Which sibling: the one to which the spinner sent an interrupt that it still has to take; else one that was stopped in its guest's
/// kernel, where locks are held; else the one that has waited longest (steal time). One that was itself spinning when it was stopped is
/// none of them. Lending keeps shares as they are, as SBCO does: whoever is helped is charged, whoever helps is repaid by its place. A
/// spinner lends once until it has run again, so that a guest that spins all the time moves nobody but itself, and stops a neighbour no
/// more often than once in each of its own turns.
#[derive(Clone, Debug)]
pub struct Told {
    sbco: Sbco,
    /// Who spun in its present turn, or in its last one if it waits.
    spun: BTreeSet<TaskId>,
    /// Who was stopped in its guest's kernel.
    in_kernel: BTreeSet<TaskId>,
}

impl Default for Told {
    fn default() -> Told {
        Told::new(Sbco::adaptive())
    }
}

impl Told {
    /// Adds listening to `sbco`.
    pub fn new(sbco: Sbco) -> Told {
        Told {
            sbco,
            spun: BTreeSet::new(),
            in_kernel: BTreeSet::new(),
        }
    }

    /// For whom a spinner waits.
    fn awaited(&self, queues: &Queues, spinner: TaskId, awaits: Option<TaskId>) -> Option<TaskId> {
        let waits = |id: &TaskId| {
            let task = queues.task(*id);
            task.is_some_and(|task| task.place == Place::Waits)
        };
        if let Some(id) = awaits.filter(waits) {
            return Some(id);
        }
        let siblings = queues.siblings(spinner).filter(waits);
        let quiet = siblings.filter(|id| !self.spun.contains(id));
        quiet.min_by_key(|id| {
            let since = queues.task(*id).map_or(u64::MAX, |task| task.since_ns);
            (!self.in_kernel.contains(id), since, *id)
        })
    }

    /// Has `spinner` help `awaited`, and returns the cores that choose anew.
    fn help(queues: &mut Queues, spinner: TaskId, awaited: TaskId) -> Vec<usize> {
        let place = |id: TaskId| queues.task(id).map(|task| task.core);
        let (Some(here), Some(there)) = (place(spinner), place(awaited)) else {
            return Vec::new();
        };
        let mut cores = Vec::new();
        if queues.waiting(here) > 0 {
            cores.push(here);
        }
        if here == there {
            queues.set_next(awaited);
            return cores;
        }
        let way = queues.way_to_front_ns(awaited).max(1);
        // a spinner lends a turn of its own at most
        if queues.lend(spinner, awaited, way.min(queues.slice_ns(spinner)), true) {
            queues.set_next(awaited);
            cores.push(there);
        }
        cores
    }
}

impl Policy for Told {
    fn pick(&mut self, now_ns: u64, queues: &mut Queues, core: usize) -> Option<TaskId> {
        self.sbco.pick(now_ns, queues, core)
    }

    fn picked(&mut self, _: &mut Queues, _: usize, task: TaskId) -> Vec<usize> {
        self.spun.remove(&task);
        self.in_kernel.remove(&task);
        Vec::new()
    }

    fn told(&mut self, now_ns: u64, queues: &mut Queues, tell: Tell) -> Vec<usize> {
        self.sbco.told(now_ns, queues, tell);
        match tell {
            Tell::Spins { task, awaits, .. } => {
                if queues
                    .task(task)
                    .is_none_or(|task| task.place != Place::Runs)
                {
                    return Vec::new();
                }
                self.spun.insert(task);
                match self.awaited(queues, task, awaits) {
                    Some(awaited) => Told::help(queues, task, awaited),
                    None => Vec::new(),
                }
            }
            Tell::Preempted { task, in_kernel } => {
                if in_kernel && queues.task(task).is_some() {
                    self.in_kernel.insert(task);
                }
                Vec::new()
            }
        }
    }

    fn forget(&mut self, task: TaskId, machine: Option<MachineId>) {
        self.spun.remove(&task);
        self.in_kernel.remove(&task);
        self.sbco.forget(task, machine);
    }
}

//! Self-boosted co-scheduling (section 4.4.3): a vCPU that is far ahead of a sibling lends it virtual time instead of running.

use super::policy::{Policy, Tell};
use super::queues::{Place, Queues, TaskId};
use super::threshold::{Adaptive, TWO_THIRDS, Threshold};
use crate::MachineId;

/// SBCO. Nobody is stopped for it: it acts when a core chooses anyway.
#[derive(Clone, Debug)]
pub struct Sbco {
    threshold: Threshold,
}

impl Sbco {
    /// With this threshold.
    pub fn new(threshold: Threshold) -> Sbco {
        Sbco { threshold }
    }

    /// With the paper's threshold, two thirds of the queue.
    pub fn paper() -> Sbco {
        Sbco::new(TWO_THIRDS)
    }

    /// With a threshold that each machine finds for itself.
    pub fn adaptive() -> Sbco {
        Sbco::new(Threshold::Adaptive(Adaptive::default()))
    }

    /// The sibling of `a` that is farthest behind, if it is as far as the threshold.
    fn farthest(&mut self, now_ns: u64, queues: &Queues, a: TaskId) -> Option<TaskId> {
        let machine = queues.task(a)?.machine?;
        let here = queues.task(a)?.core;
        let ran = |id: &TaskId| queues.task(*id).map_or(0, |task| task.ran_ns);
        let all_ran = || queues.vcpus(machine).iter().map(ran).sum();
        let threshold = self.threshold.of(now_ns, machine, all_ran) as usize;
        let ordinate = queues.ordinate(a)?;
        let far = |b: &TaskId| {
            let task = queues.task(*b)?;
            if task.place != Place::Waits || task.dirty.is_some() || task.core == here {
                return None;
            }
            let behind = queues.ordinate(*b)?.checked_sub(ordinate)?;
            // thousandths are rounded, 667 up: two of three are two thirds
            let is_far = behind * 1000 > threshold.saturating_sub(1) * queues.length(task.core);
            is_far.then_some((behind, *b))
        };
        let all = queues.siblings(a).filter_map(|b| far(&b));
        all.max_by_key(|(behind, b)| (*behind, std::cmp::Reverse(*b)))
            .map(|(_, b)| b)
    }
}

impl Policy for Sbco {
    fn pick(&mut self, now_ns: u64, queues: &mut Queues, core: usize) -> Option<TaskId> {
        queues.settle(core);
        // who was named goes, and lends nothing
        if let Some(named) = queues.named(core) {
            return Some(named);
        }
        let a = queues.first(core)?;
        // one that has lent runs before it lends again; one that has woken is first because it slept, and owes nobody its turn
        let task = queues.task(a)?;
        if task.dirty.is_some() || task.woke {
            return Some(a);
        }
        let (Some(next), Some(b)) = (queues.successor(a), self.farthest(now_ns, queues, a)) else {
            return Some(a);
        };
        // both move to the middle of their queues at most, by the same amount
        let amount = queues.way_to_middle_ns(b).min(-queues.way_to_middle_ns(a));
        match queues.lend(a, b, amount, false) {
            true => Some(next),
            false => Some(a),
        }
    }

    fn told(&mut self, _: u64, queues: &mut Queues, tell: Tell) -> Vec<usize> {
        if let Tell::Spins { task, .. } = tell
            && let Some(machine) = queues.task(task).and_then(|task| task.machine)
        {
            self.threshold.spins(machine);
        }
        Vec::new()
    }

    fn forget(&mut self, _: TaskId, machine: Option<MachineId>) {
        if let Some(machine) = machine {
            self.threshold.forget(machine);
        }
    }
}

//! What others do about vCPUs that wait for each other, on the same run queues: the kernel's directed yield, the patches that improve it,
//! and LAVD's boost.

use floe_sched::MachineId;
use floe_sched::cpu::{Base, Place, Policy, Queues, TaskId, Tell, service_ns};
use std::collections::{BTreeMap, BTreeSet};

/// KVM's directed yield (`kvm_vcpu_on_spin`, `yield_to`): a vCPU that spins gives its core away, and names a sibling that goes next on
/// its own core.
///
/// As it is today: siblings that wait take turns, those that spin themselves every other time. If the guest's kernel spins, those that were
/// stopped outside theirs and have no interrupt to take are passed over. The one that is named goes next if the kernel's order allows it,
/// and the one that yields loses nothing under CFS and asks anew under EEVDF, so that it may be chosen again at once.
///
/// With the patches for semantics-aware scheduling (under review since November 2025): who yielded is put behind whom it yielded to, in the same queue; who
/// sent an interrupt is known to wait for its receiver; and the one that is named gets a bounded credit of lag (their third version), so
/// that the kernel's order allows it.
#[derive(Clone, Debug)]
pub struct DirectedYield {
    patched: bool,
    /// Where each machine's turns stand.
    turns: BTreeMap<MachineId, usize>,
    spun: BTreeSet<TaskId>,
    /// Spinners that were passed over the last time.
    passed: BTreeSet<TaskId>,
    /// Who was stopped outside its guest's kernel.
    in_program: BTreeSet<TaskId>,
}

impl DirectedYield {
    /// As in Linux 6.18.
    pub fn today() -> DirectedYield {
        DirectedYield {
            patched: false,
            turns: BTreeMap::new(),
            spun: BTreeSet::new(),
            passed: BTreeSet::new(),
            in_program: BTreeSet::new(),
        }
    }

    /// With the patches.
    pub fn patched() -> DirectedYield {
        DirectedYield {
            patched: true,
            ..DirectedYield::today()
        }
    }

    fn choose(
        &mut self,
        queues: &Queues,
        spinner: TaskId,
        awaits: Option<TaskId>,
        in_kernel: bool,
    ) -> Option<TaskId> {
        let waits = |id: &TaskId| {
            queues
                .task(*id)
                .is_some_and(|task| task.place == Place::Waits)
        };
        if let Some(id) = awaits.filter(|id| self.patched && waits(id)) {
            return Some(id);
        }
        let machine = queues.task(spinner)?.machine?;
        let vcpus = queues.vcpus(machine);
        let turn = self.turns.get(&machine).copied().unwrap_or(0);
        for step in 1..=vcpus.len() {
            let at = (turn + step) % vcpus.len();
            let id = vcpus[at];
            if id == spinner || !waits(&id) {
                continue;
            }
            if in_kernel && self.in_program.contains(&id) && awaits != Some(id) {
                continue;
            }
            if self.spun.contains(&id) && self.passed.insert(id) {
                continue;
            }
            self.passed.remove(&id);
            self.turns.insert(machine, at);
            return Some(id);
        }
        None
    }
}

/// Puts a spinner as far behind another task of its queue as that one may run for once it is chosen, unless it is there already: it goes
/// back to that place however often it spins, and so does not starve.
fn put_behind(queues: &mut Queues, spinner: TaskId, ahead: TaskId) {
    let place = |id: TaskId| {
        let task = queues.task(id)?;
        Some(match queues.base() {
            Base::Cfs(_) => task.vruntime,
            Base::Eevdf { .. } => task.deadline,
        })
    };
    if let (Some(own), Some(other), Some(task)) =
        (place(spinner), place(ahead), queues.task(spinner))
    {
        let way_ns = service_ns(other - own, task.weight) + queues.base().least_ns();
        queues.shift(spinner, way_ns.max(0));
    }
}

impl Policy for DirectedYield {
    fn spreads(&self) -> bool {
        false
    }

    fn picked(&mut self, _: &mut Queues, _: usize, task: TaskId) -> Vec<usize> {
        self.spun.remove(&task);
        self.passed.remove(&task);
        self.in_program.remove(&task);
        Vec::new()
    }

    fn told(&mut self, _: u64, queues: &mut Queues, tell: Tell) -> Vec<usize> {
        let (task, awaits, in_kernel) = match tell {
            Tell::Spins {
                task,
                awaits,
                in_kernel,
            } => (task, awaits, in_kernel),
            Tell::Preempted { task, in_kernel } => {
                if !in_kernel && queues.task(task).is_some() {
                    self.in_program.insert(task);
                }
                return Vec::new();
            }
        };
        self.spun.insert(task);
        let Some(to) = self.choose(queues, task, awaits, in_kernel) else {
            return Vec::new();
        };
        let core = |id: TaskId| queues.task(id).map_or(0, |task| task.core);
        let (here, there) = (core(task), core(to));
        if let Base::Eevdf { slice_ns } = queues.base() {
            queues.shift(task, slice_ns);
        }
        if self.patched {
            let credit = queues.way_to_front_ns(to).clamp(0, queues.slice_ns(to));
            queues.shift(to, -credit);
            if here == there {
                put_behind(queues, task, to);
            }
        }
        let mut cores = Vec::new();
        if queues.waiting(here) > 0 {
            cores.push(here);
        }
        if queues.is_eligible(to) {
            queues.set_next(to);
            if there != here {
                cores.push(there);
            }
        }
        cores
    }

    fn forget(&mut self, task: TaskId, machine: Option<MachineId>) {
        self.spun.remove(&task);
        self.passed.remove(&task);
        self.in_program.remove(&task);
        if let Some(machine) = machine {
            self.turns.remove(&machine);
        }
    }
}

/// LAVD's boost of lock holders (sched_ext): who holds a lock keeps its core until it has released it. LAVD sees the futexes of the
/// host's tasks alone, so of a guest's locks it knows nothing; here it is told of each of them, which is more than it can have.
#[derive(Clone, Copy, Debug, Default)]
pub struct HolderBoost;

impl Policy for HolderBoost {
    fn spreads(&self) -> bool {
        false
    }

    fn spares_holders(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::cpu::{Scheduler, WEIGHT};

    /// Who goes next after these reports of a machine with three vCPUs, of which the first runs.
    fn named(tells: &[Tell]) -> Vec<TaskId> {
        const CORES: usize = 2;
        let policy = Box::new(DirectedYield::today());
        let mut scheduler = Scheduler::new(Base::cfs(CORES), CORES, policy);
        for number in 0..3 {
            let added = scheduler.add(TaskId(number), Some(MachineId(1)), WEIGHT);
            assert_eq!(added, Ok(()));
            scheduler.wake(0, TaskId(number), None);
            if number == 0 {
                assert_eq!(scheduler.pick(0, 0, &mut Vec::new()), Some(TaskId(0)));
            }
        }
        for tell in tells {
            scheduler.told(1, *tell);
        }
        let next = |core| scheduler.queues().named(core);
        (0..CORES).filter_map(next).collect()
    }

    #[test]
    fn a_kernel_that_spins_yields_to_nobody_who_was_stopped_in_a_program_and_has_no_interrupt() {
        let spins = |awaits, in_kernel| Tell::Spins {
            task: TaskId(0),
            awaits,
            in_kernel,
        };
        let stopped = |number| Tell::Preempted {
            task: TaskId(number),
            in_kernel: false,
        };
        let (one, two) = (TaskId(1), TaskId(2));
        assert_eq!(named(&[spins(None, true)]), [one]);
        assert_eq!(named(&[stopped(1), spins(None, true)]), [two]);
        assert_eq!(named(&[stopped(1), spins(None, false)]), [one]);
        assert_eq!(named(&[stopped(1), spins(Some(one), true)]), [one]);
        assert!(named(&[stopped(1), stopped(2), spins(None, true)]).is_empty());
    }
}

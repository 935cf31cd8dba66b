//! Conventional co-scheduling, as the paper has it for comparison (section 4.5): siblings run at once, by force.

use super::policy::Policy;
use super::queues::{Place, Queues, TaskId};
use crate::MachineId;

/// By how many slices a gang's member may go before who is first on its core.
const PASSED_OVER: i64 = 2;

/// Who decides that a machine's vCPUs run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    /// The machine's first vCPU (PROCCO).
    First,
    /// Core 0, whatever it runs (CPUCO).
    CoreZero,
}

/// When the leader gets its core, its siblings that wait are put on theirs; when it leaves it, they leave them. Siblings that sleep are
/// passed over, and so are those whose core another gang's leader has: leaders that put each other off their cores would do nothing else.
#[derive(Clone, Debug)]
pub struct Gang {
    leader: Leader,
    /// Leader and those that were put on their cores because of it.
    gangs: Vec<(TaskId, Vec<TaskId>)>,
}

impl Gang {
    /// Process-based co-scheduling: a machine's vCPU 0 leads.
    pub fn procco() -> Gang {
        Gang {
            leader: Leader::First,
            gangs: Vec::new(),
        }
    }

    /// CPU-based co-scheduling: core 0 leads.
    pub fn cpuco() -> Gang {
        Gang {
            leader: Leader::CoreZero,
            gangs: Vec::new(),
        }
    }

    fn leads(&self, queues: &Queues, core: usize, task: TaskId) -> bool {
        let machine = queues.task(task).and_then(|task| task.machine);
        machine.is_some_and(|machine| match self.leader {
            Leader::First => queues.vcpus(machine).first() == Some(&task),
            Leader::CoreZero => core == 0,
        })
    }
}

impl Policy for Gang {
    fn picked(&mut self, queues: &mut Queues, core: usize, task: TaskId) -> Vec<usize> {
        if !self.leads(queues, core, task) {
            return Vec::new();
        }
        let siblings: Vec<TaskId> = queues.siblings(task).collect();
        let (mut members, mut cores) = (Vec::new(), Vec::new());
        for sibling in siblings {
            let Some(place) = queues.task(sibling).map(|task| (task.place, task.core)) else {
                continue;
            };
            // force ends where somebody else has been passed over for too long: else a machine whose leader sleeps would starve
            let fair = queues.way_to_front_ns(sibling) <= PASSED_OVER * queues.slice_ns(sibling);
            let leaders = || self.gangs.iter().map(|(leader, _)| *leader);
            let free = queues
                .running(place.1)
                .is_none_or(|runs| leaders().all(|leader| leader != runs));
            if place.0 == Place::Waits
                && place.1 != core
                && fair
                && free
                && !cores.contains(&place.1)
            {
                queues.set_next(sibling);
                members.push(sibling);
                cores.push(place.1);
            }
        }
        self.gangs.push((task, members));
        cores
    }

    fn stopped(&mut self, queues: &mut Queues, _: usize, task: TaskId) -> Vec<usize> {
        let Some(at) = self.gangs.iter().position(|(leader, _)| *leader == task) else {
            return Vec::new();
        };
        let (_, members) = self.gangs.swap_remove(at);
        let runs = |member: &TaskId| {
            let task = queues.task(*member)?;
            (task.place == Place::Runs && queues.waiting(task.core) > 0).then_some(task.core)
        };
        members.iter().filter_map(runs).collect()
    }

    fn forget(&mut self, task: TaskId, _: Option<MachineId>) {
        self.gangs.retain(|(leader, _)| *leader != task);
    }
}

//! What the policies promise, in virtual time: `promises` on hosts that are kept busy, `chaos` whatever happens, `faults` when a machine
//! ends, is resized or lies.

mod chaos;
mod faults;
mod promises;

use super::*;
use crate::MachineId;

/// A host whose tasks always want their cores, with a tick of a millisecond.
struct Host {
    scheduler: Scheduler,
    now_ns: u64,
    /// How often each core changed hands.
    switches: u64,
    last: Vec<Option<TaskId>>,
    /// The longest time that each task waited.
    waited: std::collections::BTreeMap<TaskId, u64>,
}

fn policies() -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("plain", Box::new(Plain)),
        ("balance", Box::new(Balance)),
        ("sbco", Box::new(Sbco::paper())),
        ("adaptive", Box::new(Sbco::adaptive())),
        ("procco", Box::new(Gang::procco())),
        ("cpuco", Box::new(Gang::cpuco())),
        ("told", Box::new(Told::default())),
    ]
}

impl Host {
    fn new(base: Base, cores: usize, policy: Box<dyn Policy>) -> Host {
        Host {
            scheduler: Scheduler::new(base, cores, policy),
            now_ns: 0,
            switches: 0,
            last: vec![None; cores],
            waited: Default::default(),
        }
    }

    /// Adds a machine, the first `awake` of whose vCPUs want their cores from now on.
    fn machine(&mut self, number: u32, awake: usize, vcpus: u32) -> Vec<TaskId> {
        let ids: Vec<TaskId> = (0..vcpus).map(|at| TaskId(number * 1000 + at)).collect();
        for (at, id) in ids.iter().enumerate() {
            let added = self.scheduler.add(*id, Some(MachineId(number)), WEIGHT);
            assert_eq!(added, Ok(()));
            if at < awake {
                self.wake(*id);
            }
        }
        ids
    }

    fn wake(&mut self, id: TaskId) {
        if let Some(woken) = self.scheduler.wake(self.now_ns, id, None)
            && woken.reschedules
        {
            self.choose(vec![woken.core]);
        }
    }

    /// Has these cores choose, and those that choose because of it.
    fn choose(&mut self, mut cores: Vec<usize>) {
        let mut budget = 8 * self.last.len();
        while let Some(core) = cores.pop() {
            budget -= 1;
            assert!(budget > 0, "cores have each other choose without end");
            let before = self.scheduler.queues().running(core);
            if before.is_some() {
                cores.extend(self.scheduler.stop(self.now_ns, core, Stop::Preempted));
                // what leaving a core stops, has begun before it
                cores.retain(|other| *other != core);
            }
            let others = self.others(core);
            let empty = self.scheduler.queues().length(core) == 0;
            let picked = self.scheduler.pick(self.now_ns, core, &mut cores);
            // taking a task from another core is a change of its own
            if !empty {
                assert_eq!(others, self.others(core), "one decision changed two queues");
            }
            if picked != self.last[core] {
                self.switches += 1;
                self.last[core] = picked;
            }
            if let Some(id) = picked {
                let since = self.scheduler.queues().task(id).unwrap().since_ns;
                let waited = self.waited.entry(id).or_default();
                *waited = (*waited).max(self.now_ns.saturating_sub(since));
            }
        }
    }

    /// The queues of all other cores, in order.
    fn others(&self, core: usize) -> Vec<Vec<(TaskId, i64)>> {
        let queues = self.scheduler.queues();
        let all = (0..queues.cores()).filter(|other| *other != core);
        all.map(|other| {
            let ids = (0..queues.waiting(other)).filter_map(|at| queues.nth(other, at));
            ids.map(|id| (id, queues.task(id).unwrap().vruntime))
                .collect()
        })
        .collect()
    }

    fn run_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += MS as u64;
            let over = |core: &usize| {
                let free = self.scheduler.queues().running(*core).is_none();
                self.scheduler.tick(self.now_ns, *core) || free
            };
            let cores: Vec<usize> = (0..self.last.len()).filter(over).collect();
            for core in cores {
                self.choose(vec![core]);
            }
        }
    }

    fn ran_ms(&self, ids: &[TaskId]) -> f64 {
        let queues = self.scheduler.queues();
        let ran = ids.iter().map(|id| queues.task(*id).unwrap().ran_ns);
        ran.sum::<u64>() as f64 / 1e6
    }
}

/// What must be so after anything.
fn check(queues: &Queues) {
    let ledger = queues.ledger();
    let accounted = ledger.borrowed_ns + ledger.returned_ns + ledger.written_off_ns;
    let debts = (0..queues.cores()).flat_map(|core| queues.debts(core));
    let outstanding_ns: i64 = debts.map(|debt| debt.service_ns).sum();
    assert_eq!(ledger.lent_ns, accounted + outstanding_ns, "{ledger:?}");
    for core in 0..queues.cores() {
        let waiting = (0..queues.waiting(core)).filter_map(|at| queues.nth(core, at));
        let ids: Vec<TaskId> = waiting.chain(queues.running(core)).collect();
        assert_eq!(ids.len(), queues.length(core));
        let tasks = ids.iter().map(|id| queues.task(*id).unwrap());
        assert_eq!(
            tasks.map(|task| u64::from(task.weight)).sum::<u64>(),
            queues.load(core)
        );
        for id in &ids {
            let task = queues.task(*id).unwrap();
            assert_eq!(task.core, core);
            let runs = queues.running(core) == Some(*id);
            assert_eq!(task.place, if runs { Place::Runs } else { Place::Waits });
        }
        for debt in queues.debts(core) {
            let to = queues.task(debt.to).expect("nobody owes the dead");
            assert_eq!(to.core, core, "a debt is where its task is");
            if debt.from.is_some() {
                assert_eq!(to.dirty, Some(Dirty::Borrows));
            }
        }
        let loans = queues.debts(core).iter().filter(|debt| debt.from.is_some());
        let mut to: Vec<TaskId> = loans.map(|debt| debt.to).collect();
        to.sort_unstable();
        assert!(to.windows(2).all(|two| two[0] != two[1]), "adjusted twice");
    }
}

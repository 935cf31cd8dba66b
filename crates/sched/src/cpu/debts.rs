//! Virtual time that one vCPU lends another: the debt lists of section 4.4.4.
//!
//! The lender's virtual time is changed at once: it is in the queue of the core that is choosing. The borrower is in another core's queue,
//! so the loan waits in that core's list until that core chooses its next task: no decision changes two queues.

use super::base::{service_ns, virtual_ns};
use super::queues::{Debt, Dirty, Ledger, Place, Queues, TaskId};

impl Queues {
    /// Returns what was lent altogether.
    pub fn ledger(&self) -> Ledger {
        self.ledger
    }

    /// Returns the debts of a core's list.
    pub fn debts(&self, core: usize) -> &[Debt] {
        &self.cores[core].debts
    }

    /// Has `from` lend so much service to `to`, another task, which waits on another core. Both are dirty after that; neither may be
    /// before.
    pub fn lend(&mut self, from: TaskId, to: TaskId, service_ns: i64, to_front: bool) -> bool {
        let clean = |id| self.tasks.get(&id).is_some_and(|task| task.dirty.is_none());
        let waits = |id| {
            self.tasks
                .get(&id)
                .is_some_and(|task| task.place == Place::Waits)
        };
        if from == to || service_ns <= 0 || !clean(from) || !clean(to) || !waits(to) {
            return false;
        }
        self.shift(from, service_ns);
        self.mark(from, Some(Dirty::Lent));
        self.mark(to, Some(Dirty::Borrows));
        self.ledger.lent_ns += service_ns;
        self.ledger.loans += 1;
        let core = self.tasks[&to].core;
        self.cores[core].debts.push(Debt {
            to,
            from: Some(from),
            service_ns,
            to_front,
        });
        true
    }

    /// Does what a core's list says: its borrowers move forward, no farther than to the middle of their queue, or to its front.
    pub fn settle(&mut self, core: usize) {
        for debt in std::mem::take(&mut self.cores[core].debts) {
            let Some(from) = debt.from else {
                self.shift(debt.to, -debt.service_ns);
                self.ledger.returned_ns += debt.service_ns;
                continue;
            };
            let way = match debt.to_front {
                true => self.way_to_front_ns(debt.to),
                false => self.way_to_middle_ns(debt.to),
            };
            let used = debt.service_ns.min(way.max(0));
            self.shift(debt.to, -used);
            self.mark(debt.to, None);
            self.ledger.borrowed_ns += used;
            self.give_back(from, debt.service_ns - used);
        }
    }

    /// How much service separates a waiting task from the middle of its queue; negative if it is before it.
    pub fn way_to_middle_ns(&self, id: TaskId) -> i64 {
        let Some(task) = self.task(id) else {
            return 0;
        };
        // as ordinates do, it counts who runs
        let runs = usize::from(self.running(task.core).is_some());
        let middle = (self.length(task.core) / 2).saturating_sub(runs);
        self.way_ns(id, self.nth(task.core, middle))
    }

    /// How much service separates a waiting task from the front of its queue.
    pub fn way_to_front_ns(&self, id: TaskId) -> i64 {
        let first = self.task(id).and_then(|task| self.nth(task.core, 0));
        self.way_ns(id, first)
    }

    fn way_ns(&self, id: TaskId, mark: Option<TaskId>) -> i64 {
        let (Some(task), Some(mark)) = (self.task(id), mark.and_then(|mark| self.task(mark)))
        else {
            return 0;
        };
        if task.place != Place::Waits {
            return 0;
        }
        let (here, there) = match self.base {
            super::Base::Cfs(_) => (task.vruntime, mark.vruntime),
            super::Base::Eevdf { .. } => (task.deadline, mark.deadline),
        };
        service_ns(here.saturating_sub(there), task.weight)
    }

    fn mark(&mut self, id: TaskId, dirty: Option<Dirty>) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.dirty = dirty;
        }
    }

    /// Puts what a borrower could not use on the list of its lender's core. A lender that sleeps is in no queue, and has it at once.
    fn give_back(&mut self, to: TaskId, service_ns: i64) {
        if service_ns == 0 {
            return;
        }
        let Some(task) = self.tasks.get_mut(&to) else {
            self.ledger.written_off_ns += service_ns;
            return;
        };
        if task.place == Place::Sleeps {
            task.vruntime -= virtual_ns(service_ns, task.weight);
            self.ledger.returned_ns += service_ns;
            return;
        }
        let core = task.core;
        self.cores[core].debts.push(Debt {
            to,
            from: None,
            service_ns,
            to_front: false,
        });
    }

    /// A task sleeps, ends or has another weight: what it was to get goes back, what it is to get back it has, and what it lent and
    /// nobody has used returns.
    pub(super) fn debts_end(&mut self, id: TaskId) {
        let mut ended = Vec::new();
        for core in &mut self.cores {
            core.debts.retain(|debt| {
                let concerns = debt.to == id || debt.from == Some(id);
                if concerns {
                    ended.push(debt.clone());
                }
                !concerns
            });
        }
        for debt in ended {
            match debt.from {
                None => {
                    self.shift(debt.to, -debt.service_ns);
                    self.ledger.returned_ns += debt.service_ns;
                }
                Some(from) => {
                    self.mark(debt.to, None);
                    self.give_back(from, debt.service_ns);
                }
            }
        }
        self.mark(id, None);
    }
}

//! floe's scheduler in the kernel, where the host can have it: it is told who is a vCPU, and tells how they fare. While it is in force, no
//! affinities and nice values are needed.

use floe_api::CpuSched;
use floe_scx::{Fares, GANGS, Ledger, Policy, Scheduler, ScxError, file_beside};
use std::{collections::BTreeMap, time::Duration};

/// How often those are let go on whose control groups have used up their quotas, and how often it is looked whether any has one.
const WITH_QUOTAS: Duration = Duration::from_millis(5);
const WITHOUT: Duration = Duration::from_millis(500);

/// The scheduler, and what it has told.
pub(super) struct Kernel {
    scheduler: Scheduler,
    /// Of each machine, by its key: its number there, what was told of it when it came, and since then.
    machines: BTreeMap<u64, Its>,
    ledger: Ledger,
}

struct Its {
    number: u32,
    before: Fares,
    fares: Fares,
}

impl Kernel {
    /// Puts the scheduler in force.
    pub(super) fn load(asked: CpuSched) -> Result<Kernel, ScxError> {
        let policy = match asked {
            CpuSched::Sbco => Policy::Sbco,
            CpuSched::Balance | CpuSched::Off => Policy::Balance,
        };
        let own = std::env::current_exe().unwrap_or_default();
        Ok(Kernel {
            scheduler: Scheduler::load(&file_beside(&own), policy)?,
            machines: BTreeMap::new(),
            ledger: Ledger::default(),
        })
    }

    /// Tells it the threads of all machines, by their keys, and asks how they fare. An error is its end: the kernel has its own again.
    pub(super) fn tell(&mut self, threads: &BTreeMap<u64, Vec<u32>>) -> Result<(), ScxError> {
        if !self.scheduler.is_in_force() {
            return Err(ScxError::Ended);
        }
        self.machines.retain(|key, _| threads.contains_key(key));
        let mut vcpus = BTreeMap::new();
        for (key, tids) in threads {
            let Some(number) = self.number(*key)? else {
                // more machines than it can keep apart: the kernel places the vCPUs of the others like any threads
                continue;
            };
            vcpus.extend(tids.iter().map(|tid| (*tid, number)));
        }
        self.scheduler.set_vcpus(&vcpus)?;
        for its in self.machines.values_mut() {
            its.fares = self.scheduler.fares(its.number)?.since(&its.before);
        }
        self.ledger = self.scheduler.ledger()?;
        Ok(())
    }

    /// The number of a machine, a free one if it is new; `None` if there is none.
    fn number(&mut self, key: u64) -> Result<Option<u32>, ScxError> {
        if let Some(its) = self.machines.get(&key) {
            return Ok(Some(its.number));
        }
        let taken = |number: &u32| self.machines.values().any(|its| its.number == *number);
        let Some(number) = (0..GANGS).find(|number| !taken(number)) else {
            return Ok(None);
        };
        let its = Its {
            number,
            // of a machine that had this number earlier
            before: self.scheduler.fares(number)?,
            fares: Fares::default(),
        };
        self.machines.insert(key, its);
        Ok(Some(number))
    }

    /// How a machine's vCPUs fare since it came.
    pub(super) fn fares(&self, key: u64) -> Option<Fares> {
        self.machines.get(&key).map(|its| its.fares)
    }

    /// What lending has come to.
    pub(super) fn ledger(&self) -> Ledger {
        self.ledger
    }

    /// Lets go on whose control group may. Returns when to do it again.
    pub(super) fn unpark(&self) -> Duration {
        match self.scheduler.unpark() {
            Ok(true) => WITH_QUOTAS,
            Ok(false) | Err(_) => WITHOUT,
        }
    }
}

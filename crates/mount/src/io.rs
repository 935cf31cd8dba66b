//! What callers may know and say of the order of disk requests.
//!
//! All disk requests of all machines pass through this mount, so the host's own scheduler can't tell the machines apart. What the
//! host has in memory is read at once; the rest waits in one queue for the disk workers, in the order of a policy of floe-sched, which
//! goes by how urgent each request is (`classes`).

use crate::classes::{IoMachine, owned};
use crate::file_maps;
use crate::{MachineHandle, Mount};
use floe_image::Hash;
use floe_sched::classify::{List, ListError, Name, Scope, Told};
use floe_sched::{Limit, MachineId, MachineStatus, Status};
use std::{collections::HashMap, time::Duration};

/// What the scheduler of disk requests knows, with the machines' names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoStatus {
    /// What it knows of the disk, without its machines.
    pub disk: Status,
    /// The machines on the mount that it knows, by name.
    pub machines: Vec<IoMachine>,
}

/// What is said by hand of the programs on a base disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoSaid {
    /// It is waited for by a person, whatever it does.
    Allowed,
    /// It is not, whatever it does.
    Forbidden,
    /// Nothing any more; what was learned of it is forgotten too.
    Nothing,
}

impl Mount {
    /// Returns what the scheduler of disk requests knows; `None` where nothing is scheduled.
    pub fn io_status(&self) -> Option<IoStatus> {
        let work = &self.core.queues.work;
        let mut disk = work.policy(|policy, now_us| policy.status(now_us))?;
        let mut known: HashMap<MachineId, MachineStatus> = std::mem::take(&mut disk.machines)
            .into_iter()
            .map(|status| (status.machine, status))
            .collect();
        let classes = &self.core.classes;
        if let Some(verdicts) = &classes.verdicts {
            verdicts.write_out();
        }
        let machines = self.core.machines.read();
        let mut machines: Vec<IoMachine> = machines
            .values()
            .filter_map(|machine| Some(classes.status(machine, known.remove(&machine.id)?)))
            .collect();
        machines.sort_by(|a, b| a.name.cmp(&b.name));
        Some(IoStatus { disk, machines })
    }

    /// Returns the names of the machines on the mount, by the numbers that they have in the queues of disks and links.
    pub fn machine_names(&self) -> HashMap<MachineId, String> {
        let machines = self.core.machines.read();
        let names = machines.values();
        names
            .map(|machine| (machine.id, machine.name.clone()))
            .collect()
    }
}

/// The lists of interactive programs, by base disk ([`crate::MachineSpec::base`]).
impl Mount {
    /// Takes a list that was stored earlier.
    pub fn import_io_list(&self, base: Hash, list: List) {
        let mut classifier = self.core.classes.classifier.lock();
        classifier.import(owned(base), list);
    }

    /// Returns a base disk's list, as it is now.
    pub fn io_list(&self, base: Hash) -> List {
        self.core.classes.classifier.lock().export(owned(base))
    }

    /// Says something by hand of a program in all machines with a base disk. Returns whether that changed anything.
    pub fn say_of_io(&self, base: Hash, name: Name, said: IoSaid) -> Result<bool, ListError> {
        let mut classifier = self.core.classes.classifier.lock();
        let (of, before) = (owned(base), classifier.export(owned(base)));
        match said {
            IoSaid::Allowed => classifier.allow(Scope::Disk(of), name)?,
            IoSaid::Forbidden => classifier.forbid(Scope::Disk(of), name)?,
            IoSaid::Nothing => classifier.forget(of, name),
        }
        Ok(classifier.export(of) != before)
    }
}

impl MachineHandle {
    /// Takes the report of the agent in this machine's guest about which program has read what. The report needn't be true.
    pub fn told_who_asks(&self, told: &[Told]) {
        let classes = &self.core.classes;
        let now_us = classes.now_us();
        let mut classifier = classes.classifier.lock();
        classifier.told(now_us, self.machine.id, told);
    }

    /// Sets this machine's part of the host's disk, and of the links over which its chunks come, from now on. It has that together with
    /// all others that were set the same `household`.
    pub fn limit_io(&self, household: &str, limit: Limit) {
        self.core.limit_io(self.machine.id, household, limit);
    }

    /// Reports that a key, a button or a touch was sent to this machine: what it asks for next is probably waited for by a person.
    pub fn input(&self) {
        let classes = &self.core.classes;
        let now_us = classes.now_us();
        classes.classifier.lock().input(now_us, self.machine.id);
        file_maps::begin(&self.core, &self.machine);
    }

    /// Returns how long ago the last input to this machine was reported; `None` if none ever was.
    pub fn last_input(&self) -> Option<Duration> {
        let classes = &self.core.classes;
        let known = classes.classifier.lock();
        let last_us = known.status(self.machine.id)?.last_input_us?;
        let ago_us = classes.now_us().saturating_sub(last_us);
        Some(Duration::from_micros(ago_us))
    }
}

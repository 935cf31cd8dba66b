//! Whose process asks: from what a request's header says to a machine, without I/O.
//!
//! Where each machine's VMM runs as a user of its own, the user says it. Where several have the same (a node that is not root), the
//! thread does: those of a VMM are noted when it is started or adopted ([`Askers::set_process`]). A thread that came later is nobody's
//! until the owner's thread has looked it up ([`Askers::look_up`]); what it touched until then is accounted for after that.

use crate::machine::Machine;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Threads whose machine is remembered; more are forgotten all at once.
const THREADS_REMEMBERED: usize = 4096;

/// Who asks, as a request's header says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asking {
    /// The user of the thread.
    pub uid: u32,
    /// The thread; 0 when the kernel asks on its own.
    pub thread: u32,
}

/// What is known of who asks.
pub(crate) enum Asker {
    /// A machine's process.
    Machine(Arc<Machine>),
    /// No machine's, or nobody's in particular.
    Nobody,
    /// Not known yet: [`Askers::look_up`] finds out.
    Unknown,
}

/// The tables.
#[derive(Default)]
pub(crate) struct Askers {
    /// Users that are one machine's alone.
    users: RwLock<HashMap<u32, Weak<Machine>>>,
    /// Processes of machines.
    processes: RwLock<HashMap<u32, Weak<Machine>>>,
    /// Threads that were looked up; an empty reference is nobody's.
    threads: RwLock<HashMap<u32, Weak<Machine>>>,
}

impl Askers {
    /// Takes note of the machines that there are now. `own` is the node's user, which is no machine's alone.
    pub(crate) fn set_machines<'a>(
        &self,
        machines: impl Iterator<Item = &'a Arc<Machine>>,
        own: u32,
    ) {
        let mut users: HashMap<u32, Weak<Machine>> = HashMap::new();
        let mut shared = vec![own];
        for machine in machines {
            if users.insert(machine.uid, Arc::downgrade(machine)).is_some() {
                shared.push(machine.uid);
            }
        }
        users.retain(|uid, _| !shared.contains(uid));
        *self.users.write() = users;
    }

    /// A machine's process from now on, with the threads that it has. Reads `/proc`: for who starts or adopts a VMM.
    pub(crate) fn set_process(&self, machine: &Arc<Machine>, process: u32) {
        {
            let mut processes = self.processes.write();
            processes.retain(|_, m| m.strong_count() > 0 && m.as_ptr() != Arc::as_ptr(machine));
            processes.insert(process, Arc::downgrade(machine));
        }
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
        let names = tasks
            .into_iter()
            .flatten()
            .flatten()
            .map(|task| task.file_name());
        let mut threads = self.threads.write();
        // Numbers are used again: what was known of them is of earlier processes.
        threads.clear();
        for thread in names.filter_map(|name| name.to_str()?.parse().ok()) {
            threads.insert(thread, Arc::downgrade(machine));
        }
    }

    /// Whose process asks, as far as that is known. No I/O.
    pub(crate) fn find(&self, asking: Asking) -> Asker {
        let user = self.users.read().get(&asking.uid).and_then(Weak::upgrade);
        if let Some(machine) = user {
            return Asker::Machine(machine);
        }
        if asking.thread == 0 {
            return Asker::Nobody;
        }
        match self.threads.read().get(&asking.thread).map(Weak::upgrade) {
            Some(Some(machine)) => Asker::Machine(machine),
            Some(None) => Asker::Nobody,
            // Without any process that could be meant there is nothing to look up.
            None if self.processes.read().is_empty() => Asker::Nobody,
            None => Asker::Unknown,
        }
    }

    /// Finds out whose a thread is, and remembers it. Reads `/proc`: not for a thread that serves the kernel.
    pub(crate) fn look_up(&self, thread: u32) {
        if self.threads.read().contains_key(&thread) {
            return;
        }
        // One that has ended says nothing any more, and its number may come to be another's.
        let Some(process) = process_of(thread) else {
            return;
        };
        let found = self.processes.read().get(&process).cloned();
        let mut threads = self.threads.write();
        if threads.len() >= THREADS_REMEMBERED {
            threads.clear();
        }
        threads.insert(thread, found.unwrap_or_default());
    }
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

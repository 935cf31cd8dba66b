//! Finds the machine whose process made a request, from the request's header, without I/O.
//!
//! Where each machine's VMM runs as its own user, the user identifies the machine. Where several share a user (the node is not
//! root), the thread does: a VMM's threads are noted when it is started or adopted ([`Askers::set_process`]). A thread that was
//! created later is unknown until another thread has looked it up ([`Askers::look_up`]); what it touched is accounted for
//! after that.

use crate::machine::Machine;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// How many threads are remembered. When there are more, all are forgotten at once.
const THREADS_REMEMBERED: usize = 4096;

/// Who made a request, as its header says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asking {
    /// The user of the thread.
    pub uid: u32,
    /// The thread; 0 when the kernel made the request on its own.
    pub thread: u32,
}

/// Who made a request, as far as that is known.
pub(crate) enum Asker {
    /// A process of this machine.
    Machine(Arc<Machine>),
    /// No machine's process, or the kernel on its own.
    Nobody,
    /// Not known yet: [`Askers::look_up`] finds out.
    Unknown,
}

/// The tables that are searched.
#[derive(Default)]
pub(crate) struct Askers {
    /// Users that belong to one machine only.
    users: RwLock<HashMap<u32, Weak<Machine>>>,
    /// Processes of machines.
    processes: RwLock<HashMap<u32, Weak<Machine>>>,
    /// Threads that were looked up; an empty reference means that no machine owns the thread.
    threads: RwLock<HashMap<u32, Weak<Machine>>>,
}

impl Askers {
    /// Sets the machines that exist now. `own` is the node's user, which never identifies a machine.
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

    /// Sets a machine's process, and notes its present threads. Reads `/proc`; called by whoever starts or adopts a VMM.
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
        // The kernel reuses thread numbers: what was noted before may be about earlier processes.
        threads.clear();
        for thread in names.filter_map(|name| name.to_str()?.parse().ok()) {
            threads.insert(thread, Arc::downgrade(machine));
        }
    }

    /// Returns whose process made a request, as far as that is known. No I/O.
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
            // Without any known process there is nothing to look up.
            None if self.processes.read().is_empty() => Asker::Nobody,
            None => Asker::Unknown,
        }
    }

    /// Finds out which machine a thread belongs to, and remembers it. Reads `/proc`, so no thread that serves the kernel may
    /// call it.
    pub(crate) fn look_up(&self, thread: u32) {
        if self.threads.read().contains_key(&thread) {
            return;
        }
        // A thread that has ended can't be looked up any more, and its number may be given to another.
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

/// Returns the process that a thread belongs to.
fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

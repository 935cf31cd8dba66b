//! Notices when a QEMU ends by itself: the kernel reports that through a descriptor of its process (pidfd_open(2)).

use super::Machines;
use floe_inventory::inventory::{Entry, lifecycle::Task};
use floe_machine::Machine;
use parking_lot::Mutex;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};
use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

/// How long one wait takes at most, and so how late the thread may notice that the node has ended.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long until a machine is looked at again whose QEMU ended while another operation was under way.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How many ends are read from the kernel at once.
const EVENTS: usize = 64;

/// A QEMU that is watched.
pub(super) struct Watched {
    vm: Weak<Machine>,
    /// The process's pidfd: readable once the process has ended.
    _process: OwnedFd,
}

/// The QEMUs whose end is awaited.
pub(super) struct Ends {
    epoll: OwnedFd,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    watched: HashMap<u64, Watched>,
    /// QEMUs that have ended and must be looked at again.
    ended: Vec<Watched>,
}

impl Ends {
    /// Returns an empty set.
    pub fn new() -> io::Result<Ends> {
        Ok(Ends {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            inner: Mutex::default(),
        })
    }

    /// Adds a QEMU that runs now.
    pub fn watch(&self, vm: &Arc<Machine>) -> io::Result<()> {
        let process = vm.end_descriptor()?;
        let mut inner = self.inner.lock();
        inner.next += 1;
        let number = inner.next;
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(
            &self.epoll,
            &process,
            epoll::EventData::new_u64(number),
            once,
        )?;
        let watched = Watched {
            vm: Arc::downgrade(vm),
            _process: process,
        };
        inner.watched.insert(number, watched);
        Ok(())
    }

    /// Waits until QEMUs have ended, at most for a moment, and returns those not handled yet.
    pub fn wait(&self) -> Vec<Watched> {
        let long = match self.inner.lock().ended.is_empty() {
            true => WAIT_MAX,
            false => LOOK_AGAIN,
        };
        let long = Timespec::try_from(long).expect("a second is short enough");
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&long),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "the kernel does not tell which QEMUs end"),
        }
        let mut inner = self.inner.lock();
        let numbers = events.iter().map(|event| event.data.u64());
        let ended: Vec<Watched> = numbers
            .filter_map(|number| inner.watched.remove(&number))
            .collect();
        let mut all = std::mem::take(&mut inner.ended);
        all.extend(ended);
        all
    }

    fn again(&self, watched: Watched) {
        self.inner.lock().ended.push(watched);
    }
}

impl Machines {
    /// Handles machines whose QEMUs have ended.
    pub(super) fn look_after_ends(&self, ended: Vec<Watched>) {
        for watched in ended {
            let Some(vm) = watched.vm.upgrade() else {
                continue;
            };
            let is_of = |entry: &Arc<Entry>| {
                let current = entry.state().vm.clone();
                current.is_some_and(|current| Arc::ptr_eq(&current, &vm))
            };
            let Some(entry) = self.inventory.all().into_iter().find(is_of) else {
                continue;
            };
            match entry.begin(Task::End) {
                Ok(operation) if is_of(&entry) => self.ended(&operation, &vm),
                Ok(_) => {}
                // another operation is ending it or handling this; look again once that is over
                Err(_) => self.ends.again(watched),
            }
        }
    }
}

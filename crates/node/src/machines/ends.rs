//! Noticing when a QEMU ends by itself: the kernel says so, through a descriptor of each process (pidfd_open(2)).

use super::Machines;
use crate::{MachineName, inventory::lifecycle::Task};
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

/// How long one wait takes at most: how soon the thread notices that the node has ended.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long until a machine is looked at again that something else was done with when its QEMU ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Ends that are taken from the kernel at a time.
const EVENTS: usize = 64;

/// A QEMU that is watched.
pub(super) struct Watched {
    name: MachineName,
    vm: Weak<Machine>,
    /// Readable once it has ended.
    _process: OwnedFd,
}

/// QEMUs of which the kernel is to tell the end.
pub(super) struct Ends {
    epoll: OwnedFd,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    watched: HashMap<u64, Watched>,
    /// They have ended, and are not looked after yet.
    ended: Vec<Watched>,
}

impl Ends {
    /// None yet.
    pub fn new() -> io::Result<Ends> {
        Ok(Ends {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            inner: Mutex::default(),
        })
    }

    /// Watches a QEMU that runs now.
    pub fn watch(&self, name: &MachineName, vm: &Arc<Machine>) -> io::Result<()> {
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
            name: name.clone(),
            vm: Arc::downgrade(vm),
            _process: process,
        };
        inner.watched.insert(number, watched);
        Ok(())
    }

    /// Waits until some have ended that nobody has looked after, or a moment.
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
    /// Looks after machines whose QEMUs have ended.
    pub(super) fn look_after_ends(&self, ended: Vec<Watched>) {
        for watched in ended {
            let (Some(vm), Ok(entry)) = (
                watched.vm.upgrade(),
                self.inventory.get(watched.name.as_str()),
            ) else {
                continue;
            };
            let is_its = || {
                let current = entry.state.read().vm.clone();
                current.is_some_and(|current| Arc::ptr_eq(&current, &vm))
            };
            if !is_its() {
                continue;
            }
            match entry.begin(Task::End) {
                Ok(operation) if is_its() => self.ended(&operation, &vm),
                Ok(_) => {}
                // another operation ends it, or looks after it: what came of that shows after a while
                Err(_) => self.ends.again(watched),
            }
        }
    }
}

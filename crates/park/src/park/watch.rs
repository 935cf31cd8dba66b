//! Counts what machines use, and parks those that have been idle for as long as their users said. `decide` says which.

use super::{
    Parks,
    decide::{Idleness, Seen},
};
use floe_ground::{error::NodeError, news::News, report::Report};
use floe_inventory::inventory::{
    Entry,
    lifecycle::{Phase, Task},
};
use floe_machine::Machine;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// How often machines are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the thread knows of a machine's QEMU.
struct Watched {
    vm: Weak<Machine>,
    idleness: Idleness,
    /// What its connections had carried at the last look, by connection.
    connections: HashMap<u64, u64>,
    /// Bytes that they have carried, those that are closed among them.
    carried: u64,
    /// Why it was idle and could not be parked when that was last tried: it is told once.
    refused: Arc<Mutex<String>>,
}

impl Parks {
    /// Starts the thread that parks idle machines.
    pub(super) fn start_watching(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        let began = Instant::now();
        let mut known = HashMap::new();
        Ok(threads.keep("park-idle", self, LOOK_EVERY, move |parks| {
            parks.look(&mut known, began.elapsed());
        })?)
    }

    fn look(self: &Arc<Self>, known: &mut HashMap<String, Watched>, now: Duration) {
        let mut looked_at = HashMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let Some(after_s) = record.park_after_s else {
                continue;
            };
            let Some(vm) = entry.state().vm.clone() else {
                continue;
            };
            if entry.phase() != Phase::Running {
                continue;
            }
            let earlier = known.remove(&record.mount_name);
            let is_its = |watched: &Watched| std::ptr::eq(watched.vm.as_ptr(), Arc::as_ptr(&vm));
            let mut watched = earlier.filter(is_its).unwrap_or_else(|| Watched {
                vm: Arc::downgrade(&vm),
                idleness: Idleness::default(),
                connections: HashMap::new(),
                carried: 0,
                refused: Arc::default(),
            });
            match self.see(&entry, &vm, &mut watched) {
                Ok(seen) => {
                    let after = Duration::from_secs(after_s);
                    if watched.idleness.look(now, seen, after) {
                        self.park_idle(&entry, watched.refused.clone());
                    }
                }
                // it is just ending
                Err(error) => tracing::debug!(machine = %entry.name, %error, "is not looked at"),
            }
            looked_at.insert(record.mount_name.clone(), watched);
        }
        *known = looked_at;
    }

    /// Returns what a machine has used so far, and whether somebody is with it.
    fn see(
        &self,
        entry: &Entry,
        vm: &Arc<Machine>,
        watched: &mut Watched,
    ) -> std::io::Result<Seen> {
        let usage = vm.usage()?;
        for (connection, bytes) in &usage.connections {
            let before = watched.connections.get(connection);
            watched.carried += bytes.saturating_sub(before.copied().unwrap_or_default());
        }
        watched.connections = usage.connections;
        let record = entry.record();
        let place = record.network.as_ref();
        let by_card = place.and_then(|place| self.networks.carried(place));
        let disks = entry.state().disks.clone().map(|disks| disks.stats());
        let life = entry.life();
        // one that waits for its guest's agent, or that stands still, is looked at again
        let occupied = life.task().is_some() || !life.reasons().is_empty();
        Ok(Seen {
            cpu_us: u64::try_from(usage.cpu.as_micros()).unwrap_or(u64::MAX),
            disk_bytes: disks.map_or(0, |disks| disks.read_bytes + disks.write_bytes),
            network_bytes: watched.carried + by_card.unwrap_or_default(),
            accompanied: usage.watched || occupied || self.agents.streams_of(vm).any_open(),
        })
    }

    fn park_idle(self: &Arc<Self>, entry: &Arc<Entry>, refused: Arc<Mutex<String>>) {
        let (parks, entry) = (self.clone(), entry.clone());
        let name = entry.name.to_string();
        let park = move || {
            // nobody reads it
            let (mut report, _events) = Report::new();
            let name = entry.name.to_string();
            if let Err(error) = parks.park_as(Task::ParkIdle, &name, None, &mut report) {
                let why = error.to_api().to_string();
                if std::mem::replace(&mut *refused.lock(), why.clone()) != why {
                    parks.core.tell(&name, &News::NotParked(why));
                }
            }
        };
        if let Err(error) = self.core.threads.start("park-idle", park) {
            tracing::error!(machine = name, %error, "no thread to park it");
        }
    }
}

//! Whose disk request goes first: what orders the queue before the host's disk, and what it tells.
//!
//! All disk requests of all machines pass through this mount, so the host's own scheduler can't tell the machines apart. What the
//! host has in memory is read at once; the rest waits in one queue for the disk workers, in the order of a policy of floe-sched.

use crate::core::Raw;
use crate::machine::Machine;
use crate::overlay::Disk;
use crate::start::WORKERS;
use crate::{MachineHandle, Mount};
use floe_sched::classify::{Classifier, ImageId, Owned, Place, Seen};
use floe_sched::{
    Class, Fifo, Limit, MachineId, MachineStatus, Op, Policy, Purpose, Status, Vsip, VsipConfig,
    Who,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the requests that access the host's disk are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoScheduling {
    /// What a person waits for goes first, and each machine has its share (vSIP).
    #[default]
    Vsip,
    /// First come, first served, through the same queue.
    Fifo,
    /// There is no queue: the threads that serve the kernel access the disk themselves, as many as may.
    Off,
}

/// What the scheduler of disk requests knows, with the machines' names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoStatus {
    /// What it knows of the disk, without its machines.
    pub disk: Status,
    /// The machines on the mount that it knows, by name.
    pub machines: Vec<IoMachine>,
}

/// What is known of one machine's disk requests.
#[derive(Clone, Debug, PartialEq)]
pub struct IoMachine {
    /// Its name on the mount.
    pub name: String,
    /// What the scheduler knows of it.
    pub status: MachineStatus,
    /// How many inputs it has had: keys, buttons and touches that somebody sent to it.
    pub inputs: u64,
    /// How long ago the last one came.
    pub since_input: Option<Duration>,
}

/// How urgent each machine's disk requests are, by what was sent to it before. Locks: itself, for a request at a time.
pub(crate) struct Classes {
    classifier: Mutex<Classifier>,
    began: Instant,
}

impl Default for Classes {
    fn default() -> Classes {
        Classes {
            classifier: Mutex::default(),
            began: Instant::now(),
        }
    }
}

impl Classes {
    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// A machine is on the mount from now on.
    pub(crate) fn began(&self, machine: &Machine) {
        let of = Owned {
            image: ImageId(*machine.image.id.as_bytes()),
            uid: machine.uid,
        };
        let now_us = self.now_us();
        self.classifier.lock().began(now_us, machine.id, of);
    }

    /// A machine is no longer on the mount.
    pub(crate) fn gone(&self, machine: MachineId) {
        self.classifier.lock().gone(machine);
    }

    /// Returns who asks for `bytes` bytes of a machine's disk from `offset` on, with how urgent that is. A class that was set for
    /// the whole machine stands.
    pub(crate) fn who(
        &self,
        machine: &Machine,
        disk: &Arc<Disk>,
        (op, offset, bytes): (Op, u64, u64),
    ) -> Who {
        let purpose = match op {
            Op::Read => Purpose::Demand,
            Op::Write | Op::Flush => Purpose::Store,
        };
        let who = machine.who(purpose);
        if who.class != Class::default() {
            return who;
        }
        let disks = machine.disks.read();
        let region = disks.iter().position(|known| Arc::ptr_eq(known, disk));
        drop(disks);
        let place = region.map(|region| Place {
            region: region as u32,
            offset,
        });
        let seen = Seen {
            machine: machine.id,
            program: None,
            place,
            bytes,
            op,
        };
        let now_us = self.now_us();
        let class = self.classifier.lock().request(now_us, &seen);
        Who { class, ..who }
    }
}

/// Makes what orders the disk requests; at most `most` are queued.
pub(crate) fn policy(scheduling: IoScheduling, most: usize) -> Box<dyn Policy<Raw>> {
    match scheduling {
        IoScheduling::Vsip => Box::new(Vsip::new(VsipConfig::disk(most, WORKERS))),
        IoScheduling::Fifo | IoScheduling::Off => Box::new(Fifo::new(most)),
    }
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
        let (classifier, now_us) = (classes.classifier.lock(), classes.now_us());
        let machines = self.core.machines.read();
        let mut machines: Vec<IoMachine> = machines
            .values()
            .filter_map(|machine| {
                let inputs = classifier.status(machine.id);
                let last_us = inputs.as_ref().and_then(|inputs| inputs.last_input_us);
                Some(IoMachine {
                    name: machine.name.clone(),
                    status: known.remove(&machine.id)?,
                    inputs: inputs.map_or(0, |inputs| inputs.inputs),
                    since_input: last_us.map(|us| Duration::from_micros(now_us.saturating_sub(us))),
                })
            })
            .collect();
        machines.sort_by(|a, b| a.name.cmp(&b.name));
        Some(IoStatus { disk, machines })
    }
}

impl MachineHandle {
    /// Sets this machine's part of the host's disk, from now on.
    pub fn limit_io(&self, limit: Limit) {
        let work = &self.core.queues.work;
        work.policy(|policy, _| policy.limit(self.machine.id, limit));
    }

    /// Reports that a key, a button or a touch was sent to this machine: what it asks for next is probably waited for by a person.
    pub fn input(&self) {
        let classes = &self.core.classes;
        let now_us = classes.now_us();
        classes.classifier.lock().input(now_us, self.machine.id);
    }
}

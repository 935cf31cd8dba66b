//! Whose disk request goes first: what orders the queue before the host's disk, and what it tells.
//!
//! All disk requests of all machines pass through this mount, so the host's own scheduler can't tell the machines apart. What the
//! host has in memory is read at once; the rest waits in one queue for the disk workers, in the order of a policy of floe-sched.

use crate::core::Raw;
use crate::start::WORKERS;
use crate::{MachineHandle, Mount};
use floe_sched::{Fifo, Limit, MachineStatus, Policy, Status, Vsip, VsipConfig};
use std::collections::HashMap;

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
    pub machines: Vec<(String, MachineStatus)>,
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
        let machines = self.core.machines.read();
        let names: HashMap<_, _> = machines.values().map(|m| (m.id, &m.name)).collect();
        let known = std::mem::take(&mut disk.machines);
        let mut machines: Vec<(String, MachineStatus)> = known
            .into_iter()
            .filter_map(|status| Some(((*names.get(&status.machine)?).clone(), status)))
            .collect();
        machines.sort_by(|a, b| a.0.cmp(&b.0));
        Some(IoStatus { disk, machines })
    }
}

impl MachineHandle {
    /// Sets this machine's part of the host's disk, from now on.
    pub fn limit_io(&self, limit: Limit) {
        let work = &self.core.queues.work;
        work.policy(|policy, _| policy.limit(self.machine.id, limit));
    }
}

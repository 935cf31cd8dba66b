//! Changes how much of this host's resources a machine may use, and how long it may idle before it is parked.

use super::Machines;
use crate::{
    error::{NodeError, usage},
    inventory::lifecycle::Task,
    io,
};
use floe_api::{LimitRequest, Limits, MachineInfo, PARK_AFTER_S_MAX, PARK_AFTER_S_MIN};

impl Machines {
    /// Changes how much of this host's resources a machine may use, at once and for all its later starts.
    pub fn limit_machine(
        &self,
        name: &str,
        request: &LimitRequest,
    ) -> Result<MachineInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Limit)?;
        let mut record = operation.record();
        let before = record.limits;
        let change = |old: &mut Option<u32>, new: Option<u32>| match new {
            None => {}
            Some(0) => *old = None,
            Some(_) => *old = new,
        };
        change(&mut record.limits.cpu_millicores, request.cpu_millicores);
        change(&mut record.limits.io_weight, request.io_weight);
        change(&mut record.limits.io_cap_percent, request.io_cap_percent);
        match request.memory_max_bytes {
            None => {}
            Some(0) => record.limits.memory_max_bytes = None,
            max => record.limits.memory_max_bytes = max,
        }
        let park_after_s = match request.park_after_s {
            None => record.park_after_s,
            Some(0) => None,
            after_s => after_s,
        };
        check_park_after(park_after_s)?;
        let limits = record.limits;
        self.resources.check_limits(&limits)?;
        if let Some(disks) = &operation.state().disks {
            disks.limit_io(io::limit(&limits));
        }
        let runs = operation.state().vm.is_some();
        let of_process = |limits: &Limits| (limits.cpu_millicores, limits.memory_max_bytes);
        if runs && of_process(&limits) != of_process(&before) {
            self.resources.limit(&record)?;
        }
        operation.update(|record| {
            record.limits = limits;
            record.park_after_s = park_after_s;
        })?;
        Ok(self.info_of(&operation))
    }
}

/// Refuses a time of idleness after which nothing sensible could be parked.
pub(crate) fn check_park_after(after_s: Option<u64>) -> Result<(), NodeError> {
    match after_s {
        None | Some(PARK_AFTER_S_MIN..=PARK_AFTER_S_MAX) => Ok(()),
        Some(s) => Err(usage(
            format!("a machine can't be parked after {s} s of idleness"),
            format!(
                "give between {PARK_AFTER_S_MIN} s and {} days",
                PARK_AFTER_S_MAX / 86_400
            ),
        )),
    }
}

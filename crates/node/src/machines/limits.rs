//! Changes how much of this host's resources a machine may use.

use super::Machines;
use crate::{error::NodeError, inventory::lifecycle::Task};
use floe_api::{LimitRequest, MachineInfo};

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
        match request.memory_max_bytes {
            None => {}
            Some(0) => record.limits.memory_max_bytes = None,
            max => record.limits.memory_max_bytes = max,
        }
        let limits = record.limits;
        self.resources.check_limits(&limits)?;
        let runs = operation.state().vm.is_some();
        if runs && limits != before {
            self.resources.limit(&record)?;
        }
        operation.update(|record| record.limits = limits)?;
        Ok(self.info_of(&operation))
    }
}

//! Gives a machine another name. Its directories, its files on the mount and its control group keep the names that they have, so
//! that nothing of a machine that runs has to move: the new name is one write of its record.

use super::Machines;
use floe_api::MachineInfo;
use floe_ground::{
    error::{NodeError, busy, refused, usage},
    names::MachineName,
    news::News,
};
use floe_inventory::inventory::lifecycle::{Phase, Task};
use std::sync::Weak;

impl Machines {
    /// Renames a machine that runs, is stopped or is parked.
    pub fn rename_machine(&self, name: &str, to: &str) -> Result<MachineInfo, NodeError> {
        let to: MachineName = to
            .parse()
            .map_err(|error: floe_ground::names::NameError| usage(error.to_string(), ""))?;
        if MachineName::parent_of(to.as_str()).is_some() {
            return Err(usage(
                format!("{to} is a clone's name"),
                "choose one without a number at its end",
            ));
        }
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Rename)?;
        let calm = [Phase::Running, Phase::Stopped, Phase::Parked];
        if !calm.contains(&operation.phase()) {
            return Err(busy(
                format!("machine {name} is just starting or ending"),
                "wait a moment, then rename it again",
            ));
        }
        let record = operation.record();
        let kin = self.kin.get().and_then(Weak::upgrade);
        if record.family.is_some() || kin.is_some_and(|kin| kin.knows(name)) {
            return Err(refused(
                format!("machine {name} is a clone or has clones, which know it by this name"),
                format!("see floe family {name}; a machine is renamed before it is forked"),
            ));
        }
        if record.network.is_some() {
            return Err(refused(
                format!("machine {name} is in a network of its own, which knows it by this name"),
                format!("capture it, and run the image as {to} with --network"),
            ));
        }
        self.inventory.rename(&operation, &to)?;
        self.resources.renamed(name, to.as_str());
        self.core.tell(name, &News::Renamed(to.to_string()));
        Ok(self.info_of(&operation))
    }
}

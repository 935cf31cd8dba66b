//! A machine's pause by its user: it lasts until the user ends it, whichever node is there.

use super::Machines;
use floe_api::{MachineInfo, PauseReason};
use floe_ground::error::{NodeError, busy, refused};
use floe_inventory::inventory::{
    Operation,
    lifecycle::{Event, Task},
};

impl Machines {
    /// Pauses a machine because its user wants that. One that is paused for that already stays so.
    pub fn pause_machine(&self, name: &str) -> Result<MachineInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Pause)?;
        if operation.waits_for_adoption() {
            return Err(busy(
                format!("the QEMU of machine {name} does not answer this node yet"),
                "try again in a moment",
            ));
        }
        check_runs(&operation)?;
        operation.drive(Event::Begins(PauseReason::User))?;
        Ok(self.info_of(&operation))
    }

    /// Ends a user's pause of a machine. If it stands still for other reasons too, it goes on once those are over.
    pub fn resume_machine(&self, name: &str) -> Result<MachineInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Continue)?;
        if !operation.waits_for_adoption() {
            check_runs(&operation)?;
        }
        let why = "its user resumed it".to_owned();
        if operation.drive(Event::Over(PauseReason::User, why))? {
            return Ok(self.info_of(&operation));
        }
        let reasons = operation.reasons();
        if reasons.is_empty() {
            return Err(busy(
                format!("machine {name} is not paused"),
                "see `floe ps`",
            ));
        }
        let words: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        Err(refused(
            format!(
                "machine {name} was not paused by its user, but stands still because {}",
                words.join(" and ")
            ),
            format!("floe ps {name} says more"),
        ))
    }
}

/// Returns an error if a machine has no QEMU.
fn check_runs(operation: &Operation) -> Result<(), NodeError> {
    match operation.vm() {
        Ok(_) => Ok(()),
        Err(error) if operation.is_parked() => Err(error),
        Err(_) => Err(refused(
            format!("machine {} is not running", operation.name),
            format!("floe start {}", operation.name),
        )),
    }
}

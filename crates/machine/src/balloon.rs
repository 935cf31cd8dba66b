//! The balloon: memory that a running guest gives back to its host, and gets again.
//!
//! The guest's driver decides how much it can give and how fast. It takes memory back out of the balloon by itself before it would
//! end a program for want of it.

use serde_json::json;

use crate::devices;
use crate::error::MachineError;
use crate::machine::Machine;

/// The balloon's id.
const BALLOON: &str = "balloon0";

impl Machine {
    /// Returns how many bytes of memory the guest has: all but what is in its balloon. QEMU counts all of it as the guest's until the
    /// guest's driver has given some.
    pub fn memory_given(&self) -> Result<u64, MachineError> {
        let all = self.config().memory_bytes_now().unwrap_or_default();
        if !self.has_balloon() {
            return Ok(all);
        }
        let answer = self.ask("query-balloon", json!({}))?;
        Ok(answer["actual"].as_u64().unwrap_or(all).min(all))
    }

    /// Asks the guest to keep so many bytes of memory and give the rest. It does so in its own time: [`Machine::memory_given`] says
    /// how far it is.
    pub fn ask_for_memory(&self, bytes: u64) -> Result<(), MachineError> {
        self.ask("balloon", json!({"value": bytes})).map(drop)
    }

    /// Whether the machine has a balloon; one whose image was made by hand may have none.
    pub fn has_balloon(&self) -> bool {
        devices::by_id(&self.config().devices, BALLOON).is_some()
    }

    /// Whether a driver in the guest serves the balloon.
    pub fn balloon_is_driven(&self) -> Result<bool, MachineError> {
        match self.has_balloon() {
            true => self.driver_is_ready(BALLOON),
            false => Ok(false),
        }
    }
}

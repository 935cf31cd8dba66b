//! Tells a guest's hooks that their machine goes on, where nobody else does: in a copy, whose memory is that of a machine which was about to
//! stand still, and after a node was killed meanwhile. The guest's agent says so.

use super::Guests;
use crate::inventory::{Entry, record::Record};
use floe_api::Happened;
use floe_machine::Machine;
use std::sync::Arc;

impl Guests {
    /// Thaws a guest's hooks, on a thread: what they say comes through the one that this is called on.
    pub(super) fn thaw(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        let what = came_by(&entry.record());
        let name = entry.name.to_string();
        let (guests, entry, vm) = (self.clone(), entry.clone(), vm.clone());
        let thaw = move || {
            let failed = guests.agents.thaw_owed(&entry, &vm, what);
            if !failed.is_empty() {
                let name = entry.name.as_str();
                guests
                    .core
                    .tell(Happened::MachineHooks, name, failed.join("; "));
            }
        };
        if let Err(error) = self.core.threads.start("thaw", thaw) {
            tracing::error!(machine = name, %error, "no thread to thaw its hooks");
        }
    }
}

/// Returns the word for how a machine's state came to be loaded.
fn came_by(record: &Record) -> &'static str {
    match (record.own_layers, &record.turn, &record.family) {
        (1.., _, _) => "wake",
        (0, Some(_), _) => "move",
        (0, None, Some(_)) => "clone",
        (0, None, None) => "restore",
    }
}

//! Thaws a guest's hooks where the call that froze them can't: in a copy, whose memory was taken while they were frozen, and after the node
//! that froze them was killed. The guest's agent says that a thaw is owed.

use super::Guests;
use floe_ground::news::News;
use floe_inventory::inventory::{Entry, record::Record};
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
                guests.core.tell(entry.name.as_str(), &News::Hooks(failed));
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

//! Sets a guest's clock that stood still with its machine.

use super::Guests;
use floe_guest::message::Place;
use floe_inventory::inventory::{Entry, Setter, is_pending};
use floe_machines::capture::fresh_place;
use std::{sync::Arc, time::Duration};

/// How long floe's agent may take before setting the clock is left to QEMU's agent.
const CLOCK_LIMIT: Duration = Duration::from_secs(20);

impl Guests {
    /// Has a clock set that is late, by whoever can do that in the guest. Returns what floe's agent is to be sent for that.
    pub(super) fn late_clock(&self, entry: &Arc<Entry>) -> Option<Place> {
        match entry.clock_to_set(CLOCK_LIMIT)? {
            Setter::Agent => Some(self.place_again(entry)),
            Setter::Qemus(late) => {
                self.machines.set_clock(entry, late);
                None
            }
        }
    }

    /// Has the clocks set that are late of guests with which nobody has a conversation, since their machines have no port for one.
    pub(super) fn look_at_clocks(&self) {
        for entry in self.inventory.all() {
            let alone = |vm: &floe_machine::Machine| !vm.has_floe_port();
            if entry.state().vm.as_deref().is_some_and(alone) {
                self.machines.look_at_clock(&entry);
            }
        }
    }

    /// Returns what floe's agent is sent once more, or to set the clock. An identity that the guest may still wait for is sent again: its
    /// agent answers for what it was sent last. Its generation it was told at the beginning, and QEMU need not be asked.
    pub(super) fn place_again(&self, entry: &Entry) -> Place {
        let record = entry.record();
        let identity = is_pending(&record).then(|| self.identity_of(entry, &record));
        fresh_place(None, identity.flatten())
    }
}

//! Sets a guest's clock that stood still with its machine.

use super::Guests;
use crate::{
    capture::fresh_place,
    inventory::{Entry, is_pending},
    machines::set_clock_then,
};
use floe_api::Happened;
use floe_guest::message::Place;
use floe_machine::ClockSync;
use std::{sync::Arc, time::Duration};

impl Guests {
    /// Returns what floe's agent is sent to set the clock. An identity that the guest may still wait for is sent again: its agent answers
    /// for what it was sent last. Its generation it was told at the beginning, and QEMU need not be asked.
    pub(super) fn place_again(&self, entry: &Entry) -> Place {
        let record = entry.record();
        let identity = is_pending(&record).then(|| self.identity_of(entry, &record));
        fresh_place(None, identity.flatten())
    }

    /// Has QEMU's agent set a clock that is late by so much, in the background, and reports if that fails.
    pub(super) fn mend_clock(&self, entry: &Arc<Entry>, late: Duration) {
        let core = self.core.clone();
        set_clock_then(entry, move |entry, done| match done {
            ClockSync::Set { .. } => entry.qemus_agent_answers(),
            ClockSync::Stale { reason } => {
                let s = late.as_secs();
                core.tell(
                    Happened::MachineClock,
                    entry.name.as_str(),
                    format!("the guest's clock is {s} s late, since its machine stood still, and was not set: {reason}"),
                );
            }
        });
    }
}

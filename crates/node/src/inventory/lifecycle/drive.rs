//! Carries out what `decide` returns: writes reasons to the machine's record, and stops and continues its QEMU.
//!
//! Every pause goes through [`Entry::stand`]. A reason may stay in the record because the node was killed or the disk is
//! full. That does no harm: if all of a machine's reasons ended with the earlier node, the next node lets the machine go on.

use crate::{
    error::NodeError,
    inventory::{
        Entry,
        lifecycle::decide::{Action, Event},
        record::{PauseReason, Record},
    },
};
use floe_machine::{Machine, Status};
use std::sync::Arc;

/// A pause for work of the node that stops the CPUs by itself. Dropping this ends the reason.
pub(crate) struct Paused<'a> {
    entry: &'a Entry,
    reason: Option<PauseReason>,
    /// The QEMU that is told to go on when this is dropped; `None` if the work itself has done that.
    stands: Option<Arc<Machine>>,
}

impl Paused<'_> {
    /// Notes that the work has left the guest stopped: it is told to go on when this is dropped.
    pub fn stands(mut self, vm: &Arc<Machine>) -> Self {
        self.stands = Some(vm.clone());
        self
    }

    /// Notes that the machine has been ended, so that nothing is done when this is dropped.
    pub fn ended(mut self) {
        self.reason = None;
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let Some(reason) = self.reason else {
            return;
        };
        let event = match self.stands {
            Some(_) => Event::EndsStill(reason),
            None => Event::Ends(reason),
        };
        if let Err(error) = self.entry.stand(self.stands.as_deref(), event) {
            tracing::warn!(machine = %self.entry.name, %error, "its record says that it stands still");
        }
    }
}

impl Entry {
    /// Takes an event in and carries out what follows from it, on the disk and in `vm`. After an error the reason that the
    /// event began is withdrawn; any other action that failed is tried again with the next event.
    pub(crate) fn stand(&self, vm: Option<&Machine>, event: Event) -> Result<(), NodeError> {
        let mut standing = self.standing.lock();
        standing.handle(event);
        while let Some(action) = standing.next() {
            let done = match (&action, vm) {
                (Action::Record(reasons), _) => {
                    self.update(|record| record.pauses = reasons.clone())
                }
                (Action::Stop, Some(vm)) => vm.stop().map_err(NodeError::from),
                (Action::Continue, Some(vm)) => vm.cont().map_err(NodeError::from),
                // there is no QEMU to tell
                (Action::Stop | Action::Continue, None) => Ok(()),
            };
            if let Err(error) = done {
                standing.withdraw(event);
                return Err(error);
            }
            standing.done(&action);
        }
        Ok(())
    }

    /// Changes the record of a machine whose QEMU has ended or is replaced by another, and removes all reasons for a pause.
    pub(crate) fn update_anew(&self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        let mut standing = self.standing.lock();
        self.update(|record| {
            record.pauses.clear();
            change(record);
        })?;
        standing.handle(Event::Ended);
        Ok(())
    }

    /// Prepares for work that stops a running guest and lets it go on by itself. The record is written here, before the pause
    /// begins.
    pub(crate) fn pausing(
        &self,
        vm: &Machine,
        reason: PauseReason,
    ) -> Result<Paused<'_>, NodeError> {
        let runs = vm.status()? == Status::Running;
        if runs {
            self.stand(Some(vm), Event::BeginsItself(reason))?;
        }
        Ok(Paused {
            entry: self,
            reason: runs.then_some(reason),
            stands: None,
        })
    }
}

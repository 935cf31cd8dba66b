//! Carries out what `decide` says: reasons to the machine's record, words to its QEMU.
//!
//! Every pause goes through [`Entry::stand`]. A reason that was not taken out in time, because the node was killed or the disk is full,
//! does no harm: the next node lets a machine go on whose reasons have all ended with the earlier node.

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

/// A pause for work of the node that stops the CPUs by itself. Dropping it ends the reason.
pub(crate) struct Paused<'a> {
    entry: &'a Entry,
    reason: Option<PauseReason>,
    /// To be told to go on; `None` if the work itself has done that.
    stands: Option<Arc<Machine>>,
}

impl Paused<'_> {
    /// The work has left the guest standing: it goes on when this is dropped.
    pub fn stands(mut self, vm: &Arc<Machine>) -> Self {
        self.stands = Some(vm.clone());
        self
    }

    /// The machine has been ended.
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
    /// Takes an event in and does what follows from it, on the disk and in `vm`. After an error the machine stands still for the
    /// reasons that it had before; what could not be done is done with the next event.
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
                // there is no QEMU that could be told
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

    /// Changes the record of a machine whose QEMU has ended, or is another one from now on: no reason for a pause is left.
    pub(crate) fn update_anew(&self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        let mut standing = self.standing.lock();
        self.update(|record| {
            record.pauses.clear();
            change(record);
        })?;
        standing.handle(Event::Ended);
        Ok(())
    }

    /// Prepares work that stops a running guest and lets it go on by itself. The disk is waited for here, not in the pause.
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

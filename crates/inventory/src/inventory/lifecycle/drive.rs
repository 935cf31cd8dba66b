//! Carries out what `decide` returns: writes the machine's record, stops and continues its QEMU, publishes events.
//!
//! Every change of a machine's phase and every pause goes through [`Entry::drive`]. A reason may stay in the record because
//! the node was killed or the disk is full. That does no harm: if all of a machine's reasons ended with the earlier node, the
//! next node lets the machine go on.

use crate::inventory::{
    Entry,
    lifecycle::decide::{Action, Event},
    record::Record,
};
use floe_api::PauseReason;
use floe_ground::{error::NodeError, news::News};
use floe_machine::{Machine, Status};
use std::sync::Arc;

/// Publishes what happened to the machine of this name.
pub type Tell = Arc<dyn Fn(&str, &News) + Send + Sync>;

/// A pause for work of the node that stops the CPUs by itself. Dropping this ends the reason.
pub struct Paused<'a> {
    entry: &'a Entry,
    reason: Option<PauseReason>,
    /// Whether the work has left the guest stopped.
    stands: bool,
}

impl Paused<'_> {
    /// Notes that the work has left the guest stopped: it is told to go on when this is dropped.
    pub fn stands(mut self) -> Self {
        self.stands = true;
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
            true => Event::EndsStill(reason),
            false => Event::Ends(reason),
        };
        if let Err(error) = self.entry.drive(event) {
            tracing::warn!(machine = %self.entry.name, %error, "its record says as before that it stands still");
        }
    }
}

impl Entry {
    /// Takes an event in and carries out what follows from it, on the disk and in QEMU. Returns false if the event does not
    /// fit the machine's life as it is, and nothing was done. After an error a mere wish ([`Event::is_wish`]) is withdrawn; of
    /// what has already happened, the actions that failed are tried again with the next event.
    pub fn drive(&self, event: Event) -> Result<bool, NodeError> {
        self.drive_with(event, |_| ())
    }

    /// Does the same, and changes the machine's record in the same write.
    pub fn drive_with(
        &self,
        event: Event,
        change: impl FnOnce(&mut Record),
    ) -> Result<bool, NodeError> {
        let _driving = self.driving.lock();
        let before = self.life.lock().clone();
        let wish = event.is_wish();
        if !self.life.lock().handle(event) {
            return Ok(false);
        }
        let done = self.carry_out(change);
        if wish && done.is_err() {
            self.life.lock().withdraw(before);
            let _ = self.carry_out(|_| ()); // the error of the first attempt is the one to report
        }
        self.changed.beat();
        done.map(|()| true)
    }

    /// Retries what could not be carried out earlier, such as a record on a full disk.
    pub fn catch_up(&self) -> Result<(), NodeError> {
        let _driving = self.driving.lock();
        self.carry_out(|_| ())
    }

    fn carry_out(&self, change: impl FnOnce(&mut Record)) -> Result<(), NodeError> {
        let mut change = Some(change);
        loop {
            let (action, hangs) = {
                let life = self.life.lock();
                (life.next(), life.hangs())
            };
            let Some(action) = action else {
                break;
            };
            let vm = self.state().vm.clone();
            let done = match (&action, vm) {
                (Action::Record(on_disk), _) => self.write(on_disk, |record| {
                    if let Some(change) = change.take() {
                        change(record);
                    }
                }),
                (Action::Stop, Some(vm)) => self.stop(&vm, hangs),
                (Action::Continue, Some(vm)) => self.go_on(&vm, hangs),
                // there is no QEMU to tell
                (Action::Stop | Action::Continue, None) => Ok(()),
                (Action::Publish(news), _) => {
                    (self.tell)(self.name.as_str(), news);
                    Ok(())
                }
            };
            let mut life = self.life.lock();
            if let Err(error) = done {
                life.failed(&action);
                return Err(error);
            }
            life.done(&action);
        }
        change.map_or(Ok(()), |change| self.update(change))
    }

    /// Tells QEMU to stop the CPUs. One that hangs does so once it can, and is not waited for.
    fn stop(&self, vm: &Machine, hangs: bool) -> Result<(), NodeError> {
        match hangs {
            true => vm.begin_stop()?,
            false => vm.stop()?,
        }
        self.clock_stands();
        Ok(())
    }

    /// Tells it to let them go on, in the same way.
    fn go_on(&self, vm: &Machine, hangs: bool) -> Result<(), NodeError> {
        match hangs {
            true => drop(vm.begin_cont()?),
            false => vm.cont()?,
        }
        self.clock_goes_on();
        Ok(())
    }

    /// Prepares for work that stops a running guest and lets it go on by itself. The record is written here, before the pause
    /// begins.
    pub fn pausing(&self, vm: &Machine, reason: PauseReason) -> Result<Paused<'_>, NodeError> {
        let runs = vm.status()? == Status::Running;
        let begun = runs && self.drive(Event::BeginsItself(reason))?;
        Ok(Paused {
            entry: self,
            reason: begun.then_some(reason),
            stands: false,
        })
    }
}

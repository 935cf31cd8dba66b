//! Why a machine stands still, kept where a later node finds it.
//!
//! A node can be killed at any moment, also while it has stopped a guest for work of its own. So the reason is in the machine's
//! record, on the disk, *before* QEMU is told to stop, and is taken out after QEMU was told to go on. The next node lets a machine
//! go on whose reasons have all ended with the earlier node. A reason that was not taken out in time does no harm: a guest that
//! runs is not changed by being told to.

use crate::{
    Node, buffering::Pauses, error::NodeError, files::load_pauses, machines::Entry,
    record::PauseReason,
};
use floe_api::Happened;
use floe_machine::{Machine, Status};
use std::sync::Arc;

/// A pause for work of the node itself. Dropping it takes the reason out of the record.
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
        if let Some(reason) = self.reason
            && let Err(error) = self.entry.end_pause(self.stands.as_deref(), reason)
        {
            tracing::warn!(machine = %self.entry.name, %error, "its record says that it stands still");
        }
    }
}

impl Entry {
    /// Stops its CPUs for a reason, which is on the disk before that.
    pub(crate) fn pause(&self, vm: &Machine, reason: PauseReason) -> Result<(), NodeError> {
        self.update(|record| _ = record.pauses.insert(reason))?;
        if let Err(error) = vm.stop() {
            self.forget_reason(reason)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// A reason is over: the machine goes on unless there is another one.
    pub(crate) fn end_pause(
        &self,
        vm: Option<&Machine>,
        reason: PauseReason,
    ) -> Result<(), NodeError> {
        let others = self.record().pauses.iter().any(|other| *other != reason);
        if let Some(vm) = vm.filter(|_| !others) {
            vm.cont()?;
        }
        self.forget_reason(reason)
    }

    /// Prepares work that stops a running guest and lets it go on by itself. The disk is waited for here, not in the pause.
    pub(crate) fn pausing(
        &self,
        vm: &Machine,
        reason: PauseReason,
    ) -> Result<Paused<'_>, NodeError> {
        let runs = vm.status()? == Status::Running;
        if runs {
            self.update(|record| _ = record.pauses.insert(reason))?;
        }
        Ok(Paused {
            entry: self,
            reason: runs.then_some(reason),
            stands: None,
        })
    }

    fn forget_reason(&self, reason: PauseReason) -> Result<(), NodeError> {
        self.update(|record| _ = record.pauses.remove(&reason))
    }
}

impl Node {
    /// Lets a machine go on that an earlier node had stopped for work of its own. What the user has stopped stays so.
    pub(crate) fn end_old_pause(&self, entry: &Entry) -> Result<(), NodeError> {
        *entry.pauses.lock() = Pauses::after(load_pauses(&entry.dir));
        let (over, left): (Vec<_>, Vec<_>) = entry
            .record()
            .pauses
            .into_iter()
            .partition(|reason| reason.ends_with_its_node());
        if over.is_empty() {
            return Ok(());
        }
        let vm = entry.vm()?;
        let goes_on = left.is_empty() && vm.status()? == Status::Paused;
        if goes_on {
            vm.cont()?;
        }
        // a full disk must not keep the guest from going on
        if let Err(error) = entry.update(|record| record.pauses = left.into_iter().collect()) {
            tracing::warn!(machine = %entry.name, %error, "its record says that it stands still");
        }
        if goes_on {
            let why = format!("it had been paused for {}", words(&over));
            self.tell(Happened::MachineContinued, entry.name.as_str(), why);
        }
        Ok(())
    }
}

/// Reasons for a person to read.
fn words(reasons: &[PauseReason]) -> String {
    let word = |reason: &PauseReason| match reason {
        PauseReason::User => "the user",
        PauseReason::Buffering => "buffering",
        PauseReason::Orphaned => "want of its parent's node",
        PauseReason::Capture => "a capture or a fork",
        PauseReason::DiskFull => "want of room on the disk",
    };
    reasons.iter().map(word).collect::<Vec<_>>().join(" and ")
}

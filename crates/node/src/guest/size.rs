//! How many CPUs a guest has, which no QEMU knows: some may be offline. It is looked at when its count may have become another without
//! its node's doing:
//!
//! - its guest was reset, and boots with all that there are: QEMU says so, whether an agent is there or not;
//! - its agent begins a conversation, and some CPUs were offline, or a node was killed while it changed the machine's size. So what a
//!   guest has done while no node was there is noted too.

use super::Guests;
use crate::{
    error::NodeError,
    inventory::{Entry, Operation, lifecycle::Task},
    machines::size_words,
};
use floe_api::Happened;
use floe_guest::chores::{Cpus, names};
use floe_machine::Machine;
use std::{sync::Arc, time::Duration};

/// How long a guest's agent may take to count CPUs.
const COUNT_LIMIT: Duration = Duration::from_secs(60);

impl Guests {
    /// Notes that a guest was reset.
    pub(super) fn was_reset(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        self.look(entry, vm, |_, _| Some(u32::MAX));
    }

    /// Has the agent, which has just begun a conversation, count the CPUs.
    pub(super) fn count_cpus(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        self.look(entry, vm, |guests, entry| {
            let counted = guests
                .agents
                .chore::<Cpus>(entry, names::CPUS, &[], COUNT_LIMIT);
            match counted {
                // it may say anything
                Ok(cpus) => Some(cpus.online.max(1)),
                Err(error) => {
                    tracing::info!(machine = %entry.name, %error, "its CPUs are not counted");
                    None
                }
            }
        });
    }

    /// Notes how many CPUs are online by `count`, on a thread, if the record may say something else.
    fn look(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        vm: &Arc<Machine>,
        count: impl FnOnce(&Guests, &Entry) -> Option<u32> + Send + 'static,
    ) {
        let known = |entry: &Entry| {
            let record = entry.record();
            (record.given.cpus, record.resizing)
        };
        let before = known(entry);
        if before == (None, None) {
            return;
        }
        let (guests, entry, vm) = (self.clone(), entry.clone(), vm.clone());
        let name = entry.name.to_string();
        let look = move || {
            let Some(online) = count(&guests, &entry) else {
                return;
            };
            let over = guests.core.threads.over();
            let Some(operation) = entry.begin_when_free(Task::Look, over) else {
                return;
            };
            let is_its = operation.vm().is_ok_and(|now| Arc::ptr_eq(&now, &vm));
            // whoever has changed it meanwhile knows better
            if !is_its || known(&operation) != before {
                return;
            }
            if let Err(error) = guests.note_cpus(&operation, online) {
                tracing::warn!(machine = %entry.name, %error, "its record may not say how many CPUs it has");
            }
        };
        if let Err(error) = self.core.threads.start("guest-size", look) {
            tracing::error!(machine = name, %error, "no thread to look at its size");
        }
    }

    fn note_cpus(&self, operation: &Operation, online: u32) -> Result<(), NodeError> {
        let had = self.machines.settle_cpus(operation, online)?;
        let has = operation.record().size();
        if has != had {
            let told = format!("{}; it had {}", size_words(has), size_words(had));
            self.core
                .tell(Happened::MachineResized, operation.name.as_str(), told);
        }
        Ok(())
    }
}

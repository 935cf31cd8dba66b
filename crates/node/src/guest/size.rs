//! How many CPUs a guest has online and how much memory it uses, which QEMU does not know. The node looks when that may have changed
//! without its doing:
//!
//! - its guest was reset: QEMU says so, whether an agent is there or not. It boots with all CPUs that there are, and may leave memory
//!   offline that was added to the machine, which its balloon must not take from the rest then;
//! - its agent begins a conversation, and some CPUs were offline, or a node was killed while it changed the machine's size. So what a
//!   guest has done while no node was there is noted too. It then brings memory into use that was added to the machine.

use super::Guests;
use floe_ground::{error::NodeError, news::News};
use floe_guest::chores::{Cpus, Memory, names};
use floe_inventory::inventory::{Entry, Operation, given, lifecycle::Task, record::Resizing};
use floe_machine::Machine;
use floe_machines::machines::size_words;
use std::{sync::Arc, time::Duration};

/// How long a guest's agent may take to count CPUs, and to bring memory online.
const COUNT_LIMIT: Duration = Duration::from_secs(60);

/// Finds out how many CPUs are online in a guest that was reset, or whose size was being changed.
fn cpus_known(entry: &Entry) -> (Option<u32>, Option<Resizing>) {
    let record = entry.record();
    (record.given.cpus, record.resizing)
}

impl Guests {
    /// Notes that a guest was reset.
    pub(super) fn was_reset(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        // at once, before its kernel loads the balloon's driver
        let added = given::added(&vm.config());
        if let Err(error) = self.machines.settle_unused(entry, vm, added) {
            tracing::warn!(machine = %entry.name, %error, "its balloon may take memory that its guest uses");
        }
        self.look_at_cpus(entry, vm, |_, _| Some(u32::MAX));
    }

    /// Has the agent, which has just begun a conversation, count the CPUs and bring all memory into use.
    pub(super) fn look_at_size(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        self.look_at_cpus(entry, vm, |guests, entry| {
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
        if given::added(&vm.config()) > 0 {
            self.use_memory(entry, vm);
        }
    }

    /// Notes how many CPUs are online by `count`, on a thread, if the record may say something else.
    fn look_at_cpus(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        vm: &Arc<Machine>,
        count: impl FnOnce(&Guests, &Entry) -> Option<u32> + Send + 'static,
    ) {
        let before = cpus_known(entry);
        if before == (None, None) {
            return;
        }
        self.look(entry, vm, count, move |guests, operation, online| {
            // whoever has changed it meanwhile knows better
            match cpus_known(operation) == before {
                true => guests.note_cpus(operation, online),
                false => Ok(()),
            }
        });
    }

    /// Has the agent bring all memory online, on a thread, and notes what is left.
    fn use_memory(self: &Arc<Self>, entry: &Arc<Entry>, vm: &Arc<Machine>) {
        let (its, resets) = (vm.clone(), vm.resets());
        let bring = |guests: &Guests, entry: &Entry| {
            let brought = guests
                .agents
                .chore::<Memory>(entry, names::MEMORY, &[], COUNT_LIMIT);
            let is_known = entry.record().given.unused.is_none();
            match brought {
                // as it mostly is
                Ok(memory) if memory.offline_bytes == 0 && is_known => None,
                Ok(memory) => Some(memory),
                Err(error) => {
                    tracing::info!(machine = %entry.name, %error, "its memory is not brought into use");
                    None
                }
            }
        };
        self.look(entry, vm, bring, move |guests, operation, memory| {
            // one that was reset meanwhile says it anew
            match its.resets() == resets {
                true => guests.note_memory(operation, &its, &memory),
                false => Ok(()),
            }
        });
    }

    /// Asks a guest something on a thread, and notes the answer once nothing else is done with its machine, unless that has another QEMU
    /// by then.
    fn look<T: Send + 'static>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        vm: &Arc<Machine>,
        ask: impl FnOnce(&Guests, &Entry) -> Option<T> + Send + 'static,
        note: impl FnOnce(&Guests, &Operation, T) -> Result<(), NodeError> + Send + 'static,
    ) {
        let (guests, entry, vm) = (self.clone(), entry.clone(), vm.clone());
        let name = entry.name.to_string();
        let look = move || {
            let Some(answer) = ask(&guests, &entry) else {
                return;
            };
            let over = guests.core.threads.over();
            let Some(operation) = entry.begin_when_free(Task::Look, over) else {
                return;
            };
            if !operation.vm().is_ok_and(|now| Arc::ptr_eq(&now, &vm)) {
                return;
            }
            if let Err(error) = note(&guests, &operation, answer) {
                tracing::warn!(machine = %entry.name, %error, "its record may not say what its guest has");
            }
        };
        if let Err(error) = self.core.threads.start("guest-size", look) {
            tracing::error!(machine = name, %error, "no thread to look at its size");
        }
    }

    fn note_memory(
        &self,
        operation: &Operation,
        vm: &Machine,
        memory: &Memory,
    ) -> Result<(), NodeError> {
        let unused = || operation.record().given.unused_bytes();
        let had = unused();
        self.machines
            .settle_unused(operation, vm, memory.offline_bytes)?;
        let has = unused();
        if has != had {
            self.core.tell(operation.name.as_str(), &News::Unused(has));
        }
        Ok(())
    }

    fn note_cpus(&self, operation: &Operation, online: u32) -> Result<(), NodeError> {
        let had = self.machines.settle_cpus(operation, online)?;
        let has = operation.record().size();
        if has != had {
            let (has, had) = (size_words(has), size_words(had));
            let news = News::Resized { has, had };
            self.core.tell(operation.name.as_str(), &news);
        }
        Ok(())
    }
}

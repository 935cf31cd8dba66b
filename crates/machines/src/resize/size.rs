//! Brings a running machine to other numbers of CPUs and bytes of memory.
//!
//! ```text
//! up:    the ledger grants it -> what was taken comes back -> hardware is added -> the guest takes it into use
//! down:  the guest gives it -> the record and the ledger say so
//! ```
//! What a guest does not do is no error of the call: the report says what is short. What was begun is never undone behind the
//! guest's back, with one exception: a guest that can't give memory is not pressed for it any further.

use super::{
    RECEPTION_LIMIT, Resizes,
    balloon::{Balloon, Next},
};
use crate::agents::ChoreError;
use floe_api::{ApiError, size_text};
use floe_ground::{
    error::{NodeError, refused},
    report::Report,
};
use floe_guest::chores::{Cpus, Memory, Refused, names};
use floe_inventory::inventory::{Operation, given::Unused};
use floe_machine::{MEMORY_STEP_BYTES, Machine, Reception};
use std::time::{Duration, Instant};

/// How long a guest's agent may take to bring CPUs or memory online.
const CHORE_LIMIT: Duration = Duration::from_secs(60);
/// How often a balloon is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a guest gets to take back what it keeps after a balloon has failed.
const BACK_OFF_LIMIT: Duration = Duration::from_secs(5);

/// What of a change a guest has not done.
pub(super) type Short = Vec<ApiError>;

impl Resizes {
    /// Brings a running machine to so many CPUs. Returns how many are online in its guest, if that is known.
    pub(super) fn bring_cpus(
        &self,
        operation: &Operation,
        vm: &Machine,
        (has, wanted): (u32, u32),
        short: &mut Short,
    ) -> Result<Option<u32>, NodeError> {
        let there = vm.room().cpus;
        let mut added = Vec::new();
        if wanted > there {
            added = vm.add_cpus(wanted - there)?;
            self.machines.settle_size(operation, Some(has))?;
        }
        let taken = receptions(vm, &added)?;
        let count = wanted.to_string();
        let name = operation.name.as_str();
        let online = match self
            .agents
            .chore(operation, names::CPUS, &[&count], CHORE_LIMIT)
        {
            Ok(cpus) => {
                let cpus: Cpus = cpus;
                if cpus.online != wanted {
                    short.push(short_of_cpus(name, wanted, &cpus));
                }
                // it may say anything
                Some(cpus.online.clamp(1, vm.room().cpus))
            }
            // without an agent, what the guest has taken is all that is known
            Err(ChoreError::Agent(_)) if wanted > there && taken == added.len() => Some(wanted),
            Err(error) => {
                short.push(error.of(name).to_api());
                None
            }
        };
        Ok(online.or(Some(has)))
    }

    /// Brings a running machine to so many bytes of memory. While its guest does not use all that it has, so much less is in its balloon.
    pub(super) fn bring_memory(
        &self,
        operation: &Operation,
        vm: &Machine,
        (has, wanted): (u64, u64),
        report: &mut Report,
        short: &mut Short,
    ) -> Result<(), NodeError> {
        let name = operation.name.as_str();
        let there = vm.room().memory_bytes;
        let outside = |all| Unused::outside(operation.record().given.unused_bytes(), wanted, all);
        if wanted > has && has < there {
            self.balloon(name, vm, outside(there), report, short)?;
        }
        if wanted > there {
            let bytes = block_of(there, wanted);
            let id = vm.add_memory(bytes)?;
            self.machines.settle_size(operation, None)?;
            // what the balloon goes to once all is in use
            self.machines.settle_then(operation, wanted)?;
            self.use_memory(operation, vm, (id.as_str(), bytes), short)?;
        }
        let to_be = outside(vm.room().memory_bytes);
        if to_be < vm.memory_given()? {
            self.balloon(name, vm, to_be, report, short)?;
        }
        if operation.record().given.unused_bytes() > 0 {
            // a guest that gave less keeps it; one that is about to get more back, since it began anew, gets this
            let more = vm.memory_given()?.saturating_sub(to_be);
            if more == 0 && vm.has_balloon() {
                vm.ask_for_memory(to_be)?;
            }
            let then_bytes = wanted.saturating_add(more);
            self.machines.settle_then(operation, then_bytes)?;
        }
        Ok(())
    }

    /// Has a guest take a block of memory into use that was just added.
    fn use_memory(
        &self,
        operation: &Operation,
        vm: &Machine,
        (id, bytes): (&str, u64),
        short: &mut Short,
    ) -> Result<(), NodeError> {
        let name = operation.name.as_str();
        let reception = vm.reception(id, RECEPTION_LIMIT)?;
        if let Reception::Silent | Reception::Refused(_) = reception {
            let unused = operation.record().given.unused_bytes();
            self.machines
                .settle_unused(operation, vm, unused.saturating_add(bytes))?;
            short.push(short_error(
                format!("the guest of {name} has not taken the memory that was added ({reception:?})"),
                format!(
                    "its kernel needs ACPI memory hot-plug (CONFIG_ACPI_HOTPLUG_MEMORY); with that it takes it at its next start: \
                     floe restart {name}"
                ),
            ));
            return Ok(());
        }
        self.use_all(operation, vm, short)
    }

    /// Has a guest take all of its memory into use.
    pub(super) fn use_all(
        &self,
        operation: &Operation,
        vm: &Machine,
        short: &mut Short,
    ) -> Result<(), NodeError> {
        let name = operation.name.as_str();
        match self
            .agents
            .chore(operation, names::MEMORY, &[], CHORE_LIMIT)
        {
            Ok(memory) => {
                let memory: Memory = memory;
                self.machines
                    .settle_unused(operation, vm, memory.offline_bytes)?;
                if memory.offline_bytes > 0 {
                    short.push(short_error(
                        format!(
                            "{} of the memory of {name} are not in use{}",
                            size_text(memory.offline_bytes),
                            because(&memory.refused)
                        ),
                        "in the guest: echo online >/sys/devices/system/memory/memoryN/state",
                    ));
                }
            }
            // most kernels take new memory into use by themselves, or have udev do it
            Err(ChoreError::Agent(_)) => report_unknown(name, short),
            Err(error) => short.push(error.of(name).to_api()),
        }
        Ok(())
    }

    /// Has a guest give memory or take it back, until it has so many bytes or comes no further.
    fn balloon(
        &self,
        name: &str,
        vm: &Machine,
        wanted: u64,
        report: &mut Report,
        short: &mut Short,
    ) -> Result<(), NodeError> {
        let began = Instant::now();
        let now_ms = || began.elapsed().as_millis() as u64;
        let had = vm.memory_given()?;
        vm.ask_for_memory(wanted)?;
        let mut balloon = Balloon::new(now_ms(), had, wanted);
        loop {
            let has = vm.memory_given()?;
            report.progress("memory", has.abs_diff(had), wanted.abs_diff(had), "bytes");
            match balloon.sees(now_ms(), has) {
                Next::Reached => return Ok(()),
                Next::Wait => {}
                Next::BackOff(keep) => {
                    back_off(vm, keep)?;
                    let reached = vm.memory_given()?;
                    short.push(short_error(
                        format!(
                            "the guest of {name} reached {} of {}: it gives no more of its memory",
                            size_text(reached),
                            size_text(wanted)
                        ),
                        "end programs in it, or ask for less",
                    ));
                    return Ok(());
                }
            }
            if report.check().is_err() {
                back_off(vm, had)?;
                return Err(NodeError::Cancelled);
            }
            if vm.wait_end(LOOK_EVERY) {
                return Err(refused(
                    format!("machine {name} has ended meanwhile"),
                    format!("floe start {name}"),
                ));
            }
        }
    }

    /// Returns an error if the guest can't be asked to give memory.
    pub(super) fn check_balloon(&self, name: &str, vm: &Machine) -> Result<(), NodeError> {
        if vm.balloon_is_driven()? {
            return Ok(());
        }
        let what = match vm.has_balloon() {
            true => "has no driver for its balloon, or has not loaded it yet",
            false => "has no balloon",
        };
        Err(refused(
            format!("the guest of {name} can't give memory back: it {what}"),
            format!(
                "Linux has the driver as virtio_balloon (modprobe virtio_balloon), Windows in the virtio-win package; or floe stop {name}, \
                 resize it, and floe start {name}"
            ),
        ))
    }
}

/// Asks a guest to have so many bytes, and waits a moment for that.
fn back_off(vm: &Machine, keep: u64) -> Result<(), NodeError> {
    vm.ask_for_memory(keep)?;
    let until = Instant::now() + BACK_OFF_LIMIT;
    while vm.memory_given()? < keep && Instant::now() < until && !vm.wait_end(LOOK_EVERY) {}
    Ok(())
}

/// Returns how many of the vCPUs that were added the guest has taken.
fn receptions(vm: &Machine, added: &[String]) -> Result<usize, NodeError> {
    let until = Instant::now() + RECEPTION_LIMIT;
    let mut taken = 0;
    for id in added {
        let left = until.saturating_duration_since(Instant::now());
        if vm.reception(id, left)? == Reception::Taken {
            taken += 1;
        }
    }
    Ok(taken)
}

/// Returns the size of the block with which a machine has at least so many bytes: guests take memory in steps only. What is too
/// much of it goes into the balloon.
pub(super) fn block_of(there: u64, wanted: u64) -> u64 {
    let block = wanted.saturating_sub(there);
    // what is more than any host has is refused as that
    block
        .checked_next_multiple_of(MEMORY_STEP_BYTES)
        .unwrap_or(u64::MAX)
}

fn short_error(message: String, fix: impl Into<String>) -> ApiError {
    refused(message, fix).to_api()
}

fn short_of_cpus(name: &str, wanted: u32, cpus: &Cpus) -> ApiError {
    let message = format!(
        "the guest of {name} has {} of {wanted} CPUs online{}",
        cpus.online,
        because(&cpus.refused)
    );
    let fix = match cpus.present < wanted {
        true => format!(
            "its kernel knows {} CPUs only: Linux 6.9 and newer takes further ones only under KVM; floe restart {name} gives it all",
            cpus.present
        ),
        false => "see its kernel's messages (dmesg)".to_owned(),
    };
    short_error(message, fix)
}

/// Says what the guest's kernel refused, and why.
fn because(refused: &[Refused]) -> String {
    match refused.first() {
        None => String::new(),
        Some(first) => {
            let more = match refused.len() {
                1 => String::new(),
                count => format!(", and {} more", count - 1),
            };
            format!(" ({}: {}{more})", first.what, first.why)
        }
    }
}

fn report_unknown(name: &str, short: &mut Short) {
    short.push(short_error(
        format!("the guest of {name} was given the memory; whether it uses it is not known, since no agent answers in it"),
        format!("floe agent install {name}; or look in it: grep MemTotal /proc/meminfo"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_whole_steps_and_no_size_is_too_large_to_be_refused() {
        let gib = 1 << 30;
        assert_eq!(block_of(gib, gib), 0);
        assert_eq!(block_of(gib, gib + 1), MEMORY_STEP_BYTES);
        assert_eq!(block_of(gib, gib + MEMORY_STEP_BYTES), MEMORY_STEP_BYTES);
        assert_eq!(block_of(0, u64::MAX), u64::MAX);
        assert_eq!(block_of(gib, 0), 0);
    }
}

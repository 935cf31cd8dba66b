//! What is noted of a running machine's size: its record, the ledger and its limits follow what its guest has.

use crate::machines::Machines;
use floe_api::{Limits, Size, size_text};
use floe_ground::error::NodeError;
use floe_inventory::inventory::{
    Entry, Operation,
    given::{Given, Unused},
    record::{Record, Resizing},
};
use floe_machine::Machine;

impl Machines {
    /// Notes in a running machine's record, and in the ledger, what hardware it has and what its guest has of that. `cpus`: how many of
    /// them are online in it, if that is known.
    pub(crate) fn settle_size(&self, entry: &Entry, cpus: Option<u32>) -> Result<(), NodeError> {
        let outside = entry.vm()?.memory_given()?;
        self.settle(entry, cpus, outside)
    }

    /// The same for so many bytes that are not in the guest's balloon.
    fn settle(&self, entry: &Entry, cpus: Option<u32>, outside: u64) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        let config = vm.config();
        let before = entry.record();
        // while it does not use all, its balloon has less than it is to have
        let memory_bytes = match before.given.unused {
            Some(unused) => outside.min(unused.then_bytes),
            None => outside,
        };
        let has = Size {
            cpus: cpus.or(before.given.cpus).unwrap_or(u32::MAX),
            memory_bytes,
        };
        let given = Given::new(&config, has);
        let settled = entry.update(|record| {
            record.config = config;
            record.given = Given {
                unused: record.given.unused,
                ..given
            };
        });
        let record = entry.record();
        let network = self.network_bytes_per_s(&record);
        self.resources
            .resized(&record, vm.own_added_bytes(), network);
        settled?;
        // a guest may let a disk go long after it was asked to
        self.drop_lost_disks(entry)
    }

    /// Notes that a running machine's guest does not use so many bytes of memory of those that were added to the machine. Its balloon takes
    /// from what is left only what is beyond that: a guest is never pressed for memory that it does not have.
    pub fn settle_unused(&self, entry: &Entry, vm: &Machine, bytes: u64) -> Result<(), NodeError> {
        let config = vm.config();
        let had = entry.record().given;
        let given = had.without(&config, bytes);
        if given == had {
            return Ok(());
        }
        entry.update(|record| record.given.unused = given.unused)?;
        let unused = given.unused.or(had.unused);
        if let Some(unused) = unused.filter(|_| vm.has_balloon()) {
            let all = config.memory_bytes_now().unwrap_or_default();
            let outside = Unused::outside(given.unused_bytes(), unused.then_bytes, all);
            vm.ask_for_memory(outside)?;
        }
        Ok(())
    }

    /// Notes how much memory a machine's guest is to have once it uses all of it, if it does not yet.
    pub(crate) fn settle_then(&self, entry: &Entry, then_bytes: u64) -> Result<(), NodeError> {
        entry.update(|record| {
            if let Some(unused) = &mut record.given.unused {
                unused.then_bytes = then_bytes;
            }
        })
    }

    /// Changes a machine's limits with its size: processor time in proportion, memory by as much as it has more or less than before. The
    /// limit of memory never falls below what its guest has, since its QEMU needs that. `changing`: its size may still change, so that what
    /// it had before stays in its record. Limits that its guest may share with clones stay as they are, because each clone could make them
    /// grow.
    pub(crate) fn limits_follow(
        &self,
        operation: &Operation,
        before: Resizing,
        after: Size,
        changing: bool,
    ) -> Result<(), NodeError> {
        let _held = self.limiting.lock();
        let limits = self.limits_for(&operation.record(), before, after);
        self.limit_household(operation, limits, |now| {
            now.resizing = changing.then_some(before);
        })
    }

    /// Returns the limits of a machine that is to have another size than before.
    pub fn limits_for(&self, record: &Record, before: Resizing, after: Size) -> Limits {
        let alone = self.household(record.household_id()).len() == 1;
        match alone && !record.household.joined && record.limits.clones.is_none() {
            true => following(before.limits, before.size, after),
            false => record.limits,
        }
    }

    /// Notes what a machine has that an earlier node left. If that node was killed while it changed the machine's size, the size that was
    /// reached is kept.
    pub fn settle_left_size(&self, operation: &Operation) -> Result<(), NodeError> {
        let left = operation.record().resizing;
        let vm = operation.vm()?;
        let outside = vm.memory_given()?;
        if left.is_some() && vm.has_balloon() {
            // a guest that is giving gives more before it hears this, and takes that back: what it was asked for is what it will have
            vm.ask_for_memory(outside)?;
        }
        self.settle(operation, None, outside)?;
        // how many CPUs are online its agent says, if it has one
        left.map_or(Ok(()), |before| {
            self.limits_follow(operation, before, operation.record().size(), true)
        })
    }

    /// Notes that so many CPUs are online in a machine's guest; its limits follow. Returns what it had by its record.
    pub fn settle_cpus(&self, operation: &Operation, online: u32) -> Result<Size, NodeError> {
        let record = operation.record();
        let had = record.size();
        let before = record.resizing.unwrap_or(Resizing {
            limits: record.limits,
            size: had,
        });
        // of memory it is not known that it has changed, and its balloon may be on its way: after a reset, or after a resize that was cut off
        self.settle(operation, Some(online), had.memory_bytes)?;
        self.limits_follow(operation, before, operation.record().size(), false)?;
        Ok(had)
    }
}

/// Returns the limits of a machine that gets another size.
fn following(limits: Limits, before: Size, after: Size) -> Limits {
    let memory = limits.memory_max_bytes.map(|max| {
        let grown = after.memory_bytes.saturating_sub(before.memory_bytes);
        let shrunk = before.memory_bytes.saturating_sub(after.memory_bytes);
        let least = after
            .memory_bytes
            .saturating_add(floe_ground::options::STANDBY_BYTES);
        match shrunk {
            0 => max.saturating_add(grown),
            shrunk => max.min(max.saturating_sub(shrunk).max(least)),
        }
    });
    let cpus = limits.cpu_millicores.map(|millicores| {
        let scaled = u64::from(millicores) * u64::from(after.cpus) / u64::from(before.cpus.max(1));
        u32::try_from(scaled)
            .unwrap_or(u32::MAX)
            .clamp(floe_api::CPU_MILLICORES_MIN, floe_api::CPU_MILLICORES_MAX)
    });
    Limits {
        cpu_millicores: cpus,
        memory_max_bytes: memory,
        ..limits
    }
}

/// Says a size in words.
pub fn size_words(size: Size) -> String {
    let cpus = match size.cpus {
        1 => "1 CPU".to_owned(),
        cpus => format!("{cpus} CPUs"),
    };
    format!("{cpus} and {} of memory", size_text(size.memory_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_a_machines_size_and_never_fall_below_what_it_needs() {
        let size = |cpus, mib: u64| Size {
            cpus,
            memory_bytes: mib << 20,
        };
        let limits = |millicores, mib: u64| Limits {
            cpu_millicores: Some(millicores),
            memory_max_bytes: Some(mib << 20),
            ..Default::default()
        };
        let none = Limits::default();
        assert_eq!(following(none, size(1, 256), size(4, 1024)), none);
        let grown = following(limits(500, 512), size(1, 256), size(4, 1024));
        assert_eq!(grown, limits(2000, 512 + 768));
        assert_eq!(
            following(grown, size(4, 1024), size(1, 256)),
            limits(500, 512)
        );
        // one that is tight already is not made tighter
        let tight = following(limits(500, 300), size(1, 1024), size(1, 512));
        assert_eq!(tight, limits(500, 300));
    }
}

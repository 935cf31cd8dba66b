//! Changes how much of this host's resources the machines of a household may use, how long one may idle before it is parked, and whether
//! its guest is asked by itself to give back what it deletes.
//!
//! The record of each machine of a household has its limits. If they differ, that of its first machine counts, which is written first.

use super::Machines;
use floe_api::{LimitRequest, Limits, MachineInfo, PARK_AFTER_S_MAX, PARK_AFTER_S_MIN};
use floe_ground::{
    error::{NodeError, usage},
    io,
};
use floe_inventory::inventory::{Entry, Operation, lifecycle::Task, record::Record};
use std::sync::Arc;

impl Machines {
    /// Changes how much of this host's resources a machine and those that share its limits may use, at once and for all later starts.
    pub fn limit_machine(
        &self,
        name: &str,
        request: &LimitRequest,
    ) -> Result<MachineInfo, NodeError> {
        let entry = self.inventory.get(name)?;
        let asked = |record: &Record| -> Result<(Limits, Option<u64>), NodeError> {
            let limits = changed(record.limits, request);
            let mut park_after_s = record.park_after_s;
            change(&mut park_after_s, request.park_after_s);
            check_park_after(park_after_s)?;
            self.resources.check_limits(&limits)?;
            Ok((limits, park_after_s))
        };
        // what can't be is refused for that, whatever else is under way
        asked(&entry.record())?;
        let operation = entry.begin(Task::Limit)?;
        // not before that: what is under way may be waiting for it
        let _held = self.limiting.lock();
        let (limits, park_after_s) = asked(&operation.record())?;
        self.limit_household(&operation, limits, |record| {
            record.park_after_s = park_after_s;
            record.no_trim = request.trim.map_or(record.no_trim, |trim| !trim);
        })?;
        Ok(self.info_of(&operation))
    }

    /// Sets the limits of the household of a machine, with another change of that machine's record. The caller holds `limiting`.
    pub(super) fn limit_household(
        &self,
        operation: &Operation,
        limits: Limits,
        change: impl Fn(&mut Record),
    ) -> Result<(), NodeError> {
        let before = operation.record();
        let members = self.household(before.household_id());
        let of_group = |limits: &Limits| {
            let of_process = (limits.cpu_millicores, limits.memory_max_bytes);
            (of_process, limits.clones)
        };
        let mut running = members.iter().filter(|member| member.state().vm.is_some());
        if of_group(&limits) != of_group(&before.limits)
            && let Some(member) = running.next()
        {
            self.resources.limit(&Record {
                limits,
                ..Record::clone(&member.record())
            })?;
        }
        for member in &members {
            limit_disks(member, &limits);
            member.update(|record| {
                record.limits = limits;
                if Arc::ptr_eq(member, &operation.entry) {
                    change(record);
                }
            })?;
        }
        Ok(())
    }

    /// Returns the machines of a household on this host, the first of them first: the one that a user made, as long as it is there.
    pub fn household(&self, id: &str) -> Vec<Arc<Entry>> {
        let mut members = self.inventory.all();
        members.retain(|entry| entry.state().record.household_id() == id);
        members.sort_by_cached_key(|entry| {
            let record = entry.record();
            let name = record.name.clone();
            (record.household.joined, record.created_unix_s, name)
        });
        members
    }

    /// Makes the records of all machines that share limits agree with that of the first of them: an earlier node may have been killed while
    /// it changed them.
    pub fn settle_limits(&self) {
        for entry in self.inventory.all() {
            let record = entry.record();
            let joined = record.household.joined.then(|| record.household_id());
            let Some(first) = joined.and_then(|id| self.household(id).into_iter().next()) else {
                continue;
            };
            let limits = first.record().limits;
            if limits == record.limits {
                continue;
            }
            limit_disks(&entry, &limits);
            if let Err(error) = entry.update(|record| record.limits = limits) {
                tracing::warn!(machine = %entry.name, %error, "its record has other limits than it");
            }
        }
    }
}

/// Replaces a value if there is a new one. 0 removes it.
fn change<T: Default + PartialEq>(old: &mut Option<T>, new: Option<T>) {
    if new.is_some() {
        *old = new.filter(|new| *new != T::default());
    }
}

/// Returns limits as a request changes them.
fn changed(mut limits: Limits, request: &LimitRequest) -> Limits {
    change(&mut limits.cpu_millicores, request.cpu_millicores);
    change(&mut limits.io_weight, request.io_weight);
    change(&mut limits.io_cap_percent, request.io_cap_percent);
    change(&mut limits.io_timeout_s, request.io_timeout_s);
    change(&mut limits.clones, request.clones);
    change(&mut limits.memory_max_bytes, request.memory_max_bytes);
    limits
}

/// Sets what a machine's disks may have of the host's, and how long its requests wait.
fn limit_disks(entry: &Entry, limits: &Limits) {
    let disks = entry.state().disks.clone();
    if let Some(disks) = disks {
        disks.limit_io(entry.record().shares_disk_as(), io::limit(limits));
        disks.limit_waits(io::waits_max(limits));
    }
}

/// Refuses a time of idleness after which nothing sensible could be parked.
pub fn check_park_after(after_s: Option<u64>) -> Result<(), NodeError> {
    match after_s {
        None | Some(PARK_AFTER_S_MIN..=PARK_AFTER_S_MAX) => Ok(()),
        Some(s) => Err(usage(
            format!("a machine can't be parked after {s} s of idleness"),
            format!(
                "give between {PARK_AFTER_S_MIN} s and {} days",
                PARK_AFTER_S_MAX / 86_400
            ),
        )),
    }
}

//! The most that machines may use, enforced by the control group of their household. Without groups (the node is not root, or the hierarchy
//! cannot be written) machines run but cannot be limited; that is logged once and shown by `floe doctor`.

use super::{Resources, household};
use crate::inventory::record::Record;
use floe_api::{
    CLONES_MAX, CPU_MILLICORES_MAX, CPU_MILLICORES_MIN, Limits, MEMORY_MAX_BYTES_MIN, MachineStats,
    paths::Home, size_text,
};
use floe_ground::{
    error::{NodeError, failed, refused, usage},
    io,
};
use floe_image::Hash;
use floe_machine::{
    MEMORY_BYTES_DEFAULT,
    cgroup::{self, Group, OutOfMemory},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How often the removal of a group whose process has ended is tried.
const REMOVALS_MAX: u32 = 20;
/// How long to wait between two tries.
const REMOVAL_AGAIN: Duration = Duration::from_millis(10);

/// The control groups of this node, or why there are none.
pub(super) struct Groups {
    groups: Result<cgroup::Groups, String>,
    /// Groups of an earlier node's machines that had processes in them when this node started.
    old: Vec<Group>,
    /// What is known of households with machines here, or with clones on other hosts. Locked while a group is made, limited or removed, so
    /// that it agrees with the groups.
    households: Mutex<BTreeMap<String, Shared>>,
}

/// What the machines of a household share.
#[derive(Clone, Copy, Default, PartialEq)]
struct Shared {
    /// Its limits on all hosts together; `None` as long as none of its machines has a group here.
    limits: Option<Limits>,
    /// What its clones on other hosts have of them.
    given: Limits,
}

/// Returns what distinguishes this node's groups from others on the host: a hash of its state directory's path.
fn id_of(home: &Home) -> Option<String> {
    let root = home.root().canonicalize().ok()?;
    Some(Hash::of(root.as_os_str().as_encoded_bytes()).short())
}

/// Returns the machines of a state directory that have control groups on this host.
pub fn control_groups(home: &Home) -> Vec<String> {
    let groups = id_of(home).map(|id| cgroup::Groups::of_node(&id).all());
    let groups = groups.unwrap_or_default();
    groups.iter().map(|group| group.name().to_owned()).collect()
}

impl Groups {
    /// Opens the groups of the node with this state directory. Groups of an earlier node without processes are removed.
    pub fn open(home: &Home) -> Groups {
        let groups = id_of(home)
            .ok_or_else(|| format!("{} is not there", home.root().display()))
            .and_then(|id| cgroup::Groups::open(&id));
        let mut old = Vec::new();
        match &groups {
            Ok(groups) => {
                old = groups.all();
                old.retain(|group| group.remove().is_err());
            }
            Err(why) => tracing::warn!(
                why,
                "machines run without control groups and cannot be limited"
            ),
        }
        Groups {
            groups,
            old,
            households: Mutex::default(),
        }
    }

    fn group(&self, record: &Record) -> Option<Group> {
        let groups = self.groups.as_ref().ok()?;
        Some(groups.of(record.household_id(), &record.mount_name))
    }

    /// Changes what is known of a machine's household, and limits the group of it accordingly.
    fn share(
        &self,
        record: &Record,
        group: &Group,
        change: impl FnOnce(&mut Shared),
    ) -> Result<(), NodeError> {
        share(&mut self.households.lock(), record, group, change)
    }
}

/// Changes what is known of a machine's household. If it is something else than before, the group that has the limits of `group` gets
/// what is left of them. Nothing is changed after an error.
fn share(
    households: &mut BTreeMap<String, Shared>,
    record: &Record,
    group: &Group,
    change: impl FnOnce(&mut Shared),
) -> Result<(), NodeError> {
    let known = households.get(record.household_id()).copied();
    let mut shared = known.unwrap_or_default();
    shared.limits.get_or_insert(record.limits);
    change(&mut shared);
    if known == Some(shared) {
        return Ok(());
    }
    let limits = shared.limits.unwrap_or_default();
    let left = household::left(&limits, &shared.given).map_err(|why| {
        refused(
            why,
            "end some of them (floe family, floe kill), or give all of them more (floe limit)",
        )
    })?;
    group.limited().apply(&cgroup::Limits {
        cpu_millicores: left.cpu_millicores,
        memory_max_bytes: left.memory_max_bytes,
    })?;
    households.insert(record.household_id().to_owned(), shared);
    Ok(())
}

impl Resources {
    /// Returns why machines have no control groups, if they have none.
    pub fn why_no_groups(&self) -> Option<String> {
        self.groups.groups.as_ref().err().cloned()
    }

    /// Returns an error for limits that no machine can have here.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), NodeError> {
        io::check(limits)?;
        if let Some(clones) = limits.clones
            && clones > CLONES_MAX
        {
            return Err(usage(
                format!("{clones} clones"),
                format!("a guest can have at most {CLONES_MAX}"),
            ));
        }
        if !limits.bind_process() {
            return Ok(());
        }
        if let Some(why) = self.why_no_groups() {
            return Err(refused(
                format!("this node cannot limit machines: {why}"),
                "run the node as root, on a host whose /sys/fs/cgroup can be written; floe doctor says more",
            ));
        }
        let range = CPU_MILLICORES_MIN..=CPU_MILLICORES_MAX;
        if let Some(millicores) = limits.cpu_millicores
            && !range.contains(&millicores)
        {
            return Err(usage(
                format!("a limit of {millicores} thousandths of a core"),
                format!("use {} to {}", range.start(), range.end()),
            ));
        }
        match limits.memory_max_bytes {
            Some(max) if max < MEMORY_MAX_BYTES_MIN => Err(usage(
                format!("a limit of {max} bytes of memory"),
                format!("QEMU alone needs {}", size_text(MEMORY_MAX_BYTES_MIN)),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the group that a QEMU is to be started in, in that of its household with its limits set.
    pub fn group_of(&self, record: &Record) -> Result<Option<Group>, NodeError> {
        let Ok(groups) = &self.groups.groups else {
            self.check_limits(&record.limits)?;
            return Ok(None);
        };
        let group = {
            let mut households = self.groups.households.lock();
            let group = groups.make(record.household_id(), &record.mount_name)?;
            // its household's limits may be others than its record's by now
            share(&mut households, record, &group, |_| ())?;
            group
        };
        group.bound(memory_bytes(record))?;
        Ok(Some(group))
    }

    /// Sets the limits of a machine whose QEMU runs already.
    pub(super) fn limit_again(&self, record: &Record) {
        let Some(group) = self.groups.group(record) else {
            return;
        };
        // a QEMU that an earlier version of floe started is in no group of its own
        if !group.is_in_use() {
            return;
        }
        if let Err(error) = self.groups.share(record, &group, |_| ()) {
            tracing::warn!(machine = record.name, %error, "its limits are not what its record says");
        }
    }

    /// Bounds the swap of a running machine anew, which has another size.
    pub(super) fn bound_again(&self, record: &Record) {
        if let Some(group) = self.groups.group(record).filter(Group::is_in_use)
            && let Err(error) = group.bound(memory_bytes(record))
        {
            tracing::warn!(machine = record.name, %error, "its control group is bounded as before");
        }
    }

    /// Returns in words that the kernel ended a machine's QEMU to get memory, if it did. For a machine whose group is still there.
    pub fn out_of_memory(&self, record: &Record) -> Option<String> {
        let name = &record.name;
        match self.groups.group(record)?.out_of_memory()? {
            OutOfMemory::Limit => {
                let limit = record.limits.memory_max_bytes.map(size_text);
                let limit = limit.unwrap_or_else(|| "its control group's".into());
                let shared = match record.limits.clones {
                    Some(_) => ", which it shares with the clones that guests made of it",
                    None => "",
                };
                Some(format!(
                    "the kernel ended its QEMU, which needed more than its memory limit of {limit}{shared}; floe limit {name} \
                     --memory-max SIZE raises it"
                ))
            }
            OutOfMemory::Host => Some(
                "the kernel ended its QEMU because the host had no memory left; stop other machines, or give this one less"
                    .into(),
            ),
        }
    }

    /// Removes the group of a machine whose QEMU has ended.
    pub fn remove_group(&self, household: &str, mount_name: &str) {
        let Ok(groups) = &self.groups.groups else {
            return;
        };
        let group = groups.of(household, mount_name);
        let remove = || {
            let mut households = self.groups.households.lock();
            group.remove()?;
            if !groups.household(household).is_there()
                && let Some(shared) = households.get_mut(household)
            {
                shared.limits = None;
                if *shared == Shared::default() {
                    households.remove(household);
                }
            }
            std::io::Result::Ok(())
        };
        let mut removed = remove();
        for _ in 0..REMOVALS_MAX {
            if removed.is_ok() {
                return;
            }
            // the kernel removes a process from its group a moment after it has reported its end, and tells nobody
            std::thread::sleep(REMOVAL_AGAIN);
            removed = remove();
        }
        if let Err(error) = removed {
            tracing::warn!(mount_name, %error, "its control group stays until the next node starts");
        }
    }

    /// Removes groups of an earlier node whose QEMUs have ended since this one started.
    pub fn remove_old_groups(&self) {
        for group in &self.groups.old {
            // a group with processes in it belongs to a machine that was taken over
            if !group.is_in_use() {
                let _ = group.remove();
            }
        }
    }

    /// Removes this node's groups when it ends and no machine runs.
    pub fn close_groups(&self) {
        if let Ok(groups) = &self.groups.groups {
            groups.close();
        }
    }

    /// Adds what a machine's QEMU has used to its statistics.
    pub fn count(&self, record: &Record, stats: &mut MachineStats) {
        if let Some(group) = self.groups.group(record) {
            let used = group.usage();
            stats.cpu_us = used.cpu_us;
            stats.memory_bytes = used.memory_bytes;
        }
    }

    /// Sets the limits of a running machine's household.
    pub fn limit(&self, record: &Record) -> Result<(), NodeError> {
        self.check_limits(&record.limits)?;
        let Some(group) = self.groups.group(record) else {
            return Ok(());
        };
        let shares = record.limits.clones.is_some() && record.limits.bind_process();
        if !group.is_in_use() || (shares && group.limited() == group) {
            return Err(failed(
                format!(
                    "machine {} is in no control group that it could share: an earlier floe started it",
                    record.name
                ),
                format!(
                    "floe stop {} and floe start {} put it into one",
                    record.name, record.name
                ),
            ));
        }
        let limits = |shared: &mut Shared| shared.limits = Some(record.limits);
        self.groups.share(record, &group, limits)
    }

    /// Notes what a household's clones on other hosts have of its limits, by `given`, which is called while nobody else changes that. What
    /// is left is for its machines here, `members`.
    pub fn given_away(
        &self,
        household: &str,
        members: &[Arc<Record>],
        given: impl FnOnce() -> Limits,
    ) -> Result<(), NodeError> {
        let mut households = self.groups.households.lock();
        let group = |record| Some((record, self.groups.group(record)?));
        let mut groups = members.iter().map(|record| &**record).filter_map(group);
        if let Some((record, group)) = groups.find(|(_, group)| group.is_there()) {
            let given = given();
            return share(&mut households, record, &group, |shared| {
                shared.given = given
            });
        }
        let shared = households.entry(household.to_owned()).or_default();
        shared.given = given();
        if *shared == Shared::default() {
            households.remove(household);
        }
        Ok(())
    }
}

/// Returns how much memory a machine has.
fn memory_bytes(record: &Record) -> u64 {
    let config = &record.config;
    config.memory_bytes_now().unwrap_or(MEMORY_BYTES_DEFAULT)
}

//! What machines may take at most: their control groups. Without groups (no root, or a hierarchy that cannot be written) machines run
//! all the same and cannot be limited; that is logged once and stands in `floe doctor`.

use super::Resources;
use crate::{
    error::{NodeError, failed, refused, usage},
    inventory::record::Record,
};
use floe_api::{
    CPU_MILLICORES_MAX, CPU_MILLICORES_MIN, Limits, MEMORY_MAX_BYTES_MIN, MachineStats,
    paths::Home, size_text,
};
use floe_image::Hash;
use floe_machine::cgroup::{self, Group};
use std::time::Duration;

/// How often it is tried again to remove a group whose process has ended.
const REMOVALS_MAX: u32 = 20;
/// How long between two tries.
const REMOVAL_AGAIN: Duration = Duration::from_millis(10);

/// The groups of this node, or why there are none.
pub(super) struct Groups {
    groups: Result<cgroup::Groups, String>,
    /// Of machines of an earlier node, with processes in them when this one started.
    old: Vec<String>,
}

/// What distinguishes a node's groups from those of others on the host: the place of its state directory.
fn id_of(home: &Home) -> Option<String> {
    let root = home.root().canonicalize().ok()?;
    Some(Hash::of(root.as_os_str().as_encoded_bytes()).short())
}

/// The machines of a state directory that have control groups on this host.
pub fn control_groups(home: &Home) -> Vec<String> {
    let groups = id_of(home).map(|id| cgroup::Groups::of_node(&id));
    groups.map_or_else(Vec::new, |groups| groups.machines())
}

impl Groups {
    /// Those of the node with this state directory. What an earlier one left without a process is removed.
    pub fn open(home: &Home) -> Groups {
        let groups = id_of(home)
            .ok_or_else(|| format!("{} is not there", home.root().display()))
            .and_then(|id| cgroup::Groups::open(&id));
        let mut old = Vec::new();
        match &groups {
            Ok(groups) => {
                old = groups.machines();
                old.retain(|name| groups.of(name).remove().is_err());
            }
            Err(why) => tracing::warn!(
                why,
                "machines run without control groups and cannot be limited"
            ),
        }
        Groups { groups, old }
    }

    fn group(&self, mount_name: &str) -> Option<Group> {
        self.groups
            .as_ref()
            .ok()
            .map(|groups| groups.of(mount_name))
    }
}

impl Resources {
    /// Why machines have no control groups, if they have none.
    pub fn why_no_groups(&self) -> Option<String> {
        self.groups.groups.as_ref().err().cloned()
    }

    /// Refuses limits that no machine can have here.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), NodeError> {
        if limits.is_none() {
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

    /// The group that a QEMU is started in, with these limits.
    pub fn group_of(&self, mount_name: &str, limits: &Limits) -> Result<Option<Group>, NodeError> {
        let Ok(groups) = &self.groups.groups else {
            self.check_limits(limits)?;
            return Ok(None);
        };
        let group = groups.make(mount_name)?;
        group.apply(&of_machine(limits))?;
        Ok(Some(group))
    }

    /// Sets the limits of a machine whose QEMU runs already.
    pub(super) fn limit_again(&self, record: &Record) {
        let Some(group) = self.groups.group(&record.mount_name) else {
            return;
        };
        // a QEMU that an earlier floe started is in no group of its own
        if group.is_in_use()
            && let Err(error) = group.apply(&of_machine(&record.limits))
        {
            tracing::warn!(machine = record.name, %error, "its limits are not what its record says");
        }
    }

    /// Removes the group of a machine whose QEMU has ended.
    pub fn remove_group(&self, mount_name: &str) {
        let Some(group) = self.groups.group(mount_name) else {
            return;
        };
        let mut removed = group.remove();
        for _ in 0..REMOVALS_MAX {
            if removed.is_ok() {
                return;
            }
            // the kernel may still be taking a process away that has just ended
            std::thread::sleep(REMOVAL_AGAIN);
            removed = group.remove();
        }
        if let Err(error) = removed {
            tracing::warn!(mount_name, %error, "its control group stays until the next node starts");
        }
    }

    /// Removes groups that QEMUs of an earlier node have left since this one started.
    pub fn remove_old_groups(&self) {
        for name in &self.groups.old {
            let group = self.groups.group(name);
            // one with processes in it is a machine's that was adopted
            group
                .filter(|group| !group.is_in_use())
                .map(|group| group.remove());
        }
    }

    /// The node ends, and no machine runs.
    pub fn close_groups(&self) {
        if let Ok(groups) = &self.groups.groups {
            groups.close();
        }
    }

    /// Enters what a machine's QEMU has taken.
    pub fn count(&self, mount_name: &str, stats: &mut MachineStats) {
        if let Some(group) = self.groups.group(mount_name) {
            let used = group.usage();
            stats.cpu_us = used.cpu_us;
            stats.memory_bytes = used.memory_bytes;
        }
    }

    pub fn limit(&self, record: &Record) -> Result<(), NodeError> {
        self.check_limits(&record.limits)?;
        let Some(group) = self.groups.group(&record.mount_name) else {
            return Ok(());
        };
        if !group.is_in_use() {
            return Err(failed(
                format!(
                    "machine {} is in no control group: an earlier floe started it",
                    record.name
                ),
                format!(
                    "floe stop {} and floe start {} put it into one",
                    record.name, record.name
                ),
            ));
        }
        Ok(group.apply(&of_machine(&record.limits))?)
    }
}

fn of_machine(limits: &Limits) -> cgroup::Limits {
    cgroup::Limits {
        cpu_millicores: limits.cpu_millicores,
        memory_max_bytes: limits.memory_max_bytes,
    }
}

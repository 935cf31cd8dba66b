//! The most that each machine may use, enforced by its control group. Without groups (the node is not root, or the hierarchy
//! cannot be written) machines run but cannot be limited; that is logged once and shown by `floe doctor`.

use super::Resources;
use crate::{
    error::{NodeError, failed, refused, usage},
    inventory::record::Record,
    io,
};
use floe_api::{
    CPU_MILLICORES_MAX, CPU_MILLICORES_MIN, Limits, MEMORY_MAX_BYTES_MIN, MachineStats,
    paths::Home, size_text,
};
use floe_image::Hash;
use floe_machine::cgroup::{self, Group, OutOfMemory};
use std::time::Duration;

/// How often the removal of a group whose process has ended is tried.
const REMOVALS_MAX: u32 = 20;
/// How long to wait between two tries.
const REMOVAL_AGAIN: Duration = Duration::from_millis(10);

/// The control groups of this node, or why there are none.
pub(super) struct Groups {
    groups: Result<cgroup::Groups, String>,
    /// Groups of an earlier node's machines that had processes in them when this node started.
    old: Vec<String>,
}

/// Returns what distinguishes this node's groups from others on the host: a hash of its state directory's path.
fn id_of(home: &Home) -> Option<String> {
    let root = home.root().canonicalize().ok()?;
    Some(Hash::of(root.as_os_str().as_encoded_bytes()).short())
}

/// Returns the machines of a state directory that have control groups on this host.
pub fn control_groups(home: &Home) -> Vec<String> {
    let groups = id_of(home).map(|id| cgroup::Groups::of_node(&id));
    groups.map_or_else(Vec::new, |groups| groups.machines())
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
    /// Returns why machines have no control groups, if they have none.
    pub fn why_no_groups(&self) -> Option<String> {
        self.groups.groups.as_ref().err().cloned()
    }

    /// Returns an error for limits that no machine can have here.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), NodeError> {
        io::check(limits)?;
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

    /// Returns the group that a QEMU is to be started in, with these limits set.
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
        // a QEMU that an earlier version of floe started is in no group of its own
        if group.is_in_use()
            && let Err(error) = group.apply(&of_machine(&record.limits))
        {
            tracing::warn!(machine = record.name, %error, "its limits are not what its record says");
        }
    }

    /// Returns in words that the kernel ended a machine's QEMU to get memory, if it did. For a machine whose group is still there.
    pub fn out_of_memory(&self, record: &Record) -> Option<String> {
        let name = &record.name;
        match self.groups.group(&record.mount_name)?.out_of_memory()? {
            OutOfMemory::Limit => {
                let limit = record.limits.memory_max_bytes.map(size_text);
                let limit = limit.unwrap_or_else(|| "its control group's".into());
                Some(format!(
                    "the kernel ended its QEMU, which needed more than its memory limit of {limit}; floe limit {name} \
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
    pub fn remove_group(&self, mount_name: &str) {
        let Some(group) = self.groups.group(mount_name) else {
            return;
        };
        let mut removed = group.remove();
        for _ in 0..REMOVALS_MAX {
            if removed.is_ok() {
                return;
            }
            // the kernel removes a process from its group a moment after it has reported its end, and tells nobody
            std::thread::sleep(REMOVAL_AGAIN);
            removed = group.remove();
        }
        if let Err(error) = removed {
            tracing::warn!(mount_name, %error, "its control group stays until the next node starts");
        }
    }

    /// Removes groups of an earlier node whose QEMUs have ended since this one started.
    pub fn remove_old_groups(&self) {
        for name in &self.groups.old {
            let group = self.groups.group(name);
            // a group with processes in it belongs to a machine that was taken over
            group
                .filter(|group| !group.is_in_use())
                .map(|group| group.remove());
        }
    }

    /// Removes this node's groups when it ends and no machine runs.
    pub fn close_groups(&self) {
        if let Ok(groups) = &self.groups.groups {
            groups.close();
        }
    }

    /// Adds what a machine's QEMU has used to its statistics.
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

//! A control group for each machine: what its QEMU may take of the host's processor and memory, and what it has taken.
//!
//! The groups of a node are `floe/NODE/MACHINE`, below the root of the hierarchy: of version 2 where the host has that, else of the
//! controllers `cpu`, `cpuacct` and `memory` of version 1. They are not below the node's own group, because there version 2 lets no
//! group have limited groups and processes of its own, and because a machine outlives its node. QEMU enters its group before it
//! becomes QEMU (see [`crate::exec`]), so that nothing of it is ever outside. A group lives until somebody removes it;
//! it is found again by its name.
//!
//! Making groups needs root, and a hierarchy that is mounted for writing.

use std::io;
use std::path::PathBuf;

use cgroups_rs::cgroup::Cgroup;
use cgroups_rs::cpu::CpuController;
use cgroups_rs::cpuacct::CpuAcctController;
use cgroups_rs::hierarchies;
use cgroups_rs::memory::MemController;

use crate::error::MachineError;

/// All groups of all nodes of the host are in this one.
const ROOM: &str = "floe";
/// Controllers that version 2 needs.
const CONTROLLERS_2: [&str; 2] = ["cpu", "memory"];
/// Controllers that version 1 needs: there, time that was taken is counted by one of its own.
const CONTROLLERS_1: [&str; 3] = ["cpu", "cpuacct", "memory"];
/// The time within which a group gets its share of the processor. The kernel's own default.
const PERIOD_US: u64 = 100_000;
/// No limit, in the words of the library.
const UNLIMITED: i64 = -1;

/// What a machine's QEMU may take of its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time, in thousandths of one core: 1500 is one and a half cores. At least 10.
    pub cpu_millicores: Option<u32>,
    /// Memory of the QEMU process: what the guest has touched, and QEMU's own.
    pub memory_max_bytes: Option<u64>,
}

/// What a machine's QEMU has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since its group was made, microseconds.
    pub cpu_us: u64,
    /// Memory that is charged to its group now. Pages of shared files count for whoever touched them first.
    pub memory_bytes: u64,
}

/// The groups of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    path: String,
}

/// The group of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    path: String,
}

impl Groups {
    /// Those of the node with this id, on a host where groups can be made; else why not.
    pub fn open(id: &str) -> Result<Groups, String> {
        let groups = Groups {
            path: format!("{ROOM}/{id}"),
        };
        let cgroup = create(&groups.path).map_err(|error| error.to_string())?;
        // a limit that is only written down would be worse than none
        let probe = groups.make("probe").map_err(|error| error.to_string())?;
        let limits = Limits {
            cpu_millicores: Some(1000),
            memory_max_bytes: Some(1 << 30),
        };
        let tried = probe.apply(&limits);
        probe.remove().map_err(|error| error.to_string())?;
        drop(cgroup);
        tried.map_err(|error| error.to_string())?;
        Ok(groups)
    }

    /// A machine's group, made if it is not there.
    pub fn make(&self, machine: &str) -> Result<Group, MachineError> {
        let group = self.of(machine);
        create(&group.path).map_err(MachineError::io(format!("make control group {}", group.path)))?;
        Ok(group)
    }

    /// A machine's group, whether it is there or not.
    pub fn of(&self, machine: &str) -> Group {
        Group {
            path: format!("{}/{machine}", self.path),
        }
    }

    /// Machines that have a group.
    pub fn machines(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in dirs(&self.path) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Removes what is left of them once no machine has a group.
    pub fn close(&self) {
        for dir in dirs(&self.path).into_iter().chain(dirs(ROOM)) {
            // another node's groups may be in it
            let _ = std::fs::remove_dir(dir);
        }
    }
}

impl Group {
    /// Where a process goes in: it writes its number into these files.
    pub fn entrances(&self) -> Vec<PathBuf> {
        let dirs = dirs(&self.path).into_iter();
        dirs.map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// Sets its limits; those that are `None` are taken away. Memory that is in use already is not taken back by force: a limit
    /// below it is an error.
    pub fn apply(&self, limits: &Limits) -> Result<(), MachineError> {
        let apply = || -> io::Result<()> {
            let cgroup = load(&self.path);
            let cpu: &CpuController = cgroup.controller_of().ok_or_else(|| no("cpu"))?;
            let memory: &MemController = cgroup.controller_of().ok_or_else(|| no("memory"))?;
            if let Some(max) = limits.memory_max_bytes {
                let used = self.usage().memory_bytes;
                if used > max {
                    let text = format!("it uses {} MiB already, more than {} MiB", used >> 20, max >> 20);
                    return Err(io::Error::other(text));
                }
            }
            let quota = limits.cpu_millicores.map_or(UNLIMITED, |millicores| {
                (u64::from(millicores) * PERIOD_US / 1000) as i64
            });
            cpu.set_cfs_quota_and_period(Some(quota), Some(PERIOD_US))
                .map_err(io::Error::other)?;
            let max = limits.memory_max_bytes.map_or(UNLIMITED, |max| {
                i64::try_from(max).unwrap_or(i64::MAX)
            });
            memory.set_limit(max).map_err(io::Error::other)
        };
        apply().map_err(MachineError::io(format!("limit control group {}", self.path)))
    }

    /// What its processes have taken; nothing if it is not there.
    pub fn usage(&self) -> Usage {
        let cgroup = load(&self.path);
        let memory: Option<&MemController> = cgroup.controller_of();
        let accounts: Option<&CpuAcctController> = cgroup.controller_of();
        let cpu: Option<&CpuController> = cgroup.controller_of();
        let cpu_us = match accounts {
            Some(accounts) => accounts.cpuacct().usage / 1000,
            None => cpu.and_then(|cpu| usage_us(&cpu.cpu().stat)).unwrap_or(0),
        };
        Usage {
            cpu_us,
            memory_bytes: memory.map_or(0, |memory| memory.memory_stat().usage_in_bytes),
        }
    }

    /// Whether a process is in it.
    pub fn is_in_use(&self) -> bool {
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        self.entrances().into_iter().any(|path| !read(path).is_empty())
    }

    /// Removes it, once nothing is in it any more; one that is not there is no error.
    pub fn remove(&self) -> io::Result<()> {
        for dir in dirs(&self.path) {
            match std::fs::remove_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn no(controller: &str) -> io::Error {
    io::Error::other(format!("this host has no controller {controller} for control groups"))
}

fn controllers() -> Vec<String> {
    let names: &[&str] = match hierarchies::is_cgroup2_unified_mode() {
        true => &CONTROLLERS_2,
        false => &CONTROLLERS_1,
    };
    names.iter().map(|name| name.to_string()).collect()
}

fn load(path: &str) -> Cgroup {
    Cgroup::load_with_specified_controllers(hierarchies::auto(), path, controllers())
}

/// Makes a group. The library logs some errors instead of returning them, so that it is looked what came of it.
fn create(path: &str) -> io::Result<Cgroup> {
    let wanted = controllers();
    let cgroup = Cgroup::new_with_specified_controllers(hierarchies::auto(), path, Some(wanted.clone()))
        .map_err(io::Error::other)?;
    if !cgroup.v2() {
        let found = cgroup.subsystems().len();
        if found != wanted.len() {
            return Err(no(&wanted.join(", ")));
        }
    }
    let missing = dirs(path).into_iter().find(|dir| !dir.is_dir());
    match missing {
        None => Ok(cgroup),
        Some(dir) => {
            let made = std::fs::create_dir_all(&dir);
            made.map_err(|error| io::Error::other(format!("{}: {error}", dir.display())))?;
            Ok(cgroup)
        }
    }
}

/// The directories that a group is: one in version 2, one for each controller in version 1.
fn dirs(path: &str) -> Vec<PathBuf> {
    let cgroup = load(path);
    let mut dirs: Vec<PathBuf> = cgroup
        .subsystems()
        .iter()
        .map(|subsystem| subsystem.to_controller().path().to_owned())
        .collect();
    // version 1 may have several controllers at one place
    dirs.sort();
    dirs.dedup();
    dirs
}

/// `usage_usec` of version 2's cpu.stat.
fn usage_us(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_taken_is_read_of_version_2() {
        let stat = "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n";
        assert_eq!(usage_us(stat), Some(1234));
        assert_eq!(usage_us("nr_periods 3\n"), None);
    }
}

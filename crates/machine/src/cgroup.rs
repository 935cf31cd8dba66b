//! A control group for each machine: it limits the processor time and memory of the machine's QEMU, and counts what it
//! uses.
//!
//! The groups of a node are `floe/NODE/MACHINE`, below the root of the hierarchy: of version 2 if the host has that,
//! otherwise of the controllers `cpu`, `cpuacct` and `memory` of version 1. They are not below the node's own group,
//! because in version 2 a group can't have both processes and limited groups below it, and because a machine outlives its
//! node. The process enters its group before it executes QEMU (see [`crate::exec`]), so that QEMU is never outside. A
//! group exists until somebody removes it, and is found again by its name.
//!
//! Making groups needs root, and a hierarchy that is mounted writable.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::MachineError;

/// The group that contains all groups of all nodes of the host.
const ROOM: &str = "floe";
/// Controllers that version 2 needs, in the form that enables them for the groups below a group.
const CONTROLLERS_2: &str = "+cpu +memory";
/// How often creating a group is retried if others remove its parents at the same time.
const TRIES: u32 = 100;
/// The period in which a group gets its share of the processor, in microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;

/// Limits of what a machine's QEMU may use of its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time, in thousandths of one core: 1500 is one and a half cores. At least 10.
    pub cpu_millicores: Option<u32>,
    /// Memory of the QEMU process in bytes: what the guest has touched, and QEMU's own.
    pub memory_max_bytes: Option<u64>,
}

/// What a machine's QEMU has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since its group was made, in microseconds.
    pub cpu_us: u64,
    /// Memory that is charged to its group now, in bytes. A page of a shared file is charged to the group that touched it
    /// first.
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

/// The control group hierarchy of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    /// Version 2, with the controllers that are needed; its mount point.
    Two(PathBuf),
    /// Version 1: the root of each controller. Several may be the same directory.
    One {
        cpu: PathBuf,
        cpuacct: PathBuf,
        memory: PathBuf,
    },
}

impl Hierarchy {
    /// Returns this host's hierarchy, which is searched for once; `None` if a controller is missing, or if nobody can tell now:
    /// then it is searched for again.
    fn of_this_host() -> Option<&'static Hierarchy> {
        static FOUND: OnceLock<Option<Hierarchy>> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return found.as_ref();
        }
        let unread = Cell::new(false);
        let read = |path: &Path| match fs::read_to_string(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "control groups are not found");
                unread.set(true);
                String::new()
            }
            text => text.unwrap_or_default(),
        };
        let mounts = read(Path::new("/proc/self/mountinfo"));
        let found = Hierarchy::find(&mounts, |root| read(&root.join("cgroup.controllers")));
        match unread.get() {
            true => None,
            false => FOUND.get_or_init(|| found).as_ref(),
        }
    }

    /// Finds the hierarchy in the text of `/proc/self/mountinfo`. `controllers` returns the text of `cgroup.controllers`
    /// at a root of version 2, which may be mounted beside version 1 and then lacks the controllers that version 1 has. It is
    /// asked of no other mount: on one whose file server hangs, that would never return.
    fn find(mountinfo: &str, controllers: impl Fn(&Path) -> String) -> Option<Hierarchy> {
        let mounts: Vec<(PathBuf, &str, &str)> = mountinfo.lines().filter_map(mount_of).collect();
        let mut all_of_two = mounts.iter().filter(|(_, kind, _)| *kind == "cgroup2");
        let two = all_of_two.find(|(root, ..)| {
            let controllers = controllers(root);
            let has = |name| controllers.split_whitespace().any(|one| one == name);
            has("cpu") && has("memory")
        });
        if let Some((root, ..)) = two {
            return Some(Hierarchy::Two(root.clone()));
        }
        let one = |name: &str| {
            let has = |options: &str| options.split(',').any(|option| option == name);
            let mut mounts = mounts.iter();
            let mount = mounts.find(|(_, kind, options)| *kind == "cgroup" && has(options));
            mount.map(|(root, ..)| root.clone())
        };
        Some(Hierarchy::One {
            cpu: one("cpu")?,
            cpuacct: one("cpuacct")?,
            memory: one("memory")?,
        })
    }

    /// Returns the root directories of the hierarchy, each once.
    fn roots(&self) -> Vec<&PathBuf> {
        let mut roots = match self {
            Hierarchy::Two(root) => vec![root],
            Hierarchy::One {
                cpu,
                cpuacct,
                memory,
            } => vec![cpu, cpuacct, memory],
        };
        roots.sort();
        roots.dedup();
        roots
    }
}

/// Parses a line of mountinfo. Returns the mount point, the type of file system and its own options.
fn mount_of(line: &str) -> Option<(PathBuf, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let mount = left.split(' ').nth(4)?;
    Some((mount.into(), right.next()?, right.nth(1)?))
}

/// Who the kernel ended processes of a group for (see [`Group::out_of_memory`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfMemory {
    /// The group had reached its own limit.
    Limit,
    /// The host, or a group above, had no memory left.
    Host,
}

impl Groups {
    /// Returns the groups of the node with this id; an error with the reason if groups can't be made on this host.
    pub fn open(id: &str) -> Result<Groups, String> {
        if Hierarchy::of_this_host().is_none() {
            return Err("control groups with cpu and memory are not mounted".into());
        }
        let groups = Groups::of_node(id);
        // try it: a limit that has no effect would be worse than none; no machine can have this name
        let probe = groups.make("-probe").map_err(|error| error.to_string())?;
        let tried = probe.apply(&Limits {
            cpu_millicores: Some(1000),
            memory_max_bytes: Some(1 << 30),
        });
        probe.remove().map_err(|error| error.to_string())?;
        tried.map_err(|error| error.to_string())?;
        Ok(groups)
    }

    /// Returns the groups of the node with this id for reading; there may be none.
    pub fn of_node(id: &str) -> Groups {
        Groups {
            path: format!("{ROOM}/{id}"),
        }
    }

    /// Returns a machine's group; creates it if it does not exist.
    pub fn make(&self, machine: &str) -> Result<Group, MachineError> {
        let group = self.of(machine);
        let made = create(&group.path);
        made.map_err(MachineError::io(format!(
            "make control group {}",
            group.path
        )))?;
        Ok(group)
    }

    /// Returns a machine's group, which need not exist.
    pub fn of(&self, machine: &str) -> Group {
        Group {
            path: format!("{}/{machine}", self.path),
        }
    }

    /// Returns the names of the machines that have a group.
    pub fn machines(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in dirs(&self.path) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Removes the node's directories if no machine has a group.
    pub fn close(&self) {
        for dir in dirs(&self.path).into_iter().chain(dirs(ROOM)) {
            // fails if another node's groups are in it
            let _ = fs::remove_dir(dir);
        }
    }
}

impl Group {
    /// Returns the files through which a process enters the group: it writes its process id into each.
    pub fn entrances(&self) -> Vec<PathBuf> {
        let dirs = dirs(&self.path).into_iter();
        dirs.map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// Sets the group's limits; those that are `None` are removed. Memory in use is not reclaimed by force: a memory
    /// limit below it is an error.
    pub fn apply(&self, limits: &Limits) -> Result<(), MachineError> {
        let apply = || -> io::Result<()> {
            if let Some(max) = limits.memory_max_bytes {
                let used = self.usage().memory_bytes;
                if used > max {
                    return Err(io::Error::other(format!(
                        "it uses {} MiB already, more than {} MiB",
                        used >> 20,
                        max >> 20
                    )));
                }
            }
            let quota_us = limits
                .cpu_millicores
                .map(|millicores| u64::from(millicores) * PERIOD_US / 1000);
            let write = |root: &Path, file: &str, text: String| {
                let path = root.join(&self.path).join(file);
                let written = fs::write(&path, text);
                written.map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })
            };
            let or = |number: Option<u64>, none: &str| {
                number.map_or_else(|| none.to_owned(), |number| number.to_string())
            };
            let max = limits.memory_max_bytes;
            match Hierarchy::of_this_host() {
                None => Err(io::ErrorKind::Unsupported.into()),
                Some(Hierarchy::Two(root)) => {
                    let quota = format!("{} {PERIOD_US}", or(quota_us, "max"));
                    write(root, "cpu.max", quota)?;
                    write(root, "memory.max", or(max, "max"))
                }
                Some(Hierarchy::One { cpu, memory, .. }) => {
                    write(cpu, "cpu.cfs_period_us", PERIOD_US.to_string())?;
                    write(cpu, "cpu.cfs_quota_us", or(quota_us, "-1"))?;
                    write(memory, "memory.limit_in_bytes", or(max, "-1"))
                }
            }
        };
        apply().map_err(MachineError::io(format!(
            "limit control group {}",
            self.path
        )))
    }

    /// Returns what the group's processes have used; zero if the group does not exist.
    pub fn usage(&self) -> Usage {
        let read = |root: &Path, file: &str| {
            fs::read_to_string(root.join(&self.path).join(file)).unwrap_or_default()
        };
        let number = |text: String| text.trim().parse().unwrap_or(0);
        match Hierarchy::of_this_host() {
            None => Usage::default(),
            Some(Hierarchy::Two(root)) => Usage {
                cpu_us: counted(&read(root, "cpu.stat"), "usage_usec"),
                memory_bytes: number(read(root, "memory.current")),
            },
            Some(Hierarchy::One {
                cpuacct, memory, ..
            }) => Usage {
                cpu_us: number(read(cpuacct, "cpuacct.usage")) / 1000,
                memory_bytes: number(read(memory, "memory.usage_in_bytes")),
            },
        }
    }

    /// Returns why the kernel has ended a process of the group to get memory; `None` if it has ended none since the group was
    /// made.
    pub fn out_of_memory(&self) -> Option<OutOfMemory> {
        let read = |root: &Path, file: &str| {
            fs::read_to_string(root.join(&self.path).join(file)).unwrap_or_default()
        };
        let (ended, reached) = match Hierarchy::of_this_host()? {
            Hierarchy::Two(root) => {
                let events = read(root, "memory.events");
                (counted(&events, "oom_kill"), counted(&events, "oom"))
            }
            Hierarchy::One { memory, .. } => {
                let reached = read(memory, "memory.failcnt").trim().parse().unwrap_or(0);
                let control = read(memory, "memory.oom_control");
                (counted(&control, "oom_kill"), reached)
            }
        };
        match (ended, reached) {
            (0, _) => None,
            (_, 0) => Some(OutOfMemory::Host),
            _ => Some(OutOfMemory::Limit),
        }
    }

    /// Returns whether a process is in the group.
    pub fn is_in_use(&self) -> bool {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        self.entrances()
            .into_iter()
            .any(|path| !read(path).is_empty())
    }

    /// Removes the group once no process is in it. It is no error if the group does not exist.
    pub fn remove(&self) -> io::Result<()> {
        for dir in dirs(&self.path) {
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Creates a group and its parents.
fn create(path: &str) -> io::Result<()> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    let hierarchy = Hierarchy::of_this_host().ok_or_else(unsupported)?;
    let mut tries = 0..TRIES;
    loop {
        match create_in(hierarchy, path) {
            // a node that is ending has just removed the parent
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries.next().is_some() => {}
            made => return made,
        }
    }
}

fn create_in(hierarchy: &Hierarchy, path: &str) -> io::Result<()> {
    let Hierarchy::Two(root) = hierarchy else {
        return dirs(path).into_iter().try_for_each(fs::create_dir_all);
    };
    // each group enables the controllers for those below it
    let mut dir = root.clone();
    for part in Path::new(path) {
        fs::write(dir.join("cgroup.subtree_control"), CONTROLLERS_2)?;
        dir.push(part);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the directories of a group: one in version 2, one for each controller in version 1.
fn dirs(path: &str) -> Vec<PathBuf> {
    let roots = Hierarchy::of_this_host().map(Hierarchy::roots);
    let roots = roots.unwrap_or_default().into_iter();
    roots.map(|root| root.join(path)).collect()
}

/// Returns a number of a file with a name and a number in each line; 0 if it is not there.
fn counted(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let line = lines.find(|(first, _)| *first == name);
    line.and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_version_2_where_that_has_the_controllers_and_else_version_1() {
        let both = "20 1 0:20 / /proc rw - proc proc rw\n\
            32 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            34 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 1 0:35 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let one = Hierarchy::find(both, |_| "hugetlb".into()).unwrap();
        let expected = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"];
        let roots: Vec<_> = one
            .roots()
            .iter()
            .map(|root| root.to_str().unwrap())
            .collect();
        assert_eq!(roots, expected);
        let two = Hierarchy::find(both, |_| "cpuset cpu io memory pids".into());
        assert_eq!(two, Some(Hierarchy::Two("/sys/fs/cgroup/unified".into())));
        let without = "34 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(Hierarchy::find(without, |_| String::new()), None);
        assert_eq!(
            Hierarchy::find("garbage - \n - a b", |_| String::new()),
            None
        );
    }

    #[test]
    fn numbers_are_found_by_their_whole_names() {
        let stat = "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n";
        assert_eq!(counted(stat, "usage_usec"), 1234);
        assert_eq!(counted("nr_periods 3\n", "usage_usec"), 0);
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
        let numbers = ["oom", "oom_kill"].map(|name| counted(events, name));
        assert_eq!(numbers, [2, 1]);
    }

    #[test]
    fn only_control_groups_are_asked_for_their_controllers() {
        let mounts = "20 1 0:20 / /proc rw - proc proc rw\n\
            50 1 0:40 / /srv/dead rw - fuse.sshfs host:/ rw\n\
            41 1 0:35 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let asked = std::cell::RefCell::new(Vec::new());
        let found = Hierarchy::find(mounts, |root| {
            asked.borrow_mut().push(root.to_owned());
            "cpu memory".into()
        });
        assert_eq!(found, Some(Hierarchy::Two("/sys/fs/cgroup".into())));
        assert_eq!(asked.into_inner(), [Path::new("/sys/fs/cgroup")]);
    }
}

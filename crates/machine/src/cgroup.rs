//! A control group for each machine, in one for its household: the machines that share what they may use.
//!
//! The groups of a node are `floe/NODE/_HOUSEHOLD/MACHINE`, below the root of the hierarchy: of version 2 if the host has that,
//! otherwise of the controllers `cpu`, `cpuacct`, `memory` and `pids` of version 1. The household's group limits processor
//! time and memory of all of its QEMUs together. The machine's counts what its QEMU uses, and bounds what no guest has a use for: tasks,
//! and swap beyond its memory. They are not below the node's own group,
//! because in version 2 a group can't have both processes and limited groups below it, and because a machine outlives its
//! node. The process enters its group before it executes QEMU (see [`crate::exec`]), so that QEMU is never outside. A
//! group exists until somebody removes it, and is found again by its name.
//!
//! An earlier floe made `floe/NODE/MACHINE`, with the limits in it. A QEMU that it started stays there until it ends.
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
/// What the names of households' groups begin with, and no machine's name does.
const HOUSEHOLD: char = '_';
/// Controllers that version 2 needs, in the form that enables them for the groups below a group.
const CONTROLLERS_2: &str = "+cpu +memory +pids";
/// Most processes and threads of a machine: QEMU has one for each of up to 255 virtual CPUs, 64 that read and write, and a few more.
const TASKS_MAX: u32 = 512;
/// How often creating a group is retried if others remove its parents at the same time.
const TRIES: u32 = 100;
/// The period in which a group gets its share of the processor, in microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// Bytes by which, in version 1 of control groups, the limit of memory and swap together is above that of memory. If both were equal, the
/// kernel would check the former first, and it does not count who reaches that one.
const SWAP_SLACK_BYTES: u64 = 1 << 20;

/// Limits of what the QEMUs of a household may use of their host, all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time, in thousandths of one core: 1500 is one and a half cores. At least 10.
    pub cpu_millicores: Option<u32>,
    /// Memory of the QEMU processes in bytes: what guests have touched, and QEMU's own. With such a limit they have no swap: it would
    /// be memory beyond that.
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

/// The group of one machine, or of a household.
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
        pids: PathBuf,
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
            has("cpu") && has("memory") && has("pids")
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
            pids: one("pids")?,
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
                pids,
            } => vec![cpu, cpuacct, memory, pids],
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

/// Why the kernel ended processes of a group (see [`Group::out_of_memory`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfMemory {
    /// Its household had reached its limit.
    Limit,
    /// The host, or a group above, had no memory left.
    Host,
}

impl Groups {
    /// Returns the groups of the node with this id; an error with the reason if groups can't be made on this host.
    pub fn open(id: &str) -> Result<Groups, String> {
        if Hierarchy::of_this_host().is_none() {
            return Err("control groups with cpu, memory and pids are not mounted".into());
        }
        let groups = Groups::of_node(id);
        // try it: a limit that has no effect would be worse than none; no machine can have this name
        let probe = groups.make("probe", "-probe");
        let probe = probe.map_err(|error| error.to_string())?;
        let limits = Limits {
            cpu_millicores: Some(1000),
            memory_max_bytes: Some(1 << 30),
        };
        let tried = groups.household("probe").apply(&limits);
        let tried = tried.and_then(|()| probe.bound(1 << 30));
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

    /// Returns a machine's group in that of its household; creates both if they do not exist.
    pub fn make(&self, household: &str, machine: &str) -> Result<Group, MachineError> {
        let group = self.of(household, machine);
        let made = create(&group.path);
        made.map_err(MachineError::io(format!(
            "make control group {}",
            group.path
        )))?;
        Ok(group)
    }

    /// Returns the group of a household, which need not exist.
    pub fn household(&self, household: &str) -> Group {
        Group {
            path: format!("{}/{HOUSEHOLD}{household}", self.path),
        }
    }

    /// Returns a machine's group, which need not exist: that in which an earlier floe has put it, as long as it is there.
    pub fn of(&self, household: &str, machine: &str) -> Group {
        let alone = Group {
            path: format!("{}/{machine}", self.path),
        };
        match alone.is_there() {
            true => alone,
            false => Group {
                path: format!("{}/{machine}", self.household(household).path),
            },
        }
    }

    /// Returns the groups of all machines, by name.
    pub fn all(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        for name in below(&self.path) {
            let group = Group {
                path: format!("{}/{name}", self.path),
            };
            match group.is_households() {
                false => groups.push(group),
                true => groups.extend(below(&group.path).into_iter().map(|name| Group {
                    path: format!("{}/{name}", group.path),
                })),
            }
        }
        groups.sort_by(|one, other| one.name().cmp(other.name()));
        groups
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
    /// Returns its machine's name, or what a household's is called.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    fn is_households(&self) -> bool {
        self.name().starts_with(HOUSEHOLD)
    }

    /// Returns the group that has the limits of a machine: its household's, or its own if an earlier floe has made that.
    pub fn limited(&self) -> Group {
        let above = self.path.rsplit_once('/').map(|(above, _)| Group {
            path: above.to_owned(),
        });
        above
            .filter(Group::is_households)
            .unwrap_or_else(|| self.clone())
    }

    /// Whether the group exists, as far as that can be seen.
    pub fn is_there(&self) -> bool {
        dirs(&self.path).iter().any(|dir| fs::metadata(dir).is_ok())
    }

    /// Returns the files through which a process enters the group: it writes its process id into each.
    pub fn entrances(&self) -> Vec<PathBuf> {
        let dirs = dirs(&self.path).into_iter();
        dirs.map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// Sets a household's limits; those that are `None` are removed. Memory in use is not reclaimed by force: a memory
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
            let or = |number: Option<u64>, none: &str| {
                number.map_or_else(|| none.to_owned(), |number| number.to_string())
            };
            let max = limits.memory_max_bytes;
            match Hierarchy::of_this_host() {
                None => Err(io::ErrorKind::Unsupported.into()),
                Some(Hierarchy::Two(root)) => {
                    let quota = format!("{} {PERIOD_US}", or(quota_us, "max"));
                    self.write(root, "cpu.max", &quota)?;
                    self.write(root, "memory.max", &or(max, "max"))?;
                    let swap = or(max.map(|_| 0), "max");
                    self.write_if_there(root, "memory.swap.max", &swap)
                }
                Some(Hierarchy::One { cpu, memory, .. }) => {
                    self.write(cpu, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
                    self.write(cpu, "cpu.cfs_quota_us", &or(quota_us, "-1"))?;
                    // that of memory and swap together is never below that of memory
                    let both = "memory.memsw.limit_in_bytes";
                    self.write_if_there(memory, both, "-1")?;
                    self.write(memory, "memory.limit_in_bytes", &or(max, "-1"))?;
                    let max = max.map(|max| max.saturating_add(SWAP_SLACK_BYTES));
                    self.write_if_there(memory, both, &or(max, "-1"))
                }
            }
        };
        apply().map_err(MachineError::io(format!(
            "limit control group {}",
            self.path
        )))
    }

    /// Bounds the number of a machine's tasks, which no QEMU needs to exceed, and its swap to `swap_bytes`, where the host counts swap by
    /// itself (in version 2).
    pub fn bound(&self, swap_bytes: u64) -> Result<(), MachineError> {
        let tasks = TASKS_MAX.to_string();
        let bounded = match Hierarchy::of_this_host() {
            None => Err(io::ErrorKind::Unsupported.into()),
            Some(Hierarchy::Two(root)) => self.write(root, "pids.max", &tasks).and_then(|()| {
                self.write_if_there(root, "memory.swap.max", &swap_bytes.to_string())
            }),
            Some(Hierarchy::One { pids, .. }) => self.write(pids, "pids.max", &tasks),
        };
        bounded.map_err(MachineError::io(format!(
            "bound control group {}",
            self.path
        )))
    }

    fn write(&self, root: &Path, file: &str, text: &str) -> io::Result<()> {
        let path = root.join(&self.path).join(file);
        fs::write(&path, text)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Writes a file that a kernel without swap does not have.
    fn write_if_there(&self, root: &Path, file: &str, text: &str) -> io::Result<()> {
        match self.write(root, file, text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    fn read(&self, root: &Path, file: &str) -> String {
        // these are figures: without the group, or where it can't be read, there are none
        fs::read_to_string(root.join(&self.path).join(file)).unwrap_or_default()
    }

    /// Returns what the group's processes have used; zero if the group does not exist.
    pub fn usage(&self) -> Usage {
        let number = |text: String| text.trim().parse().unwrap_or(0);
        match Hierarchy::of_this_host() {
            None => Usage::default(),
            Some(Hierarchy::Two(root)) => Usage {
                cpu_us: counted(&self.read(root, "cpu.stat"), "usage_usec"),
                memory_bytes: number(self.read(root, "memory.current")),
            },
            Some(Hierarchy::One {
                cpuacct, memory, ..
            }) => Usage {
                cpu_us: number(self.read(cpuacct, "cpuacct.usage")) / 1000,
                memory_bytes: number(self.read(memory, "memory.usage_in_bytes")),
            },
        }
    }

    /// Returns why the kernel has ended a process of a machine's group to get memory; `None` if it has ended none since the group was
    /// made.
    pub fn out_of_memory(&self) -> Option<OutOfMemory> {
        let limited = self.limited();
        let (ended, reached) = match Hierarchy::of_this_host()? {
            Hierarchy::Two(root) => (
                counted(&self.read(root, "memory.events"), "oom_kill"),
                counted(&limited.read(root, "memory.events"), "oom"),
            ),
            Hierarchy::One { memory, .. } => {
                let reached = limited.read(memory, "memory.failcnt");
                let control = self.read(memory, "memory.oom_control");
                (
                    counted(&control, "oom_kill"),
                    reached.trim().parse().unwrap_or(0),
                )
            }
        };
        match (ended, reached) {
            (0, _) => None,
            (_, 0) => Some(OutOfMemory::Host),
            _ => Some(OutOfMemory::Limit),
        }
    }

    /// Returns whether a process is in the group; where that can't be read, one is.
    pub fn is_in_use(&self) -> bool {
        let is_empty = |path: PathBuf| match fs::read(path) {
            Ok(processes) => processes.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        !self.entrances().into_iter().all(is_empty)
    }

    /// Removes a machine's group once no process is in it, and its household's with the last machine. It is no error if the group does
    /// not exist.
    pub fn remove(&self) -> io::Result<()> {
        for dir in dirs(&self.path) {
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let limited = self.limited();
        if limited != *self {
            for dir in dirs(&limited.path) {
                // fails as long as another machine's group is in it
                let _ = fs::remove_dir(dir);
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

/// Returns the names of the groups directly below a group.
fn below(path: &str) -> Vec<String> {
    let mut names = Vec::new();
    for dir in dirs(path) {
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
            36 1 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            41 1 0:35 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let one = Hierarchy::find(both, |_| "hugetlb".into()).unwrap();
        let expected =
            ["cpu,cpuacct", "memory", "pids"].map(|name| format!("/sys/fs/cgroup/{name}"));
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
            "cpu memory pids".into()
        });
        assert_eq!(found, Some(Hierarchy::Two("/sys/fs/cgroup".into())));
        assert_eq!(asked.into_inner(), [Path::new("/sys/fs/cgroup")]);
    }
}

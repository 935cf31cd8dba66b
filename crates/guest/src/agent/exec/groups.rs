//! Control groups, one for each command: what it starts is in its group, whatever sessions and parents that has by then.
//!
//! They are in a hierarchy of the agent's own, which has a name and no controllers (cgroups(7), "Cgroups version 1"; OpenRC keeps account
//! of services so): it limits nothing, and nobody else looks after it. In the kernel's other hierarchy, cgroup 2, groups are systemd's,
//! which moves a process out of its command's for `su -` and `systemd-run --scope`. Entering a group there waits until every CPU has passed
//! a quiet state, once for each command; a thread that moves itself to a group of this hierarchy waits for nothing.

use crate::agent::sys;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Where the hierarchy is mounted, only for the moment that it takes to open it: a lasting mount would be in everybody's way.
const DIR: &str = "/run/floe.groups";
/// Its options for the kernel: no controllers, and the name that `/proc/PID/cgroup` tells.
const OPTIONS: &CStr = c"none,name=floe";
/// How many old groups are checked, each time that a command starts, for whether they are empty and can be removed.
const AGAIN_MAX: usize = 8;

/// Mounts the hierarchy, opens its directory, and unmounts it again; returns the directory, the only way to it from then on.
fn mounted(dir: &Path) -> io::Result<File> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let root = sys::mount(c"cgroup", dir, Some(OPTIONS)).and_then(|()| {
        let root = File::open(dir);
        sys::detach(dir)?;
        root
    });
    let _ = fs::remove_dir(dir); // an empty directory does no harm
    root
}

/// Returns the path of a directory that is open.
fn inside(dir: &File) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

/// A command's group.
pub(super) struct Group {
    dir: PathBuf,
}

impl Group {
    /// Returns the processes in it.
    pub fn members(&self) -> io::Result<Vec<u32>> {
        let text = match fs::read_to_string(self.dir.join("cgroup.procs")) {
            // it was empty, and was removed
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }
}

/// The hierarchy.
pub(super) struct Groups {
    /// Its directory, which no mount leads to any more.
    root: File,
    /// What moves whoever writes to it out of all groups.
    outside: File,
    /// The number of the last group that was made.
    last: u64,
    /// Groups whose commands have ended, and in which something ran on.
    left: VecDeque<Group>,
}

impl Groups {
    /// Opens the hierarchy: a new one, or that of an earlier agent in which something runs on.
    pub fn open() -> io::Result<Groups> {
        let root = mounted(Path::new(DIR))?;
        let dir = inside(&root);
        let mut outside = File::options().write(true).open(dir.join("tasks"))?;
        // an agent that another one has put in its own place is a command's process itself
        outside.write_all(b"0")?;
        let mut groups = Groups {
            root,
            outside,
            last: 0,
            left: VecDeque::new(),
        };
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(number) = name.and_then(|name| name.parse().ok()) {
                groups.last = groups.last.max(number);
                groups.remove(Group { dir: path });
            }
        }
        Ok(groups)
    }

    /// Makes a group and enters it, so that what the agent starts from now on is in it.
    pub fn enter(&mut self) -> io::Result<Group> {
        for _ in 0..self.left.len().min(AGAIN_MAX) {
            if let Some(group) = self.left.pop_front() {
                self.remove(group);
            }
        }
        self.last += 1;
        let dir = inside(&self.root).join(self.last.to_string());
        fs::create_dir(&dir)?;
        let tasks = File::options().write(true).open(dir.join("tasks"));
        let entered = tasks.and_then(|mut tasks| tasks.write_all(b"0"));
        let group = Group { dir };
        match entered {
            Ok(()) => Ok(group),
            Err(error) => {
                self.remove(group);
                Err(error)
            }
        }
    }

    /// Leaves the group that it has entered.
    pub fn leave(&mut self) -> io::Result<()> {
        self.outside.write_all(b"0")
    }

    /// Removes a group that is of no more use, once it is empty.
    pub fn remove(&mut self, group: Group) {
        match fs::remove_dir(&group.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.left.push_back(group),
            _ => {}
        }
    }
}

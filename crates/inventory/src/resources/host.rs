//! Reads what this host has. All figures are the kernel's, within the limits of the node's own control groups.

use std::path::{Path, PathBuf};

/// Descriptors that machines leave to the node itself: for callers, connections of the page, files that are open for a moment.
pub(crate) const NODE_DESCRIPTORS: u64 = 128;
/// Most descriptors that a running machine has in the node's process: of QMP, of its guest's agent, of its process, for a screen.
const MACHINE_DESCRIPTORS: u64 = 12;
/// Most that each of its disks has there: the file, map and record of its layers.
const DISK_DESCRIPTORS: u64 = 4;

/// Returns the most descriptors that a machine with so many disks has in the node's process.
pub(crate) fn descriptors_of(disks: usize) -> u64 {
    MACHINE_DESCRIPTORS + DISK_DESCRIPTORS * disks as u64
}

/// Memory of the host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory that the node and its machines can have.
    pub total_bytes: u64,
    /// What programs can get without swapping (MemAvailable), including page cache that can be dropped.
    pub available_bytes: u64,
}

/// Returns how many cores the node may run on, by its CPU affinity and the CPU quotas of its control groups.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Returns the host's memory now; `None` without /proc.
pub fn memory() -> Option<Memory> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let host = parse_meminfo(&read(Path::new("/proc/meminfo"))?)?;
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let within = |host: Memory, group: Group| {
        let number =
            |file: &str| -> Option<u64> { read(&group.dir.join(file))?.trim().parse().ok() };
        // a group without a limit has "max" there, or a number larger than any host's memory
        let (Some(limit), Some(used)) = (number(group.limit), number(group.used)) else {
            return host;
        };
        let stat = read(&group.dir.join("memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|line| line.strip_prefix(group.cache));
        let cache: u64 = cache.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        let free = limit.saturating_sub(used.saturating_sub(cache));
        Memory {
            total_bytes: host.total_bytes.min(limit),
            available_bytes: host.available_bytes.min(free),
        }
    };
    Some(groups_of(&groups, &mounts).into_iter().fold(host, within))
}

/// Returns the memory that only this process uses: what it wrote, and its share of memory files. Clean pages of files are not
/// counted.
pub fn used_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(bytes_of(&status, "RssAnon:")? + bytes_of(&status, "RssShmem:")?)
}

/// Returns how much memory in bytes the kernel still hands out, whether it is used or not; `None` if it lends more than it has.
pub(crate) fn commit_bytes() -> Option<u64> {
    let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    parse_commit(&policy, &std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads the same from the texts of the two files.
fn parse_commit(policy: &str, meminfo: &str) -> Option<u64> {
    const NEVER: &str = "2";
    if policy.trim() != NEVER {
        return None;
    }
    let (limit, given) = (
        bytes_of(meminfo, "CommitLimit:")?,
        bytes_of(meminfo, "Committed_AS:")?,
    );
    Some(limit.saturating_sub(given))
}

/// Returns how many descriptors this process may have; `None` if that is not limited.
pub(crate) fn descriptors_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Returns how many more descriptors machines may have the node open; `None` if unknown.
pub(crate) fn descriptors_free() -> Option<u64> {
    let all = descriptors_max()?;
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(all.saturating_sub(open.saturating_add(NODE_DESCRIPTORS)))
}

fn parse_meminfo(text: &str) -> Option<Memory> {
    Some(Memory {
        total_bytes: bytes_of(text, "MemTotal:")?,
        available_bytes: bytes_of(text, "MemAvailable:")?,
    })
}

fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A control group that limits the node's memory, and its files' names.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    limit: &'static str,
    used: &'static str,
    /// Beginning of the line in memory.stat that counts page cache that can be dropped.
    cache: &'static str,
}

/// Returns the node's control group for memory and all above it, from the texts of /proc/self/cgroup and
/// /proc/self/mountinfo.
fn groups_of(cgroup: &str, mountinfo: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        // `0::/path` is of version 2, `4:memory,...:/path` of version 1
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let two = controllers.is_empty();
        if !two && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((root, mount)) = mountinfo.lines().find_map(|line| mount_of(line, two)) else {
            continue;
        };
        let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        for above in inside.ancestors() {
            groups.push(match two {
                true => Group {
                    dir: mount.join(above),
                    limit: "memory.max",
                    used: "memory.current",
                    cache: "inactive_file ",
                },
                false => Group {
                    dir: mount.join(above),
                    limit: "memory.limit_in_bytes",
                    used: "memory.usage_in_bytes",
                    cache: "total_inactive_file ",
                },
            });
        }
    }
    groups
}

/// Returns a mount's root group and mountpoint, if a line of mountinfo is of version 2 or of the memory controller.
fn mount_of(line: &str, two: bool) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let fits = match (right.next()?, two) {
        ("cgroup2", true) => true,
        ("cgroup", false) => right.nth(1)?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (left.next()?, left.next()?);
    fits.then(|| (root.into(), mount.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_what_the_kernel_calls_available() {
        let text = "MemTotal:  4096 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\n";
        let expected = Memory {
            total_bytes: 4 << 20,
            available_bytes: 2 << 20,
        };
        assert_eq!(parse_meminfo(text), Some(expected));
        assert_eq!(parse_meminfo(""), None);
    }

    #[test]
    fn a_kernel_that_lends_no_memory_says_what_is_left() {
        let text = "MemTotal: 4096 kB\nCommitLimit:    2048 kB\nCommitted_AS:   1024 kB\n";
        assert_eq!(parse_commit("2\n", text), Some(1 << 20));
        assert_eq!(parse_commit("0\n", text), None);
        assert_eq!(parse_commit("1\n", text), None);
        let over = "CommitLimit:    1 kB\nCommitted_AS:   2 kB\n";
        assert_eq!(parse_commit("2", over), Some(0));
        assert_eq!(parse_commit("2", "CommitLimit: 1 kB\n"), None);
    }

    #[test]
    fn descriptors_are_free_until_they_are_open() {
        let before = descriptors_free().unwrap();
        assert!(before < descriptors_max().unwrap());
        let held: Vec<_> = (0..64)
            .map(|_| std::fs::File::open("/proc/self/status").unwrap())
            .collect();
        // other tests of this process open and close some meanwhile
        assert!(descriptors_free().unwrap() <= before - 32, "{}", held.len());
        assert!(descriptors_of(2) > descriptors_of(1));
    }

    #[test]
    fn every_group_above_the_node_bounds_its_memory_wherever_it_is_mounted() {
        let dirs = |cgroup: &str, mountinfo: &str| -> Vec<String> {
            let groups = groups_of(cgroup, mountinfo);
            let dir = |group: &Group| format!("{} {}", group.dir.display(), group.limit);
            groups.iter().map(dir).collect()
        };
        let two = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            dirs("0::/system.slice/floe-node.service\n", two),
            [
                "/sys/fs/cgroup/system.slice/floe-node.service memory.max",
                "/sys/fs/cgroup/system.slice memory.max",
                "/sys/fs/cgroup/ memory.max",
            ]
        );
        // version 1 in a container: the container's own group is the root of what is mounted
        let one = "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            31 1 0:27 /docker/a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            dirs("5:memory:/docker/a/b\n2:cpu:/docker/a\n", one),
            [
                "/sys/fs/cgroup/memory/b memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/ memory.limit_in_bytes",
            ]
        );
        assert!(dirs("garbage\n0::/x", "garbage").is_empty());
    }

    #[test]
    fn a_process_uses_what_it_wrote() {
        let written = vec![1u8; 8 << 20];
        let used = used_bytes(std::process::id()).unwrap();
        assert!(used >= written.len() as u64, "{used}");
        let memory = memory().unwrap();
        assert!(memory.available_bytes <= memory.total_bytes, "{memory:?}");
        assert!(cores() >= 1);
    }
}

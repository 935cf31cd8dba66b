//! Control groups of the host's own I/O schedulers, a group for each machine.

use anyhow::Context as _;
use std::path::{Path, PathBuf};

const BLKIO: &str = "/sys/fs/cgroup/blkio";
const CPU: &str = "/sys/fs/cgroup/cpu";
const CPU_PERIOD_US: u32 = 100_000;
/// What a weak device has of a core, in percent: the paper's is 5 to 12 times slower than its cloud.
pub const DEVICE_PERCENT: u32 = 17;
/// What a group has if nobody says otherwise.
pub const WEIGHT: u32 = 100;

/// The groups of one run. Dropping them removes them; their processes must have ended.
pub struct Groups {
    dir: PathBuf,
    all: Vec<PathBuf>,
}

impl Groups {
    /// Makes these groups for whoever has this directory to himself; `None` where the host has no version 1 of the controller.
    pub fn new(scratch: &Path, names: &[String]) -> anyhow::Result<Option<Groups>> {
        if !Path::new(BLKIO).join("tasks").exists() {
            return Ok(None);
        }
        let dir = Path::new(BLKIO).join(own_name(scratch));
        let mut groups = Groups {
            dir: dir.clone(),
            all: Vec::new(),
        };
        std::fs::create_dir_all(&dir)?;
        for name in names {
            let path = dir.join(name);
            std::fs::create_dir_all(&path)?;
            groups.all.push(path);
        }
        Ok(Some(groups))
    }

    /// Returns the group of this name.
    pub fn group(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Sets a group's weight for BFQ, which must have been given to a device before. Returns whether BFQ has weights here.
    pub fn weigh(&self, name: &str, weight: u32) -> bool {
        std::fs::write(
            self.group(name).join("blkio.bfq.weight"),
            weight.to_string(),
        )
        .is_ok()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in self.all.drain(..).chain([self.dir.clone()]) {
            remove(&path);
        }
    }
}

/// Returns the name of the groups of whoever has a directory to himself: numbers of processes repeat in namespaces.
fn own_name(scratch: &Path) -> String {
    let name = scratch.file_name().unwrap_or_default().to_string_lossy();
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("floe-lab-{}-{plain}", std::process::id())
}

/// Removes a group. Threads that ended a moment ago may still count.
fn remove(path: &Path) {
    for _ in 0..100 {
        match std::fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            _ => break,
        }
    }
}

/// A bound of the processor time of one process, which must end before this is dropped.
pub struct CpuCap {
    dir: PathBuf,
}

impl CpuCap {
    /// Lets a process have so many percent of one processor; an error where the host has no version 1 of the controller.
    pub fn new(scratch: &Path, process: u32, percent: u32) -> anyhow::Result<CpuCap> {
        let dir = Path::new(CPU).join(own_name(scratch));
        std::fs::create_dir_all(&dir).with_context(|| {
            format!(
                "cannot make {}: mount the cpu controller of version 1",
                dir.display()
            )
        })?;
        let cap = CpuCap { dir };
        let quota_us = u64::from(CPU_PERIOD_US) * u64::from(percent) / 100;
        for (file, value) in [
            ("cpu.cfs_period_us", u64::from(CPU_PERIOD_US)),
            ("cpu.cfs_quota_us", quota_us),
            ("cgroup.procs", u64::from(process)),
        ] {
            let path = cap.dir.join(file);
            std::fs::write(&path, value.to_string())
                .with_context(|| format!("cannot write to {}", path.display()))?;
        }
        Ok(cap)
    }

    /// Lets another process share in it, which must end before this is dropped, too.
    pub fn add(&self, process: u32) -> anyhow::Result<()> {
        let path = self.dir.join("cgroup.procs");
        std::fs::write(&path, process.to_string())
            .with_context(|| format!("cannot write to {}", path.display()))
    }
}

impl Drop for CpuCap {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

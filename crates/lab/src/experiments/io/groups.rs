//! Control groups of the host's own I/O schedulers, a group for each machine.

use anyhow::Context as _;
use std::path::{Path, PathBuf};

const BLKIO: &str = "/sys/fs/cgroup/blkio";
/// What a group has if nobody says otherwise.
pub const WEIGHT: u32 = 100;

/// The groups of one run. Dropping them removes them; their processes must have ended.
pub struct Groups {
    dir: PathBuf,
    all: Vec<PathBuf>,
}

impl Groups {
    /// Makes these groups; `None` where the host has no version 1 of the controller.
    pub fn new(names: &[String]) -> anyhow::Result<Option<Groups>> {
        if !Path::new(BLKIO).join("tasks").exists() {
            return Ok(None);
        }
        let dir = Path::new(BLKIO).join(format!("floe-lab-{}", std::process::id()));
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

    /// Moves a process there.
    pub fn enter(&self, name: &str, process: u32) -> anyhow::Result<()> {
        let path = self.group(name).join("cgroup.procs");
        std::fs::write(&path, process.to_string())
            .with_context(|| format!("cannot write to {}", path.display()))
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
        // threads that ended a moment ago may still count
        for path in self.all.drain(..).chain([self.dir.clone()]) {
            for _ in 0..100 {
                match std::fs::remove_dir(&path) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    _ => break,
                }
            }
        }
    }
}

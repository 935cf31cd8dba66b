//! How much each process has read, where the kernel doesn't tell of single requests.

use super::gather::Gathered;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// How long to wait after a look while disks are read, in ms.
const BUSY_MS: u64 = 250;
/// The same while they are not: one small file is read then.
const IDLE_MS: u64 = 1000;
/// Processes that are looked at.
const PROCESSES_MAX: usize = 1024;

/// What was read until the last look.
pub(super) struct Amounts {
    proc: PathBuf,
    /// The disks' counters.
    disks: String,
    /// Bytes by process.
    read: HashMap<u32, u64>,
    is_first: bool,
}

impl Amounts {
    pub fn new(proc: &Path) -> Amounts {
        Amounts {
            proc: proc.to_owned(),
            disks: String::new(),
            read: HashMap::new(),
            is_first: true,
        }
    }

    /// Looks at what was read since the last time. Returns how long to wait until the next, in ms.
    pub fn look(&mut self, gathered: &mut Gathered) -> u64 {
        let disks = fs::read_to_string(self.proc.join("diskstats")).unwrap_or_default();
        if disks == self.disks {
            return IDLE_MS;
        }
        self.disks = disks;
        let mut read = HashMap::new();
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        for process in processes.take(PROCESSES_MAX) {
            let Some(bytes) = self.bytes(process) else {
                continue;
            };
            // a process that has just begun has read what it has since the last look
            let before = self.read.get(&process).copied().unwrap_or(0);
            if bytes > before
                && !self.is_first
                && let Ok(name) = fs::read_to_string(self.proc.join(format!("{process}/comm")))
            {
                gathered.amount(name.trim_end(), bytes - before);
            }
            read.insert(process, bytes);
        }
        self.read = read;
        self.is_first = false;
        BUSY_MS
    }

    fn bytes(&self, process: u32) -> Option<u64> {
        let text = fs::read_to_string(self.proc.join(format!("{process}/io"))).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "))?;
        line.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_read_since_the_last_look_is_told_and_nobody_looks_while_nothing_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
        let process = |number: u32, name: &str, bytes: u64| {
            let of = proc.join(number.to_string());
            fs::create_dir_all(&of).unwrap();
            fs::write(of.join("comm"), format!("{name}\n")).unwrap();
            let io = format!("rchar: 9\nread_bytes: {bytes}\nwrite_bytes: 5\n");
            fs::write(of.join("io"), io).unwrap();
        };
        let disks = |text: &str| fs::write(proc.join("diskstats"), text).unwrap();
        process(1, "init", 1000);
        process(7, "editor", 50);
        disks("254 0 vda 1");
        let (mut amounts, mut gathered) = (Amounts::new(proc), Gathered::default());
        assert_eq!(amounts.look(&mut gathered), BUSY_MS);
        assert!(
            gathered.is_empty(),
            "what was read before counts for nobody"
        );
        process(7, "editor", 4146);
        assert_eq!(amounts.look(&mut gathered), IDLE_MS);
        disks("254 0 vda 2");
        process(9, "new", 512);
        assert_eq!(amounts.look(&mut gathered), BUSY_MS);
        let told = gathered.take(9);
        let told: Vec<(&str, u64)> = told.iter().map(|a| (a.by.as_str(), a.bytes)).collect();
        assert_eq!(told, [("editor", 4096), ("new", 512)]);
    }
}

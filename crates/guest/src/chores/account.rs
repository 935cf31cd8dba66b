//! Tells how the kernel accounts for this machine's memory.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Most bytes of one of the kernel's files that are looked at: many times as much as there is.
const FILE_BYTES_MAX: usize = 64 << 10;

/// How the guest's kernel accounts for its memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// All that the kernel manages.
    pub total: u64,
    /// What programs could still get without anything being swapped out or ended.
    pub available: u64,
    /// What nobody uses.
    pub free: u64,
    /// Pages of files: those that could be read again, and those that could not (of file systems in memory).
    pub cached: u64,
    /// Memory of programs.
    pub anonymous: u64,
    /// What the kernel uses for itself and can't give back.
    pub unreclaimable: u64,
    /// How many programs the kernel has ended because memory ran out, since it began.
    pub kills: u64,
}

/// Reads the account from `/proc`, or from a directory like it.
pub(super) fn read(proc: &Path) -> Result<Account, String> {
    let text = |name: &str| {
        let path = proc.join(name);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(FILE_BYTES_MAX)]);
        Ok::<_, String>(text.into_owned())
    };
    let meminfo = text("meminfo")?;
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim_end().parse().ok());
        kib.and_then(|kib: u64| kib.checked_mul(1 << 10))
    };
    let needed = |name: &str| field(name).ok_or_else(|| format!("/proc/meminfo has no {name}"));
    // kernels that count no such thing have no such line
    let kills = text("vmstat").unwrap_or_default();
    let kills = kills
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    Ok(Account {
        total: needed("MemTotal:")?,
        available: needed("MemAvailable:")?,
        free: needed("MemFree:")?,
        cached: field("Cached:").unwrap_or_default(),
        anonymous: field("AnonPages:").unwrap_or_default(),
        unreclaimable: field("SUnreclaim:").unwrap_or_default(),
        kills: kills
            .and_then(|kills| kills.trim().parse().ok())
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_is_read_and_one_without_what_matters_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert!(read(dir.path()).unwrap_err().contains("meminfo"));
        write(
            "meminfo",
            "MemTotal:         100 kB\nMemFree: 9 kB\nCached: 1 kB\n",
        );
        assert!(read(dir.path()).unwrap_err().contains("MemAvailable"));
        write(
            "meminfo",
            "MemTotal:         100 kB\nMemFree:      9 kB\nMemAvailable:   40 kB\nSwapCached: 7 kB\nCached: 1 kB\nAnonPages: x kB\n",
        );
        write("vmstat", "nr_free_pages 3\noom_kill 2\n");
        let account = Account {
            total: 100 << 10,
            available: 40 << 10,
            free: 9 << 10,
            cached: 1 << 10,
            kills: 2,
            ..Account::default()
        };
        assert_eq!(read(dir.path()), Ok(account));
        // that of this machine
        let own = read(Path::new("/proc")).unwrap();
        assert!(own.total > own.available && own.available > 0 && own.anonymous > 0);
    }
}

//! Writes to the disks what the kernel holds back, and drops what it can read again.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Why the kernel has not dropped what it can read again; nothing is lost by that.
    pub kept: Option<String>,
}

/// Settles the machine; `vm` is `/proc/sys/vm`, or a directory like it.
pub(super) fn settle(vm: &Path) -> Result<Settled, String> {
    // dirty pages can't be dropped, so they are written first
    rustix::fs::sync();
    let told = |name: &str, word: &str| {
        let path = vm.join(name);
        fs::write(&path, word).map_err(|error| format!("{}: {error}", path.display()))
    };
    let dropped = told("drop_caches", "3");
    // free pages that lie together are reported to the host; not every kernel can move others out of their way
    let _ = told("compact_memory", "1");
    Ok(Settled {
        kept: dropped.err(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_dropped_and_a_kernel_that_does_not_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(settle(dir.path()), Ok(Settled::default()));
        let dropped = fs::read_to_string(dir.path().join("drop_caches"));
        assert_eq!(dropped.unwrap(), "3");
        let nowhere = settle(&dir.path().join("nowhere")).unwrap();
        assert!(nowhere.kept.unwrap().contains("drop_caches"));
    }
}

//! Packs' indices on the disk, so that they needn't be fetched again. They are verified by whoever reads them.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most bytes of indices that are kept: those of some 50 GiB of packs. Beyond that the oldest are removed.
const KEPT_BYTES_MAX: u64 = 1 << 30;
/// After how many new ones it is looked whether there are too many. The largest have 50 MB, most some 100 KB.
const LOOK_EVERY: u32 = 64;

/// How many this process has kept.
static KEPT: AtomicU32 = AtomicU32::new(0);

/// Keeps an index in a file, and removes old ones if there are too many.
pub(crate) fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    floe_store::private::make_dirs(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    match KEPT.fetch_add(1, Relaxed).is_multiple_of(LOOK_EVERY) {
        true => trim(dir, KEPT_BYTES_MAX),
        false => Ok(()),
    }
}

/// Removes the oldest files of a directory, until the others have no more than so many bytes: what a killed process has left is among
/// them. Another thread may do the same.
fn trim(dir: &Path, bytes_max: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() => files.push((meta.modified()?, meta.len(), path)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    files.sort_unstable();
    let mut bytes: u64 = 0;
    for (_, len, path) in files.iter().rev() {
        bytes = bytes.saturating_add(*len);
        if bytes > bytes_max
            && let Err(error) = fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_oldest_indices_go_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, age_s) in [("new", 1), ("old", 3), ("middle", 2)] {
            let path = dir.path().join(name);
            keep(&path, &[7; 100]).unwrap();
            let file = File::open(&path).unwrap();
            file.set_modified(now - Duration::from_secs(age_s)).unwrap();
        }
        let there = || {
            let all = fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            names
        };
        trim(dir.path(), 300).unwrap();
        assert_eq!(there(), ["middle", "new", "old"]);
        trim(dir.path(), 299).unwrap();
        assert_eq!(there(), ["middle", "new"]);
        trim(dir.path(), 0).unwrap();
        assert!(there().is_empty());
    }
}

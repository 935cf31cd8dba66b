//! The directories of a mount: private ones, and the one for disks' live maps.

use crate::MountError;
use crate::overlay::remove_earlier_boots;
use std::fs::DirEntry;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type that statfs reports for a tmpfs (`linux/magic.h`).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Returns the directory for live maps, which must outlive the process. For root it is in memory (`/dev/shm`), where a full
/// disk does no harm. Other users get the runtime directory: a logout removes their files from `/dev/shm`, while their node and
/// machines may go on.
pub(crate) fn live_dir(runtime_dir: &Path, shm: &Path, root: bool) -> Result<PathBuf, MountError> {
    let is_tmpfs = match rustix::fs::statfs(shm) {
        Err(rustix::io::Errno::NOENT) => false,
        Err(error) => return Err(MountError::io("look at", shm)(error.into())),
        Ok(found) => found.f_type == TMPFS_MAGIC,
    };
    let on_disk = runtime_dir.join("live");
    // Maps that exist already stay in use.
    let used = entries(&on_disk)?.next().is_some();
    if root && is_tmpfs && !used {
        let dir = shm.join("floe-0");
        match make_private(&dir) {
            Ok(()) => return Ok(dir),
            // Anybody may have made that directory first.
            Err(error @ MountError::Overlay { .. }) => {
                tracing::warn!(%error, "live maps are kept on the disk");
            }
            Err(error) => return Err(error),
        }
    }
    make_private(&on_disk)?;
    remove_earlier_boots(&on_disk)?;
    Ok(on_disk)
}

/// Returns the paths in a directory; none if it is not there.
pub(crate) fn entries(
    dir: &Path,
) -> Result<impl Iterator<Item = Result<PathBuf, MountError>>, MountError> {
    let list = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        list => Some(list.map_err(MountError::io("list", dir))?),
    };
    let each = move |entry: io::Result<DirEntry>| match entry {
        Ok(entry) => Ok(entry.path()),
        Err(error) => Err(MountError::io("list", dir)(error)),
    };
    Ok(list.into_iter().flatten().map(each))
}

/// Makes a directory that belongs to this user and that nobody else can write to.
pub(crate) fn make_private(dir: &Path) -> Result<(), MountError> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(MountError::io("make", dir)(error));
        }
        _ => {}
    }
    // In /dev/shm somebody else may have made the directory first.
    let meta = std::fs::symlink_metadata(dir).map_err(MountError::io("look at", dir))?;
    let closed = meta.mode() & 0o022 == 0;
    if !meta.is_dir() || !closed || meta.uid() != rustix::process::geteuid().as_raw() {
        let reason = "it belongs to somebody else; remove it".to_owned();
        return Err(MountError::Overlay {
            path: dir.to_owned(),
            reason,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logout_takes_no_live_map_along_and_nobody_can_be_first_in_its_place() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (run, shm) = (dir.path().join("run"), dir.path());
        // For users other than root: the system removes their files in /dev/shm when their last session ends.
        assert_eq!(live_dir(&run, shm, false).unwrap(), run.join("live"));
        assert_eq!(live_dir(&run, shm, true).unwrap(), shm.join("floe-0"));
        std::fs::remove_dir(shm.join("floe-0")).unwrap();
        std::os::unix::fs::symlink("/etc", shm.join("floe-0")).unwrap();
        assert_eq!(live_dir(&run, shm, true).unwrap(), run.join("live"));
    }
}

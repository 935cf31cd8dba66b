//! Watches whether there are hooks. The node is told in advance, so that what it does with a machine without hooks never waits for the
//! guest.

use crate::chores::{HOOKS_DIR, OWED_PATH, any_hooks};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Whether hooks are owed a call (`thaw`): because they were told that the machine will stand still, or because this machine's state was
/// loaded, as a copy's is.
pub(super) fn are_owed() -> bool {
    let found = std::fs::symlink_metadata(OWED_PATH);
    !found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// What is known of the hooks' directory, until it changes.
pub(super) struct Hooks {
    /// Can be read once the directory has changed; `None` on a kernel that can't watch one.
    inotify: Option<OwnedFd>,
    any: bool,
}

impl Hooks {
    /// Begins to watch the directory, then looks what is there.
    pub fn begin() -> Hooks {
        Hooks {
            inotify: watch(Path::new(HOOKS_DIR)),
            any: any_hooks(),
        }
    }

    /// Whether there were hooks when this began.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Returns a descriptor that can be read once the answer may have changed; then make a new watch.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }
}

/// Watches a directory. If it does not exist, watches the nearest directory above it that does: there it, or one on the way to it, would be
/// made.
fn watch(dir: &Path) -> Option<OwnedFd> {
    let made = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let what = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let mut places = dir.ancestors();
    places.find(|place| inotify::add_watch(&made, *place, what).is_ok())?;
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    /// Whether something has changed; nothing has to be waited for, as the kernel notes it with the change.
    fn has_changed(watched: &Option<OwnedFd>) -> bool {
        let fd = watched.as_ref().unwrap().as_fd();
        super::super::sys::poll_one(fd, libc::POLLIN, Duration::ZERO).unwrap() != 0
    }

    #[test]
    fn a_directory_is_watched_from_before_it_is_made() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("floe/hooks.d");
        let above = watch(&dir);
        assert!(!has_changed(&above));
        fs::create_dir_all(&dir).unwrap();
        assert!(has_changed(&above));
        let itself = watch(&dir);
        assert!(!has_changed(&itself));
        fs::write(dir.join("10-db"), "").unwrap();
        assert!(has_changed(&itself));
        let itself = watch(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert!(has_changed(&itself));
    }
}

//! Keeps files private: what floe stores is accessible to its own user only, whatever the process's umask is.
//!
//! A node's directories hold the memory of every machine. So each directory and file is made with the modes below, and
//! [`close_to_others`] corrects a directory that an older version made. Only what a user publishes explicitly, a
//! [`Repository`](crate::Repository) for a web server, can be read by everybody.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// Mode of a directory that only its owner may use.
pub const DIR_MODE: u32 = 0o700;
/// Mode of a file that only its owner may use.
pub const FILE_MODE: u32 = 0o600;
/// Permission bits of a file's group and of all others.
const OTHERS: u32 = 0o077;
/// Permission bits of those who are neither owner nor group.
const REST: u32 = 0o007;
/// Name of the file that records that everything in a directory was closed once.
pub const MARKER: &str = ".private";
/// How many levels below a directory [`close_to_others`] goes down: twice what floe makes.
const DEPTH_MAX: usize = 16;
/// Most entries that it looks at: a hundred times those of a large node.
const ENTRIES_MAX: u64 = 100_000_000;

/// Makes a directory and those above it that are missing, each with exactly `mode`. A directory that exists keeps its mode.
pub fn make_dirs_with(dir: &Path, mode: u32) -> io::Result<()> {
    let make = || DirBuilder::new().mode(mode).create(dir);
    let made = match (make(), dir.parent()) {
        (Err(error), Some(above)) if error.kind() == io::ErrorKind::NotFound => {
            make_dirs_with(above, mode)?;
            make()
        }
        (made, _) => made,
    };
    match made {
        // The umask may have removed what a web server needs.
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match std::fs::metadata(dir)?.is_dir() {
                true => Ok(()),
                false => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Makes a directory that only this user may use, and those above it that are missing.
pub fn make_dirs(dir: &Path) -> io::Result<()> {
    make_dirs_with(dir, DIR_MODE)
}

/// Returns options that open a file, or make one that only this user may use. The caller adds `read`, `write` or `append`.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(FILE_MODE);
    options
}

/// Writes a file that only this user may use, replacing its content.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, bytes)
}

/// Sets the umask, so that only this user may use what this process and its children make without an explicit mode. For daemons
/// only: the user may want to share what a command makes.
pub fn set_umask() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// The result of [`close_to_others`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Files and directories that were open to others.
    pub changed: u64,
    /// Files and directories that were looked at.
    pub seen: u64,
}

/// Removes others' permissions from `dir` and from the files and directories below it.
///
/// Only what belongs to this user is changed, links aren't followed, and other file systems aren't entered. Directories in
/// `skip` (mountpoints, which may not answer) aren't even looked at. Others may pass through the directories in `passable`, but
/// not list them. Permissions of a group other than this process's own were given on purpose, and stay.
///
/// Everything is looked at once only; then a file [`MARKER`] records that. The next call looks only at what is directly in
/// `dir`, and at the rest only if anything there is open.
pub fn close_to_others(dir: &Path, passable: &[PathBuf], skip: &[PathBuf]) -> io::Result<Closed> {
    let mut walk = Walk {
        passable,
        skip,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        closed: Closed::default(),
    };
    let root = rustix::fs::stat(dir).map_err(at(dir))?;
    if root.st_uid != walk.uid {
        tracing::warn!(dir = %dir.display(), owner = root.st_uid, "belongs to another user, who can read all of it");
        return Ok(walk.closed);
    }
    walk.close(dir, &root)?;
    let marker = dir.join(MARKER);
    let top = walk.directory(dir, root.st_dev)?;
    if walk.closed.changed == 0 && marker.try_exists().map_err(at(&marker))? {
        return Ok(walk.closed);
    }
    walk.deeper(top, root.st_dev)?;
    write(&marker, b"1\n").map_err(at(&marker))?;
    Ok(walk.closed)
}

/// Turns an error into one that names the path that it is about.
fn at<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }
}

struct Walk<'a> {
    passable: &'a [PathBuf],
    skip: &'a [PathBuf],
    uid: u32,
    gid: u32,
    closed: Closed,
}

impl Walk<'_> {
    /// Closes what is in these directories, at any depth.
    fn deeper(&mut self, dirs: Vec<PathBuf>, device: u64) -> io::Result<()> {
        let mut open: Vec<(PathBuf, usize)> = dirs.into_iter().map(|dir| (dir, 1)).collect();
        while let Some((dir, depth)) = open.pop() {
            for below in self.directory(&dir, device)? {
                if depth < DEPTH_MAX {
                    open.push((below, depth + 1));
                } else {
                    tracing::warn!(dir = %below.display(), "is too deep to be looked into");
                }
            }
            if self.closed.seen > ENTRIES_MAX {
                tracing::warn!(dir = %dir.display(), "holds too many files; the rest keep their modes");
                break;
            }
        }
        Ok(())
    }

    /// Closes what is in a directory; returns the directories in it.
    fn directory(&mut self, dir: &Path, device: u64) -> io::Result<Vec<PathBuf>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::open(dir, flags, Mode::empty()) {
            Ok(handle) => handle,
            Err(error) if gone(error) => return Ok(Vec::new()),
            Err(error) => return Err(at(dir)(error)),
        };
        let mut below = Vec::new();
        for entry in Dir::read_from(&handle).map_err(at(dir))? {
            let entry = entry.map_err(at(dir))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = dir.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if self.skip.contains(&path) {
                continue;
            }
            let meta = match rustix::fs::statat(&handle, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(meta) => meta,
                Err(error) if gone(error) => continue,
                Err(error) => return Err(at(&path)(error)),
            };
            self.closed.seen += 1;
            let kind = FileType::from_raw_mode(meta.st_mode);
            if meta.st_uid != self.uid || meta.st_dev != device || kind == FileType::Symlink {
                continue;
            }
            self.close(&path, &meta)?;
            if kind == FileType::Directory {
                below.push(path);
            }
        }
        Ok(below)
    }

    /// Closes one file or directory. Nobody else can replace `path` by a link, as the directories above it are closed before.
    fn close(&mut self, path: &Path, meta: &rustix::fs::Stat) -> io::Result<()> {
        let mode = meta.st_mode & 0o7777;
        let take = if meta.st_gid == self.gid {
            OTHERS
        } else {
            REST
        };
        let pass = u32::from(self.passable.iter().any(|dir| dir == path)) * 0o011;
        let closed = mode & !take | pass;
        if closed == mode {
            return Ok(());
        }
        self.closed.changed += u64::from(mode & !closed != 0);
        match std::fs::set_permissions(path, Permissions::from_mode(closed)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
            _ => Ok(()),
        }
    }
}

/// Returns whether a file that was there a moment ago is gone, so that nobody can read it.
fn gone(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        let meta = std::fs::symlink_metadata(path).unwrap();
        meta.permissions().mode() & 0o7777
    }

    fn open_file(path: &Path, mode: u32) {
        std::fs::write(path, b"x").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_have_their_mode_whatever_the_umask_is() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        make_dirs_with(&deep, 0o755).unwrap();
        assert_eq!((mode(&deep), mode(&dir.path().join("a"))), (0o755, 0o755));
        make_dirs(&deep).unwrap();
        assert_eq!(mode(&deep), 0o755, "one that is there keeps its mode");
        make_dirs(&dir.path().join("d/e")).unwrap();
        assert_eq!(mode(&dir.path().join("d")), 0o700);
        open_file(&dir.path().join("file"), 0o600);
        assert!(make_dirs(&dir.path().join("file")).is_err());
    }

    #[test]
    fn an_old_directory_is_closed_and_what_it_links_to_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("root"), dir.path().join("other"));
        make_dirs_with(&root.join("cache/deep"), 0o755).unwrap();
        make_dirs_with(&root.join("mnt/inside"), 0o755).unwrap();
        std::fs::create_dir(&other).unwrap();
        open_file(&other.join("file"), 0o644);
        open_file(&root.join("cache/deep/chunks"), 0o644);
        open_file(&root.join("program"), 0o755);
        std::os::unix::fs::symlink(&other, root.join("cache/link")).unwrap();
        std::os::unix::fs::symlink(other.join("file"), root.join("file")).unwrap();
        let (skip, passable) = ([root.join("mnt")], [root.clone()]);
        let closed = close_to_others(&root, &passable, &skip).unwrap();
        assert_eq!(mode(&root), 0o711);
        assert_eq!(mode(&root.join("cache")), 0o700);
        assert_eq!(mode(&root.join("cache/deep/chunks")), 0o600);
        assert_eq!(mode(&root.join("program")), 0o700);
        assert_eq!(mode(&root.join("mnt/inside")), 0o755);
        assert_eq!(mode(&other.join("file")), 0o644);
        assert_eq!(closed.changed, 5, "root, cache, deep, chunks, program");
        let again = close_to_others(&root, &passable, &skip).unwrap();
        assert_eq!(
            (again.changed, again.seen),
            (0, 4),
            "only the top is looked at"
        );
        // A directory that an older version used meanwhile is closed completely again.
        open_file(&root.join("cache/deep/chunks"), 0o644);
        open_file(&root.join("new"), 0o644);
        assert_eq!(close_to_others(&root, &passable, &skip).unwrap().changed, 2);
        assert_eq!(mode(&root.join("cache/deep/chunks")), 0o600);
    }
}

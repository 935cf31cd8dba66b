//! Who may look: what floe keeps is its own user's alone, whatever the process's umask is.
//!
//! A node's directories hold the memory of every machine. So each directory and file is made with the modes below, and
//! [`close_to_others`] puts a directory right that was made by an older version. Only what a user publishes by name, a
//! [`Repository`](crate::Repository) for a web server, is open to everybody.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// Mode of a directory that is its owner's alone.
pub const DIR_MODE: u32 = 0o700;
/// Mode of a file that is its owner's alone.
pub const FILE_MODE: u32 = 0o600;
/// Rights of a file's group and of all others.
const OTHERS: u32 = 0o077;
/// Rights of those who are neither owner nor group.
const REST: u32 = 0o007;
/// Says that all of a directory was closed once.
pub const MARKER: &str = ".private";
/// Deepest level below a directory that [`close_to_others`] looks into: twice what floe makes.
const DEPTH_MAX: usize = 16;
/// Most entries that it looks at: a hundred times those of a large node.
const ENTRIES_MAX: u64 = 100_000_000;

/// Makes a directory, and those above it that are missing, each with exactly `mode`. One that is there keeps its mode.
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
        // the umask may have taken away what a web server needs
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a directory for this user alone, and those above it that are missing.
pub fn make_dirs(dir: &Path) -> io::Result<()> {
    make_dirs_with(dir, DIR_MODE)
}

/// How a file for this user alone is opened, made if it is missing; the caller says what for (`read`, `write`, `append`).
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(FILE_MODE);
    options
}

/// Writes a file for this user alone, in place of what it held.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = options().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, bytes)
}

/// From now on, what this process and its children make without saying a mode is this user's alone. For daemons: a
/// command's own files are for its user to share.
pub fn set_umask() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// What [`close_to_others`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Files and directories that were open to others.
    pub changed: u64,
    /// Those that were looked at.
    pub seen: u64,
}

/// Takes away what others may do with the files and directories below `dir`, and with `dir` itself.
///
/// Only what belongs to this user is changed, links are not followed, and other file systems are not entered, nor the
/// directories in `skip` (mountpoints, which may not answer) even looked at. Others may pass the directories in `passable`,
/// but not list them. Rights of a group that is not this process's own were given on purpose and stay.
///
/// All of it is looked at once, which a file [`MARKER`] tells the next call; that one looks at what lies in `dir` itself, and
/// at the rest only if anything there is open.
pub fn close_to_others(dir: &Path, passable: &[PathBuf], skip: &[PathBuf]) -> io::Result<Closed> {
    let mut walk = Walk {
        passable,
        skip,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        closed: Closed::default(),
    };
    let root = rustix::fs::stat(dir)?;
    if root.st_uid != walk.uid {
        tracing::warn!(dir = %dir.display(), owner = root.st_uid, "belongs to another user, who can read all of it");
        return Ok(walk.closed);
    }
    walk.close(dir, &root)?;
    let marker = dir.join(MARKER);
    let top = walk.directory(dir, root.st_dev)?;
    if walk.closed.changed == 0 && marker.exists() {
        return Ok(walk.closed);
    }
    walk.deeper(top, root.st_dev)?;
    write(&marker, b"1\n")?;
    Ok(walk.closed)
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
            Err(error) => return Err(error.into()),
        };
        let mut below = Vec::new();
        for entry in Dir::read_from(&handle)? {
            let entry = entry?;
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
                Err(error) => return Err(error.into()),
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

    /// Nobody else can put a link in the place of `path`: the directories on the way are closed before what is in them.
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
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// What was there a moment ago and isn't any more is nobody's to read.
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
        // one that an older version used meanwhile is closed as a whole again
        open_file(&root.join("cache/deep/chunks"), 0o644);
        open_file(&root.join("new"), 0o644);
        assert_eq!(close_to_others(&root, &passable, &skip).unwrap().changed, 2);
        assert_eq!(mode(&root.join("cache/deep/chunks")), 0o600);
    }
}

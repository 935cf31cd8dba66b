//! What a node finds when it starts and no record names: it may be the only copy of what a guest wrote, so it is moved into
//! `set-aside/` of the state directory instead of being removed. Only what certainly holds nothing of a guest's is removed.

use crate::time::unix_now;
use crate::{
    error::{NodeError, at, failed},
    files::make_private_dir,
};
use std::{
    fs::{self, DirEntry},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Name of the directory in the state directory.
const SET_ASIDE: &str = "set-aside";
/// How many levels below a directory are looked at: twice what floe makes.
const DEPTH_MAX: usize = 8;
/// How many names are tried there: more than a node starts in a second.
const NAMES_MAX: u32 = 1000;

/// Returns what is in a directory; nothing if it is not there, and an error that names it if it can't be listed.
pub fn list(dir: &Path) -> Result<Vec<DirEntry>, NodeError> {
    let cannot = || at(format!("cannot list {}", dir.display()));
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        found => {
            let entries = found.map_err(cannot())?;
            entries.collect::<io::Result<_>>().map_err(cannot())
        }
    }
}

/// Removes a directory that no record names, if `is_a_guests` says of none of its files that a guest may have written it; otherwise,
/// and if that can't be found out, sets it aside. The log says what became of it.
pub fn remove_or_set_aside(
    root: &Path,
    dir: &Path,
    is_a_guests: impl Fn(&Path, &fs::Metadata) -> bool,
) {
    match holds(dir, &is_a_guests) {
        Ok(false) => {
            if let Err(error) = fs::remove_dir_all(dir) {
                tracing::warn!(dir = %dir.display(), %error, "was not removed");
            }
        }
        Ok(true) => log(
            dir,
            set_aside(root, dir),
            "a guest's data that no record names",
        ),
        Err(error) => log(dir, set_aside(root, dir), &error.to_string()),
    }
}

/// Whether a file holds something: a hole takes no room.
pub fn has_data(meta: &fs::Metadata) -> bool {
    meta.blocks() > 0
}

/// Whether a directory has a file, at any depth, of which `is_a_guests` is true.
pub fn holds(
    dir: &Path,
    is_a_guests: &impl Fn(&Path, &fs::Metadata) -> bool,
) -> Result<bool, NodeError> {
    holds_below(dir, is_a_guests, DEPTH_MAX)
}

fn holds_below(
    dir: &Path,
    is_a_guests: &impl Fn(&Path, &fs::Metadata) -> bool,
    depth: usize,
) -> Result<bool, NodeError> {
    for entry in list(dir)? {
        let path = entry.path();
        let meta = entry.metadata();
        let meta = meta.map_err(at(format!("cannot look at {}", path.display())))?;
        let found = match (meta.is_dir(), depth) {
            (true, 0) => true,
            (true, _) => holds_below(&path, is_a_guests, depth - 1)?,
            (false, _) => is_a_guests(&path, &meta),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves a directory into `set-aside/`; returns where it is now.
fn set_aside(root: &Path, dir: &Path) -> Result<PathBuf, NodeError> {
    let to = root.join(SET_ASIDE);
    make_private_dir(&to)?;
    let name = dir.strip_prefix(root).unwrap_or(dir).display().to_string();
    let name = name.replace('/', ".");
    let now = unix_now();
    for number in 1..=NAMES_MAX {
        let aside = to.join(format!("{name}-{now}.{number}"));
        match fs::symlink_metadata(&aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::rename(dir, &aside).map_err(at(format!("cannot move {}", dir.display())))?;
                return Ok(aside);
            }
            _ => {} // something else is there, and stays
        }
    }
    Err(failed(
        format!("{} has no free name for {name}", to.display()),
        "move away what is in it",
    ))
}

fn log(dir: &Path, moved: Result<PathBuf, NodeError>, why: &str) {
    let dir = dir.display();
    match moved {
        Ok(to) => tracing::error!("{dir} is set aside ({why}); it is now {}", to.display()),
        Err(error) => tracing::error!(%error, "{dir} stays where it is ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// The names in `set-aside/`.
    fn aside(root: &Path) -> Vec<PathBuf> {
        let all = list(&root.join(SET_ASIDE)).unwrap();
        all.into_iter().map(|entry| entry.path()).collect()
    }

    #[test]
    fn what_a_guest_wrote_is_set_aside_and_what_holds_nothing_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (name, bytes) in [("full", 4096), ("empty", 0)] {
            let dir = root.join("standby").join(name).join("disks/disk0");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("base.json"), b"not a guest's").unwrap();
            let layer = fs::File::create(dir.join("layer-0.data")).unwrap();
            layer.set_len(1 << 20).unwrap();
            fs::write(dir.join("other"), vec![7; bytes]).unwrap();
            let guests =
                |path: &Path, meta: &fs::Metadata| !path.ends_with("base.json") && has_data(meta);
            remove_or_set_aside(root, &root.join("standby").join(name), guests);
        }
        assert!(list(&root.join("standby")).unwrap().is_empty());
        let aside = aside(root);
        assert_eq!(aside.len(), 1, "{aside:?}");
        let name = aside[0].file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("standby.full-"), "{name}");
        let kept = fs::read(aside[0].join("disks/disk0/other")).unwrap();
        assert_eq!(kept, vec![7; 4096]);
    }

    #[test]
    fn what_cannot_be_looked_at_is_set_aside() {
        let root = tempfile::tempdir().unwrap();
        let loops = root.path().join("loop");
        symlink(&loops, &loops).unwrap();
        assert!(
            list(&loops).is_err(),
            "a link to itself is no empty directory"
        );
        assert!(list(&root.path().join("nothing")).unwrap().is_empty());
        fs::write(root.path().join("file"), b"bytes").unwrap();
        assert!(list(&root.path().join("file")).is_err());
        for name in ["loop", "file"] {
            remove_or_set_aside(root.path(), &root.path().join(name), |_, _| false);
        }
        let aside = aside(root.path());
        assert_eq!(aside.len(), 2, "{aside:?}");
        let file = aside.iter().find(|path| path.is_file()).unwrap();
        assert_eq!(fs::read(file).unwrap(), b"bytes");
    }
}

//! The node's directories: they are made, and closed to other users.

use crate::machines;
use floe_ground::{
    error::{NodeError, at},
    files::PASSABLE_MODE,
    options::NodeOptions,
    reserve::{Reserve, is_full},
};
use floe_store::private;
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Creates the state directory and its subdirectories.
pub fn make_dirs(options: &NodeOptions) -> Result<(), NodeError> {
    let home = &options.home;
    let cannot = |dir: &Path| at(format!("cannot make {}", dir.display()));
    for dir in [
        home.root().to_owned(),
        home.machines(),
        home.run(),
        home.tmp(),
    ] {
        private::make_dirs(&dir).map_err(cannot(&dir))?;
    }
    let mountpoint = &options.mountpoint;
    make_mountpoint(mountpoint).map_err(cannot(mountpoint))
}

/// Closes the state directory and its subdirectories to other users, with room from the reserve if the disk is full.
pub fn close_dirs(options: &NodeOptions, reserve: &Reserve) -> Result<(), NodeError> {
    let (home, mountpoint) = (&options.home, &options.mountpoint);
    // a machine's own user, and members of the socket's group, must be able to reach their files
    let mut passable = Vec::new();
    if rustix::process::geteuid().is_root() {
        passable.push(home.machines());
        passable.push(home.root().join(machines::STANDBY_DIR));
    }
    if !passable.is_empty() || options.socket_group.is_some() {
        passable.push(home.root().to_owned());
    }
    close_to_others(home.root(), &passable, mountpoint, reserve)?;
    // directories that an operator has moved to another disk and linked
    for dir in [home.repo(), home.cache(), home.machines(), home.traces()] {
        if dir.is_symlink() {
            close_to_others(&dir, &passable, mountpoint, reserve)?;
        }
    }
    Ok(())
}

/// Creates the mountpoint. One that a dead node left answers nobody until it is taken over, so this must not even lstat it:
/// that call blocks if anybody has listed the directory before.
fn make_mountpoint(dir: &Path) -> std::io::Result<()> {
    if let Some(above) = dir.parent() {
        private::make_dirs_with(above, PASSABLE_MODE)?;
    }
    match fs::create_dir(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(PASSABLE_MODE)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Closes `dir` to other users, except `passable` and `skip`. `dir` may be a symlink; the other paths begin with its name.
fn close_to_others(
    dir: &Path,
    passable: &[PathBuf],
    skip: &Path,
    reserve: &Reserve,
) -> Result<(), NodeError> {
    let close = || {
        let real = dir.canonicalize()?;
        let there = |path: &Path| match path.strip_prefix(dir) {
            Ok(rest) if rest.as_os_str().is_empty() => real.clone(),
            Ok(rest) => real.join(rest),
            Err(_) => path.to_owned(),
        };
        let passable: Vec<PathBuf> = passable.iter().map(|path| there(path)).collect();
        private::close_to_others(&real, &passable, &[there(skip)])
    };
    let cannot = || at(format!("cannot close {} to others", dir.display()));
    let closed = match reserve.write(|| close().map_err(cannot())) {
        // everything is closed by then, and only the note of that finds no room: the next start looks at everything again
        Err(error) if is_full(&error) => {
            tracing::warn!(%error, "the disk is full; the next start does it again");
            return Ok(());
        }
        closed => closed?,
    };
    if closed.changed > 0 {
        let (changed, dir) = (closed.changed, dir.display());
        tracing::info!(changed, %dir, "files and directories were open to other users; they are closed now");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_behind_a_link_and_a_cache_on_another_disk_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, disk) = (dir.path().join("real"), dir.path().join("disk"));
        for open in [real.join("repo"), disk.clone(), real.join("mnt/inside")] {
            private::make_dirs_with(&open, 0o755).unwrap();
        }
        std::os::unix::fs::symlink(&real, dir.path().join("home")).unwrap();
        std::os::unix::fs::symlink(&disk, real.join("cache")).unwrap();
        fs::write(disk.join("chunks"), b"memory").unwrap();
        fs::set_permissions(disk.join("chunks"), fs::Permissions::from_mode(0o644)).unwrap();
        let home = floe_api::paths::Home::at(dir.path().join("home"));
        let options = NodeOptions::new(home).unwrap();
        make_dirs(&options).unwrap();
        close_dirs(&options, &Reserve::default()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&real.join("repo")), 0o700);
        assert_eq!((mode(&disk), mode(&disk.join("chunks"))), (0o700, 0o600));
        assert_eq!(
            mode(&real.join("mnt/inside")),
            0o755,
            "a mount may not answer"
        );
        let passable = if rustix::process::geteuid().is_root() {
            0o711
        } else {
            0o700
        };
        assert_eq!(
            (mode(&real), mode(&real.join("machines"))),
            (passable, passable)
        );
    }
}

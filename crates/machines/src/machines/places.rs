//! Where a machine's files are: in the directory of its record, or, once it has taken a QEMU that waited or has gone back to an image, in
//! one that its record names.

use super::{
    Machines, VM_DIR,
    launch::{BOOT_DIR, CONSOLE_LOG, DISKS_DIR, SCREEN_SOCKET, make_machine_dir},
};
use floe_ground::{
    aside,
    error::{NodeError, at},
};
use floe_inventory::inventory::{Entry, remove_all};
use floe_store::private;
use std::{
    fs::Metadata,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// The directory of QEMUs that wait, and of machines that have taken one, in the state directory.
pub const STANDBY_DIR: &str = "standby";
/// What a machine's QEMU and disks have in its directory, beside its record.
const PARTS: [&str; 3] = [VM_DIR, DISKS_DIR, BOOT_DIR];

/// A directory for a machine's files that no record names. Unless one does by then, the next node removes it, or sets it aside if a guest
/// has written there.
pub struct NewPlace {
    /// Its path.
    pub dir: PathBuf,
    /// The same, relative to the state directory.
    pub directory: String,
    /// The name of the machine's directory on the mount.
    pub mount_name: String,
}

impl Machines {
    /// Makes a directory for a machine's files.
    pub fn new_place(&self) -> Result<NewPlace, NodeError> {
        // differs from all machines' names, and from those of machines that waited under an earlier node
        let unique = format!("{}-{:08x}", self.standby.number(), rand::random::<u32>());
        let above = self.core.home.root().join(STANDBY_DIR);
        let dir = above.join(&unique);
        private::make_dirs(&above).map_err(at(format!("cannot make {}", above.display())))?;
        // only what did not exist before is removed when it is cleared
        make_machine_dir(&dir)?;
        Ok(NewPlace {
            dir,
            directory: format!("{STANDBY_DIR}/{unique}"),
            mount_name: format!("standby.{unique}"),
        })
    }

    /// Removes the files of what a machine was before its record named others, in `place`; what its guest wrote there is set aside if
    /// that is wanted. Its QEMU has ended.
    pub fn clear_former(&self, entry: &Entry, place: &Path, set_aside: bool) {
        // what was lent may have had one without a QEMU
        self.screens.close(&place.join(VM_DIR).join(SCREEN_SOCKET));
        for part in parts(&entry.dir, place) {
            match std::fs::symlink_metadata(&part) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                _ => {} // if it can't be looked at, it can't be removed either, which is told
            }
            if set_aside {
                aside::remove_or_set_aside(self.core.home.root(), &part, is_a_guests);
            } else if let Err(error) = remove_all(&part) {
                tracing::warn!(machine = %entry.name, %error, "what it was before stays on the disk");
            }
        }
    }
}

/// Returns what is to go of a machine's former place. The directory `home` has its record, and stays.
fn parts(home: &Path, place: &Path) -> Vec<PathBuf> {
    match place == home {
        true => PARTS.iter().map(|part| home.join(part)).collect(),
        false => vec![place.to_owned()],
    }
}

/// Whether a file of a machine's directory may hold what a guest wrote: the data of its disks' layers, and its console.
pub fn is_a_guests(path: &Path, meta: &Metadata) -> bool {
    let is_layer = path.extension().is_some_and(|kind| kind == "data");
    (is_layer || path.ends_with(CONSOLE_LOG)) && aside::has_data(meta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_record_stays_when_its_former_files_go() {
        let home = Path::new("/state/machines/web");
        let gone = parts(home, home);
        assert_eq!(gone, ["vm", "disks", "boot"].map(|part| home.join(part)));
        let elsewhere = Path::new("/state/standby/3-00c0ffee");
        assert_eq!(parts(home, elsewhere), [elsewhere]);
    }
}

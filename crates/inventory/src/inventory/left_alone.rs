//! Machines whose records can't be read. A node that starts leaves them alone: nothing of them is changed or removed, their names and
//! directories stay taken, and the images that they stand on stay here, until a user removes them or restores their record.

use super::{Entry, Inventory, kept::RECORD_FILE};
use floe_ground::{
    error::{NodeError, at, busy, failed},
    names::MachineName,
};
use floe_image::Hash;
use floe_machine::exec::{UID_COUNT, UID_FIRST};
use floe_mount::Mount;
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A machine that is left alone.
#[derive(Clone, Debug)]
pub struct LeftAlone {
    /// What it is called: its directory's name, or one like it if a machine has that.
    pub name: MachineName,
    /// Its directory, or whatever there is instead.
    pub dir: PathBuf,
    /// What is wrong with it.
    pub why: String,
    /// The images that it stands on, as far as its directory tells.
    images: Vec<Hash>,
    /// The user that its files are for.
    uid: Option<u32>,
}

impl LeftAlone {
    /// Looks at what can be known without the record.
    pub fn find(name: MachineName, dir: PathBuf, why: String) -> LeftAlone {
        let mut images = Mount::recorded_bases(&dir.join("disks")).unwrap_or_default();
        // what can't be listed can't be kept; it is not removed either
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let id = file
                .to_str()
                .and_then(|file| file.strip_suffix(".manifest"));
            images.extend(id.and_then(|id| id.parse::<Hash>().ok()));
        }
        // its QEMU's user reaches its files as their group
        let group = fs::metadata(&dir).ok().map(|dir| dir.gid());
        let uid = group.filter(|gid| (UID_FIRST..UID_FIRST + UID_COUNT).contains(gid));
        LeftAlone {
            name,
            dir,
            why,
            images,
            uid,
        }
    }

    /// What its user can do.
    pub fn way_out(&self) -> String {
        let (name, dir) = (&self.name, self.dir.display());
        format!(
            "restore {dir}/{RECORD_FILE} from a backup and restart the node; floe rm {name} removes the machine with its disks"
        )
    }

    fn refusal(&self, what: &str) -> NodeError {
        busy(format!("{what}: {}", self.why), self.way_out())
    }
}

impl Inventory {
    /// Adds a machine that is left alone; returns what it is called.
    pub fn leave_alone(&self, dir_name: MachineName, dir: PathBuf, why: String) -> MachineName {
        let (entries, mut left) = (self.entries.read(), self.left_alone.write());
        let taken = |name: &MachineName| entries.contains_key(name) || left.contains_key(name);
        let name = match taken(&dir_name) {
            true => MachineName::from_image(dir_name.as_str(), taken),
            false => dir_name,
        };
        let one = LeftAlone::find(name.clone(), dir, why);
        self.keep_user(&name, one.uid);
        left.insert(name.clone(), one);
        name
    }

    /// Returns the machine of this name, if it is left alone.
    pub fn left_alone(&self, name: &str) -> Option<LeftAlone> {
        let left = self.left_alone.read();
        left.values().find(|one| one.name.as_str() == name).cloned()
    }

    /// Returns all machines that are left alone, by name.
    pub fn all_left_alone(&self) -> Vec<LeftAlone> {
        self.left_alone.read().values().cloned().collect()
    }

    /// Whether any machine is left alone: it may need what no record names.
    pub fn any_left_alone(&self) -> bool {
        !self.left_alone.read().is_empty()
    }

    /// Whether there is a machine of this name, be it one that is left alone.
    pub fn knows(&self, name: &str) -> bool {
        self.get(name).is_ok() || self.left_alone(name).is_some()
    }

    /// Removes a machine that was left alone from the list, because its files are gone.
    pub fn forget_left_alone(&self, name: &MachineName) {
        let left = self.left_alone.write().remove(name);
        self.users.release(left.and_then(|left| left.uid));
        self.changed.beat();
    }

    /// Returns an error that says who has a name, if a machine has it.
    pub fn check_free(&self, name: &MachineName) -> Result<(), NodeError> {
        check_free(&self.entries.read(), &self.left_alone.read(), name)
    }

    /// Returns the names of all machines.
    pub fn names(&self) -> Vec<String> {
        let entries = self.all().into_iter().map(|entry| entry.name.to_string());
        let left = self.all_left_alone().into_iter();
        entries
            .chain(left.map(|one| one.name.to_string()))
            .collect()
    }

    /// Returns why a machine that is left alone can't be used.
    pub(super) fn unusable(&self, name: &MachineName) -> Option<NodeError> {
        let left = self.left_alone.read();
        let one = left.get(name)?;
        let what = format!("machine {name} can't be used, its record can't be read");
        Some(failed(format!("{what}: {}", one.why), one.way_out()))
    }

    /// Whether a machine that is left alone has a directory of this name.
    pub(super) fn has_left_alone(&self, place: &str) -> bool {
        let left = self.left_alone.read();
        let has = |one: &LeftAlone| one.dir.file_name().is_some_and(|name| name == place);
        left.values().any(has)
    }

    /// Returns the images that machines which are left alone stand on, with the machines' names.
    pub(super) fn images_left_alone(&self) -> Vec<(Hash, MachineName)> {
        let left = self.left_alone.read();
        let of = |one: &LeftAlone| {
            let name = one.name.clone();
            one.images
                .clone()
                .into_iter()
                .map(move |id| (id, name.clone()))
        };
        left.values().flat_map(of).collect()
    }
}

/// Returns an error that says who has a name, if a machine has it.
pub(super) fn check_free(
    entries: &BTreeMap<MachineName, Arc<Entry>>,
    left: &BTreeMap<MachineName, LeftAlone>,
    name: &MachineName,
) -> Result<(), NodeError> {
    if entries.contains_key(name) {
        return Err(busy(
            format!("there is a machine {name} already"),
            format!("choose another name, or remove it: floe rm {name}"),
        ));
    }
    match left.get(name) {
        Some(one) => Err(one.refusal(&format!(
            "there is a machine {name} already, whose record can't be read"
        ))),
        None => Ok(()),
    }
}

/// Passes on an error of removing a file or directory, unless it is that there is none.
pub fn remove_all(path: &Path) -> Result<(), NodeError> {
    let removed = fs::symlink_metadata(path).and_then(|meta| match meta.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    });
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(at(format!("cannot remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::{inventory, reserve};
    use floe_api::ErrorCode;

    #[test]
    fn what_is_left_alone_keeps_its_name_its_directory_and_its_images() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("web");
        fs::create_dir(&dir).unwrap();
        let image = Hash::of(b"its image");
        fs::write(dir.join(format!("{image}.manifest")), b"").unwrap();
        let machines = inventory();
        let other = reserve(&machines, Some("other")).unwrap();
        let web = machines.leave_alone("web".parse().unwrap(), dir.clone(), "damaged".into());
        let refused = [
            reserve(&machines, Some("web")).err().unwrap(),
            machines.rename(&other, &web).unwrap_err(),
            machines.get("web").err().unwrap(),
        ];
        for error in refused.map(|error| error.to_api()) {
            assert_ne!(error.code, ErrorCode::NotFound);
            assert!(error.message.contains("damaged"), "{error}");
            assert!(error.fix.contains("floe rm web"), "{error}");
        }
        assert!(machines.has_left_alone("web"), "nobody gets its directory");
        assert!(machines.knows("web") && machines.names().contains(&"web".to_owned()));
        let user = machines.user_of(&image).unwrap();
        assert!(user.contains("web") && machines.images().contains(&image));
        // a machine that was renamed keeps its directory: its name may be another's
        let dir = root.path().join("other");
        let called = machines.leave_alone("other".parse().unwrap(), dir, "gone".into());
        assert_eq!(called.as_str(), "other-2");
        machines.forget_left_alone(&web);
        reserve(&machines, Some("web")).unwrap();
    }
}

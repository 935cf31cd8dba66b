//! Disks of a machine that come and go while its VMM runs.

use crate::machine::Machine;
use crate::overlay::{Disk, RECORD};
use crate::tree::disk_entry;
use crate::{DiskSpec, Mount, MountError};
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Mount {
    fn machine_of(&self, name: &str) -> Result<Arc<Machine>, MountError> {
        let machine = self.core.machines.read().get(name).cloned();
        machine.ok_or_else(|| MountError::Unknown {
            what: "machine",
            name: name.to_owned(),
        })
    }

    /// Gives a machine that is on the mount another disk, the last of its disks. When this returns its file is there, and its record
    /// is durable.
    pub fn add_disk(&self, machine: &str, spec: &DiskSpec) -> Result<(), MountError> {
        let machine = self.machine_of(machine)?;
        let _one = machine.changing.lock();
        if machine.disk(&spec.name).is_some() {
            return Err(MountError::Name {
                what: "disk",
                name: spec.name.clone(),
                reason: "the machine has one of that name; remove it first",
            });
        }
        let disk = self.open_disk(&machine.dir, &machine.image, spec)?;
        let owner = Some((machine.uid, machine.gid));
        self.core
            .tree
            .add(vec![disk_entry(&machine, disk.clone())], owner)?;
        machine.disks.write().push(disk);
        Ok(())
    }

    /// Takes a disk of a machine off the mount, and removes what was written to it. A VMM that still has it open gets errors.
    pub fn remove_disk(&self, machine: &str, disk: &str) -> Result<(), MountError> {
        let machine = self.machine_of(machine)?;
        let _one = machine.changing.lock();
        let removed = machine.disk(disk).ok_or_else(|| MountError::Unknown {
            what: "disk",
            name: disk.to_owned(),
        })?;
        self.remove(&format!("machines/{}/{disk}", machine.name))?;
        let is_kept = |known: &Arc<Disk>| !Arc::ptr_eq(known, &removed);
        machine.disks.write().retain(is_kept);
        machine.files.forget(&removed);
        removed.close();
        Mount::discard_disk(&machine.dir, disk)
    }

    /// Removes what was written to a disk that is on no mount; `dir` is its machine's directory. It is no error if there is nothing.
    pub fn discard_disk(dir: &Path, disk: &str) -> Result<(), MountError> {
        let dir = Disk::dir(dir, disk);
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            list => list.map_err(MountError::io("list", &dir))?,
        };
        let discard = || -> io::Result<()> {
            for entry in entries {
                let path = entry?.path();
                match std::fs::symlink_metadata(&path)?.is_dir() {
                    _ if path.ends_with(RECORD) => {} // last: while it is there, the disk is known, and this can be done again
                    true => std::fs::remove_dir_all(&path)?,
                    false => std::fs::remove_file(&path)?,
                }
            }
            std::fs::remove_dir_all(&dir)
        };
        discard().map_err(MountError::io("remove", &dir))
    }
}

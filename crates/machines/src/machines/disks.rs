//! A machine's disks: which there are, and making one larger.

use super::Machines;
use floe_api::{DiskInfo, DiskList, DiskModel, ResizeRequest, size_text};
use floe_ground::error::{NodeError, busy, failed, not_found, refused, usage};
use floe_image::CHUNK_SIZE;
use floe_inventory::inventory::{
    Entry, Operation,
    lifecycle::{Phase, Task},
};
use floe_mount::Mount;
use std::collections::BTreeSet;

impl Machines {
    /// Returns a machine's disks.
    pub fn list_disks(&self, name: &str) -> Result<DiskList, NodeError> {
        let entry = self.inventory.get(name)?;
        self.disks_of(&entry)
    }

    fn disks_of(&self, entry: &Entry) -> Result<DiskList, NodeError> {
        let record = entry.record();
        let sizes = Mount::recorded_sizes(&self.disk_dir(&record))?;
        // a machine that runs may have got disks since its record was written
        let config = entry
            .vm()
            .map_or_else(|_| record.config.clone(), |vm| vm.config());
        let disks = sizes.into_iter().map(|(name, bytes)| DiskInfo {
            model: floe_machine::disk_model(&config, &name).map(disk_model),
            alias: record.disk_alias(&name).map(str::to_owned),
            name,
            bytes,
            image: record.disk_base.to_string(),
        });
        Ok(DiskList {
            disks: disks.collect(),
        })
    }

    /// Makes a disk of a machine larger, which runs or is stopped.
    pub fn resize_disk(&self, name: &str, request: &ResizeRequest) -> Result<DiskList, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Resize)?;
        let disks = self.disks_of(&operation)?.disks;
        let called = disk_called(&operation, &request.disk)?;
        let disk = disks.iter().find(|disk| disk.name == called);
        let disk = disk.ok_or_else(|| no_disk(&operation, &request.disk))?;
        if floe_image::is_special_disk(&disk.name) {
            return Err(refused(
                format!(
                    "{} of {name} is made for what is on it, and has no other size",
                    disk.name
                ),
                "name one of disk0, disk1, ...",
            ));
        }
        let bytes = request.bytes;
        if !bytes.is_multiple_of(CHUNK_SIZE as u64) {
            return Err(usage(
                format!("{bytes} bytes are no size of a disk"),
                format!("give a multiple of {CHUNK_SIZE}"),
            ));
        }
        if bytes < disk.bytes {
            return Err(refused(
                format!(
                    "{} of {name} has {}: made smaller it would lose what is at its end",
                    disk.name,
                    size_text(disk.bytes)
                ),
                "copy what is needed to a smaller disk in the guest, and import that",
            ));
        }
        match operation.phase() {
            Phase::Stopped => {
                self.attach(&operation)?;
                let grown = grow_file(&operation, &disk.name, bytes);
                self.detach(&operation)?;
                grown?;
            }
            Phase::Running => self.grow_live(&operation, &disk.name, bytes)?,
            Phase::Parked => drop(operation.vm()?),
            _ => {
                return Err(busy(
                    format!("machine {name} neither runs nor is stopped at the moment"),
                    format!("floe wait {name} --for running, and resize its disk then"),
                ));
            }
        }
        self.disks_of(&operation)
    }

    /// Makes a disk larger that a QEMU has open. First its file, durably: whatever is killed after that, the next QEMU opens it with
    /// the new size, and the next node tells a QEMU that goes on.
    fn grow_live(&self, operation: &Operation, disk: &str, bytes: u64) -> Result<(), NodeError> {
        let (name, vm) = (&operation.name, operation.vm()?);
        if !vm.disk_tells_its_size(disk) {
            return Err(refused(
                format!(
                    "{disk} of {name} is of a model that can't tell a running guest of its new size"
                ),
                format!("floe stop {name}, resize the disk, and floe start {name}"),
            ));
        }
        grow_file(operation, disk, bytes)?;
        self.settle_disks(operation).map_err(|error| {
            failed(
                format!(
                    "{disk} of {name} has {} now, but its guest was not told: {}",
                    size_text(bytes),
                    error.to_api()
                ),
                "give the same command again, or stop and start the machine",
            )
        })
    }

    /// Removes what is left of disks that a machine no longer has, or never got: its record and what was written to it. A node may have
    /// ended between the steps of giving it one, and a guest may let one go at any time after it was asked to.
    pub(crate) fn drop_lost_disks(&self, entry: &Entry) -> Result<(), NodeError> {
        let record = entry.record();
        let dir = self.disk_dir(&record);
        let is_lost = |name: &str| {
            let given = floe_image::disk_number(name).is_some_and(|number| number > 0);
            given && !record.config.disks.iter().any(|disk| disk == name)
        };
        let mut lost: BTreeSet<String> = Mount::recorded_sizes(&dir)?.into_keys().collect();
        lost.extend(record.own_disks.iter().map(|own| own.name.clone()));
        lost.retain(|name| is_lost(name));
        if lost.is_empty() {
            return Ok(());
        }
        let shown = entry.mounted().ok();
        for disk in &lost {
            match shown.as_ref().and_then(|shown| shown.disk_path(disk)) {
                Some(_) => self
                    .images
                    .with_mount(|mount| mount.remove_disk(&record.mount_name, disk))?,
                None => Mount::discard_disk(&dir, disk)?,
            }
        }
        // what was written is gone first: while the record names a disk, it is looked for
        entry.update(|record| record.own_disks.retain(|own| !lost.contains(&own.name)))
    }

    /// Tells a machine's QEMU of disks that have grown: just now, or under a node that ended before it could.
    pub fn settle_disks(&self, entry: &Entry) -> Result<(), NodeError> {
        let sizes = entry.mounted()?.disk_sizes();
        Ok(entry.vm()?.settle_disks(&sizes)?)
    }
}

/// Returns the name of a machine's disk that its user calls so.
pub(crate) fn disk_called(entry: &Entry, called: &str) -> Result<String, NodeError> {
    let found = entry.record().disk_called(called);
    found.ok_or_else(|| no_disk(entry, called))
}

fn no_disk(entry: &Entry, called: &str) -> NodeError {
    let record = entry.record();
    let shown = |disk: &String| match record.disk_alias(disk) {
        Some(alias) => format!("{alias} ({disk})"),
        None => disk.clone(),
    };
    let known: Vec<String> = record.config.disks.iter().map(shown).collect();
    not_found(
        format!("machine {} has no disk {called}", entry.name),
        match known.is_empty() {
            true => "it has no disks at all".to_owned(),
            false => format!("it has {}", known.join(", ")),
        },
    )
}

fn disk_model(model: floe_machine::DiskModel) -> DiskModel {
    match model {
        floe_machine::DiskModel::Virtio => DiskModel::Virtio,
        floe_machine::DiskModel::Scsi => DiskModel::Scsi,
        floe_machine::DiskModel::Sata => DiskModel::Sata,
        floe_machine::DiskModel::Ide => DiskModel::Ide,
        floe_machine::DiskModel::Nvme => DiskModel::Nvme,
    }
}

fn grow_file(entry: &Entry, disk: &str, bytes: u64) -> Result<(), NodeError> {
    Ok(entry.mounted()?.grow_disk(disk, bytes)?)
}

//! A machine's disks: which there are, and making one larger.

use super::Machines;
use crate::{
    error::{NodeError, not_found, refused, usage},
    inventory::{
        Entry,
        lifecycle::{Phase, Task},
    },
};
use floe_api::{DiskInfo, DiskList, ResizeRequest, size_text};
use floe_image::CHUNK_SIZE;
use floe_mount::Mount;

impl Machines {
    /// Returns a machine's disks.
    pub fn list_disks(&self, name: &str) -> Result<DiskList, NodeError> {
        let entry = self.inventory.get(name)?;
        self.disks_of(&entry)
    }

    fn disks_of(&self, entry: &Entry) -> Result<DiskList, NodeError> {
        let record = entry.record();
        let sizes = Mount::recorded_sizes(&self.disk_dir(&record))?;
        let disks = sizes.into_iter().map(|(name, bytes)| DiskInfo {
            name,
            bytes,
            image: record.disk_base.to_string(),
        });
        Ok(DiskList {
            disks: disks.collect(),
        })
    }

    /// Makes a disk of a stopped machine larger.
    pub fn resize_disk(&self, name: &str, request: &ResizeRequest) -> Result<DiskList, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Resize)?;
        let disks = self.disks_of(&operation)?.disks;
        let Some(disk) = disks.iter().find(|disk| disk.name == request.disk) else {
            let known: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
            return Err(not_found(
                format!("machine {name} has no disk {}", request.disk),
                match known.as_slice() {
                    [] => "it has no disks at all".to_owned(),
                    known => format!("it has {}", known.join(", ")),
                },
            ));
        };
        if floe_machine::is_special(&disk.name) {
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
        if operation.life().phase() != Phase::Stopped {
            return Err(refused(
                format!("machine {name} is not stopped: its guest would not see the new size"),
                format!("floe stop {name}, resize the disk, and floe start {name}"),
            ));
        }
        // a node may have been killed before all was durable that its predecessor's mount had taken
        self.attach(&operation)?;
        self.detach(&operation)?;
        Mount::grow_disk(&self.disk_dir(&operation.record()), &disk.name, bytes)?;
        self.disks_of(&operation)
    }
}

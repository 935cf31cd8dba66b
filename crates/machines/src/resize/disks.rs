//! Disks that a machine is given, while it runs or for its next start, and that are taken away again.
//!
//! ```text
//! given:  its number is in the record -> it is on the mount, with its content -> the record's hardware has it -> QEMU
//! taken:  the guest has let it go, QEMU too -> the record's hardware lacks it -> what was written to it goes, then its number
//! ```
//! A disk is the machine's as soon, and as long, as the hardware in its record names it: what a node that ended has left of any other is
//! removed (`drop_lost_disks`). Where QEMU goes on it decides: the next node asks it what it has.

use super::{RECEPTION_LIMIT, Resizes, cards::RELEASE_LIMIT, sparse};
use crate::machines::disk_called;
use floe_api::{AttachDiskRequest, AttachedDisk, ImportFormat, Outcome, size_text};
use floe_ground::{
    error::{NodeError, at, busy, refused, usage},
    news::News,
    report::Report,
};
use floe_guest::chores::{DiskUse, names};
use floe_image::CHUNK_SIZE;
use floe_inventory::inventory::{
    Operation, check_alias,
    lifecycle::{Phase, Task},
    record::OwnDisk,
};
use floe_library::images::RawDisk;
use floe_machine::{Machine, Reception};
use floe_mount::DiskSpec;
use std::{fs::File, path::Path, time::Duration};

/// How long a guest's agent may take to look what a disk is used for.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// A disk that a machine is to be given.
pub struct NewDisk {
    /// What its user calls it.
    alias: String,
    /// Its size in bytes.
    bytes: u64,
    /// What is on it; nothing of an empty one.
    content: Option<RawDisk>,
}

impl Resizes {
    /// Checks what a disk is to be, and opens and converts what is to be on it. This takes its time, and no machine is needed for it.
    pub fn new_disk(
        &self,
        alias: &str,
        request: &AttachDiskRequest,
        report: &mut Report,
    ) -> Result<NewDisk, NodeError> {
        check_alias(alias)?;
        let (bytes, content) = match (request.bytes, &request.path) {
            (Some(bytes), None) => (bytes, None),
            (None, Some(path)) => {
                let as_raw = request.format == Some(ImportFormat::Raw);
                let raw = self
                    .images
                    .open_data_disk(Path::new(path), as_raw, report)?;
                let length = raw
                    .file
                    .metadata()
                    .map_err(at(format!("cannot look at {path}")))?;
                // a device has no length of its own
                let bytes = match length.is_file() {
                    true => length.len(),
                    false => rustix::fs::seek(&raw.file, rustix::fs::SeekFrom::End(0))
                        .map_err(std::io::Error::from)
                        .map_err(at(format!("cannot find the size of {path}")))?,
                };
                (bytes.next_multiple_of(CHUNK_SIZE as u64), Some(raw))
            }
            _ => {
                return Err(usage(
                    "a new disk is empty, or has what is in a file",
                    "give either bytes or path",
                ));
            }
        };
        if bytes == 0 || !bytes.is_multiple_of(CHUNK_SIZE as u64) {
            return Err(usage(
                format!("{bytes} bytes are no size of a disk"),
                format!("give a multiple of {CHUNK_SIZE}, such as 20G"),
            ));
        }
        Ok(NewDisk {
            alias: alias.to_owned(),
            bytes,
            content,
        })
    }

    /// Gives a machine a disk that was prepared. Several machines may be given what is on it, each its own copy.
    pub fn attach_new(
        &self,
        name: &str,
        new: &NewDisk,
        report: &mut Report,
    ) -> Result<AttachedDisk, NodeError> {
        let operation = self.inventory.get(name)?.begin(Task::Attach)?;
        self.give_disk(&operation, new, report)
    }

    /// Gives a machine another disk, which runs or is stopped.
    pub fn attach_disk(
        &self,
        name: &str,
        alias: &str,
        request: &AttachDiskRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        // a machine that is not there is told before a file is converted for it
        self.inventory.get(name)?;
        let new = self.new_disk(alias, request, report)?;
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Attach)?;
        let disk = self.give_disk(&operation, &new, report)?;
        Ok(Outcome {
            machine: Some(self.machines.info_of(&operation)),
            disk: Some(disk),
            ..Default::default()
        })
    }

    /// Gives the machine of an operation a disk. Whatever fails, it has the disk afterwards, or nothing is left of it.
    fn give_disk(
        &self,
        operation: &Operation,
        new: &NewDisk,
        report: &mut Report,
    ) -> Result<AttachedDisk, NodeError> {
        let name = &operation.name;
        let record = operation.record();
        if record.disk_called(&new.alias).is_some() {
            return Err(refused(
                format!("machine {name} has a disk {} already", new.alias),
                format!("choose another name; or floe detach {name} {}", new.alias),
            ));
        }
        let disk = format!("disk{}", record.free_disk());
        // whether there is room for it
        let mut config = record.config.clone();
        let sector = new.content.as_ref().and_then(|raw| raw.sector);
        floe_machine::give_disk(&mut config, &disk, sector).map_err(|why| {
            refused(
                format!("machine {name} can't be given a disk: {why}"),
                "take one away first",
            )
        })?;
        let in_use = match operation.phase() {
            Phase::Stopped => {
                self.machines.attach(operation)?;
                let given = self.make_disk(operation, &disk, new, report);
                let detached = self.machines.detach(operation);
                given
                    .and(detached)
                    .inspect_err(|_| self.drop_lost(operation))?;
                None
            }
            Phase::Running => {
                let vm = operation.vm()?;
                self.check_executes(operation, &vm)?;
                vm.check_room_for_disk()?;
                self.make_disk(operation, &disk, new, report)
                    .inspect_err(|_| self.drop_lost(operation))?;
                Some(self.plug_disk(operation, &vm, &disk, sector)?)
            }
            other => return Err(not_now(name.as_str(), other)),
        };
        report.stage_at("attach", std::time::Instant::now());
        let told = format!("{} ({disk}, {})", new.alias, size_text(new.bytes));
        self.core.tell(name.as_str(), &News::Attached(told));
        Ok(AttachedDisk {
            name: new.alias.clone(),
            disk,
            bytes: new.bytes,
            in_use,
        })
    }

    /// Makes a disk on the mount, with its content, and enters it into the hardware of the machine's record.
    fn make_disk(
        &self,
        operation: &Operation,
        disk: &str,
        new: &NewDisk,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let own = OwnDisk {
            name: disk.to_owned(),
            bytes: new.bytes,
            alias: Some(new.alias.clone()),
        };
        operation.update(|record| {
            record.next_disk = record.free_disk() + 1;
            record.own_disks.push(own);
        })?;
        let spec = DiskSpec {
            name: disk.to_owned(),
            base: None,
            size: new.bytes,
        };
        let place = &operation.record().mount_name;
        self.images
            .with_mount(|mount| mount.add_disk(place, &spec))?;
        if let Some(raw) = &new.content {
            let unwritable = || at(format!("cannot write the disk {}", new.alias));
            let path = operation.mounted()?.disk_path(disk).unwrap_or_default();
            let to = File::options().write(true).open(path);
            let to = to.map_err(unwritable())?;
            let line = report.progress_line("write disk", "bytes");
            let mut progress = |done| line.at(done, new.bytes);
            let copied = sparse::copy(&raw.file, &to, &mut progress);
            report.check()?;
            copied.and_then(|()| to.sync_all()).map_err(unwritable())?;
            report.stage("write disk")?;
        }
        let sector = new.content.as_ref().and_then(|raw| raw.sector);
        operation.update(|record| {
            // that there is room was checked before
            let _ = floe_machine::give_disk(&mut record.config, disk, sector);
        })
    }

    /// Has QEMU plug a disk in that is on the mount. Returns whether a driver in the guest uses it.
    fn plug_disk(
        &self,
        operation: &Operation,
        vm: &Machine,
        disk: &str,
        sector: Option<u32>,
    ) -> Result<bool, NodeError> {
        let path = operation.mounted()?.disk_path(disk).unwrap_or_default();
        let added = vm.add_disk(disk, &path, sector);
        // from here on the record says what QEMU says
        self.machines.settle_size(operation, None)?;
        added?;
        // whatever is not known of the guest, the machine has it
        let reception = vm.reception(disk, RECEPTION_LIMIT);
        Ok(matches!(reception, Ok(Reception::Taken)))
    }

    fn drop_lost(&self, operation: &Operation) {
        if let Err(error) = self.machines.drop_lost_disks(operation) {
            tracing::warn!(machine = %operation.name, %error, "the disk that it was not given is removed at its next start");
        }
    }

    /// Takes a disk away from a machine, and what is on it with it: once its guest has let it go if it runs.
    pub fn detach_disk(&self, name: &str, called: &str) -> Result<(), NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Attach)?;
        let disk = disk_called(&operation, called)?;
        if floe_image::disk_number(&disk).is_none_or(|number| number == 0) {
            return Err(refused(
                format!("machine {name} can't do without its disk {disk}: it was started with it"),
                "disks that it was given later can be taken away: see floe disk ls",
            ));
        }
        match operation.phase() {
            Phase::Stopped => {
                operation.update(|record| floe_machine::take_disk(&mut record.config, &disk))?;
                self.machines.drop_lost_disks(&operation)?;
            }
            Phase::Running => {
                let vm = operation.vm()?;
                self.check_executes(&operation, &vm)?;
                self.unplug_disk(&operation, &vm, &disk, called)?;
            }
            other => return Err(not_now(name, other)),
        }
        self.core.tell(name, &News::Detached(called.to_owned()));
        Ok(())
    }

    fn unplug_disk(
        &self,
        operation: &Operation,
        vm: &Machine,
        disk: &str,
        called: &str,
    ) -> Result<(), NodeError> {
        let name = &operation.name;
        if !floe_machine::is_removable_disk(&vm.config(), disk) {
            return Err(refused(
                format!(
                    "the disk {called} of {name} can't be taken away while it runs: it was started with it"
                ),
                format!(
                    "floe stop {name}, then floe detach {name} {called}, and floe start {name}"
                ),
            ));
        }
        // Linux lets a disk go whatever is mounted from it. Without an agent nobody can look.
        let used: Result<DiskUse, _> =
            self.agents
                .chore(operation, names::DISK, &[disk], LOOK_LIMIT);
        if let Some(place) = used.ok().and_then(|used| used.used_by.into_iter().next()) {
            return Err(refused(
                format!("the guest of {name} uses the disk {called}: {place}"),
                "let it go in the guest (umount, swapoff), and give the command again",
            ));
        }
        let removed = vm.remove_disk(disk, RELEASE_LIMIT);
        // a guest that was asked before may have let it go meanwhile
        self.machines.settle_size(operation, None)?;
        Ok(removed?)
    }
}

/// Returns the error of a machine that neither runs nor is stopped.
fn not_now(name: &str, phase: Phase) -> NodeError {
    match phase {
        Phase::Parked => refused(
            format!("machine {name} is parked"),
            format!("floe wake {name}, and give the command again then"),
        ),
        _ => busy(
            format!("machine {name} neither runs nor is stopped at the moment"),
            format!("floe wait {name} --for running, and give the command again then"),
        ),
    }
}

//! Adds vCPUs, memory, network cards and disks to a running machine, and removes cards and disks.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # use floe_machine::*;
//! # fn resize(machine: &Machine) -> Result<(), MachineError> {
//! let room = machine.room();
//! println!("{} of at most {} vCPUs", room.cpus, room.cpus_max);
//! for id in machine.add_cpus(3)? {
//!     // The guest may need a moment, or may have no driver.
//!     assert_eq!(machine.reception(&id, Duration::from_secs(10))?, Reception::Taken);
//! }
//! machine.add_memory(512 << 20)?;
//! machine.add_card(None)?;
//! let disk = machine.free_disk_name();
//! machine.add_disk(&disk, Path::new("/var/lib/floe/more.raw"), None)?;
//! machine.remove_disk(&disk, Duration::from_secs(10))?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything that was added is in the machine's configuration: a capture records it in the image, and a restore puts it
//! on QEMU's command line. A change is recorded before QEMU is asked to make it; whoever adopts the machine after a crash
//! asks QEMU which changes were made ([`Machine::settle_hardware`]).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_image::{MachineConfig, memory_region};
use serde_json::{Value, json};

use crate::command::{self, RamBacking};
use crate::devices;
use crate::error::{GrowError, MachineError};
use crate::hardware::{MEMORY_SLOTS, MEMORY_STEP_BYTES, Room};
use crate::incompatible::CPU_MODEL_DEFAULT;
use crate::machine::Machine;
use crate::qmp::QmpError;
use crate::record::Record;
use crate::sectors;
use crate::spec::DISKS_MAX;

/// How often QEMU is asked whether the guest's driver has set a device up: QEMU has no event for that.
const DRIVER_INTERVAL: Duration = Duration::from_millis(50);
/// The path in QEMU's object tree of the devices that have an id.
const DEVICES: &str = "/machine/peripheral";

/// How a guest reacted to a device that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Its driver uses it. Linux may still have to bring vCPUs and memory online, depending on its rules.
    Taken,
    /// The guest refused it, with this status of ACPI's `_OST`.
    Refused(u64),
    /// The guest did not react: it is paused or busy, or has no driver; or this QEMU can't tell.
    Silent,
}

impl Machine {
    /// Returns what can still be added.
    pub fn room(&self) -> Room {
        Room::of(&self.config())
    }

    /// Adds vCPUs, which can't be removed again. Returns their ids. If it fails, the vCPUs before the failed one were
    /// added.
    pub fn add_cpus(&self, count: u32) -> Result<Vec<String>, MachineError> {
        let _alone = self.hardware.lock();
        let room = self.room();
        self.check_limit("CPUs", room.cpus.into(), room.cpus_max.into(), count.into())?;
        let model = self.config().cpu_model;
        let model = model.as_deref().unwrap_or(CPU_MODEL_DEFAULT);
        (room.cpus..room.cpus + count)
            .map(|number| {
                let device = devices::cpu(model, number);
                self.plug(&device, |record| record.config.devices.push(device.clone()))
            })
            .collect()
    }

    /// Adds a block of memory, which can't be removed again. Returns its id. It is zero, and is a region of its own in
    /// captures.
    pub fn add_memory(&self, bytes: u64) -> Result<String, MachineError> {
        let _alone = self.hardware.lock();
        let room = self.room();
        let config = self.config();
        if bytes == 0 || !bytes.is_multiple_of(MEMORY_STEP_BYTES) {
            let what = format!(
                "{bytes} bytes of memory can't be added: guests take multiples of {} MiB",
                MEMORY_STEP_BYTES >> 20
            );
            return Err(GrowError::Bad { what }.into());
        }
        if config.memory_bytes_max.is_none() {
            return Err(self.fixed("memory"));
        }
        if room.memory_slots_free == 0 {
            return Err(GrowError::NoSlot {
                name: self.name(),
                what: "memory slot",
                most: MEMORY_SLOTS,
                way_out: "each block takes one, whatever its size: fewer and larger ones would have gone further",
            }
            .into());
        }
        let (has, most) = (room.memory_bytes, room.memory_bytes_max);
        self.check_limit("bytes of memory", has, most, bytes)?;
        let number = config.memory_blocks.len() + 1;
        let object = memory_region(number);
        // remove what an earlier attempt left behind
        let _ = self.qmp.execute("object-del", json!({"id": object}));
        let inode = self.make_memory(&object, bytes)?;
        let device = devices::memory(number);
        let plugged = self.plug(&device, |record| {
            record.config.memory_blocks.push(bytes);
            record.blocks.push(RamBacking::Added { inode });
            record.config.devices.push(device.clone());
        });
        match plugged {
            Ok(id) => {
                self.settle_alone()?; // records the address that QEMU has chosen
                Ok(id)
            }
            Err(error) => {
                let _ = self.qmp.execute("object-del", json!({"id": object}));
                Err(error)
            }
        }
    }

    /// Creates the memory of a block. Returns its memfd's inode number.
    fn make_memory(&self, object: &str, bytes: u64) -> Result<u64, MachineError> {
        let before = self.memfds()?;
        let arguments =
            json!({"qom-type": "memory-backend-memfd", "id": object, "size": bytes, "share": true});
        self.ask("object-add", arguments)?;
        let after = self.memfds()?;
        let mut new = after.difference(&before);
        match (new.next(), new.next()) {
            (Some(inode), None) => Ok(*inode),
            _ => Err(MachineError::Io {
                what: format!("find the memory of {object} among QEMU's descriptors"),
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }

    /// Returns the inode numbers of QEMU's memory.
    fn memfds(&self) -> Result<BTreeSet<u64>, MachineError> {
        let found = crate::capture::memfds(self.pid());
        let found = found.map_err(MachineError::io("read QEMU's descriptors"))?;
        Ok(found.into_iter().map(|(inode, _)| inode).collect())
    }

    /// Returns how many bytes of the memory that was added are this machine's own, and not mapped from an image.
    pub fn own_added_bytes(&self) -> u64 {
        let record = self.record();
        let blocks = record.config.memory_blocks.iter().zip(&record.blocks);
        let own = blocks.filter(|(_, backing)| matches!(backing, RamBacking::Added { .. }));
        own.map(|(bytes, _)| *bytes).sum()
    }

    /// Adds a network card on a user network of its own, like the first card's. Returns its id (`nic1`).
    pub fn add_card(&self, mac: Option<&str>) -> Result<String, MachineError> {
        let _alone = self.hardware.lock();
        let mac = match mac {
            Some(mac) if !command::is_mac(mac) => {
                let what = format!("network address {mac:?} is not of the form 52:54:00:12:34:56");
                return Err(GrowError::Bad { what }.into());
            }
            Some(mac) => mac.to_ascii_lowercase(),
            None => command::random_mac(),
        };
        let place = self.free_place()?;
        let config = self.config();
        let taken = |number: &usize| {
            let id = format!("nic{number}");
            devices::by_id(&config.devices, &id).is_some()
        };
        let number = (1..).find(|number| !taken(number)).unwrap_or_default();
        let netdev = format!("net{number}");
        let subnet = command::added_subnet(&netdev);
        // remove what an earlier attempt left behind
        let _ = self.qmp.execute("netdev_del", json!({"id": netdev}));
        self.ask(
            "netdev_add",
            json!({"type": "user", "id": netdev, "net": subnet}),
        )?;
        let device = devices::card(number, &mac, place);
        let plugged = self.plug(&device, |record| record.config.devices.push(device.clone()));
        plugged.inspect_err(|_| {
            let _ = self.qmp.execute("netdev_del", json!({"id": netdev}));
        })
    }

    /// Removes a card that was added. Waits up to `limit` for the guest to release it.
    pub fn remove_card(&self, id: &str, limit: Duration) -> Result<(), MachineError> {
        let _alone = self.hardware.lock();
        let config = self.config();
        let card = devices::by_id(&config.devices, id)
            .filter(|d| d.starts_with("virtio-net-pci,") && devices::is_removable(d));
        match card {
            Some(_) => self.unplug(id, id, limit),
            None => Err(self.not_there(id)),
        }
    }

    /// Returns an error if there is no room for another disk.
    pub fn check_room_for_disk(&self) -> Result<(), MachineError> {
        let config = self.config();
        self.check_limit("disks", config.disks.len() as u64, DISKS_MAX as u64, 1)?;
        match devices::added_disk(&config.devices, 0) {
            Some(_) => Ok(()),
            None => self.free_place().map(drop),
        }
    }

    /// Returns a name for the next disk: `disk` and the first free number.
    pub fn free_disk_name(&self) -> String {
        let config = self.config();
        let name = |number: usize| format!("disk{number}");
        let free = (0..).map(name).find(|name| disk_is_free(&config, name));
        free.unwrap_or_default()
    }

    /// Adds a disk, whose file must be like those of a [`Spec`](crate::Spec). Its name is the name of its region in captures and the serial
    /// number that the guest sees; [`Machine::free_disk_name`] returns a free one. `sector` is the size in bytes of its sectors, if that is
    /// not the usual one.
    pub fn add_disk(
        &self,
        name: &str,
        file: &Path,
        sector: Option<u32>,
    ) -> Result<(), MachineError> {
        let _alone = self.hardware.lock();
        let config = self.config();
        let number = match floe_image::disk_number(name) {
            Some(number) if disk_is_free(&config, name) => number,
            _ => {
                let free = self.free_disk_name();
                let what = format!("a disk can't be called {name:?} here; {free} is free");
                return Err(GrowError::Bad { what }.into());
            }
        };
        if !file.is_absolute() {
            let what = format!("path {} must be absolute", file.display());
            return Err(GrowError::Bad { what }.into());
        }
        self.check_room_for_disk()?;
        let device = match devices::added_disk(&config.devices, number) {
            Some(device) => device,
            None => devices::disk(number, self.free_place()?),
        };
        let device = sectors::with_sector(device, sector);
        let direct = json!({"direct": true});
        let file_node = json!({"driver": "file", "cache": direct, "discard": "unmap", "aio": "threads",
            "filename": file});
        let node = json!({"driver": "raw", "node-name": name, "discard": "unmap", "detect-zeroes": "off",
            "cache": direct, "file": file_node});
        let _ = self.qmp.execute("blockdev-del", json!({"node-name": name}));
        self.ask("blockdev-add", node)?;
        let plugged = self.plug(&device, |record| {
            record.config.devices.push(device.clone());
            record.config.disks.push(name.to_owned());
            let sector = sector.map(|sector| (name.to_owned(), sector));
            record.config.disk_sectors.extend(sector);
            record.disks.push(file.to_owned());
        });
        plugged.map(drop).inspect_err(|_| {
            let _ = self.qmp.execute("blockdev-del", json!({"node-name": name}));
        })
    }

    /// Removes a disk that was added. Waits up to `limit` for the guest to release it.
    pub fn remove_disk(&self, name: &str, limit: Duration) -> Result<(), MachineError> {
        let _alone = self.hardware.lock();
        let config = self.config();
        let device = devices::removable_disk(&config.devices, name);
        match device.and_then(|device| devices::property(device, "id")) {
            Some(id) => self.unplug(id, name, limit),
            None => Err(self.not_there(name)),
        }
    }

    /// Returns how the guest reacted to an added device, given by its id (for a disk: its name). Waits up to `limit` for
    /// that.
    pub fn reception(&self, id: &str, limit: Duration) -> Result<Reception, MachineError> {
        let until = floe_threads::from_now(limit);
        let config = self.config();
        let drive = |d: &&String| devices::property(d, "drive") == Some(id);
        let device = config.devices.iter().find(drive);
        let device = device.or_else(|| devices::by_id(&config.devices, id));
        let device = device.ok_or_else(|| self.not_there(id))?;
        let id = match device.starts_with("scsi-hd,") {
            // it has no driver of its own: who drives the controller is told of each disk behind it
            true => devices::SCSI,
            false => devices::property(device, "id").unwrap_or_default(),
        };
        loop {
            let seen = self.events.device_events();
            let answer = match devices::property(device, "bus") {
                Some(_) => self.driver_is_ready(id)?.then_some(Reception::Taken),
                None => self.acpi_answer(id)?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if Instant::now() >= until {
                return Ok(Reception::Silent);
            }
            let next = Instant::now() + DRIVER_INTERVAL;
            self.events.wait_device(seen, next.min(until));
        }
    }

    /// Returns the guest's ACPI answer about a vCPU or a memory block.
    fn acpi_answer(&self, id: &str) -> Result<Option<Reception>, MachineError> {
        let slots = self.ask("query-acpi-ospm-status", json!({}))?;
        let mut slots = slots.as_array().into_iter().flatten();
        let slot = slots.find(|slot| slot["device"] == id);
        let told = slot.filter(|slot| slot["source"].as_u64().unwrap_or_default() != 0);
        Ok(told.map(|slot| match slot["status"].as_u64() {
            Some(0) => Reception::Taken,
            status => Reception::Refused(status.unwrap_or(u64::MAX)),
        }))
    }

    /// Returns whether a driver of the guest has set up a card or disk.
    pub(crate) fn driver_is_ready(&self, id: &str) -> Result<bool, MachineError> {
        let path = format!("{DEVICES}/{id}/virtio-backend");
        let status = match self.ask("x-query-virtio-status", json!({"path": path})) {
            // this QEMU does not have the command, so it can't tell
            Err(MachineError::Qmp(e)) if e.is_unknown_command() => return Ok(false),
            status => status?,
        };
        let words = status["status"]["statuses"].as_array();
        let ready = |word: &Value| word.as_str().is_some_and(|w| w.contains("DRIVER_OK"));
        Ok(words.is_some_and(|words| words.iter().any(ready)))
    }

    /// Records a device and adds it to the machine. Returns its id.
    fn plug(&self, device: &str, write: impl FnOnce(&mut Record)) -> Result<String, MachineError> {
        let before = self.record();
        self.change(write)?;
        match self.ask("device_add", devices::arguments(device)) {
            Ok(_) => Ok(devices::property(device, "id")
                .unwrap_or_default()
                .to_owned()),
            Err(error) => {
                self.change(|record| {
                    record.config = before.config;
                    record.blocks = before.blocks;
                    record.disks = before.disks;
                })?;
                Err(error)
            }
        }
    }

    /// Asks the guest to release a device and waits until it has.
    fn unplug(&self, id: &str, shown: &str, limit: Duration) -> Result<(), MachineError> {
        let until = floe_threads::from_now(limit);
        let waiting = self.record().removing.iter().any(|other| other == id);
        self.change(|record| {
            record.removing.retain(|other| other != id);
            record.removing.push(id.to_owned());
        })?;
        self.events.take_kept(id); // forget the answer to an earlier request
        match self.ask("device_del", json!({"id": id})) {
            // QEMU refuses a second request while the first is pending
            Err(MachineError::Qmp(QmpError::Refused { .. })) if waiting => {}
            other => drop(other?),
        }
        let (name, shown) = (self.name(), shown.to_owned());
        loop {
            let seen = self.events.device_events();
            self.settle_alone()?;
            if devices::by_id(&self.config().devices, id).is_none() {
                return Ok(());
            }
            if self.events.take_kept(id) {
                return Err(GrowError::Kept { name, id: shown }.into());
            }
            if Instant::now() >= until {
                let id = shown;
                return Err(GrowError::Silent { name, id, limit }.into());
            }
            self.events.wait_device(seen, until);
        }
    }

    /// Brings the record of added devices into agreement with QEMU: the process that made a change may have ended in the
    /// middle of it, and a guest may release a device at any time after it was asked to.
    pub fn settle_hardware(&self) -> Result<(), MachineError> {
        let _alone = self.hardware.lock();
        self.settle_alone()
    }

    pub(crate) fn settle_alone(&self) -> Result<(), MachineError> {
        let record = self.record();
        let added: Vec<&String> = record
            .config
            .devices
            .iter()
            .filter(|d| is_added(d))
            .collect();
        if added.is_empty() {
            return Ok(());
        }
        let there = self.ask("qom-list", json!({"path": DEVICES}))?;
        let there: BTreeSet<&str> = there
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        let gone: Vec<String> = added
            .iter()
            .filter(|d| devices::property(d, "id").is_none_or(|id| !there.contains(id)))
            .map(|d| d.to_string())
            .collect();
        for device in &gone {
            self.forget(device)?;
        }
        let unplaced = |d: &&&String| d.starts_with("pc-dimm,") && !d.contains(",addr=");
        if added.iter().any(|d| unplaced(&d)) {
            self.place_memory()?;
        }
        Ok(())
    }

    /// Records that a device is gone, and removes its backend.
    fn forget(&self, device: &str) -> Result<(), MachineError> {
        let id = devices::property(device, "id").unwrap_or_default();
        // the backend may be gone already
        if let Some(netdev) = devices::property(device, "netdev") {
            let _ = self.qmp.execute("netdev_del", json!({"id": netdev}));
        }
        let drive = devices::property(device, "drive");
        if let Some(drive) = drive {
            let _ = self
                .qmp
                .execute("blockdev-del", json!({"node-name": drive}));
        }
        let memory = devices::property(device, "memdev");
        self.change(|record| {
            let config = &mut record.config;
            config.devices.retain(|other| other != device);
            record.removing.retain(|other| other != id);
            if let Some(at) = drive.and_then(|d| config.disks.iter().position(|name| name == d)) {
                let disk = config.disks.remove(at);
                config.disk_sectors.remove(&disk);
                if at < record.disks.len() {
                    record.disks.remove(at);
                }
            }
            if memory.is_some() {
                // the block was never added: only the last one can be missing
                config.memory_blocks.pop();
                record.blocks.pop();
            }
        })
    }

    /// Records the addresses that QEMU has chosen for memory blocks, because a restore must use them again.
    fn place_memory(&self) -> Result<(), MachineError> {
        let modules = self.ask("query-memory-devices", json!({}))?;
        self.change(|record| {
            for module in modules.as_array().into_iter().flatten() {
                let data = &module["data"];
                let (Some(id), Some(address)) = (data["id"].as_str(), data["addr"].as_u64()) else {
                    continue;
                };
                let number = id.strip_prefix("dimm").and_then(|n| n.parse().ok());
                let of_id = |d: &&mut String| devices::property(d, "id") == Some(id);
                if let (Some(number), Some(device)) =
                    (number, record.config.devices.iter_mut().find(of_id))
                {
                    *device = devices::placed_memory(number, address);
                }
            }
        })
    }

    /// Changes the record, in memory and in its file.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Record)) -> Result<(), MachineError> {
        let mut record = self.record.lock();
        change(&mut record);
        record.save(self.dir())
    }

    pub(crate) fn ask(&self, command: &str, arguments: Value) -> Result<Value, MachineError> {
        self.qmp.execute(command, arguments).map_err(|e| match e {
            QmpError::Closed { .. } if !self.process().is_alive() => self.dead(),
            e => e.into(),
        })
    }

    fn free_place(&self) -> Result<u32, MachineError> {
        let config = self.config();
        if !devices::has_places(&config.devices) {
            return Err(self.fixed("cards and disks"));
        }
        devices::free_place(&config.devices).ok_or_else(|| {
            GrowError::NoSlot {
                name: self.name(),
                what: "place for a card or disk",
                most: devices::PLACES as usize,
                way_out: "take one away first",
            }
            .into()
        })
    }

    fn check_limit(
        &self,
        unit: &'static str,
        has: u64,
        most: u64,
        asked: u64,
    ) -> Result<(), MachineError> {
        if asked <= most.saturating_sub(has) {
            return Ok(());
        }
        if self.config().profile.is_none() {
            return Err(self.fixed(unit));
        }
        let name = self.name();
        Err(GrowError::Limit {
            name,
            unit,
            has,
            most,
            asked,
        }
        .into())
    }

    fn fixed(&self, what: &'static str) -> MachineError {
        let name = self.name();
        GrowError::Fixed { name, what }.into()
    }

    fn not_there(&self, id: &str) -> MachineError {
        let (name, id) = (self.name(), id.to_owned());
        GrowError::NotThere { name, id }.into()
    }
}

/// Returns whether a device is one that can be added while a machine runs.
fn is_added(device: &str) -> bool {
    let driver = device.split(',').next().unwrap_or_default();
    devices::is_removable(device)
        || driver == "pc-dimm"
        || driver.ends_with(floe_image::CPU_DRIVER_SUFFIX)
}

/// Returns whether no region and none of QEMU's disks has this name.
fn disk_is_free(config: &MachineConfig, name: &str) -> bool {
    let mut drives = devices::values(&config.devices, "drive");
    !config.disks.iter().any(|disk| disk == name) && !drives.any(|drive| drive == name)
}

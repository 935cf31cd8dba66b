//! The devices of a machine as canonical `-device` strings, and the check of such strings from images.
//!
//! Device state is loaded into exactly the devices that it was saved from, each at its own address on the bus. So the
//! strings are made once, at the cold start, with every address included, and recorded in the image; a restore repeats
//! them. An image may come from anyone, and a `-device` string can read any file of the host (`loader,file=..`,
//! `romfile=..`): only drivers, properties and values that floe itself writes are accepted.

use std::collections::BTreeSet;

use floe_image::{CDROM_REGION, CPU_DRIVER_SUFFIX, SEED_REGION, disk_number, is_special_disk};
use serde_json::{Map, Value, json};

use crate::error::MachineError;
use crate::models::{DiskModel, Models, NetworkModel};
use crate::profile::Profile;
use crate::sectors;
use crate::spec::DISKS_MAX;

/// QEMU's name for the host's end of the first network card.
pub(crate) const NETDEV: &str = "net0";
/// Size of the video memory in MiB: 1920 x 1200 in 32 bits fits. It is not 8 MiB, the size of a thread's stack, because
/// the capture finds the block by its size.
pub const VGA_MEMORY_MIB: u32 = 16;
/// The slot of the first disk on the root bus; other devices use the slots before it.
const DISK_SLOT_FIRST: usize = 8;
/// The slot of the root port behind which added cards and disks are plugged in.
const PORT_SLOT: usize = 0x1c;
/// The bus behind that port. It is a bridge with 31 places, which costs as much as one more port.
pub(crate) const PLACES_BUS: &str = "places0";
/// Number of places on that bus; the first is 1.
pub(crate) const PLACES: u32 = 31;
/// The id of the SCSI controller, which machines with SCSI disks have.
pub(crate) const SCSI: &str = "scsi0";
/// More disks than a machine can have in all.
const SCSI_DISKS_MAX: u32 = 64;
/// Longest device string that is accepted, in bytes.
const DEVICE_BYTES_MAX: usize = 512;

/// The guest's name of the port through which its programs talk to their node.
pub const FLOE_PORT: &str = "org.floe.0";
/// QEMU's name for the host's end of that port.
pub(crate) const FLOE_CHARDEV: &str = "floe0";

/// Returns the devices of a machine that is started cold with these disks.
pub fn canonical(disks: &[String], mac: &str, profile: Profile, models: Models) -> Vec<String> {
    let network = models.network.driver();
    let mut devices = vec![
        format!("VGA,id=vga0,vgamem_mb={VGA_MEMORY_MIB},bus=pcie.0,addr=0x1"),
        // No option ROM: nothing boots from this network, and the ROM would have to be identical at a restore.
        format!("{network},id=nic0,netdev=net0,mac={mac},romfile=,bus=pcie.0,addr=0x2"),
        "virtio-serial-pci,id=serial0,bus=pcie.0,addr=0x3".into(),
        "virtserialport,id=agent0,bus=serial0.0,nr=1,chardev=qga0,name=org.qemu.guest_agent.0".into(),
        // The number follows that of the guest agent's port, which older images have.
        format!("virtserialport,id={FLOE_PORT_ID},bus=serial0.0,nr=2,chardev={FLOE_CHARDEV},name={FLOE_PORT}"),
        "virtio-rng-pci,id=rng0,rng=entropy0,bus=pcie.0,addr=0x4".into(),
        // page-poison=off: a guest with init_on_free expects reported pages to come back as zeros, but on a restored
        // machine they come back with the image's content. Without that feature such a guest reports no pages.
        "virtio-balloon-pci,id=balloon0,free-page-reporting=on,page-poison=off,deflate-on-oom=on,bus=pcie.0,addr=0x5".into(),
        // A new id at each restore: the guest's kernel reseeds its random numbers, and no two clones generate the same
        // keys.
        "vmgenid,id=vmgenid0,guid=auto".into(),
    ];
    devices.extend(disk_devices(disks, models));
    if profile == Profile::Growable {
        devices.extend([
            format!("pcie-root-port,id=port0,chassis=1,slot=1,bus=pcie.0,addr={PORT_SLOT:#x}"),
            format!("pcie-pci-bridge,id={PLACES_BUS},bus=port0,addr=0x0"),
        ]);
    }
    devices
}

/// Returns the devices for disks, CD-ROM and seed. A firmware and its variables are no devices.
fn disk_devices(disks: &[String], models: Models) -> Vec<String> {
    let has = |name: &str| disks.iter().any(|disk| disk == name);
    let numbers = numbers(disks);
    let numbered = numbers.len();
    let boot_first = match models.cdrom_first && has(CDROM_REGION) {
        true => 2,
        false => 1,
    };
    let mut devices = Vec::new();
    // the first slot after the disks'
    let mut slot = DISK_SLOT_FIRST;
    match models.disk {
        DiskModel::Scsi => {
            devices.push(format!(
                "virtio-scsi-pci,id=scsi0,bus=pcie.0,addr={slot:#x}"
            ));
            slot += 1;
        }
        DiskModel::Ide => {
            devices.push(format!("piix3-ide,id=legacy0,bus=pcie.0,addr={slot:#x}"));
            slot += 1;
        }
        DiskModel::Virtio | DiskModel::Sata | DiskModel::Nvme => {}
    }
    for (i, n) in numbers.into_iter().enumerate() {
        let drive = format!("drive=disk{n},serial=disk{n},bootindex={}", boot_first + i);
        // If the disk under the overlay is full, the machine is paused and can continue later; a read that failed for
        // good is reported to the guest.
        let errors = "werror=stop,rerror=report";
        devices.push(match models.disk {
            DiskModel::Virtio => {
                format!("virtio-blk-pci,id=vd{n},{drive},{errors},bus=pcie.0,addr={slot:#x}")
            }
            DiskModel::Scsi => {
                format!("scsi-hd,id=sd{n},{drive},{errors},bus=scsi0.0,scsi-id={i},lun=0")
            }
            DiskModel::Sata => format!("ide-hd,id=sd{n},{drive},{errors},bus=ide.{i},unit=0"),
            DiskModel::Ide => {
                let (channel, unit) = (i / 2, i % 2);
                format!("ide-hd,id=hd{n},{drive},{errors},bus=legacy0.{channel},unit={unit}")
            }
            // it has no choice in what becomes of errors
            DiskModel::Nvme => format!("nvme,id=nvme{n},{drive},bus=pcie.0,addr={slot:#x}"),
        });
        if matches!(models.disk, DiskModel::Virtio | DiskModel::Nvme) {
            slot += 1;
        }
    }
    if has(CDROM_REGION) {
        let index = match models.cdrom_first {
            true => 1,
            false => boot_first + numbered,
        };
        devices.push(format!(
            "ide-cd,id=cdrom0,drive={CDROM_REGION},bootindex={index},bus=ide.5,unit=0"
        ));
    }
    if has(SEED_REGION) {
        devices.push(match models.disk {
            DiskModel::Virtio | DiskModel::Scsi | DiskModel::Nvme => format!(
                "virtio-blk-pci,id=seed0,drive={SEED_REGION},serial={SEED_REGION},rerror=report,bus=pcie.0,addr={slot:#x}"
            ),
            // such a guest may have no driver for virtio
            DiskModel::Sata | DiskModel::Ide => {
                format!("ide-cd,id=seed0,drive={SEED_REGION},bus=ide.4,unit=0")
            }
        });
    }
    devices
}

/// Returns the numbers in the names of the machine's numbered disks, in order. After one was taken away they have gaps. Where names
/// say nothing the disks are counted.
fn numbers(disks: &[String]) -> Vec<usize> {
    let numbered = disks.iter().filter(|disk| !is_special_disk(disk));
    let numbers: Option<Vec<usize>> = numbered.clone().map(|disk| disk_number(disk)).collect();
    let different: Option<BTreeSet<usize>> =
        numbers.as_ref().map(|all| all.iter().copied().collect());
    match (numbers, different) {
        (Some(all), Some(different)) if all.len() == different.len() => all,
        _ => (0..numbered.count()).collect(),
    }
}

/// Returns the device for an additional vCPU of this model. The machine has one socket with a core for each possible
/// vCPU.
pub(crate) fn cpu(model: &str, number: u32) -> String {
    format!("{model}{CPU_DRIVER_SUFFIX},id=cpu{number},socket-id=0,core-id={number},thread-id=0")
}

/// Returns the device for an additional memory block; QEMU chooses its address, which is recorded later
/// ([`placed_memory`]).
pub(crate) fn memory(number: usize) -> String {
    format!(
        "pc-dimm,id=dimm{number},memdev=ram{number},slot={}",
        number - 1
    )
}

/// Returns the same device with its address.
pub(crate) fn placed_memory(number: usize, address: u64) -> String {
    format!("{},addr={address:#x}", memory(number))
}

/// Returns the device for an additional network card.
pub(crate) fn card(number: usize, mac: &str, place: u32) -> String {
    format!(
        "virtio-net-pci,id=nic{number},netdev=net{number},mac={mac},romfile=,bus={PLACES_BUS},addr={place:#x}"
    )
}

/// Returns the device for an additional disk.
pub(crate) fn disk(number: usize, place: u32) -> String {
    format!(
        "virtio-blk-pci,id=vd{number},drive=disk{number},serial=disk{number},werror=stop,rerror=report,bus={PLACES_BUS},addr={place:#x}"
    )
}

/// Returns the device for an additional disk behind the machine's SCSI controller. Unlike those of a cold start it has no place in the
/// order in which disks are tried at boot.
pub(crate) fn scsi_disk(number: usize, scsi_id: u32) -> String {
    format!(
        "scsi-hd,id=sd{number},drive=disk{number},serial=disk{number},werror=stop,rerror=report,bus={SCSI}.0,scsi-id={scsi_id},lun=0"
    )
}

/// Returns the device for an additional disk where the machine has room for it; `None` if it has none: behind its SCSI controller, or
/// at a place for cards and disks.
pub(crate) fn added_disk(devices: &[String], number: usize) -> Option<String> {
    if by_id(devices, SCSI).is_none() {
        return free_place(devices)
            .filter(|_| has_places(devices))
            .map(|place| disk(number, place));
    }
    let ids = values(devices, "scsi-id").filter_map(|id| id.parse::<u32>().ok());
    let taken: BTreeSet<u32> = ids.collect();
    let free = (0..SCSI_DISKS_MAX).find(|id| !taken.contains(id))?;
    Some(scsi_disk(number, free))
}

/// Returns the device of a disk that can be taken away while the machine runs.
pub(crate) fn removable_disk<'a>(devices: &'a [String], disk: &str) -> Option<&'a String> {
    let mut disks = devices.iter().filter(|device| {
        let driver = device.split(',').next();
        matches!(driver, Some("virtio-blk-pci" | "scsi-hd")) && is_removable(device)
    });
    disks.find(|device| property(device, "drive") == Some(disk))
}

/// Converts a device string to the arguments of QMP's `device_add`, which distinguishes numbers from text.
pub(crate) fn arguments(device: &str) -> Value {
    let mut parts = device.split(',');
    let mut map = Map::new();
    map.insert("driver".into(), parts.next().unwrap_or_default().into());
    let is_memory = device.starts_with("pc-dimm,");
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        let number = match key {
            "socket-id"
            | "core-id"
            | "thread-id"
            | "slot"
            | "scsi-id"
            | "lun"
            | "logical_block_size"
            | "physical_block_size" => value.parse::<u64>().ok(),
            // a device's address on its bus is text, a memory block's is a number
            "addr" if is_memory => u64::from_str_radix(value.trim_start_matches("0x"), 16).ok(),
            _ => None,
        };
        map.insert(
            key.into(),
            number.map_or_else(|| value.into(), |n| json!(n)),
        );
    }
    Value::Object(map)
}

/// Returns the value of a device's property.
pub(crate) fn property<'a>(device: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = device.split(',').filter_map(|part| part.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Returns the device with this id.
pub(crate) fn by_id<'a>(devices: &'a [String], id: &str) -> Option<&'a String> {
    devices.iter().find(|d| property(d, "id") == Some(id))
}

/// Returns the values of a property of all devices that have it, in order: QEMU's names of disks (`drive`) or networks (`netdev`).
pub(crate) fn values<'a>(devices: &'a [String], key: &'a str) -> impl Iterator<Item = &'a str> {
    devices.iter().filter_map(move |d| property(d, key))
}

/// Returns whether the machine has a network card.
pub fn has_network_card(devices: &[String]) -> bool {
    devices.iter().any(|device| is_card(device))
}

/// Returns whether a device is a network card.
fn is_card(device: &str) -> bool {
    let driver = device.split(',').next();
    NetworkModel::ALL
        .iter()
        .any(|model| driver == Some(model.driver()))
}

/// Returns whether a device was added while the machine ran and can be removed again.
pub(crate) fn is_removable(device: &str) -> bool {
    is_placed(device) || device.starts_with("scsi-hd,") && property(device, "bootindex").is_none()
}

/// Returns whether a device takes one of the places for cards and disks.
pub(crate) fn is_placed(device: &str) -> bool {
    property(device, "bus") == Some(PLACES_BUS)
}

/// Returns the first place that is free; `None` if all are taken.
pub(crate) fn free_place(devices: &[String]) -> Option<u32> {
    let taken: Vec<u32> = devices
        .iter()
        .filter(|device| is_placed(device))
        .filter_map(|device| {
            let place = property(device, "addr")?.strip_prefix("0x")?;
            u32::from_str_radix(place, 16).ok()
        })
        .collect();
    (1..=PLACES).find(|place| !taken.contains(place))
}

/// Returns whether cards and disks can be added to the machine.
pub(crate) fn has_places(devices: &[String]) -> bool {
    by_id(devices, PLACES_BUS).is_some()
}

/// Returns the network cards that were added, without the first one.
pub(crate) fn added_cards(devices: &[String]) -> Vec<String> {
    let cards = devices.iter().filter(|d| d.starts_with("virtio-net-pci,"));
    cards.filter(|d| is_removable(d)).cloned().collect()
}

/// Returns the ids of the network cards that were added, which can be taken away again.
pub fn added_card_ids(devices: &[String]) -> Vec<String> {
    let cards = added_cards(devices);
    let ids = cards.iter().filter_map(|card| property(card, "id"));
    ids.map(str::to_owned).collect()
}

/// Returns the devices of disks that were added while the machine ran, of those of its disks that it still has.
pub(crate) fn added_disks(config: &floe_image::MachineConfig) -> Vec<String> {
    let disks = config.disks.iter();
    let devices = disks.filter_map(|disk| removable_disk(&config.devices, disk));
    devices.cloned().collect()
}

/// Properties of a network card.
const NETWORK_PROPERTIES: &[&str] = &["id", "netdev", "mac", "romfile", "bus", "addr"];
/// Each driver that floe uses, with the properties that floe sets.
const ALLOWED: &[(&str, &[&str])] = &[
    ("VGA", &["id", "vgamem_mb", "bus", "addr"]),
    ("virtio-net-pci", NETWORK_PROPERTIES),
    ("virtio-serial-pci", &["id", "bus", "addr"]),
    ("virtserialport", &["id", "bus", "nr", "chardev", "name"]),
    ("virtio-rng-pci", &["id", "rng", "bus", "addr"]),
    (
        "virtio-balloon-pci",
        &[
            "id",
            "free-page-reporting",
            "page-poison",
            "deflate-on-oom",
            "bus",
            "addr",
        ],
    ),
    ("vmgenid", &["id", "guid"]),
    (
        "virtio-blk-pci",
        &[
            "id",
            "drive",
            "serial",
            "bootindex",
            "werror",
            "rerror",
            "bus",
            "addr",
        ],
    ),
    ("virtio-scsi-pci", &["id", "bus", "addr"]),
    (
        "scsi-hd",
        &[
            "id",
            "drive",
            "serial",
            "bootindex",
            "werror",
            "rerror",
            "bus",
            "scsi-id",
            "lun",
        ],
    ),
    ("piix3-ide", &["id", "bus", "addr"]),
    (
        "ide-hd",
        &[
            "id",
            "drive",
            "serial",
            "bootindex",
            "werror",
            "rerror",
            "bus",
            "unit",
        ],
    ),
    ("ide-cd", &["id", "drive", "bootindex", "bus", "unit"]),
    (
        "nvme",
        &["id", "drive", "serial", "bootindex", "bus", "addr"],
    ),
    ("e1000", NETWORK_PROPERTIES),
    ("e1000e", NETWORK_PROPERTIES),
    ("rtl8139", NETWORK_PROPERTIES),
    ("pcie-root-port", &["id", "chassis", "slot", "bus", "addr"]),
    ("pcie-pci-bridge", &["id", "bus", "addr"]),
    ("pc-dimm", &["id", "memdev", "slot", "addr"]),
];
/// Properties of a vCPU. Its driver is named after its model.
const CPU_PROPERTIES: &[&str] = &["id", "socket-id", "core-id", "thread-id"];

/// Refuses any device string that floe would not have written.
pub fn check(devices: &[String], cpu_model: &str) -> Result<(), MachineError> {
    for device in devices {
        check_one(device, cpu_model).map_err(|why| MachineError::Untrusted {
            what: format!("device {device:?}: {why}"),
        })?;
    }
    check_cards(devices).map_err(|what| MachineError::Untrusted { what })
}

/// Refuses cards that are connected otherwise than floe connects them: the first one to `net0`, on which all rules of the machine's
/// network are, and each other one to a network of its own.
fn check_cards(devices: &[String]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for card in devices.iter().filter(|device| is_card(device)) {
        let netdev = property(card, "netdev").unwrap_or_default();
        let number = netdev.strip_prefix("net").and_then(|n| n.parse().ok());
        // only the one way of writing a number
        let known = number.filter(|&n: &u32| n <= PLACES && netdev == format!("net{n}"));
        if !known.is_some_and(|number| seen.insert(number)) {
            return Err(format!(
                "device {card:?}: each network card has a netdev of its own, net0 to net{PLACES}"
            ));
        }
    }
    match seen.first() {
        None | Some(0) => Ok(()),
        Some(_) => Err(format!("no network card has the netdev {NETDEV}")),
    }
}

fn check_one(device: &str, cpu_model: &str) -> Result<(), String> {
    if device.len() > DEVICE_BYTES_MAX {
        return Err(format!("longer than {DEVICE_BYTES_MAX} bytes"));
    }
    let mut parts = device.split(',');
    let driver = parts.next().unwrap_or_default();
    let allowed = ALLOWED.iter().find(|(name, _)| *name == driver);
    let properties = match (allowed, driver.strip_suffix(CPU_DRIVER_SUFFIX)) {
        (Some((_, properties)), _) => *properties,
        // all vCPUs of a machine have the same model
        (None, Some(model)) if model == cpu_model => CPU_PROPERTIES,
        _ => return Err(format!("driver {driver:?} is none of floe's")),
    };
    let mut given = BTreeSet::new();
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is not key=value"))?;
        if !properties.contains(&key) && !sectors::is_property(driver, key) {
            return Err(format!("property {key:?} of {driver} is none of floe's"));
        }
        if !given.insert(key) {
            // QEMU would take the last one, floe the first
            return Err(format!("property {key:?} is given twice"));
        }
        if !value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
        {
            return Err(format!(
                "value {value:?} has characters outside of a-z A-Z 0-9 . _ : -"
            ));
        }
        if key == "romfile" && !value.is_empty() {
            return Err("a ROM file is never given".into());
        }
    }
    Ok(())
}

/// Returns whether a device of this driver is in the list.
pub fn has(devices: &[String], driver: &str) -> bool {
    devices.iter().any(|d| d.split(',').next() == Some(driver))
}

/// The id of the port to the node among QEMU's devices.
pub(crate) const FLOE_PORT_ID: &str = "floe0";

/// Returns whether the guest has a port to its node. Images from before that port existed have none.
pub fn has_floe_port(devices: &[String]) -> bool {
    let chardev = format!("chardev={FLOE_CHARDEV}");
    let is_it = |device: &String| {
        device.starts_with("virtserialport,") && device.split(',').any(|part| part == chardev)
    };
    devices.iter().any(is_it)
}

const _: () = assert!(
    DISK_SLOT_FIRST + DISKS_MAX <= PORT_SLOT && PORT_SLOT < 0x1f,
    "the root port is behind the disks, and slot 0x1f is the chipset's own"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incompatible::CPU_MODEL_DEFAULT;

    const MAC: &str = "52:54:00:12:34:56";

    fn disks(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("disk{i}")).collect()
    }

    #[test]
    fn every_model_gets_devices_of_its_own_and_every_address_once() {
        for disk in DiskModel::ALL {
            for network in NetworkModel::ALL {
                for cdrom_first in [false, true] {
                    let models = Models {
                        disk,
                        network,
                        cdrom_first,
                        uefi: true,
                    };
                    let mut names = disks(disk.disks_max().unwrap_or(DISKS_MAX - 4));
                    names.extend(floe_image::SPECIAL_DISKS.map(str::to_owned));
                    let devices = canonical(&names, MAC, Profile::Growable, models);
                    check(&devices, CPU_MODEL_DEFAULT).unwrap();
                    let unique = |key: &[&str]| {
                        let place = |d: &String| {
                            let values: Option<Vec<_>> =
                                key.iter().map(|k| property(d, k)).collect();
                            values.map(|values| values.join(" "))
                        };
                        let mut all: Vec<_> = devices.iter().filter_map(place).collect();
                        let count = all.len();
                        all.sort();
                        all.dedup();
                        assert_eq!(all.len(), count, "{key:?}: {devices:#?}");
                        count
                    };
                    unique(&["bus", "addr"]);
                    unique(&["bus", "unit"]);
                    unique(&["bus", "scsi-id"]);
                    unique(&["id"]);
                    // each disk has a device, and the firmware and its variables have none
                    assert_eq!(unique(&["drive"]), names.len() - 2);
                    assert_eq!(unique(&["bootindex"]), names.len() - 3);
                    let first = devices
                        .iter()
                        .find(|d| property(d, "bootindex") == Some("1"));
                    let drive = first.and_then(|d| property(d, "drive"));
                    let expected = if cdrom_first { CDROM_REGION } else { "disk0" };
                    assert_eq!(drive, Some(expected));
                    assert!(has_network_card(&devices));
                }
            }
        }
    }

    #[test]
    fn what_floe_writes_is_accepted() {
        for profile in [Profile::Fixed, Profile::Growable] {
            let mut devices = canonical(&disks(DISKS_MAX), MAC, profile, Models::default());
            devices.extend([
                cpu(CPU_MODEL_DEFAULT, 1),
                placed_memory(1, 1 << 32),
                card(1, MAC, 1),
                disk(20, 2),
            ]);
            check(&devices, CPU_MODEL_DEFAULT).unwrap();
            assert!(has_floe_port(&devices));
            assert_eq!(has_places(&devices), profile == Profile::Growable);
            let older: Vec<String> = devices
                .into_iter()
                .filter(|d| !d.contains("floe"))
                .collect();
            check(&older, CPU_MODEL_DEFAULT).unwrap();
            assert!(has(&older, "virtserialport") && !has_floe_port(&older));
        }
    }

    #[test]
    fn an_image_cannot_reach_for_files_of_the_host() {
        for bad in [
            "loader,file=/etc/shadow,addr=0x1000",
            "vfio-pci,host=01:00.0",
            "VGA,id=vga0,romfile=/etc/shadow",
            "virtio-net-pci,id=nic0,romfile=etc",
            "virtio-blk-pci,drive=/dev/sda",
            "pc-dimm,id=dimm1,memdev=ram1,node=1",
            "qemu64-x86_64-cpu,id=cpu1",
            "Nehalem-x86_64-cpu,id=cpu1,enforce=off",
            "virtio-blk-pci,id=vd0,drive=disk0,,werror=stop",
            "virtio-blk-pci,id=vd0,drive=disk0,drive=disk1",
            "-S",
            "",
        ] {
            let error = check(&[bad.to_string()], CPU_MODEL_DEFAULT).unwrap_err();
            assert!(error.to_string().contains("refused"), "{error}");
        }
        check(&["VGA".to_string()], CPU_MODEL_DEFAULT).unwrap();
    }

    #[test]
    fn an_image_connects_no_card_to_anything_but_a_network_that_floe_makes() {
        let card = |id: &str, netdev: &str| format!("virtio-net-pci,id={id},netdev={netdev}");
        let checked = |netdevs: &[&str]| {
            let ids = (0..).map(|i| format!("nic{i}"));
            let cards: Vec<String> = ids.zip(netdevs).map(|(id, net)| card(&id, net)).collect();
            check(&cards, CPU_MODEL_DEFAULT)
        };
        for good in [&[][..], &["net0"], &["net0", "net2", "net31"]] {
            checked(good).unwrap();
        }
        for bad in [
            &["net1"][..],
            &["net0", "net0"],
            &["net0", "net1", "net1"],
            &["net0", "unused0"],
            &["net0", "net32"],
            &["net0", "net01"],
            &["net0", "net+1"],
            &["net0", "net"],
            &["net0", ""],
        ] {
            let error = checked(bad).unwrap_err();
            assert!(error.to_string().contains("netdev"), "{error}");
        }
        for model in NetworkModel::ALL {
            let cards = [format!("{},id=nic0", model.driver())];
            check(&cards, CPU_MODEL_DEFAULT).unwrap_err();
        }
    }

    #[test]
    fn a_disk_keeps_its_number_when_one_before_it_is_taken_away() {
        let names: Vec<String> = ["disk0", "disk2", "seed", "disk7"]
            .map(str::to_owned)
            .into();
        let models = Models::default();
        let devices = canonical(&names, MAC, Profile::Growable, models);
        let drives: Vec<&str> = values(&devices, "drive").collect();
        assert_eq!(drives, ["disk0", "disk2", "disk7", "seed"]);
        assert_eq!(values(&devices, "serial").collect::<Vec<_>>(), drives);
        // names that say nothing
        let odd: Vec<String> = ["disk1", "disk01", "diskette"].map(str::to_owned).into();
        let devices = canonical(&odd, MAC, Profile::Growable, models);
        let drives: Vec<&str> = values(&devices, "drive").collect();
        assert_eq!(drives, ["disk0", "disk1", "disk2"]);
    }

    #[test]
    fn a_disk_is_added_behind_the_controller_that_the_guest_has_a_driver_for() {
        let of = |disk| Models {
            disk,
            ..Models::default()
        };
        let virtio = canonical(&disks(1), MAC, Profile::Growable, of(DiskModel::Virtio));
        let added = added_disk(&virtio, 4).unwrap();
        assert!(
            added.starts_with("virtio-blk-pci,id=vd4,drive=disk4,serial=disk4"),
            "{added}"
        );
        let fixed = canonical(&disks(1), MAC, Profile::Fixed, of(DiskModel::Virtio));
        assert_eq!(added_disk(&fixed, 4), None);
        for profile in [Profile::Fixed, Profile::Growable] {
            let mut scsi = canonical(&disks(2), MAC, profile, of(DiskModel::Scsi));
            let added = added_disk(&scsi, 4).unwrap();
            assert!(added.contains("bus=scsi0.0,scsi-id=2,"), "{added}");
            scsi.push(added.clone());
            check(&scsi, CPU_MODEL_DEFAULT).unwrap();
            assert_eq!(removable_disk(&scsi, "disk4"), Some(&added));
            assert_eq!(removable_disk(&scsi, "disk1"), None);
            assert_eq!(free_place(&scsi), Some(1), "it takes no place");
        }
    }

    #[test]
    fn a_place_is_given_out_again_once_it_is_free() {
        let mut devices = canonical(&disks(1), MAC, Profile::Growable, Models::default());
        for place in 1..=PLACES {
            assert_eq!(free_place(&devices), Some(place));
            devices.push(disk(place as usize, place));
        }
        assert_eq!(free_place(&devices), None);
        devices.retain(|d| property(d, "id") != Some("vd7"));
        assert_eq!(free_place(&devices), Some(7));
    }

    #[test]
    fn qmp_is_told_numbers_as_numbers() {
        let told = arguments(&placed_memory(2, 0x1_0800_0000));
        let expected = json!({"driver": "pc-dimm", "id": "dimm2", "memdev": "ram2", "slot": 1, "addr": 0x1_0800_0000_u64});
        assert_eq!(told, expected);
        assert_eq!(arguments(&cpu("Nehalem", 3))["core-id"], 3);
        assert_eq!(arguments(&disk(1, 10))["addr"], "0xa");
        assert_eq!(arguments(&card(1, MAC, 1))["romfile"], "");
    }
}

//! The devices that a machine has, as canonical `-device` strings, and the check of foreign ones.
//!
//! Device state is loaded into exactly the devices that it was saved from, each at its own address on the bus. So the
//! strings are made once, at the cold start, with every address spelled out, and recorded in the image; a restore repeats
//! them. An image may come from anyone, and a `-device` string can read any file of the host (`loader,file=..`,
//! `romfile=..`): only drivers, properties and values that floe itself writes are accepted.

use crate::error::MachineError;
use crate::spec::DISKS_MAX;

/// MiB of video memory: 1920 x 1200 in 32 bits fits. Not 8 MiB, the size of a thread's stack: the capture finds the block
/// by its size.
pub const VGA_MEMORY_MIB: u32 = 16;
/// The slot of the first disk on the root bus; those before it are the other devices'.
const DISK_SLOT_FIRST: usize = 8;
/// Most bytes of a device string.
const DEVICE_BYTES_MAX: usize = 512;

/// The port through which programs in a guest speak with their node, as the guest sees its name.
pub const FLOE_PORT: &str = "org.floe.0";
/// The end of that port in QEMU.
pub(crate) const FLOE_CHARDEV: &str = "floe0";

/// The devices of a machine that is started cold.
pub fn canonical(disks: usize, mac: &str) -> Vec<String> {
    let mut devices = vec![
        format!("VGA,id=vga0,vgamem_mb={VGA_MEMORY_MIB},bus=pcie.0,addr=0x1"),
        // No option ROM: nothing boots from this network, and its content would have to be the same at a restore.
        format!("virtio-net-pci,id=nic0,netdev=net0,mac={mac},romfile=,bus=pcie.0,addr=0x2"),
        "virtio-serial-pci,id=serial0,bus=pcie.0,addr=0x3".into(),
        "virtserialport,id=agent0,bus=serial0.0,nr=1,chardev=qga0,name=org.qemu.guest_agent.0".into(),
        // Behind the guest agent's, whose number older images have.
        format!("virtserialport,id=floe0,bus=serial0.0,nr=2,chardev={FLOE_CHARDEV},name={FLOE_PORT}"),
        "virtio-rng-pci,id=rng0,rng=entropy0,bus=pcie.0,addr=0x4".into(),
        // page-poison=off: a guest with init_on_free counts on reported pages coming back as zeros, and on a restored
        // machine they come back with the image's content. Without that feature such a guest reports none.
        "virtio-balloon-pci,id=balloon0,free-page-reporting=on,page-poison=off,deflate-on-oom=on,bus=pcie.0,addr=0x5".into(),
        // A new id at each restore: the guest's kernel reseeds its random numbers, and no two clones make the same keys.
        "vmgenid,id=vmgenid0,guid=auto".into(),
    ];
    devices.extend((0..disks).map(|i| {
        let slot = DISK_SLOT_FIRST + i;
        // A full disk under the overlay pauses the machine, which can go on later; a read that failed for good is told to
        // the guest.
        format!(
            "virtio-blk-pci,id=vd{i},drive=disk{i},serial=disk{i},bootindex={},werror=stop,rerror=report,bus=pcie.0,addr={slot:#x}",
            i + 1
        )
    }));
    devices
}

/// A driver and the properties that floe gives it.
const ALLOWED: &[(&str, &[&str])] = &[
    ("VGA", &["id", "vgamem_mb", "bus", "addr"]),
    (
        "virtio-net-pci",
        &["id", "netdev", "mac", "romfile", "bus", "addr"],
    ),
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
];

/// Refuse any device string that floe would not have written.
pub fn check(devices: &[String]) -> Result<(), MachineError> {
    for device in devices {
        check_one(device).map_err(|why| MachineError::Untrusted {
            what: format!("device {device:?}: {why}"),
        })?;
    }
    Ok(())
}

fn check_one(device: &str) -> Result<(), String> {
    if device.len() > DEVICE_BYTES_MAX {
        return Err(format!("longer than {DEVICE_BYTES_MAX} bytes"));
    }
    let mut parts = device.split(',');
    let driver = parts.next().unwrap_or_default();
    let Some((_, properties)) = ALLOWED.iter().find(|(name, _)| *name == driver) else {
        return Err(format!("driver {driver:?} is none of floe's"));
    };
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is not key=value"))?;
        if !properties.contains(&key) {
            return Err(format!("property {key:?} of {driver} is none of floe's"));
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

/// Whether a device of this driver is among them.
pub fn has(devices: &[String], driver: &str) -> bool {
    devices.iter().any(|d| d.split(',').next() == Some(driver))
}

/// Whether there is a port on which the guest speaks with its node. Images of before there was one have none.
pub fn has_floe_port(devices: &[String]) -> bool {
    let chardev = format!("chardev={FLOE_CHARDEV}");
    let is_it = |device: &String| {
        device.starts_with("virtserialport,") && device.split(',').any(|part| part == chardev)
    };
    devices.iter().any(is_it)
}

const _: () = assert!(
    DISK_SLOT_FIRST + DISKS_MAX < 0x1f,
    "slot 0x1f is the chipset's own"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_floe_writes_is_accepted() {
        let devices = canonical(DISKS_MAX, "52:54:00:12:34:56");
        check(&devices).unwrap();
        assert!(has_floe_port(&devices));
        let older: Vec<String> = devices
            .into_iter()
            .filter(|d| !d.contains("floe"))
            .collect();
        check(&older).unwrap();
        assert!(has(&older, "virtserialport") && !has_floe_port(&older));
    }

    #[test]
    fn an_image_cannot_reach_for_files_of_the_host() {
        for bad in [
            "loader,file=/etc/shadow,addr=0x1000",
            "vfio-pci,host=01:00.0",
            "VGA,id=vga0,romfile=/etc/shadow",
            "virtio-net-pci,id=nic0,romfile=etc",
            "virtio-blk-pci,drive=/dev/sda",
            "VGA",
            "virtio-blk-pci,id=vd0,drive=disk0,,werror=stop",
            "-S",
            "",
        ] {
            if bad == "VGA" {
                check(&[bad.to_string()]).unwrap();
            } else {
                let error = check(&[bad.to_string()]).unwrap_err();
                assert!(error.to_string().contains("refused"), "{error}");
            }
        }
    }
}

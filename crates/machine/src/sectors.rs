//! The sectors of disks. A guest that sees other sectors than those in which a disk's partition table counts finds no partitions.

/// The size of a disk's sectors in bytes, where nothing else is said.
pub const SECTOR_BYTES: u32 = 512;
/// The other size that disks have.
pub(crate) const SECTOR_BYTES_LARGE: u32 = 4096;
/// Devices of disks for which QEMU can be told another size of sectors than the usual one.
const DRIVERS: [&str; 3] = ["virtio-blk-pci", "scsi-hd", "nvme"];
/// The properties by which it is told.
const PROPERTIES: [&str; 2] = ["logical_block_size", "physical_block_size"];

/// Whether a device of this driver has this property, which tells the size of sectors.
pub(crate) fn is_property(driver: &str, key: &str) -> bool {
    DRIVERS.contains(&driver) && PROPERTIES.contains(&key)
}

/// Whether a device says how large its sectors are.
fn is_told(device: &str) -> bool {
    let mut pairs = device.split(',').filter_map(|part| part.split_once('='));
    pairs.any(|(key, _)| key == PROPERTIES[0])
}

/// Gives a disk's device sectors of so many bytes, if that is not the usual number.
pub(crate) fn with_sector(device: String, sector: Option<u32>) -> String {
    match sector.filter(|sector| *sector != SECTOR_BYTES) {
        Some(sector) if !is_told(&device) => {
            format!("{device},logical_block_size={sector},physical_block_size={sector}")
        }
        _ => device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices;

    #[test]
    fn a_disk_has_the_sectors_in_which_its_table_counts() {
        let large = Some(SECTOR_BYTES_LARGE);
        for device in [devices::disk(1, 10), devices::scsi_disk(4, 2)] {
            assert_eq!(with_sector(device.clone(), None), device);
            assert_eq!(with_sector(device.clone(), Some(SECTOR_BYTES)), device);
            let given = with_sector(device, large);
            assert_eq!(devices::arguments(&given)["logical_block_size"], 4096);
            assert_eq!(with_sector(given.clone(), large), given);
            devices::check(&[given], "Nehalem").unwrap();
        }
        // QEMU refuses to start with such a SATA disk
        let sata = "ide-hd,id=sd0,drive=disk0,bus=ide.0,unit=0".to_owned();
        devices::check(&[with_sector(sata, large)], "Nehalem").unwrap_err();
    }
}

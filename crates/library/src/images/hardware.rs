//! The hardware that an imported image's machines get: what the user says, or else what the first disk suggests.

use crate::images::Images;
use floe_api::{DiskModel, Firmware, Hardware, NetworkModel};
use floe_extents::partitions;
use floe_ground::{
    error::{NodeError, at, refused, usage},
    firmware::Uefi,
    plan::choose,
    report::Report,
};
use floe_image::{FIRMWARE_REGION, MachineConfig, NVRAM_REGION};
use floe_import::{
    disk_boot::{self, DiskBoot},
    disk_file::read_up_to,
    disk_format::Format,
    disk_import::{is_disc, open_disk},
};
use floe_store::Ingest;
use std::{fs::File, path::Path};

impl Images {
    /// Opens a disc for a machine, unpacked if it is packed.
    pub fn open_cdrom(&self, path: &Path, report: &mut Report) -> Result<File, NodeError> {
        if !path.is_absolute() {
            return Err(usage(
                format!("{} is no absolute path", path.display()),
                "give the whole path",
            ));
        }
        let disk = open_disk(path, false, &|| self.scratch("unpack"), report)?;
        let is_disc = disk.format == Format::Raw
            && is_disc(&disk.file).map_err(at(format!("cannot read {}", disk.shown)))?;
        match is_disc {
            true => Ok(disk.file),
            false => Err(refused(
                format!("{} is no CD-ROM or DVD image (ISO 9660 or UDF)", disk.shown),
                "import a disk with floe image import, and run that",
            )),
        }
    }

    /// Opens a disk that a machine is to be given, in any format that an import takes; in a raw file.
    pub fn open_data_disk(
        &self,
        path: &Path,
        as_raw: bool,
        report: &mut Report,
    ) -> Result<super::RawDisk, NodeError> {
        if !path.is_absolute() {
            return Err(usage(
                format!("{} is no absolute path", path.display()),
                "give the whole path",
            ));
        }
        self.open_raw(path, as_raw, report)
    }
}

/// What Linux calls the first disk of a model.
pub(super) fn first_disk(model: Option<DiskModel>) -> &'static str {
    match model {
        None | Some(DiskModel::Virtio) => "/dev/vda",
        Some(DiskModel::Scsi | DiskModel::Sata | DiskModel::Ide) => "/dev/sda",
        Some(DiskModel::Nvme) => "/dev/nvme0n1",
    }
}

/// Examines the bytes of an image's first disk.
pub(super) fn examine(disk: &File, shown: &Path) -> Result<DiskBoot, NodeError> {
    disk_boot::look(&|offset, buffer| read_up_to(disk, offset, buffer))
        .map_err(at(format!("cannot read {}", shown.display())))
}

/// Returns the size of a disk's sectors in bytes, if it is not the usual one: its guest would find no partitions. The disk's own table is
/// believed before the format that it came in.
pub(super) fn sector(
    disk: &File,
    shown: &str,
    told: Option<u64>,
) -> Result<Option<u32>, NodeError> {
    let read = |offset: u64, buffer: &mut [u8]| read_up_to(disk, offset, buffer);
    let table = partitions::read(&read).map_err(at(format!("cannot read {shown}")))?;
    let of_table = table.filter(|table| table.is_gpt).map(|table| table.sector);
    let sector = of_table
        .or(told)
        .and_then(|bytes| u32::try_from(bytes).ok());
    Ok(sector.filter(|sector| *sector != floe_machine::SECTOR_BYTES))
}

/// Tells the user of a disk with sectors of another size, and returns what the image's configuration says of it.
pub(super) fn note_sector(
    region: &str,
    sector: Option<u32>,
    report: &Report,
) -> Option<(String, u32)> {
    let sector = sector?;
    report.note(format!(
        "{region} has sectors of {sector} bytes, and so have its machines' disks"
    ));
    Some((region.to_owned(), sector))
}

/// Writes an image's hardware into its configuration, and stores the firmware that it needs if this host has it.
pub(super) fn settle(
    ingest: &mut Ingest,
    config: &mut MachineConfig,
    wanted: &Hardware,
    found: DiskBoot,
    report: &Report,
) -> Result<(), NodeError> {
    let mut hardware = *wanted;
    if found.needs_uefi && wanted.firmware.is_none() {
        hardware.firmware = Some(Firmware::Uefi);
        report.note("only a UEFI firmware can boot this disk, so its machines get one (--firmware bios if that is wrong)");
    }
    let large = config.disk_sectors.contains_key("disk0");
    if large && wanted.firmware.is_none() && config.cmdline.is_none() {
        hardware.firmware = Some(Firmware::Uefi);
        report.note(
            "no BIOS boots a disk with sectors of 4096 bytes, so its machines get a UEFI firmware",
        );
    }
    let is_old = matches!(wanted.disk_model, Some(DiskModel::Sata | DiskModel::Ide));
    if is_old && !config.disk_sectors.is_empty() {
        return Err(refused(
            "a disk has sectors of 4096 bytes, which SATA and IDE disks of QEMU don't have",
            "choose --disk-model virtio, scsi or nvme",
        ));
    }
    if found.windows && !config.disk_sectors.is_empty() {
        report.note("Windows is on a disk with sectors of 4096 bytes, which rule SATA out: it needs VirtIO drivers, or --disk-model nvme");
    } else if found.windows && wanted.disk_model.is_none() && wanted.network_model.is_none() {
        hardware.disk_model = Some(DiskModel::Sata);
        hardware.network_model = Some(NetworkModel::E1000);
        report.note(
            "Windows is on this disk: its machines get a SATA disk and an e1000 card, for which it has drivers. With the VirtIO \
             drivers installed in it (virtio-win.iso: viostor, NetKVM, Balloon, vioserial), --disk-model virtio --network-model \
             virtio is faster",
        );
    }
    choose(config, &hardware);
    if config.firmware.is_none() {
        return Ok(());
    }
    match Uefi::of_this_host() {
        Some(uefi) => {
            for (region, path) in [(FIRMWARE_REGION, uefi.code), (NVRAM_REGION, uefi.vars)] {
                ingest.region_from_file(region, &path)?;
            }
        }
        None => report.note(
            "this host has no UEFI firmware to put into the image (apt install ovmf); the host that runs it needs one",
        ),
    }
    Ok(())
}

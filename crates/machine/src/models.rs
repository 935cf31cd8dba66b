//! The models of disks and network cards that a cold start can give a machine: what guests without VirtIO drivers need.
//!
//! | disks | the guest sees | at most | capture and restore |
//! | --- | --- | --- | --- |
//! | `virtio` | one virtio block device for each | all | yes |
//! | `scsi` | disks of one virtio SCSI controller | all | yes |
//! | `sata` | disks of the chipset's AHCI controller | 4 | yes |
//! | `ide` | disks of a PIIX3 IDE controller | 4 | yes |
//! | `nvme` | one NVMe controller for each | all | no: QEMU cannot save its state |
//!
//! All models of network cards can be captured and restored.

use std::fmt;
use std::str::FromStr;

use floe_image::MachineConfig;

use crate::error::MachineError;

/// How a machine's disks are connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DiskModel {
    /// virtio-blk, the fastest; Windows needs drivers for it.
    #[default]
    Virtio,
    /// virtio-scsi.
    Scsi,
    /// AHCI, for which almost every system has a driver.
    Sata,
    /// IDE, for systems older than AHCI.
    Ide,
    /// NVMe.
    Nvme,
}

impl DiskModel {
    /// All models.
    pub const ALL: [DiskModel; 5] = [
        DiskModel::Virtio,
        DiskModel::Scsi,
        DiskModel::Sata,
        DiskModel::Ide,
        DiskModel::Nvme,
    ];

    /// Its name in configurations and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DiskModel::Virtio => "virtio",
            DiskModel::Scsi => "scsi",
            DiskModel::Sata => "sata",
            DiskModel::Ide => "ide",
            DiskModel::Nvme => "nvme",
        }
    }

    /// Most disks of this model, if that is less than a machine can have.
    pub fn disks_max(self) -> Option<usize> {
        match self {
            // the chipset's controller has six ports, of which two are for a CD-ROM and a seed
            DiskModel::Sata | DiskModel::Ide => Some(4),
            DiskModel::Virtio | DiskModel::Scsi | DiskModel::Nvme => None,
        }
    }
}

/// A machine's network card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkModel {
    /// virtio-net, the fastest; Windows needs a driver for it.
    #[default]
    Virtio,
    /// Intel 82540EM, which Windows knows.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Realtek 8139, for very old systems.
    Rtl8139,
}

impl NetworkModel {
    /// All models.
    pub const ALL: [NetworkModel; 4] = [
        NetworkModel::Virtio,
        NetworkModel::E1000,
        NetworkModel::E1000e,
        NetworkModel::Rtl8139,
    ];

    /// Its name in configurations and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            NetworkModel::Virtio => "virtio",
            NetworkModel::E1000 => "e1000",
            NetworkModel::E1000e => "e1000e",
            NetworkModel::Rtl8139 => "rtl8139",
        }
    }

    /// QEMU's name of the device.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            NetworkModel::Virtio => "virtio-net-pci",
            other => other.name(),
        }
    }
}

impl FromStr for DiskModel {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskModel, String> {
        let found = DiskModel::ALL.iter().find(|model| model.name() == text);
        let known = || DiskModel::ALL.map(DiskModel::name).join(", ");
        found
            .copied()
            .ok_or_else(|| format!("there is no disk model {text:?}; there are {}", known()))
    }
}

impl FromStr for NetworkModel {
    type Err = String;

    fn from_str(text: &str) -> Result<NetworkModel, String> {
        let found = NetworkModel::ALL.iter().find(|model| model.name() == text);
        let known = || NetworkModel::ALL.map(NetworkModel::name).join(", ");
        found
            .copied()
            .ok_or_else(|| format!("there is no network model {text:?}; there are {}", known()))
    }
}

impl fmt::Display for DiskModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for NetworkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a machine's hardware is made of, where there is a choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Models {
    /// How its disks are connected.
    pub disk: DiskModel,
    /// Its network card.
    pub network: NetworkModel,
    /// Whether it tries to boot its CD-ROM before its disks.
    pub cdrom_first: bool,
    /// Whether a UEFI firmware starts it, not a BIOS.
    pub uefi: bool,
}

impl Models {
    /// Returns the models of a configuration. Those of an image may be anything.
    pub fn of(config: &MachineConfig) -> Result<Models, MachineError> {
        let untrusted = |what: String| MachineError::Untrusted { what };
        let disk = config.disk_model.as_deref().map(str::parse).transpose();
        let network = config.network_model.as_deref().map(str::parse).transpose();
        Ok(Models {
            disk: disk.map_err(untrusted)?.unwrap_or_default(),
            network: network.map_err(untrusted)?.unwrap_or_default(),
            cdrom_first: is(&config.boot, "cdrom").map_err(untrusted)?,
            uefi: is(&config.firmware, "uefi").map_err(untrusted)?,
        })
    }

    /// Whether all devices reach memory above 4 GiB, so that a guest needs no buffer below that for them.
    pub(crate) fn reach_all_memory(self) -> bool {
        self.disk != DiskModel::Ide
            && matches!(self.network, NetworkModel::Virtio | NetworkModel::E1000e)
    }
}

fn is(field: &Option<String>, only: &str) -> Result<bool, String> {
    match field.as_deref() {
        None => Ok(false),
        Some(value) if value == only => Ok(true),
        Some(other) => Err(format!("{other:?}, where only {only:?} is known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_their_names_and_nothing_else_is() {
        for model in DiskModel::ALL {
            assert_eq!(model.name().parse(), Ok(model));
        }
        for model in NetworkModel::ALL {
            assert_eq!(model.name().parse(), Ok(model));
        }
        let change = |change: &dyn Fn(&mut MachineConfig)| {
            let mut config = MachineConfig::default();
            change(&mut config);
            Models::of(&config)
        };
        assert_eq!(change(&|_| ()).unwrap(), Models::default());
        assert!(change(&|c| c.firmware = Some("uefi".into())).unwrap().uefi);
        let floppy = |c: &mut MachineConfig| c.disk_model = Some("floppy".into());
        assert!(change(&floppy).unwrap_err().to_string().contains("nvme"));
        assert!(change(&|c| c.network_model = Some("tap".into())).is_err());
        assert!(change(&|c| c.firmware = Some("coreboot".into())).is_err());
        assert!(change(&|c| c.boot = Some("net".into())).is_err());
    }
}

//! What a cold start gives a machine: firmware, models of disks and cards, a CD-ROM, and what cloud-init sets up.

use super::*;

/// What starts a machine's operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// SeaBIOS.
    Bios,
    /// OVMF, with variables that belong to the machine's disks.
    Uefi,
}

/// How a machine's disks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DiskModel {
    /// virtio-blk.
    Virtio,
    /// virtio-scsi.
    Scsi,
    /// AHCI; at most four disks.
    Sata,
    /// PIIX3 IDE; at most four disks.
    Ide,
    /// NVMe. Such a machine can't be captured or forked.
    Nvme,
}

/// A machine's network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum NetworkModel {
    /// virtio-net.
    Virtio,
    /// Intel 82540EM.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Realtek 8139.
    Rtl8139,
}

/// What a machine tries to boot first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BootFirst {
    /// Its disks, and its CD-ROM if there is nothing to boot on them.
    Disk,
    /// Its CD-ROM.
    Cdrom,
}

/// The hardware of machines, where there is a choice. What is absent is as the image says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// What starts the operating system; by default a BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// How disks are connected; by default virtio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_model: Option<DiskModel>,
    /// The network card; by default virtio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_model: Option<NetworkModel>,
}

impl Hardware {
    /// Returns whether nothing is chosen.
    pub fn is_none(&self) -> bool {
        *self == Hardware::default()
    }
}

/// What cloud-init in the guest is to set up. The node makes a small disk of it, labelled CIDATA, which belongs to the machine like
/// its others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeedRequest {
    /// The text of a `user-data` file; its first line says what it is (`#cloud-config`, `#!/bin/sh`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// The text of a `meta-data` file, YAML or JSON. What it does not say of `instance-id`, `local-hostname` and `public-keys` is
    /// added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<String>,
    /// The text of a `network-config` file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<String>,
    /// Public SSH keys of the guest's default user, each as one line of a `.pub` file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// The guest's host name; by default the machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}

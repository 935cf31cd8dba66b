//! Disks that become larger while their machine runs: tells QEMU the new size, which QEMU tells the guest.
//!
//! A file grows before QEMU hears of it, so QEMU's size is never more than the file's. Whoever adopts a machine asks QEMU what it
//! knows, and tells it the rest.

use floe_image::MachineConfig;
use serde_json::json;

use crate::command;
use crate::devices;
use crate::error::MachineError;
use crate::machine::Machine;
use crate::models::DiskModel;

/// The devices that tell a guest of a new size. IDE and SATA guests ask for it at their start only, and QEMU fixes that of NVMe.
const TELL_THE_GUEST: &[&str] = &["virtio-blk-pci", "scsi-hd"];

/// Returns the device through which a machine with this configuration has the disk.
fn device_of<'a>(config: &'a MachineConfig, disk: &str) -> Option<&'a str> {
    let at = config.disks.iter().position(|name| name == disk)?;
    let node = command::disk_nodes(config).into_iter().nth(at)?;
    let mut devices = config.devices.iter();
    let device = devices.find(|device| devices::property(device, "drive") == Some(node.as_str()));
    device.map(String::as_str)
}

/// Returns the model by which a machine with this configuration has the disk; `None` if it is no disk that a guest writes to.
pub fn disk_model(config: &MachineConfig, disk: &str) -> Option<DiskModel> {
    let device = device_of(config, disk).filter(|_| !floe_image::is_special_disk(disk))?;
    let legacy = devices::property(device, "bus").is_some_and(|bus| bus.starts_with("legacy"));
    match device.split(',').next()? {
        "virtio-blk-pci" => Some(DiskModel::Virtio),
        "scsi-hd" => Some(DiskModel::Scsi),
        "ide-hd" if legacy => Some(DiskModel::Ide),
        "ide-hd" => Some(DiskModel::Sata),
        "nvme" => Some(DiskModel::Nvme),
        _ => None,
    }
}

impl Machine {
    /// Returns whether the guest can notice while it runs that this disk has become larger. QEMU is not asked.
    pub fn disk_tells_its_size(&self, disk: &str) -> bool {
        let config = self.config();
        let driver = device_of(&config, disk).and_then(|device| device.split(',').next());
        driver.is_some_and(|driver| TELL_THE_GUEST.contains(&driver))
    }

    /// Brings QEMU's sizes of disks, in bytes and by the disks' names, into agreement with those of their files: where it knows a smaller one
    /// it takes the new one, and the guest is told. A guest that is paused notices when it goes on.
    pub fn settle_disks(&self, sizes: &[(String, u64)]) -> Result<(), MachineError> {
        let _alone = self.hardware.lock();
        let config = self.config();
        let known = self.ask("query-named-block-nodes", json!({"flat": true}))?;
        for (disk, node) in config.disks.iter().zip(command::disk_nodes(&config)) {
            let Some((_, bytes)) = sizes.iter().find(|(name, _)| name == disk) else {
                continue;
            };
            let mut nodes = known.as_array().into_iter().flatten();
            let known = nodes.find(|known| known["node-name"] == node.as_str());
            let known = known.and_then(|known| known["image"]["virtual-size"].as_u64());
            if known.is_some_and(|known| known < *bytes) {
                self.ask("block_resize", json!({"node-name": node, "size": bytes}))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Models;
    use crate::profile::Profile;

    #[test]
    fn a_disk_is_of_the_model_that_its_device_is_of() {
        let disks: Vec<String> = ["disk0", "disk1", "seed"].map(str::to_owned).into();
        for model in DiskModel::ALL {
            let models = Models {
                disk: model,
                ..Models::default()
            };
            let config = MachineConfig {
                devices: devices::canonical(&disks, "52:54:00:00:00:01", Profile::Growable, models),
                disks: disks.clone(),
                ..MachineConfig::default()
            };
            for disk in ["disk0", "disk1"] {
                assert_eq!(disk_model(&config, disk), Some(model), "{disk}");
            }
            for none in ["seed", "disk2", ""] {
                assert_eq!(disk_model(&config, none), None, "{none}");
            }
        }
    }
}

//! Disks that become larger while their machine runs: QEMU learns it, and tells the guest.
//!
//! A file grows before QEMU hears of it, so QEMU's size is never more than the file's. Whoever adopts a machine asks QEMU what it
//! knows, and tells it the rest.

use serde_json::json;

use crate::command;
use crate::devices;
use crate::error::MachineError;
use crate::machine::Machine;

/// The devices that tell a guest of a new size. IDE and SATA guests ask for it at their start only, and QEMU fixes that of NVMe.
const TELL_THE_GUEST: &[&str] = &["virtio-blk-pci", "scsi-hd"];

impl Machine {
    /// Returns whether the guest can notice while it runs that this disk has become larger. QEMU is not asked.
    pub fn disk_tells_its_size(&self, disk: &str) -> bool {
        let config = self.config();
        let at = config.disks.iter().position(|name| name == disk);
        let Some(node) = at.and_then(|at| command::disk_nodes(&config).into_iter().nth(at)) else {
            return false;
        };
        config.devices.iter().any(|device| {
            let driver = device.split(',').next().unwrap_or_default();
            TELL_THE_GUEST.contains(&driver)
                && devices::property(device, "drive") == Some(node.as_str())
        })
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

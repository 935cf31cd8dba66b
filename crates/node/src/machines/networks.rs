//! A machine's place in its family's network: given before its first start, kept until it is removed.

use super::Machines;
use crate::{
    error::{NodeError, refused},
    inventory::{Entry, record::Record},
};
use floe_api::{Happened, NetworkRequest};
use floe_machine::Tap;

impl Machines {
    /// Puts a machine that is about to start into a network of its own.
    pub(crate) fn give_network(
        &self,
        entry: &Entry,
        request: &NetworkRequest,
    ) -> Result<(), NodeError> {
        let record = entry.record();
        if record
            .config
            .devices
            .iter()
            .all(|device| !device.starts_with("virtio-net-pci"))
            && !record.config.devices.is_empty()
        {
            return Err(refused(
                format!("image {} has no network card", record.image_name),
                "leave --network out",
            ));
        }
        let mac = record.config.nic_mac.as_deref();
        let (place, mac) = self.networks.create(request, entry.name.as_str(), mac)?;
        entry.update(|record| {
            record.network = Some(place);
            // what its card has already, if it has one: the network took that over
            record.config.nic_mac = Some(mac);
        })
    }

    /// The host's end of a machine's network card, if that is none of QEMU's user network.
    pub(crate) fn tap_of(&self, record: &Record) -> Result<Option<Tap>, NodeError> {
        let place = record.network.as_ref();
        place.map(|place| self.networks.tap(place)).transpose()
    }

    /// Opens the ports that lead to a machine that runs now.
    pub(crate) fn open_ports(&self, entry: &Entry) {
        let record = entry.record();
        let Some(place) = &record.network else { return };
        let name = entry.name.as_str();
        for forward in &record.forwards {
            if let Err(error) = self.networks.open_inbound(name, place, forward) {
                tracing::warn!(machine = name, %forward, %error, "a port is not open");
                self.core
                    .tell(Happened::MachinePort, name, error.to_api().to_string());
            }
        }
    }

    /// A machine is on its way out.
    pub(crate) fn leave_network(&self, record: &Record) {
        if let Some(place) = &record.network {
            self.networks.close_inbound(&record.name, None);
            self.networks.leave(&place.network, &record.name);
        }
    }
}

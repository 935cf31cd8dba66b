//! A machine's place in its family's network: assigned before its first start, kept until it is removed.

use super::Machines;
use floe_api::{NetworkRequest, PortForward};
use floe_ground::{
    error::{NodeError, refused},
    news::News,
};
use floe_inventory::inventory::{Entry, record::Record};
use floe_machine::Tap;

impl Machines {
    /// Creates a network for a machine that is about to start, and makes the machine its first member.
    pub(crate) fn give_network(
        &self,
        entry: &Entry,
        request: &NetworkRequest,
    ) -> Result<(), NodeError> {
        let record = entry.record();
        let devices = &record.config.devices;
        if !devices.is_empty() && !floe_machine::has_network_card(devices) {
            return Err(refused(
                format!("image {} has no network card", record.image_name),
                "leave --network out",
            ));
        }
        let mac = record.config.nic_mac.as_deref();
        let (place, mac) = self.networks.create(request, entry.name.as_str(), mac)?;
        entry.update(|record| {
            record.network = Some(place);
            // the MAC address that its card already has, if it has one: the network has adopted it
            record.config.nic_mac = Some(mac);
        })
    }

    /// Returns the host's end of a machine's network card, or `None` if the card is on QEMU's user network.
    pub(crate) fn tap_of(&self, record: &Record) -> Result<Option<Tap>, NodeError> {
        let place = record.network.as_ref();
        place.map(|place| self.networks.tap(place)).transpose()
    }

    /// Opens the forwarded ports of a machine that now runs.
    pub fn open_ports(&self, entry: &Entry) {
        let record = entry.record();
        let Some(place) = &record.network else { return };
        let name = entry.name.as_str();
        // of one that was parked
        let mut held = entry.take_ports();
        for forward in &record.forwards {
            let at = held.iter().position(|port| port.forward == *forward);
            let socket = at.map(|at| held.swap_remove(at).socket);
            if let Err(error) = self.networks.open_inbound(name, place, forward, socket) {
                self.tell_closed(name, forward, &error);
            }
        }
    }

    /// Tells of a machine's port that is not open, although the machine runs.
    pub fn tell_closed(&self, name: &str, forward: &PortForward, error: &NodeError) {
        tracing::warn!(machine = name, %forward, %error, "a port is not open");
        let news = News::Port(error.to_api().to_string());
        self.core.tell(name, &news);
    }

    /// Takes a machine that is being removed out of its network.
    pub(crate) fn leave_network(&self, record: &Record) {
        if let Some(place) = &record.network {
            self.networks.close_inbound(&record.name, None);
            self.networks.leave(&place.network, &record.name);
        }
    }
}

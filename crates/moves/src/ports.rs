//! The forwarded ports of lent machines: this node listens at them as long as the borrower has the machine, and passes each connection on to
//! the borrower's port of the same forward. UDP ports are closed meanwhile.
//!
//! Whoever lets a machine go on here has closed them before, under its operation, and they are opened for nobody who has one: so no port is
//! taken when its QEMU wants it.

use super::Moves;
use floe_api::{PortForward, Protocol};
use floe_inputs::Look;
use floe_inventory::{
    inventory::{Entry, turn::Turn},
    network::Inbound,
};
use std::{collections::HashSet, io, net::TcpStream, os::fd::OwnedFd, sync::Arc};

impl Moves {
    /// Opens the ports of machines that are lent, and closes those of machines that are not any more.
    pub(super) fn look_at_ports(&self) {
        let mut open = self.ports.lock();
        let all = self.inventory.all();
        let lent: Vec<(Turn, Arc<Entry>)> = all
            .into_iter()
            .filter_map(|entry| Some((entry.turn()?, entry)))
            .filter(|(turn, _)| turn.borrower().is_some())
            .collect();
        let keys: HashSet<&String> = lent.iter().map(|(turn, _)| &turn.key).collect();
        open.retain(|key, _| keys.contains(key));
        for (turn, entry) in &lent {
            // one that was removed since has no operation any more either
            let is_free = entry.task().is_none() && self.is_listed(entry);
            if is_free && !open.contains_key(&turn.key) {
                open.insert(turn.key.clone(), self.open_ports(entry));
            }
        }
    }

    /// Closes the ports of a lent machine that is about to go on here, or is here no more. Whoever calls this has its operation.
    pub(super) fn close_ports(&self, key: &str) {
        drop(self.ports.lock().remove(key));
    }

    /// Whether a port of a lent machine is open here: it is that machine's own when it comes back.
    pub(super) fn is_open_for(&self, lent: &Entry, forward: &PortForward) -> bool {
        let Some(turn) = lent.turn() else {
            return false;
        };
        let open = self.ports.lock();
        let ports = open.get(&turn.key);
        ports.is_some_and(|ports| ports.iter().any(|port| port.forward == *forward))
    }

    /// Whether this is still the machine of its name.
    fn is_listed(&self, entry: &Arc<Entry>) -> bool {
        let named = self.inventory.get(entry.name.as_str());
        named.is_ok_and(|named| Arc::ptr_eq(&named, entry))
    }

    /// Opens those ports of a machine that can be opened: once, since what has the others may want them for longer.
    fn open_ports(&self, entry: &Arc<Entry>) -> Vec<Inbound> {
        let forwards = &entry.record().forwards;
        let tcp = forwards.iter().filter(|of| of.protocol == Protocol::Tcp);
        tcp.filter_map(|forward| self.open_port(entry, forward))
            .collect()
    }

    fn open_port(&self, entry: &Arc<Entry>, forward: &PortForward) -> Option<Inbound> {
        let (inputs, lent, port) = (self.inputs.clone(), entry.clone(), forward.guest_port);
        let reach = move || -> io::Result<TcpStream> {
            let there = inputs.look(&lent, Look::Port(port));
            let there = there.map_err(|error| io::Error::other(error.to_string()))?;
            let there = there.ok_or_else(|| io::Error::other("it is not lent any more"))?;
            Ok(TcpStream::from(OwnedFd::from(there)))
        };
        match Inbound::leading(forward, Arc::new(reach)) {
            Ok(port) => Some(port),
            Err(error) => {
                let machine = &entry.name;
                tracing::warn!(%machine, %forward, %error, "a port does not lead to its borrower");
                None
            }
        }
    }
}

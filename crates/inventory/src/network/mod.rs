//! Family networks: a machine and its clones see each other and nobody else (SnowFlock, sections 3.2 and 4.6.2).
//!
//! `plan` says what a network consists of, `namespace` creates it, and this module keeps track of who is in which network.
//! A network begins with the parent's run and ends with the family's last member on this host. QEMU gets a descriptor, so a
//! member's port exists as long as its QEMU, with or without a node.

mod inbound;
mod namespace;
mod plan;
mod sealed;
mod tunnel;

pub use inbound::{Inbound, Reach};

use crate::inventory::record::Attachment;
use floe_api::{
    FORK_HOSTS_MAX, NETWORK_ALLOW_MAX, NETWORK_BYTES_PER_S, NetworkInfo, NetworkOrder,
    NetworkRequest, PortForward, paths::Home,
};
use floe_ground::{
    error::{NodeError, busy, failed, not_found, refused, usage},
    files::{load_kept, replace_file},
};
use floe_hosts::cluster::Cluster;
use floe_machine::Tap;
use namespace::Namespace;
use parking_lot::Mutex;
use plan::{BITS, GATEWAY, MEMBERS_MAX, NETWORK_VERSION, Network, Overlay};
use sealed::mixed;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
};
use tunnel::Tunnels;

/// Largest file of a network that is read, in bytes: all members with the longest names.
const NETWORK_BYTES_MAX: u64 = 1 << 20;

/// All networks that have members here.
pub struct Networks {
    dir: PathBuf,
    home: PathBuf,
    cluster: Arc<Cluster>,
    tunnels: Tunnels,
    /// Held while a network is created, changed or removed.
    all: Mutex<BTreeMap<String, Network>>,
    /// Open ports of the host, by machine.
    inbound: Mutex<HashMap<String, Vec<Inbound>>>,
}

impl Networks {
    /// Reads the networks that an earlier node left.
    pub fn open(home: &Home, cluster: Arc<Cluster>) -> Result<Networks, NodeError> {
        let dir = home.networks();
        let kept = load_kept(
            &dir,
            NETWORK_BYTES_MAX,
            Network::parse,
            "is no network; its machines can't be started",
        )?;
        let by_id = |network: Network| (network.id.clone(), network);
        let all = kept.into_values().map(by_id).collect();
        Ok(Networks {
            dir,
            home: home.root().to_owned(),
            cluster,
            tunnels: Tunnels::default(),
            all: Mutex::new(all),
            inbound: Mutex::default(),
        })
    }

    fn namespace(&self, id: &str) -> Namespace {
        Namespace::of(&self.home, id)
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    fn save(&self, network: &Network) -> Result<(), NodeError> {
        let bytes = serde_json::to_vec_pretty(network)
            .map_err(|error| failed(format!("a network: {error}"), "report this"))?;
        replace_file(&self.path(&network.id), &bytes)
    }

    /// Creates a network for a parent. Returns the parent's place in it and its card's MAC address.
    pub fn create(
        &self,
        request: &NetworkRequest,
        parent: &str,
        mac: Option<&str>,
    ) -> Result<(Attachment, String), NodeError> {
        let mut network = new(request, mac)?;
        network.members.insert(parent.to_owned(), 0);
        let attachment = Attachment {
            network: network.id.clone(),
            number: 0,
        };
        let mac = network.parent_mac.clone();
        self.begin(network)?;
        Ok((attachment, mac))
    }

    /// Creates a network for clones that have no parent, with their places in it. Returns its id.
    pub fn create_for<'a>(
        &self,
        request: &NetworkRequest,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<String, NodeError> {
        let mut network = new(request, None)?;
        for name in names {
            let number = network.free_number(name).ok_or_else(full)?;
            network.members.insert(name.to_owned(), number);
        }
        let id = network.id.clone();
        self.begin(network)?;
        Ok(id)
    }

    /// Creates a network for machines that have no parent in it, each with its number. Returns their places, in the same order. Each is
    /// in it from now on, and leaves it with [`Networks::leave`].
    pub fn create_with(
        &self,
        request: &NetworkRequest,
        members: &[(&str, u32)],
    ) -> Result<Vec<Attachment>, NodeError> {
        let mut network = new(request, None)?;
        let by_name = members.iter().map(|(name, at)| ((*name).to_owned(), *at));
        network.members = by_name.collect();
        let id = network.id.clone();
        self.begin(network)?;
        let place = |(_, number): &(&str, u32)| Attachment {
            network: id.clone(),
            number: *number,
        };
        Ok(members.iter().map(place).collect())
    }

    fn begin(&self, network: Network) -> Result<(), NodeError> {
        network
            .check()
            .map_err(|why| failed(format!("a network: {why}"), "report this"))?;
        let mut all = self.all.lock();
        self.namespace(&network.id).make(&network)?;
        if let Err(error) = self.save(&network) {
            self.namespace(&network.id).remove();
            return Err(error);
        }
        all.insert(network.id.clone(), network);
        Ok(())
    }

    /// Returns the member's number that has an address, if there is one.
    pub fn number_of(address: Ipv4Addr) -> Option<u32> {
        (0..=MEMBERS_MAX).find(|number| Network::address(*number) == address)
    }

    /// Returns the address of a member by its number.
    pub fn address_of(number: u32) -> Ipv4Addr {
        Network::address(number)
    }

    /// Connects to a port of a member's guest, and returns why that is impossible.
    pub fn knock(&self, place: &Attachment, port: u16) -> std::io::Result<()> {
        let to = (Network::address(place.number), port).into();
        self.namespace(&place.network).connect(to).map(drop)
    }

    /// Assigns clones their places in their parent's network.
    pub fn join<'a>(
        &self,
        network: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Attachment>, NodeError> {
        let mut all = self.all.lock();
        let known = all.get_mut(network).ok_or_else(|| unknown(network))?;
        if known.is_guest() {
            return Err(refused(
                "the numbers of a family's network are given away on its first parent's host",
                "fork the first parent, on its own host",
            ));
        }
        let mut changed = known.clone();
        let mut places = Vec::new();
        for name in names {
            let number = changed.free_number(name).ok_or_else(full)?;
            changed.members.insert(name.to_owned(), number);
            places.push(Attachment {
                network: network.to_owned(),
                number,
            });
        }
        self.save(&changed)?;
        *known = changed;
        Ok(places)
    }

    /// Connects a network of this host to other hosts; returns all of its hosts.
    pub fn reach(
        &self,
        network: &str,
        local: Ipv4Addr,
        hosts: impl Iterator<Item = Ipv4Addr>,
    ) -> Result<Vec<String>, NodeError> {
        let mut all = self.all.lock();
        let known = all.get_mut(network).ok_or_else(|| unknown(network))?;
        if known.sealed.is_some() {
            return Err(mixed());
        }
        let mut changed = known.clone();
        let overlay = changed.overlay.get_or_insert_with(|| Overlay {
            local,
            peers: BTreeSet::new(),
            home: true,
        });
        overlay.peers.extend(hosts);
        let everyone = overlay.peers.iter().chain([&overlay.local]);
        let everyone = everyone.map(Ipv4Addr::to_string).collect();
        if changed != *known {
            self.apply(Some(&*known), &changed)?;
            *known = changed;
        }
        Ok(everyone)
    }

    /// Applies a network that has more hosts than `before`, and writes it to the disk.
    fn apply(&self, before: Option<&Network>, network: &Network) -> Result<(), NodeError> {
        let namespace = self.namespace(&network.id);
        let rate = before.map(Network::bytes_per_s_here);
        if !namespace.exists()? {
            namespace.make(network)?;
        } else {
            if rate.is_some_and(|rate| rate != network.bytes_per_s_here()) {
                namespace.apply(&network.rules())?;
            }
            if let Some(overlay) = &network.overlay {
                namespace.join_hosts(network, overlay)?;
            }
        }
        self.open_tunnel(network)?;
        self.save(network)
    }

    /// Returns what another host, at this address, needs to know of a clone's network.
    pub fn order(&self, place: &Attachment, there: IpAddr) -> Result<NetworkOrder, NodeError> {
        let all = self.all.lock();
        let network = all
            .get(&place.network)
            .ok_or_else(|| unknown(&place.network))?;
        let overlay = network.overlay.iter();
        let hosts = overlay.flat_map(|overlay| overlay.peers.iter().chain([&overlay.local]));
        Ok(NetworkOrder {
            id: network.id.clone(),
            number: place.number,
            parent_mac: network.parent_mac.clone(),
            allow: network.allow.clone(),
            bytes_per_s: network.bytes_per_s,
            local: there.to_string(),
            hosts: hosts.map(Ipv4Addr::to_string).collect(),
            seal: self.seal_for(network),
        })
    }

    /// Assigns a clone of another node's machine its place in its family's network, which is created here if necessary.
    pub fn receive(&self, order: &NetworkOrder, name: &str) -> Result<Attachment, NodeError> {
        let mut all = self.all.lock();
        let known = all.get(&order.id);
        if known.is_some_and(|known| !known.is_guest()) {
            return Err(refused(
                format!("network {} has its home here", order.id),
                "fork without --hosts",
            ));
        }
        let mut network = known.cloned().unwrap_or_else(|| Network {
            version: NETWORK_VERSION,
            id: order.id.clone(),
            parent_mac: order.parent_mac.clone(),
            allow: plan::allowed_elsewhere(&order.allow),
            bytes_per_s: order.bytes_per_s,
            members: BTreeMap::new(),
            overlay: None,
            sealed: None,
        });
        if network.members.contains_key(name) {
            return Err(busy(
                format!("{name} is in network {} already", order.id),
                format!("end it (floe kill {name})"),
            ));
        }
        let taken = |(_, number): (&String, &u32)| *number == order.number;
        if network.members.iter().any(taken) {
            return Err(refused(
                format!("number {} of network {} is taken", order.number, order.id),
                "end the clone that has it (floe kill)",
            ));
        }
        network.members.insert(name.to_owned(), order.number);
        match &order.seal {
            Some(seal) => self.meet_members(&mut network, seal)?,
            None if network.sealed.is_some() => return Err(mixed()),
            None => {
                let local = addresses(std::slice::from_ref(&order.local))?;
                network.meet(local[0], &addresses(&order.hosts)?);
            }
        }
        let checked = network.check().and_then(|()| match order.allow.len() {
            0..=NETWORK_ALLOW_MAX => Ok(()),
            many => Err(format!("{many} destinations")),
        });
        checked.map_err(|why| usage(format!("a family's network: {why}"), ""))?;
        let new = !all.contains_key(&order.id);
        if let Err(error) = self.apply(all.get(&order.id), &network) {
            if new {
                self.namespace(&network.id).remove();
            }
            return Err(error);
        }
        all.insert(network.id.clone(), network);
        Ok(Attachment {
            network: order.id.clone(),
            number: order.number,
        })
    }

    /// Notes the hosts of a family whose home is another host. `by` is the member of the cluster that tells them: it must be one of
    /// them itself.
    pub fn meet(
        &self,
        network: &str,
        hosts: &[String],
        by: Option<SocketAddr>,
    ) -> Result<(), NodeError> {
        let mut all = self.all.lock();
        let may = |known: &Network| by.is_none_or(|member| known.has_host(member));
        let known = all.get_mut(network);
        let known = known.filter(|known| known.is_guest() && may(known));
        let known = known
            .ok_or_else(|| not_found(format!("there is no family network {network} here"), ""))?;
        let mut changed = known.clone();
        self.meet_all(&mut changed, hosts)?;
        if changed != *known {
            self.apply(Some(&*known), &changed)?;
            *known = changed;
        }
        Ok(())
    }

    /// Returns the names of a network's members.
    pub fn members(&self, network: &str) -> Vec<String> {
        let all = self.all.lock();
        let network = all.get(network).into_iter();
        network
            .flat_map(|network| network.members.keys().cloned())
            .collect()
    }

    /// Removes a clone on another host from its network, if it is in one.
    pub fn leave_any(&self, name: &str) {
        let of = |network: &&Network| network.members.contains_key(name);
        let network = self.all.lock().values().find(of).map(|n| n.id.clone());
        if let Some(network) = network {
            self.leave(&network, name);
        }
    }

    /// Removes a member from a network. With the last member the network is removed.
    pub fn leave(&self, network: &str, name: &str) {
        let mut all = self.all.lock();
        let Some(known) = all.get_mut(network) else {
            return;
        };
        known.members.remove(name);
        if !known.members.is_empty() {
            if let Err(error) = self.save(known) {
                tracing::warn!(network, %error, "a place in a network stays taken until the node is restarted");
            }
            return;
        }
        if let Some(network) = all.remove(network) {
            self.tunnels.close(&network);
        }
        self.namespace(network).remove();
        if let Err(error) = fs::remove_file(self.path(network)) {
            tracing::warn!(network, %error, "a network's file stays");
        }
    }

    /// Removes members that the node does not know, and networks that have none left.
    pub fn tidy(&self, is_known: impl Fn(&str) -> bool) {
        let gone: Vec<(String, String)> = {
            let all = self.all.lock();
            let of = |network: &Network| -> Vec<(String, String)> {
                let names = network.members.keys().filter(|name| !is_known(name));
                names
                    .map(|name| (network.id.clone(), name.clone()))
                    .collect()
            };
            all.values().flat_map(of).collect()
        };
        gone.iter()
            .for_each(|(network, name)| self.leave(network, name));
    }

    /// Creates a member's port. The network is created again if the host was restarted.
    pub fn tap(&self, place: &Attachment) -> Result<Tap, NodeError> {
        let namespace = self.namespace(&place.network);
        {
            let all = self.all.lock();
            let network = all
                .get(&place.network)
                .ok_or_else(|| unknown(&place.network))?;
            if !namespace.exists()? {
                namespace.make(network)?;
                self.open_tunnel(network)?;
            }
        }
        Ok(Tap::new(namespace.open_port(place.number)?))
    }

    /// Returns the MAC address of a member's network card.
    pub fn mac(&self, place: &Attachment) -> Option<String> {
        let all = self.all.lock();
        Some(all.get(&place.network)?.mac(place.number))
    }

    /// Returns a member's address, with the network's prefix length.
    pub fn address(place: &Attachment) -> String {
        format!("{}/{BITS}", Network::address(place.number))
    }

    /// Returns a member's place as it is shown.
    pub fn info(&self, place: &Attachment) -> NetworkInfo {
        let all = self.all.lock();
        let network = all.get(&place.network);
        NetworkInfo {
            id: place.network.clone(),
            address: Networks::address(place),
            mac: network
                .map(|network| network.mac(place.number))
                .unwrap_or_default(),
            gateway: GATEWAY.to_string(),
            allow: network
                .map(|network| network.allow.clone())
                .unwrap_or_default(),
        }
    }

    /// Returns how many bytes a second a member's network may send out of itself. All members share that, so only the first
    /// one has it.
    pub fn way_out_bytes_per_s(&self, place: &Attachment) -> u64 {
        let all = self.all.lock();
        let network = all.get(&place.network).filter(|_| place.number == 0);
        let network = network.filter(|network| !network.allow.is_empty());
        network.map_or(0, Network::bytes_per_s_here)
    }

    /// Returns how many bytes a member's network card has carried in both directions, if it has one.
    pub fn carried(&self, place: &Attachment) -> Option<u64> {
        self.namespace(&place.network).carried(place.number)
    }

    /// Returns an error if a port of the host could not be opened.
    pub fn check_inbound(forward: &PortForward) -> Result<(), NodeError> {
        Inbound::check(forward)
    }

    /// Opens a port of the host that leads to a member, with the socket that listens there if there is one.
    pub fn open_inbound(
        &self,
        machine: &str,
        place: &Attachment,
        forward: &PortForward,
        socket: Option<OwnedFd>,
    ) -> Result<(), NodeError> {
        let namespace = self.namespace(&place.network);
        let mut all = self.inbound.lock();
        let ports = all.entry(machine.to_owned()).or_default();
        let taken = ports.iter_mut().find(|port| port.forward == *forward);
        match (taken.filter(|port| port.is_taken()), socket) {
            (Some(port), Some(socket)) => {
                port.accept_at(&namespace, place.number, socket.into())?;
            }
            (_, socket) => {
                let opened = Inbound::open(&namespace, place.number, forward, socket)?;
                ports.push(opened);
            }
        }
        Ok(())
    }

    /// Takes the socket of a port that leads to a member: who connects waits there. Connections that are open stay so. Returns
    /// `None` if the port is not open.
    pub fn take_inbound(
        &self,
        machine: &str,
        forward: &PortForward,
    ) -> Option<io::Result<OwnedFd>> {
        let mut all = self.inbound.lock();
        let mut ports = all.get_mut(machine)?.iter_mut();
        ports.find(|port| port.forward == *forward)?.take()
    }

    /// Closes one port, or all ports of a machine.
    pub fn close_inbound(&self, machine: &str, forward: Option<&PortForward>) {
        let mut all = self.inbound.lock();
        match forward {
            None => drop(all.remove(machine)),
            Some(forward) => {
                if let Some(open) = all.get_mut(machine) {
                    open.retain(|port| port.forward != *forward);
                }
            }
        }
    }
}

/// Returns a network without members.
fn new(request: &NetworkRequest, mac: Option<&str>) -> Result<Network, NodeError> {
    if request.allow.len() > NETWORK_ALLOW_MAX {
        return Err(usage(
            format!("{} destinations", request.allow.len()),
            format!("allow at most {NETWORK_ALLOW_MAX}"),
        ));
    }
    let [a, b, c]: [u8; 3] = rand::random();
    Ok(Network {
        version: NETWORK_VERSION,
        id: format!("{:08x}", rand::random::<u32>()),
        parent_mac: mac.map_or_else(
            || format!("52:54:00:{a:02x}:{b:02x}:{c:02x}"),
            str::to_owned,
        ),
        allow: request.allow.clone(),
        bytes_per_s: request.bytes_per_s.unwrap_or(NETWORK_BYTES_PER_S),
        members: BTreeMap::new(),
        overlay: None,
        sealed: None,
    })
}

fn full() -> NodeError {
    refused(
        format!("a family's network has room for {MEMBERS_MAX} clones"),
        "end clones that are no longer needed (floe kill)",
    )
}

/// Parses addresses of hosts.
fn addresses(texts: &[String]) -> Result<Vec<Ipv4Addr>, NodeError> {
    let parse = |text: &String| {
        text.parse()
            .map_err(|_| usage(format!("{text:?} is no IPv4 address of a host"), ""))
    };
    match texts.len() {
        0..=FORK_HOSTS_MAX => texts.iter().map(parse).collect(),
        many => Err(usage(format!("{many} hosts of a family"), "")),
    }
}

fn unknown(network: &str) -> NodeError {
    failed(
        format!("there is no family network {network}"),
        "its file is gone from networks/; the machine can only be removed",
    )
}

//! Families whose hosts are members of one cluster: their networks are connected with encryption
//! ([`Tunnels`](super::tunnel::Tunnels)).

use super::{
    Networks, addresses,
    plan::{Network, Sealed},
    unknown,
};
use floe_api::{FORK_HOSTS_MAX, NetworkSeal};
use floe_ground::error::{NodeError, refused, usage};
use std::{collections::BTreeSet, net::SocketAddr};

/// Returns the error that a network must be encrypted for all of its hosts or for none.
pub(super) fn mixed() -> NodeError {
    refused(
        "a family's network is either encrypted, between members of a cluster, or in clear text on all of its hosts",
        "fork to hosts that are reached as the first ones were, or begin a new family",
    )
}

/// Parses addresses of members.
fn sockets(texts: &[String]) -> Result<BTreeSet<SocketAddr>, NodeError> {
    let parse = |text: &String| {
        text.parse()
            .map_err(|_| usage(format!("{text:?} is no member's address"), ""))
    };
    match texts.len() {
        0..=FORK_HOSTS_MAX => texts.iter().map(parse).collect(),
        many => Err(usage(format!("{many} hosts of a family"), "")),
    }
}

impl Networks {
    /// Connects a network of this host to other members of the cluster; returns all of its hosts.
    pub fn reach_members(
        &self,
        network: &str,
        local: SocketAddr,
        members: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<String>, NodeError> {
        let mut all = self.all.lock();
        let known = all.get_mut(network).ok_or_else(|| unknown(network))?;
        if known.overlay.is_some() {
            return Err(mixed());
        }
        let mut changed = known.clone();
        let sealed = changed.sealed.get_or_insert_with(|| Sealed {
            secret: format!(
                "{:032x}{:032x}",
                rand::random::<u128>(),
                rand::random::<u128>()
            ),
            local,
            peers: BTreeSet::new(),
            home: true,
        });
        sealed
            .peers
            .extend(members.filter(|member| *member != local));
        let everyone = sealed.peers.iter().chain([&sealed.local]);
        let everyone = everyone.map(SocketAddr::to_string).collect();
        self.apply(Some(&*known), &changed)?;
        *known = changed;
        Ok(everyone)
    }

    /// Returns what another member needs to know of an encrypted network.
    pub(super) fn seal_for(&self, network: &Network) -> Option<NetworkSeal> {
        let sealed = network.sealed.as_ref()?;
        let hosts = sealed.peers.iter().chain([&sealed.local]);
        Some(NetworkSeal {
            secret: sealed.secret.clone(),
            hosts: hosts.map(SocketAddr::to_string).collect(),
        })
    }

    /// Notes what a family's home has sent about its network, if that is encrypted.
    pub(super) fn meet_members(
        &self,
        network: &mut Network,
        seal: &NetworkSeal,
    ) -> Result<(), NodeError> {
        if network.overlay.is_some() {
            return Err(mixed());
        }
        let local = self.cluster.own_address().ok_or_else(mixed)?;
        let sealed = network.sealed.get_or_insert_with(|| Sealed {
            secret: seal.secret.clone(),
            local,
            peers: BTreeSet::new(),
            home: false,
        });
        sealed.secret = seal.secret.clone();
        let hosts = sockets(&seal.hosts)?;
        sealed
            .peers
            .extend(hosts.into_iter().filter(|host| *host != local));
        Ok(())
    }

    /// Notes the hosts of a family; they are addresses in the network's form.
    pub(super) fn meet_all(
        &self,
        network: &mut Network,
        hosts: &[String],
    ) -> Result<(), NodeError> {
        if let Some(sealed) = &mut network.sealed {
            let local = sealed.local;
            let hosts = sockets(hosts)?;
            sealed
                .peers
                .extend(hosts.into_iter().filter(|host| *host != local));
        } else if let Some(local) = network.overlay.as_ref().map(|overlay| overlay.local) {
            network.meet(local, &addresses(hosts)?);
        }
        Ok(())
    }

    /// Opens the connection to a network's other hosts, if that is encrypted and not open yet.
    pub(super) fn open_tunnel(&self, network: &Network) -> Result<(), NodeError> {
        let Some(sealed) = &network.sealed else {
            return Ok(());
        };
        let listen = self.cluster.listens_at().ok_or_else(|| {
            refused(
                "the family's other hosts are members of a cluster, and this node is in none any more",
                "floe cluster join",
            )
        })?;
        let namespace = self.namespace(&network.id);
        self.tunnels.ensure(network, sealed, &namespace, listen)
    }

    /// Opens connections again that are closed: those of an earlier node, and those that have ended.
    pub fn open_tunnels(&self) {
        let all = self.all.lock();
        for network in all.values() {
            let opened = match self.namespace(&network.id).exists() {
                Ok(false) => continue, // it is created when a member starts
                there => there.and_then(|_| self.open_tunnel(network)),
            };
            if let Err(error) = opened {
                tracing::warn!(network = network.id, %error, "a family does not reach its other hosts");
            }
        }
    }
}

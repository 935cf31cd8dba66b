//! A fork and its family's network: places for its clones, and connections between its hosts.

use super::{Asked, Fork, Host, State, record::ForkRecord};
use crate::Forks;
use floe_api::{NetworkHosts, NetworkOrder};
use floe_ground::error::{NodeError, refused, usage};
use floe_hosts::cluster::Remote;
use floe_inventory::inventory::record::Attachment;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

/// Returns this host's address as the given host sees it, and that host's address.
fn between(remote: &Remote) -> Result<(Ipv4Addr, Ipv4Addr), NodeError> {
    let url = remote.url();
    match remote.addresses()? {
        (own, there) if own == there => Err(refused(
            format!("{url} is on this host, where a family has its network already"),
            "fork without --hosts, or name other hosts",
        )),
        (IpAddr::V4(own), IpAddr::V4(there)) => Ok((own, there)),
        _ => Err(usage(
            format!("{url}: a family's network needs IPv4 between its hosts"),
            "name the host by an IPv4 address",
        )),
    }
}

impl Forks {
    /// Assigns places to the clones of a parent that is in a network, or to those that get one of their own, and extends the network
    /// to all hosts of the fork.
    pub(super) fn places(
        &self,
        asked: &Asked<'_>,
        record: &ForkRecord,
    ) -> Result<Vec<Attachment>, NodeError> {
        let Some(network) = self.network_for(asked, record)? else {
            return Ok(Vec::new());
        };
        let hosts = asked.hosts;
        let remotes = || {
            hosts.iter().filter_map(|host| match host {
                Host::Here => None,
                Host::There(remote, _) => Some(remote),
            })
        };
        let members: Vec<_> = remotes().filter_map(Remote::member_address).collect();
        let all = match (remotes().count(), self.cluster.own_address()) {
            (0, _) => None,
            (all, Some(own)) if all == members.len() => {
                let members = members.into_iter();
                Some(self.networks.reach_members(&network, own, members)?)
            }
            _ => {
                let between: Vec<(Ipv4Addr, Ipv4Addr)> =
                    remotes().map(between).collect::<Result<_, _>>()?;
                let local = between.first().map(|(local, _)| *local);
                let there = between.iter().map(|(_, there)| *there);
                let reach = |local| self.networks.reach(&network, local, there);
                local.map(reach).transpose()?
            }
        };
        if let Some(all) = all {
            self.tell_hosts(&network, all);
        }
        let names = record.clones.iter().map(|clone| clone.name.as_str());
        self.networks.join(&network, names)
    }

    /// Returns the network that a fork's clones are in, which is created if it is to be one of their own.
    fn network_for(
        &self,
        asked: &Asked<'_>,
        record: &ForkRecord,
    ) -> Result<Option<String>, NodeError> {
        if let Some(parent) = &asked.instant.parent {
            let place = &parent.entry.record().network;
            return Ok(place.as_ref().map(|place| place.network.clone()));
        }
        let Some(request) = asked.purpose.network else {
            return Ok(None);
        };
        let devices = &asked.instant.found.manifest.config.devices;
        if !devices.is_empty() && !floe_machine::has_network_card(devices) {
            return Err(refused(
                format!("a machine of {} has no network card", asked.parent),
                "leave --network out",
            ));
        }
        let names = record.clones.iter().map(|clone| clone.name.as_str());
        self.networks.create_for(request, names).map(Some)
    }

    /// Tells the hosts of earlier forks about the family's new hosts.
    fn tell_hosts(&self, network: &str, hosts: Vec<String>) {
        let mut urls = BTreeMap::new();
        for name in self.networks.members(network) {
            if let Some((fork, url)) = self.records.away(&name) {
                urls.insert(url, fork.hosts_token);
            }
        }
        let hosts = NetworkHosts { hosts };
        floe_threads::scope(|scope| {
            for (url, token) in &urls {
                scope.spawn("tell-host", || {
                    let told = self
                        .remote(url, token.as_deref())
                        .map_err(|error| error.to_api().to_string())
                        .and_then(|remote| remote.meet_hosts(network, &hosts));
                    if let Err(why) = told {
                        tracing::warn!(
                            network,
                            why,
                            "a host was not told of its family's new hosts"
                        );
                    }
                });
            }
        });
    }

    /// Returns what a host needs to know about the network of a clone that it is to start.
    pub(super) fn network_order(
        &self,
        place: &Attachment,
        remote: &Remote,
    ) -> Result<NetworkOrder, NodeError> {
        let there = match remote.member_address() {
            Some(address) => address.ip(),
            None => between(remote)?.1.into(),
        };
        self.networks.order(place, there)
    }

    /// Gives back the places of clones that do not run.
    pub(super) fn leave_vacant(&self, record: &ForkRecord, places: &[Attachment], fork: &Fork) {
        for (clone, place) in record.clones.iter().zip(places) {
            if !matches!(fork.state(clone.number), Some(State::Running(_))) {
                self.networks.leave(&place.network, &clone.name);
            }
        }
    }
}

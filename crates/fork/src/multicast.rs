//! The multicast group of a fork: what one clone's node asks for is sent once and received by all (SnowFlock, section 4.5).

use super::{Host, record::ForkRecord};
use crate::Forks;
use floe_api::{MulticastGroup, MulticastUse};
use floe_ground::error::NodeError;
use floe_image::datagram::GroupKey;
use floe_inventory::inventory::record::Origin;
use floe_source::multicast::{MulticastServer, ServerOptions};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
};

/// From how many other hosts a group saves traffic.
const HOSTS_MIN: usize = 2;

impl Forks {
    /// Opens a group for a fork's clones on other hosts, if it is wanted and useful.
    pub(super) fn open_multicast(
        &self,
        wanted: MulticastUse,
        hosts: &[Host],
        record: &ForkRecord,
    ) -> Option<MulticastGroup> {
        let address = match wanted {
            MulticastUse::Auto => own_address(hosts)?,
            MulticastUse::Off => return None,
        };
        let options = ServerOptions::new(address, GroupKey::of(&record.token));
        self.serve_group(record, &options)
    }

    /// Opens the groups of forks that an earlier node left.
    pub fn open_groups_again(&self) {
        for fork in self.records.all() {
            let Some(group) = fork.multicast.filter(|_| fork.has_clones_away()) else {
                continue;
            };
            let options = ServerOptions {
                port: group.server.port(),
                group: group.group,
                ..ServerOptions::new(*group.server.ip(), GroupKey::of(&fork.token))
            };
            self.serve_group(&fork, &options);
        }
    }

    fn serve_group(&self, fork: &ForkRecord, options: &ServerOptions) -> Option<MulticastGroup> {
        let opened = || -> Result<MulticastServer, NodeError> {
            let images = self.images.sources.fetcher(&Origin::default())?;
            let source = images.source().clone();
            Ok(MulticastServer::open(fork.image, source, options)?)
        };
        match opened() {
            Ok(server) => {
                let group = MulticastGroup {
                    server: server.invitation().server,
                    group: server.invitation().group,
                };
                self.records.serve(&fork.id, server);
                Some(group)
            }
            Err(error) => {
                tracing::warn!(fork = fork.id, %error, "no multicast; its clones read by unicast");
                None
            }
        }
    }
}

/// Returns this host's address as most of the other hosts see it, if at least [`HOSTS_MIN`] do.
fn own_address(hosts: &[Host]) -> Option<Ipv4Addr> {
    let mut seen: HashMap<Ipv4Addr, usize> = HashMap::new();
    for host in hosts {
        if let Host::There(remote, _) = host
            && let Ok(IpAddr::V4(own)) = remote.own_address()
        {
            *seen.entry(own).or_default() += 1;
        }
    }
    let most = seen.into_iter().max_by_key(|(_, hosts)| *hosts);
    most.filter(|(_, hosts)| *hosts >= HOSTS_MIN)
        .map(|(own, _)| own)
}

//! What users see of swarms.

use super::{
    Known, Swarms,
    decide::Key,
    member::key_text,
    pieces::{Part, wait_for},
    uses,
};
use floe_api::{SwarmInfo, SwarmMembers, SwarmPeer, SwarmReport, SwarmWay};
use floe_image::Hash;
use floe_peers::{Fault, Status};
use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

/// How long a swarm may take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// What users are told if no other node has ever answered.
const BLOCKED: &str = "no other node answers over UDP (a firewall, here or there?); the image comes from the hub alone";
/// The same for nodes that a user has listed, which may not run the image at all.
const NONE_OF_LIST: &str = "no node of its list answers over UDP: none runs the image with this one on its list, or a firewall drops it; the \
                            image comes from the hub alone";

/// What is known of a swarm without its pieces.
#[derive(Clone, Copy)]
struct Heard {
    by: By,
    /// Whether other users' nodes may be met.
    open: bool,
    /// Whether this node has heard who takes part.
    listed: bool,
}

/// Where the list of members comes from.
#[derive(Clone, Copy)]
enum By {
    Hub,
    Cluster,
    List,
}

impl Heard {
    fn of(known: &Known) -> Heard {
        Heard {
            by: match known.members {
                SwarmMembers::Hub => By::Hub,
                SwarmMembers::Cluster => By::Cluster,
                SwarmMembers::List(_) => By::List,
            },
            open: known.open,
            listed: known.is_listed(),
        }
    }

    /// Says in words why a swarm's pieces come as they do.
    fn why(self, info: &SwarmInfo) -> String {
        let connected = info.peers.iter().filter(|peer| peer.linked).count();
        let others = info.peers.len();
        let nodes = if others == 1 { "node" } else { "nodes" };
        let of = match self.by {
            By::Hub => "that the hub lists",
            By::Cluster => "of the cluster that run it",
            By::List => "of its list",
        };
        match (others, connected, self.by) {
            _ if !self.listed => "who takes part is not known yet".into(),
            (0, _, By::Hub) if self.open => "the hub lists no other node for it".into(),
            (0, _, By::Hub) => "no other node of the same user runs it".into(),
            (0, _, By::Cluster) => "no other member of the cluster runs it by the cluster".into(),
            (0, _, By::List) => "its list names no other node".into(),
            (_, 0, _) => format!("not connected to any of {others} other {nodes} {of}"),
            _ => format!("connected to {connected} of {others} other {nodes} {of}"),
        }
    }
}

impl Swarms {
    /// Returns in which swarms this node takes part, and how they are.
    pub fn report(&self) -> SwarmReport {
        let (key, addresses) = match &*self.endpoint.lock() {
            Some(host) => (
                Some(key_text(&host.key())),
                host.addresses().iter().map(ToString::to_string).collect(),
            ),
            None => (None, Vec::new()),
        };
        let mut swarms = self.swarms(key.as_deref());
        swarms.extend(self.forks());
        SwarmReport {
            usage: self.core.options.swarm.usage,
            key,
            addresses,
            swarms,
        }
    }

    /// Returns the swarms alone. `me` is this node's key.
    fn swarms(&self, me: Option<&str>) -> Vec<SwarmInfo> {
        let wanted = self.wanted();
        let known = self.known.lock();
        let mut swarms: BTreeMap<Key, (SwarmInfo, Heard)> = BTreeMap::new();
        for (at, known) in known.iter().filter(|(at, _)| wanted.contains_key(at)) {
            let both = (described(at, known, me), Heard::of(known));
            swarms.insert(at.clone(), both);
        }
        drop(known);
        for (at, (info, heard)) in &mut swarms {
            if let Some(wanted) = wanted.get(at) {
                info.machines.clone_from(&wanted.machines);
                info.seeding = wanted.given.is_some();
            }
            if let Some(part) = self.active.part(at) {
                self.measured(info, *heard, &part);
            }
            if let Some(given) = wanted.get(at).and_then(|wanted| wanted.given.as_ref()) {
                info.seed_until = given.until;
                info.complete = info.complete.max(count(given.complete.len()));
            }
            info.why = heard.why(info);
        }
        swarms.into_values().map(|(info, _)| info).collect()
    }

    /// Returns the forks whose clones here have a multicast group, or read out of swarms, and what that brings.
    fn forks(&self) -> Vec<SwarmInfo> {
        let mut forks: BTreeMap<(Hash, String), SwarmInfo> = BTreeMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let Some(parent) = record.origin.urls.first().filter(|_| uses(&entry)) else {
                continue;
            };
            let group = record.origin.multicast.map(|group| *group.group.ip());
            let of_hub = self.images.sources.may_be_hub(parent);
            let lent = self.active.lent(&record.image).filter(|_| !of_hub);
            if group.is_none() && lent.is_none() {
                continue;
            }
            let fork = forks
                .entry((record.image, parent.clone()))
                .or_insert_with(|| {
                    let fetcher = self.images.sources.fetcher_in_use(&record.origin);
                    let passes = fetcher.and_then(|fetcher| fetcher.source().multicast());
                    let (way, why) = fork_way(passes, group);
                    SwarmInfo {
                        image: record.image.to_string(),
                        hub: parent.clone(),
                        way,
                        why,
                        lent,
                        ..Default::default()
                    }
                });
            fork.machines.push(entry.name.to_string());
        }
        forks.into_values().collect()
    }

    /// Brings the metrics up to date.
    pub fn record_metrics(&self) {
        let swarms = self.swarms(self.key().as_deref());
        super::traffic::show(&swarms);
        swarms.iter().for_each(|info| self.counted.add(info));
        self.counted.keep(&swarms);
    }

    /// Counts what a swarm that ends has moved since the metrics were read last.
    pub(super) fn count_last(&self, at: &Key, part: &Arc<Part>) {
        let me = self.key();
        let known = self.known.lock();
        let info = known
            .get(at)
            .map(|known| (described(at, known, me.as_deref()), Heard::of(known)));
        drop(known);
        if let Some((mut info, heard)) = info {
            self.measured(&mut info, heard, part);
            self.counted.add(&info);
        }
    }

    /// Asks a swarm how it is; `None` if it doesn't say.
    pub(super) fn status_of(&self, part: &Part) -> Option<Status> {
        let swarm = part.swarm.clone();
        let status = wait_for(&self.runtime, STATUS_TIMEOUT, async move {
            swarm.status().await
        });
        status?.ok()
    }

    fn measured(&self, info: &mut SwarmInfo, heard: Heard, part: &Arc<Part>) {
        if let Some(status) = self.status_of(part) {
            if status.peers.iter().any(|peer| peer.connected) {
                info.way = SwarmWay::Swarm;
            }
            fill_in(info, &status);
            let speed = part.swarm.speed();
            info.bytes_per_s = speed.map(|speed| speed.bytes_per_s);
            info.piece_us = speed.map(|speed| speed.piece_us);
            if info.trouble.is_empty() && status.seed_wrong > 0 {
                let pieces = status.seed_wrong;
                info.trouble = format!(
                    "the hub sent wrong bytes {pieces} times, which were not kept; it is told"
                );
            }
        }
        if info.trouble.is_empty() && part.is_blocked() {
            info.trouble = match heard.by {
                By::Hub | By::Cluster => BLOCKED.into(),
                By::List => NONE_OF_LIST.into(),
            };
        }
    }
}

/// Says how clones of a fork on another host are read: `passes` is what their source knows of the group, whose address is `ip` if there is
/// one.
fn fork_way(passes: Option<bool>, ip: Option<Ipv4Addr>) -> (SwarmWay, String) {
    let Some(ip) = ip else {
        let why = "a clone of a fork without a multicast group";
        return (SwarmWay::Parent, why.into());
    };
    match passes {
        Some(true) => (
            SwarmWay::Multicast,
            format!(
                "a clone of a fork that has several other hosts on one network segment: what one of them asks for is sent once to all ({ip})"
            ),
        ),
        Some(false) => (
            SwarmWay::Parent,
            format!(
                "a clone of a fork whose multicast ({ip}) does not pass between its parent's host and this one"
            ),
        ),
        None => (
            SwarmWay::Parent,
            format!("a clone of a fork whose multicast group ({ip}) this host could not join"),
        ),
    }
}

fn described(at: &Key, known: &Known, me: Option<&str>) -> SwarmInfo {
    let members = known.membership.members.iter();
    let others = members.filter(|member| Some(&*member.key) != me);
    let peers = others.map(|member| SwarmPeer {
        key: member.key.clone(),
        addresses: member.addresses.clone(),
        ..Default::default()
    });
    SwarmInfo {
        peers: peers.collect(),
        image: at.image.to_string(),
        hub: known.place.url.clone(),
        trouble: known.trouble.clone(),
        ..Default::default()
    }
}

fn fill_in(info: &mut SwarmInfo, status: &Status) {
    info.pieces_here = status.pieces_here;
    info.pieces = status.pieces;
    info.complete = count(status.complete.len());
    info.needed = count(status.needed);
    info.window = count(status.window);
    info.hub_bytes = status.seed_bytes;
    info.received_bytes = status.peers.iter().map(|peer| peer.traffic.received).sum();
    info.sent_bytes = status.peers.iter().map(|peer| peer.traffic.sent).sum();
    for peer in &mut info.peers {
        let same = |key: &floe_peers::Key| key_text(key) == peer.key;
        if let Some(known) = status.peers.iter().find(|known| same(&known.key)) {
            (peer.linked, peer.pieces) = (known.connected, known.pieces);
            peer.received_bytes = known.traffic.received;
            peer.sent_bytes = known.traffic.sent;
        }
        let dropped = status.dropped.iter().rev().find(|(key, _)| same(key));
        peer.dropped = dropped.map(|(_, fault)| why(*fault).to_owned());
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn why(fault: Fault) -> &'static str {
    match fault {
        Fault::WrongBytes => "it sent wrong bytes",
        Fault::Stalled => "it sent nothing of what it was asked for",
        Fault::Lied => "it does not have what it said",
        Fault::Flooded => "it asked for far too much",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_pieces_come_as_they_do_is_said_in_words() {
        let info = |others: usize, connected: usize| SwarmInfo {
            peers: (0..others)
                .map(|number| SwarmPeer {
                    linked: number < connected,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let heard = |by: By, open: bool| Heard {
            by,
            open,
            listed: true,
        };
        for (heard, others, connected, why) in [
            (heard(By::Hub, false), 0, 0, "of the same user runs it"),
            (heard(By::Hub, true), 0, 0, "the hub lists no other node"),
            (
                heard(By::Cluster, true),
                0,
                0,
                "no other member of the cluster",
            ),
            (heard(By::List, true), 0, 0, "its list names no other node"),
            (
                heard(By::Hub, true),
                3,
                0,
                "not connected to any of 3 other nodes that the hub lists",
            ),
            (
                heard(By::Cluster, true),
                3,
                2,
                "connected to 2 of 3 other nodes of the cluster",
            ),
            (
                heard(By::List, true),
                1,
                1,
                "connected to 1 of 1 other node of its list",
            ),
        ] {
            let said = heard.why(&info(others, connected));
            assert!(said.contains(why), "{said}");
        }
        let unheard = Heard {
            listed: false,
            ..heard(By::List, true)
        };
        assert!(unheard.why(&info(0, 0)).contains("not known yet"));
    }

    #[test]
    fn a_clone_is_read_by_multicast_only_where_that_passes() {
        let ip = Ipv4Addr::new(239, 1, 2, 3);
        let (way, why) = fork_way(Some(true), Some(ip));
        assert_eq!(way, SwarmWay::Multicast);
        assert!(
            why.contains("one network segment") && why.contains("239.1.2.3"),
            "{why}"
        );
        for passes in [Some(false), None] {
            assert_eq!(fork_way(passes, Some(ip)).0, SwarmWay::Parent);
        }
        let (way, why) = fork_way(None, None);
        assert_eq!(way, SwarmWay::Parent);
        assert!(why.contains("without a multicast group"), "{why}");
    }
}

//! What users see of swarms.

use super::{
    Known, Swarms,
    decide::Key,
    member::key_text,
    pieces::{Part, wait_for},
};
use floe_api::{SwarmInfo, SwarmPeer, SwarmReport, SwarmWay};
use floe_peers::{Fault, Status};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How long a swarm may take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// What is told where no other node has ever answered.
const BLOCKED: &str = "no other node answers over UDP (a firewall, here or there?); the image comes from the hub alone";

impl Swarms {
    /// Returns in which swarms this node takes part, and how they are.
    pub fn report(&self) -> SwarmReport {
        let wanted = self.wanted();
        let (key, addresses) = match &*self.endpoint.lock() {
            Some(host) => (
                Some(key_text(&host.key())),
                host.addresses().iter().map(ToString::to_string).collect(),
            ),
            None => (None, Vec::new()),
        };
        let known = self.known.lock();
        let mut swarms: BTreeMap<Key, SwarmInfo> = BTreeMap::new();
        for (at, known) in known.iter().filter(|(at, _)| wanted.contains_key(at)) {
            swarms.insert(at.clone(), described(at, known, key.as_deref()));
        }
        drop(known);
        for (at, info) in &mut swarms {
            if let Some(wanted) = wanted.get(at) {
                info.machines.clone_from(&wanted.machines);
                info.seeding = wanted.given.is_some();
            }
            if let Some(part) = self.active.part(at) {
                self.measured(info, &part);
            }
            if let Some(given) = wanted.get(at).and_then(|wanted| wanted.given.as_ref()) {
                info.seed_until = given.until;
                info.complete = info.complete.max(count(given.complete.len()));
            }
        }
        SwarmReport {
            usage: self.core.options.swarm.usage,
            key,
            addresses,
            swarms: swarms.into_values().collect(),
        }
    }

    /// Brings the metrics up to date.
    pub fn record_metrics(&self) {
        let swarms = self.report().swarms;
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
            .map(|known| described(at, known, me.as_deref()));
        drop(known);
        if let Some(mut info) = info {
            self.measured(&mut info, part);
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

    fn measured(&self, info: &mut SwarmInfo, part: &Arc<Part>) {
        if let Some(status) = self.status_of(part) {
            if status.peers.iter().any(|peer| peer.linked) {
                info.way = SwarmWay::Swarm;
            }
            fill_in(info, &status);
            if info.trouble.is_empty() && status.seed_wrong > 0 {
                let pieces = status.seed_wrong;
                info.trouble = format!(
                    "the hub sent wrong bytes {pieces} times, which were not kept; it is told"
                );
            }
        }
        if info.trouble.is_empty() && part.is_blocked() {
            info.trouble = BLOCKED.into();
        }
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
            (peer.linked, peer.pieces) = (known.linked, known.pieces);
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

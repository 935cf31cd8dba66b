//! What swarms have moved since the node began, for `/metrics`: a swarm counts what it did itself, and forgets it when it ends.

use floe_api::SwarmInfo;
use floe_front::telemetry;
use parking_lot::Mutex;
use std::collections::HashMap;

/// What was seen of one swarm, or of one host in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    received: u64,
    sent: u64,
}

/// The image, its hub, and the other host's key: none for the hub itself.
type Of = (String, String, Option<String>);

/// How much was counted of each swarm. Its lock is held only while numbers are compared.
#[derive(Debug, Default)]
pub(super) struct Counted(Mutex<HashMap<Of, Seen>>);

impl Counted {
    /// Adds what is new in a swarm to the counters.
    pub fn add(&self, info: &SwarmInfo) {
        let from_hub = self.new_of(info, None, info.hub_bytes, 0).received;
        let mut others = Seen::default();
        for peer in &info.peers {
            let key = Some(peer.key.clone());
            let new = self.new_of(info, key, peer.received_bytes, peer.sent_bytes);
            others.received += new.received;
            others.sent += new.sent;
        }
        let received = telemetry::NODE_SWARM_RECEIVED_BYTES;
        metrics::counter!(received, "from" => "hub").increment(from_hub);
        metrics::counter!(received, "from" => "hosts").increment(others.received);
        metrics::counter!(telemetry::NODE_SWARM_SENT_BYTES).increment(others.sent);
    }

    /// Returns what is new since the last time, and all of it where the other side counts from the beginning again.
    fn new_of(&self, info: &SwarmInfo, key: Option<String>, received: u64, sent: u64) -> Seen {
        let of = (info.image.clone(), info.hub.clone(), key);
        let now = Seen { received, sent };
        let before = self.0.lock().insert(of, now).unwrap_or_default();
        let began_again = received < before.received || sent < before.sent;
        let before = if began_again { Seen::default() } else { before };
        Seen {
            received: received - before.received,
            sent: sent - before.sent,
        }
    }

    /// Forgets what is no longer there.
    pub fn keep(&self, swarms: &[SwarmInfo]) {
        self.0.lock().retain(|(image, hub, key), _| {
            let mut same = swarms
                .iter()
                .filter(|info| info.image == *image && info.hub == *hub);
            same.any(|info| {
                key.as_ref()
                    .is_none_or(|key| info.peers.iter().any(|peer| peer.key == *key))
            })
        });
    }
}

/// Brings the gauges up to date.
pub(super) fn show(swarms: &[SwarmInfo]) {
    let sum = |of: fn(&SwarmInfo) -> usize| swarms.iter().map(of).sum::<usize>() as f64;
    let connected = |info: &SwarmInfo| info.peers.iter().filter(|peer| peer.linked).count();
    metrics::gauge!(telemetry::NODE_SWARMS).set(swarms.len() as f64);
    metrics::gauge!(telemetry::NODE_SWARM_HOSTS).set(sum(connected));
    metrics::gauge!(telemetry::NODE_SWARM_PIECES).set(sum(|info| info.pieces_here as usize));
    metrics::gauge!(telemetry::NODE_SWARM_NEEDED).set(sum(|info| info.needed as usize));
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::SwarmPeer;

    fn info(received: &[u64]) -> SwarmInfo {
        let peers = received.iter().enumerate().map(|(at, bytes)| SwarmPeer {
            key: at.to_string(),
            received_bytes: *bytes,
            ..Default::default()
        });
        SwarmInfo {
            image: "image".into(),
            peers: peers.collect(),
            ..Default::default()
        }
    }

    #[test]
    fn only_what_is_new_is_counted_and_all_of_a_swarm_that_began_again() {
        let counted = Counted::default();
        let new = |bytes: u64| {
            let seen = counted.new_of(&info(&[]), Some("0".into()), bytes, 0);
            seen.received
        };
        assert_eq!(
            [new(10), new(10), new(25), new(5), new(7)],
            [10, 0, 15, 5, 2]
        );
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let counted = Counted::default();
        counted.add(&info(&[1, 2]));
        assert_eq!(counted.0.lock().len(), 3);
        counted.keep(&[info(&[1])]);
        assert_eq!(counted.0.lock().len(), 2);
        counted.keep(&[]);
        assert!(counted.0.lock().is_empty());
    }
}

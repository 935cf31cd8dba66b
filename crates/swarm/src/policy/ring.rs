//! Whose duty a piece is: consistent hashing, so that a host that joins or leaves changes the duties of its neighbours on the ring
//! and of nobody else.
use super::{PeerId, PieceId};

/// Places of each host: with one, some hosts would have seven times the mean of duties.
const PLACES: u64 = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    /// Places and hosts; sorted unless `dirty`.
    places: Vec<(u32, PeerId)>,
    dirty: bool,
    version: u64,
}

/// The finaliser of splitmix64.
fn scattered(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

impl Ring {
    pub(super) fn add(&mut self, peer: PeerId) {
        let places = (0..PLACES).map(|n| (scattered(peer.0 ^ (n << 56)) as u32, peer));
        self.places.extend(places);
        // sorted when it is next used: a swarm joins all at once
        self.dirty = true;
        self.version += 1;
    }

    pub(super) fn remove(&mut self, peer: PeerId) {
        self.places.retain(|(_, other)| *other != peer);
        self.version += 1;
    }

    /// Changes whenever a host joins or leaves.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn hosts(&self) -> usize {
        self.places.len() / PLACES as usize
    }

    /// The ring must have a host.
    pub(super) fn warden(&mut self, piece: PieceId) -> PeerId {
        if std::mem::take(&mut self.dirty) {
            self.places.sort_unstable();
        }
        let at = scattered(u64::from(piece) ^ 0x5EED) as u32;
        let next = self.places.partition_point(|(place, _)| *place < at);
        self.places[next % self.places.len()].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_host_that_leaves_changes_nobody_elses_duties() {
        let mut ring = Ring::default();
        (0..100).for_each(|n| ring.add(PeerId(scattered(n))));
        let before: Vec<PeerId> = (0..10_000).map(|piece| ring.warden(piece)).collect();
        let gone = before[0];
        ring.remove(gone);
        let mut duties: HashMap<PeerId, usize> = HashMap::new();
        for (piece, was) in before.iter().enumerate() {
            let now = ring.warden(piece as u32);
            assert!(now == *was || *was == gone);
            *duties.entry(*was).or_default() += 1;
        }
        assert_eq!((ring.hosts(), duties.len()), (99, 100));
        let most = duties.values().max().unwrap();
        assert!(*most < 300, "{most} of 10 000 for one of a hundred");
    }
}

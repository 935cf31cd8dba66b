//! Whose duty a piece is: consistent hashing, so that a host that joins or leaves changes the duties of its neighbours on the ring
//! and of nobody else.
use super::{PeerId, PieceId};

/// Places of each host: with one, some hosts would have seven times the mean of duties.
const PLACES: u64 = 8;
/// How many hosts may stand in for a piece's warden: two that are slow at a time are rare, and of more hosts nobody may make duties.
const STAND_INS: usize = 2;

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

    /// Returns whose duty a piece is. The ring must have a host.
    pub(super) fn warden(&mut self, piece: PieceId) -> PeerId {
        let first = self.first(piece);
        self.places[first].1
    }

    /// Returns the host whose duty a piece is, leaving out those for which `passed` is true: the warden, or the first that stands in for
    /// it. If all are left out, it is the warden. The ring must have a host.
    pub(super) fn warden_but(&mut self, piece: PieceId, passed: impl Fn(PeerId) -> bool) -> PeerId {
        let warden = self.warden(piece);
        match passed(warden) {
            true => self.line(piece).into_iter().find(|peer| !passed(*peer)),
            false => None,
        }
        .unwrap_or(warden)
    }

    /// Whether a piece may become the duty of `peer`, since others find its warden slow.
    pub(super) fn stands_in(&mut self, piece: PieceId, peer: PeerId) -> bool {
        self.line(piece).contains(&peer)
    }

    /// Returns a piece's warden and those who stand in for it, in order.
    fn line(&mut self, piece: PieceId) -> Vec<PeerId> {
        let first = self.first(piece);
        let (before, after) = self.places.split_at(first);
        let mut line = Vec::with_capacity(1 + STAND_INS);
        for (_, peer) in after.iter().chain(before) {
            if !line.contains(peer) {
                line.push(*peer);
            }
            if line.len() > STAND_INS {
                break;
            }
        }
        line
    }

    /// Returns the place on the ring that a piece belongs to.
    fn first(&mut self, piece: PieceId) -> usize {
        if std::mem::take(&mut self.dirty) {
            self.places.sort_unstable();
        }
        let at = scattered(u64::from(piece) ^ 0x5EED) as u32;
        let next = self.places.partition_point(|(place, _)| *place < at);
        next % self.places.len()
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

    #[test]
    fn who_stands_in_for_a_slow_warden_is_who_would_be_warden_without_it() {
        let mut ring = Ring::default();
        (0..100).for_each(|n| ring.add(PeerId(scattered(n))));
        for piece in 0..1000 {
            let slow = ring.warden(piece);
            let stand_in = ring.warden_but(piece, |peer| peer == slow);
            assert!(ring.stands_in(piece, slow) && ring.stands_in(piece, stand_in));
            assert_eq!(ring.warden_but(piece, |_| true), slow);
            let mut without = ring.clone();
            without.remove(slow);
            assert_eq!(stand_in, without.warden(piece));
        }
    }
}

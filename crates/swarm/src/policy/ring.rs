//! Whose duty a piece is: consistent hashing, so that a host that joins or leaves changes the duties of its neighbours on the ring
//! and of nobody else. A host that gives little to others may be responsible at some of its places only.
use super::{PEERS_MAX, PLACES, PeerId, PieceId};
use std::collections::HashMap;

/// How many hosts may stand in for a piece's warden: two that are slow at a time are rare, and of more hosts nobody may make duties.
const STAND_INS: usize = 2;

#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    /// Places and hosts, and whether a host is responsible there; sorted unless `dirty`.
    places: Vec<(u32, PeerId, bool)>,
    /// Hosts that are responsible at fewer of their places than others, also if they are not on the ring now.
    few: HashMap<PeerId, u8>,
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
        let takes = self.taken_by(peer);
        let at = |n: u8| scattered(peer.0 ^ (u64::from(n) << 56)) as u32;
        let places = (0..PLACES).map(|n| (at(n), peer, n < takes));
        self.places.extend(places);
        // sorted when it is next used: a swarm joins all at once
        self.dirty = true;
        self.version += 1;
    }

    pub(super) fn remove(&mut self, peer: PeerId) {
        self.places.retain(|(_, other, _)| *other != peer);
        self.version += 1;
    }

    /// Notes at how many of its places a host is responsible. Whatever it says, these are one at least, and no more than those of others.
    pub(super) fn takes(&mut self, peer: PeerId, places: u8) {
        let places = places.clamp(1, PLACES);
        if places == self.taken_by(peer) {
            return;
        }
        self.few.remove(&peer);
        if places < PLACES && self.few.len() < PEERS_MAX {
            self.few.insert(peer, places);
        }
        if self.places.iter().any(|(_, other, _)| *other == peer) {
            self.remove(peer);
            self.add(peer);
        }
    }

    fn taken_by(&self, peer: PeerId) -> u8 {
        self.few.get(&peer).copied().unwrap_or(PLACES)
    }

    /// Changes whenever a host joins or leaves, or is responsible at other places.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn hosts(&self) -> usize {
        self.places.len() / usize::from(PLACES)
    }

    /// Returns whose duty a piece is. The ring must have a host.
    pub(super) fn warden(&mut self, piece: PieceId) -> PeerId {
        let first = self.first(piece);
        let (before, after) = self.places.split_at(first);
        let mut places = after.iter().chain(before);
        let warden = places.find(|(_, _, responsible)| *responsible);
        warden.map_or(self.places[first].1, |(_, peer, _)| *peer)
    }

    /// Returns the host whose duty a piece is, leaving out those for which `passed` is true: the warden, or the first that stands in for
    /// it. If all are left out, it is the warden. The ring must have a host.
    pub(super) fn warden_but(&mut self, piece: PieceId, passed: impl Fn(PeerId) -> bool) -> PeerId {
        let warden = self.warden(piece);
        match passed(warden) {
            true => {
                let line = self.line(piece, false);
                line.into_iter().find(|peer| !passed(*peer))
            }
            false => None,
        }
        .unwrap_or(warden)
    }

    /// Whether a piece may become the duty of `peer`, since others find its warden slow, or have not heard yet that `peer` is not responsible
    /// at some of its places.
    pub(super) fn stands_in(&mut self, piece: PieceId, peer: PeerId) -> bool {
        self.line(piece, false).contains(&peer) || self.line(piece, true).contains(&peer)
    }

    /// Returns a piece's warden and those who stand in for it, in order; with `all`, as if each host were responsible at all of its places.
    fn line(&mut self, piece: PieceId, all: bool) -> Vec<PeerId> {
        let first = self.first(piece);
        let (before, after) = self.places.split_at(first);
        let mut line = Vec::with_capacity(1 + STAND_INS);
        for (_, peer, responsible) in after.iter().chain(before) {
            if (all || *responsible) && !line.contains(peer) {
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
        let next = self.places.partition_point(|(place, ..)| *place < at);
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

    #[test]
    fn a_host_that_gives_little_has_few_duties_and_all_who_have_heard_of_it_agree() {
        let hosts: Vec<PeerId> = (0..20).map(|n| PeerId(scattered(n))).collect();
        let (weak, pieces) = (hosts[7], 0..10_000);
        let [mut before, mut after, mut late] = [(); 3].map(|()| Ring::default());
        hosts.iter().for_each(|host| before.add(*host));
        after.takes(weak, 1); // heard before it came
        for host in hosts.iter().rev() {
            after.add(*host);
            late.add(*host);
        }
        late.takes(weak, 3);
        late.takes(weak, 0);
        let of = |ring: &mut Ring| -> Vec<PeerId> {
            let wardens = pieces.clone().map(|piece| ring.warden(piece));
            wardens.collect()
        };
        let (full, few) = (of(&mut before), of(&mut after));
        assert_eq!(few, of(&mut late));
        let share = |of: &[PeerId]| of.iter().filter(|host| **host == weak).count();
        assert!(4 * share(&few) < share(&full) && share(&few) > 0);
        // it takes nothing from others, and whoever has not heard is not turned away
        for (piece, (was, now)) in full.iter().zip(&few).enumerate() {
            assert!(now == was || *was == weak);
            assert!(after.stands_in(piece as u32, *was) && after.stands_in(piece as u32, *now));
        }
        late.takes(weak, u8::MAX);
        assert_eq!((of(&mut late), late.hosts()), (full, 20));
        assert!(late.few.is_empty());
    }
}

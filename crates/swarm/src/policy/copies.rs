//! What is copied in the background: pieces that no machine here is known to need. Those go first that the fewest hosts have, because
//! hosts that copy the same image have most to give each other then.
use super::{MAPS_MAX, PieceId};
use rand::Rng;
use std::collections::HashMap;

/// A copy is asked for, or answered, after so many pieces for other purposes, and asked for after so long, in microseconds, if none come:
/// so it ends although machines never rest, and takes 3 % of a link from them. A pack of 8 MiB then comes in some minutes at least.
pub(super) const COPY_TURN: usize = 32;
pub(super) const COPY_HELD_US: u64 = 4_000_000;
/// How often all ranks are found out anew as hosts come and go, in microseconds: it is work for each piece.
const RANK_EVERY_US: u64 = 1_000_000;

/// Ranks that a piece can have: 0 if no host is known to have it and it is this host's duty, 1 if it is another's, and one more than the
/// number of hosts otherwise.
pub(super) const RANKS: usize = MAPS_MAX + 2;

#[derive(Clone, Debug)]
pub(super) struct Copies {
    /// All that have not come: rank and place there of those that are not on their way.
    all: HashMap<PieceId, Option<(usize, usize)>>,
    /// Those that are not on their way, by rank.
    ranks: Vec<Vec<PieceId>>,
    missing: usize,
    /// For which ring all ranks were found out last, and when.
    ring: u64,
    ranked_us: u64,
}

impl Copies {
    pub(super) fn new() -> Copies {
        Copies {
            all: HashMap::new(),
            ranks: vec![Vec::new(); RANKS],
            missing: 0,
            ring: 0,
            ranked_us: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.ranks.iter_mut().for_each(Vec::clear);
        self.missing = 0;
    }

    /// Adds a piece. It is not asked for before it was ranked.
    pub(super) fn add(&mut self, piece: PieceId) {
        self.all.entry(piece).or_default();
    }

    /// Returns how many have to be asked for.
    pub(super) fn len(&self) -> usize {
        self.missing
    }

    /// Whether a piece has to be asked for.
    pub(super) fn lacks(&self, piece: PieceId) -> bool {
        self.all.get(&piece).is_some_and(Option::is_some)
    }

    /// Says how rare a piece is, if it is to be copied: it has to be asked for.
    pub(super) fn rank(&mut self, piece: PieceId, rank: usize) {
        self.take(piece);
        if let Some(place) = self.all.get_mut(&piece) {
            *place = Some((rank, self.ranks[rank].len()));
            self.ranks[rank].push(piece);
            self.missing += 1;
        }
    }

    /// Takes a piece out, because it is on its way.
    pub(super) fn take(&mut self, piece: PieceId) {
        let Some((rank, at)) = self.all.get_mut(&piece).and_then(Option::take) else {
            return;
        };
        self.missing -= 1;
        self.ranks[rank].swap_remove(at);
        let moved = self.ranks[rank].get(at);
        if let Some(place) = moved.and_then(|moved| self.all.get_mut(moved)) {
            *place = Some((rank, at));
        }
    }

    /// Forgets a piece, because it is here.
    pub(super) fn forget(&mut self, piece: PieceId) {
        self.take(piece);
        self.all.remove(&piece);
    }

    /// Returns a piece of a rank, which one is chance.
    pub(super) fn draw(&self, rank: usize, random: &mut impl Rng) -> Option<PieceId> {
        let pieces = &self.ranks[rank];
        let at = (!pieces.is_empty()).then(|| random.random_range(0..pieces.len()))?;
        pieces.get(at).copied()
    }

    /// Returns the pieces that are to be ranked anew: all of them now and then, if the ring has changed.
    pub(super) fn outdated(&mut self, now_us: u64, ring: u64) -> Vec<PieceId> {
        if self.ring == ring || now_us < self.ranked_us + RANK_EVERY_US {
            return Vec::new();
        }
        (self.ring, self.ranked_us) = (ring, now_us);
        self.ranks.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    #[test]
    fn a_piece_has_one_rank_until_it_is_on_its_way_or_here() {
        let (mut copies, mut random) = (Copies::new(), StdRng::seed_from_u64(1));
        (0..10).for_each(|piece| copies.add(piece));
        assert_eq!((copies.len(), copies.draw(3, &mut random)), (0, None));
        (0..10).for_each(|piece| copies.rank(piece, 3));
        copies.rank(11, 3); // nobody copies it
        [0, 4, 9]
            .into_iter()
            .for_each(|piece| copies.rank(piece, 1));
        copies.add(0);
        copies.take(4);
        copies.forget(9);
        assert_eq!(copies.draw(1, &mut random), Some(0));
        assert!(copies.lacks(0) && !copies.lacks(4) && !copies.lacks(9) && !copies.lacks(11));
        let mut drawn: Vec<PieceId> = (0..200)
            .filter_map(|_| copies.draw(3, &mut random))
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!((drawn, copies.len()), (vec![1, 2, 3, 5, 6, 7, 8], 8));
        // one that does not come is copied later, one that is here is not
        copies.rank(4, 0);
        copies.rank(9, 0);
        assert_eq!((copies.draw(0, &mut random), copies.len()), (Some(4), 9));
        assert_eq!(copies.outdated(RANK_EVERY_US, 0), []);
        assert_eq!(copies.outdated(RANK_EVERY_US, 7).len(), 9);
        assert_eq!(copies.outdated(2 * RANK_EVERY_US - 1, 8), []);
        copies.clear();
        assert_eq!((copies.len(), copies.draw(3, &mut random)), (0, None));
    }
}

//! What the seed is asked for: a few pieces at a time, demands first. The seed itself is a server that knows no purposes.
use crate::policy::{PieceId, Purpose};
use std::collections::{HashSet, VecDeque};

/// Requests under way. Two hide a round trip; more let small answers overtake a slow one.
const AT_A_TIME_MAX: usize = 8;
/// Those that are prefetch: a demand always finds a place.
const PREFETCH_MAX: usize = 4;

/// A host's requests to the seed: those that wait and those that are under way.
#[derive(Debug, Default)]
pub struct SeedQueue {
    demand: VecDeque<PieceId>,
    prefetch: VecDeque<PieceId>,
    running: HashSet<PieceId>,
}

impl SeedQueue {
    /// The policy asks for a piece, or raises one that it has asked for.
    pub fn ask(&mut self, piece: PieceId, purpose: Purpose) {
        if self.running.contains(&piece) || self.demand.contains(&piece) {
            return;
        }
        let known = self.prefetch.iter().position(|other| *other == piece);
        match (purpose, known) {
            (Purpose::Prefetch, Some(_)) => {}
            (Purpose::Prefetch, None) => self.prefetch.push_back(piece),
            (Purpose::Demand, place) => {
                if let Some(place) = place {
                    self.prefetch.remove(place);
                }
                self.demand.push_back(piece);
            }
        }
    }

    /// The policy takes a question back; a request that is under way goes on.
    pub fn cancel(&mut self, piece: PieceId) {
        self.demand.retain(|other| *other != piece);
        self.prefetch.retain(|other| *other != piece);
    }

    /// Returns the next piece to request now, if one more may be under way, and counts it as under way.
    pub fn begin(&mut self) -> Option<PieceId> {
        let free = self.running.len() < AT_A_TIME_MAX;
        let quiet = self.running.len() < PREFETCH_MAX;
        let mut next = free.then(|| self.demand.pop_front()).flatten();
        if next.is_none() && quiet {
            next = self.prefetch.pop_front();
        }
        self.running.extend(next);
        next
    }

    /// A request is over.
    pub fn done(&mut self, piece: PieceId) {
        self.running.remove(&piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_finds_a_place_among_prefetches() {
        let mut queue = SeedQueue::default();
        (0..20).for_each(|piece| queue.ask(piece, Purpose::Prefetch));
        queue.ask(3, Purpose::Prefetch);
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [0, 1, 2, 3]);
        queue.ask(2, Purpose::Demand); // under way
        queue.ask(10, Purpose::Demand);
        queue.ask(10, Purpose::Demand);
        queue.ask(30, Purpose::Demand);
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [10, 30]);
        queue.cancel(4);
        [0, 1, 2, 3].into_iter().for_each(|piece| queue.done(piece));
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [5, 6]);
        (40..60).for_each(|piece| queue.ask(piece, Purpose::Demand));
        assert_eq!(std::iter::from_fn(|| queue.begin()).count(), 4);
    }
}

//! What the seed is asked for: a few pieces at a time, demands first and copies last. The seed itself is a server that knows no purposes.
use crate::policy::{PieceId, Purpose};
use std::collections::{HashSet, VecDeque};

/// Requests under way. Two hide a round trip; more let small answers overtake a slow one.
const AT_A_TIME_MAX: usize = 8;
/// So many may be under way before a prefetch: a demand always finds a place.
const PREFETCH_MAX: usize = 4;
/// So many before a copy: a prefetch finds a place.
const COPY_MAX: usize = 3;

/// A host's requests to the seed: those that wait and those that are under way.
#[derive(Debug, Default)]
pub struct SeedQueue {
    /// By purpose, the least urgent first.
    waiting: [VecDeque<PieceId>; 3],
    running: HashSet<PieceId>,
}

impl SeedQueue {
    /// The policy asks for a piece, or raises one that it has asked for.
    pub fn ask(&mut self, piece: PieceId, purpose: Purpose) {
        let (below, above) = self.waiting.split_at_mut(purpose as usize);
        if self.running.contains(&piece) || above.iter().any(|queue| queue.contains(&piece)) {
            return;
        }
        for queue in below {
            queue.retain(|other| *other != piece);
        }
        self.waiting[purpose as usize].push_back(piece);
    }

    /// The policy takes a question back; a request that is under way goes on.
    pub fn cancel(&mut self, piece: PieceId) {
        for queue in &mut self.waiting {
            queue.retain(|other| *other != piece);
        }
    }

    /// Returns the next piece to request now, if one more may be under way, and counts it as under way.
    pub fn begin(&mut self) -> Option<PieceId> {
        let most = [COPY_MAX, PREFETCH_MAX, AT_A_TIME_MAX];
        let queues = self.waiting.iter_mut().zip(most).rev();
        let mut open = queues.filter(|(_, most)| self.running.len() < *most);
        let next = open.find_map(|(queue, _)| queue.pop_front());
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

    #[test]
    fn copies_come_last_and_leave_a_prefetch_a_place() {
        let mut queue = SeedQueue::default();
        (0..5).for_each(|piece| queue.ask(piece, Purpose::Copy));
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [0, 1, 2]);
        queue.ask(9, Purpose::Prefetch);
        queue.ask(4, Purpose::Prefetch);
        queue.ask(9, Purpose::Copy);
        assert_eq!((queue.begin(), queue.begin()), (Some(9), None));
        [0, 1, 2].into_iter().for_each(|piece| queue.done(piece));
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun, [4, 3]);
    }
}

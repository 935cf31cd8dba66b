//! Decides what neighbours are told about this host's pieces. No I/O, no clock.
use crate::wire::{Message, Run};
use floe_swarm::policy::PieceId;
use floe_swarm::roster::TELL_EVERY_US;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Gossip {
    came: BTreeSet<PieceId>,
    went: BTreeSet<PieceId>,
    told_us: u64,
}

impl Gossip {
    pub(super) fn came(&mut self, piece: PieceId) {
        self.went.remove(&piece);
        self.came.insert(piece);
    }

    pub(super) fn went(&mut self, piece: PieceId) {
        self.came.remove(&piece);
        self.went.insert(piece);
    }

    /// Returns what is to be said now.
    pub(super) fn due(&mut self, now_us: u64) -> Vec<Message> {
        if now_us.saturating_sub(self.told_us) < TELL_EVERY_US {
            return Vec::new();
        }
        let mut said = Vec::new();
        if !self.went.is_empty() {
            said.push(Message::Lacks(runs(std::mem::take(&mut self.went))));
        }
        if !self.came.is_empty() {
            said.push(Message::Has(runs(std::mem::take(&mut self.came))));
        }
        if !said.is_empty() {
            self.told_us = now_us;
        }
        said
    }
}

/// Returns ascending pieces as runs.
pub(super) fn runs(pieces: impl IntoIterator<Item = PieceId>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == piece => *count += 1,
            _ => runs.push((piece, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_wait_for_each_other_and_the_latest_counts() {
        let mut gossip = Gossip::default();
        [5, 3, 4, 9]
            .into_iter()
            .for_each(|piece| gossip.came(piece));
        gossip.went(9);
        gossip.went(20);
        gossip.came(20);
        let first = gossip.due(TELL_EVERY_US);
        let (went, came) = (vec![(9, 1)], vec![(3, 3), (20, 1)]);
        assert_eq!(first, [Message::Lacks(went), Message::Has(came)]);
        gossip.came(1);
        assert!(gossip.due(2 * TELL_EVERY_US - 1).is_empty());
        assert_eq!(gossip.due(2 * TELL_EVERY_US), [Message::Has(vec![(1, 1)])]);
        assert!(gossip.due(9 * TELL_EVERY_US).is_empty());
    }
}

//! Which pieces a host was asked for: what comes beyond them is not even read.
use floe_swarm::policy::PieceId;
use std::collections::{HashSet, VecDeque};

/// Withdrawn questions whose pieces are still welcome.
const WITHDRAWN_MAX: usize = 256;
/// Pieces that a host may send without having been asked. One that is raised while it comes is sent twice, so a few are no offence;
/// each piece that was asked for makes up for one.
const STRAYS_MAX: u32 = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    asked: HashSet<PieceId>,
    withdrawn: VecDeque<PieceId>,
    strays: u32,
}

impl Expected {
    pub(super) fn ask(&mut self, piece: PieceId) {
        self.asked.insert(piece);
        self.withdrawn.retain(|other| *other != piece);
    }

    pub(super) fn withdraw(&mut self, piece: PieceId) {
        if self.asked.remove(&piece) {
            self.withdrawn.truncate(WITHDRAWN_MAX - 1);
            self.withdrawn.push_front(piece);
        }
    }

    /// Takes a question off. Returns whether there was one.
    pub(super) fn take(&mut self, piece: PieceId) -> bool {
        let late = self.withdrawn.iter().position(|other| *other == piece);
        if let Some(place) = late {
            self.withdrawn.remove(place);
        }
        late.is_some() || self.asked.remove(&piece)
    }

    /// A piece that was asked for has come.
    pub(super) fn came(&mut self) {
        self.strays = self.strays.saturating_sub(1);
    }

    /// Notes a piece that nobody asked for. Returns whether that is one too many.
    pub(super) fn strayed(&mut self) -> bool {
        self.strays += 1;
        self.strays > STRAYS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_expected_once_and_withdrawn_ones_for_a_while() {
        let mut expected = Expected::default();
        expected.ask(7);
        expected.ask(7);
        assert!(expected.take(7) && !expected.take(7));
        (0..1000).for_each(|piece| {
            expected.ask(piece);
            expected.withdraw(piece);
        });
        expected.withdraw(2000);
        assert!(expected.take(999) && expected.take(744));
        assert!(!expected.take(743) && !expected.take(2000));
        expected.ask(998);
        assert!(expected.take(998) && !expected.take(998));
    }

    #[test]
    fn strays_are_no_offence_until_there_are_too_many() {
        let mut expected = Expected::default();
        for _ in 0..1000 {
            assert!(!expected.strayed());
            expected.came();
        }
        assert_eq!((0..100).filter(|_| expected.strayed()).count(), 36);
    }
}

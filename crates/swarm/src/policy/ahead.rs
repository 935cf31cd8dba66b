//! The prediction: what will be needed, in order, less what is here or on its way.
use super::{PieceId, WINDOW_MAX};

/// A piece that is not predicted.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// Ranks of pieces that are neither here nor on their way, ascending.
    missing: Vec<u32>,
    /// Pieces by rank.
    order: Vec<PieceId>,
    /// Ranks by piece.
    ranks: Vec<u32>,
    /// Pieces that are this host's duty, in order, and for which ring and prediction that was found out.
    duties: Vec<PieceId>,
    duties_of: Option<u64>,
}

impl Ahead {
    pub(super) fn new(pieces: u32) -> Ahead {
        Ahead {
            missing: Vec::new(),
            order: Vec::new(),
            ranks: vec![NONE; pieces as usize],
            duties: Vec::new(),
            duties_of: None,
        }
    }

    pub(super) fn set(&mut self, pieces: &[PieceId], wanted: impl Fn(PieceId) -> bool) {
        for piece in std::mem::take(&mut self.order) {
            self.ranks[piece as usize] = NONE;
        }
        self.missing.clear();
        self.duties_of = None;
        for piece in pieces.iter().take(WINDOW_MAX).copied() {
            let rank = self.order.len() as u32;
            match self.ranks.get_mut(piece as usize) {
                Some(known) if *known == NONE => *known = rank,
                _ => continue, // no piece of this image, or one that is named twice
            }
            self.order.push(piece);
            if wanted(piece) {
                self.missing.push(rank);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.missing.len()
    }

    /// Returns the piece at a place among those that are missing.
    pub(super) fn at(&self, place: usize) -> PieceId {
        self.order[self.missing[place] as usize]
    }

    /// Whether a piece is predicted at all, here or not.
    pub(super) fn knows(&self, piece: PieceId) -> bool {
        self.ranks
            .get(piece as usize)
            .is_some_and(|rank| *rank != NONE)
    }

    /// Takes a piece out, because it is here or on its way.
    pub(super) fn take(&mut self, piece: PieceId) {
        let rank = self.ranks.get(piece as usize).copied().unwrap_or(NONE);
        if let Ok(place) = self.missing.binary_search(&rank) {
            self.missing.remove(place);
        }
    }

    /// Puts a piece back that was taken out and did not arrive.
    pub(super) fn give_back(&mut self, piece: PieceId) {
        let rank = self.ranks.get(piece as usize).copied().unwrap_or(NONE);
        if let (true, Err(place)) = (rank != NONE, self.missing.binary_search(&rank)) {
            self.missing.insert(place, rank);
        }
    }

    /// Finds out anew which pieces are this host's duty, if the prediction or the ring has changed.
    pub(super) fn find_duties(&mut self, version: u64, mut mine: impl FnMut(PieceId) -> bool) {
        if self.duties_of != Some(version) {
            self.duties_of = Some(version);
            self.duties.clear();
            let order = self.order.iter().copied();
            self.duties.extend(order.filter(|piece| mine(*piece)));
        }
    }

    pub(super) fn duty(&self, at: usize) -> Option<PieceId> {
        self.duties.get(at).copied()
    }

    pub(super) fn drop_duty(&mut self, at: usize) {
        self.duties.remove(at);
    }

    /// Returns where a piece stands among those that are missing.
    pub(super) fn place(&self, piece: PieceId) -> Option<usize> {
        let rank = self.ranks.get(piece as usize)?;
        self.missing.binary_search(rank).ok()
    }
}

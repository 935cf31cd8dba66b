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
    /// When pieces are due, by rank, in milliseconds from the start of a run; 0 is now. Empty if nobody knows.
    due_ms: Vec<u32>,
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
            due_ms: Vec::new(),
            duties: Vec::new(),
            duties_of: None,
        }
    }

    pub(super) fn set(
        &mut self,
        pieces: &[PieceId],
        due_ms: &[u32],
        wanted: impl Fn(PieceId) -> bool,
    ) {
        for piece in std::mem::take(&mut self.order) {
            self.ranks[piece as usize] = NONE;
        }
        self.missing.clear();
        self.due_ms.clear();
        self.duties_of = None;
        for (at, piece) in pieces.iter().take(WINDOW_MAX).copied().enumerate() {
            let rank = self.order.len() as u32;
            match self.ranks.get_mut(piece as usize) {
                Some(known) if *known == NONE => *known = rank,
                _ => continue, // no piece of this image, or one that is named twice
            }
            self.order.push(piece);
            if !due_ms.is_empty() {
                self.due_ms.push(due_ms.get(at).copied().unwrap_or(0));
            }
            if wanted(piece) {
                self.missing.push(rank);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.missing.len()
    }

    /// Returns how many of those that are missing are due so soon after the first of them; `None` if nobody knows when.
    ///
    /// It counts from the first and not from now: a run that had to wait is later than it was recorded.
    pub(super) fn due_within(&self, ms: u32) -> Option<usize> {
        let due_ms = |rank: &u32| self.due_ms.get(*rank as usize).copied().unwrap_or(0);
        if self.due_ms.is_empty() {
            return None;
        }
        let first = self.missing.iter().map(due_ms).find(|due| *due > 0)?;
        let until = first.saturating_add(ms);
        let soon = self.missing.iter().take_while(|rank| due_ms(rank) <= until);
        Some(soon.count())
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

//! What was asked for, and what machines wait for.
use super::rate::Rate;
use super::{PeerId, PieceId, Purpose};
use std::collections::{BTreeMap, HashMap};

/// Weight of a miss in the share of those that no prediction knew.
const OUTSIDE_WEIGHT: f64 = 0.02;

/// A question to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) peer: PeerId,
    pub(super) since_us: u64,
}

/// A piece on its way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// One, or two at the end game.
    pub(super) asks: Vec<Ask>,
    pub(super) purpose: Purpose,
    /// Whether the host that was asked is the seed or is known to have it, so that others may rely on its coming.
    pub(super) sure: bool,
    /// Whether it is this host's duty.
    pub(super) duty: bool,
}

/// A piece that a machine waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) since_us: u64,
    /// When to look for a host again, if none was asked.
    pub(super) again_us: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Downloads {
    pub(super) flights: HashMap<PieceId, Flight>,
    pub(super) demands: BTreeMap<PieceId, Demand>,
    /// When machines have gone on for as long as they waited last.
    pub(super) calm_us: u64,
    /// When they have gone on for long enough that pieces may be copied.
    pub(super) rested_us: u64,
    /// Demands for which no host was found yet.
    pub(super) unasked: Vec<PieceId>,
    /// Prefetches on their way that are no duties.
    pub(super) prefetching: usize,
    /// Duties on their way that nobody waits for yet.
    pub(super) duties: usize,
    /// Copies on their way.
    pub(super) copies: usize,
    /// Pieces that came for something else since a copy was last asked for, and when that was.
    pub(super) passed: usize,
    pub(super) copied_us: u64,
    outside: f64,
    /// How fast pieces come from anywhere,
    pub(super) rate: Rate,
    /// and from the seed.
    pub(super) seed_rate: Rate,
}

impl Downloads {
    pub(super) fn asks(&self) -> usize {
        self.flights.values().map(|flight| flight.asks.len()).sum()
    }

    pub(super) fn is_on_its_way(&self, piece: PieceId) -> bool {
        self.flights.contains_key(&piece)
    }

    /// Returns the share of misses that no prediction knew, of late.
    pub(super) fn outside(&self) -> f64 {
        self.outside
    }

    pub(super) fn missed(&mut self, predicted: bool) {
        self.outside += (f64::from(u8::from(!predicted)) - self.outside) * OUTSIDE_WEIGHT;
    }

    /// Returns the copies on their way.
    pub(super) fn copied(&self) -> Vec<PieceId> {
        let flights = self.flights.iter();
        let copies = flights.filter(|(_, flight)| flight.purpose == Purpose::Copy);
        let mut pieces: Vec<PieceId> = copies.map(|(piece, _)| *piece).collect();
        pieces.sort_unstable();
        pieces
    }

    pub(super) fn start(&mut self, piece: PieceId, flight: Flight) {
        self.count(&flight, true);
        self.flights.insert(piece, flight);
    }

    /// Raises a flight's purpose, if it is lower. Returns whom to tell.
    pub(super) fn raise(&mut self, piece: PieceId, purpose: Purpose) -> Vec<PeerId> {
        let flight = self.flights.get_mut(&piece);
        let Some(flight) = flight.filter(|flight| flight.purpose < purpose) else {
            return Vec::new();
        };
        let before = flight.clone();
        flight.purpose = purpose;
        let after = flight.clone();
        self.count(&before, false);
        self.count(&after, true);
        before.asks.iter().map(|ask| ask.peer).collect()
    }

    pub(super) fn end(&mut self, piece: PieceId) -> Option<Flight> {
        let flight = self.flights.remove(&piece)?;
        self.count(&flight, false);
        Some(flight)
    }

    fn count(&mut self, flight: &Flight, up: bool) {
        let of = match (flight.purpose, flight.duty) {
            (Purpose::Demand, _) => return,
            (Purpose::Copy, _) => &mut self.copies,
            (Purpose::Prefetch, true) => &mut self.duties,
            (Purpose::Prefetch, false) => &mut self.prefetching,
        };
        *of = if up { *of + 1 } else { *of - 1 };
    }

    /// Forgets a question. Returns it, and whether it was the only one for its piece.
    pub(super) fn unask(&mut self, peer: PeerId, piece: PieceId) -> Option<(Flight, bool)> {
        let flight = self.flights.get_mut(&piece)?;
        let place = flight.asks.iter().position(|ask| ask.peer == peer)?;
        let before = flight.clone();
        flight.asks.remove(place);
        let last = flight.asks.is_empty();
        if last {
            self.end(piece);
            if self.demands.contains_key(&piece) && !self.unasked.contains(&piece) {
                self.unasked.push(piece);
            }
        }
        Some((before, last))
    }

    /// Forgets all questions to a host. Returns the pieces that are no longer on their way.
    pub(super) fn forget(&mut self, peer: PeerId) -> Vec<PieceId> {
        let asked = self.flights.iter();
        let asked = asked.filter(|(_, flight)| flight.asks.iter().any(|ask| ask.peer == peer));
        let mut pieces: Vec<PieceId> = asked.map(|(piece, _)| *piece).collect();
        pieces.sort_unstable();
        pieces.retain(|piece| self.unask(peer, *piece).is_some_and(|(_, last)| last));
        pieces
    }
}

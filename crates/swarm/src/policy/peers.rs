//! What is known of each host: what it has, how quickly it answers, whether it can be believed.
use super::bits::Bits;
use super::{MAPS_MAX, PEERS_MAX, PeerId, PieceId};
use rand::Rng;
use std::collections::HashMap;

/// Answers in a row that a host may owe before it counts as one that lies about what it has.
const FAILURES_MAX: u32 = 64;
/// Weight of a new measurement of how long a host takes.
const PACE_WEIGHT: f64 = 0.2;
/// How long a host is believed to take that was never asked, in microseconds: some pieces of 64 KiB at 100 Mbit/s.
const PACE_US: f64 = 20_000.0;

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    map: Option<Bits>,
    /// Questions that it has not answered.
    pub(super) asked: usize,
    /// Those of them that are prefetch.
    pub(super) prefetching: usize,
    /// Mean time from a question to its piece, for each question that was open then, in microseconds.
    pace_us: f64,
    refused_until_us: u64,
    failures: u32,
    /// When it last sent something, or was asked while it owed nothing.
    heard_us: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Peers {
    pieces: u32,
    slots: HashMap<PeerId, usize>,
    all: Vec<Peer>,
    /// Places in `all` of those with a map.
    mapped: Vec<usize>,
    /// How many hosts have a piece, of those with a map.
    count: Vec<u8>,
    pub(super) seed: Option<PeerId>,
}

impl Peers {
    pub(super) fn new(pieces: u32) -> Peers {
        Peers {
            pieces,
            slots: HashMap::new(),
            all: Vec::new(),
            mapped: Vec::new(),
            count: vec![0; pieces as usize],
            seed: None,
        }
    }

    /// Returns whether it is new.
    pub(super) fn join(&mut self, id: PeerId) -> bool {
        if self.slots.contains_key(&id) || self.all.len() >= PEERS_MAX {
            return false;
        }
        self.slots.insert(id, self.all.len());
        self.all.push(Peer {
            id,
            map: None,
            asked: 0,
            prefetching: 0,
            pace_us: PACE_US,
            refused_until_us: 0,
            failures: 0,
            heard_us: 0,
        });
        true
    }

    pub(super) fn set_seed(&mut self, id: PeerId, now_us: u64) {
        self.join(id);
        self.seed = self.slots.contains_key(&id).then_some(id);
        if let Some(peer) = self.get(id) {
            peer.heard_us = now_us;
        }
    }

    pub(super) fn is_seed(&self, id: PeerId) -> bool {
        self.seed == Some(id)
    }

    pub(super) fn knows(&self, id: PeerId) -> bool {
        self.slots.contains_key(&id)
    }

    pub(super) fn leave(&mut self, id: PeerId) {
        let Some(place) = self.slots.remove(&id) else {
            return;
        };
        let gone = self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place) {
            self.slots.insert(moved.id, place);
        }
        for piece in gone.map.iter().flat_map(Bits::ones) {
            self.count[piece as usize] -= 1;
        }
        let mapped = self.all.iter().enumerate();
        let mapped = mapped.filter(|(_, peer)| peer.map.is_some());
        self.mapped = mapped.map(|(place, _)| place).collect();
        if self.is_seed(id) {
            self.seed = None;
        }
    }

    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.all.get_mut(*self.slots.get(&id)?)
    }

    pub(super) fn has(&mut self, id: PeerId, pieces: &[PieceId]) {
        let Some(place) = self.slots.get(&id).copied() else {
            return;
        };
        if self.seed == Some(id) {
            return; // it has everything, and is the last to be asked
        }
        if self.all[place].map.is_none() {
            if self.mapped.len() >= MAPS_MAX {
                return;
            }
            self.all[place].map = Some(Bits::new(self.pieces));
            self.mapped.push(place);
        }
        if let Some(map) = &mut self.all[place].map {
            for piece in pieces.iter().filter(|piece| map.set(**piece)) {
                self.count[*piece as usize] += 1;
            }
        }
    }

    pub(super) fn lacks(&mut self, id: PeerId, pieces: &[PieceId]) {
        let place = self.slots.get(&id).copied();
        let peer = place.and_then(|place| self.all.get_mut(place));
        if let Some(map) = peer.and_then(|peer| peer.map.as_mut()) {
            for piece in pieces.iter().filter(|piece| map.clear(**piece)) {
                self.count[*piece as usize] -= 1;
            }
        }
    }

    /// Whether a host is known to have a piece.
    pub(super) fn has_piece(&mut self, id: PeerId, piece: PieceId) -> bool {
        let map = self.get(id).and_then(|peer| peer.map.as_ref());
        map.is_some_and(|map| map.get(piece))
    }

    /// Returns how many hosts are known to have a piece.
    pub(super) fn holders(&self, piece: PieceId) -> u8 {
        self.count.get(piece as usize).copied().unwrap_or(0)
    }

    /// Returns the host that will probably bring a piece first, of those that are known to have it and have fewer than
    /// `prefetching_max` prefetches to bring. Which of equals is chance.
    pub(super) fn holder(
        &self,
        piece: PieceId,
        now_us: u64,
        prefetching_max: usize,
        random: &mut impl Rng,
    ) -> Option<PeerId> {
        if self.holders(piece) == 0 {
            return None;
        }
        let turn = random.random_range(0..self.mapped.len());
        let (from, to) = self.mapped.split_at(turn);
        let mut best: Option<(f64, PeerId)> = None;
        for place in to.iter().chain(from) {
            let peer = &self.all[*place];
            let free = peer.refused_until_us <= now_us && peer.prefetching < prefetching_max;
            if !free || !peer.map.as_ref().is_some_and(|map| map.get(piece)) {
                continue;
            }
            let cost = peer.cost_us();
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, peer.id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Returns a host that was asked and has sent nothing for so long.
    pub(super) fn stalled(&self, now_us: u64, stall_us: u64) -> Option<PeerId> {
        let silent = |peer: &&Peer| {
            peer.asked > 0
                && now_us.saturating_sub(peer.heard_us) > stall_us
                && !self.is_seed(peer.id)
        };
        self.all.iter().find(silent).map(|peer| peer.id)
    }
}

impl Peer {
    /// Returns how long an answer takes with what it was asked already, in microseconds.
    fn cost_us(&self) -> f64 {
        self.pace_us * (self.asked + 1) as f64
    }

    pub(super) fn is_free(&self, now_us: u64) -> bool {
        self.refused_until_us <= now_us
    }

    pub(super) fn refuse_until(&mut self, at_us: u64) {
        self.refused_until_us = at_us;
    }

    pub(super) fn was_asked(&mut self, now_us: u64) {
        if self.asked == 0 {
            self.heard_us = now_us;
        }
        self.asked += 1;
    }

    pub(super) fn has_answered(&mut self, now_us: u64, took_us: u64) {
        self.heard_us = now_us;
        self.failures = 0;
        let each = took_us as f64 / (self.asked + 1) as f64;
        self.pace_us += (each - self.pace_us) * PACE_WEIGHT;
    }

    /// Returns whether it has failed too often.
    pub(super) fn has_failed(&mut self, now_us: u64) -> bool {
        self.heard_us = now_us;
        self.failures += 1;
        self.failures > FAILURES_MAX
    }
}

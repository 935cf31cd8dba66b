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
/// How often the times that hosts take are compared anew, in microseconds.
const TYPICAL_EVERY_US: u64 = 100_000;
/// With fewer hosts than that, nothing is known of what is typical.
const TYPICAL_HOSTS: usize = 3;
/// A host that takes so many times the typical time is slow.
const SLOW: f64 = 4.0;
/// A host that takes less than that is never slow, in microseconds.
const SLOW_LEAST_US: f64 = 100_000.0;
/// A host that was slow is tried again after so long, in microseconds.
const SLOW_FOR_US: u64 = 30_000_000;
/// A host that was silent for so many times the typical time may have stalled.
const STALL: f64 = 8.0;
/// An answer is overdue after so many times the typical time: of a dozen questions each may wait for all others, and for those of other
/// hosts.
const LATE: f64 = 50.0;
/// Nothing is overdue before that, and everything is after that, in microseconds.
const LATE_LEAST_US: u64 = 2_000_000;
const LATE_MOST_US: u64 = 60_000_000;
/// No more time than that passes between two looks, in microseconds: this host may have been halted meanwhile.
const PASSED_MAX_US: u64 = 1_000_000;
/// Seeds that are known at a time.
const SEEDS_MAX: usize = 8;
/// How long a seed is left alone at most that sends wrong bytes again and again, in microseconds.
const DISTRUST_US_MAX: u64 = 60_000_000;
/// Silence is never excused for longer than so many times the patience with it.
const STALL_TIMES_MAX: u64 = 6;

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
    /// For a seed: answers in a row with wrong bytes, and until when it is left alone for them. (Other hosts are dropped for the first.)
    wrong: u32,
    distrusted_until_us: u64,
    /// For how long it has owed something since it last answered, all together: demands are taken back from a silent host before one of
    /// them has waited for long, so that no single wait shows it. Prefetch counts only while no demand is on its way, since demands go
    /// first.
    silent_us: u64,
    /// When it was last asked or answered.
    dealt_us: u64,
    /// Whether its place is in [`Peers::dealt`].
    listed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Peers {
    pieces: u32,
    slots: HashMap<PeerId, usize>,
    all: Vec<Peer>,
    /// Places in `all` of those with a map.
    mapped: Vec<usize>,
    /// Places in `all` of those that were asked of late: a few of many.
    dealt: Vec<usize>,
    /// How many hosts have a piece, of those with a map.
    count: Vec<u8>,
    /// Those that have everything, in the order in which they are asked.
    seeds: Vec<PeerId>,
    /// The median of what hosts take that were asked of late, in microseconds; 0 if they are too few.
    typical_us: f64,
    typical_at_us: u64,
    passed_us: u64,
}

impl Peers {
    pub(super) fn new(pieces: u32) -> Peers {
        Peers {
            pieces,
            slots: HashMap::new(),
            all: Vec::new(),
            mapped: Vec::new(),
            dealt: Vec::new(),
            count: vec![0; pieces as usize],
            seeds: Vec::new(),
            typical_us: 0.0,
            typical_at_us: 0,
            passed_us: 0,
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
            wrong: 0,
            distrusted_until_us: 0,
            silent_us: 0,
            dealt_us: 0,
            listed: false,
        });
        true
    }

    pub(super) fn add_seed(&mut self, id: PeerId) {
        self.join(id);
        let known = self.slots.contains_key(&id) && !self.is_seed(id);
        if known && self.seeds.len() < SEEDS_MAX {
            self.seeds.push(id);
        }
    }

    pub(super) fn is_seed(&self, id: PeerId) -> bool {
        self.seeds.contains(&id)
    }

    pub(super) fn has_seed(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// Returns the seed to ask: the first that has refused nothing and given nothing wrong just now, else the first that has given nothing
    /// wrong.
    pub(super) fn seed(&self, now_us: u64) -> Option<PeerId> {
        let known = self.seeds.iter().filter_map(|id| self.slots.get(id));
        let all = known.map(|place| &self.all[*place]);
        let mut trusted = all.filter(|seed| seed.distrusted_until_us <= now_us);
        let first = trusted.next()?;
        let free = match first.is_free(now_us) {
            true => None,
            false => trusted.find(|seed| seed.is_free(now_us)),
        };
        Some(free.unwrap_or(first).id)
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
        let last = self.all.len();
        self.dealt.retain(|other| *other != place);
        if let Some(moved) = self.dealt.iter_mut().find(|other| **other == last) {
            *moved = place;
        }
        for piece in gone.map.iter().flat_map(Bits::ones) {
            self.count[piece as usize] -= 1;
        }
        let mapped = self.all.iter().enumerate();
        let mapped = mapped.filter(|(_, peer)| peer.map.is_some());
        self.mapped = mapped.map(|(place, _)| place).collect();
        self.seeds.retain(|seed| *seed != id);
    }

    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.all.get_mut(*self.slots.get(&id)?)
    }

    /// A host is asked for a piece.
    pub(super) fn ask(&mut self, id: PeerId, now_us: u64, prefetch: bool) {
        let Some(place) = self.slots.get(&id).copied() else {
            return;
        };
        let peer = &mut self.all[place];
        peer.dealt_us = now_us;
        peer.asked += 1;
        peer.prefetching += usize::from(prefetch);
        if !std::mem::replace(&mut peer.listed, true) {
            self.dealt.push(place);
        }
    }

    pub(super) fn has(&mut self, id: PeerId, pieces: &[PieceId]) {
        let Some(place) = self.slots.get(&id).copied() else {
            return;
        };
        if self.is_seed(id) {
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

    /// Returns how many pieces a host is known to have.
    pub(super) fn pieces_of(&self, id: PeerId) -> u32 {
        let peer = self.slots.get(&id).and_then(|place| self.all.get(*place));
        let map = peer.and_then(|peer| peer.map.as_ref());
        map.map_or(0, Bits::count)
    }

    /// Returns how many hosts are known to have a piece.
    pub(super) fn holders(&self, piece: PieceId) -> u8 {
        self.count.get(piece as usize).copied().unwrap_or(0)
    }

    /// Returns the host that will probably bring a piece first, of those that are known to have it, have fewer than `prefetching_max`
    /// prefetches to bring, and are not slow. Which of equals is chance.
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
            if self.takes_long(peer, now_us) {
                continue;
            }
            let cost = peer.cost_us();
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, peer.id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Whether some host that is not slow is known to have a piece.
    pub(super) fn has_quick_holder(&self, piece: PieceId, now_us: u64) -> bool {
        self.mapped.iter().map(|at| &self.all[*at]).any(|peer| {
            peer.map.as_ref().is_some_and(|map| map.get(piece)) && !self.takes_long(peer, now_us)
        })
    }

    /// Counts how long hosts are silent, and looks how long those take that were asked of late. `demands` tells whether demands are on
    /// their way to this host; without `judge` nobody is slow.
    pub(super) fn measure(&mut self, now_us: u64, demands: bool, judge: bool) {
        let passed_us = now_us.saturating_sub(self.passed_us).min(PASSED_MAX_US);
        self.passed_us = now_us;
        for place in &self.dealt {
            let peer = &mut self.all[*place];
            if peer.asked > peer.prefetching || peer.asked > 0 && !demands {
                peer.silent_us += passed_us;
            }
        }
        if !judge || now_us < self.typical_at_us + TYPICAL_EVERY_US {
            return;
        }
        self.typical_at_us = now_us;
        let all = &mut self.all;
        self.dealt.retain(|place| {
            all[*place].listed = all[*place].dealt_with(now_us);
            all[*place].listed
        });
        let mut takes_us: Vec<f64> = self.dealt.iter().map(|at| all[*at].takes_us()).collect();
        let middle = takes_us.len().saturating_sub(1) / 2;
        self.typical_us = match takes_us.len() >= TYPICAL_HOSTS {
            true => *takes_us.select_nth_unstable_by(middle, f64::total_cmp).1,
            false => 0.0,
        };
    }

    /// Whether a host takes so much longer than others do that it is better to do without it. One whose own link is slow finds all others
    /// equally late, and so none of them slow.
    pub(super) fn is_slow(&self, id: PeerId, now_us: u64) -> bool {
        let peer = self.slots.get(&id).and_then(|place| self.all.get(*place));
        peer.is_some_and(|peer| self.takes_long(peer, now_us))
    }

    fn takes_long(&self, peer: &Peer, now_us: u64) -> bool {
        let slow_us = (self.typical_us * SLOW).max(SLOW_LEAST_US);
        self.typical_us > 0.0 && peer.dealt_with(now_us) && peer.takes_us() > slow_us
    }

    /// Returns how long an answer may take before it is asked for anew, in microseconds.
    pub(super) fn late_us(&self) -> u64 {
        ((self.typical_us * LATE) as u64).clamp(LATE_LEAST_US, LATE_MOST_US)
    }

    /// Returns a host that has owed answers for so long and has sent none, unless others let this host wait as well: then its own link is
    /// full.
    pub(super) fn stalled(&self, stall_us: u64) -> Option<PeerId> {
        let stall_us =
            ((self.typical_us * STALL) as u64).clamp(stall_us, stall_us * STALL_TIMES_MAX);
        let dealt = self.dealt.iter().map(|place| &self.all[*place]);
        let mut stalled = dealt.filter(|peer| peer.silent_us > stall_us && !self.is_seed(peer.id));
        stalled.next().map(|peer| peer.id)
    }
}

impl Peer {
    /// Whether it was asked or has answered of late, or owes something.
    fn dealt_with(&self, now_us: u64) -> bool {
        self.asked > 0 || self.dealt_us > 0 && now_us.saturating_sub(self.dealt_us) < SLOW_FOR_US
    }

    /// Returns how long it takes for a piece: what was measured, or how long it has been silent, if that is longer.
    fn takes_us(&self) -> f64 {
        self.pace_us.max(self.silent_us as f64)
    }

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

    /// Notes that it owes an answer less: it has given it, or the answer is not wanted any more.
    pub(super) fn owes_less(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    fn was_heard(&mut self, now_us: u64) {
        self.silent_us = 0;
        self.dealt_us = now_us;
    }

    pub(super) fn has_answered(&mut self, now_us: u64, took_us: u64) {
        self.was_heard(now_us);
        (self.failures, self.wrong) = (0, 0);
        let each = took_us as f64 / (self.asked + 1) as f64;
        self.pace_us += (each - self.pace_us) * PACE_WEIGHT;
    }

    /// It has sent wrong bytes: it is left alone for `pause_us`, and for twice as long each further time in a row.
    pub(super) fn was_wrong(&mut self, now_us: u64, pause_us: u64) {
        self.was_heard(now_us);
        let pause_us = (pause_us << self.wrong.min(16)).min(DISTRUST_US_MAX);
        self.distrusted_until_us = now_us + pause_us;
        self.wrong = self.wrong.saturating_add(1);
    }

    /// Notes that it does not give a piece; `sure`: although it said that it has it. (A warden may refuse a piece that it never said it
    /// had, and a host that knows another layout of the image has to.) Returns whether it has failed too often.
    pub(super) fn has_failed(&mut self, now_us: u64, sure: bool) -> bool {
        self.was_heard(now_us);
        self.failures += u32::from(sure);
        sure && self.failures > FAILURES_MAX
    }
}

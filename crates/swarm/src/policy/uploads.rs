//! The questions of other hosts to this one: answered demand before prefetch and that before copies, a few at a time, within what the
//! caller grants.
use super::copies::COPY_TURN;
use super::{Action, Config, PeerId, PieceId, Purpose};
use std::collections::{HashMap, VecDeque};

/// How many times its share of places a host may ask for before it is dropped.
const FLOOD: usize = 4;
/// Entries of a queue that stand for nothing any more and are left in it, beyond as many as there are questions.
const STALE_MAX: usize = 64;

/// In which order questions are answered.
const TURNS: [Purpose; 3] = [Purpose::Demand, Purpose::Prefetch, Purpose::Copy];

type Key = (PeerId, PieceId);

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Taken,
    Refused,
    /// It is one of far too many.
    Flood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The piece is on its way here.
    Held(Purpose),
    Queued(Purpose),
    Active,
}

/// Places that a host has, and how often it was refused one since it was last served.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    taken: usize,
    refused: usize,
}

/// Returns whether a piece more may be sent beside `active` others. One place is a demand's alone: it would wait for one of the others to
/// arrive, and goes before them on the same connection. More of such places would take from the pieces that many hosts wait for at a warden.
fn has_place(active: usize, purpose: Purpose, config: &Config) -> bool {
    active < config.uploads_max + usize::from(purpose == Purpose::Demand)
}

#[derive(Clone, Debug)]
pub(super) struct Uploads {
    questions: HashMap<Key, State>,
    /// By purpose, questions in the order of their coming. An entry whose question has another state by now stands for nothing.
    queues: [VecDeque<Key>; 3],
    /// How many others were answered while questions for a copy waited.
    passed: usize,
    held: HashMap<PieceId, Vec<PeerId>>,
    active: usize,
    places: HashMap<PeerId, Places>,
    per_peer_max: usize,
    held_max: usize,
    /// Pieces that may be sent by a cap that others share; `None` if there is none.
    granted: Option<usize>,
}

impl Uploads {
    pub(super) fn new(config: &Config) -> Uploads {
        Uploads {
            questions: HashMap::new(),
            queues: Default::default(),
            passed: 0,
            held: HashMap::new(),
            active: 0,
            places: HashMap::new(),
            per_peer_max: config.waiting_per_peer_max,
            held_max: config.held_per_piece_max,
            granted: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.questions.len() + self.queues.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Takes a question for a piece that is here, or (`held`) is on its way.
    pub(super) fn ask(&mut self, key: Key, purpose: Purpose, held: bool) -> Answer {
        if self.questions.contains_key(&key) {
            self.raise(key, purpose);
            return Answer::Taken;
        }
        let (peer, piece) = key;
        let places = self.places.entry(peer).or_default();
        if places.taken >= self.per_peer_max {
            places.refused += 1;
            return match places.refused > self.per_peer_max * FLOOD {
                true => Answer::Flood,
                false => Answer::Refused,
            };
        }
        if held {
            let waiting = self.held.entry(piece).or_default();
            if waiting.len() >= self.held_max {
                return Answer::Refused;
            }
            waiting.push(peer);
            self.questions.insert(key, State::Held(purpose));
        } else {
            self.queue(key, purpose);
        }
        self.places.entry(peer).or_default().taken += 1;
        Answer::Taken
    }

    fn queue(&mut self, key: Key, purpose: Purpose) {
        self.questions.insert(key, State::Queued(purpose));
        let (queue, questions) = (&mut self.queues[purpose as usize], &self.questions);
        if queue.len() > 2 * questions.len() + STALE_MAX {
            queue.retain(|key| questions.get(key) == Some(&State::Queued(purpose)));
        }
        queue.push_back(key);
    }

    fn raise(&mut self, key: Key, purpose: Purpose) {
        match self.questions.get_mut(&key) {
            Some(State::Held(before)) => *before = (*before).max(purpose),
            Some(State::Queued(before)) if *before < purpose => self.queue(key, purpose),
            _ => {}
        }
    }

    /// A piece is here now: those who wait for it are served.
    pub(super) fn release(&mut self, piece: PieceId) {
        for peer in self.held.remove(&piece).unwrap_or_default() {
            if let Some(State::Held(purpose)) = self.questions.get(&(peer, piece)).copied() {
                self.queue((peer, piece), purpose);
            }
        }
    }

    /// A piece won't come: those who wait for it are told.
    pub(super) fn give_up(&mut self, piece: PieceId, out: &mut Vec<Action>) {
        for peer in self.held.remove(&piece).unwrap_or_default() {
            if self.remove((peer, piece)) {
                out.push(Action::Refuse(peer, piece));
            }
        }
    }

    /// A host takes a question back; what is being sent to it goes on.
    pub(super) fn withdraw(&mut self, key: Key) {
        let (peer, piece) = key;
        match self.questions.get(&key) {
            None | Some(State::Active) => return,
            Some(State::Held(_)) => {
                if let Some(waiting) = self.held.get_mut(&piece) {
                    waiting.retain(|other| *other != peer);
                    if waiting.is_empty() {
                        self.held.remove(&piece);
                    }
                }
            }
            Some(State::Queued(_)) => {}
        }
        self.remove(key);
    }

    pub(super) fn served(&mut self, key: Key) {
        if self.questions.get(&key) == Some(&State::Active) {
            self.remove(key);
            if let Some(places) = self.places.get_mut(&key.0) {
                places.refused = 0;
            }
        }
    }

    /// Forgets a question. Returns whether there was one.
    fn remove(&mut self, key: Key) -> bool {
        let Some(state) = self.questions.remove(&key) else {
            return false;
        };
        self.active -= usize::from(state == State::Active);
        if let Some(places) = self.places.get_mut(&key.0) {
            places.taken = places.taken.saturating_sub(1);
        }
        true
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        let mut keys: Vec<Key> = self.questions.keys().copied().collect();
        keys.retain(|(of, _)| *of == peer);
        for key in keys {
            self.withdraw(key);
            self.remove(key);
        }
        self.places.remove(&peer);
    }

    /// Whether pieces are sent only as far as they are granted.
    pub(super) fn set_shared_cap(&mut self, shared: bool) {
        self.granted = shared.then_some(0);
    }

    pub(super) fn grant(&mut self, pieces: usize) {
        self.granted = self.granted.map(|_| pieces);
    }

    /// Returns how many pieces would be sent now if they were granted.
    pub(super) fn sendable(&self, config: &Config) -> usize {
        let mut active = self.active;
        // one that was taken back and asked anew stands in a queue twice
        let mut some: Vec<&Key> = Vec::new();
        for purpose in TURNS {
            for key in &self.queues[purpose as usize] {
                if !has_place(active, purpose, config) {
                    break;
                }
                let queued = self.questions.get(key) == Some(&State::Queued(purpose));
                if queued && !some.contains(&key) {
                    some.push(key);
                    active += 1;
                }
            }
        }
        some.len()
    }

    /// Starts what may be sent now. What was granted counts for this once.
    pub(super) fn pump(&mut self, config: &Config, out: &mut Vec<Action>) {
        while self.granted != Some(0) {
            let Some((key, purpose)) = self.next(config) else {
                break;
            };
            self.granted = self.granted.map(|granted| granted - 1);
            self.questions.insert(key, State::Active);
            self.active += 1;
            out.push(Action::Serve(key.0, key.1, purpose));
        }
        self.grant(0);
    }

    /// Takes the next question for which there is a place.
    fn next(&mut self, config: &Config) -> Option<(Key, Purpose)> {
        let mut turns = TURNS;
        if self.passed >= COPY_TURN {
            turns.rotate_right(1);
        }
        for purpose in turns {
            if !has_place(self.active, purpose, config) {
                continue;
            }
            while let Some(key) = self.queues[purpose as usize].pop_front() {
                if self.questions.get(&key) == Some(&State::Queued(purpose)) {
                    let copies = &self.queues[Purpose::Copy as usize];
                    let waits = purpose != Purpose::Copy && !copies.is_empty();
                    self.passed = if waits { self.passed + 1 } else { 0 };
                    return Some((key, purpose));
                }
            }
        }
        None
    }
}

//! Whom to ask for which piece, and whom to serve.
//!
//! The paper's policies and ours are configurations of one machine ([`Config`]), so that what is compared is the rule and nothing
//! else:
//!
//! | [`Config`] | who is asked | what is fetched ahead |
//! | --- | --- | --- |
//! | [`Config::cs_d`] | the seed | nothing |
//! | [`Config::cs_p`] | the seed | the prediction, at random among its first k missing pieces, unless the machine is catching up |
//! | [`Config::p2p_d`] | a peer that has it, else the seed | nothing |
//! | [`Config::p2p_p`] | a peer that has it, else the seed | as `cs_p`; k is 4.9 MB (section 2.2.4) |
//! | [`Config::p2p_p_first`] | the same | the same, also while a machine waits; who is asked serves demands first |
//! | [`Config::ours`] | a peer that has it, else the piece's warden, else the seed | own duties, then as `p2p_p` with an adapted k |
//!
//! # Wardens
//!
//! The paper ends with the wish for a policy that does better than absolute priority of demand (sections 4.4.2 and 4.5): when all hosts
//! miss the same piece, all ask the seed for it, its uplink carries one piece a hundred times, prefetch starves, and the hosts
//! have nothing to give each other. Relaxing the priority would trade misses for diversity. There is no need to: what hurts is not
//! that a demand goes first, but that the *same* demand reaches the seed from everyone.
//!
//! So each piece has a *warden*, one of the hosts, found by a hash of both on a ring that all compute alike (`ring`).
//! 1. It is its warden's duty to bring a piece from the seed into the swarm once it is among the first k of the prediction, whatever
//!    the warden's own machine waits for. A duty is 1/n of the pieces and so next to nothing of a downlink, but the duties of all
//!    hosts together keep the seed's uplink at different pieces: diversity stands, however many demands there are.
//! 2. Others ask a host that has the piece, or, if they know none, the warden. It *holds* a question for what is on its way and
//!    serves it on arrival, so that a hundred hosts that miss one piece cost the seed that piece once.
//! 3. A warden that has much to do refuses; who was refused looks again for a host that has the piece by then.
//!    A demand that gets nowhere ends at the seed.
//! 4. A host that takes many times as long as the median of those that were asked (a link of its own kind, or a bad one) is not asked
//!    while there is another way: the next on the ring stands in for it. Nobody needs to agree on who is slow. Where hosts see it
//!    differently a piece leaves the seed twice.
//! 5. A host that may give others little ([`Event::Places`]) is the warden of fewer pieces. It says so itself, and can only lower its share.
//!    Whoever has not heard of it asks it nevertheless, and is answered as by a warden.
//!
//! The window adapts to the swarm: k is [`Config::window_per_peer`] pieces for each host, because n uplinks are only busy together if
//! there are about n different pieces to carry; it shrinks where machines miss what no profile predicts, since they bring
//! diversity of their own, and prefetch is worth less (section 2.2.4 expects both). Where it is known when pieces are due, and the link
//! brings those of the next seconds just in time, k is [`Config::window_min`]: what is due later would make them late (section 2.2.2).
//!
//! # Copies
//!
//! A host may want all of an image although its machines do not ([`Event::Copies`]). That is a class of its own, below prefetch, here and
//! at whoever is asked: a copy is asked for while nothing else is on its way to this host and no machine has waited just now, and otherwise
//! only now and then, so that it comes to an end. The pieces go first that the fewest hosts are known to have; of those that none has, this host's duties; otherwise
//! chance decides, so that hosts differ. A host that only runs a machine brings no piece into the swarm for another's copy.
//!
//! # Promises
//!
//! No piece is asked for twice at a time, but at the end game. A demand is asked before any prefetch and that before any copy, and what is
//! on its way for less is raised. Every demand ends as long as the seed answers. State is bounded by the constants of this
//! module, whatever peers send. Equal events and seeds of chance give equal actions.

mod ahead;
mod bits;
mod choose;
mod config;
mod copies;
mod downloads;
mod peers;
mod rate;
mod ring;
mod uploads;

pub use config::Config;

use ahead::Ahead;
use bits::Bits;
use copies::Copies;
use downloads::Downloads;
use peers::Peers;
use rand::{SeedableRng, rngs::StdRng};
use ring::Ring;
use std::ops::Range;
use uploads::Uploads;

/// A piece's number.
pub type PieceId = u32;

/// Most peers that are known at a time; those that join beyond it are not noticed.
pub const PEERS_MAX: usize = 4096;
/// Most peers of which it is known what they have (a map of pieces each).
pub const MAPS_MAX: usize = 128;
/// Most pieces of an image: 256 GiB of packs in pieces of 64 KiB.
pub const PIECES_MAX: u32 = 1 << 22;
/// Most pieces of a prediction, and of a copy, that are looked at.
pub const WINDOW_MAX: usize = 1 << 16;
/// Most pieces that machines wait for at a time; a further miss is answered by the caller's own way to the seed.
pub const DEMANDS_MAX: usize = 1024;

/// A host of the swarm, by a number that all hosts know it by (a hash of its key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Places of each host among wardens: with one, some hosts would have seven times the mean of duties.
pub const PLACES: u8 = 8;
/// Most ranges among which the rarest is looked for ([`Policy::rarest`]): each is a look at all of its pieces.
const RANGES_MAX: usize = 32;

/// Why a piece is asked for, the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// The host copies the image, and no machine is known to need the piece.
    Copy,
    /// It will probably be needed.
    Prefetch,
    /// A machine waits for it.
    Demand,
}

/// Why a peer is dropped. It is not asked or served again until it joins anew, which the caller may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It sent bytes that are not the piece's.
    WrongBytes,
    /// It was asked and has sent nothing for long.
    Stalled,
    /// It said more than once that it has what it does not give.
    Lied,
    /// It asks for far more than it can take.
    Flooded,
}

/// What happened. What comes late, of a peer that is gone or a piece that nobody asked for, does no harm.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A host takes part. Tell of every host of the swarm, also of those without a connection: each is the warden of some pieces.
    Joined(PeerId),
    /// There is a seed, which has all pieces. A further one is asked while those before it fail or send wrong bytes.
    Seed(PeerId),
    /// A host, or this one, is a warden at so many of its [`PLACES`], as it says; at all of them if nothing was said. It may be unknown yet.
    Places(PeerId, u8),
    /// A host is gone, politely or not.
    Left(PeerId),
    /// A host has these pieces, in addition to those that it had.
    Has(PeerId, &'a [PieceId]),
    /// A host no longer has these pieces.
    Lacks(PeerId, &'a [PieceId]),
    /// A piece that was asked for is here, and its bytes are right.
    Arrived(PeerId, PieceId),
    /// A host refuses a piece or could not give it.
    Failed(PeerId, PieceId),
    /// A host's bytes are not the piece's.
    Wrong(PeerId, PieceId),
    /// A machine waits for a piece that is not here.
    Miss(PieceId),
    /// No machine waits any more for a piece that is not here: nobody else is asked for it, and what is on its way may come.
    Unmissed(PieceId),
    /// What machines will need next, in order, and when: in milliseconds since the start of a run, 0 for now; no times if nobody knows.
    /// Replaces what was predicted before.
    Window(&'a [PieceId], &'a [u32]),
    /// What is to be copied in the background, in any order. Replaces what was to be copied before.
    Copies(&'a [PieceId]),
    /// A host asks this one for a piece; a second time with a higher purpose, to raise it.
    Asked(PeerId, PieceId, Purpose),
    /// A host takes back what it asked.
    Withdrawn(PeerId, PieceId),
    /// A piece was sent to a host ([`Action::Serve`]), or could not be.
    Served(PeerId, PieceId),
    /// So many pieces may be sent now ([`Policy::sendable`]); what isn't used at once is lost.
    Granted(usize),
    /// Time has passed; reported every 50 ms or so.
    Tick,
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask a host for a piece. If it is asked already, the purpose of its question rises.
    Ask(PeerId, PieceId, Purpose),
    /// Take a question back; what still arrives is welcome.
    Cancel(PeerId, PieceId),
    /// Send a piece to a host, then report [`Event::Served`]. The higher purpose goes first on every link.
    Serve(PeerId, PieceId, Purpose),
    /// Tell a host that it won't get the piece here.
    Refuse(PeerId, PieceId),
    /// End the connection to a host.
    Drop(PeerId, Fault),
}

/// How an image's pieces come of late, from all hosts and the seed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bytes a second while as many pieces as may be are under way ahead of need.
    pub bytes_per_s: u64,
    /// How long the quickest piece took from its question on, in microseconds.
    pub piece_us: u64,
}

/// A host's policy for one image.
#[derive(Debug)]
pub struct Policy {
    config: Config,
    me: PeerId,
    random: StdRng,
    peers: Peers,
    ring: Ring,
    here: Bits,
    ahead: Ahead,
    copies: Copies,
    downloads: Downloads,
    uploads: Uploads,
    /// How many other swarms of this host fetch ahead,
    others_ahead: usize,
    /// and how many only copy.
    others_copy: usize,
    /// Whether pieces are fetched in the order in which they are due, as it was at the last tick.
    in_order: bool,
}

impl Policy {
    /// Makes the policy of host `me` for an image of so many pieces (at most [`PIECES_MAX`]), none of which is here. `chance` is
    /// the seed of all random choices.
    pub fn new(config: Config, me: PeerId, pieces: u32, chance: u64) -> Policy {
        let pieces = pieces.min(PIECES_MAX);
        let mut ring = Ring::default();
        ring.add(me);
        Policy {
            me,
            random: StdRng::seed_from_u64(chance ^ me.0),
            peers: Peers::new(pieces),
            ring,
            here: Bits::new(pieces),
            ahead: Ahead::new(pieces),
            copies: Copies::new(),
            downloads: Downloads::default(),
            uploads: Uploads::new(&config),
            others_ahead: 0,
            others_copy: 0,
            in_order: false,
            config,
        }
    }

    /// Notes that a piece is here without having been asked for (an earlier run left it).
    pub fn put(&mut self, piece: PieceId) {
        self.here.set(piece);
        self.ahead.take(piece);
        self.copies.forget(piece);
    }

    /// Notes that a piece is no longer here. It is fetched again if it is predicted.
    pub fn lose(&mut self, piece: PieceId) {
        if self.here.clear(piece) {
            self.back(piece);
        }
    }

    /// Whether a piece is here.
    pub fn has(&self, piece: PieceId) -> bool {
        self.here.get(piece)
    }

    /// Returns how many pieces a host is known to have: none of one without a map ([`MAPS_MAX`]).
    pub fn pieces_of(&self, peer: PeerId) -> u32 {
        self.peers.pieces_of(peer)
    }

    /// Returns how pieces come of late, by which is bounded how many are under way ahead of need ([`Config::queue_us`]); `None` before
    /// that was measured.
    pub fn speed(&self) -> Option<Speed> {
        let rate = &self.downloads.rate;
        let bytes_per_s = (rate.filled() * self.config.piece_bytes as f64) as u64;
        (bytes_per_s > 0).then_some(Speed {
            bytes_per_s,
            piece_us: rate.quickest_us() as u64,
        })
    }

    /// Returns the number of questions to others that wait for an answer.
    pub fn asked(&self) -> usize {
        self.downloads.asks()
    }

    /// Returns how many entries this policy keeps for peers' questions, which peers could make grow: for tests of the bound.
    pub fn held(&self) -> usize {
        self.uploads.len()
    }

    /// Says whether there is a cap on what is sent that this image's swarm shares with others. Then pieces are sent only when the caller
    /// grants that: as many of [`Policy::sendable`] as the cap allows, by [`Event::Granted`].
    pub fn set_shared_cap(&mut self, shared: bool) {
        self.uploads.set_shared_cap(shared);
    }

    /// Says how many other swarms of this host fetch ahead over its link now, and how many others only copy: the numbers of pieces that may
    /// be under way without a machine that waits, however fast or slowly they come, are for all of them together. While another fetches ahead,
    /// one copy at a time is under way here.
    pub fn set_sharers(&mut self, ahead: usize, copy: usize) {
        (self.others_ahead, self.others_copy) = (ahead, copy);
    }

    /// Returns for what pieces are under way that no machine waits for, the most urgent of it.
    pub fn fetches(&self) -> Option<Purpose> {
        match (self.downloads.prefetching, self.downloads.copies) {
            (0, 0) => None,
            (0, _) => Some(Purpose::Copy),
            _ => Some(Purpose::Prefetch),
        }
    }

    /// Returns which of these ranges of pieces is the best to copy next, by its place: that of which the fewest other hosts have what is not
    /// here. Of many ranges some are looked at. Which of equals is chance.
    pub fn rarest(&mut self, ranges: &[Range<PieceId>]) -> Option<usize> {
        let some = ranges.len().min(RANGES_MAX);
        let some = rand::seq::index::sample(&mut self.random, ranges.len(), some);
        some.into_iter().min_by_key(|place| {
            let Range { start, end } = ranges[*place];
            let range = start..end.min(self.here.pieces());
            let lacks = range.filter(|piece| !self.here.get(*piece));
            let (pieces, held) = lacks.fold((0, 0), |(pieces, held), piece| {
                (pieces + 1, held + u64::from(self.peers.holders(piece)))
            });
            held * 1000 / u64::max(pieces, 1)
        })
    }

    /// Returns how many pieces would be sent now if they were granted.
    pub fn sendable(&self) -> usize {
        self.uploads.sendable(&self.config)
    }

    /// Returns the present k: among how many missing pieces of the prediction prefetch picks.
    pub fn window(&self) -> usize {
        let k = if self.config.window_per_peer > 0.0 && self.in_order {
            self.config.window_min
        } else if self.config.window_per_peer > 0.0 {
            let hosts = self.ring.hosts() as f64;
            // what no profile predicted is diversity that comes by itself
            let k = hosts * self.config.window_per_peer * (1.0 - self.downloads.outside());
            (k as usize)
                .max(self.config.window_min)
                .min(self.config.window_max)
        } else {
            self.config.window_max
        };
        k.min(WINDOW_MAX)
    }

    /// Takes an event at a time, in microseconds from any fixed moment, and appends what is to be done to `out`.
    pub fn on_event(&mut self, now_us: u64, event: Event<'_>, out: &mut Vec<Action>) {
        match event {
            Event::Joined(peer) => self.joined(peer),
            Event::Seed(peer) => self.peers.add_seed(peer),
            Event::Places(peer, places) => self.ring.takes(peer, places),
            Event::Left(peer) => self.forget(peer, out),
            Event::Has(peer, pieces) => {
                self.peers.has(peer, pieces);
                self.rank(pieces);
            }
            Event::Lacks(peer, pieces) => {
                self.peers.lacks(peer, pieces);
                self.rank(pieces);
            }
            Event::Arrived(peer, piece) => self.arrived(now_us, peer, piece, out),
            Event::Failed(peer, piece) => self.failed(now_us, peer, piece, out),
            Event::Wrong(peer, piece) => self.wrong(now_us, peer, piece, out),
            Event::Miss(piece) => self.miss(now_us, piece, out),
            Event::Unmissed(piece) => self.unmissed(piece, out),
            Event::Window(pieces, due_ms) => self.predicted(pieces, due_ms, out),
            Event::Copies(pieces) => self.copied(pieces),
            Event::Asked(peer, piece, purpose) => self.asked_by(now_us, peer, piece, purpose, out),
            Event::Withdrawn(peer, piece) => self.uploads.withdraw((peer, piece)),
            Event::Served(peer, piece) => self.uploads.served((peer, piece)),
            Event::Granted(pieces) => self.uploads.grant(pieces),
            Event::Tick => self.tick(now_us, out),
        }
        self.uploads.pump(&self.config, out);
        self.fill(now_us, out);
    }

    fn joined(&mut self, peer: PeerId) {
        if peer != self.me && self.peers.join(peer) && self.config.wardens {
            self.ring.add(peer);
        }
    }

    /// Forgets a peer; what it was asked for is asked of others.
    fn forget(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        if peer == self.me {
            return;
        }
        self.ring.remove(peer);
        self.uploads.forget(peer);
        for piece in self.downloads.forget(peer) {
            self.back(piece);
            if !self.downloads.demands.contains_key(&piece) {
                self.uploads.give_up(piece, out);
            }
        }
        self.peers.leave(peer);
    }

    fn drop_peer(&mut self, peer: PeerId, fault: Fault, out: &mut Vec<Action>) {
        if self.peers.is_seed(peer) {
            // few have everything: it is left alone for a while instead
            return;
        }
        self.forget(peer, out);
        out.push(Action::Drop(peer, fault));
    }

    /// Puts a piece that is no longer on its way back among what is to be fetched ahead, or copied.
    fn back(&mut self, piece: PieceId) {
        if !self.here.get(piece) && !self.downloads.is_on_its_way(piece) {
            self.ahead.give_back(piece);
            let rarity = self.rarity(piece);
            self.copies.rank(piece, rarity);
        }
    }

    fn predicted(&mut self, pieces: &[PieceId], due_ms: &[u32], out: &mut Vec<Action>) {
        let (here, downloads) = (&self.here, &self.downloads);
        self.ahead.set(pieces, due_ms, |piece| {
            !here.get(piece) && !downloads.is_on_its_way(piece)
        });
        for piece in self.downloads.copied() {
            if self.ahead.knows(piece) {
                self.raise(piece, Purpose::Prefetch, out);
            }
        }
    }

    fn copied(&mut self, pieces: &[PieceId]) {
        self.copies.clear();
        for piece in pieces.iter().take(WINDOW_MAX).copied() {
            if self.here.is_of_image(piece) && !self.here.get(piece) {
                self.copies.add(piece);
                self.back(piece);
            }
        }
    }

    /// Notes that hosts have got or lost pieces.
    fn rank(&mut self, pieces: &[PieceId]) {
        for piece in pieces {
            if self.copies.lacks(*piece) {
                let rarity = self.rarity(*piece);
                self.copies.rank(*piece, rarity);
            }
        }
    }

    /// Returns a piece's rank among copies ([`copies::RANKS`]).
    fn rarity(&mut self, piece: PieceId) -> usize {
        let holders = usize::from(self.peers.holders(piece));
        let others = holders > 0 || self.ring.warden(piece) != self.me;
        holders + usize::from(others)
    }

    /// Returns the host whose duty a piece is, as this host sees it: the warden, or the host that stands in for one that is slow. `None`
    /// without wardens.
    fn warden(&mut self, now_us: u64, piece: PieceId) -> Option<PeerId> {
        let peers = &self.peers;
        let slow = |peer| peers.is_slow(peer, now_us);
        let ring = &mut self.ring;
        self.config.wardens.then(|| ring.warden_but(piece, slow))
    }
}

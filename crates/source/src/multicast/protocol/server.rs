//! The server of a group: decides which pieces to send next, and how fast.
//!
//! An item that is asked for waits in one of two queues, demand before the rest. Whoever asks for it meanwhile joins: one reply
//! serves all. Its bytes are loaded shortly before its turn. What was sent a moment ago is not sent again, since clones that
//! run in step ask for the same item at about the same time (section 4.5); if it was lost after all, they ask once more.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use floe_image::datagram::{Ask, PIECE_BYTES_MAX, Piece, Want, all_pieces, piece_range, pieces_of};
use floe_image::{Encoding, Hash, Kind};

use super::rate::{FlowControl, RateMeter};

/// How long requests for what was just sent are ignored. Receivers ask again only after a longer time.
const LOCKSTEP: Duration = Duration::from_millis(25);
/// How long to remember what was sent, to tell a lost item from a receiver that comes late.
const REMEMBER: Duration = Duration::from_secs(2);
/// Most items remembered: two seconds at the highest rate.
const SENT_MAX: usize = 65_536;
/// Most items that wait: 64 MiB of chunks. Requests beyond that are dropped; receivers ask again.
const QUEUE_MAX: usize = 16_384;
/// Most items that are loaded or being loaded: 1 MiB of chunks, more than is sent while the next ones are loaded.
const AHEAD_MAX: usize = 256;
/// Most receivers whose rates are remembered: several times the hosts of the largest fork.
const RECEIVERS_MAX: usize = 1024;
/// After this time without a request a receiver's rate no longer counts.
const RECEIVER_SILENT: Duration = Duration::from_secs(1);
/// How far a receiver's datagram may be behind its newest one, in sequence numbers.
const WINDOW: u64 = 64;

/// An item in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// How the bytes are encoded.
    pub encoding: Encoding,
    /// The encoded bytes.
    pub bytes: Vec<u8>,
}

/// What the server has to do now.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Seal this datagram and send it to the group.
    Send(Vec<u8>),
    /// Wait until this time, or until something happens.
    Wait(Option<Duration>),
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Items asked for by all receivers.
    pub asked: u64,
    /// How many of these joined an item that was waiting to be sent.
    pub joined: u64,
    /// How many of these were ignored because the item had just been sent.
    pub lockstep: u64,
    /// How many of these were asked for again because of a loss.
    pub lost: u64,
    /// Items sent, whole or in part.
    pub sent: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Their bytes, without the headers of UDP and below.
    pub bytes: u64,
    /// Datagrams that were ignored because they were replayed, or older than the receiver's window.
    pub replayed: u64,
    /// The present limit in bytes per second.
    pub limit_bytes_per_s: u64,
}

#[derive(Debug)]
struct Queued {
    kind: Kind,
    demand: bool,
    /// Pieces to send, one bit each.
    pieces: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Loading,
    Ready(Packed),
}

/// Which pieces of an item were sent, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// When the last of them was sent.
    at: Duration,
    /// Pieces of the last burst, in which each followed the one before within [`LOCKSTEP`].
    just: u32,
    all: u32,
}

#[derive(Debug)]
struct Known {
    highest: u64,
    /// Bit n is set if sequence number `highest - n` was seen.
    seen: u64,
    bytes_per_s: u64,
    at: Duration,
}

/// The server of one group.
#[derive(Debug)]
pub struct Server {
    /// Identifies it in its datagrams.
    number: u64,
    sequence: u64,
    items: HashMap<Hash, Queued>,
    waiting_demand: VecDeque<Hash>,
    waiting: VecDeque<Hash>,
    ready_demand: VecDeque<Hash>,
    ready: VecDeque<Hash>,
    ahead: usize,
    sent: HashMap<Hash, Sent>,
    sent_order: VecDeque<(Duration, Hash)>,
    receivers: HashMap<u64, Known>,
    flow: FlowControl,
    own: RateMeter,
    stats: ServerStats,
}

impl Server {
    /// Makes a server. `number` is the time of its start in microseconds since 1970.
    pub fn new(number: u64) -> Server {
        Server {
            number,
            sequence: 0,
            items: HashMap::new(),
            waiting_demand: VecDeque::new(),
            waiting: VecDeque::new(),
            ready_demand: VecDeque::new(),
            ready: VecDeque::new(),
            ahead: 0,
            sent: HashMap::new(),
            sent_order: VecDeque::new(),
            receivers: HashMap::new(),
            flow: FlowControl::default(),
            own: RateMeter::default(),
            stats: ServerStats::default(),
        }
    }

    /// Returns its counters.
    pub fn stats(&self) -> ServerStats {
        ServerStats {
            limit_bytes_per_s: self.flow.limit(),
            ..self.stats
        }
    }

    /// Handles a receiver's request.
    pub fn asked(&mut self, now: Duration, ask: &Ask) {
        if !self.is_new(now, ask) {
            self.stats.replayed += 1;
            return;
        }
        for want in &ask.wants {
            self.stats.asked += 1;
            self.want(now, want);
        }
    }

    /// Remembers what a receiver reports about itself; returns whether this datagram's sequence number is new.
    fn is_new(&mut self, now: Duration, ask: &Ask) -> bool {
        if !self.receivers.contains_key(&ask.receiver) && self.receivers.len() >= RECEIVERS_MAX {
            let silent = self.receivers.iter().min_by_key(|(_, known)| known.at);
            if let Some(silent) = silent.map(|(receiver, _)| *receiver) {
                self.receivers.remove(&silent);
            }
        }
        let known = self.receivers.entry(ask.receiver).or_insert(Known {
            highest: ask.sequence,
            seen: 0,
            bytes_per_s: 0,
            at: now,
        });
        if ask.sequence > known.highest {
            let ahead = ask.sequence - known.highest;
            known.seen = if ahead >= WINDOW {
                0
            } else {
                known.seen << ahead
            };
            known.highest = ask.sequence;
        }
        let behind = known.highest - ask.sequence;
        if behind >= WINDOW || known.seen & 1 << behind != 0 {
            return false;
        }
        known.seen |= 1 << behind;
        known.at = now;
        if behind == 0 {
            known.bytes_per_s = ask.bytes_per_s;
        }
        true
    }

    fn want(&mut self, now: Duration, want: &Want) {
        let before = self.sent.get(&want.hash).copied().unwrap_or_default();
        let just = if now < before.at + LOCKSTEP {
            before.just
        } else {
            0
        };
        let pieces = want.pieces & !just;
        if pieces == 0 {
            self.stats.lockstep += 1;
            return;
        }
        if let Some(queued) = self.items.get_mut(&want.hash) {
            self.stats.joined += 1;
            queued.pieces |= pieces;
            if want.demand && !queued.demand {
                queued.demand = true;
                match queued.stage {
                    Stage::Waiting => self.waiting_demand.push_back(want.hash),
                    Stage::Ready(_) => self.ready_demand.push_back(want.hash),
                    Stage::Loading => {}
                }
            }
            return;
        }
        // A receiver that comes late asks for old pieces too; only one that asks again has lost them.
        if want.again && before.all & pieces != 0 {
            self.stats.lost += 1;
            let mean = self.mean_rate(now);
            self.flow.lost(now, mean);
        }
        if self.items.len() >= QUEUE_MAX {
            return;
        }
        match want.demand {
            true => self.waiting_demand.push_back(want.hash),
            false => self.waiting.push_back(want.hash),
        }
        let queued = Queued {
            kind: want.kind,
            demand: want.demand,
            pieces,
            stage: Stage::Waiting,
        };
        self.items.insert(want.hash, queued);
    }

    /// Returns the average rate of the receivers that were heard lately; if there are none, the rate of what is sent.
    fn mean_rate(&mut self, now: Duration) -> u64 {
        let lately = self
            .receivers
            .values()
            .filter(|known| now < known.at + RECEIVER_SILENT);
        let rates: Vec<u64> = lately.map(|known| known.bytes_per_s).collect();
        match rates.len() as u64 {
            0 => self.own.bytes_per_s(now),
            n => rates.iter().map(|rate| rate / n).sum(),
        }
    }

    /// Returns items to load now, `most` at most. Call [`Server::loaded`] for each of them.
    pub fn next_loads(&mut self, most: usize) -> Vec<(Kind, Hash)> {
        let mut load = Vec::new();
        while load.len() < most && self.ahead < AHEAD_MAX {
            let next = self.waiting_demand.pop_front();
            let Some(hash) = next.or_else(|| self.waiting.pop_front()) else {
                break;
            };
            // An item that became demand while it waited is in both queues.
            let Some(queued) = self.items.get_mut(&hash) else {
                continue;
            };
            if matches!(queued.stage, Stage::Waiting) {
                queued.stage = Stage::Loading;
                self.ahead += 1;
                load.push((queued.kind, hash));
            }
        }
        load
    }

    /// Returns whether [`Server::next_loads`] may return something.
    pub fn has_loads(&self) -> bool {
        self.ahead < AHEAD_MAX && !(self.waiting.is_empty() && self.waiting_demand.is_empty())
    }

    /// Takes an item's bytes; `None` drops the item, and whoever asked for it will try another source.
    pub fn loaded(&mut self, hash: &Hash, packed: Option<Packed>) {
        let Some(queued) = self.items.get_mut(hash) else {
            return;
        };
        if !matches!(queued.stage, Stage::Loading) {
            return;
        }
        match packed.filter(|packed| !packed.bytes.is_empty()) {
            Some(packed) => {
                queued.stage = Stage::Ready(packed);
                match queued.demand {
                    true => self.ready_demand.push_back(*hash),
                    false => self.ready.push_back(*hash),
                }
            }
            None => {
                self.items.remove(hash);
                self.ahead -= 1;
            }
        }
    }

    /// Returns what to do now.
    pub fn next(&mut self, now: Duration) -> Next {
        self.forget(now);
        let Some(hash) = self.first_ready() else {
            return Next::Wait(None);
        };
        if let Err(later) = self.flow.may_send(now) {
            return Next::Wait(Some(later));
        }
        let Some(datagram) = self.piece_of(now, &hash) else {
            return Next::Wait(Some(now));
        };
        self.flow.sent(datagram.len());
        self.own.add(now, datagram.len());
        self.stats.datagrams += 1;
        self.stats.bytes += datagram.len() as u64;
        Next::Send(datagram)
    }

    /// Returns the item whose turn it is. It stays at the front until its last piece is sent.
    fn first_ready(&mut self) -> Option<Hash> {
        for queue in [&mut self.ready_demand, &mut self.ready] {
            while let Some(hash) = queue.front() {
                match self.items.get(hash).map(|queued| &queued.stage) {
                    Some(Stage::Ready(_)) => return Some(*hash),
                    _ => queue.pop_front(),
                };
            }
        }
        None
    }

    /// Returns the next piece of an item as a datagram; removes the item after the last one.
    fn piece_of(&mut self, now: Duration, hash: &Hash) -> Option<Vec<u8>> {
        let queued = self.items.get_mut(hash)?;
        let Stage::Ready(packed) = &queued.stage else {
            return None;
        };
        let total = packed.bytes.len();
        debug_assert!(pieces_of(total) <= floe_image::datagram::PIECES_MAX);
        queued.pieces &= all_pieces(total);
        let index = queued.pieces.trailing_zeros() as usize;
        let mut datagram = None;
        if queued.pieces != 0 {
            self.sequence += 1;
            let mut tag = [0; 8];
            tag.copy_from_slice(&hash.0[..8]);
            let piece = Piece {
                server: self.number,
                sequence: self.sequence,
                kind: queued.kind,
                encoding: packed.encoding,
                index: index as u8,
                total: total as u32,
                tag,
                bytes: &packed.bytes[piece_range(total, index)],
            };
            datagram = Some(piece.encode());
            queued.pieces &= !(1 << index);
            let sent = self.sent.entry(*hash).or_default();
            if now >= sent.at + LOCKSTEP {
                sent.just = 0;
            }
            sent.at = now;
            sent.just |= 1 << index;
            sent.all |= 1 << index;
        }
        if queued.pieces == 0 {
            self.items.remove(hash);
            self.ahead -= 1;
            self.stats.sent += 1;
            self.sent_order.push_back((now, *hash));
        }
        datagram
    }

    /// Forgets what was sent long ago.
    fn forget(&mut self, now: Duration) {
        while let Some((at, hash)) = self.sent_order.front() {
            if now < *at + REMEMBER && self.sent_order.len() <= SENT_MAX {
                break;
            }
            // If it was sent again since, a later entry forgets it.
            if self.sent.get(hash).is_some_and(|sent| sent.at <= *at) {
                self.sent.remove(hash);
            }
            self.sent_order.pop_front();
        }
    }
}

/// Encodes an item for sending: compressed if that saves a datagram.
pub(crate) fn pack(kind: Kind, bytes: &[u8], level: i32) -> Packed {
    let packed = floe_image::compress_frame(kind, &[bytes], level);
    match pieces_of(packed.len()) < bytes.len().div_ceil(PIECE_BYTES_MAX) {
        true => Packed {
            encoding: Encoding::Zstd,
            bytes: packed,
        },
        false => Packed {
            encoding: Encoding::Raw,
            bytes: bytes.to_vec(),
        },
    }
}

//! A receiver of a group: decides what to ask the server for, and puts items together from pieces, whoever asked for them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use floe_image::datagram::{Ask, Piece, WANTS_MAX, Want, all_pieces, piece_range};
use floe_image::{Encoding, Hash, Kind, chunk_hash, decompress_frame};

use super::rate::RateMeter;
use super::timing::{AnswerTime, Passage};

/// Most items on their way that are no demand: 1 MiB of chunks. The server has room for that from many receivers.
const FLYING_MAX: usize = 256;
/// The same, demand included, while it isn't known whether answers arrive.
const FLYING_IN_DOUBT_MAX: usize = 8;
/// Most incomplete items: 4 MiB of chunks. Items that only others asked for are dropped first.
const PARTS_MAX: usize = 1024;
/// Bytes of a packet beside its piece: Ethernet, IP and UDP headers, the datagram's head and its seal.
const PACKET_OVERHEAD: u64 = 42 + 56;

/// An item that has arrived completely and has the hash that it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Whether it is a chunk or a segment.
    pub kind: Kind,
    /// Its hash, computed from its bytes.
    pub hash: Hash,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether this receiver asked for it or was going to.
    pub wanted: bool,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    /// Items that it wanted and received.
    pub items: u64,
    /// Items that it received because another receiver wanted them.
    pub overheard: u64,
    /// Requests for items; an item that is asked for twice counts twice.
    pub asked: u64,
    /// How many of these were repeated requests.
    pub asked_again: u64,
    /// Items that were not what they claimed to be.
    pub invalid: u64,
    /// Bytes received, with headers.
    pub wire_bytes: u64,
}

#[derive(Debug)]
struct Wanted {
    kind: Kind,
    demand: bool,
    /// How many times it was asked for.
    tries: u32,
    /// When it was asked for the first time and the last time.
    asked: (Duration, Duration),
    /// When it is asked for again.
    due: Duration,
}

#[derive(Debug)]
struct Part {
    kind: Kind,
    encoding: Encoding,
    bytes: Vec<u8>,
    missing: u32,
}

impl Part {
    fn fits(&self, piece: &Piece<'_>) -> bool {
        (self.kind, self.encoding, self.bytes.len())
            == (piece.kind, piece.encoding, piece.total as usize)
    }
}

type Tag = [u8; 8];

fn tag_of(hash: &Hash) -> Tag {
    let mut tag = [0; 8];
    tag.copy_from_slice(&hash.0[..8]);
    tag
}

/// A receiver of one group.
#[derive(Debug)]
pub struct Receiver {
    /// Identifies it in its datagrams.
    number: u64,
    sequence: u64,
    wanted: HashMap<Hash, Wanted>,
    fresh_demand: VecDeque<Hash>,
    fresh: VecDeque<Hash>,
    /// Items asked for and when they are asked for again, in that order; outdated entries are skipped.
    due: VecDeque<(Duration, Hash)>,
    flying: usize,
    parts: HashMap<Tag, Part>,
    part_order: VecDeque<Tag>,
    wanted_tags: HashMap<Tag, Hash>,
    /// The server's number and the sequence number of the newest datagram received.
    heard: (u64, u64),
    rate: RateMeter,
    time: AnswerTime,
    passage: Passage,
    trial: Option<Want>,
    stats: ReceiverStats,
}

impl Receiver {
    /// Makes a receiver. `number` is drawn at random; `sequence` must exceed any that a receiver of this number may have used.
    pub fn new(number: u64, sequence: u64) -> Receiver {
        Receiver {
            number,
            sequence,
            wanted: HashMap::new(),
            fresh_demand: VecDeque::new(),
            fresh: VecDeque::new(),
            due: VecDeque::new(),
            flying: 0,
            parts: HashMap::new(),
            part_order: VecDeque::new(),
            wanted_tags: HashMap::new(),
            heard: (0, 0),
            rate: RateMeter::default(),
            time: AnswerTime::default(),
            passage: Passage::default(),
            trial: None,
            stats: ReceiverStats::default(),
        }
    }

    /// Returns its counters.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }

    /// Returns whether multicast arrives here, as far as is known.
    pub fn is_open(&self) -> bool {
        self.passage.is_open()
    }

    /// Returns whether it is certain that answers arrive.
    pub fn is_sure(&self) -> bool {
        self.passage.is_sure()
    }

    /// Notes that a read ended without any datagram of the server; returns whether multicast is given up for a while.
    pub fn unanswered(&mut self, now: Duration) -> bool {
        self.passage.unanswered(now)
    }

    /// If it is time to find out whether multicast arrives again: asks for this item once, and returns true. Nobody should wait
    /// for the item.
    pub fn try_again(&mut self, now: Duration, kind: Kind, hash: &Hash) -> bool {
        let try_now = self.passage.try_now(now);
        if try_now {
            self.trial = Some(Want {
                kind,
                hash: *hash,
                pieces: u32::MAX,
                again: false,
                demand: false,
            });
        }
        try_now
    }

    /// Returns how long to wait for a guest's page before it is asked for by unicast too.
    pub fn hedge(&self, least: Duration, most: Duration) -> Duration {
        self.time.hedge(least, most)
    }

    /// Notes that an item is wanted. The next [`Receiver::asks`] asks for it, unless it arrives before.
    pub fn want(&mut self, kind: Kind, hash: &Hash, demand: bool) {
        if let Some(wanted) = self.wanted.get_mut(hash) {
            if demand && !wanted.demand {
                wanted.demand = true;
                if wanted.tries == 0 {
                    self.fresh_demand.push_back(*hash);
                }
            }
            return;
        }
        match demand {
            true => self.fresh_demand.push_back(*hash),
            false => self.fresh.push_back(*hash),
        }
        self.wanted_tags.insert(tag_of(hash), *hash);
        let wanted = Wanted {
            kind,
            demand,
            tries: 0,
            asked: (Duration::ZERO, Duration::ZERO),
            due: Duration::ZERO,
        };
        self.wanted.insert(*hash, wanted);
    }

    /// Notes that an item is no longer wanted.
    pub fn forget(&mut self, hash: &Hash) {
        if let Some(wanted) = self.wanted.remove(hash) {
            self.wanted_tags.remove(&tag_of(hash));
            self.flying -= usize::from(wanted.tries > 0);
        }
    }

    /// Handles a piece from the server; returns the item if this piece completes it.
    pub fn piece(&mut self, now: Duration, piece: &Piece<'_>) -> Option<Item> {
        let number = (piece.server, piece.sequence);
        // A replayed datagram may be useful, but it doesn't prove that the server is there, and doesn't count for the rate.
        if number > self.heard {
            self.heard = number;
            self.passage.heard();
            self.rate.add(now, piece.bytes.len());
        }
        self.stats.wire_bytes += piece.bytes.len() as u64 + PACKET_OVERHEAD;
        let total = piece.total as usize;
        if !self
            .parts
            .get(&piece.tag)
            .is_some_and(|part| part.fits(piece))
        {
            self.make_room();
            let part = Part {
                kind: piece.kind,
                encoding: piece.encoding,
                bytes: vec![0; total],
                missing: all_pieces(total),
            };
            // An incomplete item that doesn't fit was packed in another way, perhaps by another server: it starts anew.
            if self.parts.insert(piece.tag, part).is_none() {
                self.part_order.push_back(piece.tag);
            }
        }
        let part = self.parts.get_mut(&piece.tag)?;
        part.bytes[piece_range(total, piece.index.into())].copy_from_slice(piece.bytes);
        part.missing &= !(1 << piece.index);
        if part.missing != 0 {
            return None;
        }
        let part = self.parts.remove(&piece.tag)?;
        let item = whole(part, &piece.tag);
        if item.is_none() {
            self.stats.invalid += 1;
        }
        let mut item = item?;
        if let Some(wanted) = self.wanted.get(&item.hash) {
            if wanted.tries > 0 {
                let (first, last) = wanted.asked;
                self.time
                    .learn(now.saturating_sub(first), now.saturating_sub(last));
            }
            item.wanted = true;
            self.forget(&item.hash);
            self.stats.items += 1;
        } else {
            self.stats.overheard += 1;
        }
        Some(item)
    }

    /// Drops the oldest incomplete item that nobody here wants, or else the oldest of all.
    fn make_room(&mut self) {
        // Items that were completed are still in the order.
        let mut spared = 0;
        while self.part_order.len() >= PARTS_MAX {
            let Some(tag) = self.part_order.pop_front() else {
                return;
            };
            if !self.parts.contains_key(&tag) {
                continue;
            }
            if self.wanted_tags.contains_key(&tag) && spared < PARTS_MAX / 2 {
                spared += 1;
                self.part_order.push_back(tag);
                continue;
            }
            self.parts.remove(&tag);
        }
    }

    /// Returns what to ask the server for now, in as few datagrams as possible.
    pub fn asks(&mut self, now: Duration) -> Vec<Ask> {
        let mut wants: Vec<Want> = self.trial.take().into_iter().collect();
        self.due_again(now, &mut wants);
        let (demand_max, most) = match self.passage.is_sure() {
            true => (usize::MAX, FLYING_MAX),
            false => (FLYING_IN_DOUBT_MAX, FLYING_IN_DOUBT_MAX),
        };
        while self.flying < demand_max
            && let Some(hash) = self.fresh_demand.pop_front()
        {
            self.ask_for(now, hash, &mut wants);
        }
        // Ask in whole datagrams of requests, not in one for each item that has just arrived.
        if self.flying + WANTS_MAX <= FLYING_MAX || self.flying == 0 {
            while self.flying < most {
                let Some(hash) = self.fresh.pop_front() else {
                    break;
                };
                self.ask_for(now, hash, &mut wants);
            }
        }
        let bytes_per_s = self.rate.bytes_per_s(now);
        let mut asks = Vec::new();
        for part in wants.chunks(WANTS_MAX) {
            self.sequence += 1;
            asks.push(Ask {
                receiver: self.number,
                sequence: self.sequence,
                bytes_per_s,
                wants: part.to_vec(),
            });
        }
        asks
    }

    /// Asks again for items that should have arrived by now.
    fn due_again(&mut self, now: Duration, wants: &mut Vec<Want>) {
        while let Some((at, hash)) = self.due.front().copied() {
            let current = self
                .wanted
                .get(&hash)
                .is_some_and(|wanted| wanted.due == at);
            if current && now < at {
                break;
            }
            self.due.pop_front();
            if current {
                self.stats.asked_again += 1;
                self.ask_for(now, hash, wants);
            }
        }
    }

    fn ask_for(&mut self, now: Duration, hash: Hash, wants: &mut Vec<Want>) {
        let Some(wanted) = self.wanted.get_mut(&hash) else {
            return; // it has arrived, or is no longer wanted
        };
        if wanted.tries > 0 && now < wanted.due {
            return; // it was in both queues
        }
        self.flying += usize::from(wanted.tries == 0);
        wanted.tries += 1;
        wanted.asked.1 = now;
        if wanted.tries == 1 {
            wanted.asked.0 = now;
        }
        wanted.due = now + self.time.ask_again(wanted.tries);
        let at = self.due.partition_point(|(due, _)| *due <= wanted.due);
        self.due.insert(at, (wanted.due, hash));
        let part = self.parts.get(&tag_of(&hash));
        self.stats.asked += 1;
        wants.push(Want {
            kind: wanted.kind,
            hash,
            pieces: part.map_or(u32::MAX, |part| part.missing),
            again: wanted.tries > 1,
            demand: wanted.demand,
        });
    }

    /// Returns when [`Receiver::asks`] has to be called next, if nothing happens before.
    pub fn wake(&self) -> Option<Duration> {
        self.due.front().map(|(at, _)| *at)
    }
}

/// Returns a complete item if its hash begins with the tag.
fn whole(part: Part, tag: &Tag) -> Option<Item> {
    let bytes = match part.encoding {
        Encoding::Raw => part.bytes,
        Encoding::Zstd => decompress_frame(part.kind, &part.bytes, 1).ok()?,
    };
    let hash = chunk_hash(&bytes);
    (tag_of(&hash) == *tag && bytes.len() == part.kind.raw_size()).then_some(Item {
        kind: part.kind,
        hash,
        bytes,
        wanted: false,
    })
}

//! Runs a server and receivers against each other over a bad network in virtual time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use floe_image::datagram::Datagram;
use floe_image::{CHUNK_SIZE, Hash, Kind};
use proptest::prelude::*;

use super::server::pack;
use super::*;

/// xorshift64*: the seed determines a run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n.max(1)
    }

    fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// How many of a thousand datagrams are lost.
    lost: u64,
    doubled: u64,
    /// How many microseconds a datagram may take on top of 100.
    jitter_us: u64,
}

enum Arrival {
    Ask(Vec<u8>),
    Piece(usize, Vec<u8>),
}

struct World {
    now: Duration,
    server: Server,
    receivers: Vec<Receiver>,
    /// What each receiver has.
    has: Vec<HashSet<Hash>>,
    store: HashMap<Hash, Vec<u8>>,
    link: Link,
    random: Random,
    flying: BTreeMap<(Duration, u64), Arrival>,
    number: u64,
}

fn content(n: u64) -> Vec<u8> {
    let mut random = Random(n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..CHUNK_SIZE).map(|_| random.below(256) as u8).collect()
}

impl World {
    fn new(receivers: u64, chunks: u64, link: Link, seed: u64) -> World {
        let chunk = |n| {
            let bytes = content(n);
            (Hash::of(&bytes), bytes)
        };
        World {
            now: Duration::ZERO,
            server: Server::new(1),
            receivers: (0..receivers).map(|n| Receiver::new(n, 0)).collect(),
            has: vec![HashSet::new(); receivers as usize],
            store: (0..chunks).map(chunk).collect(),
            link,
            random: Random(seed | 1),
            flying: BTreeMap::new(),
            number: 0,
        }
    }

    fn post(&mut self, make: impl Fn() -> Arrival) {
        if self.random.permille(self.link.lost) {
            return;
        }
        let copies = 1 + u64::from(self.random.permille(self.link.doubled));
        for _ in 0..copies {
            let us = 100 + self.random.below(self.link.jitter_us + 1);
            self.number += 1;
            let key = (self.now + Duration::from_micros(us), self.number);
            self.flying.insert(key, make());
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Ask(bytes) => {
                let Ok(Datagram::Ask(ask)) = Datagram::decode(&bytes) else {
                    panic!("an ask")
                };
                self.server.asked(self.now, &ask);
            }
            Arrival::Piece(receiver, bytes) => {
                let Ok(Datagram::Piece(piece)) = Datagram::decode(&bytes) else {
                    panic!("a piece")
                };
                if let Some(item) = self.receivers[receiver].piece(self.now, &piece) {
                    assert_eq!(self.store[&item.hash], item.bytes);
                    self.has[receiver].insert(item.hash);
                    // It was kept, so nobody asks for it any more.
                    self.receivers[receiver].forget(&item.hash);
                }
            }
        }
    }

    /// Does everything that can be done now; returns when there is more to do.
    fn step(&mut self) -> Option<Duration> {
        for n in 0..self.receivers.len() {
            for ask in self.receivers[n].asks(self.now) {
                self.post(|| Arrival::Ask(ask.encode()));
            }
        }
        for (kind, hash) in self.server.next_loads(64) {
            let bytes = self.store.get(&hash).map(|bytes| pack(kind, bytes, 1));
            self.server.loaded(&hash, bytes);
        }
        let wake = loop {
            match self.server.next(self.now) {
                Next::Send(datagram) => {
                    for n in 0..self.receivers.len() {
                        self.post(|| Arrival::Piece(n, datagram.clone()));
                    }
                }
                Next::Wait(until) => break until,
            }
        };
        let arrival = self.flying.keys().next().map(|(at, _)| *at);
        let due = self.receivers.iter().filter_map(Receiver::wake);
        due.chain(wake).chain(arrival).min()
    }

    /// Runs until every receiver has everything; returns how long that took.
    fn run(&mut self, most: Duration) -> Duration {
        let all = self.store.len();
        while self.has.iter().any(|has| has.len() < all) {
            let next = self.step().expect("somebody has something to do");
            self.now = self.now.max(next);
            assert!(self.now < most, "{:?}", self.server.stats());
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let arrival = entry.remove();
                self.arrive(arrival);
            }
        }
        self.now
    }

    fn want_all(&mut self) {
        let hashes: Vec<Hash> = (0..self.store.len() as u64)
            .map(|n| Hash::of(&content(n)))
            .collect();
        for receiver in &mut self.receivers {
            for hash in &hashes {
                receiver.want(Kind::Chunk, hash, false);
            }
        }
    }
}

const GOOD: Link = Link {
    lost: 0,
    doubled: 0,
    jitter_us: 0,
};
const HOUR: Duration = Duration::from_secs(3600);

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn everybody_gets_everything_however_bad_the_network(
        receivers in 1u64..9,
        chunks in 1u64..60,
        lost in 0u64..400,
        doubled in 0u64..200,
        jitter_us in 0u64..30_000,
        seed: u64,
    ) {
        let mut world = World::new(receivers, chunks, Link { lost, doubled, jitter_us }, seed);
        world.want_all();
        world.run(HOUR);
        let limit = world.server.stats().limit_bytes_per_s;
        prop_assert!((super::RATE_MIN..=super::RATE_MAX).contains(&limit), "{}", limit);
    }
}

#[test]
fn one_reply_serves_all_siblings() {
    let mut world = World::new(16, 400, GOOD, 1);
    world.want_all();
    world.run(HOUR);
    let stats = world.server.stats();
    assert!(stats.asked >= 16 * 400, "{stats:?}");
    assert_eq!((stats.sent, stats.datagrams), (400, 3 * 400), "{stats:?}");
    assert_eq!(stats.joined + stats.lockstep + 400, stats.asked);
}

#[test]
fn a_sibling_that_comes_later_has_overheard_all_and_asks_for_nothing() {
    let mut world = World::new(2, 50, GOOD, 1);
    let hashes: Vec<Hash> = world.store.keys().copied().collect();
    for hash in &hashes {
        world.receivers[0].want(Kind::Chunk, hash, false);
    }
    world.run(HOUR);
    let stats = world.receivers[1].stats();
    assert_eq!((stats.overheard, stats.asked), (50, 0));
    assert_eq!(world.server.stats().sent, 50);
}

#[test]
fn a_loss_at_one_of_sixteen_costs_the_pieces_that_were_lost() {
    let link = Link {
        lost: 10,
        doubled: 0,
        jitter_us: 100,
    };
    let mut world = World::new(16, 1000, link, 7);
    world.want_all();
    world.run(HOUR);
    let stats = world.server.stats();
    // Of 100 pieces, 15 are lost by some receiver; if whole chunks were sent again it would be 38.
    assert!(stats.datagrams < 3000 * 13 / 10, "{stats:?}");
    assert!(stats.lost > 0);
}

#[test]
fn a_replayed_question_makes_the_server_send_nothing() {
    let mut world = World::new(1, 1, GOOD, 1);
    world.want_all();
    let ask = world.receivers[0].asks(world.now).remove(0);
    let mut sent = 0;
    for second in 0..100 {
        let now = Duration::from_secs(second);
        world.server.asked(now, &ask);
        for (kind, hash) in world.server.next_loads(64) {
            let packed = pack(kind, &world.store[&hash], 1);
            world.server.loaded(&hash, Some(packed));
        }
        while let Next::Send(_) = world.server.next(now) {
            sent += 1;
        }
    }
    assert_eq!((sent, world.server.stats().replayed), (3, 99));
}

#[test]
fn what_the_server_does_not_have_is_not_answered_and_nothing_stays_of_it() {
    let mut world = World::new(1, 0, GOOD, 1);
    world.receivers[0].want(Kind::Chunk, &Hash::of(b"unknown"), true);
    for ms in 0..2000 {
        world.now = Duration::from_millis(ms);
        world.step();
    }
    assert!(world.receivers[0].stats().asked > 3);
    assert_eq!(world.server.stats().datagrams, 0);
    assert_eq!(world.server.next(world.now), Next::Wait(None));
}

#[test]
fn demand_overtakes_what_waits() {
    let mut world = World::new(2, 300, GOOD, 1);
    let hashes: Vec<Hash> = (0..300).map(|n| Hash::of(&content(n))).collect();
    for hash in &hashes[..299] {
        world.receivers[0].want(Kind::Chunk, hash, false);
    }
    let arrive = |world: &mut World| {
        let arrivals: Vec<Arrival> = std::mem::take(&mut world.flying).into_values().collect();
        arrivals
            .into_iter()
            .for_each(|arrival| world.arrive(arrival));
    };
    for _ in 0..2 {
        world.step();
        arrive(&mut world);
    }
    let before = world.has[1].len();
    world.receivers[1].want(Kind::Chunk, &hashes[299], true);
    let mut steps = 0;
    while !world.has[1].contains(&hashes[299]) {
        world.now = world.step().unwrap();
        arrive(&mut world);
        steps += 1;
        assert!(steps < 20);
    }
    assert!(
        world.has[1].len() < before + 150,
        "{} then {}",
        before,
        world.has[1].len()
    );
}

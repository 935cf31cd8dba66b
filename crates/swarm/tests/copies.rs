//! What is copied in the background costs machines next to nothing, and hosts that copy the same image bring it to each other: the policies of
//! a few hosts in virtual time, over links that carry one piece after the other.
use floe_swarm::policy::{Action, Config, Event, PeerId, PieceId, Policy, Purpose};
use floe_swarm::roster::TELL_EVERY_US;
use floe_swarm::seed::SeedQueue;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

const SEED: PeerId = PeerId(9999);
const SEED_NUMBER: usize = 9999;
/// How long a piece takes on a host's link, each way, and on the seed's: 20 and 100 Mbit/s.
const HOST_US: u64 = 26_200;
const SEED_US: u64 = 5_240;
/// How long anything takes from one to the other.
const WAY_US: u64 = 1_000;
const TICK_US: u64 = 50_000;
const PIECES: u32 = 1500;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Tick(usize),
    Told(usize, usize, Vec<PieceId>),
    Asked(usize, usize, PieceId, Purpose),
    Withdrawn(usize, usize, PieceId),
    Refused(usize, usize, PieceId),
    Requested(usize, PieceId),
    /// From, to.
    Sent(usize, usize, PieceId),
    Got(usize, usize, PieceId),
    Access(usize),
}

struct Node {
    policy: Policy,
    requests: SeedQueue,
    up_free_us: u64,
    down_free_us: u64,
    /// What others were not told of, and when they were told last.
    fresh: Vec<PieceId>,
    told_us: u64,
    /// What came, in order.
    got: Vec<PieceId>,
    /// What its machine has yet to access, and whether it stands still for the first of that.
    run: VecDeque<PieceId>,
    waits: bool,
    /// How long the machine goes on between two accesses.
    runs_us: u64,
}

struct World {
    nodes: Vec<Node>,
    now_us: u64,
    queue: BinaryHeap<Reverse<(u64, u64, What)>>,
    number: u64,
    seed_free_us: u64,
    /// How many pieces the seed has sent.
    seeded: usize,
}

fn id(host: usize) -> PeerId {
    PeerId(host as u64)
}

impl World {
    /// Makes hosts that know each other and the seed, and have these pieces.
    fn new(pieces: u32, here: &[Vec<PieceId>]) -> World {
        let mut world = World {
            nodes: Vec::new(),
            now_us: 0,
            queue: BinaryHeap::new(),
            number: 0,
            seed_free_us: 0,
            seeded: 0,
        };
        for (host, here) in here.iter().enumerate() {
            let mut policy = Policy::new(Config::ours(), id(host), pieces, 1);
            here.iter().for_each(|piece| policy.put(*piece));
            world.nodes.push(Node {
                policy,
                requests: SeedQueue::default(),
                up_free_us: 0,
                down_free_us: 0,
                fresh: Vec::new(),
                told_us: 0,
                got: Vec::new(),
                run: VecDeque::new(),
                waits: false,
                runs_us: 0,
            });
        }
        for host in 0..here.len() {
            world.tell(host, Event::Seed(SEED));
            for other in (0..here.len()).filter(|other| *other != host) {
                world.tell(host, Event::Joined(id(other)));
                world.tell(host, Event::Has(id(other), &here[other]));
            }
            // hosts do not act in step
            world.after(host as u64 * 7_000, What::Tick(host));
        }
        world
    }

    fn after(&mut self, us: u64, what: What) {
        self.number += 1;
        self.queue
            .push(Reverse((self.now_us + us, self.number, what)));
    }

    fn tell(&mut self, host: usize, event: Event<'_>) {
        let mut out = Vec::new();
        let policy = &mut self.nodes[host].policy;
        policy.on_event(self.now_us, event, &mut out);
        for action in out {
            self.act(host, action);
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        let to = |peer: PeerId| peer.0 as usize;
        match action {
            Action::Ask(SEED, piece, purpose) => {
                self.nodes[host].requests.ask(piece, purpose);
                self.request(host);
            }
            Action::Cancel(SEED, piece) => self.nodes[host].requests.cancel(piece),
            Action::Ask(peer, piece, purpose) => {
                self.after(WAY_US, What::Asked(to(peer), host, piece, purpose));
            }
            Action::Cancel(peer, piece) => {
                self.after(WAY_US, What::Withdrawn(to(peer), host, piece));
            }
            Action::Refuse(peer, piece) => {
                self.after(WAY_US, What::Refused(to(peer), host, piece));
            }
            Action::Serve(peer, piece, _) => {
                let free_us = &mut self.nodes[host].up_free_us;
                *free_us = self.now_us.max(*free_us) + HOST_US;
                let us = *free_us - self.now_us;
                self.after(us, What::Sent(host, to(peer), piece));
            }
            Action::Drop(..) => panic!("{host}: {action:?}"),
        }
    }

    fn request(&mut self, host: usize) {
        while let Some(piece) = self.nodes[host].requests.begin() {
            self.after(WAY_US, What::Requested(host, piece));
        }
    }

    /// Goes on until that is so.
    fn run(&mut self, done: impl Fn(&World) -> bool) {
        while !done(self) {
            let Reverse((at_us, _, what)) = self.queue.pop().unwrap();
            assert!(at_us < 600_000_000, "it never ends");
            self.now_us = at_us;
            self.happens(what);
        }
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Tick(host) => self.tick(host),
            What::Told(host, of, pieces) => self.tell(host, Event::Has(id(of), &pieces)),
            What::Asked(host, from, piece, purpose) => {
                self.tell(host, Event::Asked(id(from), piece, purpose));
            }
            What::Withdrawn(host, from, piece) => {
                self.tell(host, Event::Withdrawn(id(from), piece));
            }
            What::Refused(host, from, piece) => self.tell(host, Event::Failed(id(from), piece)),
            What::Requested(host, piece) => {
                self.seed_free_us = self.now_us.max(self.seed_free_us) + SEED_US;
                self.seeded += 1;
                let us = self.seed_free_us - self.now_us;
                self.after(us, What::Sent(SEED_NUMBER, host, piece));
            }
            What::Sent(from, to, piece) => {
                if from != SEED_NUMBER {
                    self.tell(from, Event::Served(id(to), piece));
                }
                let free_us = &mut self.nodes[to].down_free_us;
                *free_us = (*free_us + HOST_US).max(self.now_us + WAY_US);
                let us = *free_us - self.now_us;
                self.after(us, What::Got(to, from, piece));
            }
            What::Got(host, from, piece) => self.got(host, from, piece),
            What::Access(host) => self.access(host),
        }
    }

    fn tick(&mut self, host: usize) {
        self.tell(host, Event::Tick);
        self.after(TICK_US, What::Tick(host));
        let node = &mut self.nodes[host];
        if !node.fresh.is_empty() && self.now_us >= node.told_us + TELL_EVERY_US {
            node.told_us = self.now_us;
            let fresh = std::mem::take(&mut node.fresh);
            for other in (0..self.nodes.len()).filter(|other| *other != host) {
                self.after(WAY_US, What::Told(other, host, fresh.clone()));
            }
        }
    }

    fn got(&mut self, host: usize, from: usize, piece: PieceId) {
        let node = &mut self.nodes[host];
        if !node.policy.has(piece) {
            node.fresh.push(piece);
            node.got.push(piece);
        }
        self.tell(host, Event::Arrived(id(from), piece));
        if from == SEED_NUMBER {
            self.nodes[host].requests.done(piece);
            self.request(host);
        }
        let node = &mut self.nodes[host];
        if node.waits && node.run.front() == Some(&piece) {
            node.waits = false;
            self.after(0, What::Access(host));
        }
    }

    fn access(&mut self, host: usize) {
        let node = &mut self.nodes[host];
        let Some(piece) = node.run.front().copied() else {
            return;
        };
        if node.policy.has(piece) {
            node.run.pop_front();
            let runs_us = node.runs_us;
            self.after(runs_us, What::Access(host));
        } else {
            node.waits = true;
            self.tell(host, Event::Miss(piece));
        }
    }

    /// Returns so many pieces that a host has not, in an order that has nothing to do with their numbers.
    fn lacks(&self, host: usize, count: usize) -> Vec<PieceId> {
        let pieces = (0..PIECES).map(|n| n * 7 % PIECES);
        let lacks = pieces.filter(|piece| !self.nodes[host].policy.has(*piece));
        lacks.take(count).collect()
    }

    fn has_all(&self, host: usize, pieces: &[PieceId]) -> bool {
        let policy = &self.nodes[host].policy;
        pieces.iter().all(|piece| policy.has(*piece))
    }
}

/// Makes two hosts that have half of the image each, and before them one that has nothing, or copies all for a while already.
fn beside_two(copies: bool) -> World {
    let half = |of: u32| (0..PIECES).filter(|piece| piece % 2 == of).collect();
    let mut world = World::new(PIECES, &[vec![], half(0), half(1)]);
    if copies {
        world.tell(0, Event::Copies(&all()));
        world.run(|world| world.nodes[0].got.len() == 50);
    }
    world
}

fn all() -> Vec<PieceId> {
    (0..PIECES).collect()
}

#[test]
fn what_is_predicted_comes_as_soon_as_if_nothing_were_copied() {
    let takes_us = |copies: bool, before: &[PieceId]| {
        let mut world = beside_two(copies);
        let predicted = world.lacks(0, 300);
        let since_us = world.now_us;
        world.tell(0, Event::Window(&[before, &predicted].concat(), &[]));
        world.run(|world| world.has_all(0, &predicted));
        let took_us = world.now_us - since_us;
        if copies {
            world.run(|world| world.has_all(0, &all()));
        }
        took_us as f64
    };
    let (alone, beside) = (takes_us(false, &[]), takes_us(true, &[]));
    let behind = takes_us(false, &all());
    assert!(beside < 1.04 * alone, "{beside} instead of {alone} us");
    assert!(behind > 3.0 * alone, "{behind} and {alone} us");
}

#[test]
fn a_machine_that_waits_again_and_again_is_hardly_slower_while_its_host_copies() {
    let takes_us = |copies: bool, runs_us: u64| {
        let mut world = beside_two(copies);
        let run = world.lacks(0, 400);
        let since_us = world.now_us;
        let predicted: Vec<PieceId> = run.iter().copied().step_by(2).collect();
        world.tell(0, Event::Window(&predicted, &[]));
        (world.nodes[0].run, world.nodes[0].runs_us) = (run.into(), runs_us);
        world.after(0, What::Access(0));
        world.run(|world| world.nodes[0].run.is_empty());
        (world.now_us - since_us) as f64
    };
    for runs_us in [10_000, 50_000, 200_000] {
        let (alone, beside) = (takes_us(false, runs_us), takes_us(true, runs_us));
        assert!(beside < 1.1 * alone, "{beside} instead of {alone} us");
    }
}

#[test]
fn hosts_that_copy_the_same_image_bring_different_pieces_and_exchange_them() {
    let copy = |in_order: bool| {
        let mut world = World::new(PIECES, &[vec![], vec![]]);
        let all = all();
        for host in 0..2 {
            world.tell(
                host,
                match in_order {
                    true => Event::Window(&all, &[]),
                    false => Event::Copies(&all),
                },
            );
        }
        let quarter = all.len() / 4;
        world.run(|world| world.nodes.iter().all(|node| node.got.len() >= quarter));
        let [one, other] = [0, 1].map(|host| {
            let first = world.nodes[host].got[..quarter].iter();
            first.copied().collect::<BTreeSet<PieceId>>()
        });
        let same = one.intersection(&other).count();
        world.run(|world| (0..2).all(|host| world.has_all(host, &all)));
        (same, world.seeded, world.now_us)
    };
    let (same, seeded, took_us) = copy(false);
    let in_order = copy(true);
    // some are exchanged already, while the seed has enough to do
    assert!(same * 3 < in_order.0 * 2, "{same} and {in_order:?}");
    let most = PIECES as usize * 102 / 100;
    assert!(seeded <= most, "{seeded} of {PIECES} and {in_order:?}");
    assert!(
        took_us * 100 < in_order.2 * 102,
        "{took_us} and {in_order:?}"
    );
}

/// A host that knows the seed and others.
fn host(others: u64) -> Policy {
    let mut policy = Policy::new(Config::ours(), id(0), 200, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    (1..=others).for_each(|peer| policy.on_event(0, Event::Joined(PeerId(peer)), &mut out));
    assert_eq!(out, []);
    policy
}

#[test]
fn the_rarest_pieces_are_copied_first_and_who_copies_alike_begins_with_others() {
    let order = |chance: u64| {
        let mut policy = Policy::new(Config::ours(), id(0), 200, chance);
        let mut out = Vec::new();
        policy.on_event(0, Event::Seed(SEED), &mut out);
        for (peer, pieces) in [(1, 60), (2, 30)] {
            let has: Vec<PieceId> = (0..pieces).collect();
            policy.on_event(0, Event::Joined(PeerId(peer)), &mut out);
            policy.on_event(0, Event::Has(PeerId(peer), &has), &mut out);
        }
        let copied: Vec<PieceId> = (0..90).collect();
        policy.on_event(0, Event::Copies(&copied), &mut out);
        assert_eq!(policy.rarest(&[0..30, 30..60, 60..90]), Some(2));
        let mut order = Vec::new();
        while let Some(Action::Ask(peer, piece, Purpose::Copy)) = out.first().copied() {
            out.remove(0);
            order.push(piece);
            policy.on_event(0, Event::Arrived(peer, piece), &mut out);
        }
        assert_eq!((order.len(), policy.fetches()), (90, None));
        order
    };
    let orders = [order(1), order(2)];
    for order in &orders {
        // nobody has the first ones; some are asked for at the same time
        for (of, third) in order.chunks(30).enumerate() {
            let late = third.iter().filter(|piece| **piece as usize / 30 + of != 2);
            assert!(late.count() < 5, "{order:?}");
        }
    }
    assert_ne!(orders[0][..10], orders[1][..10]);
}

#[test]
fn a_copy_that_is_predicted_or_waited_for_is_hurried() {
    let (mut policy, mut out) = (host(0), Vec::new());
    policy.on_event(0, Event::Copies(&[3, 4, 4, 999]), &mut out);
    out.sort_unstable_by_key(|action| format!("{action:?}"));
    let ask = |piece, purpose| Action::Ask(SEED, piece, purpose);
    assert_eq!(out, [ask(3, Purpose::Copy), ask(4, Purpose::Copy)]);
    assert_eq!(policy.fetches(), Some(Purpose::Copy));
    out.clear();
    policy.on_event(1, Event::Window(&[4], &[]), &mut out);
    policy.on_event(2, Event::Miss(3), &mut out);
    policy.on_event(3, Event::Miss(4), &mut out);
    let hurried = [
        ask(4, Purpose::Prefetch),
        ask(3, Purpose::Demand),
        ask(4, Purpose::Demand),
    ];
    assert_eq!((out, policy.fetches()), (hurried.to_vec(), None));
}

#[test]
fn what_is_not_copied_any_more_is_not_asked_for_and_what_fails_is_asked_for_again() {
    let (mut policy, mut out) = (host(0), Vec::new());
    policy.set_sharers(1, 0);
    policy.on_event(0, Event::Copies(&[3, 4, 5]), &mut out);
    let [Action::Ask(SEED, piece, Purpose::Copy)] = out[..] else {
        panic!("{out:?}");
    };
    out.clear();
    policy.on_event(1, Event::Copies(&[piece]), &mut out);
    policy.on_event(1, Event::Failed(SEED, piece), &mut out);
    assert_eq!(out, []);
    policy.on_event(200_000, Event::Tick, &mut out);
    assert_eq!(out, [Action::Ask(SEED, piece, Purpose::Copy)]);
    policy.on_event(200_001, Event::Arrived(SEED, piece), &mut out);
    policy.lose(piece);
    policy.on_event(400_000, Event::Tick, &mut out);
    assert_eq!(out.len(), 1, "it was copied once: {out:?}");
}

#[test]
fn a_host_that_is_asked_gives_copies_last_but_in_time_and_brings_none_for_others() {
    let (mut policy, mut out) = (host(2), Vec::new());
    for piece in 100..200 {
        policy.on_event(0, Event::Asked(id(1), piece, Purpose::Copy), &mut out);
        assert_eq!(out.pop(), Some(Action::Refuse(id(1), piece)));
    }
    (0..100).for_each(|piece| policy.put(piece));
    let mut ask = |from: usize, piece, purpose| {
        policy.on_event(0, Event::Asked(id(from), piece, purpose), &mut out);
    };
    (0..4).for_each(|piece| ask(1, piece, Purpose::Prefetch));
    (90..92).for_each(|piece| ask(1, piece, Purpose::Copy));
    (10..30).for_each(|piece| ask(1, piece, Purpose::Prefetch));
    (30..60).for_each(|piece| ask(2, piece, Purpose::Demand));
    let mut order = Vec::new();
    while let Some(Action::Serve(peer, piece, _)) = out.first().copied() {
        out.remove(0);
        order.push(piece);
        policy.on_event(0, Event::Served(peer, piece), &mut out);
    }
    let prefetch = (10..30).collect::<Vec<PieceId>>();
    let demand = (30..60).collect::<Vec<PieceId>>();
    let (early, late) = prefetch.split_at(2);
    let rest = [&[0, 1, 2, 3][..], &demand, early, &[90], late, &[91]];
    assert_eq!(order, rest.concat());
}

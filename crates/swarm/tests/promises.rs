//! What the policy promises, as properties of random events, and of swarms with hostile hosts.

use floe_swarm::policy::{Action, Config, Event, PeerId, PieceId, Policy, Purpose};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const PIECES: u32 = 200;
const ME: PeerId = PeerId(0);
const SEED: PeerId = PeerId(9999);

/// An event whose lists are owned.
#[derive(Clone, Debug)]
enum Happens {
    Joined(u64),
    Left(u64),
    Has(u64, Vec<PieceId>),
    Lacks(u64, Vec<PieceId>),
    /// One of the open questions is answered so.
    Answer(usize, u8),
    /// An answer that nobody asked for.
    Stray(u64, PieceId, u8),
    Miss(PieceId),
    Window(Vec<PieceId>),
    Copies(Vec<PieceId>),
    Asked(u64, PieceId, Purpose),
    Withdrawn(u64, PieceId),
    /// One of the pieces that are being sent is through.
    Served(usize),
    Tick(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let peer = 1..12u64;
    // some are none of the image's
    let piece = 0..PIECES + 8;
    let pieces = || prop::collection::vec(0..PIECES + 8, 0..40);
    let purpose = prop_oneof![
        Just(Purpose::Copy),
        Just(Purpose::Prefetch),
        Just(Purpose::Demand)
    ];
    prop_oneof![
        2 => peer.clone().prop_map(Happens::Joined),
        1 => peer.clone().prop_map(Happens::Left),
        3 => (peer.clone(), pieces()).prop_map(|(peer, list)| Happens::Has(peer, list)),
        1 => (peer.clone(), pieces()).prop_map(|(peer, list)| Happens::Lacks(peer, list)),
        8 => (any::<usize>(), 0..10u8).prop_map(|(at, how)| Happens::Answer(at, how)),
        1 => (peer.clone(), piece.clone(), 0..3u8).prop_map(|(p, x, how)| Happens::Stray(p, x, how)),
        4 => piece.clone().prop_map(Happens::Miss),
        1 => pieces().prop_map(Happens::Window),
        1 => pieces().prop_map(Happens::Copies),
        6 => (peer.clone(), piece.clone(), purpose).prop_map(|(p, x, why)| Happens::Asked(p, x, why)),
        1 => (peer, piece).prop_map(|(p, x)| Happens::Withdrawn(p, x)),
        4 => any::<usize>().prop_map(Happens::Served),
        4 => (1..400_000u64).prop_map(Happens::Tick),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    prop_oneof![
        Just(Config::ours()),
        Just(Config::p2p_p()),
        Just(Config::p2p_p_first()),
        Just(Config::ours().of_pieces(16 << 10)),
        Just(Config::p2p_d()),
        Just(Config::cs_p()),
        Just(Config::cs_d()),
    ]
}

/// Knows what a policy may do next.
struct Watch {
    policy: Policy,
    config: Config,
    now_us: u64,
    /// Whom it asked for what, and why.
    open: BTreeMap<(PieceId, PeerId), Purpose>,
    sending: BTreeSet<(PeerId, PieceId)>,
    here: BTreeSet<PieceId>,
    members: BTreeSet<PeerId>,
    log: Vec<Action>,
}

impl Watch {
    fn new(config: Config) -> Watch {
        let mut watch = Watch {
            policy: Policy::new(config, ME, PIECES, 7),
            config,
            now_us: 0,
            open: BTreeMap::new(),
            sending: BTreeSet::new(),
            here: BTreeSet::new(),
            members: BTreeSet::from([SEED]),
            log: Vec::new(),
        };
        watch.tell(Event::Seed(SEED));
        watch
    }

    fn tell(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.policy.on_event(self.now_us, event, &mut out);
        for action in &out {
            self.check(*action);
        }
        self.log.extend(out);
    }

    fn check(&mut self, action: Action) {
        match action {
            Action::Ask(peer, piece, purpose) => {
                assert!(piece < PIECES && !self.here.contains(&piece), "{action:?}");
                assert!(peer == SEED || self.config.peers && self.members.contains(&peer));
                let before = self.open.insert((piece, peer), purpose);
                let raised = before.is_some_and(|before| before < purpose);
                assert!(before.is_none() || raised, "{action:?} was asked before");
                let others = self
                    .open
                    .range((piece, PeerId(0))..=(piece, PeerId(u64::MAX)));
                let others = others.count();
                let pieces: BTreeSet<PieceId> = self.open.keys().map(|(piece, _)| *piece).collect();
                let end_game = others == 2 && pieces.len() <= self.config.end_game_pieces;
                // no new question is a second one but at the end game; what rises is none, whenever it does
                assert!(
                    others == 1 || end_game || raised && others == 2,
                    "{action:?}: {:?}",
                    self.open
                );
            }
            Action::Cancel(peer, piece) => {
                assert!(self.open.remove(&(piece, peer)).is_some(), "{action:?}");
            }
            Action::Serve(peer, piece, purpose) => {
                assert!(self.here.contains(&piece), "{action:?}");
                let is_new = self.sending.insert((peer, piece));
                assert!(is_new, "{action:?} is sent twice");
                // a demand has a place that nothing else takes
                let most = self.config.uploads_max + usize::from(purpose == Purpose::Demand);
                assert!(self.sending.len() <= most, "{action:?}");
            }
            Action::Refuse(..) => {}
            Action::Drop(peer, _) => {
                assert_ne!(peer, SEED);
                self.gone(peer);
            }
        }
    }

    fn gone(&mut self, peer: PeerId) {
        self.members.remove(&peer);
        self.open.retain(|(_, of), _| *of != peer);
        self.sending.retain(|(of, _)| *of != peer);
    }

    fn happens(&mut self, what: &Happens) {
        match what {
            Happens::Joined(peer) => {
                self.members.insert(PeerId(*peer));
                self.tell(Event::Joined(PeerId(*peer)));
            }
            Happens::Left(peer) => {
                self.gone(PeerId(*peer));
                self.tell(Event::Left(PeerId(*peer)));
            }
            Happens::Has(peer, list) => self.tell(Event::Has(PeerId(*peer), list)),
            Happens::Lacks(peer, list) => self.tell(Event::Lacks(PeerId(*peer), list)),
            Happens::Answer(at, how) => {
                let open: Vec<_> = self.open.keys().copied().collect();
                let Some((piece, peer)) = open.get(at % open.len().max(1)).copied() else {
                    return;
                };
                self.open.remove(&(piece, peer));
                match how {
                    0 => self.tell(Event::Failed(peer, piece)),
                    1 => self.tell(Event::Wrong(peer, piece)),
                    _ => {
                        self.here.insert(piece);
                        self.tell(Event::Arrived(peer, piece));
                    }
                }
            }
            Happens::Stray(peer, piece, how) => {
                let peer = PeerId(*peer);
                if self.open.contains_key(&(*piece, peer)) {
                    return;
                }
                match how {
                    0 => self.tell(Event::Failed(peer, *piece)),
                    1 => self.tell(Event::Served(peer, *piece)),
                    _ => self.tell(Event::Withdrawn(peer, *piece)),
                }
                self.sending.remove(&(peer, *piece));
            }
            Happens::Miss(piece) => self.tell(Event::Miss(*piece)),
            Happens::Window(list) => self.tell(Event::Window(list, list)),
            Happens::Copies(list) => self.tell(Event::Copies(list)),
            Happens::Asked(peer, piece, purpose) => {
                self.tell(Event::Asked(PeerId(*peer), *piece, *purpose));
            }
            Happens::Withdrawn(peer, piece) => self.tell(Event::Withdrawn(PeerId(*peer), *piece)),
            Happens::Served(at) => {
                let sending: Vec<_> = self.sending.iter().copied().collect();
                if let Some((peer, piece)) = sending.get(at % sending.len().max(1)).copied() {
                    self.sending.remove(&(peer, piece));
                    self.tell(Event::Served(peer, piece));
                }
            }
            Happens::Tick(us) => {
                self.now_us += us;
                self.tell(Event::Tick);
            }
        }
        // what others asked is bounded by what each of them may
        let most = 12 * self.config.waiting_per_peer_max;
        assert!(
            self.policy.held() <= 8 * most + 256,
            "{}",
            self.policy.held()
        );
        assert_eq!(self.policy.asked(), self.open.len());
    }
}

proptest! {
    #[test]
    fn whatever_happens_no_promise_is_broken(
        config in config(),
        all in prop::collection::vec(happens(), 1..400),
    ) {
        let (mut one, mut same) = (Watch::new(config), Watch::new(config));
        for what in &all {
            one.happens(what);
            same.happens(what);
        }
        prop_assert_eq!(one.log, same.log, "equal events give equal actions");
    }

    #[test]
    fn every_demand_ends_among_hostile_hosts(
        config in config(),
        hosts in prop::collection::vec(0..6u8, 0..10),
        wanted in prop::collection::btree_set(0..PIECES, 1..40),
        chance in any::<u64>(),
    ) {
        let arrived = among(config, &hosts, &wanted, Purpose::Demand, chance);
        prop_assert_eq!(arrived, wanted);
    }

    #[test]
    fn every_copy_ends_among_hostile_hosts(
        hosts in prop::collection::vec(0..6u8, 0..10),
        wanted in prop::collection::btree_set(0..PIECES, 1..40),
        chance in any::<u64>(),
    ) {
        let arrived = among(Config::ours(), &hosts, &wanted, Purpose::Copy, chance);
        prop_assert_eq!(arrived, wanted);
    }
}

/// Lets a host copy pieces, or demand them one after the other as a machine does, among hosts that claim to have everything and are: honest
/// (0), silent (1), refusing (2), wrong (3), gone after five answers (4), a hundred times slower (5). Returns what has arrived in ten minutes.
fn among(
    config: Config,
    hosts: &[u8],
    wanted: &BTreeSet<PieceId>,
    purpose: Purpose,
    chance: u64,
) -> BTreeSet<PieceId> {
    let mut policy = Policy::new(config, ME, PIECES, chance);
    let everything: Vec<PieceId> = (0..PIECES).collect();
    let mut answers = vec![0; hosts.len()];
    // by time: answers on their way
    let mut coming: BTreeMap<(u64, u64), (PeerId, PieceId, u8)> = BTreeMap::new();
    let (mut now_us, mut number, mut out) = (0, 0u64, Vec::new());
    policy.on_event(0, Event::Seed(SEED), &mut out);
    for host in 0..hosts.len() as u64 {
        policy.on_event(0, Event::Joined(PeerId(host + 1)), &mut out);
        policy.on_event(0, Event::Has(PeerId(host + 1), &everything), &mut out);
    }
    let mut left: Vec<PieceId> = wanted.iter().copied().collect();
    match purpose {
        Purpose::Copy => policy.on_event(0, Event::Copies(&std::mem::take(&mut left)), &mut out),
        _ => policy.on_event(0, Event::Window(&everything, &[]), &mut out),
    }
    let (mut waits, mut arrived) = (None, BTreeSet::new());
    while now_us < 600_000_000 && arrived.len() < wanted.len() {
        while waits.is_none() {
            let Some(piece) = left.pop() else { break };
            if policy.has(piece) {
                arrived.insert(piece);
            } else {
                waits = Some(piece);
                policy.on_event(now_us, Event::Miss(piece), &mut out);
            }
        }
        for action in std::mem::take(&mut out) {
            match action {
                Action::Ask(peer, piece, _) => {
                    let how = match peer.0 {
                        9999 => 0,
                        n => hosts[n as usize - 1],
                    };
                    let after_us = if how == 5 { 800_000 } else { 8_000 };
                    number += 1;
                    coming.insert((now_us + after_us, number), (peer, piece, how));
                }
                Action::Cancel(peer, piece) => {
                    coming.retain(|_, (of, other, _)| *of != peer || *other != piece);
                }
                Action::Drop(peer, _) => coming.retain(|_, (of, _, _)| *of != peer),
                Action::Serve(..) | Action::Refuse(..) => {}
            }
        }
        let next_us = coming.keys().next().map_or(u64::MAX, |key| key.0);
        if next_us > now_us + 50_000 {
            now_us += 50_000;
            policy.on_event(now_us, Event::Tick, &mut out);
            continue;
        }
        now_us = next_us;
        let Some((_, (peer, piece, how))) = coming.pop_first() else {
            continue;
        };
        match how {
            1 => {}
            2 => policy.on_event(now_us, Event::Failed(peer, piece), &mut out),
            3 => policy.on_event(now_us, Event::Wrong(peer, piece), &mut out),
            4 if answers[peer.0 as usize - 1] == 5 => {
                policy.on_event(now_us, Event::Left(peer), &mut out);
                coming.retain(|_, (of, _, _)| *of != peer);
            }
            _ => {
                if how == 4 {
                    answers[peer.0 as usize - 1] += 1;
                }
                policy.on_event(now_us, Event::Arrived(peer, piece), &mut out);
                if waits == Some(piece) || purpose == Purpose::Copy {
                    waits = None;
                    arrived.insert(piece);
                }
            }
        }
    }
    arrived
}

/// Counts what is asked of whom.
fn asked(out: &[Action]) -> HashMap<PeerId, Vec<(PieceId, Purpose)>> {
    let mut all: HashMap<PeerId, Vec<_>> = HashMap::new();
    for action in out {
        if let Action::Ask(peer, piece, purpose) = action {
            all.entry(*peer).or_default().push((*piece, *purpose));
        }
    }
    all
}

#[test]
fn all_hosts_think_the_same_host_a_pieces_warden() {
    let hosts: Vec<PeerId> = (1..=20).map(PeerId).collect();
    let mut duties: BTreeMap<PieceId, Vec<PeerId>> = BTreeMap::new();
    let window: Vec<PieceId> = (0..32).collect();
    for me in &hosts {
        let mut policy = Policy::new(Config::ours(), *me, PIECES, 1);
        let mut out = Vec::new();
        policy.on_event(0, Event::Seed(SEED), &mut out);
        for other in &hosts {
            policy.on_event(0, Event::Joined(*other), &mut out);
        }
        policy.on_event(0, Event::Window(&window, &[]), &mut out);
        policy.on_event(1, Event::Tick, &mut out);
        for (piece, _) in asked(&out).remove(&SEED).unwrap_or_default() {
            duties.entry(piece).or_default().push(*me);
        }
    }
    assert!(
        duties.values().all(|by| by.len() == 1),
        "each leaves the seed once: {duties:?}"
    );
    assert!(duties.len() > 20, "{duties:?}");
}

#[test]
fn a_warden_holds_a_question_and_serves_it_on_arrival() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    // alone on the ring of those it knows but two that ask: look for a piece that is its duty
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    policy.on_event(0, Event::Joined(PeerId(2)), &mut out);
    let asks = |policy: &mut Policy, peer, piece, purpose| {
        let mut out = Vec::new();
        policy.on_event(1, Event::Asked(PeerId(peer), piece, purpose), &mut out);
        out
    };
    let mine = (0..PIECES).find(|piece| {
        let out = asks(&mut policy, 1, *piece, Purpose::Prefetch);
        out == [Action::Ask(SEED, *piece, Purpose::Prefetch)]
    });
    let mine = mine.expect("one of 200 pieces is its duty");
    assert_eq!(
        asks(&mut policy, 2, mine, Purpose::Demand),
        [Action::Ask(SEED, mine, Purpose::Demand)],
        "somebody waits for it now"
    );
    let mut out = Vec::new();
    policy.on_event(9, Event::Arrived(SEED, mine), &mut out);
    assert_eq!(
        out,
        [
            Action::Serve(PeerId(2), mine, Purpose::Demand),
            Action::Serve(PeerId(1), mine, Purpose::Prefetch)
        ],
        "the demand first, though it came later"
    );
}

#[test]
fn a_demand_waits_for_no_prefetch_of_those_that_a_host_sends() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let mut out = Vec::new();
    (0..10).for_each(|piece| policy.put(piece));
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    for piece in 0..9 {
        policy.on_event(
            0,
            Event::Asked(PeerId(1), piece, Purpose::Prefetch),
            &mut out,
        );
    }
    policy.on_event(0, Event::Asked(PeerId(1), 8, Purpose::Demand), &mut out);
    policy.on_event(0, Event::Asked(PeerId(1), 9, Purpose::Demand), &mut out);
    let (begun, mut order) = (out.len(), Vec::new());
    while let Some(Action::Serve(peer, piece, _)) = out.first().copied() {
        out.remove(0);
        order.push(piece);
        policy.on_event(0, Event::Served(peer, piece), &mut out);
    }
    let ahead = Config::ours().uploads_max;
    assert_eq!(begun, ahead + 1, "a demand beside the prefetches");
    assert_eq!(order, [0, 1, 2, 3, 8, 9, 4, 5, 6, 7]);
}

#[test]
fn a_host_that_floods_is_dropped_and_others_are_served() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let mut out = Vec::new();
    (0..PIECES).for_each(|piece| policy.put(piece));
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    policy.on_event(0, Event::Joined(PeerId(2)), &mut out);
    for n in 0..10_000 {
        policy.on_event(
            n,
            Event::Asked(PeerId(1), n as u32 % PIECES, Purpose::Demand),
            &mut out,
        );
    }
    let dropped = |action: &Action| matches!(action, Action::Drop(PeerId(1), _));
    assert_eq!(out.iter().filter(|action| dropped(action)).count(), 1);
    assert_eq!(policy.held(), 0, "nothing of it is left");
    out.clear();
    policy.on_event(
        10_000,
        Event::Asked(PeerId(2), 5, Purpose::Prefetch),
        &mut out,
    );
    assert_eq!(out, [Action::Serve(PeerId(2), 5, Purpose::Prefetch)]);
}

#[test]
fn under_a_shared_cap_what_is_granted_is_sent_demands_first_and_no_more() {
    let config = Config::ours();
    let mut policy = Policy::new(config, ME, PIECES, 1);
    let mut out = Vec::new();
    (0..PIECES).for_each(|piece| policy.put(piece));
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    policy.set_shared_cap(true);
    let ask = |piece, purpose| Event::Asked(PeerId(1), piece, purpose);
    for piece in 0..3 {
        policy.on_event(0, ask(piece, Purpose::Prefetch), &mut out);
    }
    policy.on_event(0, ask(9, Purpose::Demand), &mut out);
    // one that is taken back and asked anew is one
    policy.on_event(0, Event::Withdrawn(PeerId(1), 9), &mut out);
    policy.on_event(0, ask(9, Purpose::Demand), &mut out);
    assert_eq!((&out[..], policy.sendable()), (&[][..], 4));
    policy.on_event(1, Event::Granted(2), &mut out);
    let serve = |piece, purpose| Action::Serve(PeerId(1), piece, purpose);
    assert_eq!(
        out,
        [serve(9, Purpose::Demand), serve(0, Purpose::Prefetch)]
    );
    assert_eq!(policy.sendable(), 2);
    // what is granted and not used is void
    out.clear();
    policy.on_event(2, Event::Granted(100), &mut out);
    assert_eq!((out.len(), policy.sendable()), (2, 0));
    out.clear();
    (0..3).for_each(|piece| policy.on_event(3, Event::Served(PeerId(1), piece), &mut out));
    policy.on_event(3, ask(20, Purpose::Demand), &mut out);
    assert_eq!((&out[..], policy.sendable()), (&[][..], 1));
    policy.set_shared_cap(false);
    policy.on_event(4, Event::Tick, &mut out);
    assert_eq!(out, [serve(20, Purpose::Demand)]);
}

#[test]
fn wrong_bytes_cost_a_host_its_place_and_the_piece_comes_from_another() {
    let mut policy = Policy::new(Config::p2p_d(), ME, PIECES, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    policy.on_event(0, Event::Has(PeerId(1), &[3, 4]), &mut out);
    policy.on_event(0, Event::Miss(3), &mut out);
    assert_eq!(
        out,
        [Action::Ask(PeerId(1), 3, Purpose::Demand)],
        "a host before the seed"
    );
    out.clear();
    policy.on_event(9, Event::Wrong(PeerId(1), 3), &mut out);
    assert!(matches!(out[0], Action::Drop(PeerId(1), _)));
    assert_eq!(out[1], Action::Ask(SEED, 3, Purpose::Demand));
    out.clear();
    policy.on_event(10, Event::Miss(4), &mut out);
    assert_eq!(
        out,
        [Action::Ask(SEED, 4, Purpose::Demand)],
        "it is not believed again"
    );
}

#[test]
fn a_seed_that_sends_wrong_bytes_is_left_alone_longer_and_longer_and_another_is_asked() {
    let config = Config::ours();
    let mut policy = Policy::new(config, ME, PIECES, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    policy.on_event(0, Event::Miss(3), &mut out);
    let (mut now_us, mut pauses) = (0, Vec::new());
    for _ in 0..12 {
        assert_eq!(out, [Action::Ask(SEED, 3, Purpose::Demand)]);
        out.clear();
        let since_us = now_us;
        policy.on_event(now_us, Event::Wrong(SEED, 3), &mut out);
        while out.is_empty() {
            now_us += 50_000;
            policy.on_event(now_us, Event::Tick, &mut out);
        }
        pauses.push(now_us - since_us);
    }
    let doubled = pauses.windows(2).all(|pair| pair[1] >= pair[0]);
    assert!(doubled && pauses[0] <= 2 * config.refused_us, "{pauses:?}");
    assert!((60_000_000..61_000_000).contains(&pauses[11]), "{pauses:?}");
    // another one is asked meanwhile, and so it is where one fails
    let other = PeerId(9998);
    policy.on_event(now_us, Event::Seed(other), &mut out);
    out.clear();
    policy.on_event(now_us, Event::Wrong(SEED, 3), &mut out);
    assert_eq!(out, [Action::Ask(other, 3, Purpose::Demand)]);
    policy.on_event(now_us, Event::Arrived(other, 3), &mut out);
    now_us += 120_000_000;
    policy.on_event(now_us, Event::Miss(4), &mut out);
    out.clear();
    policy.on_event(now_us, Event::Failed(SEED, 4), &mut out);
    assert_eq!(out, [Action::Ask(other, 4, Purpose::Demand)]);
    // what is right makes good for what was wrong
    policy.on_event(now_us, Event::Arrived(other, 4), &mut out);
    now_us += config.refused_us;
    policy.on_event(now_us, Event::Miss(5), &mut out);
    policy.on_event(now_us, Event::Arrived(SEED, 5), &mut out);
    policy.on_event(now_us, Event::Left(other), &mut out);
    policy.on_event(now_us, Event::Miss(6), &mut out);
    policy.on_event(now_us, Event::Wrong(SEED, 6), &mut out);
    out.clear();
    policy.on_event(now_us + 2 * config.refused_us, Event::Tick, &mut out);
    assert_eq!(out, [Action::Ask(SEED, 6, Purpose::Demand)]);
}

#[test]
fn the_window_grows_with_the_swarm_and_shrinks_where_nothing_is_predicted() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let mut out = Vec::new();
    let alone = policy.window();
    (1..1000).for_each(|peer| policy.on_event(0, Event::Joined(PeerId(peer)), &mut out));
    let many = policy.window();
    assert!(many > 4 * alone, "{alone} and {many}");
    // nothing is predicted, so each miss is a surprise
    policy.on_event(0, Event::Seed(SEED), &mut out);
    for piece in 0..100 {
        policy.on_event(0, Event::Miss(piece), &mut out);
        policy.on_event(0, Event::Arrived(SEED, piece), &mut out);
    }
    assert!(policy.window() < many / 2, "{}", policy.window());
}

#[test]
fn the_window_is_in_order_where_the_link_just_suffices() {
    let (config, pieces) = (Config::ours(), 2000);
    let mut policy = Policy::new(config, ME, pieces, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    (1..200).for_each(|peer| policy.on_event(0, Event::Joined(PeerId(peer)), &mut out));
    let all: Vec<PieceId> = (0..pieces).collect();
    policy.on_event(0, Event::Window(&all, &[]), &mut out);
    let many = policy.window();
    assert!(many > config.window_min);
    // 20 pieces come in a second
    let mut now_us = 0;
    for piece in 0..100 {
        now_us += 50_000;
        out.clear();
        policy.on_event(now_us, Event::Miss(piece), &mut out);
        let asked = out.iter().find_map(|action| match action {
            Action::Ask(peer, of, Purpose::Demand) if *of == piece => Some(*peer),
            _ => None,
        });
        policy.on_event(now_us, Event::Arrived(asked.unwrap(), piece), &mut out);
    }
    let mut window = |each_ms: u32| {
        let due_ms: Vec<u32> = (1..=pieces).map(|number| number * each_ms).collect();
        policy.on_event(now_us, Event::Window(&all, &due_ms), &mut out);
        policy.on_event(now_us, Event::Tick, &mut out);
        policy.window()
    };
    assert_eq!(window(10), many, "far too many are due");
    assert_eq!(window(55), config.window_min, "18 in a second");
    assert_eq!(window(500), many, "any order will do");
    policy.on_event(now_us, Event::Window(&all, &[]), &mut out);
    policy.on_event(now_us, Event::Tick, &mut out);
    assert_eq!(policy.window(), many, "nobody knows");
}

#[test]
fn a_piece_that_is_lost_is_asked_for_again_where_it_is_wanted() {
    let mut policy = Policy::new(Config::p2p_p(), ME, PIECES, 1);
    let mut out = Vec::new();
    [3, 4].into_iter().for_each(|piece| policy.put(piece));
    policy.on_event(0, Event::Seed(SEED), &mut out);
    policy.on_event(0, Event::Window(&[3], &[]), &mut out);
    [3, 4, 9].into_iter().for_each(|piece| policy.lose(piece));
    assert!(out.is_empty() && !policy.has(3) && !policy.has(4));
    policy.on_event(1, Event::Tick, &mut out);
    assert_eq!(out, [Action::Ask(SEED, 3, Purpose::Prefetch)]);
    out.clear();
    policy.on_event(2, Event::Miss(4), &mut out);
    assert_eq!(out, [Action::Ask(SEED, 4, Purpose::Demand)]);
}

#[test]
fn nothing_is_asked_ahead_while_a_machine_catches_up_if_the_policy_is_so() {
    let window: Vec<PieceId> = (0..50).collect();
    let prefetches = |config: Config, at_us: u64| {
        let mut policy = Policy::new(config, ME, PIECES, 1);
        let mut out = Vec::new();
        policy.on_event(0, Event::Seed(SEED), &mut out);
        policy.on_event(1_000, Event::Miss(150), &mut out);
        policy.on_event(2_000, Event::Window(&window, &[]), &mut out);
        if at_us > 5_000 {
            policy.on_event(5_000, Event::Arrived(SEED, 150), &mut out);
            policy.on_event(at_us, Event::Tick, &mut out);
        }
        let ahead = |action: &&Action| matches!(action, Action::Ask(_, _, Purpose::Prefetch));
        out.iter().filter(ahead).count()
    };
    // it waits for 4 ms, and must go on for as long
    let quiet = Config::p2p_p();
    assert_eq!((prefetches(quiet, 0), prefetches(quiet, 8_999)), (0, 0));
    assert!(prefetches(quiet, 9_000) > 0);
    assert!(prefetches(Config::p2p_p_first(), 0) > 0);
    assert!(prefetches(Config::ours(), 0) > 0);
}

#[test]
fn smaller_pieces_are_as_many_bytes_ahead() {
    for config in [Config::ours(), Config::p2p_p()] {
        let small = config.of_pieces(16 << 10);
        let bytes = |config: &Config, pieces: usize| pieces as u64 * config.piece_bytes;
        assert_eq!(
            bytes(&small, small.window_max),
            bytes(&config, config.window_max)
        );
        assert_eq!(
            bytes(&small, small.prefetch_max),
            bytes(&config, config.prefetch_max)
        );
        assert_eq!(small.of_pieces(config.piece_bytes), config);
    }
}

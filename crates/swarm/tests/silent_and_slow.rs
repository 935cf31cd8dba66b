//! What the policy does with hosts that are silent or slow, and with a seed that refuses; and how fast it finds that pieces come.
use floe_swarm::policy::{Action, Config, Event, Fault, PLACES, PeerId, PieceId, Policy, Purpose};
use std::collections::{BTreeMap, VecDeque};

const PIECES: u32 = 200;
const ME: PeerId = PeerId(0);
const SEED: PeerId = PeerId(9999);

#[test]
fn a_host_that_is_silent_is_dropped_or_passed_over() {
    let (of_silent, dropped) = ask_a_silent_host(2);
    assert!(dropped && of_silent > 1, "it had {of_silent} chances");
    // among others who answer it is not worth while to wait until it may be dropped
    let (of_silent, dropped) = ask_a_silent_host(4);
    assert!(
        !dropped && of_silent < 8,
        "it was asked {of_silent} times for {PIECES} pieces"
    );
}

/// Asks for all pieces, one after the other, among so many hosts of which the first is silent. Returns how often that was asked, and whether
/// it was dropped.
fn ask_a_silent_host(hosts: u64) -> (u32, bool) {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let everything: Vec<PieceId> = (0..PIECES).collect();
    let mut out = Vec::new();
    for peer in 1..=hosts {
        policy.on_event(0, Event::Joined(PeerId(peer)), &mut out);
        policy.on_event(0, Event::Has(PeerId(peer), &everything), &mut out);
    }
    // what is demanded of it comes from another before it has waited for a stall's time
    let (mut now_us, mut piece, mut waits, mut of_silent) = (0, 0, false, 0);
    let mut coming: BTreeMap<PieceId, PeerId> = BTreeMap::new();
    while piece < PIECES {
        if !waits {
            waits = true;
            policy.on_event(now_us, Event::Miss(piece), &mut out);
        }
        for action in std::mem::take(&mut out) {
            match action {
                Action::Ask(PeerId(1), ..) => of_silent += 1,
                Action::Ask(peer, piece, _) => {
                    coming.insert(piece, peer);
                }
                Action::Drop(peer, fault) => {
                    assert_eq!((peer, fault), (PeerId(1), Fault::Stalled));
                    return (of_silent, true);
                }
                _ => {}
            }
        }
        now_us += 50_000;
        policy.on_event(now_us, Event::Tick, &mut out);
        if let Some(peer) = coming.remove(&piece) {
            policy.on_event(now_us, Event::Arrived(peer, piece), &mut out);
            (piece, waits) = (piece + 1, false);
        }
    }
    (of_silent, false)
}

#[test]
fn what_only_a_silent_host_has_is_fetched_ahead_all_the_same() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let (everything, mut out): (Vec<PieceId>, _) = ((0..PIECES).collect(), Vec::new());
    policy.on_event(0, Event::Seed(SEED), &mut out);
    (1..=4).for_each(|peer| policy.on_event(0, Event::Joined(PeerId(peer)), &mut out));
    policy.on_event(0, Event::Has(PeerId(1), &everything), &mut out);
    for peer in 2..=4 {
        let half: Vec<PieceId> = (0..PIECES / 2).collect();
        policy.on_event(0, Event::Has(PeerId(peer), &half), &mut out);
    }
    policy.on_event(0, Event::Window(&everything, &[]), &mut out);
    let (mut now_us, mut left) = (0, PIECES);
    while left > 0 {
        for action in std::mem::take(&mut out) {
            if let Action::Ask(peer, piece, _) = action
                && peer != PeerId(1)
            {
                policy.on_event(now_us, Event::Arrived(peer, piece), &mut out);
                left -= 1;
            }
        }
        now_us += 50_000;
        policy.on_event(now_us, Event::Tick, &mut out);
        assert!(now_us < 8_000_000, "{left} are still missing");
    }
}

#[test]
fn a_host_that_answers_now_and_then_is_no_silent_one() {
    let config = Config::ours();
    let mut policy = Policy::new(config, ME, PIECES, 1);
    let everything: Vec<PieceId> = (0..PIECES).collect();
    let mut out = Vec::new();
    policy.on_event(0, Event::Joined(PeerId(1)), &mut out);
    policy.on_event(0, Event::Has(PeerId(1), &everything), &mut out);
    let (step_us, mut now_us) = (config.stall_us * 9 / 10, 0);
    for piece in 0..20 {
        policy.on_event(now_us, Event::Miss(piece), &mut out);
        now_us += step_us;
        policy.on_event(now_us, Event::Tick, &mut out);
        match piece % 2 {
            0 => policy.on_event(now_us, Event::Arrived(PeerId(1), piece), &mut out),
            _ => policy.on_event(now_us, Event::Failed(PeerId(1), piece), &mut out),
        }
        // time in which it owes nothing does not count
        now_us += config.refused_us + 10 * step_us;
        if piece % 2 == 1 {
            policy.on_event(now_us, Event::Tick, &mut out);
            policy.on_event(now_us, Event::Arrived(PeerId(1), piece), &mut out);
        }
    }
    assert!(
        !out.iter().any(|action| matches!(action, Action::Drop(..))),
        "{out:?}"
    );
}

#[test]
fn a_slow_host_is_asked_less() {
    let mut policy = Policy::new(Config::p2p_d(), ME, PIECES, 1);
    let mut out = Vec::new();
    let everything: Vec<PieceId> = (0..PIECES).collect();
    for peer in [1, 2] {
        policy.on_event(0, Event::Joined(PeerId(peer)), &mut out);
        policy.on_event(0, Event::Has(PeerId(peer), &everything), &mut out);
    }
    let (mut now_us, mut of_slow) = (0, 0);
    for piece in 0..100 {
        out.clear();
        policy.on_event(now_us, Event::Miss(piece), &mut out);
        let Some(Action::Ask(peer, ..)) = out.first().copied() else {
            panic!("{out:?}");
        };
        of_slow += u32::from(peer == PeerId(1));
        now_us += if peer == PeerId(1) { 200_000 } else { 4_000 };
        policy.on_event(now_us, Event::Arrived(peer, piece), &mut out);
    }
    assert!(of_slow < 10, "{of_slow} of 100");
}

#[test]
fn a_host_that_gives_little_is_asked_for_less() {
    let of_weak = |places: u8| {
        let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
        let mut out = Vec::new();
        policy.on_event(0, Event::Seed(SEED), &mut out);
        policy.on_event(0, Event::Places(PeerId(1), places), &mut out);
        (1..=3).for_each(|peer| policy.on_event(0, Event::Joined(PeerId(peer)), &mut out));
        (0..PIECES).for_each(|piece| policy.on_event(0, Event::Miss(piece), &mut out));
        let of_it = |action: &&Action| matches!(action, Action::Ask(PeerId(1), ..));
        out.iter().filter(of_it).count()
    };
    let (full, few) = (of_weak(PLACES), of_weak(1));
    assert!(few > 0 && 3 * few < full, "{few} and {full}");
}

#[test]
fn how_fast_pieces_come_is_told_once_it_was_measured_and_is_not_forgotten_while_few_are_needed() {
    let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
    let everything: Vec<PieceId> = (0..PIECES).collect();
    let (mut out, mut asked) = (Vec::new(), VecDeque::new());
    for peer in 1..=8 {
        policy.on_event(0, Event::Joined(PeerId(peer)), &mut out);
        policy.on_event(0, Event::Has(PeerId(peer), &everything), &mut out);
    }
    let (ahead, later) = everything.split_at(150);
    policy.on_event(0, Event::Window(ahead, &[]), &mut out);
    // the link brings a piece in 5 ms, one after the other
    let mut now_us = 0;
    loop {
        for action in out.drain(..) {
            if let Action::Ask(peer, piece, Purpose::Prefetch) = action {
                asked.push_back((peer, piece));
            }
        }
        let Some((peer, piece)) = asked.pop_front() else {
            break;
        };
        now_us += 5_000;
        policy.on_event(now_us, Event::Arrived(peer, piece), &mut out);
        if now_us == 5_000 {
            assert_eq!(policy.speed(), None, "one piece is no speed");
        }
    }
    let speed = policy.speed().unwrap();
    assert_eq!(speed.bytes_per_s, 200 * (64 << 10));
    assert!((5_000..6_000).contains(&speed.piece_us), "{speed:?}");
    // now and then a machine misses what nobody has predicted
    for piece in later {
        now_us += 1_000_000;
        policy.on_event(now_us, Event::Miss(*piece), &mut out);
        let Some(Action::Ask(peer, ..)) = out.pop() else {
            panic!("nobody was asked for {piece}");
        };
        now_us += 5_000;
        policy.on_event(now_us, Event::Arrived(peer, *piece), &mut out);
    }
    let still = policy.speed().unwrap();
    assert!(still.bytes_per_s * 10 > speed.bytes_per_s * 9, "{still:?}");
}

#[test]
fn swarms_of_one_host_share_what_may_be_under_way_before_anybody_knows_how_fast_pieces_come() {
    let everything: Vec<PieceId> = (0..PIECES).collect();
    for (others, under_way) in [(0, 4), (1, 2), (2, 1), (99, 1)] {
        let mut policy = Policy::new(Config::ours(), ME, PIECES, 1);
        let mut out = Vec::new();
        for peer in 1..=8 {
            policy.on_event(0, Event::Joined(PeerId(peer)), &mut out);
            policy.on_event(0, Event::Has(PeerId(peer), &everything), &mut out);
        }
        assert_eq!(policy.fetches(), None);
        policy.set_sharers(others, 3);
        policy.on_event(0, Event::Window(&everything, &[]), &mut out);
        assert_eq!(policy.fetches(), Some(Purpose::Prefetch));
        assert_eq!(out.len(), under_way, "{others}: {out:?}");
        // what nobody else needs any more is this one's
        policy.set_sharers(0, 0);
        policy.on_event(1, Event::Tick, &mut out);
        assert_eq!(out.len(), 4, "{others}: {out:?}");
    }
}

#[test]
fn a_seed_that_refuses_is_asked_for_nothing_ahead_of_need_for_a_while() {
    let config = Config::ours();
    let mut policy = Policy::new(config, ME, PIECES, 1);
    let mut out = Vec::new();
    let all: Vec<PieceId> = (0..PIECES).collect();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    policy.on_event(0, Event::Window(&all, &[]), &mut out);
    // a tick finds out what this host's duties are: alone it has all of them
    policy.on_event(0, Event::Tick, &mut out);
    let asked: Vec<PieceId> = out
        .drain(..)
        .filter_map(|action| match action {
            Action::Ask(_, piece, Purpose::Prefetch) => Some(piece),
            _ => None,
        })
        .collect();
    assert!(!asked.is_empty());
    for piece in asked {
        policy.on_event(1, Event::Failed(SEED, piece), &mut out);
        assert!(out.is_empty(), "{out:?}");
    }
    policy.on_event(config.refused_us, Event::Tick, &mut out);
    assert!(out.is_empty(), "{out:?}");
    policy.on_event(1 + config.refused_us, Event::Tick, &mut out);
    let again = matches!(out.first(), Some(Action::Ask(SEED, _, Purpose::Prefetch)));
    assert!(again, "{out:?}");
}

#[test]
fn what_nobody_waits_for_any_more_is_asked_for_no_longer() {
    let mut policy = Policy::new(Config::p2p_d(), ME, PIECES, 1);
    let mut out = Vec::new();
    policy.on_event(0, Event::Seed(SEED), &mut out);
    policy.on_event(0, Event::Miss(3), &mut out);
    assert_eq!(out, [Action::Ask(SEED, 3, Purpose::Demand)]);
    out.clear();
    policy.on_event(1, Event::Unmissed(3), &mut out);
    policy.on_event(2, Event::Failed(SEED, 3), &mut out);
    policy.on_event(60_000_000, Event::Tick, &mut out);
    assert!(out.is_empty(), "{out:?}");
    policy.on_event(60_000_001, Event::Miss(3), &mut out);
    assert_eq!(out, [Action::Ask(SEED, 3, Purpose::Demand)]);
}

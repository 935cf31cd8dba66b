//! Swarms in virtual time: what one odd host may cost the others, and that the simulator is as honest as the product.
use floe_simulator::swarm_sim::sweep::{MBIT_100, Row, Rule};
use floe_simulator::swarm_sim::{
    Host, Outcome, PIECE_BYTES, Profile, Recorded, Seed, Setup, simulate, simulate_at,
};
use floe_swarm::policy::Config;

const HOSTS: usize = 16;
const PIECES: u32 = 240;
/// The slow one.
const ODD: usize = 5;

/// Simulates hosts that do the same, one of them behind a link of its own kind.
fn swarm(odd_link: u64) -> Outcome {
    let run = Recorded {
        accesses: (0..PIECES)
            .map(|n| (u64::from(n) * 10_000, n * 7 % PIECES))
            .collect(),
        end_us: u64::from(PIECES) * 10_000,
    };
    let profile = Profile {
        pieces: run.accesses.iter().map(|access| access.1).collect(),
        ..Profile::default()
    };
    let host = |n: usize| Host {
        run: &run,
        profile: &profile,
        start_us: n as u64 * 50_000,
        slowness: 1.0,
        link_slowness: if n == ODD { odd_link } else { 1 },
    };
    simulate(&Setup {
        config: Config::ours(),
        hosts: (0..HOSTS).map(host).collect(),
        pieces: PIECES,
        link: MBIT_100,
        chance: 3,
    })
}

/// The mean slowdown of all but the odd one.
fn others(outcome: &Outcome) -> f64 {
    let others = outcome
        .slowdowns
        .iter()
        .enumerate()
        .filter(|(n, _)| *n != ODD);
    others.map(|(_, slowdown)| slowdown).sum::<f64>() / (HOSTS - 1) as f64
}

#[test]
fn a_host_behind_a_slower_link_finishes_and_holds_the_others_up_for_moments_only() {
    let even = swarm(1);
    let before = others(&even);
    assert_eq!(even.dropped, 0);
    for slower in [5, 20, 50, 200] {
        let odd = swarm(slower);
        let after = others(&odd);
        // they wait for the first few pieces of which it is the warden, until they find it slow and others stand in for it
        assert!(
            after < 1.25 * before,
            "{slower} times slower: {after:.2} instead of {before:.2} times as long as in memory"
        );
        let took = odd.slowdowns[ODD];
        assert!(took > after, "{took:.1} times");
        // nor does it take the others for stalled because its own link is full
        assert_eq!(odd.dropped, 0, "{slower} times slower");
    }
}

/// Pieces that no run touches stand in the profile after every so many that one does.
const UNUSED_EVERY: u32 = 60;

/// A run that has bursts and pauses, and a profile that knows it but has more.
fn bursts() -> (Recorded, Profile, u32) {
    let at_us = |n: u32| u64::from(n) * 4_000 + u64::from(n / 40) * 300_000;
    let run = Recorded {
        accesses: (0..PIECES).map(|n| (at_us(n), n)).collect(),
        end_us: at_us(PIECES),
    };
    let unused = |n: u32| {
        let after = n.is_multiple_of(UNUSED_EVERY);
        after.then_some(PIECES + n / UNUSED_EVERY)
    };
    let pieces = (0..PIECES).flat_map(|n| unused(n).into_iter().chain([n]));
    let profile = Profile {
        pieces: pieces.collect(),
        ..Profile::default()
    };
    (run, profile, PIECES + PIECES.div_ceil(UNUSED_EVERY))
}

/// Simulates so many hosts that do the same.
fn alike(hosts: usize, config: Config, seed: Seed) -> Outcome {
    let (run, profile, pieces) = bursts();
    let host = |n: usize| Host {
        run: &run,
        profile: &profile,
        start_us: n as u64 * 20_000,
        slowness: 1.0,
        link_slowness: 1,
    };
    let setup = Setup {
        config,
        hosts: (0..hosts).map(host).collect(),
        pieces,
        link: MBIT_100,
        chance: 7,
    };
    simulate_at(&setup, seed)
}

#[test]
fn with_a_profile_a_server_is_never_slower() {
    let of = |hosts, rule| {
        let config = Row::of(rule).config(PIECE_BYTES);
        alike(hosts, config, Seed::Server).mean()
    };
    for hosts in [1, 2, 4, 16, 48] {
        let (demand, profile) = (of(hosts, Rule::CsD), of(hosts, Rule::CsP));
        assert!(
            profile <= 1.05 * demand, // what no run of them touches shares the server's link
            "{hosts} hosts: {profile:.3} with a profile, {demand:.3} without"
        );
    }
    // alone, what comes in a pause is there for the burst after it
    let (demand, profile) = (of(1, Rule::CsD), of(1, Rule::CsP));
    assert!(profile < 0.95 * demand, "{profile:.3} and {demand:.3}");
}

#[test]
fn a_machine_waits_until_its_host_has_joined() {
    let run = Recorded {
        accesses: Vec::new(),
        end_us: 1_000_000,
    };
    let nothing = Profile::default();
    let host = Host {
        run: &run,
        profile: &nothing,
        start_us: 500_000,
        slowness: 1.0,
        link_slowness: 1,
    };
    let setup = Setup {
        config: Config::ours(),
        hosts: vec![host],
        pieces: 1,
        link: MBIT_100,
        chance: 1,
    };
    let late_us = (simulate(&setup).slowdowns[0] - 1.0) * 1e6;
    // handshakes of TCP and TLS, the request and its answer are three round trips
    let least_us = (3 * MBIT_100.rtt_us + MBIT_100.service_us) as f64;
    assert!(late_us >= least_us && late_us < 2.0 * least_us, "{late_us}");
}

#[test]
fn what_the_hub_sends_is_counted_whole() {
    let config = Config::cs_d();
    let outcome = alike(3, config, Seed::Server);
    let pieces = 3 * u64::from(PIECES) * config.piece_bytes;
    // 1 % of proof and 5 % of headers, and three answers of the hub
    let share = outcome.seed_bytes as f64 / pieces as f64;
    assert!((1.06..1.065).contains(&share), "{share}");
    assert_eq!(outcome.seed_bytes, outcome.received_bytes);
    assert_eq!(outcome.misses, 3 * u64::from(PIECES));
}

#[test]
fn hosts_that_dial_each_other_carry_pieces_whatever_the_seed_is() {
    for seed in [Seed::Server, Seed::Host] {
        for config in [Config::ours(), Config::p2p_p(), Config::p2p_p_first()] {
            let outcome = alike(16, config, seed);
            assert_eq!(outcome.dropped, 0, "{seed:?}, {config:?}");
            let share = outcome.seed_bytes as f64 / outcome.received_bytes as f64;
            let most = if config.wardens { 0.6 } else { 0.95 };
            assert!(share < most, "{share}: {seed:?}, {config:?}");
        }
    }
}

#[test]
fn more_hosts_than_one_has_connections_to_come_to_their_end() {
    let many = alike(150, Config::ours(), Seed::Server);
    assert_eq!((many.slowdowns.len(), many.dropped), (150, 0));
    assert!(many.slowdowns.iter().all(|slowdown| *slowdown >= 1.0));
}

#[test]
fn small_pieces_are_simulated_as_well() {
    let config = Row::of(Rule::Ours).config(16 << 10);
    let (small, large) = (
        alike(8, config, Seed::Server),
        alike(8, Config::ours(), Seed::Server),
    );
    assert_eq!(small.dropped, 0);
    // as many pieces, a quarter of the bytes
    assert!(small.received_bytes < large.received_bytes / 3);
    assert!(small.mean() <= large.mean());
}

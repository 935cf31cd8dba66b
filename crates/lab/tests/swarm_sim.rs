//! Swarms in virtual time: what one odd host may cost the others.
use floe_lab::swarm_sim::sweep::MBIT_100;
use floe_lab::swarm_sim::{Host, Outcome, Recorded, Setup, simulate};
use floe_swarm::policy::{Config, PieceId};

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
    let profile: Vec<PieceId> = run.accesses.iter().map(|access| access.1).collect();
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

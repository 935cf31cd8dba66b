//! Tests the promises of links: images on one link share it, and those on another don't notice.

mod common;

use common::world::*;
use common::*;
use floe_planner::*;
use floe_sched::{MachineId, Who};
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};

const POLICIES: [Policy; 3] = [Policy::VmTorrent, Policy::VTube, Policy::Floe];

#[test]
fn two_machines_that_start_together_wait_as_if_each_had_half_the_link() {
    for policy in [Policy::VTube, Policy::Floe] {
        let traces = COMPILE.runs(4);
        let (model, trace) = (learn(policy, &traces[1..]), &traces[0]);
        let alone = waited_alone_us(policy, half(MOBILE), &model, trace);
        let machines = [0, 20_000].map(|at| Machine::new(0, at, model.clone(), trace));
        let mut world = World::new(config(policy), &[MOBILE], machines.into());
        world.run(u64::MAX);
        for machine in &world.machines {
            let ratio = machine.waited_us as f64 / alone as f64;
            println!("{policy:?}: {ratio:.2}");
            assert!(
                ratio <= 1.1,
                "{policy:?}: {ratio:.2} of the waiting over half the link"
            );
        }
    }
}

#[test]
fn a_machine_over_another_link_does_not_notice() {
    let fast = Link {
        bytes_per_s: 6.25e6,
        rtt_us: 40_000,
    };
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    let machines = [0, 1].map(|link| Machine::new(link, 0, model.clone(), trace));
    let mut world = World::new(config(Policy::Floe), &[MOBILE, fast], machines.into());
    world.run(u64::MAX);
    for (machine, link) in world.machines.iter().zip([MOBILE, fast]) {
        let alone = waited_alone_us(Policy::Floe, link, &model, trace);
        let ratio = machine.waited_us as f64 / alone.max(1) as f64;
        println!("{link:?}: {ratio:.3}");
        assert!((0.99..=1.01).contains(&ratio), "{link:?}: {ratio:.3}");
    }
}

#[test]
fn a_second_machine_buffers_at_its_start_like_the_first() {
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    // The first has touched thousands of chunks when the second starts.
    let machines = [0, 60 * SECOND].map(|at| Machine::new(0, at, model.clone(), trace));
    let mut world = World::new(config(Policy::Floe), &[MOBILE], machines.into());
    world.run(60 * SECOND);
    let first = world.machines[0].accesses.len();
    assert!(
        first + 1000 < trace.accesses.len(),
        "the first has not got far"
    );
    world.run(60 * SECOND + 50_000);
    assert!(
        world.machines[1].paused,
        "the second is paused before its first miss"
    );
    assert_eq!(world.machines[1].accesses.len(), trace.accesses.len());
}

#[test]
fn who_comes_later_gets_an_even_part_at_once() {
    // Plans without end: each takes what it gets.
    let long: Vec<(u32, u64)> = (0..40_000).map(|i| (i, u64::from(i))).collect();
    let long = trace(&long);
    let model = learn(Policy::VmTorrent, std::slice::from_ref(&long));
    let idle = ZeroTrace {
        end_us: 3600 * SECOND,
        accesses: vec![Timed {
            t_us: 3600 * SECOND,
            region: 0,
            chunk: 0,
        }],
    };
    let starts = [0, 5, 10].map(|s| s * SECOND);
    let machines = starts.map(|at| Machine::new(0, at, model.clone(), &idle));
    let mut world = World::new(config(Policy::VmTorrent), &[MOBILE], machines.into());
    for (end, users) in [(5, 1), (10, 2), (15, 3)] {
        // Skips a round trip for what is in flight.
        world.run((end - 5) * SECOND + 500_000);
        let before: Vec<u64> = world.machines.iter().map(|m| m.came).collect();
        world.run(end * SECOND);
        let came: Vec<u64> = world
            .machines
            .iter()
            .zip(&before)
            .map(|(m, b)| m.came - b)
            .collect();
        let all: u64 = came.iter().sum();
        println!("{came:?}");
        for one in &came[..users] {
            let share = *one as f64 * users as f64 / all as f64;
            assert!((0.9..=1.1).contains(&share), "{came:?} with {users}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever machines start at whatever time over whatever links: each gets to its end, no link carries more than it has
    /// room for (the driver checks after every event), and no machine waits much longer than over an even share of its link.
    #[test]
    fn no_stream_starves_and_no_link_is_overfull(
        policy in 0usize..3,
        speeds in proptest::collection::vec((300e3f64..8e6, 5_000u64..200_000), 1..4),
        machines in proptest::collection::vec((0usize..3, 0u64..20 * SECOND, 1u64..6), 1..6),
    ) {
        let policy = POLICIES[policy];
        let links: Vec<Link> = speeds.iter().map(|(bytes_per_s, rtt_us)| Link { bytes_per_s: *bytes_per_s, rtt_us: *rtt_us }).collect();
        let traces = SMALL.runs(6);
        let on = |link: usize| link % links.len();
        let made: Vec<_> = machines.iter().map(|(link, start, seed)| {
            let mut others = traces.clone();
            let own = others.remove(*seed as usize);
            (on(*link), *start, learn(policy, &others), own)
        }).collect();
        let together = made.iter().map(|(link, start, model, own)| Machine::new(*link, *start, model.clone(), own));
        let mut world = World::new(config(policy), &links, together.collect());
        world.run(3600 * SECOND);
        for ((link, _, model, own), machine) in made.iter().zip(&world.machines) {
            prop_assert!(machine.accesses.is_empty(), "a machine did not get to its end");
            let users = made.iter().filter(|m| m.0 == *link).count() as f64;
            let part = Link { bytes_per_s: links[*link].bytes_per_s / users, ..links[*link] };
            let alone = waited_alone_us(policy, part, model, own) as f64;
            let waited = machine.waited_us as f64;
            prop_assert!(waited <= 1.3 * alone + 2e6, "{policy:?}: {waited} us, alone over a part {alone} us");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Events in any order, with links that come, go and report wrong figures: the planner never panics, what it counts as in
    /// flight is what was asked for and hasn't ended, and what a removed region had in flight doesn't take room for ever.
    #[test]
    fn no_order_of_events_on_several_links_loses_count(
        events in proptest::collection::vec((0u8..11, 0u32..4, 0u64..700, any::<u64>(), 0u64..SECOND), 0..150),
    ) {
        let traces = [trace(&(0..600).map(|i| (i, u64::from(i) * 1000)).collect::<Vec<_>>())];
        let model = learn(Policy::Floe, &traces);
        let mut planner = Planner::new(config(Policy::Floe));
        let mut fetches: Vec<(u32, u64, u64, Who)> = Vec::new();
        let mut paused: HashSet<MachineId> = HashSet::new();
        let mut now = 0;
        for (kind, region, chunk, bits, after) in events {
            now += after;
            let link = LinkId::from(region / 2);
            let inside = |block: u64| (0..700u64.saturating_sub(block * 64).min(64)).fold(0, |all, i| all | bits & 1 << i);
            let mut queue = VecDeque::from([match kind {
                0 => Event::RegionAdded { region, link, image: region, chunks: 700, segments: vec![0], urgency: Urgency::Memory },
                1 => Event::RegionRemoved { region },
                2 => Event::LinkEstimate { link, measured: Link { bytes_per_s: bits as f64 / 1e12, rtt_us: after } },
                3 => Event::Miss { region, chunk, candidates: inside(chunk / 64), who: who(bits as u32 % 6) },
                4 => Event::Hit { region, chunk, who: who(bits as u32 % 6) },
                5 => Event::SegmentLoaded { region, segment: 0, ok: bits & 3 != 0 },
                6 => Event::Model { regions: vec![region], model: model.clone() },
                7 => Event::Expect { region, chunks: (0..chunk).collect(), who: who(bits as u32 % 6) },
                8 => Event::MachineStarted { who: who(bits as u32 % 6), image: region, running: bits & 64 == 0 },
                9 => Event::MachineGone { machine: MachineId(bits as u32 % 6) },
                _ => match fetches.pop() {
                    Some((region, block, chunks, who)) => Event::Fetched { region, block, chunks, ok: bits & 1 == 0, who },
                    None => Event::Tick,
                },
            }]);
            while let Some(event) = queue.pop_front() {
                for action in planner.on_event(now, event) {
                    match action {
                        Action::Fetch { region, block, chunks, who } => fetches.push((region, block, chunks, who)),
                        Action::Look { region, block, who } => queue.push_back(Event::Candidates { region, block, candidates: inside(block), who }),
                        Action::Buffer { machine, pause: true, .. } => prop_assert!(paused.insert(machine), "paused twice"),
                        Action::Buffer { machine, .. } => prop_assert!(paused.remove(&machine), "not paused"),
                        _ => {}
                    }
                }
            }
        }
        // All machines go, and nobody is paused who has gone.
        for machine in (0..6).map(MachineId) {
            for action in planner.on_event(now, Event::MachineGone { machine }) {
                match action {
                    Action::Fetch { region, block, chunks, who } => fetches.push((region, block, chunks, who)),
                    Action::Buffer { machine, pause: false, .. } => prop_assert!(paused.remove(&machine), "not paused"),
                    Action::Buffer { machine, .. } => prop_assert!(paused.insert(machine), "paused twice"),
                    _ => {}
                }
            }
            prop_assert!(!paused.contains(&machine), "{machine:?} has gone and is paused");
        }
        prop_assert!(paused.is_empty());
        for region in 0..4 {
            for action in planner.on_event(now, Event::RegionRemoved { region }) {
                if let Action::Fetch { region, block, chunks, who } = action {
                    fetches.push((region, block, chunks, who));
                }
            }
        }
        for (region, block, chunks, who) in fetches {
            planner.on_event(now, Event::Fetched { region, block, chunks, ok: false, who });
        }
        prop_assert_eq!(planner.counters(), Counters::default());
        for link in 0..2 {
            prop_assert_eq!(planner.link_use(link).unwrap_or_default().in_flight, 0);
        }
    }
}

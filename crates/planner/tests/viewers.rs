//! Tests the promises of machines that share an image: each has its own stream and its own pause, and bytes come once.

mod common;

use common::world::*;
use common::*;
use floe_planner::*;
use floe_sched::MachineId;
use proptest::prelude::*;
use std::collections::HashSet;

const POLICIES: [Policy; 3] = [Policy::VmTorrent, Policy::VTube, Policy::Floe];

/// Returns what is asked for over a link when a machine has it for itself.
fn asked_alone(policy: Policy, link: Link, traces: &[ZeroTrace], own: &ZeroTrace) -> HashSet<At> {
    let machine = Machine::new(0, 0, learn(policy, traces), own);
    let mut world = World::new(config(policy), &[link], vec![machine]);
    world.run(u64::MAX);
    world.asked
}

#[test]
fn two_machines_of_one_image_wait_as_if_each_were_alone() {
    for policy in [Policy::VTube, Policy::Floe] {
        let traces = COMPILE.runs(4);
        let (model, trace) = (learn(policy, &traces[1..]), &traces[0]);
        let alone = waited_alone_us(policy, MOBILE, &model, trace);
        let machines = [0, 20_000].map(|at| Machine::new(0, at, model.clone(), trace).sharing());
        let mut world = World::new(config(policy), &[MOBILE], machines.into());
        world.run(u64::MAX);
        for machine in &world.machines {
            let ratio = machine.waited_us as f64 / alone as f64;
            println!("{policy:?}: {ratio:.2}");
            assert!(ratio <= 1.1, "{policy:?}: {ratio:.2} of the waiting alone");
        }
        let once = asked_alone(policy, MOBILE, &traces[1..], trace).len();
        let both = world.asked.len();
        assert!(
            both <= once + once / 50,
            "{both} chunks for both, {once} for one"
        );
    }
}

#[test]
fn a_second_machine_of_an_image_buffers_at_its_start_like_the_first() {
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    for after_us in [0, 100_000, SECOND] {
        let machines = [0, after_us].map(|at| Machine::new(0, at, model.clone(), trace).sharing());
        let mut world = World::new(config(Policy::Floe), &[MOBILE], machines.into());
        world.run(after_us + 50_000);
        for machine in &world.machines {
            assert!(machine.paused, "not paused after {after_us} us");
            assert_eq!(machine.accesses.len(), trace.accesses.len());
        }
    }
}

#[test]
fn a_machine_that_starts_when_all_it_needs_is_here_does_not_wait() {
    let traces = COMPILE.runs(4);
    let (model, trace) = (learn(Policy::Floe, &traces[1..]), &traces[0]);
    // The first is long done when the second starts.
    let machines = [0, 600 * SECOND].map(|at| Machine::new(0, at, model.clone(), trace).sharing());
    let mut world = World::new(config(Policy::Floe), &[MOBILE], machines.into());
    world.run(u64::MAX);
    let [first, second] = &world.machines[..] else {
        panic!("two machines");
    };
    assert!(first.pauses > 0 && first.waited_us > SECOND);
    assert_eq!((second.pauses, second.waited_us), (0, 0));
}

#[test]
fn one_machines_pause_leaves_the_other_running() {
    let traces = COMPILE.runs(4);
    let model = learn(Policy::Floe, &traces[1..]);
    // The first runs already, and touches what no run before it has.
    let other: Vec<(u32, u64)> = (0..200)
        .map(|i| (SPACE as u32 - 2 * i - 1, u64::from(i) * 50_000))
        .collect();
    let mut first = Machine::new(0, 0, model.clone(), &trace(&other));
    first.running = true;
    let second = Machine::new(0, 0, model, &traces[0]);
    let mut world = World::new(
        config(Policy::Floe),
        &[MOBILE],
        vec![first.sharing(), second.sharing()],
    );
    world.run(2 * SECOND);
    let [first, second] = &world.machines[..] else {
        panic!("two machines");
    };
    assert!(second.paused && second.accesses.len() == traces[0].accesses.len());
    assert_eq!(first.pauses, 0);
    assert!(first.accesses.len() < 200, "it did not run");
}

#[test]
fn a_machine_that_goes_while_it_is_paused_takes_only_its_own_stream_along() {
    let traces = COMPILE.runs(4);
    let model = learn(Policy::Floe, &traces[1..]);
    let machines = [0, 0].map(|at| Machine::new(0, at, model.clone(), &traces[0]).sharing());
    let mut world = World::new(config(Policy::Floe), &[MOBILE], machines.into());
    world.run(SECOND);
    assert!(world.machines.iter().all(|m| m.paused));
    world.leave(1);
    assert!(!world.machines[0].paused && world.machines[1].paused);
    assert_eq!(world.planner.progress(MachineId(1)), None);
    world.run(u64::MAX);
    assert!(
        world.machines[1].accesses.is_empty(),
        "the other gets to its end"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever machines of one image start at whatever time: no chunk is asked for twice (the driver checks), all that is
    /// asked for is what each alone would ask for, but for guesses; each gets to its end, and none waits much longer than over
    /// an even part of the link.
    #[test]
    fn bytes_come_once_and_no_machine_starves(
        policy in 0usize..3,
        bytes_per_s in 300e3f64..8e6,
        rtt_us in 5_000u64..200_000,
        machines in proptest::collection::vec((0u64..20 * SECOND, 0usize..3), 1..5),
    ) {
        let policy = POLICIES[policy];
        let link = Link { bytes_per_s, rtt_us };
        let traces = SMALL.runs(6);
        let (tested, known) = traces.split_at(3);
        let model = learn(policy, known);
        let made = machines.iter().map(|(start, own)| Machine::new(0, *start, model.clone(), &tested[*own]).sharing());
        let mut world = World::new(config(policy), &[link], made.collect());
        world.run(3600 * SECOND);
        let users = machines.len() as f64;
        let part = Link { bytes_per_s: bytes_per_s / users, ..link };
        let mut union: HashSet<At> = HashSet::new();
        for ((_, own), machine) in machines.iter().zip(&world.machines) {
            prop_assert!(machine.accesses.is_empty(), "a machine did not get to its end");
            let alone = waited_alone_us(policy, part, &model, &tested[*own]) as f64;
            let waited = machine.waited_us as f64;
            prop_assert!(waited <= 1.3 * alone + 2e6, "{policy:?}: {waited} us, alone over a part {alone} us");
            union.extend(asked_alone(policy, link, known, &tested[*own]));
        }
        // What a machine guesses depends on when it does: that may differ by what may be guessed, and by one window.
        let config = Config::default();
        let guesses = config.speculation_ratio + config.waste_ratio_beside_model;
        let window = world.planner.link_use(0).unwrap_or_default().room as f64;
        let most = union.len() as f64 * (1.0 + guesses) + window;
        prop_assert!(world.asked.len() as f64 <= most, "{policy:?}: {} chunks, alone {}", world.asked.len(), union.len());
    }
}

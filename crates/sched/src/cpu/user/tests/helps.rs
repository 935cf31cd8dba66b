//! What it does, and when it finds that this is of use.

use super::super::places::parts;
use super::super::*;
use super::world::{Kernel, World, cores};
use proptest::prelude::*;

const MINUTE_US: u64 = 60_000_000;

/// Four machines of two vCPUs that all want to run, on two cores.
fn four_of_two(mode: Mode, kernel: Kernel) -> World {
    let mut world = World::new(mode, 2, kernel);
    (0..4).for_each(|key| world.start(key, &[1.0, 1.0]));
    world
}

proptest! {
    #[test]
    fn cores_are_divided_evenly_and_without_overlap(count in 1..300_usize, of in 1..200_u16) {
        let all = cores(0..of);
        let parts = parts(&all, count);
        prop_assert_eq!(parts.len(), count);
        let on = |core: u16| parts.iter().filter(|part| part.has(core)).count();
        let on: Vec<usize> = (0..of).map(on).collect();
        let each = count / usize::from(of);
        match each {
            0 => prop_assert!(on.iter().all(|siblings| *siblings == 1)),
            _ => {
                prop_assert!(parts.iter().all(|part| part.len() == 1));
                prop_assert!(on.iter().all(|siblings| [each, each + 1].contains(siblings)));
            }
        }
        let sizes = parts.iter().map(CoreSet::len);
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }
}

#[test]
fn siblings_are_apart_from_the_first_look_on_and_as_before_once_it_ends() {
    let mut world = World::new(Mode::Balance, 8, Kernel::Stacks);
    world.start(1, &[0.0, 0.0]);
    world.start(2, &[0.0; 8]);
    world.start(3, &[0.0]);
    world.look();
    assert!(world.is_apart(1) && world.is_apart(2));
    assert_eq!(world.machines[&1][0].sample.allowed.len(), 4);
    assert!(world.status(1).apart && !world.status(3).apart);
    assert_eq!(world.status(3).standing, Standing::Single);
    let acted = world.actions;
    // whoever is idle or alone causes no further change, and no trial
    world.looks(20 * MINUTE_US);
    assert_eq!((acted, world.notices.len()), (world.actions, 0));
    world.undo();
    assert!(world.is_as_before());
    assert!(world.user.held().is_empty());
}

#[test]
fn first_vcpus_of_machines_do_not_all_get_the_same_core() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    (0..4).for_each(|key| world.start(key, &[0.0, 0.0]));
    world.look();
    let on_first = (0..4).filter(|key| world.machines[key][0].sample.allowed.has(0));
    assert_eq!(on_first.count(), 2);
}

#[test]
fn vcpus_change_places_when_the_busy_ones_share_a_core() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Spreads);
    (0..2).for_each(|key| world.start(key, &[0.0, 0.0]));
    world.look();
    // the ones on core 0 begin to work
    for key in 0..2 {
        let tasks = world.machines.get_mut(&key).unwrap();
        let on_first = tasks.iter().position(|task| task.sample.allowed.has(0));
        tasks[on_first.unwrap()].wants = 1.0;
    }
    world.looks(MINUTE_US);
    let busy = world.machines.values().flatten();
    let busy: Vec<CoreSet> = busy
        .filter(|task| task.wants > 0.0)
        .map(|task| task.sample.allowed)
        .collect();
    assert_ne!(busy[0], busy[1]);
    let moves = world.user.status().moves;
    world.looks(10 * MINUTE_US);
    assert_eq!(world.user.status().moves, moves, "they stay there");
}

#[test]
fn where_the_kernel_stacks_siblings_trials_show_that_it_helps_and_become_rare() {
    let mut world = four_of_two(Mode::Balance, Kernel::Stacks);
    world.look();
    assert_eq!(world.status(0).stacking, None, "nothing is known yet");
    world.look();
    world.looks(10 * MINUTE_US);
    assert!(world.notices.is_empty(), "{:?}", world.notices);
    let first = world.user.status().moves;
    world.looks(60 * MINUTE_US);
    let later = world.user.status();
    assert!(later.moves > first);
    assert!((later.moves - first) / 6 < first, "trials become rarer");
    // between trials
    while world.user.status().acting != Acting::Acts {
        world.look();
    }
    world.looks(MINUTE_US);
    assert!((0..4).all(|key| world.is_apart(key)));
    assert!(world.status(0).stacking.unwrap() < 0.01);
    let steal = world.status(0).steal.unwrap();
    assert!((steal - 0.75).abs() < 0.01, "four want each core: {steal}");
}

#[test]
fn where_the_kernel_does_as_well_it_stops_says_so_and_tries_again_ever_later() {
    let mut world = four_of_two(Mode::Balance, Kernel::Spreads);
    world.looks(2 * MINUTE_US);
    let Some(Notice::Stopped {
        apart,
        waits,
        for_us,
        ..
    }) = world.notices.first().copied()
    else {
        panic!("{:?}", world.notices);
    };
    assert!(apart < 0.02 && waits.abs() < 0.01, "{apart} {waits}");
    assert_eq!(for_us, STOPPED_MIN_US);
    assert_eq!(world.user.status().acting, Acting::DoesNotHelp);
    assert!(world.is_as_before() && world.user.held().is_empty());
    let figures = world.status(0);
    assert!(figures.stacking.is_some() && figures.steal.is_some());
    world.looks(24 * 60 * MINUTE_US);
    let stops: Vec<u64> = world
        .notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::Stopped { for_us, .. } => Some(*for_us),
            _ => None,
        })
        .collect();
    assert!(stops.windows(2).all(|two| two[0] <= two[1]), "{stops:?}");
    assert_eq!(stops.last(), Some(&STOPPED_MAX_US));
    let text = world.notices[0].to_string();
    assert!(
        text.contains("does not help") && text.contains("10 min"),
        "{text}"
    );
}

#[test]
fn another_machine_is_a_reason_to_try_again_but_not_at_once() {
    let mut world = four_of_two(Mode::Balance, Kernel::Spreads);
    world.looks(2 * MINUTE_US);
    assert_eq!(world.user.status().acting, Acting::DoesNotHelp);
    world.start(9, &[1.0, 1.0]);
    world.looks(2 * MINUTE_US);
    assert!(world.notices.contains(&Notice::Resumed));
}

#[test]
fn it_stops_where_siblings_are_further_from_each_other_in_time_by_it() {
    // the kernel keeps off a core that something else has; places of their own force one vCPU onto it
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    world.start(0, &[1.0, 1.0]);
    world.others[1] = 30.0;
    world.looks(2 * MINUTE_US);
    let stopped = world.notices.iter().find_map(|notice| match notice {
        Notice::Stopped { abreast, .. } => Some(*abreast),
        _ => None,
    });
    assert!(
        stopped.is_some_and(|abreast| abreast < -0.05),
        "{:?}",
        world.notices
    );
    assert!(world.is_as_before());
}

#[test]
fn who_is_behind_borrows_what_the_other_lends_and_both_get_it_back() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    world.start(0, &[1.0, 1.0]);
    world.start(1, &[1.0, 1.0]);
    world.others[1] = 1.0;
    let (mut lent, mut given_back) = ([false; 2], [false; 2]);
    // until the first trial, after which siblings may have changed places
    while world.now_us < 9_500_000 {
        world.look();
        for (tasks, at) in world.machines.values().zip(0..) {
            let nice = |n: usize| i32::from(tasks[n].sample.nice);
            let weight = |n: usize| 1.25_f64.powi(-nice(n));
            let both = weight(0) + weight(1);
            assert!((both - 2.0).abs() < 0.08, "lent equals borrowed: {both}");
            match nice(0) {
                0 => given_back[at] |= lent[at],
                _ => {
                    // who shares a core with others is behind
                    let behind = usize::from(tasks[1].sample.core == 1);
                    assert!(nice(behind) < 0);
                    lent[at] = true;
                }
            }
        }
    }
    assert_eq!(given_back, [true; 2]);
    assert!(world.user.status().loans > 0);
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn lending_brings_siblings_closer_together() {
    let spread = |mode: Mode| {
        let mut world = World::new(mode, 2, Kernel::Spreads);
        world.start(0, &[1.0, 1.0]);
        world.start(1, &[1.0, 1.0]);
        world.others[1] = 1.0;
        // before the first trial can stop what does not help
        world.looks(9_000_000);
        let tasks = &world.machines[&0];
        tasks[0].sample.run_ns.abs_diff(tasks[1].sample.run_ns)
    };
    let (with, without) = (spread(Mode::Sbco), spread(Mode::Balance));
    assert!(with < without, "{with} {without}");
}

#[test]
fn who_sleeps_neither_lends_nor_borrows() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    world.start(0, &[1.0, 0.5]);
    world.start(1, &[0.5, 0.5]);
    world.looks(MINUTE_US);
    assert_eq!(world.user.status().loans, 0);
    assert_eq!(world.status(0).lag_us, None);
}

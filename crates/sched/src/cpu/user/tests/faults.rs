//! What goes wrong, and what comes and goes.

use super::super::*;
use super::world::{Kernel, World, cores};
use proptest::prelude::*;

const MINUTE_US: u64 = 60_000_000;

/// Machines of two vCPUs on two cores, one of which something else uses too, so that siblings are lent to.
fn lending() -> World {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    (0..2).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.others[1] = 1.0;
    while (0..2).all(|key| world.machines[&key][0].sample.nice == 0) {
        world.look();
        assert!(world.now_us < MINUTE_US, "nobody lends");
    }
    world
}

fn in_debt(world: &World) -> u64 {
    let mut keys = world.machines.iter();
    let (key, _) = keys
        .find(|(_, tasks)| tasks[0].sample.nice != 0)
        .expect("a debtor");
    *key
}

#[test]
fn a_machine_that_stops_in_debt_takes_its_debt_along_and_nobody_elses() {
    let mut world = lending();
    let key = in_debt(&world);
    let gone: Vec<ThreadId> = world.machines[&key].iter().map(|t| t.sample.id).collect();
    world.machines.remove(&key);
    world.look();
    assert!(
        world
            .user
            .held()
            .iter()
            .all(|held| !gone.contains(&held.thread))
    );
    assert!(!world.user.status().machines.contains_key(&key));
    world.looks(MINUTE_US);
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn one_that_is_no_longer_looked_after_but_lives_is_as_before() {
    let mut world = lending();
    let key = in_debt(&world);
    let mut sample = world.sample();
    sample.now_us += 1000;
    sample.machines.retain(|machine| machine.key != key);
    let step = world.user.sample(&sample);
    world.carry_out(&step.actions);
    let tasks = &world.machines[&key];
    assert!(
        tasks
            .iter()
            .all(|task| (task.sample.allowed, task.sample.nice) == task.was)
    );
}

#[test]
fn a_machine_that_is_resized_in_debt_gets_places_anew_and_its_debt_is_dropped() {
    let mut world = lending();
    let key = in_debt(&world);
    world.grow(key, 1.0);
    world.look();
    assert!(
        world.machines[&key]
            .iter()
            .all(|task| task.sample.nice == 0)
    );
    let on = |core: u16| {
        let tasks = world.machines[&key].iter();
        tasks
            .filter(|task| task.sample.allowed == cores(core..core + 1))
            .count()
    };
    let mut both = [on(0), on(1)];
    both.sort_unstable();
    assert_eq!(both, [1, 2], "more vCPUs than cores");
    // and smaller again
    world.machines.get_mut(&key).unwrap().remove(0);
    world.look();
    assert!(world.is_apart(key));
    world.machines.get_mut(&key).unwrap().truncate(1);
    world.look();
    assert_eq!(world.status(key).standing, Standing::Single);
    assert_eq!(
        world.machines[&key][0].sample.allowed,
        cores(0..2),
        "one alone may use all"
    );
}

#[test]
fn a_number_that_another_thread_has_now_is_not_taken_for_the_earlier_one() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    world.start(0, &[1.0, 1.0]);
    world.look();
    let task = &mut world.machines.get_mut(&0).unwrap()[0];
    task.sample.id.started += 1;
    task.sample.allowed = task.was.0;
    world.look();
    assert!(world.is_apart(0));
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn a_kernel_that_refuses_affinities_is_asked_once_and_people_are_told_once() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    (0..4).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.may_pin = false;
    world.look();
    let asked = world.actions;
    world.looks(10 * MINUTE_US);
    assert_eq!(world.actions, asked);
    assert_eq!(world.notices, [Notice::PinRefused]);
    assert_eq!(world.user.status().acting, Acting::Refused);
    assert!(world.user.held().is_empty() && world.is_as_before());
    assert!(
        world.status(0).stacking.unwrap() > 0.9,
        "figures are still shown"
    );
}

#[test]
fn a_kernel_that_refuses_lower_nice_values_leaves_siblings_apart_and_nothing_is_lent() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    (0..2).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.others[1] = 1.0;
    world.may_nice = false;
    world.looks(5_000_000);
    assert_eq!(world.notices, [Notice::NiceRefused]);
    assert!(!world.user.status().lends);
    let mut tasks = world.machines.values().flatten();
    assert!(
        tasks.all(|task| task.sample.nice == 0),
        "a lender could never get back what it lent"
    );
    assert!(world.is_apart(0) && world.is_apart(1));
}

#[test]
fn what_somebody_else_sets_stays_and_the_machine_is_left_alone() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    (0..2).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.look();
    let theirs = &mut world.machines.get_mut(&0).unwrap()[0];
    let other = cores(0..2);
    (theirs.sample.allowed, theirs.was.0) = (other, other);
    world.looks(3_000_000);
    assert_eq!(world.notices, [Notice::LeftAlone(0)]);
    assert_eq!(world.status(0).standing, Standing::Foreign);
    let tasks = &world.machines[&0];
    assert!(tasks.iter().all(|task| task.sample.allowed == other));
    assert!(world.is_apart(1));
    // one that its user has arranged before is never touched
    world.start(5, &[1.0, 1.0]);
    let tasks = world.machines.get_mut(&5).unwrap();
    (tasks[0].sample.allowed, tasks[0].was.0) = (cores(1..2), cores(1..2));
    world.looks(3_000_000);
    assert_eq!(world.status(5).standing, Standing::Foreign);
    // nor does anybody hear of one that has no siblings
    world.start(6, &[1.0]);
    world.look();
    let task = &mut world.machines.get_mut(&6).unwrap()[0];
    (task.sample.allowed, task.was.0) = (cores(1..2), cores(1..2));
    world.looks(3_000_000);
    assert_eq!(world.status(6).standing, Standing::Single);
    assert!(!world.notices.contains(&Notice::LeftAlone(6)));
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn a_machine_that_cant_be_looked_at_for_a_moment_keeps_what_it_has() {
    let mut world = lending();
    let mut sample = world.sample();
    sample.now_us += 1000;
    sample.machines.retain(|machine| machine.key != 0);
    // the other one was never seen
    sample.unseen = vec![0, 9];
    let step = world.user.sample(&sample);
    assert_eq!(world.user.status().machines[&9].vcpus, 0);
    world.carry_out(&step.actions);
    assert!(world.is_apart(0) && world.is_apart(1));
    world.looks(2_000_000);
    assert_eq!(world.status(0).standing, Standing::Kept);
    assert!(!world.user.status().machines.contains_key(&9));
    assert!(world.notices.is_empty(), "{:?}", world.notices);
    world.undo();
    assert!(world.is_as_before() && world.user.held().is_empty());
}

#[test]
fn a_machine_whose_affinity_cant_be_set_for_another_reason_is_left_as_before() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    world.start(0, &[1.0, 1.0]);
    world.faults = [Outcome::Done, Outcome::Failed].into();
    world.looks(10_000_000);
    assert_eq!(world.status(0).standing, Standing::Failed);
    assert!(world.is_as_before() && world.user.held().is_empty());
}

#[test]
fn two_hundred_vcpus_are_divided_evenly_and_a_dear_look_is_taken_less_often() {
    let mut world = World::new(Mode::Sbco, 4, Kernel::Stacks);
    world.start(0, &[1.0; 200]);
    world.look_us = 6000;
    world.look();
    assert_eq!(world.actions, 200, "one action for each");
    let on = |core: u16| {
        let tasks = world.machines[&0].iter();
        tasks
            .filter(|task| task.sample.allowed == cores(core..core + 1))
            .count()
    };
    assert_eq!([on(0), on(1), on(2), on(3)], [50; 4]);
    world.looks(30 * MINUTE_US);
    let own = world.user.status().own_cpu_pct;
    assert!(own <= 0.35, "{own}");
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn looks_that_cost_too_much_even_when_rare_stop_it() {
    let mut world = World::new(Mode::Balance, 2, Kernel::Stacks);
    (0..4).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.look_us = 200_000;
    world.looks(5 * MINUTE_US);
    assert!(matches!(world.notices[0], Notice::Costly { .. }));
    assert_eq!(world.user.status().acting, Acting::Costly);
    assert!(world.is_as_before());
    world.look_us = 100;
    world.looks(60 * MINUTE_US);
    assert!(
        world.notices.contains(&Notice::Resumed),
        "{:?}",
        world.notices
    );
    assert_ne!(world.user.status().acting, Acting::Costly);
}

#[test]
fn clocks_of_cores_that_differ_lend_nothing_and_show_nothing_impossible() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    world.start(0, &[0.5, 0.5]);
    for round in 0..100_u64 {
        for task in world.machines.values_mut().flatten() {
            // a core's clock is ahead by a second, another's behind
            let sums = [&mut task.sample.run_ns, &mut task.sample.wait_ns];
            for sum in sums {
                *sum = match round % 2 {
                    0 => *sum + 1_000_000_000,
                    _ => sum.saturating_sub(1_000_000_000),
                };
            }
        }
        world.look();
        let status = world.status(0);
        assert!(
            status
                .steal
                .is_none_or(|steal| (0.0..=1.0).contains(&steal))
        );
        assert!(status.lag_us.is_none_or(|lag| lag <= 1_000_000));
    }
    world.undo();
    assert!(world.is_as_before());
}

#[test]
fn figures_of_a_host_that_has_slept_are_thrown_away() {
    let mut world = World::new(Mode::Sbco, 2, Kernel::Stacks);
    (0..2).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.look();
    world.now_us += 3_600_000_000;
    world.look();
    assert_eq!(world.status(0).steal, None);
}

#[test]
fn switched_off_it_changes_nothing_and_shows_figures() {
    let mut world = World::new(Mode::Off, 2, Kernel::Stacks);
    (0..4).for_each(|key| world.start(key, &[1.0, 1.0]));
    world.looks(5 * MINUTE_US);
    assert_eq!((world.actions, world.notices.len()), (0, 0));
    assert_eq!(world.user.status().acting, Acting::Off);
    assert!(world.status(0).stacking.unwrap() > 0.9);
}

/// What may happen on a host.
#[derive(Clone, Debug)]
enum Event {
    Looks(u8),
    Start(u64, Vec<u8>),
    Stop(u64),
    Grow(u64),
    Shrink(u64),
    Works(u64, u8),
    Fault(u8),
    Others(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let key = 0..4_u64;
    let event = prop_oneof![
        6 => (1..30_u8).prop_map(Event::Looks),
        2 => (key.clone(), prop::collection::vec(0..=10_u8, 1..5)).prop_map(|(k, w)| Event::Start(k, w)),
        1 => key.clone().prop_map(Event::Stop),
        1 => key.clone().prop_map(Event::Grow),
        1 => key.clone().prop_map(Event::Shrink),
        2 => (key, 0..=10_u8).prop_map(|(k, w)| Event::Works(k, w)),
        1 => (0..3_u8).prop_map(Event::Fault),
        1 => (0..4_u8).prop_map(Event::Others),
    ];
    prop::collection::vec(event, 1..30)
}

proptest! {
    /// Whatever happens: what is to be undone is known before it is done (`World::all_is_held`), and undoing leaves nothing behind.
    #[test]
    fn everything_can_be_undone_at_any_time(mode in 1..3_u8, events in events()) {
        let mode = if mode == 1 { Mode::Balance } else { Mode::Sbco };
        let mut world = World::new(mode, 3, Kernel::Stacks);
        for event in events {
            match event {
                Event::Looks(count) => (0..count).for_each(|_| world.look()),
                Event::Start(key, wants) if !world.machines.contains_key(&key) => {
                    let wants: Vec<f64> = wants.iter().map(|w| f64::from(*w) / 10.0).collect();
                    world.start(key, &wants);
                }
                Event::Start(..) => {}
                Event::Stop(key) => drop(world.machines.remove(&key)),
                Event::Grow(key) if world.machines.contains_key(&key) => world.grow(key, 1.0),
                Event::Grow(_) => {}
                Event::Shrink(key) => {
                    if let Some(tasks) = world.machines.get_mut(&key) {
                        tasks.truncate(tasks.len().max(2) - 1);
                    }
                }
                Event::Works(key, wants) => {
                    if let Some(task) = world.machines.get_mut(&key).and_then(|all| all.first_mut()) {
                        task.wants = f64::from(wants) / 10.0;
                    }
                }
                Event::Fault(which) => {
                    // the others come about by themselves
                    let fault = [Outcome::Refused, Outcome::Failed, Outcome::Later];
                    world.faults.push_back(fault[usize::from(which)]);
                }
                Event::Others(count) => world.others[1] = f64::from(count),
            }
        }
        world.faults.clear();
        world.undo();
        prop_assert!(world.is_as_before());
        prop_assert!(world.user.held().is_empty());
    }
}

//! Hosts that are kept busy.

use super::*;

fn busy(base: Base, machines: u32, policy: Box<dyn Policy>) -> (Host, Vec<Vec<TaskId>>) {
    let mut host = Host::new(base, 4, policy);
    let all: Vec<Vec<TaskId>> = (1..=machines)
        .map(|number| host.machine(number, 0, 4))
        .collect();
    // each core meets the machines in another order, and at another time
    for at in 0..4 {
        for number in 0..machines as usize {
            host.wake(all[(number * (2 * at + 1) + at) % all.len()][at]);
            host.run_ms(at as u64);
        }
    }
    all.iter().flatten().for_each(|id| host.wake(*id));
    (host, all)
}

#[test]
fn siblings_share_no_queue_as_long_as_there_are_cores() {
    for base in [Base::cfs(4), Base::eevdf(4)] {
        for (name, policy) in policies() {
            let spreads = policy.spreads();
            let (mut host, _) = busy(base, 5, policy);
            for _ in 0..300 {
                host.run_ms(1);
                check(host.scheduler.queues());
                let queues = host.scheduler.queues();
                let stacked = (1..=5).any(|number| queues.is_stacked(MachineId(number)));
                assert!(!(spreads && stacked), "{name}");
            }
        }
    }
}

#[test]
fn more_vcpus_than_cores_go_where_the_fewest_siblings_are() {
    let mut host = Host::new(Base::cfs(4), 4, Box::new(Balance));
    let ids = host.machine(1, 10, 10);
    let queues = host.scheduler.queues();
    let lengths: Vec<usize> = (0..4).map(|core| queues.length(core)).collect();
    assert_eq!(lengths.iter().sum::<usize>(), ids.len());
    assert!(
        lengths.iter().all(|length| (2..=3).contains(length)),
        "{lengths:?}"
    );
}

#[test]
fn each_vcpu_runs_in_each_period() {
    for machines in [2, 4, 8, 12] {
        for (name, policy) in policies() {
            if ["procco", "cpuco"].contains(&name) {
                continue;
            }
            let spreads = policy.spreads();
            let (mut host, all) = busy(Base::cfs(4), machines, policy);
            // what was new at once takes a while to find its place
            host.run_ms(1000);
            host.waited.clear();
            host.run_ms(4000);
            let period = 15.max(3 * u64::from(machines)) * MS as u64;
            for id in all.iter().flatten() {
                let waited = host.waited.get(id).copied().unwrap_or(u64::MAX);
                // one period, and as much again for those that are lent to; the tick rounds each slice up
                assert!(
                    !spreads || waited <= 5 * period / 2,
                    "{name} x{machines}: {waited}"
                );
            }
        }
    }
}

#[test]
fn lending_changes_nobodys_share() {
    for base in [Base::cfs(4), Base::eevdf(4)] {
        for machines in [3, 8] {
            for policy in [Sbco::paper(), Sbco::new(Threshold::Fixed(LEAST))] {
                let (mut host, all) = busy(base, machines, Box::new(policy));
                let before: Vec<f64> = all.iter().map(|ids| host.ran_ms(ids)).collect();
                host.run_ms(10_000);
                let ledger = host.scheduler.queues().ledger();
                assert!(
                    machines == 3 || ledger.loans > 0,
                    "{machines} machines: nothing was lent"
                );
                let fair = 4.0 * 10_000.0 / f64::from(machines);
                for (ids, before) in all.iter().zip(before) {
                    let ran = host.ran_ms(ids) - before;
                    assert!((ran / fair - 1.0).abs() < 0.02, "{ran} of {fair}: {base:?}");
                }
            }
        }
    }
}

#[test]
fn a_queue_of_two_is_never_far_apart() {
    let (mut host, _) = busy(Base::cfs(4), 2, Box::new(Sbco::paper()));
    host.run_ms(5_000);
    assert_eq!(host.scheduler.queues().ledger().loans, 0);
}

/// Two cores with three tasks each: the first that waits on core 0 is a sibling of the last on core 1.
fn far_apart() -> Queues {
    let mut queues = Queues::new(Base::cfs(2), 2);
    // number, machine, core, virtual time in milliseconds
    for (id, machine, core, ms) in [
        (0, 1, 0, 0),
        (1, 2, 0, 1),
        (2, 3, 0, 2),
        (3, 2, 1, 0),
        (4, 3, 1, 1),
        (5, 1, 1, 2),
    ] {
        let id = TaskId(id);
        queues.add(id, Some(MachineId(machine)), WEIGHT);
        queues.enqueue(0, id, core);
        let here = queues.task(id).unwrap().vruntime;
        queues.shift(id, ms * MS - here);
    }
    queues.run(0, TaskId(3));
    queues
}

#[test]
fn the_last_of_a_queue_of_three_borrows_from_the_first_of_another() {
    let mut queues = far_apart();
    let picked = Sbco::paper().pick(0, &mut queues, 0);
    assert_eq!(picked, Some(TaskId(1)));
    assert_eq!(queues.ledger().lent_ns, MS);
    assert_eq!(queues.debts(1).len(), 1);
    check(&queues);
}

#[test]
fn who_has_woken_lends_nothing_until_it_has_run() {
    let mut queues = far_apart();
    queues.dequeue(0, TaskId(0));
    queues.enqueue(0, TaskId(0), 0);
    assert_eq!(queues.ordinate(TaskId(0)), Some(0));
    let mut sbco = Sbco::paper();
    assert_eq!(sbco.pick(0, &mut queues, 0), Some(TaskId(0)));
    assert_eq!(queues.ledger().loans, 0);
    queues.run(0, TaskId(0));
    queues.stop(0, 0, true);
    assert_eq!(sbco.pick(0, &mut queues, 0), Some(TaskId(1)));
    assert_eq!(queues.ledger().loans, 1);
}

/// A vCPU that runs for a millisecond and sleeps for some, as the stages of a pipeline do, beside siblings that compute.
#[test]
fn who_sleeps_often_waits_no_longer_than_without_lending() {
    let waits_ms = |policy: Box<dyn Policy>| {
        let (mut host, all) = busy(Base::cfs(4), 8, policy);
        let sleeper = all[0][0];
        let (mut wakes_at, mut turns, mut waited) = (0, 0u64, 0u32);
        for ms in 0..10_000u64 {
            let place = host.scheduler.queues().task(sleeper).unwrap().place;
            match place {
                Place::Sleeps if ms >= wakes_at => host.wake(sleeper),
                Place::Waits => waited += 1,
                _ => {}
            }
            host.run_ms(1);
            let queues = host.scheduler.queues();
            let task = queues.task(sleeper).unwrap();
            let core = task.core;
            if task.place == Place::Runs && queues.ran_ns(core) >= MS {
                host.scheduler.stop(host.now_ns, core, Stop::Sleeps);
                host.choose(vec![core]);
                turns += 1;
                wakes_at = ms + 3 + turns * 7 % 11;
            }
        }
        f64::from(waited) / turns as f64
    };
    let (lent, apart) = (
        waits_ms(Box::new(Sbco::paper())),
        waits_ms(Box::new(Balance)),
    );
    assert!(lent < apart + 0.5, "{lent} ms against {apart}");
}

#[test]
fn a_free_core_takes_who_waits_though_another_core_has_more_to_do() {
    let mut queues = Queues::new(Base::cfs(3), 3);
    for (id, weight, core) in [(0, 4 * WEIGHT, 0), (1, WEIGHT, 1), (2, WEIGHT, 1)] {
        queues.add(TaskId(id), None, weight);
        queues.enqueue(0, TaskId(id), core);
    }
    queues.run(0, TaskId(0));
    queues.run(0, TaskId(1));
    assert_eq!(queues.surplus_for(2, false), Some(TaskId(2)));
    assert_eq!(queues.surplus_for(0, false), None);
}

/// Siblings have numbers that follow each other. Where a task goes must not follow from its number, or the kernel's default, which knows
/// no siblings, would seem to keep them apart.
#[test]
fn which_of_equal_cores_a_new_task_gets_depends_on_nothing_but_when_it_comes() {
    for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
        let mut queues = Queues::new(Base::cfs(4), 4);
        for (core, id) in order.into_iter().enumerate() {
            queues.add(TaskId(id), Some(MachineId(1)), WEIGHT);
            assert_eq!(queues.core_for(TaskId(id), false, None), core);
            queues.enqueue(0, TaskId(id), core);
        }
    }
}

#[test]
fn who_wakes_goes_to_its_waker_only_if_that_core_has_hardly_more_to_do_then() {
    let mut queues = Queues::new(Base::cfs(2), 2);
    let add = |queues: &mut Queues, id: u32| {
        queues.add(TaskId(id), None, WEIGHT);
        queues.enqueue(0, TaskId(id), id as usize % 2);
    };
    (0..24).for_each(|id| add(&mut queues, id));
    queues.dequeue(0, TaskId(23));
    // thirteen there, eleven here
    assert_eq!(queues.core_for(TaskId(23), false, Some(0)), 1);
    add(&mut queues, 25);
    assert_eq!(queues.core_for(TaskId(23), false, Some(0)), 0);
}

#[test]
fn siblings_come_closer_than_without_lending() {
    let mean = |policy: Box<dyn Policy>| {
        let (mut host, _) = busy(Base::cfs(4), 8, policy);
        let mut sum = 0;
        for _ in 0..5_000 {
            host.run_ms(1);
            let queues = host.scheduler.queues();
            sum += (1..=8)
                .map(|number| queues.distance(MachineId(number)))
                .sum::<usize>();
        }
        sum as f64 / 8.0 / 5_000.0
    };
    let (lent, apart) = (mean(Box::new(Sbco::paper())), mean(Box::new(Balance)));
    assert!(lent < apart, "{lent} against {apart}");
}

#[test]
fn a_gang_runs_with_its_leader_and_no_longer() {
    let mut host = Host::new(Base::cfs(4), 4, Box::new(Gang::procco()));
    let first = host.machine(1, 4, 4);
    host.machine(2, 4, 4);
    let mut together = 0;
    for _ in 0..1000 {
        host.run_ms(1);
        let queues = host.scheduler.queues();
        let runs = |id: &TaskId| queues.task(*id).unwrap().place == Place::Runs;
        if runs(&first[0]) {
            assert!(first.iter().all(runs));
            together += 1;
        }
    }
    assert!(together > 200, "{together}");
}

#[test]
fn weights_are_shares() {
    for base in [Base::cfs(1), Base::eevdf(1)] {
        let mut host = Host::new(base, 1, Box::new(Plain));
        let light = host.machine(1, 1, 1);
        let heavy = host.machine(2, 1, 1);
        host.scheduler.reweigh(heavy[0], 3 * WEIGHT);
        host.run_ms(20_000);
        let ratio = host.ran_ms(&heavy) / host.ran_ms(&light);
        assert!((2.8..3.2).contains(&ratio), "{ratio} {base:?}");
        check(host.scheduler.queues());
    }
}

#[test]
fn who_slept_goes_before_who_ran() {
    let mut host = Host::new(Base::cfs(1), 1, Box::new(Plain));
    let ids = host.machine(1, 3, 3);
    let sleeper = host.machine(2, 1, 1)[0];
    host.run_ms(100);
    while host.scheduler.queues().running(0) != Some(sleeper) {
        host.run_ms(1);
    }
    host.scheduler.stop(host.now_ns, 0, Stop::Sleeps);
    host.choose(vec![0]);
    host.run_ms(50);
    host.wake(sleeper);
    assert_eq!(host.scheduler.queues().running(0), Some(sleeper));
    assert!(
        ids.iter()
            .all(|id| host.scheduler.queues().task(*id).unwrap().place == Place::Waits)
    );
}

#[test]
fn whoever_is_waited_for_runs_at_once_and_pays_for_it() {
    let (mut host, all) = busy(Base::cfs(4), 8, Box::new(Told::default()));
    host.run_ms(200);
    let mut helped = 0;
    for _ in 0..500 {
        host.run_ms(1);
        let queues = host.scheduler.queues();
        let place = |id: &TaskId| queues.task(*id).unwrap().place;
        let spinner = all[0].iter().copied().find(|id| place(id) == Place::Runs);
        let waits = all[0].iter().copied().find(|id| place(id) == Place::Waits);
        let (Some(task), Some(awaited)) = (spinner, waits) else {
            continue;
        };
        let clean = |id: TaskId| queues.task(id).unwrap().dirty.is_none();
        let tells = clean(task) && clean(awaited);
        let tell = Tell::Spins {
            task,
            awaits: Some(awaited),
            in_kernel: true,
        };
        let cores = host.scheduler.told(host.now_ns, tell);
        host.choose(cores);
        if tells {
            assert_eq!(
                host.scheduler.queues().task(awaited).unwrap().place,
                Place::Runs
            );
            helped += 1;
        }
        check(host.scheduler.queues());
    }
    assert!(helped > 20, "{helped}");
    let before: Vec<f64> = all.iter().map(|ids| host.ran_ms(ids)).collect();
    host.run_ms(10_000);
    let after = all.iter().map(|ids| host.ran_ms(ids));
    let shares: Vec<f64> = after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(most / least < 1.03, "{shares:?}");
}

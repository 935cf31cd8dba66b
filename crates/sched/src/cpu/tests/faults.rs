//! Machines that end, are resized, are many, or lie; clocks that differ.

use super::*;

/// A host on which machine 1 has lent to a sibling that has not been told yet.
fn in_debt() -> (Host, TaskId, TaskId) {
    for seed in 0..200 {
        let mut host = Host::new(Base::cfs(4), 4, Box::new(Sbco::paper()));
        for number in 1..=8 {
            host.machine(number, 4, 4);
            host.run_ms(1 + seed * u64::from(number) % 7);
        }
        host.scheduler.stop(host.now_ns, 1, Stop::Sleeps);
        host.choose(vec![1]);
        host.run_ms(100 + seed);
        let queues = host.scheduler.queues();
        let mut debts = (0..4).flat_map(|core| queues.debts(core));
        if let Some(debt) = debts.find(|debt| debt.from.is_some()) {
            let (from, to) = (debt.from.unwrap(), debt.to);
            return (host, from, to);
        }
    }
    panic!("nobody lent anything");
}

#[test]
fn a_machine_that_ends_in_debt_leaves_none() {
    for ends_first in [true, false] {
        let (mut host, from, to) = in_debt();
        let machine = host.scheduler.queues().task(from).unwrap().machine.unwrap();
        let mut ids = host.scheduler.queues().vcpus(machine).to_vec();
        assert!(ids.contains(&to));
        // the lender's end first, or the borrower's
        ids.sort_by_key(|id| (*id == from) != ends_first);
        for id in ids {
            let cores = host.scheduler.remove(host.now_ns, id);
            check(host.scheduler.queues());
            host.choose(cores);
        }
        assert!(host.scheduler.queues().vcpus(machine).is_empty());
        host.run_ms(1000);
        check(host.scheduler.queues());
    }
}

#[test]
fn a_machine_that_is_resized_in_debt_gets_back_what_was_not_used() {
    let (mut host, from, to) = in_debt();
    let before = host.scheduler.queues().ledger();
    host.scheduler.reweigh(to, 2 * WEIGHT);
    check(host.scheduler.queues());
    assert_eq!(host.scheduler.queues().task(to).unwrap().dirty, None);
    host.run_ms(200);
    let after = host.scheduler.queues().ledger();
    assert!(after.returned_ns > before.returned_ns);
    assert!(host.scheduler.queues().task(from).is_some());
}

#[test]
fn a_debt_follows_its_borrower_to_another_core() {
    let mut queues = Queues::new(Base::cfs(2), 2);
    for id in 0..6 {
        queues.add(TaskId(id), Some(MachineId(1 + id % 3)), WEIGHT);
        queues.enqueue(0, TaskId(id), id as usize / 3);
        queues.shift(TaskId(id), i64::from(id) * MS);
    }
    assert!(queues.lend(TaskId(0), TaskId(5), MS, false));
    assert_eq!(queues.debts(1).len(), 1);
    queues.migrate(0, TaskId(5), 0);
    assert!(queues.debts(1).is_empty());
    assert_eq!(queues.debts(0).len(), 1);
    check(&queues);
    queues.settle(0);
    check(&queues);
}

#[test]
fn two_hundred_vcpus_of_one_machine_all_run() {
    for (name, policy) in policies() {
        let mut host = Host::new(Base::cfs(4), 4, policy);
        let ids = host.machine(1, 200, 200);
        host.run_ms(3000);
        check(host.scheduler.queues());
        let queues = host.scheduler.queues();
        let idle = ids
            .iter()
            .filter(|id| queues.task(**id).unwrap().ran_ns == 0)
            .count();
        assert_eq!(idle, 0, "{name}");
    }
}

#[test]
fn clocks_of_cores_that_differ_harm_nobody() {
    let mut scheduler = Scheduler::new(Base::cfs(4), 4, Box::new(Sbco::paper()));
    let ids: Vec<TaskId> = (0..16).map(TaskId).collect();
    for id in &ids {
        let machine = Some(MachineId(1 + id.0 / 4));
        scheduler.add(*id, machine, WEIGHT).unwrap();
        scheduler.wake(0, *id, None).unwrap();
    }
    // each core's clock is a minute behind the next one's
    let clock = |core: usize, ms: u64| (core as u64 * 60_000 + ms) * MS as u64;
    for ms in 0..4000 {
        for core in 0..4 {
            let over = scheduler.tick(clock(core, ms), core);
            if over {
                scheduler.stop(clock(core, ms), core, Stop::Preempted);
            }
            scheduler.pick(clock(core, ms), core, &mut Vec::new());
        }
        check(scheduler.queues());
    }
    for id in ids {
        let ran_ms = scheduler.queues().task(id).unwrap().ran_ns / MS as u64;
        assert!((900..1100).contains(&ran_ms), "{ran_ms}");
    }
}

#[test]
fn a_guest_that_spins_all_the_time_takes_nothing_from_others() {
    let mut host = Host::new(Base::cfs(4), 4, Box::new(Told::default()));
    let all: Vec<Vec<TaskId>> = (1..=4).map(|number| host.machine(number, 4, 4)).collect();
    for ms in 0..10_000u64 {
        host.run_ms(1);
        for task in &all[0] {
            let awaits = Some(all[0][ms as usize % 4]).filter(|id| id != task);
            let tell = Tell::Spins {
                task: *task,
                awaits,
                in_kernel: true,
            };
            let cores = host.scheduler.told(host.now_ns, tell);
            host.choose(cores);
        }
        check(host.scheduler.queues());
    }
    for ids in &all[1..] {
        let ran = host.ran_ms(ids);
        assert!(ran > 0.97 * 10_000.0, "{ran}");
    }
}

#[test]
fn what_is_not_known_is_refused_or_passed_over() {
    let mut scheduler = Scheduler::new(Base::eevdf(1), 0, Box::new(Told::default()));
    assert_eq!(scheduler.queues().cores(), 1);
    let id = TaskId(7);
    assert_eq!(scheduler.add(id, None, 0), Ok(()));
    assert_eq!(scheduler.add(id, None, 1), Err(AddError::Known(id)));
    assert_eq!(scheduler.wake(0, TaskId(8), None), None);
    assert!(scheduler.wake(0, id, Some(0)).is_some());
    assert_eq!(scheduler.wake(0, id, Some(0)), None);
    assert!(scheduler.remove(0, TaskId(8)).is_empty());
    assert!(
        scheduler
            .told(
                0,
                Tell::Spins {
                    task: TaskId(8),
                    awaits: None,
                    in_kernel: false
                }
            )
            .is_empty()
    );
    assert_eq!(scheduler.pick(0, 0, &mut Vec::new()), Some(id));
    assert_eq!(scheduler.remove(0, id), [0]);
    assert!(scheduler.queues().task(id).is_none());
}

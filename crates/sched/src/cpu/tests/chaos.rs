//! Whatever happens, in whatever order.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Run(u64),
    Wake(u32),
    Sleep(usize),
    End(u32),
    New(u32, u32),
    Weigh(u32, u32),
    Spin(usize, u32),
    Stopped(u32),
    Pull(usize),
    Back(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let task = || (1u32..6, 0u32..5).prop_map(|(machine, at)| machine * 1000 + at);
    prop_oneof![
        4 => (1u64..20).prop_map(Step::Run),
        3 => task().prop_map(Step::Wake),
        3 => (0usize..4).prop_map(Step::Sleep),
        1 => task().prop_map(Step::End),
        1 => (1u32..6, 1u32..6).prop_map(|(number, count)| Step::New(number, count)),
        1 => (task(), 1u32..5000).prop_map(|(id, weight)| Step::Weigh(id, weight)),
        3 => ((0usize..4), task()).prop_map(|(core, id)| Step::Spin(core, id)),
        1 => task().prop_map(Step::Stopped),
        1 => (0usize..4).prop_map(Step::Pull),
        1 => (1u64..50).prop_map(Step::Back),
    ]
}

fn apply(host: &mut Host, step: Step) {
    match step {
        Step::Run(ms) => host.run_ms(ms),
        Step::Wake(id) => host.wake(TaskId(id)),
        Step::Sleep(core) => {
            let cores = host.scheduler.stop(host.now_ns, core, Stop::Sleeps);
            host.choose(cores);
            host.choose(vec![core]);
        }
        Step::End(id) => {
            let cores = host.scheduler.remove(host.now_ns, TaskId(id));
            host.choose(cores);
        }
        Step::New(number, count) => {
            for at in 0..count {
                let id = TaskId(number * 1000 + at);
                if host
                    .scheduler
                    .add(id, Some(MachineId(number)), WEIGHT)
                    .is_ok()
                {
                    host.wake(id);
                }
            }
        }
        Step::Weigh(id, weight) => host.scheduler.reweigh(TaskId(id), weight),
        Step::Spin(core, id) => {
            if let Some(task) = host.scheduler.queues().running(core) {
                let awaits = Some(TaskId(id)).filter(|id| id.0 / 1000 == task.0 / 1000);
                let tell = Tell::Spins {
                    task,
                    awaits,
                    in_kernel: id.is_multiple_of(2),
                };
                let cores = host.scheduler.told(host.now_ns, tell);
                host.choose(cores);
            }
        }
        Step::Stopped(id) => {
            let task = TaskId(id);
            let told = host.scheduler.told(
                host.now_ns,
                Tell::Preempted {
                    task,
                    in_kernel: true,
                },
            );
            assert!(told.is_empty());
        }
        Step::Pull(core) => {
            host.scheduler.pull(host.now_ns, core);
        }
        Step::Back(ms) => host.now_ns = host.now_ns.saturating_sub(ms * MS as u64),
    }
}

proptest! {
    #[test]
    fn accounts_balance_and_queues_stay_whole(
        steps in proptest::collection::vec(step(), 1..120), modern in any::<bool>(), which in 0usize..7
    ) {
        let base = if modern { Base::eevdf(4) } else { Base::cfs(4) };
        let (_, policy) = policies().swap_remove(which);
        let mut host = Host::new(base, 4, policy);
        host.machine(1, 4, 4);
        host.machine(2, 4, 4);
        for step in steps {
            apply(&mut host, step);
            check(host.scheduler.queues());
        }
        // no core is idle while somebody waits on it
        host.run_ms(1);
        let queues = host.scheduler.queues();
        for core in 0..4 {
            prop_assert!(queues.running(core).is_some() || queues.waiting(core) == 0);
        }
    }

    #[test]
    fn nobody_lends_or_borrows_while_dirty(amounts in proptest::collection::vec((0u32..8, 0u32..8, 1i64..20), 1..60)) {
        let mut queues = Queues::new(Base::cfs(4), 4);
        for id in 0..8 {
            queues.add(TaskId(id), Some(MachineId(1)), WEIGHT);
            queues.enqueue(0, TaskId(id), id as usize % 4);
        }
        for (from, to, ms) in amounts {
            let dirty = |queues: &Queues, id| queues.task(TaskId(id)).unwrap().dirty.is_some();
            let was_dirty = dirty(&queues, from) || dirty(&queues, to);
            let lent = queues.lend(TaskId(from), TaskId(to), ms * MS, ms % 2 == 0);
            prop_assert_eq!(lent, !was_dirty && from != to);
            if ms % 5 == 0 {
                queues.settle(to as usize % 4);
            }
            check(&queues);
        }
    }
}

//! Tests what every policy promises, with random requests. Add a new policy to `policies`.

use floe_sched::{Class, Fifo, Full, MachineId, Op, Policy, Purpose, Vsip, VsipConfig, Who};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// How many requests the queues in these tests hold.
const ROOM: usize = 16;

fn policies() -> Vec<(&'static str, Box<dyn Policy<u32>>)> {
    vec![
        ("fifo", Box::new(Fifo::new(ROOM))),
        ("vsip", Box::new(Vsip::new(VsipConfig::disk(ROOM, 4)))),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Submit(Who, u64),
    Next,
    NextOf(u32),
    Forget(u32),
}

fn who() -> impl Strategy<Value = Who> {
    (0..4u32, 0..4usize, 0..3usize).prop_map(|(machine, purpose, class)| Who {
        machine: MachineId(machine),
        purpose: [
            Purpose::Demand,
            Purpose::Prefetch,
            Purpose::Seed,
            Purpose::Settle,
        ][purpose],
        class: [Class::Interactive, Class::Normal, Class::Bulk][class],
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (who(), 1..1_000_000u64).prop_map(|(who, bytes)| Step::Submit(who, bytes)),
        Just(Step::Next),
        (0..4u32).prop_map(Step::NextOf),
        (0..64u32).prop_map(Step::Forget),
    ]
}

proptest! {
    /// Each request comes out once, with the `Who` it came with, unless it was removed; and there are never more than fit.
    #[test]
    fn every_request_is_given_out_once_or_given_back(steps in proptest::collection::vec(step(), 0..200)) {
        for (name, mut policy) in policies() {
            let mut queued = std::collections::BTreeMap::new();
            let mut given = BTreeSet::new();
            let mut number = 0;
            for (at, step) in steps.iter().enumerate() {
                let now = at as u64;
                match step {
                    Step::Submit(who, bytes) => {
                        number += 1;
                        match policy.submit(now, *who, Op::Write, *bytes, number) {
                            Ok(()) => { queued.insert(number, *who); }
                            Err(Full(back)) => {
                                prop_assert_eq!(back, number, "{}", name);
                                prop_assert_eq!(queued.len(), ROOM, "{} refuses only when full", name);
                            }
                        }
                    }
                    Step::Next => {
                        // Whenever a request is queued, one is returned, unless the policy holds it back for a time.
                        let next = policy.next(now, &mut |_, _| true);
                        let held = next.is_none() && policy.wake_us().is_some();
                        prop_assert_eq!(next.is_some() || held, !queued.is_empty(), "{}", name);
                        if let Some((who, request)) = next {
                            prop_assert_eq!(queued.remove(&request), Some(who), "{}", name);
                            prop_assert!(given.insert(request), "{} gave {} twice", name, request);
                            policy.served(now, who, Op::Write, 1);
                        }
                    }
                    Step::NextOf(machine) => {
                        let machine = MachineId(*machine);
                        let next = policy.next(now, &mut |who, _| who.machine == machine);
                        let any = queued.values().any(|who| who.machine == machine);
                        let held = any && next.is_none() && policy.wake_us().is_some();
                        prop_assert_eq!(next.is_some() || held, any, "{}", name);
                        if let Some((who, request)) = next {
                            prop_assert_eq!(who.machine, machine, "{}", name);
                            prop_assert_eq!(queued.remove(&request), Some(who), "{}", name);
                            prop_assert!(given.insert(request), "{} gave {} twice", name, request);
                            policy.served(now, who, Op::Write, 1);
                        }
                    }
                    Step::Forget(request) => {
                        policy.retain(&mut |other| other != request);
                        queued.remove(request);
                    }
                }
                prop_assert_eq!(policy.len(), queued.len(), "{}", name);
            }
        }
    }
}

#[test]
fn the_first_to_come_is_the_first_to_be_served() {
    let mut fifo = Fifo::new(ROOM);
    for request in 0..5u32 {
        let who = Who::demand(MachineId(request % 2));
        fifo.submit(0, who, Op::Read, 4096, request).unwrap();
    }
    // A request that isn't ready keeps its place.
    let second = fifo.next(1, &mut |who, _| who.machine == MachineId(1));
    assert_eq!(second, Some((Who::demand(MachineId(1)), 1)));
    let order: Vec<u32> =
        std::iter::from_fn(|| fifo.next(2, &mut |_, _| true).map(|(_, request)| request)).collect();
    assert_eq!(order, [0, 2, 3, 4]);
}

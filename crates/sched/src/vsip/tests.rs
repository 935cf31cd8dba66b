//! Random histories. In this build every choice, and who is at work, is compared with a search through all machines
//! (`choose_by_search`, `at_work_by_search`), so that these tests fail when the ordered sets say anything else.

use super::*;
use crate::{Class, Purpose};
use proptest::prelude::*;

/// What happens in a history; after each step so many microseconds pass.
#[derive(Clone, Debug)]
enum Step {
    Submit(Who, Op, u64),
    Next,
    /// For requests of machines whose number is even.
    NextOfSome,
    Join,
    Grow(u64),
    Withdraw,
    Served(usize),
    Dropped(usize),
    Limit(u32, u32, u32),
    Gone(u32),
    Forget(u32),
}

fn who() -> impl Strategy<Value = Who> {
    let purposes = prop_oneof![
        4 => Just(Purpose::Demand),
        2 => Just(Purpose::Store),
        1 => Just(Purpose::Prefetch),
    ];
    let classes = prop_oneof![
        Just(Class::Interactive),
        Just(Class::Normal),
        Just(Class::Bulk)
    ];
    (0..24u32, purposes, classes).prop_map(|(machine, purpose, class)| Who {
        machine: MachineId(machine),
        purpose,
        class,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![4 => Just(Op::Read), 2 => Just(Op::Write), 1 => Just(Op::Flush)];
    prop_oneof![
        12 => (who(), op, 0..1_000_000u64).prop_map(|(who, op, bytes)| Step::Submit(who, op, bytes)),
        10 => Just(Step::Next),
        2 => Just(Step::NextOfSome),
        2 => Just(Step::Join),
        1 => (0..1_000_000u64).prop_map(Step::Grow),
        1 => Just(Step::Withdraw),
        8 => (0..16usize).prop_map(Step::Served),
        1 => (0..16usize).prop_map(Step::Dropped),
        1 => (0..24u32, 1..20u32, 1..150u32).prop_map(|(m, w, c)| Step::Limit(m, w, c)),
        1 => (0..24u32).prop_map(Step::Gone),
        1 => (0..8u32).prop_map(Step::Forget),
    ]
}

fn steps() -> impl Strategy<Value = Vec<(Step, u64)>> {
    let pauses = prop_oneof![
        6 => 0..2_000u64,
        3 => 0..60_000u64,
        1 => 0..5_000_000u64,
    ];
    proptest::collection::vec((step(), pauses), 1..400)
}

/// Lets a policy go through a history; returns how many requests came out.
fn play(mut policy: Vsip<u32>, steps: &[(Step, u64)]) -> usize {
    let (mut now_us, mut number, mut out) = (0, 0, 0);
    let mut flying: Vec<(Who, Op, u64)> = Vec::new();
    let mut all: HashMap<u32, (Op, u64)> = HashMap::new();
    for (step, pause_us) in steps {
        now_us += pause_us;
        let taken = match step {
            Step::Submit(who, op, bytes) => {
                number += 1;
                all.insert(number, (*op, *bytes));
                let _ = policy.submit(now_us, *who, *op, *bytes, number);
                None
            }
            Step::Next => policy.next(now_us, &mut |_, _| true),
            Step::NextOfSome => policy.next(now_us, &mut |who, _| who.machine.0 % 2 == 0),
            Step::Join => policy.join(now_us, &mut |_, _| true),
            Step::Grow(bytes) => {
                if let Some(last) = flying.last_mut()
                    && policy.flights.back().is_some_and(|last_flight| {
                        (last_flight.who, last_flight.op, last_flight.bytes) == *last
                    })
                {
                    policy.grow(*bytes);
                    last.2 += bytes;
                }
                None
            }
            Step::Withdraw => {
                out += usize::from(policy.withdraw(now_us, &mut |_, _| true).is_some());
                None
            }
            Step::Served(at) | Step::Dropped(at) => {
                if *at < flying.len() {
                    let (who, op, bytes) = flying.remove(*at);
                    match step {
                        Step::Served(_) => policy.served(now_us, who, op, bytes),
                        _ => policy.dropped(now_us, who, op, bytes),
                    }
                }
                None
            }
            Step::Limit(machine, weight, cap_percent) => {
                let (weight, cap_percent) = (*weight, *cap_percent);
                policy.limit(
                    MachineId(*machine),
                    Limit {
                        weight,
                        cap_percent,
                        among: 1 + *machine % 3,
                    },
                );
                None
            }
            Step::Gone(machine) => {
                policy.gone(MachineId(*machine));
                None
            }
            Step::Forget(part) => {
                policy.retain(&mut |request| request % 8 != *part);
                None
            }
        };
        if let Some((who, request)) = taken {
            let (op, bytes) = all[&request];
            flying.push((who, op, bytes));
            out += 1;
        }
    }
    // Nothing is left behind: what is queued comes out once all that is under way is done.
    for (who, op, bytes) in flying {
        policy.served(now_us, who, op, bytes);
    }
    let counted = (
        policy.flights.len(),
        policy.placed,
        policy.urgent_in_flight,
        policy.writes,
    );
    assert_eq!(counted, (0, 0, 0, (0, 0)));
    let (mut tries, most) = (0, 3 * policy.len());
    while !policy.is_empty() {
        now_us += 40_000;
        if let Some((who, request)) = policy.next(now_us, &mut |_, _| true) {
            let (op, bytes) = all[&request];
            policy.served(now_us, who, op, bytes);
            out += 1;
        }
        tries += 1;
        assert!(tries <= most + 10, "{} requests are stuck", policy.len());
    }
    assert_eq!((policy.urgent_queued, policy.ahead_queued), (0, 0));
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_ordered_sets_decide_as_a_search_through_all_machines_would(steps in steps()) {
        play(Vsip::new(VsipConfig::disk(256, 8)), &steps);
        play(Vsip::new(VsipConfig::link(256, 8)), &steps);
    }
}

//! Prints what a request costs in processor time with each policy, in microseconds: from being queued to being reported as
//! served, without the device.
//!
//! `cargo run --release -p floe-sched --example cost`

use floe_sched::{Class, Fifo, MachineId, Op, Policy, Purpose, Vsip, VsipConfig, Who};
use std::hint::black_box;

/// Requests that each round serves.
const REQUESTS: u64 = 300_000;

/// Rounds, of which the middle one is told with the quickest and the slowest.
const ROUNDS: usize = 5;

/// Most requests that are queued.
const QUEUED_MAX: usize = 4096;

/// Makes a policy.
type Make = fn() -> Box<dyn Policy<u64>>;

fn main() {
    for machines in [1, 8, 100] {
        let policies: [(&str, Make); 2] = [
            ("fifo", || Box::new(Fifo::new(QUEUED_MAX))),
            ("vsip", || {
                Box::new(Vsip::new(VsipConfig::disk(QUEUED_MAX, 16)))
            }),
        ];
        for (name, policy) in policies {
            let mut costs: Vec<f64> = (0..ROUNDS)
                .map(|_| us_per_request(policy(), machines))
                .collect();
            costs.sort_by(f64::total_cmp);
            println!(
                "{name}, {machines} machines: us_per_request {:.3} ({:.3} to {:.3})",
                costs[ROUNDS / 2],
                costs[0],
                costs[ROUNDS - 1]
            );
        }
    }
}

/// Serves requests of an SSD's pace: four each for each machine, of which one in eight is interactive.
fn us_per_request(mut policy: Box<dyn Policy<u64>>, machines: u32) -> f64 {
    let who = |number: u64| Who {
        machine: MachineId(number as u32 % machines),
        purpose: Purpose::Demand,
        class: match number % 8 {
            0 => Class::Interactive,
            _ => Class::Normal,
        },
    };
    let mut flying = std::collections::VecDeque::new();
    let (mut now_us, mut number) = (0, 0);
    let began = processor_us();
    for _ in 0..u64::from(machines) * 4 {
        let _ = policy.submit(now_us, who(number), Op::Read, 4096, number);
        number += 1;
    }
    let mut served = 0;
    while served < REQUESTS {
        now_us += 50;
        while flying.len() < 8
            && let Some(taken) = policy.next(now_us, &mut |_, _| true)
        {
            flying.push_back(taken);
        }
        if let Some((who, request)) = flying.pop_front() {
            policy.served(now_us, who, Op::Read, 4096);
            black_box(request);
            served += 1;
            // The same machine wants the next one at once.
            let _ = policy.submit(now_us, who, Op::Read, 4096, number);
            number += 1;
        }
    }
    (processor_us() - began) / REQUESTS as f64
}

/// Returns how long this thread has had a processor, in microseconds: others may be using the host.
fn processor_us() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat");
    let told = told.expect("Linux tells how long a thread has run");
    let ns = told
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse::<f64>().ok());
    ns.expect("a number of nanoseconds") / 1e3
}

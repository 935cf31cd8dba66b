//! Prints what a request costs in processor time with each policy, in microseconds: from being queued to being reported as
//! served, without the device.
//!
//! `cargo run --release -p floe-sched --example cost`

use floe_sched::{Class, Fifo, MachineId, Op, Policy, Purpose, Vsip, VsipConfig, Who};
use std::hint::black_box;
use std::time::Instant;

/// Requests that each round serves.
const REQUESTS: u64 = 1_000_000;

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
    let began = Instant::now();
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
    began.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64
}

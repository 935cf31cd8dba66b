//! Prints what a request costs in processor time with each policy, in microseconds: from being queued to being reported as
//! served, without the device. Then the same with the classification of each request before it, and that alone, which is all
//! that a read of what is in memory costs.
//!
//! `cargo run --release -p floe-sched --example cost`

use floe_sched::classify::{Classifier, ImageId, Owned, Place, Program, Seen};
use floe_sched::{Class, Fifo, MachineId, Op, Policy, Purpose, Vsip, VsipConfig, Who};
use std::hint::black_box;

/// Requests that each round serves.
const REQUESTS: u64 = 300_000;

/// Rounds, of which the middle one is told with the quickest and the slowest.
const ROUNDS: usize = 5;

/// Most requests that are queued.
const QUEUED_MAX: usize = 4096;

/// Files that each machine reads, and how many of them a directory has.
const FILES: u64 = 400;
const FOLDER_FILES: u64 = 20;

/// Makes a policy.
type Make = fn() -> Box<dyn Policy<u64>>;

fn main() {
    for machines in [1, 8, 100] {
        let policies: [(&str, Make, bool); 3] = [
            ("fifo", || Box::new(Fifo::new(QUEUED_MAX)), false),
            ("vsip", vsip, false),
            ("vsip, classified", vsip, true),
        ];
        for (name, policy, is_classified) in policies {
            let cost = || us_per_request(policy(), machines, is_classified);
            tell(
                &format!("{name}, {machines} machines: us_per_request"),
                cost,
            );
        }
        let cost = || us_per_hit(machines);
        tell(
            &format!("classified, {machines} machines: us_per_hit"),
            cost,
        );
    }
}

fn vsip() -> Box<dyn Policy<u64>> {
    Box::new(Vsip::new(VsipConfig::disk(QUEUED_MAX, 16)))
}

/// Prints the middle one of some rounds, with the quickest and the slowest.
fn tell(what: &str, cost: impl Fn() -> f64) {
    let mut costs: Vec<f64> = (0..ROUNDS).map(|_| cost()).collect();
    costs.sort_by(f64::total_cmp);
    let (middle, least, most) = (costs[ROUNDS / 2], costs[0], costs[ROUNDS - 1]);
    println!("{what} {middle:.3} ({least:.3} to {most:.3})");
}

/// Machines whose files are known, and in which somebody has clicked.
fn classifier(machines: u32) -> Classifier {
    let mut classifier = Classifier::new();
    for machine in 1..=machines {
        classifier.began(0, MachineId(machine), Owned::default());
        classifier.input(0, MachineId(machine));
    }
    classifier
}

/// Classifies a read of a file.
fn classify(classifier: &mut Classifier, now_us: u64, machine: MachineId, number: u64) -> Class {
    let image = ImageId::default();
    let file = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % FILES;
    let (program, folder) = (
        Program::File { image, inode: file },
        Program::Folder {
            image,
            inode: file / FOLDER_FILES,
        },
    );
    let seen = Seen {
        machine,
        program: Some(&program),
        folder: Some(&folder),
        place: Some(Place {
            region: 0,
            offset: file << 20,
        }),
        bytes: 4096,
        op: Op::Read,
    };
    classifier.request(now_us, &seen)
}

/// Classifies reads that wait for nothing.
fn us_per_hit(machines: u32) -> f64 {
    let mut classifier = classifier(machines);
    let began = processor_us();
    for number in 0..REQUESTS {
        let machine = MachineId(1 + number as u32 % machines);
        black_box(classify(&mut classifier, number * 50, machine, number));
    }
    (processor_us() - began) / REQUESTS as f64
}

/// Serves requests of an SSD's pace: four each for each machine, of which one in eight is interactive.
fn us_per_request(mut policy: Box<dyn Policy<u64>>, machines: u32, is_classified: bool) -> f64 {
    let mut classifier = is_classified.then(|| classifier(machines));
    let mut submit = |policy: &mut dyn Policy<u64>, now_us, who: Who, number| {
        if let Some(classifier) = &mut classifier {
            black_box(classify(classifier, now_us, who.machine, number));
        }
        let _ = policy.submit(now_us, who, Op::Read, 4096, number);
    };
    let who = |number: u64| Who {
        machine: MachineId(1 + number as u32 % machines),
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
        submit(&mut *policy, now_us, who(number), number);
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
            submit(&mut *policy, now_us, who, number);
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

//! The promises of streaming: replayed runs over links that misbehave, with models that lie.

mod common;

use common::*;
use floe_image::Hash;
use floe_planner::*;
use std::sync::Arc;

const POLICIES: [Policy; 5] = [
    Policy::DemandOnly,
    Policy::Neighbours,
    Policy::VmTorrent,
    Policy::VTube,
    Policy::Floe,
];

fn learn(policy: Policy, traces: &[ZeroTrace]) -> Option<Arc<Model>> {
    let method = policy.method()?;
    Some(Arc::new(train(
        method,
        &Hash::of(b"image"),
        traces,
        &TrainOptions::default(),
    )))
}

fn config(policy: Policy) -> Config {
    Config {
        policy,
        ..Config::default()
    }
}

fn run(policy: Policy, traces: &[ZeroTrace], tested: &ZeroTrace) -> Outcome {
    let run = Run::new(config(policy), MOBILE, steady(MOBILE), &[SPACE]);
    run.replay(learn(policy, traces), tested, u64::MAX)
}

/// Each run tested with the model of all others; sums.
fn leave_one_out(policy: Policy, traces: &[ZeroTrace]) -> Outcome {
    let mut sum = Outcome::default();
    for i in 0..traces.len() {
        let mut others = traces.to_vec();
        let tested = others.remove(i);
        let one = run(policy, &others, &tested);
        sum.touched += one.touched;
        sum.misses += one.misses;
        sum.fetched += one.fetched;
        sum.stalled_us += one.stalled_us;
        sum.paused_us += one.paused_us;
        sum.pauses += one.pauses;
        sum.launch_us += one.launch_us;
    }
    println!(
        "{policy:?}: ratio {:.2} miss {:.2}% wait {:.1} (stalled {:.1}) launch {:.1} pauses {}",
        sum.fetch_ratio(),
        100.0 * sum.miss_rate(),
        sum.wait_s(),
        sum.stalled_us as f64 / 1e6,
        sum.launch_us as f64 / 1e6,
        sum.pauses
    );
    sum
}

#[test]
fn our_own_policy_wastes_little_and_waits_less_than_neighbours() {
    for (name, workload) in [("game", GAME), ("compile", COMPILE)] {
        println!("{name}");
        let traces = workload.runs(8);
        let all: Vec<Outcome> = POLICIES
            .iter()
            .map(|p| leave_one_out(*p, &traces))
            .collect();
        let [_, _, _, vtube, floe] = all[..] else {
            panic!("five policies");
        };
        assert!(floe.fetch_ratio() < 1.5 && floe.fetch_ratio() < vtube.fetch_ratio() * 1.1);
        assert!(floe.wait_s() < all[1].wait_s());
    }
}

//! The experiments of disk scheduling, in short runs: that each part measures what its figures are of. What the figures are is the full runs' affair.

use crate::common::Measured;
use std::process::Command;

/// Runs `floe-lab io` with arguments that it refuses; returns what it says.
fn refused(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe-lab"));
    let output = command.arg("io").args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn sittings_need_a_file_and_parts_are_named() {
    let said = refused(&["--minutes", "5"]);
    assert!(said.contains("--kept"), "{said}");
    let said = refused(&["--only", "launches,nosuch"]);
    for part in [
        "launches", "pages", "echo", "shares", "two", "mixed", "live", "curves", "work",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Runs parts of the experiment with launches that are made up.
fn measured(parts: &str) -> Measured {
    let none = tempfile::tempdir().unwrap();
    let launches = none.path().to_str().unwrap();
    let measured = Measured::of(&["io", "--quick", "--only", parts, "--launches", launches]);
    measured.holds("recorded_launches", |value| value == 0.0);
    measured
}

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn launches_are_replayed_alone_and_beside_noise() {
    let measured = measured("launches");
    for name in [
        "launch_alone_s",
        "launch_reader1",
        "launch_reader7",
        "launch_reader7_wait_s",
        "launch_reader7_others_ms",
        "none.launch_reader7",
        "worst_over_best_peer",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
    measured.holds("launch_reader1_taken_pct", |value| {
        (0.0..=100.0).contains(&value)
    });
}

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn pages_films_and_commands_are_replayed_alone_and_beside_noise() {
    let measured = measured("pages,echo");
    for name in ["page_alone_s", "page_reader7", "echo_sync7_over_alone"] {
        measured.holds(name, |value| value > 0.0);
    }
    for name in ["drops_alone_pct", "drops_reader7_pct"] {
        measured.holds(name, |value| (0.0..=100.0).contains(&value));
    }
}

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn noisy_machines_are_counted_beside_a_user_a_liar_and_the_papers_benchmark() {
    let measured = measured("shares,two,mixed");
    for name in ["jain", "two_jain", "ssd.two_jain"] {
        measured.holds(name, |value| value > 0.0 && value <= 1.0 + 1e-9);
    }
    for name in [
        "throughput_ratio",
        "throughput_over_best_peer",
        "liar_gain",
        "liar_gain_click",
        "liar_gain_rename",
        "liar_gain_agent",
        "two_total_over_device",
        "device_over_model",
        "mixed_latency_over_alone",
        "whole.others_over_share",
        "fifo.others_over_share",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
}

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn curves_have_a_point_for_each_number_of_machines_and_work_takes_longer_or_not_beside_a_user() {
    let measured = measured("curves,work");
    for name in [
        "curve.warm_alone_s",
        "curve.warm_reader1",
        "curve.warm_reader2",
        "curve.warm_boot2_wait_s",
        "curve.page_boot1",
        "work_reader1_over_alone",
        "work_boot1_beside_s",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
    measured.holds("curve.drops_reader2_pct", |value| {
        (0.0..=100.0).contains(&value)
    });
}

#[test]
#[ignore = "needs root, FUSE, loop devices, QEMU, the tiny guest and the cpu controller: make test-all"]
fn a_real_guest_makes_the_requests_that_are_replayed() {
    let measured = measured("live");
    for name in [
        "live_over_replay",
        "live_over_replay_alone",
        "live_reader1_took_s",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
}

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn the_simulator_and_the_replay_tell_of_the_same_launches() {
    let measured = Measured::of(&["io-sim", "--quick"]);
    for name in [
        "sim_over_real",
        "vsip.sim_over_real_alone",
        "none.sim_over_real_reader7",
        "mclock.launch_reader7",
        "iocost.launch_boot7",
        "limiter.launch_reader7",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
}

#[test]
#[ignore = "needs root, FUSE, QEMU, the tiny and the debian guest: make test-all"]
fn what_is_known_of_who_asks_is_judged_in_three_views() {
    let measured = Measured::of(&["io-who", "--quick"]);
    for name in ["agent.requests", "file.requests", "input_only.requests"] {
        measured.holds(name, |value| value > 0.0);
    }
    for name in ["agent.recall", "file.recall", "input_only.recall"] {
        measured.holds(name, |value| (0.0..=1.0).contains(&value));
    }
}

#[test]
#[ignore = "needs root, FUSE and e2fsprogs: make test-all"]
fn decisions_and_reads_have_a_cost_with_8_and_with_100_machines() {
    let measured = Measured::of(&["io-cost", "--quick"]);
    for name in [
        "us_per_request",
        "us_per_request_100_machines",
        "us_per_hit",
        "us_per_hit_100_machines",
        "rand_read_ratio",
        "hit_read_ratio_8_machines",
    ] {
        measured.holds(name, |value| value > 0.0);
    }
}

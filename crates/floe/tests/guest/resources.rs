//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

use crate::support::command;
use crate::support::node::{self, Setup, Signal, TestNode, finish};
use crate::support::resources::{
    limit, needs_groups, now, pid, promised, quota_of, request, run, with_memory,
};
use floe_api::{CaptureRequest, ForkReport, ForkRequest};
use std::process::Command;

fn fork(node: &TestNode, parent: &str, clones: u32) -> Result<ForkReport, String> {
    let request = ForkRequest {
        clones,
        ..Default::default()
    };
    let events = node.client().fork(parent, &request).unwrap();
    let outcome = events.finish(|_| ()).map_err(|error| error.to_string())?;
    Ok(outcome.fork.unwrap())
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn forks_at_the_same_time_are_not_promised_the_same_memory() {
    let memory = format!("{}M", 304 + 4 * 80 + 40);
    // none is started ahead for the next fork, which would be promised memory too
    let node = TestNode::with(Setup {
        args: ["--memory", &memory, "--standby", "0"]
            .map(Into::into)
            .into(),
        ..Default::default()
    });
    node.boot_tiny("web");
    // each of them fits, both do not
    let forks = std::thread::scope(|scope| {
        let begun = [(); 2].map(|()| scope.spawn(|| fork(&node, "web", 4)));
        begun.map(|fork| fork.join().unwrap())
    });
    let [first, second] = forks;
    let (made, refused) = match (first, second) {
        (Ok(made), Err(refused)) | (Err(refused), Ok(made)) => (made, refused),
        both => panic!("{both:?}"),
    };
    assert_eq!(made.running, 4);
    let all = promised(&node);
    assert!(all.contains("624.0 MiB of 664.0 MiB"), "{all}");
    for part in ["80.0 MiB", "web 304.0 MiB", "--overcommit"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // what ends is there for the next
    for clone in &made.clones[..2] {
        node.client().remove_machine(&clone.name, true).unwrap();
    }
    let next = fork(&node, "web", 4).unwrap();
    assert_eq!((next.granted, next.running), (2, 2));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_qemu_that_waits_gives_way_to_machines_that_somebody_wants() {
    let node = with_memory(304 + 2 * 80 + 80);
    node.boot_tiny("web");
    let capture = CaptureRequest {
        name: Some("booted".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &capture).unwrap());
    run(&node, &request("booted", "again")).unwrap();
    node::eventually("QEMUs wait for the next runs of it and of others", || {
        let node = node.client().node().unwrap();
        (node.standby, node.blanks) == (1, 1)
    });
    let all = promised(&node);
    assert!(all.contains("480.0 MiB of 544.0 MiB"), "{all}");
    let made = fork(&node, "web", 2).unwrap();
    assert_eq!(made.running, 2);
    assert_eq!(node.client().node().unwrap().standby, 0);
}

/// Processor time of a machine's QEMU, milliseconds.
fn took_ms(node: &TestNode, name: &str) -> u64 {
    node.client().machine(name).unwrap().stats.cpu_us / 1000
}

/// Waits until the first machine has taken some seconds more; how many times as much that is as what the second took meanwhile.
fn ratio(node: &TestNode, first: &str, second: &str) -> f64 {
    let before = (took_ms(node, first), took_ms(node, second));
    node::eventually("a busy guest takes time", || {
        took_ms(node, first) - before.0 > 4000
    });
    let after = (took_ms(node, first), took_ms(node, second));
    (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64
}

#[test]
#[ignore = "needs root, FUSE, QEMU and control groups: make test-all"]
fn a_busy_guest_gets_the_part_of_a_core_that_it_is_limited_to_whoever_is_the_node() {
    let mut node = TestNode::start();
    needs_groups(&node);
    node.boot_tiny("whole");
    node.run_named("tiny", "part");
    node.wait_console("part", "floe-guest ready");
    for name in ["whole", "part"] {
        node.type_and_wait(name, "while :; do :; done & echo bu''sy", "busy");
    }
    assert_eq!(quota_of(pid(&node, "part")), None);
    limit(&node, "part", 50);
    assert_eq!(quota_of(pid(&node, "part")), Some(50));
    // a twentieth of a core; other work on this host may leave the other one no more than a few twentieths
    let limited = ratio(&node, "whole", "part");
    assert!(limited > 2.0, "{limited}");

    // the limit outlives its node, and goes with clones
    node.end(Signal::KILL);
    assert_eq!(quota_of(pid_of_record(&node, "part")), Some(50));
    node.start_again();
    node::eventually("part is adopted", || {
        node.client().machine("part").unwrap().pid.is_some()
    });
    let limits = node.client().machine("part").unwrap().limits;
    assert_eq!(limits.cpu_millicores, Some(50));
    limit(&node, "part", 0);
    assert_eq!(quota_of(pid(&node, "part")), None);
    let free = ratio(&node, "part", "whole");
    assert!(free > 0.25, "{free}");
    limit(&node, "part", 700);
    let clones = fork(&node, "part", 1).unwrap().clones;
    let clone = &clones[0].name;
    let limits = node.client().machine(clone).unwrap().limits;
    assert_eq!(limits.cpu_millicores, Some(700));
    assert_eq!(quota_of(pid(&node, clone)), Some(700));
    // and it holds for the next start
    node.client().stop("part", &now()).unwrap();
    finish(node.client().start("part", &Default::default()).unwrap());
    assert_eq!(quota_of(pid(&node, "part")), Some(700));
}

/// The process of a machine whose node is not there.
fn pid_of_record(node: &TestNode, name: &str) -> u32 {
    let path = node.home().join(format!("machines/{name}/vm/qemu.json"));
    let text = std::fs::read_to_string(path).unwrap();
    let id: serde_json::Value = serde_json::from_str(&text).unwrap();
    id["pid"].as_u64().unwrap() as u32
}

#[test]
#[ignore = "needs root, FUSE, QEMU and control groups: make test-all"]
fn no_control_group_stays_behind_a_machine_whoever_was_killed() {
    let mut node = TestNode::start();
    needs_groups(&node);
    let home = floe_api::paths::Home::at(node.home());
    let groups = || floe_node::control_groups(&home);
    node.boot_tiny("web");
    node.run_named("tiny", "db");
    assert_eq!(groups(), ["db", "web"]);
    // its QEMU ends under its node
    kill(pid(&node, "db"));
    node::eventually("the group of a machine that ended is removed", || {
        groups() == ["web"]
    });
    // and without one
    let qemu = pid(&node, "web");
    node.end(Signal::KILL);
    assert_eq!(groups(), ["web"]);
    kill(qemu);
    node.start_again();
    node::eventually("the next node removes what is left", || groups().is_empty());
    node.client().shutdown(&Default::default()).unwrap();
    node.end(Signal::TERM);
    assert!(groups().is_empty());
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// What QEMU's log may have.
const LOG_BYTES_MAX: u64 = 4 << 20;

#[test]
#[ignore = "needs root, FUSE, QEMU and a C compiler: make test-all"]
fn a_guest_that_makes_its_qemu_complain_without_end_fills_no_disk() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let program = node.home().join("queue_garbage");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/queue_garbage.c");
    let made = Command::new("cc")
        .args(["-static", "-O1", source, "-o"])
        .arg(&program)
        .status();
    assert!(made.unwrap().success());
    let program = program.to_str().unwrap();
    command::run(&node, &["cp", program, "web:/tmp/"]);
    let garbage = ["exec", "--detach", "web", "--", "/tmp/queue_garbage"];
    let done = command::run(&node, &garbage);
    assert!(done.status.success(), "{done:?}");
    // whether a node is there or not
    node.end(Signal::KILL);
    let log = node.home().join("machines/web/vm/qemu.log");
    let (mut last, mut shortened) = (0, 0);
    node::eventually("the log is full again and again", || {
        let now = std::fs::metadata(&log).unwrap().len();
        assert!(now <= LOG_BYTES_MAX, "{now} bytes");
        shortened += u32::from(now < last);
        last = now;
        shortened >= 3
    });
    node.start_again();
    let said = std::fs::read_to_string(&log).unwrap();
    let line = said.lines().rev().nth(1).unwrap();
    assert!(line.contains("qemu-system"), "{line}");
}

//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

mod node;

use floe_api::{
    CaptureRequest, ForkReport, ForkRequest, LimitRequest, Outcome, RunRequest, StartRequest, Wait,
};
use node::{Setup, Signal, TestNode, finish};

/// A node whose machines have so many MiB.
fn with_memory(mib: u64) -> TestNode {
    TestNode::with(Setup {
        args: ["--memory".into(), format!("{mib}M")].into(),
        ..Default::default()
    })
}

fn request(image: &str, name: &str) -> RunRequest {
    RunRequest {
        image: image.into(),
        name: Some(name.into()),
        wait: Wait::None,
        ..Default::default()
    }
}

fn run(node: &TestNode, request: &RunRequest) -> Result<Outcome, String> {
    let events = node.client().run(request).unwrap();
    events.finish(|_| ()).map_err(|error| error.to_string())
}

fn fork(node: &TestNode, parent: &str, clones: u32) -> Result<ForkReport, String> {
    let request = ForkRequest {
        clones,
        ..Default::default()
    };
    let events = node.client().fork(parent, &request).unwrap();
    let outcome = events.finish(|_| ()).map_err(|error| error.to_string())?;
    Ok(outcome.fork.unwrap())
}

/// What the node has promised, in its own words.
fn promised(node: &TestNode) -> String {
    let checks = node.client().doctor().unwrap().checks;
    let mut checks = checks.into_iter();
    checks
        .find(|check| check.name == "promises")
        .unwrap()
        .detail
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn memory_is_promised_once_and_whoever_wants_more_is_told_who_has_it() {
    let mut node = with_memory(512);
    node.boot_tiny("first"); // 256 MiB, and 48 for QEMU
    let refused = run(&node, &request("tiny", "second")).unwrap_err();
    for part in [
        "takes 304.0 MiB",
        "208.0 MiB of 512.0 MiB are left",
        "first 304.0 MiB",
        "--overcommit",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(
        node.client().machine("second").is_err(),
        "nothing of it stays"
    );
    let mut huge = request("tiny", "huge");
    huge.memory_bytes = Some(100 << 30);
    let refused = run(&node, &huge).unwrap_err();
    assert!(refused.contains("512.0 MiB in all"), "{refused}");
    assert!(refused.contains("--overcommit"), "{refused}");

    // who insists gets it; a stopped machine has nothing, and has to fit again
    let mut insists = request("tiny", "second");
    insists.overcommit = true;
    run(&node, &insists).unwrap();
    node.client().stop("second", &now()).unwrap();
    let start = |overcommit| StartRequest {
        overcommit,
        ..Default::default()
    };
    let again = |overcommit| {
        let started = node.client().start("second", &start(overcommit)).unwrap();
        started.finish(|_| ()).map_err(|error| error.to_string())
    };
    let refused = again(false).unwrap_err();
    assert!(refused.contains("first 304.0 MiB"), "{refused}");
    again(true).unwrap();
    node.client().remove_machine("second", true).unwrap();

    // the next node knows what the killed one promised
    let before = promised(&node);
    assert!(before.contains("304.0 MiB of 512.0 MiB"), "{before}");
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(promised(&node), before);
    let refused = run(&node, &request("tiny", "third")).unwrap_err();
    assert!(refused.contains("first 304.0 MiB"), "{refused}");
    node.client().stop("first", &now()).unwrap();
    run(&node, &request("tiny", "third")).unwrap();
}

fn now() -> floe_api::StopRequest {
    floe_api::StopRequest {
        now: true,
        timeout_s: None,
    }
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

/// Asserts that machines of this node have control groups.
fn needs_groups(node: &TestNode) {
    let checks = node.client().doctor().unwrap().checks;
    let groups = checks.iter().find(|check| check.name == "control groups");
    let groups = groups.unwrap();
    assert_eq!(groups.status, floe_api::CheckStatus::Ok, "{groups:?}");
}

/// The limit of a process's time in thousandths of a core, as its kernel has it.
fn quota_of(pid: u32) -> Option<u32> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.to_owned());
        let one = controllers.split(',').any(|name| name == "cpu");
        assert!(!one || path.starts_with("/floe/"), "{groups}");
        one.then_some((path.clone(), true))
            .or((controllers.is_empty() && path.starts_with("/floe/")).then_some((path, false)))
    };
    let (path, one) = groups.lines().find_map(of).unwrap();
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    let quota = match one {
        true => read(&format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us")),
        false => read(&format!("/sys/fs/cgroup{path}/cpu.max")),
    };
    let us: Option<u32> = quota.split_whitespace().next().unwrap().parse().ok();
    us.map(|us| us / 100)
}

fn pid(node: &TestNode, name: &str) -> u32 {
    node.client().machine(name).unwrap().pid.unwrap()
}

/// Processor time of a machine's QEMU, milliseconds.
fn took_ms(node: &TestNode, name: &str) -> u64 {
    node.client().machine(name).unwrap().stats.cpu_us / 1000
}

fn limit(node: &TestNode, name: &str, millicores: u32) {
    let request = LimitRequest {
        cpu_millicores: Some(millicores),
        memory_max_bytes: None,
        ..Default::default()
    };
    node.client().limit(name, &request).unwrap();
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
fn a_guest_that_takes_more_memory_than_it_may_is_ended_and_others_go_on() {
    let node = TestNode::start();
    needs_groups(&node);
    node.boot_tiny("modest");
    let used = node.client().machine("modest").unwrap().stats.memory_bytes;
    assert!(used > 64 << 20, "{used}");
    let too_little = LimitRequest {
        cpu_millicores: None,
        memory_max_bytes: Some(64 << 20),
        ..Default::default()
    };
    let refused = node.client().limit("modest", &too_little).unwrap_err();
    assert!(refused.to_string().contains("already"), "{refused}");
    let limits = node.client().machine("modest").unwrap().limits;
    assert_eq!(limits.memory_max_bytes, None, "nothing of it stays");
    // a boot of the same guest takes more than this
    let mut greedy = request("tiny", "greedy");
    greedy.limits.memory_max_bytes = Some((128 << 20).min(used - (16 << 20)));
    run(&node, &greedy).unwrap();
    node::eventually("the greedy guest is ended", || {
        let machine = node.client().machine("greedy").unwrap();
        machine.status == floe_api::MachineStatus::Failed
    });
    let why = node.client().machine("greedy").unwrap().detail;
    assert!(why.contains("memory limit of"), "{why}");
    node.type_and_wait("modest", "echo fi''ne", "fine");
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

//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

mod node;

use floe_api::{CaptureRequest, ForkReport, ForkRequest, Outcome, RunRequest, StartRequest, Wait};
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
fn memory_is_promised_once_and_whoever_wants_more_is_told_who_has_it() {
    if !node::system() {
        return;
    }
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
fn forks_at_the_same_time_are_not_promised_the_same_memory() {
    if !node::system() {
        return;
    }
    let node = with_memory(304 + 4 * 80 + 40);
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
fn a_qemu_that_waits_gives_way_to_machines_that_somebody_wants() {
    if !node::system() {
        return;
    }
    let node = with_memory(304 + 2 * 80 + 80);
    node.boot_tiny("web");
    let capture = CaptureRequest {
        name: Some("booted".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &capture).unwrap());
    run(&node, &request("booted", "again")).unwrap();
    node::eventually("a QEMU waits for the next run", || {
        node.client().node().unwrap().standby == 1
    });
    let all = promised(&node);
    assert!(all.contains("464.0 MiB of 544.0 MiB"), "{all}");
    let made = fork(&node, "web", 2).unwrap();
    assert_eq!(made.running, 2);
    assert_eq!(node.client().node().unwrap().standby, 0);
}

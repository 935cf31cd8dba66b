//! What machines take of their host, on real guests: nobody is promised what another one has, limits hold, and nothing of it is
//! forgotten by a node that dies.

use crate::support::node::{self, Signal, TestNode};
use crate::support::resources::{needs_groups, now, promised, request, run, with_memory};
use floe_api::{LimitRequest, StartRequest};

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
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

#[test]
#[ignore = "needs root, FUSE, QEMU and control groups: make test"]
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

//! Hosts that are less than floe would like: deep directories, few descriptors; and what forks and killed nodes leave on them.

use crate::support::command::{ends, floe, said};
use crate::support::forks::{clones, fork, settling};
use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use crate::support::park::{refused, succeeds};
use floe_api::*;
use std::fs;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_state_directory_may_be_deeper_than_a_sockets_address_and_a_killed_store_leaves_nothing() {
    let mut node = TestNode::with(Setup {
        deep: true,
        ..Default::default()
    });
    node.boot_tiny("web");
    let pid = node.client().machine("web").unwrap().pid;
    // the console's socket, as floe console connects to it
    node.type_and_wait("web", "echo typed-$((40+2))", "typed-42");
    let asked = ends(floe(&node, &["console", "web", "--quiet-for", "1"]));
    assert!(asked.status.success(), "{}", said(&asked));
    let tmp = node.home().join("repo/tmp");
    node.end(Signal::KILL);
    fs::write(tmp.join("new-a1B2c3"), vec![7; 100_000]).unwrap();
    // it takes the mount over from its supervisor, whose socket is as deep
    node.start_again();
    eventually("nothing is left", || {
        fs::read_dir(&tmp).unwrap().next().is_none()
    });
    eventually("the machine is taken over", || {
        let machine = node.client().machine("web").unwrap();
        machine.status == MachineStatus::Running && machine.pid == pid
    });
    node.type_and_wait("web", "echo again-$((3+4))", "again-7");
    succeeds(&node, &["park", "web"]);
    succeeds(&node, &["wake", "web"]);
    node.type_and_wait("web", "echo woken-$((5+5))", "woken-10");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_for_which_there_are_no_descriptors_are_refused_by_the_limits_name_before_any_starts() {
    /// Most that a clone with one disk is counted with, and what is left to the node.
    const CLONE: u64 = 16;
    const LEFT: u64 = 128;
    let node = TestNode::with(Setup {
        args: vec!["--standby".into(), "0".into()],
        ..Default::default()
    });
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    let before = node.descriptors();
    let (first, _) = fork(&node, "web", &settling(4));
    assert_eq!(first.running, 4);
    let each = node.descriptors().saturating_sub(before).div_ceil(4);
    assert!(each <= CLONE, "a clone has {each} descriptors in the node");
    eventually("the fork is stored", || {
        let one = node.client().machine("web.1").unwrap();
        one.cloned.is_some_and(|cloned| cloned.settled)
    });
    // room for two more, and not for a third, even if some connections and files that are open at this moment are closed by then
    node.limit_descriptors(LEFT + 2 * CLONE + 4);
    let (few, _) = fork(&node, "web", &clones(8));
    assert!((1..=2).contains(&few.granted), "{few:?}");
    node.limit_descriptors(LEFT);
    let none = ends(floe(&node, &["fork", "web", "-n", "2"]));
    let said = said(&none);
    assert_eq!(none.status.code(), Some(5), "{said}");
    for part in ["files open", "LimitNOFILE="] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        node.client().machines().unwrap().machines.len() as u32,
        5 + few.granted
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_that_was_forked_is_parked_once_its_forks_memory_is_stored_if_its_user_waits() {
    let node = TestNode::start();
    node.boot_tiny("web");
    fork(&node, "web", &clones(1));
    for name in ["web", "web.1"] {
        refused(&node, &["park", name], &["floe park --wait"]);
    }
    let parked = succeeds(&node, &["park", "--wait", "web", "web.1"]);
    assert!(parked.contains("web is parked"), "{parked}");
    assert!(parked.contains("web.1 is parked"), "{parked}");
    let told = succeeds(&node, &["events", "--since", "10m", "--once"]);
    assert!(told.contains("fork.stored"), "{told}");
    succeeds(&node, &["wake", "web", "web.1"]);
    for name in ["web", "web.1"] {
        node.type_and_wait(name, "echo woken-$((5+5))", "woken-10");
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn images_of_forks_that_nobody_needs_any_more_go_by_themselves() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    for round in 0..2 {
        let (made, _) = fork(&node, "web", &settling(1));
        let clone = made.clones[0].name.clone();
        eventually("the fork is stored", || {
            let clone = node.client().machine(&clone).unwrap();
            clone.cloned.is_some_and(|cloned| cloned.settled)
        });
        // from here on the machine's disks stand on the capture, and not on the fork's image
        let capture = CaptureRequest {
            name: Some(format!("kept-{round}")),
            ..Default::default()
        };
        finish(node.client().capture("web", &capture).unwrap());
        succeeds(&node, &["rm", "--force", &clone]);
    }
    node.end(Signal::KILL);
    node.start_again();
    // the imported one and two captures
    eventually("nothing of the forks is left", || node.images_stored() == 3);
    node.type_and_wait("web", "echo still-$((2+2))", "still-4");
}

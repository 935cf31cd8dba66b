//! Machines that go back to images that were captured from them: they stay who they are, whatever they do meanwhile and whatever becomes of
//! their node.

use crate::support::command::{ends, floe, said};
use crate::support::node::{Signal, TestNode, eventually, finish};
use crate::support::park::{answers, machine, refused, succeeds};
use floe_api::*;

/// A node with the machine `web`, which has a disk and a forwarded port, and which was captured as `before`.
fn node_with_web() -> TestNode {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        forwards: vec!["0:80".parse().unwrap()],
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    writes(&node, "first-on-disk", 41, "ready");
    captures(&node, "web", "before");
    node
}

fn captures(node: &TestNode, machine: &str, name: &str) {
    let capture = CaptureRequest {
        name: Some(name.into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture(machine, &capture).unwrap());
}

/// Has the guest keep a text of 13 bytes on its disk, and a number in its memory.
fn writes(node: &TestNode, text: &str, number: u32, word: &str) {
    let line =
        format!("X={number}; echo {text} | dd of=/dev/vda conv=fsync 2>/dev/null; echo {word}-$X");
    node.type_and_wait("web", &line, &format!("{word}-{number}"));
}

/// Checks both.
fn has(node: &TestNode, text: &str, number: u32, word: &str) {
    assert_eq!(machine(node, "web").status, MachineStatus::Running);
    let line = format!("echo {word}-$X-$(head -c 13 /dev/vda)");
    node.type_and_wait("web", &line, &format!("{word}-{number}-{text}"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_goes_back_in_place_from_whatever_it_does_and_stays_itself() {
    let node = node_with_web();
    let was = machine(&node, "web");
    let asked = ends(floe(&node, &["rollback", "web", "before"]));
    assert_eq!(asked.status.code(), Some(2), "{}", said(&asked));
    assert!(said(&asked).contains("--force"), "{}", said(&asked));

    let back = ["rollback", "web", "before", "--force"];
    for (round, way) in [
        None,
        Some(&["stop", "--now", "web"][..]),
        Some(&["park", "web"]),
    ]
    .into_iter()
    .enumerate()
    {
        writes(&node, "later-on-disk", 7, &format!("later{round}"));
        if let Some(way) = way {
            succeeds(&node, way);
        }
        let said = succeeds(&node, &back);
        assert!(said.contains("web goes on: before"), "{said}");
        has(&node, "first-on-disk", 41, &format!("back{round}"));
        let is = machine(&node, "web");
        assert_eq!(
            (&is.forwards, is.created_unix_s, is.memory_bytes),
            (&was.forwards, was.created_unix_s, was.memory_bytes)
        );
        assert_eq!(is.image_name, "before");
        eventually("its server answers", || answers(is.forwards[0].host_port));
    }

    // what it is now can be kept, and is an image of its own as well
    writes(&node, "other-on-disk", 5, "other");
    succeeds(&node, &["rollback", "web", "before", "--keep", "after"]);
    has(&node, "first-on-disk", 41, "kept");
    succeeds(&node, &["rollback", "web", "after", "--force"]);
    has(&node, "other-on-disk", 5, "after");
    // it can be parked, captured and started from its disks as before
    succeeds(&node, &["park", "web"]);
    succeeds(&node, &["wake", "web"]);
    has(&node, "other-on-disk", 5, "woken");
    captures(&node, "web", "again");
    succeeds(&node, &["stop", "--now", "web"]);
    succeeds(&node, &["start", "web", "--wait", "agent"]);
    node.type_and_wait(
        "web",
        "echo cold-[$X]-$(head -c 13 /dev/vda)",
        "cold-[]-other-on-disk",
    );

    let log = node.log();
    assert_eq!(log.matches("machine.rolled-back").count(), 5, "{log}");
    assert!(!node.home().join("set-aside").exists(), "nothing was lost");
    succeeds(&node, &["rm", "--force", "web"]);
    assert_eq!(node.client().machines().unwrap().machines.len(), 0);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_does_not_become_another_one() {
    let node = node_with_web();
    node.run_named("before", "other");
    captures(&node, "other", "others");
    for image in ["tiny", "others"] {
        let words = ["was not captured from web", &format!("floe run {image}")];
        refused(&node, &["rollback", "web", image, "--force"], &words);
    }
    let none = ends(floe(&node, &["rollback", "web", "nosuch", "--force"]));
    assert_eq!(none.status.code(), Some(3), "{}", said(&none));
    // that name would be taken from the image that it goes back to
    let same = ["rollback", "web", "before", "--keep", "before"];
    let same = ends(floe(&node, &same));
    assert_eq!(same.status.code(), Some(2), "{}", said(&same));
    assert!(said(&same).contains("another name"), "{}", said(&same));
    // what is to be kept must not stand in the way of a machine that has nothing to keep
    succeeds(&node, &["stop", "--now", "web"]);
    let kept = ends(floe(
        &node,
        &["rollback", "web", "before", "--keep", "after"],
    ));
    assert!(!kept.status.success(), "{}", said(&kept));
    assert_eq!(machine(&node, "web").status, MachineStatus::Stopped);
    // a renamed machine is the same one
    succeeds(&node, &["rename", "web", "shop"]);
    succeeds(&node, &["rollback", "shop", "before", "--force"]);
    assert_eq!(machine(&node, "shop").status, MachineStatus::Running);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_is_killed_while_a_machine_goes_back_leaves_one_machine() {
    let mut node = node_with_web();
    writes(&node, "later-on-disk", 7, "later");
    let request = RollbackRequest {
        image: "before".into(),
        ..Default::default()
    };
    let began = node.client().rollback("web", &request).unwrap();
    // it may have been done by then, which is no less of a machine
    let _done = began.finish(|event| {
        if matches!(event, Event::Stage { name, .. } if name == "back") {
            node.signal(Signal::KILL);
        }
    });
    node.end(Signal::KILL);
    node.start_again();
    let calm = [MachineStatus::Parked, MachineStatus::Running];
    eventually("it is there", || {
        calm.contains(&machine(&node, "web").status)
    });
    if machine(&node, "web").status == MachineStatus::Parked {
        succeeds(&node, &["wake", "web"]);
    }
    has(&node, "first-on-disk", 41, "back");
    assert_eq!(node.client().machines().unwrap().machines.len(), 1);

    // one that went back is taken over like any other
    let pid = machine(&node, "web").pid;
    node.end(Signal::KILL);
    node.start_again();
    eventually("it is taken over", || machine(&node, "web").pid == pid);
    has(&node, "first-on-disk", 41, "again");
    succeeds(&node, &["rollback", "web", "before", "--force"]);
    has(&node, "first-on-disk", 41, "twice");
}

//! Hooks in guests, which are called before a machine's state is taken and once it goes on, and what programs there are told of a copy.

use crate::support::command::{ok, run, said};
use crate::support::dock::{fails, sh};
use crate::support::exec::wait_for;
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::park::{machine, refused};
use floe_api::MachineStatus;

/// A hook that notes each call. It hangs in `freeze` if `/hangs` is there, fails in it if `/busy` is, and in `thaw` if `/sad` is.
const HOOK: &str = r#"mkdir -p /etc/floe/hooks.d; cat > /etc/floe/hooks.d/10-db <<'END'
#!/bin/sh
echo $1 $2 >> /hooks
case $1 in
  freeze)
    [ ! -e /hangs ] || exec sleep 100000
    [ ! -e /busy ] || { echo users are there; exit 3; } ;;
  thaw)
    [ ! -e /sad ] || { echo no disk; exit 4; } ;;
esac
END
chmod 755 /etc/floe/hooks.d/10-db"#;

/// Boots the tiny guest as `web` with the hook.
fn booted() -> TestNode {
    let node = TestNode::start();
    node.boot_tiny("web");
    sh(&node, "web", HOOK);
    node
}

/// What the hook of a machine has noted, on one line.
fn noted(node: &TestNode, name: &str) -> String {
    sh(node, name, "echo $(cat /hooks)")
}

/// Waits until the last call that a machine's hook has noted is this one, and returns all of them.
fn noted_at_last(node: &TestNode, name: &str, call: &str) -> String {
    wait_for(
        node,
        name,
        &format!("[ \"$(tail -n 1 /hooks)\" = '{call}' ]"),
    );
    noted(node, name)
}

/// What a machine's guest is told of its generation: the number, and the id.
fn generation(node: &TestNode, name: &str) -> (u64, String) {
    let line = ". /run/floe.generation && echo $number $id";
    let told = sh(node, name, line);
    let (number, id) = told.split_once(' ').unwrap();
    (number.parse().unwrap(), id.to_owned())
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn hooks_freeze_before_a_state_is_taken_and_thaw_in_the_machine_and_in_each_copy() {
    let node = booted();
    let capture = ["capture", "web", "--rehearse", "0", "--name"];
    ok(&node, &[&capture[..], &["kept"]].concat());
    assert_eq!(noted(&node, "web"), "freeze capture thaw capture");
    // nothing is owed once it has gone on
    sh(&node, "web", "[ ! -e /run/floe.thaw ]");
    ok(&node, &[&capture[..], &["other", "--hooks", "0"]].concat());
    assert_eq!(noted(&node, "web"), "freeze capture thaw capture");

    // what the hook has written before the capture is in the image, and nothing that it wrote after it
    node.run_named("kept", "again");
    let before = "freeze capture thaw restore";
    assert_eq!(noted_at_last(&node, "again", "thaw restore"), before);
    ok(&node, &["park", "again"]);
    ok(&node, &["wake", "again", "--wait", "agent"]);
    assert_eq!(
        noted_at_last(&node, "again", "thaw wake"),
        format!("{before} freeze park thaw wake")
    );

    ok(&node, &["fork", "web", "-n", "1"]);
    let before = "freeze capture thaw capture freeze fork";
    assert_eq!(noted(&node, "web"), format!("{before} thaw fork"));
    assert_eq!(
        noted_at_last(&node, "web.1", "thaw clone"),
        format!("{before} thaw clone")
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_hook_that_fails_or_hangs_refuses_what_was_to_be_done_and_the_machine_goes_on_thawed() {
    let node = booted();
    sh(&node, "web", "touch /busy");
    let images = node.images_stored();
    let capture = ["capture", "web", "--rehearse", "0"];
    let mut calls = String::new();
    for (what, args) in [
        ("capture", &capture[..]),
        ("fork", &["fork", "web", "-n", "1"][..]),
        ("park", &["park", "web"][..]),
    ] {
        refused(&node, args, &["10-db", "users are there", "--hooks 0"]);
        calls += &format!(" freeze {what} thaw {what}");
        assert_eq!(noted(&node, "web"), calls.trim());
    }
    assert_eq!(node.images_stored(), images);
    assert_eq!(machine(&node, "web").status, MachineStatus::Running);
    assert_eq!(node.client().machines().unwrap().machines.len(), 1);

    // one that hangs is ended, or this would wait for it for a day
    sh(&node, "web", "rm /busy; touch /hangs");
    let why = fails(&node, &[&capture[..], &["--hooks", "5"]].concat());
    assert!(why.contains("was ended"), "{why}");
    sh(&node, "web", "! pidof sleep");
    assert!(noted(&node, "web").ends_with("freeze capture thaw capture"));

    // what fails afterwards is only told
    sh(&node, "web", "rm /hangs; touch /sad");
    let done = run(&node, &[&capture[..], &["--name", "kept"]].concat());
    assert!(done.status.success(), "{done:?}\n{}", node.log());
    let said = said(&done);
    assert!(
        said.contains("failed to thaw") && said.contains("no disk"),
        "{said}"
    );
    node.run_named("kept", "again");
    eventually("what failed in the copy is told", || {
        node.log().contains("machine.hooks")
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn hooks_that_a_killed_node_has_frozen_are_thawed_under_the_next_one() {
    let mut node = booted();
    node.end(Signal::KILL);
    node.start_again();
    sh(&node, "web", "[ ! -e /hooks ]");
    // what the guest has if its node is killed between the two words
    sh(&node, "web", "echo fork > /run/floe.thaw");
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(noted_at_last(&node, "web", "thaw fork"), "thaw fork");
    wait_for(&node, "web", "[ ! -e /run/floe.thaw ]");
    // and this one knows of the hooks, although it was not there when they were made
    ok(&node, &["capture", "web", "--rehearse", "0"]);
    let calls = "thaw fork freeze capture thaw capture";
    assert_eq!(noted(&node, "web"), calls);
    // those that are taken away are not called any more
    sh(&node, "web", "rm -r /etc/floe/hooks.d");
    ok(&node, &["capture", "web", "--rehearse", "0"]);
    assert_eq!(noted(&node, "web"), calls);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_copy_of_a_machine_is_another_generation_and_a_machine_under_another_node_is_not() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let first = generation(&node, "web");
    assert_eq!(first.0, 1);
    ok(&node, &["fork", "web", "-n", "2"]);
    let copies = ["web.1", "web.2"].map(|name| {
        wait_for(&node, name, "grep -qx number=2 /run/floe.generation");
        generation(&node, name).1
    });
    assert!(copies[0] != copies[1] && !copies.contains(&first.1));
    assert_eq!(generation(&node, "web"), first);
    node.end(Signal::KILL);
    node.start_again();
    ok(&node, &["wait", "web", "--for", "answers"]);
    assert_eq!(generation(&node, "web"), first);

    ok(&node, &["park", "web", "--wait"]);
    ok(&node, &["wake", "web", "--wait", "agent"]);
    wait_for(&node, "web", "grep -qx number=2 /run/floe.generation");
    assert!(!copies.contains(&generation(&node, "web").1));
}

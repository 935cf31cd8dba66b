//! A machine's life as its user steers it: pause and resume, starts that wait for nothing or for a sign of life, stops that are told
//! as what they were, and a node that has ended when `floe down` says so.

use crate::support::command::{ends, floe, said};
use crate::support::life::{machine, runs};
use crate::support::node::{Signal, TestNode, eventually, finish};
use floe_api::*;
use std::process::Stdio;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_a_user_paused_stands_still_until_he_resumes_it_even_under_another_node() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let pid = machine(&node, "web").pid;
    let paused = ends(floe(&node, &["pause", "web"]));
    assert!(paused.status.success(), "{}", said(&paused));
    assert!(said(&paused).contains("web is paused"), "{}", said(&paused));
    for round in 0..2 {
        let info = machine(&node, "web");
        assert_eq!(info.status, MachineStatus::Paused, "{info:?}");
        assert_eq!(info.paused_for, [PauseReason::User]);
        assert!(info.detail.contains("floe resume web"), "{info:?}");
        if round == 0 {
            node.end(Signal::KILL);
            node.start_again();
            eventually("the machine is taken over", || {
                machine(&node, "web").pid == pid
            });
        }
    }
    let again = ends(floe(&node, &["pause", "web"]));
    assert!(again.status.success(), "{}", said(&again));
    let resumed = ends(floe(&node, &["resume", "nosuch", "web"]));
    // each gets its turn, and the first failure is the command's
    assert_eq!(resumed.status.code(), Some(3), "{}", said(&resumed));
    assert!(
        said(&resumed).contains("web is running"),
        "{}",
        said(&resumed)
    );
    node.type_and_wait("web", "echo back-$((40+2))", "back-42");
    let record = std::fs::read_to_string(node.home().join("machines/web/machine.json")).unwrap();
    assert!(!record.contains("pauses"), "{record}");
    let twice = ends(floe(&node, &["resume", "web"]));
    assert_eq!(twice.status.code(), Some(1), "{}", said(&twice));
    let log = node.log();
    assert!(
        log.contains("machine.paused") && log.contains("machine.continued"),
        "{log}"
    );
    // one that is paused can be stopped: its guest is woken for that
    ends(floe(&node, &["pause", "web"]));
    let stopped = ends(floe(&node, &["stop", "--now", "web"]));
    assert!(stopped.status.success(), "{}", said(&stopped));
    let refused = ends(floe(&node, &["pause", "web"]));
    assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
    let misspelt = ends(floe(&node, &["pause", "wbe"]));
    assert!(
        said(&misspelt).contains("did you mean web?"),
        "{}",
        said(&misspelt)
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_restored_machine_is_there_at_once_and_a_wait_that_ends_leaves_it() {
    let node = TestNode::start();
    node.boot_tiny("one");
    let capture = CaptureRequest {
        name: Some("tiny-live".into()),
        ..Default::default()
    };
    finish(node.client().capture("one", &capture).unwrap());
    // nobody listens on port 9, so that this wait has no end of its own
    let silent = ["run", "tiny-live", "-p", "0:9"];
    let run =
        |name: &str, more: &[&str]| floe(&node, &[&silent[..], &["--name", name], more].concat());
    let at_once = ends(run("two", &[]));
    assert!(at_once.status.success(), "{}", said(&at_once));
    assert!(
        !said(&at_once).contains("no sign of life"),
        "{}",
        said(&at_once)
    );
    assert!(runs(&node, "two"));

    let late = ends(run("three", &["--wait", "port", "--wait-timeout", "1"]));
    assert_eq!(late.status.code(), Some(1), "{}", said(&late));
    assert!(
        said(&late).contains("gave no sign of life within 1 s"),
        "{}",
        said(&late)
    );
    assert!(runs(&node, "three"));

    let mut cut = run("four", &["--wait", "port=9"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the machine runs while it is waited for", || {
        node.client()
            .machine("four")
            .is_ok_and(|machine| machine.status == MachineStatus::Running)
    });
    // the wait is no operation: others can begin
    eventually("the machine's start is over", || {
        node.client().pause("four").is_ok()
    });
    node.client().resume("four").unwrap();
    let pid = rustix::process::Pid::from_child(&cut);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    assert_eq!(cut.wait().unwrap().code(), Some(130));
    // what the node does once it has noticed is nothing: the next call is answered, and the machine is there
    let started = ends(run("five", &["-p", "0:80", "--wait", "port=80"]));
    assert!(started.status.success(), "{}", said(&started));
    assert!(said(&started).contains("port"), "{}", said(&started));
    let agent = ends(run("six", &["--wait", "agent"]));
    assert!(agent.status.success(), "{}", said(&agent));
    for name in ["two", "three", "four", "five", "six"] {
        assert!(runs(&node, name), "{name}: {}", node.log());
    }
    let not_forwarded = ends(run("seven", &["--wait", "port=80"]));
    assert_eq!(
        not_forwarded.status.code(),
        Some(2),
        "{}",
        said(&not_forwarded)
    );
}

//! A machine's life as its user steers it: pause and resume, starts that wait for nothing or for a sign of life, stops that are told
//! as what they were, and a node that has ended when `floe down` says so.

use crate::support::command::{ends, floe, said};
use crate::support::life::{machine, runs};
use crate::support::node::{self, PATIENCE, Setup, Signal, TestNode, eventually, finish};
use floe_api::*;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn each_stop_at_a_full_disk_is_reported_and_a_user_who_resumes_learns_of_it() {
    let node = TestNode::with(Setup {
        disk_bytes: Some(128 << 20),
        ..Default::default()
    });
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "one");
    node.wait_console("one", "floe-guest ready");
    let reported = || node.log().matches("machine.stopped-at-disk").count();
    for round in 1..3 {
        let filler = node.fill_disk(1 << 20);
        let write = format!(
            "dd if=/dev/urandom of=/dev/vda bs=64k seek={} count=64 conv=fsync 2>/dev/null; echo wrote-$(({round}+9))-end",
            round * 64
        );
        let typed = node.type_line("one", &write);
        eventually("the stop is reported", || reported() == round);
        drop(typed);
        assert_eq!(machine(&node, "one").paused_for, [PauseReason::Disk]);
        if round == 1 {
            let paused = ends(floe(&node, &["pause", "one"]));
            assert!(paused.status.success(), "{}", said(&paused));
            let resumed = ends(floe(&node, &["resume", "one"]));
            assert!(resumed.status.success(), "{}", said(&resumed));
            let what = "one goes on later, because a disk can't be written";
            assert!(said(&resumed).contains(what), "{}", said(&resumed));
        }
        std::fs::remove_file(filler).unwrap();
        node.wait_console("one", &format!("wrote-{}-end", round + 9));
        assert!(runs(&node, "one"));
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_that_had_to_be_switched_off_is_told_as_that_and_hides_no_other() {
    let node = TestNode::start();
    node.boot_tiny("one");
    node.run_named("tiny", "two");
    node.wait_console("two", "floe-guest ready");
    // neither knows what a power button is
    let stop = ["stop", "one", "nosuch", "two", "--timeout", "1"];
    let stopped = ends(floe(&node, &stop));
    assert_eq!(stopped.status.code(), Some(3), "{}", said(&stopped));
    for name in ["one", "two"] {
        let warned = format!("warning: {name} was switched off");
        assert!(said(&stopped).contains(&warned), "{}", said(&stopped));
        let info = machine(&node, name);
        assert_eq!(info.status, MachineStatus::Stopped);
        assert!(
            info.switched_off && info.detail.contains("within 1 s"),
            "{info:?}"
        );
    }
    assert!(
        said(&stopped).contains("no machine nosuch"),
        "{}",
        said(&stopped)
    );
    finish(
        node.client()
            .start("one", &StartRequest::default())
            .unwrap(),
    );
    assert!(!machine(&node, "one").switched_off);
    let stopped = ends(floe(&node, &["stop", "one", "--timeout", "1"]));
    assert_eq!(stopped.status.code(), Some(6), "{}", said(&stopped));
    finish(
        node.client()
            .start("one", &StartRequest::default())
            .unwrap(),
    );
    let stopped = ends(floe(&node, &["stop", "one", "--now"]));
    assert_eq!(stopped.status.code(), Some(0), "{}", said(&stopped));
    assert_eq!(machine(&node, "one").detail, "stopped on request");
    let removed = ends(floe(&node, &["rm", "nosuch", "one", "two"]));
    assert_eq!(removed.status.code(), Some(3), "{}", said(&removed));
    assert!(node.client().machines().unwrap().machines.is_empty());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn when_down_is_done_the_node_has_ended_and_its_addresses_are_free() {
    let page = node::free_address();
    let mut node = TestNode::with(Setup {
        web: Some(page.clone()),
        hub: true,
        ..Default::default()
    });
    node.boot_tiny("one");
    for machines in [false, true] {
        let down = match machines {
            false => ends(floe(&node, &["down"])),
            true => ends(floe(&node, &["down", "--machines"])),
        };
        assert!(down.status.success(), "{}", said(&down));
        std::net::TcpListener::bind(&page).expect("the page's address is free");
        assert!(floe_api::client::Client::connect(node.home().join("node.sock")).is_err());
        node.end(Signal::TERM);
        node.start_again();
        let status = match machines {
            false => MachineStatus::Running,
            true => MachineStatus::Stopped,
        };
        let until = std::time::Instant::now() + PATIENCE;
        while machine(&node, "one").status != status {
            assert!(std::time::Instant::now() < until, "{}", node.log());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

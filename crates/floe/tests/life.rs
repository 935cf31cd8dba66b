//! A machine's life as its user steers it: pause and resume, starts that wait for nothing or for a sign of life, stops that are told
//! as what they were, and a node that has ended when `floe down` says so.

mod command;
mod node;

use command::{ends, floe, said};
use floe_api::*;
use node::{PATIENCE, Setup, Signal, TestNode, eventually, finish};
use std::process::Stdio;

fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

fn runs(node: &TestNode, name: &str) -> bool {
    machine(node, name).status == MachineStatus::Running
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
            let what = "one still stands for a disk that can't be written";
            assert!(said(&resumed).contains(what), "{}", said(&resumed));
        }
        std::fs::remove_file(filler).unwrap();
        node.wait_console("one", &format!("wrote-{}-end", round + 9));
        assert!(runs(&node, "one"));
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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

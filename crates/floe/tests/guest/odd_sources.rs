//! A guest whose image comes from a web server that answers oddly for a while: it starts, stands still and goes on, and its user is told
//! what it waits for.

use crate::odd::{Mode, OddServer};
use crate::support::command::{code, said};
use crate::support::exec::sh;
use crate::support::node::{Setup, TestNode, eventually, finish};
use floe_api::{
    CaptureRequest, ErrorCode, Limits, MachineStatus, PauseReason, PushRequest, RunRequest,
};
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the image is on the web server.
const SHELF: &str = "images";

/// A web server with the state of a booted guest, named `live`.
fn served(dir: &std::path::Path) -> OddServer {
    let node = TestNode::start();
    node.boot_tiny("one");
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        stop: true,
        ..Default::default()
    };
    finish(node.client().capture("one", &capture).unwrap());
    let push = PushRequest {
        image: "live".into(),
        to: dir.display().to_string(),
        ..Default::default()
    };
    finish(node.client().push(&push).unwrap());
    OddServer::start(dir, "", None).unwrap()
}

/// Starts `web` on a node that has nothing of the image, while the server answers so; it is right again once it was asked for the same
/// thing five times.
fn start_while(mode: Mode, server: &OddServer, node: &TestNode) {
    server.take(SHELF);
    server.set(SHELF, mode);
    let request = RunRequest {
        image: format!("http://{}/{SHELF}#live", server.addr),
        name: Some("web".into()),
        ..Default::default()
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| node.run(&request));
        let mut asked = HashMap::new();
        eventually("tries again", || {
            for one in server.take(SHELF) {
                *asked.entry(one.path).or_insert(0) += 1;
            }
            let is_patient = asked.values().any(|times| *times >= 5);
            assert!(is_patient || !run.is_finished(), "it was given up");
            is_patient
        });
        server.set(SHELF, Mode::Right);
        assert!(run.join().unwrap().machine.is_some());
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_start_outlives_a_page_for_signing_in_and_ps_says_what_a_guest_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(&dir.path().join("images"));
    let [_denied, node] = [Mode::PageDeniedPacks, Mode::Page].map(|mode| {
        let node = TestNode::start();
        start_while(mode, &server, &node);
        node
    });
    node.type_and_wait("web", "echo alive-$((40+2))", "alive-42");

    // the guest reads memory that it has not touched since
    server.set(SHELF, Mode::PagePacks);
    let typist = node.type_line(
        "web",
        "md5sum /bin/busybox; find / -xdev | md5sum; echo alive-$((40+3))",
    );
    let detail = || node.client().machine("web").unwrap().detail;
    eventually("what it waits for", || {
        let detail = detail();
        detail.contains("waits for its source") && detail.contains("a web page came")
    });
    server.set(SHELF, Mode::Right);
    node.wait_console("web", "alive-43");
    drop(typist);
    eventually("no more of it", || {
        !detail().contains("waits for its source")
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_command_for_a_guest_whose_memory_does_not_come_is_told_that_and_not_to_install_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(&dir.path().join("images"));
    let node = TestNode::start();
    node.run(&RunRequest {
        image: format!("http://{}/{SHELF}#live", server.addr),
        name: Some("web".into()),
        ..Default::default()
    });
    server.set(SHELF, Mode::PagePacks);
    // its only CPU comes to memory that it has not touched since
    let typist = node.type_line(
        "web",
        "md5sum /bin/busybox; find / -xdev | md5sum; echo alive-$((40+4))",
    );
    eventually("it waits for its source", || {
        let machine = node.client().machine("web").unwrap();
        machine.detail.contains("waits for its source")
    });
    let refused = said(&code(&node, 5, &["exec", "web", "--", "true"]));
    for part in [
        "no agent answers in web yet",
        "is still to come from http://",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(!refused.contains("agent install"), "{refused}");
    server.set(SHELF, Mode::Right);
    node.wait_console("web", "alive-44");
    drop(typist);
    sh(&node, "echo well");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_that_may_not_wait_for_long_ends_and_its_user_is_told_for_want_of_what() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(&dir.path().join("images"));
    let node = TestNode::start();
    node.run(&RunRequest {
        image: format!("http://{}/{SHELF}#live", server.addr),
        name: Some("web".into()),
        limits: Limits {
            io_timeout_s: Some(600),
            ..Default::default()
        },
        ..Default::default()
    });
    node.type_and_wait("web", "echo alive-$((40+2))", "alive-42");
    // changed while it runs
    let text = said(&code(&node, 0, &["limit", "web", "--io-timeout", "2s"]));
    assert!(text.contains("2 s for what no source gives"), "{text}");
    server.set(SHELF, Mode::Silent);
    let typist = node.type_line(
        "web",
        "md5sum /bin/busybox; find / -xdev | md5sum; echo alive-$((40+3))",
    );
    let machine = || node.client().machine("web").unwrap();
    eventually("it has ended", || machine().status == MachineStatus::Failed);
    drop(typist);
    let detail = machine().detail;
    assert!(
        detail.contains("its QEMU ended: a read of ram") && detail.contains("failed after"),
        "{detail}"
    );
    // the event comes before the machine's end, however quick that is
    eventually("that is told", || {
        node.log().contains("machine.request-failed")
    });
    let limits = floe_api::LimitRequest {
        io_timeout_s: Some(floe_api::IO_TIMEOUT_S_MAX + 1),
        ..Default::default()
    };
    let refused = node.client().limit("web", &limits).unwrap_err();
    assert!(refused.to_string().contains("use 1 to"), "{refused}");
}

/// For how many seconds a machine has waited for its source, as its user is told.
fn waited_s(detail: &str) -> Option<u64> {
    let (_, rest) = detail.split_once("waits for its source, ")?;
    rest.split(' ').next()?.parse().ok()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_whose_source_is_silent_stands_still_and_goes_on_with_the_right_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(&dir.path().join("images"));
    let node = TestNode::with(Setup {
        args: vec!["--io-pause".into(), "5".into()],
        ..Default::default()
    });
    node.run(&RunRequest {
        image: format!("http://{}/{SHELF}#live", server.addr),
        name: Some("web".into()),
        ..Default::default()
    });
    node.type_and_wait("web", "echo alive-$((40+2))", "alive-42");
    let told = |event: &str| node.log().matches(event).count();
    let (waits, continued) = (told("machine.waits"), told("machine.continued"));

    server.set(SHELF, Mode::Silent);
    let typist = node.type_line(
        "web",
        "md5sum /bin/busybox; find / -xdev | md5sum; echo alive-$((40+3))",
    );
    let machine = || node.client().machine("web").unwrap();
    eventually("it stands still for a while", || {
        let info = machine();
        info.status == MachineStatus::Paused && waited_s(&info.detail).is_some_and(|s| s >= 12)
    });
    let info = machine();
    assert_eq!(info.paused_for, [PauseReason::Source]);
    assert!(info.detail.contains("goes on by itself"), "{}", info.detail);
    assert_eq!(told("machine.waits"), waits + 1);
    assert_eq!(told("machine.continued"), continued);

    // what its QEMU would have to answer is refused, and what its user wants stands beside it
    let capture = node.client().capture("web", &CaptureRequest::default());
    let refused = capture.and_then(|events| events.finish(|_| ()));
    assert_eq!(refused.unwrap_err().to_api().code, ErrorCode::Busy);
    node.client().pause("web").unwrap();
    assert_eq!(
        machine().paused_for,
        [PauseReason::User, PauseReason::Source]
    );
    server.set(SHELF, Mode::Right);
    eventually("what it waited for has come", || {
        machine().paused_for == [PauseReason::User]
    });
    assert_eq!(told("machine.continued"), continued);
    node.client().resume("web").unwrap();
    node.wait_console("web", "alive-43");
    drop(typist);
    assert!(told("machine.continued") > continued);

    // its clock stood still for some seconds
    let now_s = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap().as_secs()
    };
    eventually("its clock is right", || {
        let before = now_s();
        let guest: u64 = sh(&node, "date +%s").trim().parse().unwrap();
        guest + 2 >= before && guest <= now_s() + 1
    });
}

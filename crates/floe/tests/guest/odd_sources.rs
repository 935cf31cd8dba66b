//! A guest whose image comes from a web server that answers oddly for a while: it starts, stands still and goes on, and its user is told
//! what it waits for.

use crate::odd::{Mode, OddServer};
use crate::support::command::{code, said};
use crate::support::dock::sh;
use crate::support::node::{TestNode, eventually, finish};
use floe_api::{CaptureRequest, PushRequest, RunRequest};

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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_start_outlives_a_page_for_signing_in_and_ps_says_what_a_guest_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(&dir.path().join("images"));
    let node = TestNode::start();
    server.set(SHELF, Mode::Page);
    let request = RunRequest {
        image: format!("http://{}/{SHELF}#live", server.addr),
        name: Some("web".into()),
        ..Default::default()
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| node.run(&request));
        let mut asked = 0;
        eventually("a second try", || {
            asked += server.take(SHELF).len();
            asked > 8
        });
        server.set(SHELF, Mode::Right);
        assert!(run.join().unwrap().machine.is_some());
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
    sh(&node, "web", "echo well");
}

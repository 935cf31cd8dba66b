//! `floe push` to a bucket and `floe image copy`, with a real guest and real servers of S3, Google's and Azure's kind: whatever is killed on the way, what was
//! published runs and streams.

use crate::support::bucket::azurite::{ACCOUNT, Azurite};
use crate::support::bucket::{BucketServer, Mood};
use crate::support::command::{floe, ok, run};
use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use floe_api::{CaptureRequest, RunRequest};
use std::process::Child;

const PREFIX: &str = "team";

/// A push that the server leaves without an answer after one pack.
fn half_a_push(node: &TestNode, server: &BucketServer) -> Child {
    let before = server.stored_bytes(PREFIX);
    server.set(Mood::Hangs { after: 1 });
    let child = floe(node, &["push", "live", "s3://images/team"])
        .spawn()
        .unwrap();
    eventually("a pack in the bucket", || {
        server.stored_bytes(PREFIX) > before
    });
    child
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_moves_by_buckets_and_hubs_however_often_its_way_is_cut() {
    let (server, azure) = (BucketServer::start(), Azurite::start());
    let setup = || Setup {
        env: [
            server.environment(),
            server.google_environment(),
            azure.environment(ACCOUNT.1),
        ]
        .concat(),
        ..Default::default()
    };
    let mut node = TestNode::with(setup());
    node.boot_tiny("one");
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("one", &capture).unwrap());

    // Ctrl-C, then a node that is killed: nothing is visible, and what is there is not sent again
    let child = half_a_push(&node, &server);
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let child = half_a_push(&node, &server);
    node.end(Signal::KILL);
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success(), "{ended:?}");
    assert!(server.files("team/tags").is_empty() && server.files("team/images").is_empty());
    node.start_again();
    server.set(Mood::Willing);
    let there = server.stored_bytes(PREFIX);
    let text = ok(&node, &["push", "live", "s3://images/team"]);
    assert!(text.contains("went on after a cut"), "{text}");
    let sent = server.sent().0;
    assert_eq!(server.stored_bytes(PREFIX), there + sent);
    let text = ok(
        &node,
        &[
            "--json",
            "push",
            "live",
            "s3://images/team",
            "--name",
            "again",
        ],
    );
    assert!(text.contains("\"wire_bytes\":0"), "{text}");

    // another node runs it, and has touched only a part of it
    let other = TestNode::with(setup());
    let ran = other.run(&RunRequest {
        image: "s3://images/team/live".into(),
        name: Some("two".into()),
        ..Default::default()
    });
    assert!(ran.machine.is_some());
    other.type_and_wait("two", "echo alive-$((40+2))", "alive-42");

    // bucket to hub, hub to a directory, directory to a bucket, to another vendor's and to a third one's, bucket to a node
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("hub");
    let token = floe_hub::create_token(&at, "ann").unwrap();
    let options = floe_hub::HubOptions::new(&at, "127.0.0.1:0".parse().unwrap());
    let serving = floe_hub::serve(options).unwrap();
    let (hub, token) = (serving.url(), ["--token", &token]);
    let files = dir.path().join("images");
    let files = files.to_str().unwrap();
    let copy = |from: &str, to: &str, more: &[&str]| {
        ok(&other, &[&["image", "copy", from, to], more].concat());
    };
    copy(
        "s3://images/team/again",
        &hub,
        &[&["--name", "hubs"][..], &token].concat(),
    );
    copy(&format!("{hub}/hubs"), files, &token);
    copy(
        &format!("{files}/hubs"),
        "s3://images/second",
        &["--name", "web:v2"],
    );
    copy("s3://images/second/web:v2", "az://images/team", &[]);
    copy("az://images/team/web:v2", "gs://images/third", &[]);
    copy("gs://images/third/web:v2", "home", &[]);
    let id = |node: &TestNode, name: &str| node.client().image(name).unwrap().summary.id;
    assert_eq!(id(&other, "home"), id(&node, "live"));
    ok(&other, &["image", "verify", "home"]);

    // and a third node runs it from there, with the other vendor's bucket beside
    let third = TestNode::with(setup());
    ok(
        &third,
        &[
            "run",
            "az://images/team/web:v2",
            "--source",
            "gs://images/third/web:v2",
            "--name",
            "three",
        ],
    );
    third.type_and_wait("three", "echo alive-$((40+3))", "alive-43");

    // what can't be is refused with the way out
    let refused = |args: &[&str], fix: &str| {
        let done = run(&other, args);
        let text = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && text.contains(fix), "{done:?}");
    };
    refused(&["image", "copy", "home", "further"], "floe image tag");
    server.set(Mood::Refuses(404, "NoSuchBucket"));
    refused(&["push", "home", "s3://nowhere/x"], "AWS_ENDPOINT_URL");
}

//! Traces, models and pauses with real guests, a real hub and a link that is too slow: the whole way round.

use crate::support::node::{Signal, TestNode, eventually};
use crate::support::streaming::{SlowLink, WORK, request, slow_link, stop, world};
use floe_api::*;
use floe_traces::{Method, Model};
use std::sync::atomic::Ordering::Relaxed;

/// A link over which almost nothing comes, and one that is no hindrance.
const CRAWL_BYTES_S: u64 = 60_000;

const FAST_BYTES_S: u64 = 4_000_000;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn two_machines_of_one_image_are_each_buffered_and_their_bytes_come_once() {
    let world = world();
    // somebody teaches the hub what this guest touches
    let teacher = TestNode::start();
    teacher.run(&request(&world.hub.url(), "one"));
    teacher.type_and_wait("one", WORK, "worked-2");
    stop(&teacher, "one");
    eventually("a model", || world.model_file().is_some());
    drop(teacher);

    // what one machine alone needs, over a link that is fast enough
    let untraced = |link: &SlowLink, name: &str| RunRequest {
        no_trace: true,
        ..request(&link.url, name)
    };
    let (alone, link) = (TestNode::start(), slow_link(world.hub.addr()));
    link.bytes_s.store(FAST_BYTES_S, Relaxed);
    alone.run(&untraced(&link, "one"));
    alone.type_and_wait("one", WORK, "worked-2");
    let once = link.carried.load(Relaxed);
    drop(alone);

    let (node, link) = (TestNode::start(), slow_link(world.hub.addr()));
    let client = node.client();
    let is_buffering =
        |name: &str| client.machine(name).unwrap().status == MachineStatus::Buffering;
    let buffered = |name: &str| {
        let what = format!("{name} is paused at its start");
        eventually(&what, || {
            is_buffering(name) || client.stream_info(name).unwrap().pauses > 0
        });
    };
    node.run(&untraced(&link, "one"));
    buffered("one");
    // so slow that the second machine starts long before all is there
    link.bytes_s.store(CRAWL_BYTES_S, Relaxed);
    node.run(&untraced(&link, "two"));
    buffered("two");
    let (one, two) = (
        client.stream_info("one").unwrap(),
        client.stream_info("two").unwrap(),
    );
    assert!(one.model && two.model, "{one:?} {two:?}");
    link.bytes_s.store(FAST_BYTES_S, Relaxed);
    for name in ["one", "two"] {
        eventually("both go on", || !is_buffering(name));
        node.type_and_wait(name, WORK, "worked-2");
        assert!(client.stream_info(name).unwrap().pauses > 0, "{name}");
    }
    // the two touch much the same, and some pages that no other run has; without sharing it would be twice as much
    let both = link.carried.load(Relaxed);
    eprintln!("{both} bytes for both, {once} for one alone");
    assert!(
        both < once + once / 2,
        "{both} bytes for both machines, {once} for one alone"
    );
    stop(&node, "one");
    node.type_and_wait("two", "echo alive-$((2+2))", "alive-4");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_user_chooses_the_rule_by_which_an_image_is_streamed() {
    let world = world();
    // somebody teaches the hub what this guest touches
    let teacher = TestNode::start();
    teacher.run(&request(&world.hub.url(), "one"));
    teacher.type_and_wait("one", WORK, "worked-2");
    stop(&teacher, "one");
    eventually("a model", || world.model_file().is_some());
    drop(teacher);

    let (mut node, link) = (TestNode::start(), slow_link(world.hub.addr()));
    link.bytes_s.store(FAST_BYTES_S, Relaxed);
    let chosen = RunRequest {
        prefetch: Prefetch::Vtube,
        no_trace: true,
        ..request(&link.url, "two")
    };
    node.run(&chosen);
    // the hub makes the model for this rule when it is asked for first
    let models = node.home().join("models");
    let file = models.join(format!("{}.vtube.model", world.id));
    eventually("the model for the rule", || file.try_exists().unwrap());
    let model = Model::decode(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((model.method(), model.image()), (Method::VTube, world.id));
    node.type_and_wait("two", WORK, "worked-2");
    let client = node.client();
    eventually("it is streamed", || {
        client.stream_info("two").unwrap().model
    });

    // a node that starts anew follows the rule of the machine's record
    node.end(Signal::KILL);
    std::fs::remove_file(&file).unwrap();
    node.start_again();
    eventually("the model for the rule, again", || {
        file.try_exists().unwrap()
    });
    node.type_and_wait("two", "echo alive-$((2+2))", "alive-4");
    stop(&node, "two");
}

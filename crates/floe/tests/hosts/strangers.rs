//! What guests and images of strangers can do to the host that runs them: reach it, have its files read, steer the terminal
//! of whoever looks at them.

use crate::support::hosts::Hosts;
use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use crate::support::strangers::run;
use floe_api::*;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{fs, io::Write, net::TcpListener, os::fd::AsFd, process::Command};

/// What a service of the host answers.
const BANNER: &str = "the host answers";

/// Its port.
const PORT: u16 = 7070;

/// Where a cloud's metadata is.
const METADATA: &str = "169.254.169.254";

/// Where Azure answers for its hosts: an address that looks like any other.
const WIRE_SERVER: &str = "168.63.129.16";

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Listens in a namespace.
fn serve(namespace: &str, address: &str) {
    let space = fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    let address = format!("{address}:{PORT}");
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| writeln!(stream, "{BANNER}"));
        }
    });
    is_ready.recv().unwrap();
}

/// Whether a guest gets something of an address; `mark` is of this question alone.
fn reaches(node: &TestNode, from: &str, to: &str, mark: &str) -> bool {
    let command = format!(
        "echo {mark}-$(timeout 20 nc -w 20 {to} {PORT} </dev/null 2>/dev/null | tr ' ' _)-o$((1+1))"
    );
    let _typist = node.type_line(from, &command);
    let yes = format!("{mark}-{}-o2", BANNER.replace(' ', "_"));
    let no = format!("{mark}--o2");
    let says = |what: &str| node.console(from).contains(what);
    eventually("the guest's answer", || says(&yes) || says(&no));
    says(&yes)
}

fn fork(node: &TestNode, parent: &str) {
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork(parent, &request).unwrap());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_its_clones_and_its_images_reach_the_host_as_far_as_was_said_and_no_further() {
    let hosts = Hosts::new();
    let here = &hosts.names[0];
    ip(&format!("-n {here} addr add {METADATA}/32 dev lo"));
    for address in ["127.0.0.1", METADATA] {
        serve(here, address);
    }
    let mut node = TestNode::with(Setup {
        namespace: Some(here.clone()),
        ..Default::default()
    });
    node.boot_tiny("web");
    run(&node, "tiny", "open", HostAccess::All);
    node.wait_console("open", "floe-guest ready");
    assert!(reaches(&node, "open", "10.0.2.2", "a"));
    assert!(reaches(&node, "open", METADATA, "b"));
    assert!(!reaches(&node, "web", "10.0.2.2", "a"));
    assert!(!reaches(&node, "web", METADATA, "b"));

    // clones are what their parent is
    fork(&node, "web");
    fork(&node, "open");
    assert!(!reaches(&node, "web.1", "10.0.2.2", "c"));
    assert!(!reaches(&node, "web.1", METADATA, "d"));
    assert!(reaches(&node, "open.1", "10.0.2.2", "c"));
    let access = |name: &str| node.client().machine(name).unwrap().allow_host;
    assert_eq!(access("open.1"), HostAccess::All);
    assert_eq!(access("web.1"), HostAccess::None);

    // an image is not: who runs it says
    let request = CaptureRequest {
        name: Some("kept".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("open", &request).unwrap());
    run(&node, "kept", "copy", HostAccess::None);
    assert!(!reaches(&node, "copy", "10.0.2.2", "e"));
    run(&node, "kept", "again", HostAccess::Ports(vec![PORT]));
    assert!(reaches(&node, "again", "10.0.2.2", "f"));

    // a node that comes back finds it so, and a machine that starts again is so
    node.end(Signal::KILL);
    node.start_again();
    assert!(!reaches(&node, "web", "10.0.2.2", "g"));
    assert!(reaches(&node, "open", "10.0.2.2", "h"));
    let error = node.client().run(&RunRequest {
        image: "tiny".into(),
        allow_host: HostAccess::All,
        network: Some(NetworkRequest::default()),
        ..Default::default()
    });
    let error = error.unwrap().finish(|_| ()).unwrap_err().to_string();
    assert!(error.contains("--allow 169.254.169.254:80"), "{error}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_family_network_that_may_go_anywhere_does_not_go_to_the_clouds_metadata_unless_that_is_named() {
    let hosts = Hosts::new();
    let (here, there) = (&hosts.names[0], &hosts.names[1]);
    serve(there, "10.90.0.2");
    for address in [METADATA, WIRE_SERVER] {
        ip(&format!("-n {there} addr add {address}/32 dev eth0"));
        ip(&format!("-n {here} route add {address}/32 dev eth0"));
        serve(there, address);
    }
    let node = TestNode::with(Setup {
        namespace: Some(here.clone()),
        ..Default::default()
    });
    node.import_tiny("tiny", None);
    for (name, allow) in [
        ("wide", vec!["0.0.0.0/0"]),
        (
            "named",
            vec!["0.0.0.0/0", "169.254.169.254:7070", "168.63.129.16"],
        ),
    ] {
        node.run(&RunRequest {
            image: "tiny".into(),
            name: Some(name.into()),
            network: Some(NetworkRequest {
                allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
                ..Default::default()
            }),
            ..Default::default()
        });
        node.wait_console(name, "floe-guest ready");
        assert!(reaches(&node, name, "10.90.0.2", "a"), "{name}");
        assert_eq!(reaches(&node, name, METADATA, "b"), name == "named");
        assert_eq!(reaches(&node, name, WIRE_SERVER, "c"), name == "named");
    }
}

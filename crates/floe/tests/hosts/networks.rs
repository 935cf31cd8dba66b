//! Promises of family networks, kept with real guests.

use crate::support::hosts::Hosts;
use crate::support::node::{Signal, TestNode, cluster, eventually};
use floe_api::*;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

fn run(node: &TestNode, name: &str, forwards: Vec<PortForward>) {
    let request = RunRequest {
        image: "tiny".into(),
        name: Some(name.into()),
        forwards,
        network: Some(NetworkRequest::default()),
        ..Default::default()
    };
    node.run(&request);
    node.wait_console(name, "floe-guest ready");
}

fn network(node: &TestNode, name: &str) -> NetworkInfo {
    node.client().machine(name).unwrap().network.unwrap()
}

/// What a guest's agent does, by hand: a clone takes the addresses that are meant for it.
fn take_addresses(node: &TestNode, name: &str) {
    take(node, name, &network(node, name), "taken");
}

/// A clone takes any addresses, after its agent, if it has one, has given it those that are meant for it.
fn take(node: &TestNode, name: &str, place: &NetworkInfo, mark: &str) {
    eventually("a clone is told who it is", || {
        let cloned = node.client().machine(name).unwrap().cloned;
        cloned.is_none_or(|cloned| cloned.identity != Identity::Pending)
    });
    let command = format!(
        "ip link set eth0 down; ip addr flush dev eth0; ip link set eth0 address {}; ip addr add {} dev eth0; ip link set eth0 up; echo {mark}-$((1+1))",
        place.mac, place.address
    );
    node.type_and_wait(name, &command, &format!("{mark}-2"));
}

/// What is expected of a ping.
const ANSWERED: bool = true;

/// As above.
const UNHEARD: bool = false;

/// Whether a guest hears from an address. One that is to be answered is waited for as long as it takes.
fn reaches(node: &TestNode, from: &str, to: &str, mark: &str, expected: bool) -> bool {
    let to = to.split('/').next().unwrap();
    let wait = if expected { 90 } else { 2 };
    let command = format!(
        "ping -c 1 -w {wait} {to} >/dev/null && echo {mark}-y$((1+1)) || echo {mark}-n$((1+1)); echo {mark}-over$((1+1))"
    );
    node.type_and_wait(from, &command, &format!("{mark}-over2"));
    node.console(from).contains(&format!("{mark}-y2"))
}

fn namespaces() -> Vec<String> {
    let dir = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = dir
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// Namespaces of a node's families, whose names follow from its home and their ids.
fn spaces_of(node: &TestNode) -> Vec<String> {
    let dir = std::fs::read_dir(node.home().join("networks")).unwrap();
    let name = |file: std::fs::DirEntry| {
        let id = file.path().file_stem().unwrap().display().to_string();
        let text = format!("{} {id}", node.home().display());
        format!(
            "floe-{}",
            &floe_image::Hash::of(text.as_bytes()).to_string()[..8]
        )
    };
    dir.flatten().map(name).collect()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_family_sees_itself_and_nobody_else_and_two_with_the_same_addresses_never_meet() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", None);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    run(&node, "web", vec![format!("{port}:7").parse().unwrap()]);
    run(&node, "db", Vec::new());
    let spaces = spaces_of(&node);
    assert!(
        spaces.iter().all(|name| namespaces().contains(name)),
        "{spaces:?}"
    );
    let (web, db) = (network(&node, "web"), network(&node, "db"));
    assert_ne!(web.id, db.id);
    assert_eq!(
        (web.address.as_str(), &web.address),
        ("10.0.2.15/24", &db.address)
    );
    node.type_and_wait(
        "web",
        "echo hello > /tmp/mark; echo noted-$((1+1))",
        "noted-2",
    );
    for parent in ["web", "db"] {
        let request = ForkRequest {
            clones: if parent == "web" { 2 } else { 1 },
            ..Default::default()
        };
        let outcome = node.client().fork(parent, &request).unwrap().finish(|_| ());
        outcome.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    }
    assert_eq!(network(&node, "web.2").address, "10.0.2.17/24");
    assert_eq!(
        network(&node, "db.1").address,
        network(&node, "web.1").address
    );

    // a clone that has its parent's addresses is mute
    take(&node, "web.1", &web, "parents");
    assert!(!reaches(&node, "web.1", "10.0.2.2", "mute", UNHEARD));
    for name in ["web.1", "web.2", "db.1"] {
        take_addresses(&node, name);
    }
    let address = |name: &str| network(&node, name).address;
    assert!(reaches(&node, "web.1", &address("web"), "parent", ANSWERED));
    assert!(reaches(
        &node,
        "web.1",
        &address("web.2"),
        "sibling",
        ANSWERED
    ));
    assert!(reaches(&node, "web.2", &web.gateway, "gateway", ANSWERED));
    // 10.0.2.17 is web.2 in one family and nobody in the other
    assert!(!reaches(
        &node,
        "db.1",
        &address("web.2"),
        "stranger",
        UNHEARD
    ));
    assert!(reaches(&node, "db.1", &address("db"), "own", ANSWERED));
    // nobody speaks for another one
    let steal = "ip addr add 10.0.2.99/24 dev eth0; ping -I 10.0.2.99 -c 1 -w 2 10.0.2.15 >/dev/null && echo stole-y$((1+1)) || echo stole-n$((1+1))";
    node.type_and_wait("web.2", steal, "stole-n2");

    // in by the parent's port, also after the node was killed; its guests never noticed
    let echo = "(while true; do nc -l -p 7 -e /bin/cat; done) & echo serves-$((1+1))";
    node.type_and_wait("web", echo, "serves-2");
    let asked = || -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
            stream.write_all(b"anybody?")?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        ask().is_ok_and(|answer| answer == "anybody?")
    };
    eventually("the parent answers on the host's port", asked);
    let sibling = address("web.1");
    node.end(Signal::KILL);
    node.start_again();
    eventually("it does again", asked);
    assert!(reaches(&node, "web.2", &sibling, "still", ANSWERED));

    // a port that is taken is said to be so before anything runs, and which machine has it
    let client = node.client();
    let refused = |port: u16, network: Option<NetworkRequest>| {
        let request = RunRequest {
            image: "tiny".into(),
            name: Some("late".into()),
            forwards: vec![format!("{port}:7").parse().unwrap()],
            network,
            ..Default::default()
        };
        let error = client.run(&request).unwrap().finish(|_| ()).unwrap_err();
        assert!(client.machine("late").is_err());
        error.to_api()
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for network in [None, Some(NetworkRequest::default())] {
        let error = refused(taken.local_addr().unwrap().port(), network.clone());
        assert!(error.message.contains("cannot open the port"), "{error}");
        assert!(error.fix.contains("another port"), "{error}");
        let error = refused(port, network);
        assert!(error.fix.contains("machine web has it"), "{error}");
    }

    // the last member takes the network along, and connections to its guest end
    let mut idle = TcpStream::connect(("127.0.0.1", port)).unwrap();
    idle.set_read_timeout(Some(std::time::Duration::from_secs(60)))
        .unwrap();
    idle.write_all(b"still?").unwrap();
    idle.read_exact(&mut [0; 6]).unwrap();
    client.kill("web", &KillRequest { all: true }).unwrap();
    client.remove_machine("web", true).unwrap();
    let ended = idle.read(&mut [0; 1]);
    let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(
        ended.as_ref().map_or_else(reset, |bytes| *bytes == 0),
        "{ended:?}"
    );
    client.remove_machine("db.1", true).unwrap();
    client.remove_machine("db", true).unwrap();
    let left = namespaces();
    assert!(
        spaces.iter().all(|name| !left.contains(name)),
        "{spaces:?} {left:?}"
    );
    assert_eq!(spaces.len(), 2);
    assert_eq!(
        std::fs::read_dir(node.home().join("networks"))
            .unwrap()
            .count(),
        0
    );
}

fn nft(host: &str, words: &str) {
    let status = std::process::Command::new("ip")
        .args(["netns", "exec", host, "nft", words])
        .status()
        .unwrap();
    assert!(status.success(), "nft {words}");
}

/// What the family below may send and receive in a second: less than an emulated guest takes in.
const BYTES_PER_S: u64 = 60_000;

/// What may come at once.
const BURST_BYTES: u64 = 64 << 10;

/// The largest file that a node's page has, and its bytes.
fn largest_asset() -> (String, u64) {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/dist/assets");
    let files = std::fs::read_dir(dir).unwrap().flatten();
    let sized = files.map(|file| (file.metadata().unwrap().len(), file.file_name()));
    let (bytes, name) = sized.max().unwrap();
    (format!("/assets/{}", name.display()), bytes)
}

/// The rules for what a family sends out of its network.
fn rules_for_out(namespace: &str) -> String {
    let rules = std::process::Command::new("ip")
        .args(["netns", "exec", namespace])
        .args(["nft", "list", "chain", "ip", "floe", "forward"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&rules.stdout).into_owned()
}

/// Packets that a family's limit has dropped.
fn dropped(namespace: &str) -> u64 {
    let rules = rules_for_out(namespace);
    let count = rules.split_once("counter packets ").and_then(|(_, rest)| {
        let number = rest.split(' ').next()?;
        number.parse().ok()
    });
    count.unwrap_or_else(|| panic!("no counter in {rules}"))
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_family_reaches_across_hosts_and_out_to_what_is_allowed_only() {
    let hosts = Hosts::new();
    let here = TestNode::in_namespace(&hosts.names[0], "10.90.0.1:7070");
    let mut there = TestNode::in_namespace(&hosts.names[1], "10.90.0.2:7070");
    cluster(&[&here, &there]);
    here.import_tiny("tiny", None);
    let allow = ["10.90.0.1:7070", "10.90.0.2:7070"].map(|to| to.parse().unwrap());
    here.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        network: Some(NetworkRequest {
            allow: allow.into(),
            bytes_per_s: Some(BYTES_PER_S),
        }),
        ..Default::default()
    });
    here.wait_console("web", "floe-guest ready");
    let request = ForkRequest {
        clones: 2,
        hosts: vec![HERE.into(), there.url()],
        ..Default::default()
    };
    let fork = here.client().fork("web", &request).unwrap().finish(|_| ());
    let fork = fork.unwrap_or_else(|e| panic!("{e}\n{}\n{}", here.log(), there.log()));
    assert_eq!(fork.fork.unwrap().running, 2, "{}", there.log());
    take_addresses(&here, "web.1");
    take_addresses(&there, "web.2");
    assert!(reaches(&there, "web.2", "10.0.2.15", "parent", ANSWERED));
    assert!(reaches(&here, "web.1", "10.0.2.17", "sibling", ANSWERED));
    assert!(reaches(&there, "web.2", "10.0.2.2", "gateway", ANSWERED));
    // the way between the hosts is the nodes': one that is replaced opens it again
    there.end(Signal::KILL);
    there.start_again();
    let again = "until ping -c 1 -w 5 10.0.2.15 >/dev/null; do :; done; echo again-$((1+1))";
    there.type_and_wait("web.2", again, "again-2");

    // out to what is allowed, and not to the host itself; who ends its side before the answer may not get one
    let get = |to: &str, mark: &str| {
        format!(
            "(printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 9) | nc -w 9 {to} 7070 | head -c 5; echo {mark}-$((1+1))"
        )
    };
    here.type_and_wait("web", &get("10.90.0.2", "allowed"), "HTTP/allowed-2");
    here.type_and_wait("web", &get("10.90.0.1", "host"), "host-2");
    assert!(!here.console("web").contains("HTTP/host-2"));

    let spaces = [spaces_of(&here), spaces_of(&there)].concat();
    // all hosts together send what one may
    for space in &spaces {
        let (rules, half) = (rules_for_out(space), BYTES_PER_S / 2);
        let rate = format!("limit rate over {half} bytes/second");
        assert!(rules.contains(&rate), "{rules}");
    }
    // not faster than is allowed: what comes beyond it is dropped, sent again, and arrives
    let (path, bytes) = largest_asset();
    assert!(bytes > 2 * BURST_BYTES, "{path} has {bytes} bytes");
    assert_eq!(dropped(&spaces[0]), 0);
    let fetch =
        format!("busybox wget -q -O - http://10.90.0.2:7070{path} | wc -c; echo fetched-$((1+1))");
    here.type_and_wait("web", &fetch, "fetched-2");
    let console = here.console("web");
    assert!(dropped(&spaces[0]) > 0, "{console}");
    let said = console.lines().map(str::trim);
    let most = said.filter_map(|line| line.parse().ok()).max();
    assert!(most >= Some(bytes), "{most:?} of {bytes}: {console}");

    assert_eq!(spaces.len(), 2);
    assert!(
        spaces.iter().all(|name| namespaces().contains(name)),
        "{spaces:?}"
    );
    // the hosts lose each other: what needs the other one waits and says so, and goes on when they have met again
    let state = || there.client().machine("web.2").unwrap();
    nft(&hosts.names[0], "add table ip split");
    for (way, peer) in [("input", "saddr"), ("output", "daddr")] {
        let chain = format!("type filter hook {way} priority -200; policy accept;");
        let lost = format!("ip {peer} 10.90.0.2 meta l4proto tcp reject with tcp reset");
        let rules = format!("table ip split {{ chain {way} {{ {chain} {lost}; }}; }}");
        nft(&hosts.names[0], &rules);
    }
    eventually("the clone stands still", || {
        state().status == MachineStatus::Paused && state().detail.contains("does not answer")
    });
    let family = here.client().family("web").unwrap();
    assert_eq!(family.clones[0].status, Some(MachineStatus::Running));
    assert_eq!(family.clones[1].status, None);
    let refused = here.client().kill("web.2", &KillRequest::default());
    assert_eq!(
        refused.unwrap_err().to_api().code,
        ErrorCode::Unreachable,
        "nobody knows what became of it"
    );
    here.type_and_wait("web.1", "echo alone-$((1+1))", "alone-2");
    nft(&hosts.names[0], "delete table ip split");
    eventually("it goes on", || state().status == MachineStatus::Running);
    there.type_and_wait("web.2", "md5sum /bin/busybox && echo met-$((1+1))", "met-2");

    let killed = here
        .client()
        .kill("web", &KillRequest { all: true })
        .unwrap();
    assert_eq!(killed.ended, ["web.1", "web.2"]);
    here.client().remove_machine("web", true).unwrap();
    let left = namespaces();
    assert!(spaces.iter().all(|name| !left.contains(name)), "{left:?}");
    for host in &hosts.names {
        let tables = std::process::Command::new("ip")
            .args(["netns", "exec", host, "nft", "list", "tables"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&tables.stdout), "");
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_leaves_its_familys_network_by_no_other_card() {
    let hosts = Hosts::new();
    let here = TestNode::in_namespace(&hosts.names[0], "10.90.0.1:7070");
    let _there = TestNode::in_namespace(&hosts.names[1], "10.90.0.2:7070");
    here.import_tiny("tiny", None);
    here.run_named("tiny", "plain");
    here.wait_console("plain", "floe-guest ready");
    let card = here.client().attach_card("plain").unwrap();
    assert_eq!(card.card, "nic1");
    // all that the guest sends goes by its second card
    let up = "until ip link set eth1 up; do sleep 1; done; ip link set eth0 down; ip addr add 10.0.3.15/24 dev eth1; \
              ip route add default via 10.0.3.2; echo up-$((1+1))";
    here.type_and_wait("plain", up, "up-2");
    let get = |name: &str, to: &str, mark: &str| {
        let command = format!(
            "(printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 9) | nc -w 9 {to} 7070 | head -c 5; echo {mark}-$((1+1))"
        );
        here.type_and_wait(name, &command, &format!("{mark}-2"));
        here.console(name).contains(&format!("HTTP/{mark}-2"))
    };
    for (to, mark) in [("10.90.0.2", "other"), ("10.90.0.1", "own")] {
        assert!(get("plain", to, mark), "{}", here.console("plain"));
    }
    let request = CaptureRequest {
        name: Some("two-cards".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    let captured = here.client().capture("plain", &request).unwrap();
    captured.finish(|_| ()).unwrap();
    here.run(&RunRequest {
        image: "two-cards".into(),
        name: Some("member".into()),
        network: Some(NetworkRequest::default()),
        ..Default::default()
    });
    for (to, mark) in [("10.90.0.2", "out"), ("10.90.0.1", "host")] {
        assert!(!get("member", to, mark), "{}", here.console("member"));
    }
    let refused = here.client().attach_card("member").unwrap_err().to_api();
    assert!(refused.message.contains("one card"), "{refused}");
}

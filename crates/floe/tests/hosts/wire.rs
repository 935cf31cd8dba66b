//! What can be read on the wire between hosts while a machine is forked: in a cluster nothing that matters, without one all of it.

use crate::support::hosts::Hosts;
use crate::support::node::{TestNode, WEB_TOKEN, cluster, eventually};
use crate::support::sniff::Sniffer;
use floe_api::*;

/// In the parent's memory, and read by its clones.
const IN_MEMORY: &str = "this-was-in-the-memory-of-the-parent";

/// In a datagram from a guest to another.
const IN_A_DATAGRAM: &str = "this-went-from-guest-to-guest";

fn network(node: &TestNode, name: &str) -> NetworkInfo {
    node.client().machine(name).unwrap().network.unwrap()
}

/// What a guest's agent does, by hand: a clone takes the addresses that are meant for it.
fn take_addresses(node: &TestNode, name: &str) {
    eventually("a clone is told who it is", || {
        let cloned = node.client().machine(name).unwrap().cloned;
        cloned.is_none_or(|cloned| cloned.identity != Identity::Pending)
    });
    let place = network(node, name);
    let command = format!(
        "ip link set eth0 down; ip addr flush dev eth0; ip link set eth0 address {}; ip addr add {} dev eth0; ip link set eth0 up; echo taken-$((1+1))",
        place.mac, place.address
    );
    node.type_and_wait(name, &command, "taken-2");
}

/// The token of the only fork of a node.
fn fork_token(node: &TestNode) -> String {
    let forks = std::fs::read_dir(node.home().join("forks")).unwrap();
    let file = forks.flatten().next().expect("a fork has its record");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["token"].as_str().unwrap().to_owned()
}

/// Forks a machine with a network onto two other hosts, has guests speak with each other across hosts, and returns what was on the
/// parent's wire meanwhile, and what of it is secret.
fn fork_and_listen(kind: &str, insecure: bool) -> (Sniffer, Vec<(&'static str, String)>) {
    let hosts = Hosts::at_a_switch(3, kind);
    let nodes: Vec<TestNode> = (0..3)
        .map(|n| TestNode::in_namespace(&hosts.names[n], &format!("10.90.0.{}:7070", n + 1)))
        .collect();
    let here = &nodes[0];
    let there: Vec<String> = match insecure {
        true => nodes[1..].iter().map(TestNode::page_url).collect(),
        false => {
            cluster(&nodes.iter().collect::<Vec<_>>());
            nodes[1..].iter().map(TestNode::url).collect()
        }
    };
    here.import_tiny("tiny", None);
    here.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        network: Some(NetworkRequest::default()),
        ..Default::default()
    });
    here.wait_console("web", "floe-guest ready");
    // between random bytes, so that no compression hides it
    let fill = format!(
        "for i in $(seq 60); do head -c 3000 /dev/urandom; echo {IN_MEMORY}; done > /www/mark; echo filled-$((1+1))"
    );
    here.type_and_wait("web", &fill, "filled-2");

    let sniffer = Sniffer::on(&hosts.names[0], "eth0");
    let request = ForkRequest {
        clones: 2,
        hosts: there,
        insecure,
        // encrypted in any case, so that without a cluster memory is to be looked for where it is not
        multicast: match insecure {
            true => MulticastUse::Off,
            false => MulticastUse::Auto,
        },
        ..Default::default()
    };
    let fork = here.client().fork("web", &request).unwrap().finish(|_| ());
    let logs = || {
        nodes
            .iter()
            .map(TestNode::log)
            .collect::<Vec<_>>()
            .join("\n---\n")
    };
    let fork = fork.unwrap_or_else(|error| panic!("{error}\n{}", logs()));
    let fork = fork.fork.unwrap();
    assert_eq!(fork.running, 2, "{fork:?}\n{}", logs());
    assert_eq!(fork.multicast.is_some(), !insecure);
    let names: Vec<_> = fork
        .clones
        .iter()
        .map(|clone| clone.name.as_str())
        .collect();
    for (node, name) in nodes[1..].iter().zip(&names) {
        let read = format!(
            "grep -a -c {} /www/mark; echo read-$((2+2))",
            &IN_MEMORY[..20]
        );
        node.type_and_wait(name, &read, "read-4");
        assert!(node.console(name).contains("60"), "{}", node.console(name));
        take_addresses(node, name);
    }
    // a question for a file of that name, in UDP
    let ask = format!(
        "until ping -c 1 -w 5 10.0.2.15 >/dev/null; do :; done; tftp -g -r {IN_A_DATAGRAM} -l /dev/null 10.0.2.15; echo asked-$((3+3))"
    );
    nodes[1].type_and_wait(names[0], &ask, "asked-6");
    let came = "set -- $(grep Udp: /proc/net/snmp | tail -1); [ $3 -gt 0 ] && echo came-$((4+4))";
    here.type_and_wait("web", came, "came-8");
    // TCP with segments as long as they may be
    let get = "busybox wget -q -O /tmp/got http://10.0.2.15/mark; cmp /tmp/got /www/mark && echo whole-$((6+6))";
    nodes[1].type_and_wait(names[0], get, "whole-12");

    let token = fork_token(here);
    sniffer.stop();
    if let Some(group) = fork.multicast {
        assert!(sniffer.has_packets_to(group.group), "multicast was used");
    }
    let killed = here.client().kill("web", &KillRequest { all: true });
    assert_eq!(killed.unwrap().failed, Vec::<String>::new());
    let secrets = vec![
        ("memory", IN_MEMORY.to_owned()),
        ("the page's token", WEB_TOKEN.to_owned()),
        ("the fork's token", token),
        ("a guest's datagram", IN_A_DATAGRAM.to_owned()),
    ];
    (sniffer, secrets)
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn nothing_of_a_fork_can_be_read_between_the_hosts_of_a_cluster() {
    let (sniffer, secrets) = fork_and_listen("c", false);
    // all ways were listened to: TLS and sealed frames besides the group
    assert!(sniffer.has_port(libc::IPPROTO_TCP as u8, 7071));
    assert!(sniffer.has_port(libc::IPPROTO_UDP as u8, 7071));
    assert!(!sniffer.has_port(libc::IPPROTO_TCP as u8, 7070));
    assert!(!sniffer.has_port(libc::IPPROTO_UDP as u8, 4789));
    assert!(sniffer.bytes() > 200_000, "{} bytes", sniffer.bytes());
    for (what, secret) in secrets {
        assert!(!sniffer.saw(&secret), "{what} crossed in clear text");
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn without_a_cluster_all_of_a_fork_can_be_read_so_it_must_be_asked_for() {
    let (sniffer, secrets) = fork_and_listen("i", true);
    for (what, secret) in secrets {
        assert!(sniffer.saw(&secret), "{what} was not found on the wire");
    }
}

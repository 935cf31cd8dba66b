//! Substrates that are activated on many hosts: `floe activate --hosts`, in the hosts' cluster, each host in a network namespace.

use crate::support::command::{ends, floe, ok, said};
use crate::support::hosts::Hosts;
use crate::support::node::{self, Signal, TestNode, cluster, eventually};
use floe_api::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Nodes on hosts of their own, in one cluster as node-0, node-1 ...; the first has `web` as substrate `shop`.
fn nodes(hosts: &Hosts) -> Vec<TestNode> {
    let at = |(n, name): (usize, &String)| {
        TestNode::in_namespace(name, &format!("10.90.0.{}:7070", n + 1))
    };
    let nodes: Vec<TestNode> = hosts.names.iter().enumerate().map(at).collect();
    cluster(&nodes.iter().collect::<Vec<_>>());
    nodes[0].boot_tiny("web");
    let mark = "echo before-$((40+2)) > /www/mark; echo wrote-$((1+1))";
    nodes[0].type_and_wait("web", mark, "wrote-2");
    nodes
}

/// What an activation has told as JSON.
fn told(lines: &str) -> ActivateReport {
    let last = lines.lines().last().unwrap();
    match serde_json::from_str(last).unwrap() {
        Event::Done(outcome) => outcome.activated.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn named(node: &TestNode) -> Vec<String> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().map(|machine| machine.name).collect()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn machines_of_a_substrate_run_on_many_hosts_in_one_network_and_end_with_one_command() {
    let hosts = Hosts::at_a_switch(3, "d");
    let nodes = nodes(&hosts);
    let [here, second, third] = &nodes[..] else {
        unreachable!("three were made")
    };
    eventually("its agent answers", || {
        let answers = ends(floe(here, &["exec", "web", "--", "true"]));
        answers.status.success()
    });
    ok(here, &["dock", "web", "--as", "shop", "--public"]);
    let wanted = [
        "activate",
        "shop",
        "-n",
        "3",
        "--hosts",
        "here,node-1,node-2",
    ];
    // what is in a file of this host is not on others
    let file = here.home().join("secret");
    std::fs::write(&file, "x").unwrap();
    let refused = ends(floe(
        here,
        &[
            &wanted[..],
            &["--disk", &format!("data={}", file.display())],
        ]
        .concat(),
    ));
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("empty disks"), "{}", said(&refused));
    let more = ["--network", "--cpus", "2", "--disk", "data=32M"];
    let more = [&more[..], &["--answer", "300", "--json"]].concat();
    let report = told(&ok(here, &[&wanted[..], &more].concat()));
    assert!(report.from_memory && report.failed.is_empty(), "{report:?}");
    let places: Vec<_> = report
        .machines
        .iter()
        .map(|machine| (machine.name.as_str(), machine.host.clone()))
        .collect();
    let expected = [
        ("shop.1", None),
        ("shop.2", Some(second.url())),
        ("shop.3", Some(third.url())),
    ];
    assert_eq!(places, expected);
    for (machine, node) in report.machines.iter().zip(&nodes) {
        let log = node.log();
        let (network, size) = (machine.network_ms.unwrap(), machine.size_ms);
        let size = size.unwrap_or_else(|| panic!("{machine:?}\n{log}"));
        assert!(machine.first_ms < network && network < size, "{machine:?}");
        let name = machine.name.as_str();
        assert_eq!(machine.disks.len(), 1, "{machine:?}\n{log}");
        let line = "cat /www/mark; nproc; hostname";
        let seen = ok(node, &["exec", name, "--", "sh", "-c", line]);
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[..2], ["before-42", "2"], "{seen}");
        assert_ne!(lines[2], "floe", "{seen}");
        let address = node.client().machine(name).unwrap().network.unwrap();
        assert_eq!(machine.address.as_ref(), Some(&address.address));
    }
    // from the first host to the last one, and to nobody else
    let address = |n: usize| {
        let address = report.machines[n].address.as_deref().unwrap();
        address.split('/').next().unwrap().to_owned()
    };
    let ping = format!("ping -c 1 -W 1 {}", address(2));
    eventually("the last is reached from the first", || {
        let reached = ends(floe(here, &["exec", "shop.1", "--", "sh", "-c", &ping]));
        reached.status.success()
    });
    let family = ok(here, &["family", "shop"]);
    assert!(
        family.contains("shop.3") && family.contains(&third.url()),
        "{family}"
    );

    ok(here, &["kill", "--all", "shop"]);
    assert_eq!(named(here), ["web"]);
    assert!(named(second).is_empty() && named(third).is_empty());
    let sent = || {
        let log = here.log();
        let (_, stats) = log.split_once("its multicast ends")?;
        let (sent, _) = stats.split_once(" sent: ")?.1.split_once(',')?;
        sent.parse::<u64>().ok()
    };
    eventually("what several needed was sent by multicast", || {
        sent().is_some_and(|sent| sent > 0)
    });
}

/// Breaks a host's link, or mends it.
fn link(hosts: &Hosts, host: usize, state: &str) {
    let status = Command::new("ip")
        .args(["-n", &hosts.names[host], "link", "set", "eth0", state])
        .status();
    assert!(status.unwrap().success());
}

/// Whether a request has come to a host's page that its node has not read.
fn has_unread(hosts: &Hosts, host: usize) -> bool {
    let table = Command::new("ip")
        .args(["netns", "exec", &hosts.names[host], "cat", "/proc/net/tcp"])
        .output()
        .unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, queues) = (fields[1], fields[3], fields[4]);
        let unread = queues.split_once(':').unwrap().1;
        // port 7070, established
        local.ends_with(":1B9E") && state == "01" && unread != "00000000"
    })
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_host_that_is_lost_while_it_activates_is_told_for_each_machine_and_keeps_none_in_vain() {
    let hosts = Hosts::at_a_switch(3, "l");
    let mut nodes = nodes(&hosts);
    // its machines will run, and never say so
    let quiet = "kill -STOP $(pidof floe-guest); echo st-$((1+1))";
    nodes[0].type_and_wait("web", quiet, "st-2");
    ok(&nodes[0], &["dock", "web", "--as", "shop"]);

    // one that is gone before it is asked leaves its machines to the others
    nodes[2].end(Signal::KILL);
    let args = [
        "activate",
        "shop",
        "-n",
        "3",
        "--hosts",
        "here,node-1,node-2",
    ];
    let report = told(&ok(
        &nodes[0],
        &[&args[..], &["--answer", "0", "--json"]].concat(),
    ));
    let away = report.machines.iter().filter(|m| m.host.is_some());
    assert_eq!((report.machines.len(), away.count()), (3, 1), "{report:?}");
    ok(&nodes[0], &["kill", "--all", "shop"]);
    nodes[2].start_again();

    // one that falls silent once its machine runs
    let args = ["activate", "shop", "-n", "2", "--hosts", "here,node-1"];
    let mut command = floe(
        &nodes[0],
        &[&args[..], &["--answer", "20", "--json"]].concat(),
    );
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let event: Event = serde_json::from_str(&line).unwrap();
        if matches!(&event, Event::Stage { name, .. } if name == "clones") {
            nodes[1].end(Signal::KILL);
        }
        lines.push(line);
    }
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(4), "{lines:?} {}", said(&ended));
    let done = lines.iter().rfind(|line| line.contains("\"activated\""));
    let report = told(done.unwrap());
    let [first, second] = &report.machines[..] else {
        panic!("{report:?}")
    };
    assert!(first.short.is_empty(), "{first:?}");
    assert_eq!(second.short[0].code, ErrorCode::Unreachable);
    assert!(second.short[0].message.contains(&second.name), "{second:?}");
    nodes[1].start_again();
    eventually("the machine that was lost is back, and ended", || {
        ends(floe(&nodes[0], &["kill", "--all", "shop"]));
        named(&nodes[1]).is_empty() && named(&nodes[0]) == ["web"]
    });

    // one that falls silent while it starts its clone, and starts it once nobody waits for it any more. In clear text, where the order
    // is with the host at once: one that does not shake hands was not asked
    let request = ForkRequest {
        clones: 1,
        hosts: vec![nodes[2].page_url()],
        insecure: true,
        hosts_token: Some(node::WEB_TOKEN.into()),
        ..Default::default()
    };
    let image = nodes[0].client().substrate("shop").unwrap().image;
    let events = nodes[0].client().fork(&image, &request).unwrap();
    let hosts = &hosts;
    let clone = std::thread::scope(|scope| {
        let outcome = events.finish(|event| {
            if matches!(&event, Event::Stage { name, .. } if name == "hosts") {
                nodes[2].signal(Signal::STOP);
                scope.spawn(move || {
                    eventually("the order is with its kernel", || has_unread(hosts, 2));
                    link(hosts, 2, "down");
                });
            }
        });
        let fork = outcome.unwrap().fork.unwrap();
        assert_eq!(
            (fork.running, fork.clones[0].state),
            (0, CloneState::Failed)
        );
        let why = &fork.clones[0].detail;
        assert!(why.contains(&nodes[2].page_url()), "{why}");
        fork.clones[0].name.clone()
    });
    link(hosts, 2, "up");
    nodes[2].signal(Signal::CONT);
    // whether the other host has the answer to its request, or that came over the mended link and found nobody who still waits
    eventually("it is ended once it runs", || {
        let all = EventsQuery {
            once: true,
            ..Default::default()
        };
        let told = nodes[2].client().events(&all).unwrap();
        let its = told.map(Result::unwrap).filter(|e| e.subject == clone);
        let its: Vec<Happened> = its.map(|event| event.kind).collect();
        its.contains(&Happened::MachineStarted) && its.contains(&Happened::MachineRemoved)
    });
    assert!(named(&nodes[2]).is_empty());
}

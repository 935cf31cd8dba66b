//! Machines that are parked and woken: they go on where they were, under their names, whatever becomes of their node meanwhile.

use crate::support::command::{ends, floe, said};
use crate::support::node::{Setup, Signal, TestNode, eventually};
use crate::support::park::{
    Ends, answers, machine, never_refused, node_with_booted, page, refused, succeeds,
};
use floe_api::*;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_idle_machine_is_parked_by_itself_and_never_while_somebody_is_with_it() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    succeeds(&node, &["run", "tiny", "--name", "web"]);
    // somebody is at the console of one of them
    let user = node.type_line("web", "");
    succeeds(&node, &["limit", "web", "--park-after", "3s"]);
    let run = ["run", "tiny", "--name", "other", "-p", "0:80"];
    succeeds(&node, &[&run[..], &["--park-after", "3s"]].concat());
    let status = |name: &str| machine(&node, name).status;
    let parked = |name: &str| status(name) == MachineStatus::Parked;
    eventually("one is idle", || parked("other"));
    assert_eq!(status("web"), MachineStatus::Running);
    drop(user);
    eventually("the other one is idle too", || parked("web"));

    // whoever connects and is gone by the time it runs leaves it idle
    let port = machine(&node, "other").forwards[0].host_port;
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    eventually("it is woken and parked again", || {
        node.log().matches("machine.parked").count() == 3 && parked("other")
    });

    // a process of a user keeps one, and its settings can be changed while it runs, or is parked
    succeeds(&node, &["limit", "web", "--park-after", "1h"]);
    succeeds(&node, &["wake", "web", "--wait", "agent"]);
    let command = ["exec", "web", "--", "sh", "-c", "echo up; exec sleep 10000"];
    let mut process = floe(&node, &command);
    let mut process = process.stdout(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    let mut said_so = process.stdout.take().unwrap();
    said_so.read_exact(&mut up).unwrap();
    succeeds(&node, &["limit", "web", "--park-after", "3s"]);
    succeeds(&node, &["wake", "other"]);
    eventually("the other one is idle", || parked("other"));
    assert_eq!(status("web"), MachineStatus::Running);
    let off = succeeds(&node, &["limit", "web", "--park-after", "off"]);
    assert!(!off.contains("parked"), "{off}");
    process.kill().unwrap();
    process.wait().unwrap();
    let on = succeeds(&node, &["limit", "other", "--park-after", "1h"]);
    assert!(on.contains("parked after 3600 s"), "{on}");
    assert_eq!(machine(&node, "other").park_after_s, Some(3600));
    succeeds(&node, &["limit", "web", "--park-after", "3s"]);
    eventually("it is idle again", || parked("web"));
    let never = ends(floe(&node, &["limit", "web", "--park-after", "1s"]));
    assert_eq!(never.status.code(), Some(2), "{}", said(&never));
}

/// The port of the host that leads to a machine's first forwarded one.
fn port_of(node: &TestNode, name: &str) -> u16 {
    machine(node, name).forwards[0].host_port
}

/// How many datagrams have come to ports of a guest at which nobody listens.
fn datagrams(node: &TestNode, name: &str) -> u64 {
    let counts = succeeds(node, &["exec", name, "--", "cat", "/proc/net/snmp"]);
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = lines.next().unwrap().split_whitespace();
    let mut values = names.zip(lines.next().unwrap().split_whitespace());
    let no_ports = values.find(|(name, _)| *name == "NoPorts").unwrap().1;
    no_ports.parse().unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn ports_of_a_family_network_and_of_datagrams_are_held_too_and_given_back_if_it_cannot_be_parked() {
    let node = TestNode::with(Setup {
        disk_bytes: Some(2 << 30),
        ..Default::default()
    });
    node.import_tiny("tiny", None);
    let run = |name: &str, forward: &str, network: Option<NetworkRequest>| {
        node.run(&RunRequest {
            image: "tiny".into(),
            name: Some(name.into()),
            forwards: vec![forward.parse().unwrap()],
            network,
            ..Default::default()
        });
        node.wait_console(name, "floe-guest ready");
    };
    run("family", "0:80", Some(NetworkRequest::default()));
    run("plain", "0:80", None);
    run("datagrams", "0:9/udp", None);
    let status = |name: &str| machine(&node, name).status;
    let family = port_of(&node, "family");
    eventually("its server answers", || answers(family));

    // who can't be parked goes on, and so do its ports; all of its memory is still to be stored
    let filler = node.fill_disk(1 << 20);
    for name in ["family", "plain"] {
        let failed = ends(floe(&node, &["park", name]));
        assert!(!failed.status.success(), "{}", said(&failed));
        assert_eq!(status(name), MachineStatus::Running, "{}", said(&failed));
        eventually("its server answers", || answers(port_of(&node, name)));
    }
    std::fs::remove_file(filler).unwrap();
    never_refused(&node, "family", family, 2);
    succeeds(&node, &["park", "family"]);
    assert!(TcpListener::bind(("127.0.0.1", family)).is_err());
    succeeds(&node, &["rm", "family"]);
    TcpListener::bind(("127.0.0.1", family)).unwrap();

    // the first datagram wakes it and comes to its guest
    let before = datagrams(&node, "datagrams");
    succeeds(&node, &["park", "datagrams"]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = port_of(&node, "datagrams");
    client.send_to(b"anybody?", ("127.0.0.1", port)).unwrap();
    eventually("it is woken", || {
        status("datagrams") == MachineStatus::Running
    });
    eventually("the datagram has come", || {
        datagrams(&node, "datagrams") > before
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_killed_at_any_step_of_parking_or_waking_leaves_it_parked_or_running() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    node.type_and_wait("web", "X=0; echo begun-$X", "begun-0");
    let status = |node: &TestNode| machine(node, "web").status;
    let steps = [
        (true, ["", "capture", "store"]),
        (false, ["", "qemu start", "state load"]),
    ];
    let mut round = 0;
    for (parks, stages) in steps {
        for at in stages {
            if parks {
                let client = node.client();
                killed_at(
                    &mut node,
                    client.park("web", &Default::default()).unwrap(),
                    at,
                );
            } else {
                succeeds(&node, &["park", "web"]);
                let client = node.client();
                let wake = client.wake("web", &StartRequest::default());
                killed_at(&mut node, wake.unwrap(), at);
            }
            node.start_again();
            eventually("it is one or the other", || {
                [MachineStatus::Parked, MachineStatus::Running].contains(&status(&node))
            });
            let pid = machine(&node, "web").pid;
            match status(&node) {
                MachineStatus::Parked => {
                    assert_eq!(pid, None);
                    succeeds(&node, &["wake", "web"]);
                }
                _ => assert!(pid.is_some()),
            }
            // and its guest has gone on exactly where it was
            round += 1;
            let line = format!("X=$((X+1)); echo after-{at}-$X");
            node.type_and_wait("web", &line, &format!("after-{at}-{round}"));
        }
    }
    // what was stored in vain has gone
    succeeds(&node, &["park", "web"]);
    eventually("one memory is stored", || node.images_stored() == 2);
    assert_eq!(machine(&node, "web").pid, None);
}

/// Kills the node as soon as a call has told this stage, or at once; a call that is over before that is none the worse.
fn killed_at(node: &mut TestNode, events: floe_api::client::Events, stage: &str) {
    let kill = || node.signal(Signal::KILL);
    if stage.is_empty() {
        kill();
    }
    let told = |event: &Event| {
        if matches!(event, Event::Stage { name, .. } if name == stage) {
            kill();
        }
    };
    let _ = events.finish(told); // it is cut off, or was over
    node.end(Signal::KILL);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn parks_that_meet_are_told_and_who_connects_does_not_wait_for_a_machine_without_room() {
    // for one machine of 256 MiB that starts cold; one that is woken needs less, but does not fit beside it
    let args = ["--memory", "360M", "--standby", "0"];
    let node = TestNode::with(Setup {
        args: args.map(Into::into).into(),
        ..Default::default()
    });
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        forwards: vec!["0:80".parse().unwrap()],
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    let port = port_of(&node, "web");
    eventually("its server answers", || answers(port));
    let status = || machine(&node, "web").status;

    // while something else is done with it
    let capture = CaptureRequest {
        name: Some("meanwhile".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    let mut told = None;
    let captured = node.client().capture("web", &capture).unwrap();
    let captured = captured.finish(|_| {
        told.get_or_insert_with(|| ends(floe(&node, &["park", "web"])));
    });
    captured.unwrap();
    // it was in time to be refused, or it came after the pause, which is all that a capture needs a machine for
    let told = told.unwrap();
    assert!(
        told.status.success() || said(&told).contains("is under way"),
        "{}",
        said(&told)
    );
    succeeds(&node, &["park", "web"]);
    succeeds(&node, &["wake", "web"]);

    // two at once: it is parked once, and one that is refused is told why
    for (verb, becomes) in [
        ("park", MachineStatus::Parked),
        ("wake", MachineStatus::Running),
    ] {
        let pair = std::thread::scope(|scope| {
            let two = [0, 1].map(|_| scope.spawn(|| ends(floe(&node, &[verb, "web"]))));
            two.map(|one| one.join().unwrap())
        });
        assert!(pair.iter().any(|one| one.status.success()), "{verb}");
        for one in &pair {
            let refused = ["is under way", "is not parked"];
            let why = refused.iter().any(|why| said(one).contains(why));
            assert!(one.status.success() || why, "{verb}: {}", said(one));
        }
        assert_eq!(status(), becomes);
    }

    // another machine has taken the memory: who connects is told so by the end of the connection, and so is who wakes it
    succeeds(&node, &["park", "web"]);
    node.run_named("tiny", "other");
    for _ in 0..2 {
        let told = page(port).map(|answer| answer.len());
        assert!(matches!(told, Ok(0)) || told.is_err(), "{told:?}");
    }
    eventually("that is told", || node.log().contains("machine.not-woken"));
    eventually("it is parked still", || status() == MachineStatus::Parked);
    let detail = || machine(&node, "web").detail;
    for told in ["could not be woken", "has it tried again"] {
        assert!(detail().contains(told), "{}", detail());
    }
    refused(&node, &["wake", "web"], &["other", "--overcommit"]);
    succeeds(&node, &["rm", "--force", "other"]);

    // more at once than wait at a port: none is refused, and those that find no room at first come in when it runs
    let connected = std::thread::scope(|scope| {
        let connect = || TcpStream::connect(("127.0.0.1", port));
        let clients: Vec<_> = (0..80).map(|_| scope.spawn(connect)).collect();
        let connected = clients.into_iter().map(|client| client.join().unwrap());
        connected.collect::<Result<Vec<_>, _>>()
    });
    assert_eq!(connected.unwrap().len(), 80);
    eventually("it is woken", || status() == MachineStatus::Running);
    assert!(!detail().contains("could not be woken"), "{}", detail());
    eventually("its server answers", || answers(port));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn each_use_of_a_machine_alone_keeps_it_from_being_parked() {
    let node = node_with_booted();
    let used = ["screen", "network", "disk", "processor"];
    for name in used.iter().chain(&["idle"]) {
        node.run(&RunRequest {
            image: "booted".into(),
            name: Some((*name).into()),
            forwards: vec!["0:7".parse().unwrap()],
            ..Default::default()
        });
    }
    let record = std::fs::read(node.home().join("machines/screen/machine.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let place = node.home().join(record["place"].as_str().unwrap());
    let looks = UnixStream::connect(place.join("vm/run/vnc.sock")).unwrap();
    let takes = "(while :; do nc -l -p 7 >/dev/null; done) & echo takes-$((1+1))";
    node.type_and_wait("network", takes, "takes-2");
    let writes = "(while :; do dd if=/dev/zero of=/dev/vda bs=64k count=8 conv=fsync 2>/dev/null; sleep 2; done) & echo writes-$((1+1))";
    node.type_and_wait("disk", writes, "writes-2");
    let computes = "(while :; do :; done) & echo computes-$((1+1))";
    node.type_and_wait("processor", computes, "computes-2");

    let over = AtomicBool::new(false);
    let limit = |name: &str, after: &str| {
        succeeds(&node, &["limit", name, "--park-after", after]);
    };
    let is_parked = |name: &str| machine(&node, name).status == MachineStatus::Parked;
    std::thread::scope(|scope| {
        // what QEMU's host has taken for it counts, however busy its guest is
        let port = port_of(&node, "network");
        let over = &over;
        let _ends = Ends(over);
        scope.spawn(move || {
            let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
            while !over.load(Ordering::Relaxed) {
                // it is refused until the guest's `nc` listens
                if sender.write_all(&[b'x'; 64]).is_err() {
                    sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        for name in used.iter().chain(&["idle"]) {
            limit(name, "8s");
        }
        for _ in 0..2 {
            eventually("the idle one is parked", || is_parked("idle"));
            succeeds(&node, &["wake", "idle"]);
        }
        let parked = node.log().matches("machine.parked").count();
        assert_eq!(parked, 2, "{}", node.log());
    });
    // and none is kept by what is over
    drop(looks);
    node.type_and_wait("processor", "kill %1 $!; echo ended-$((1+1))", "ended-2");
    for name in ["screen", "processor", "network"] {
        eventually("what is not used any more is parked", || is_parked(name));
    }
}

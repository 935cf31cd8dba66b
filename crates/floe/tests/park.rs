//! Machines that are parked and woken: they go on where they were, under their names, whatever becomes of their node meanwhile.

mod command;
mod node;

use command::{ends, floe, said};
use floe_api::*;
use node::{PATIENCE, Signal, TestNode, eventually, finish};
use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
};

fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

/// Runs a command that must succeed, and returns what it printed.
fn succeeds(node: &TestNode, arguments: &[&str]) -> String {
    let done = ends(floe(node, arguments));
    assert!(done.status.success(), "{arguments:?}: {}", said(&done));
    said(&done)
}

/// Runs a command that must be refused with a text that says why and what to do.
fn refused(node: &TestNode, arguments: &[&str], words: &[&str]) {
    let done = ends(floe(node, arguments));
    assert_eq!(
        done.status.code(),
        Some(5),
        "{arguments:?}: {}",
        said(&done)
    );
    for word in words {
        assert!(said(&done).contains(word), "{arguments:?}: {}", said(&done));
    }
}

/// How many images the repository has, those that no list shows among them.
fn images_stored(node: &TestNode) -> usize {
    let images = std::fs::read_dir(node.home().join("repo/images")).unwrap();
    let manifests = images.filter(|image| {
        let name = image.as_ref().unwrap().file_name();
        name.to_str().unwrap().parse::<floe_image::Hash>().is_ok()
    });
    manifests.count()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_parked_machine_goes_on_where_it_was_and_leaves_nothing_behind() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    node.type_and_wait(
        "web",
        "X=41; echo kept-on-disk | dd of=/dev/vda conv=fsync 2>/dev/null; echo ready-$((X+1))",
        "ready-42",
    );
    let before = machine(&node, "web");
    succeeds(&node, &["pause", "web"]);
    refused(&node, &["park", "web"], &["its user", "floe resume web"]);
    succeeds(&node, &["resume", "web"]);

    let parked = succeeds(&node, &["park", "web"]);
    assert!(parked.contains("web is parked"), "{parked}");
    for round in 0..2 {
        let info = machine(&node, "web");
        assert_eq!((info.status, info.pid), (MachineStatus::Parked, None));
        assert_eq!(
            (&info.image, &info.image_name),
            (&before.image, &before.image_name)
        );
        assert!(succeeds(&node, &["ps"]).contains("parked"));
        if round == 0 {
            node.end(Signal::KILL);
            node.start_again();
        }
    }
    assert_eq!(node.client().images().unwrap().images.len(), 1);
    refused(
        &node,
        &["exec", "web", "--", "true"],
        &["parked", "floe wake web"],
    );
    refused(
        &node,
        &["stop", "web"],
        &["parked", "floe wake web", "--now"],
    );
    refused(&node, &["pause", "web"], &["parked", "floe wake web"]);
    succeeds(&node, &["park", "web"]); // it is already
    succeeds(&node, &["rename", "web", "shop"]);

    for round in 0..4 {
        succeeds(&node, &["wake", "shop"]);
        assert_eq!(machine(&node, "shop").status, MachineStatus::Running);
        let line = format!("X=$((X+1)); echo on-$X-$(head -c 12 /dev/vda)-{round}");
        let answer = format!("on-{}-kept-on-disk-{round}", 42 + round);
        node.type_and_wait("shop", &line, &answer);
        if round == 1 {
            // a node that is killed now finds a machine that runs
            let pid = machine(&node, "shop").pid;
            node.end(Signal::KILL);
            node.start_again();
            eventually("it is taken over", || machine(&node, "shop").pid == pid);
        }
        succeeds(&node, &["park", "shop"]);
        // what was stored before has gone
        eventually("one memory is stored", || images_stored(&node) == 2);
    }
    let twice = ends(floe(&node, &["wake", "nosuch", "shop"]));
    assert_eq!(twice.status.code(), Some(3), "{}", said(&twice));
    let busy = ends(floe(&node, &["wake", "shop"]));
    assert!(said(&busy).contains("is not parked"), "{}", said(&busy));

    // an image of it is an image like any other
    let capture = CaptureRequest {
        name: Some("shop-live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("shop", &capture).unwrap());
    node.run_named("shop-live", "copy");
    node.type_and_wait(
        "copy",
        "echo copy-$X-$(head -c 12 /dev/vda)",
        "copy-45-kept-on-disk",
    );
    node.client().remove_machine("copy", true).unwrap();
    succeeds(&node, &["park", "shop"]);
    succeeds(&node, &["start", "shop"]);
    node.type_and_wait("shop", "echo still-$X", "still-45");
    succeeds(&node, &["park", "shop"]);

    // its memory can be thrown away; its disks are not
    succeeds(&node, &["stop", "--now", "shop"]);
    eventually("its memory is gone", || images_stored(&node) == 2);
    succeeds(&node, &["start", "shop", "--wait", "agent"]);
    node.type_and_wait(
        "shop",
        "echo new-[$X]-$(head -c 12 /dev/vda)",
        "new-[]-kept-on-disk",
    );
    succeeds(&node, &["park", "shop"]);
    succeeds(&node, &["rm", "shop"]);
    eventually("nothing is left", || images_stored(&node) == 2);
    let log = node.log();
    assert!(
        log.contains("machine.parked") && log.contains("machine.woken"),
        "{log}"
    );
}

/// Asks the guest's web server for its page, over a forwarded port.
fn page(port: u16) -> std::io::Result<String> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    Ok(answer)
}

fn answers(port: u16) -> bool {
    page(port).is_ok_and(|answer| answer.contains("floe tiny guest"))
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_connection_to_a_parked_machine_wakes_it_is_answered_and_none_is_refused() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        forwards: vec!["0:80".parse().unwrap()],
        ..Default::default()
    });
    let port = machine(&node, "web").forwards[0].host_port;
    node.wait_console("web", "floe-guest ready");
    eventually("its server answers", || answers(port));
    let status = |node: &TestNode| machine(node, "web").status;

    // several at once, and one that comes when it runs
    succeeds(&node, &["park", "web"]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| page(port))).collect();
        for client in clients {
            let answer = client.join().unwrap().unwrap();
            assert!(answer.contains("floe tiny guest"), "{answer}");
        }
    });
    assert_eq!(status(&node), MachineStatus::Running);
    assert!(answers(port));

    // whoever connects while it is parked and woken is never refused
    let over = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut asked = 0;
            while !over.load(Ordering::Relaxed) {
                match page(port) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        panic!("after {asked}: {error}")
                    }
                    // a connection that is open when it is parked is cut
                    _ => asked += 1,
                }
            }
            asked
        });
        for _ in 0..4 {
            succeeds(&node, &["park", "web"]);
            eventually("it is woken", || status(&node) == MachineStatus::Running);
        }
        over.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    assert!(asked >= 4, "{asked}");

    // the next node listens again; a client that has left by then finds the machine running
    succeeds(&node, &["park", "web"]);
    node.end(Signal::KILL);
    node.start_again();
    eventually("the port is held again", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    eventually("it is woken", || status(&node) == MachineStatus::Running);
    eventually("its server answers", || answers(port));

    // one that can't be woken stays parked, and nobody waits for it
    succeeds(&node, &["park", "web"]);
    let images = node.home().join("repo/images");
    let away = node.home().join("away");
    std::fs::rename(&images, &away).unwrap();
    std::fs::create_dir(&images).unwrap();
    let told = page(port).map(|answer| answer.len());
    assert!(matches!(told, Ok(0)) || told.is_err(), "{told:?}");
    eventually("that is told", || node.log().contains("machine.not-woken"));
    assert_eq!(status(&node), MachineStatus::Parked);
    std::fs::remove_dir(&images).unwrap();
    std::fs::rename(&away, &images).unwrap();
    eventually("its server answers", || answers(port));

    // a port is free as soon as its machine is gone
    succeeds(&node, &["park", "web"]);
    assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    succeeds(&node, &["rm", "web"]);
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
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

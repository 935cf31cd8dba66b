//! Machines that are parked and woken: they go on where they were, under their names, whatever becomes of their node meanwhile.

use crate::support::command::{ends, floe, said};
use crate::support::node::{Signal, TestNode, eventually, finish};
use crate::support::park::{
    answers, machine, never_refused, node_with_booted, node_with_kept_words, page, refused,
    succeeds,
};
use floe_api::*;
use std::net::{TcpListener, TcpStream};

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_parked_machine_goes_on_where_it_was_and_leaves_nothing_behind() {
    let mut node = node_with_kept_words();
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
        eventually("one memory is stored", || node.images_stored() == 2);
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
    eventually("its memory is gone", || node.images_stored() == 2);
    succeeds(&node, &["start", "shop", "--wait", "agent"]);
    node.type_and_wait(
        "shop",
        "echo new-[$X]-$(head -c 12 /dev/vda)",
        "new-[]-kept-on-disk",
    );
    succeeds(&node, &["park", "shop"]);
    succeeds(&node, &["rm", "shop"]);
    eventually("nothing is left", || node.images_stored() == 2);
    let log = node.log();
    assert!(
        log.contains("machine.parked") && log.contains("machine.woken"),
        "{log}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
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

    never_refused(&node, "web", port, 4);

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
    eventually("it is parked still", || {
        status(&node) == MachineStatus::Parked
    });
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
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_machine_keeps_its_disk_when_a_qemu_waits_for_the_next_run_of_its_hardware() {
    let node = node_with_booted();
    node.run_named("booted", "web");
    let write = "echo kept-on-disk | dd of=/dev/vda conv=fsync 2>/dev/null; echo wrote-$((1+1))";
    node.type_and_wait("web", write, "wrote-2");
    let waits = || node.client().node().unwrap().blanks;
    eventually("a QEMU waits for the next run", || waits() > 0);
    for round in 0..2 {
        succeeds(&node, &["park", "web"]);
        succeeds(&node, &["wake", "web"]);
        let read =
            format!("echo 3 > /proc/sys/vm/drop_caches; echo on-$(head -c 12 /dev/vda)-{round}");
        node.type_and_wait("web", &read, &format!("on-kept-on-disk-{round}"));
        assert!(waits() > 0, "it waits still");
        // what was stored before goes, and is needed by nobody
        eventually("one memory is stored", || node.images_stored() == 3);
    }
}

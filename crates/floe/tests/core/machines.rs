//! The node's promises about machines, kept with real guests: FUSE, QEMU, and processes that are killed.

use crate::support::machines::{capture, capture_with_a_mark};
use crate::support::node::{self, Setup, TestNode, eventually, finish};
use floe_api::*;
use floe_hub::HubOptions;

/// Shows an image in a new directory; its path.
fn mount(node: &TestNode, image: &str, view: &std::path::Path) -> String {
    std::fs::create_dir(view).unwrap();
    let request = MountRequest {
        image: image.into(),
        path: view.display().to_string(),
        token: None,
        ca: None,
    };
    node.client().mount(&request).unwrap();
    request.path
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_captured_guest_goes_on_on_another_node_from_a_directory() {
    let here = TestNode::start();
    let outcome = capture_with_a_mark(&here);
    assert!(outcome.pause_ms.unwrap() > 0.0);
    let image = outcome.image.unwrap();
    assert!(image.live);
    eprintln!(
        "capture: {:?} pause {:?} ms",
        outcome.stored, outcome.pause_ms
    );
    // the first machine goes on
    here.type_and_wait("one", "echo still-$((2+2))", "still-4");
    assert_eq!(
        here.client().machine("one").unwrap().status,
        MachineStatus::Running
    );

    let there = TestNode::start();
    let from = format!("{}/repo/tiny-live", here.home().display());
    let outcome = there.run(&RunRequest {
        image: from,
        name: Some("two".into()),
        forwards: vec!["0:80".parse().unwrap()],
        wait: Wait::Port,
        ..Default::default()
    });
    let machine = outcome.machine.unwrap();
    assert!(machine.restored);
    assert_ne!(machine.forwards[0].host_port, 0);
    // what was only in its memory is there
    there.type_and_wait("two", "cat /www/mark", "marker-42");
    assert!(
        !there.console("two").contains("Linux version"),
        "it went on and did not boot"
    );
    let png = there.client().screenshot("two").unwrap();
    assert_eq!(&png[1..4], b"PNG");
    let stats = there.client().machine("two").unwrap().stats;
    eprintln!("restored machine: {stats:?}");

    // a machine of a captured image keeps what it was captured with
    let other = RunRequest {
        image: "tiny-live".into(),
        memory_bytes: Some(512 << 20),
        ..Default::default()
    };
    let error = here
        .client()
        .run(&other)
        .unwrap()
        .finish(|_| ())
        .unwrap_err()
        .to_api();
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.fix.contains("--cold"), "{error}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_killed_node_loses_neither_its_guest_nor_a_completed_write() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "one");
    node.wait_console("one", "floe-guest ready");
    let write = "printf before-the-crash | dd of=/dev/vda bs=512 seek=2048 conv=sync,fsync 2>/dev/null; echo synced-$((1+1))";
    node.type_and_wait("one", write, "synced-2");
    let pid = node.client().machine("one").unwrap().pid;
    let view = node.home().join("a view");
    let shown = mount(&node, "tiny", &view);
    // the guest writes on while there is no node
    node.type_and_wait("one", "(i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo count-$i | dd of=/dev/vda bs=512 seek=$((4096+i)) conv=sync,fsync 2>/dev/null; done; echo all-$((400+0))) & echo begun-$((3+3))", "begun-6");
    node.end(node::Signal::KILL);
    node.start_again();
    let info = node.client().node().unwrap();
    assert!(info.took_over);
    let machine = node.client().machine("one").unwrap();
    assert_eq!(
        (machine.status, machine.pid),
        (MachineStatus::Running, pid),
        "{}",
        node.log()
    );
    node.wait_console("one", "all-400");
    let read = "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip=2048 count=1 2>/dev/null; dd if=/dev/vda bs=512 skip=4496 count=1 2>/dev/null; echo read-$((5+5))";
    node.type_and_wait("one", read, "read-10");
    let console = node.console("one");
    assert!(console.contains("before-the-crash"), "{console}");
    assert!(console.contains("count-400"), "{console}");

    // an image that is shown somewhere still is, and is known
    let kernel = std::fs::read(node::guest("tiny/vmlinuz")).unwrap();
    assert_eq!(std::fs::read(view.join("kernel")).unwrap(), kernel);
    assert_eq!(node.client().mounts().unwrap().mounts.len(), 1);
    node.client().unmount(&shown).unwrap();
    assert!(!view.join("kernel").exists());

    // and so does one that is ended in order
    node.end(node::Signal::TERM);
    node.start_again();
    assert_eq!(node.client().machine("one").unwrap().pid, pid);
    node.type_and_wait("one", "echo after-$((7+7))", "after-14");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_machine_that_stopped_at_a_disk_goes_on_with_the_next_node() {
    let mut node = TestNode::with(Setup {
        disk_bytes: Some(128 << 20),
        ..Default::default()
    });
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "one");
    node.wait_console("one", "floe-guest ready");
    let filler = node.fill_disk(1 << 20);
    let console = node.type_line(
        "one",
        "dd if=/dev/urandom of=/dev/vda bs=64k count=64 conv=fsync 2>/dev/null; echo wrote-$((9+9))",
    );
    let stopped = |node: &TestNode| {
        let machine = node.client().machine("one").unwrap();
        (machine.status == MachineStatus::Paused).then_some(machine.detail)
    };
    eventually("the machine stands still", || stopped(&node).is_some());
    drop(console);
    let told = stopped(&node).unwrap();
    assert!(told.contains("disk0") && told.contains("full"), "{told}");

    // The node is killed; when the next one comes there is room, and nobody has to ask.
    node.end(node::Signal::KILL);
    std::fs::remove_file(filler).unwrap();
    node.start_again();
    node.wait_console("one", "wrote-18");
    assert_eq!(
        node.client().machine("one").unwrap().status,
        MachineStatus::Running
    );
    let log = node.log();
    assert!(
        log.contains("machine.continued") && log.contains("disk0"),
        "{log}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_removed_machine_leaves_nothing_and_its_image_can_go_then() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let pid = node.run_named("tiny", "one").machine.unwrap().pid.unwrap();
    let client = node.client();
    let remove = RemoveImageRequest {
        image: "tiny".into(),
        force: false,
    };
    assert_eq!(
        client.remove_image(&remove).unwrap_err().to_api().code,
        ErrorCode::Busy
    );
    let twice = RunRequest {
        image: "tiny".into(),
        name: Some("one".into()),
        ..Default::default()
    };
    assert_eq!(
        client
            .run(&twice)
            .unwrap()
            .finish(|_| ())
            .unwrap_err()
            .to_api()
            .code,
        ErrorCode::Busy
    );
    assert_eq!(
        client
            .remove_machine("one", false)
            .unwrap_err()
            .to_api()
            .code,
        ErrorCode::Busy
    );
    client.remove_machine("one", true).unwrap();
    assert!(!node.home().join("machines/one").exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists());
    assert!(!node.home().join("mnt/machines/one").exists());
    assert_eq!(
        client.machine("one").unwrap_err().to_api().code,
        ErrorCode::NotFound
    );
    assert!(client.remove_image(&remove).unwrap().freed_bytes > 0);
    assert!(client.images().unwrap().images.is_empty());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_client_that_hangs_up_leaves_no_half_made_machine() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let request = RunRequest {
        image: "tiny".into(),
        name: Some("one".into()),
        ..Default::default()
    };
    let mut events = node.client().run(&request).unwrap();
    let begun =
        events.any(|event| matches!(event, Ok(Event::Stage { name, .. }) if name == "mount"));
    assert!(begun);
    drop(events);
    // its QEMU may have been faster than that was noticed: then the machine is there and stays
    eventually("the machine's removal or start", || {
        let machines = node.client().machines().unwrap().machines;
        match &machines[..] {
            [] => !node.home().join("machines/one").exists(),
            machines => machines
                .iter()
                .all(|machine| machine.status == MachineStatus::Running),
        }
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_machine_captured_twice_is_what_it_was_the_second_time() {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "one");
    node.wait_console("one", "floe-guest ready");
    finish(node.client().capture("one", &capture("first")).unwrap());
    // from now on a restored machine: its memory is relative to `first`
    node.run_named("first", "two");
    node.type_and_wait("two", "dd if=/dev/urandom of=/dev/shm/x bs=1M count=8 2>/dev/null; echo one > /www/mark; echo a-$((1+1))", "a-2");
    let write = |text: &str| {
        format!(
            "printf {text} | dd of=/dev/vda bs=512 conv=sync,fsync 2>/dev/null; echo s-$((2+2))-{text}"
        )
    };
    node.type_and_wait("two", &write("disk-one"), "s-4-disk-one");
    let second = finish(node.client().capture("two", &capture("second")).unwrap());
    node.type_and_wait(
        "two",
        "rm /dev/shm/x; echo two > /www/mark; echo b-$((1+1))",
        "b-2",
    );
    node.type_and_wait("two", &write("disk-two"), "s-4-disk-two");
    let third = finish(node.client().capture("two", &capture("third")).unwrap());
    assert_eq!(
        third.image.as_ref().unwrap().parent,
        Some(second.image.unwrap().id)
    );
    eprintln!("second {:?}\nthird {:?}", second.stored, third.stored);
    for image in ["first", "second", "third"] {
        let verified = finish(node.client().verify_image(image).unwrap());
        assert!(verified.verify.unwrap().problems.is_empty());
    }
    node.run_named("third", "three");
    node.type_and_wait("three", "echo mark-$(cat /www/mark); echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 count=1 2>/dev/null; echo c-$((1+1))", "c-2");
    let console = node.console("three");
    assert!(console.contains("mark-two"), "{console}");
    assert!(console.contains("disk-two"), "{console}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_restored_guest_that_resets_is_started_from_its_disks() {
    let node = TestNode::start();
    node.boot_tiny("one");
    let stop = CaptureRequest {
        stop: true,
        ..capture("tiny-live")
    };
    finish(node.client().capture("one", &stop).unwrap());
    assert_eq!(
        node.client().machine("one").unwrap().status,
        MachineStatus::Stopped
    );
    node.run_named("tiny-live", "two");
    node.type_and_wait("two", "echo b > /proc/sysrq-trigger", "floe-guest ready");
    let machine = node.client().machine("two").unwrap();
    assert!(!machine.restored);
    assert!(machine.detail.contains("cold"), "{}", machine.detail);
    // a stopped machine starts again, and an image shown elsewhere is a set of plain files
    let started = finish(
        node.client()
            .start("one", &StartRequest::default())
            .unwrap(),
    );
    assert_eq!(started.machine.unwrap().status, MachineStatus::Running);
    let view = node.home().join("view");
    let shown = mount(&node, "tiny-live", &view);
    let kernel = std::fs::read(view.join("kernel")).unwrap();
    assert_eq!(kernel, std::fs::read(node::guest("tiny/vmlinuz")).unwrap());
    node.client().unmount(&shown).unwrap();
    assert!(!view.join("kernel").exists());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_private_guest_goes_on_from_a_hub_that_dies_under_it() {
    let here = TestNode::start();
    capture_with_a_mark(&here);
    let detail = here.client().image("tiny-live").unwrap();
    let rehearsed = detail.regions.iter().any(|region| region.name == "trace");
    assert!(rehearsed, "a capture is rehearsed: {:?}", detail.regions);
    assert_eq!(
        here.client().images().unwrap().images.len(),
        2,
        "the image without its rehearsal is gone"
    );

    let dir = tempfile::tempdir().unwrap();
    let loopback = "127.0.0.1:0".parse().unwrap();
    let serve = |listen| floe_hub::serve(HubOptions::new(dir.path(), listen)).unwrap();
    let token = floe_hub::create_token(dir.path(), "ann").unwrap();
    let hub = serve(loopback);
    let address = hub.addr();
    let push = PushRequest {
        image: "tiny-live".into(),
        to: hub.url(),
        name: None,
        token: Some(token.clone()),
        ca: None,
        public: false,
        seed: false,
        seed_until: None,
    };
    finish(here.client().push(&push).unwrap());

    let there = TestNode::start();
    let mut request = RunRequest {
        image: format!("{}/tiny-live", hub.url()),
        name: Some("two".into()),
        wait: Wait::None,
        ..Default::default()
    };
    let refused = there.client().run(&request).unwrap().finish(|_| ());
    assert_eq!(
        refused.unwrap_err().to_api().code,
        ErrorCode::NotFound,
        "without its token a private image does not exist"
    );
    request.token = Some(token);
    assert!(there.run(&request).machine.unwrap().restored);
    // The hub goes away while most of the guest is still there, and comes back.
    hub.stop();
    hub.wait();
    let waiting = std::thread::scope(|scope| {
        let asked = scope.spawn(|| there.type_and_wait("two", "cat /www/mark", "marker-42"));
        std::thread::sleep(std::time::Duration::from_secs(1));
        let hub = serve(address);
        asked.join().unwrap();
        hub
    });
    assert!(!there.console("two").contains("Linux version"));
    let stats = there.client().machine("two").unwrap().stats;
    eprintln!("restored from a hub: {stats:?}");
    waiting.shutdown();
}

//! The node's promises about forks, kept with real guests.

mod node;

use floe_api::*;
use node::{Setup, TestNode, cluster, eventually};
use std::time::Duration;

/// Boots the tiny guest as `web` with a mark in its memory.
fn with_a_mark(node: &TestNode) {
    node.boot_tiny("web");
    node.type_and_wait(
        "web",
        "echo before-$((40+2)) > /www/mark; echo wrote-$((1+1))",
        "wrote-2",
    );
}

/// Forks and shows how long what took.
fn fork(node: &TestNode, parent: &str, request: &ForkRequest) -> (ForkReport, f64) {
    let mut shown = String::new();
    let outcome = node
        .client()
        .fork(parent, request)
        .unwrap()
        .finish(|event| {
            if let Event::Stage { name, ms } = event {
                shown += &format!(" {name} {ms}");
            }
            if let Event::Clone(clone) = event {
                shown += &format!(" {}@{:?}", clone.name, clone.running_ms);
            }
        });
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{shown}\n{}", node.log()));
    let fork = outcome.fork.unwrap();
    eprintln!(
        "fork {parent}: {} ms, pause {:?} ms, {} dirty, descriptor {}:{shown}",
        outcome.total_ms, outcome.pause_ms, fork.dirty_chunks, fork.descriptor_bytes
    );
    (fork, outcome.pause_ms.unwrap_or_default())
}

fn clones(n: u32) -> ForkRequest {
    ForkRequest {
        clones: n,
        ..Default::default()
    }
}

/// The same, independent of its parent as soon as it can be.
fn settling(n: u32) -> ForkRequest {
    ForkRequest {
        settle: true,
        ..clones(n)
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_go_on_from_their_parents_memory_of_that_instant_and_so_does_the_parent() {
    let node = TestNode::start();
    with_a_mark(&node);
    let client = node.client();
    let (first, pause_ms) = fork(&node, "web", &settling(3));
    assert!(pause_ms > 0.0);
    assert_eq!((first.asked, first.granted, first.running), (3, 3, 3));
    let names: Vec<_> = first
        .clones
        .iter()
        .map(|clone| clone.name.as_str())
        .collect();
    assert_eq!(names, ["web.1", "web.2", "web.3"]);
    assert!(
        first.descriptor_bytes < 100_000,
        "{}",
        first.descriptor_bytes
    );
    node.type_and_wait(
        "web",
        "echo after-$((3+4)) >> /www/mark; cat /www/mark",
        "after-7",
    );
    for name in names {
        node.type_and_wait(name, "cat /www/mark; echo seen-$((5+5))", "seen-10");
        let console = node.console(name);
        assert!(console.contains("before-42"), "{console}");
        assert!(!console.contains("after-7"), "{console}");
        assert!(
            !console.contains("Linux version"),
            "it went on and did not boot"
        );
        let machine = client.machine(name).unwrap();
        assert_eq!(machine.status, MachineStatus::Running);
        assert_eq!(machine.cloned.unwrap().parent, "web");
    }

    // a fork of a fork, from a clone that has gone its own way
    node.type_and_wait(
        "web.2",
        "echo mine-$((8+8)) > /www/mark; echo wrote-$((2+2))",
        "wrote-4",
    );
    let (second, _) = fork(&node, "web.2", &settling(1));
    assert_eq!(second.clones[0].name, "web.2.1");
    node.type_and_wait("web.2.1", "cat /www/mark; echo seen-$((6+6))", "mine-16");

    // every clone can do without its parent soon
    let settled = |name: &str| {
        let machine = client.machine(name).unwrap();
        machine.cloned.is_some_and(|cloned| cloned.settled)
    };
    eventually("all clones are settled", || {
        ["web.1", "web.2", "web.3", "web.2.1"]
            .into_iter()
            .all(settled)
    });
    let family = client.family("web.2.1").unwrap();
    assert_eq!((family.name.as_str(), family.clones.len()), ("web", 3));
    assert_eq!(family.clones[1].clones[0].name, "web.2.1");

    // clones outlive their parent, and what they have not touched yet is there
    client.remove_machine("web", true).unwrap();
    node.type_and_wait(
        "web.3",
        "md5sum /bin/busybox && echo read-$((7+7))",
        "read-14",
    );
    let killed = client.kill("web.3", &KillRequest::default()).unwrap();
    assert_eq!(killed.ended, ["web.3"]);
    let killed = client.kill("web", &KillRequest { all: true }).unwrap();
    assert_eq!(killed.ended, ["web.1", "web.2.1", "web.2"]);
    assert!(client.machines().unwrap().machines.is_empty());
    assert!(client.family("web").is_err());
    // and nothing of it stays
    let images = client.images().unwrap().images;
    assert_eq!(images.len(), 1, "{images:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn forks_at_the_same_time_give_each_clone_a_name_and_disks_of_that_instant() {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    let request = RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        cpus: Some(2),
        ..Default::default()
    };
    node.run(&request);
    node.wait_console("web", "floe-guest ready");
    let write = "printf on-the-disk | dd of=/dev/vda bs=512 seek=2048 conv=sync,fsync 2>/dev/null; echo synced-$((1+1))";
    node.type_and_wait("web", write, "synced-2");
    let forks: Vec<ForkReport> = std::thread::scope(|scope| {
        let one = || fork(&node, "web", &settling(1)).0;
        let both = [scope.spawn(one), scope.spawn(one)];
        both.into_iter().map(|fork| fork.join().unwrap()).collect()
    });
    let mut names: Vec<_> = forks
        .iter()
        .map(|fork| fork.clones[0].name.as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["web.1", "web.2"]);
    let over = "printf overwritten | dd of=/dev/vda bs=512 seek=2048 conv=sync,fsync 2>/dev/null; echo again-$((2+2))";
    node.type_and_wait("web", over, "again-4");
    let read = "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip=2048 count=1 2>/dev/null | tr -d '\\0'; nproc; echo read-$((5+5))";
    for name in names {
        node.type_and_wait(name, read, "read-10");
        let console = node.console(name);
        assert!(console.contains("on-the-disk"), "{console}");
        assert!(!console.contains("overwritten"), "{console}");
    }
    // the parent's disks go on from the fork's image once that is stored, with what was written since
    let client = node.client();
    eventually("the forks are stored", || {
        let machines = client.machines().unwrap().machines;
        let mut clones = machines
            .iter()
            .filter_map(|machine| machine.cloned.as_ref());
        clones.all(|cloned| cloned.settled)
    });
    node.type_and_wait("web", &read.replace("5+5", "6+6"), "read-12");
    assert!(node.console("web").contains("overwritten"));
    // a clone that can't be made is told as such, and the other one runs
    std::fs::create_dir(node.home().join("machines/web.3")).unwrap();
    let (half, _) = fork(&node, "web", &clones(2));
    assert_eq!((half.granted, half.running), (2, 1));
    assert_eq!(half.clones[0].state, CloneState::Failed);
    assert!(
        half.clones[0].detail.contains("exists"),
        "{:?}",
        half.clones
    );
    assert_eq!(
        client.machine("web.4").unwrap().status,
        MachineStatus::Running
    );
    // a stopped machine has no memory to fork, an image that holds one does
    let stop = StopRequest {
        now: true,
        timeout_s: None,
    };
    client.stop("web", &stop).unwrap();
    let error = client
        .fork("web", &clones(1))
        .unwrap()
        .finish(|_| ())
        .unwrap_err()
        .to_api();
    assert!(error.fix.contains("floe start web"), "{error}");
    let error = client
        .fork("tiny", &clones(1))
        .unwrap()
        .finish(|_| ())
        .unwrap_err()
        .to_api();
    assert_eq!(error.code, ErrorCode::Refused);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_fork_is_stored_only_for_clones_that_stay_and_before_the_node_ends() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    let images = || node.client().images().unwrap().images.len();
    let write = |text: &str, answer: &str| {
        format!(
            "printf {text} | dd of=/dev/vda bs=512 seek=2048 conv=sync,fsync 2>/dev/null; echo {answer}"
        )
    };
    let read = |answer: &str| {
        format!(
            "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip=2048 count=1 2>/dev/null | tr -d '\\0'; echo {answer}"
        )
    };
    node.type_and_wait("web", &write("on-the-disk", "below-$((1+1))"), "below-2");
    // a clone that has forked needs its parent's layer no more, its own clone does
    let (first, _) = fork(&node, "web", &clones(1));
    let (second, _) = fork(&node, "web.1", &clones(1));
    node.client()
        .kill("web.1", &KillRequest::default())
        .unwrap();
    node.type_and_wait("web.1.1", &read("grandchild-$((3+3))"), "grandchild-6");
    assert!(node.console("web.1.1").contains("on-the-disk"));
    node.client()
        .kill("web.1.1", &KillRequest::default())
        .unwrap();
    for fork in [&first, &second] {
        let is_it = |line: &str| line.contains("fork.dropped") && line.contains(&fork.image[..12]);
        eventually("a fork without clones is dropped", || {
            node.log().lines().any(is_it)
        });
    }
    assert_eq!(images(), 1);

    // its parent goes on over its frozen layers, and its next fork has what is in them
    node.type_and_wait("web", &read("parent-$((4+4))"), "parent-8");
    assert!(node.console("web").contains("on-the-disk"));
    node.type_and_wait("web", &write("on-top-of-it", "above-$((2+2))"), "above-4");
    let (third, _) = fork(&node, "web", &clones(1));
    assert_eq!(third.clones[0].name, "web.1");
    node.end(node::Signal::TERM);
    node.start_again();
    let clone = node.client().machine("web.1").unwrap();
    assert!(clone.cloned.unwrap().settled);
    node.type_and_wait("web.1", &read("clone-$((5+5))"), "clone-10");
    assert!(node.console("web.1").contains("on-top-of-it"));
    node.type_and_wait("web", &read("again-$((6+6))"), "again-12");
    assert!(node.console("web").contains("on-top-of-it"));

    // what a fork that is not stored yet stands on stays, though no machine uses it
    fork(&node, "web", &clones(1));
    let client = node.client();
    client.remove_machine("web", true).unwrap();
    client.kill("web.1", &KillRequest::default()).unwrap();
    let request = RemoveImageRequest {
        image: "tiny".into(),
        force: true,
    };
    let error = client.remove_image(&request).unwrap_err().to_api();
    assert!(error.message.contains("not stored yet"), "{error}");
    eventually("it is free when that is stored", || {
        client.remove_image(&request).is_ok()
    });
    node.type_and_wait("web.2", &read("alone-$((7+7))"), "alone-14");
    assert!(node.console("web.2").contains("on-top-of-it"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_on_another_host_fetch_what_they_touch_and_stand_still_while_their_parent_is_lost() {
    let mut here = TestNode::on_the_network();
    let there = TestNode::on_the_network();
    cluster(&[&here, &there]);
    with_a_mark(&here);
    let request = ForkRequest {
        clones: 2,
        hosts: vec![HERE.into(), there.url()],
        ..Default::default()
    };
    let (first, _) = fork(&here, "web", &request);
    let hosts: Vec<_> = first
        .clones
        .iter()
        .map(|clone| clone.host.clone())
        .collect();
    assert_eq!(hosts, [None, Some(there.url())]);
    there.type_and_wait("web.2", "cat /www/mark; echo seen-$((5+5))", "seen-10");
    assert!(there.console("web.2").contains("before-42"));

    // memory that was free at the fork costs nothing
    let wire = || there.client().machine("web.2").unwrap().stats.wire_bytes;
    let before = wire();
    let fill = "dd if=/dev/zero of=/www/big bs=1M count=48 2>/dev/null; ls -l /www/big; echo filled-$((8+8))";
    there.type_and_wait("web.2", fill, "filled-16");
    let fetched = wire() - before;
    eprintln!("{before} bytes fetched until its shell answered, {fetched} to fill 48 MiB");
    assert!(fetched < 16 << 20, "{fetched}");

    // it can be forked there, before all of it has arrived
    let (below, _) = fork(&there, "web.2", &clones(1));
    assert_eq!(below.clones[0].name, "web.2.1");
    there.type_and_wait(
        "web.2.1",
        "cat /www/mark; ls -l /www/big; echo below-$((9+8))",
        "below-17",
    );
    assert!(there.console("web.2.1").contains("before-42"));

    // a second one becomes independent
    let settling = ForkRequest {
        clones: 1,
        hosts: vec![there.url()],
        settle: true,
        ..Default::default()
    };
    let (second, _) = fork(&here, "web", &settling);
    assert_eq!(second.clones[0].name, "web.3");
    let settled = |node: &TestNode, name: &str| {
        let machine = node.client().machine(name).unwrap();
        machine.cloned.is_some_and(|cloned| cloned.settled)
    };
    eventually("the clone there has all", || settled(&there, "web.3"));
    eventually("the clone here is stored", || settled(&here, "web.1"));
    assert!(!settled(&there, "web.2"));
    let family = here.client().family("web.1").unwrap();
    let known: Vec<_> = family
        .clones
        .iter()
        .map(|clone| (clone.name.as_str(), clone.settled))
        .collect();
    assert_eq!(known, [("web.1", true), ("web.2", false), ("web.3", true)]);
    assert_eq!(family.clones[1].status, Some(MachineStatus::Running));
    assert_eq!(family.clones[1].clones[0].name, "web.2.1");
    assert_eq!(family.clones[1].clones[0].host, Some(there.url()));

    // their parent's node dies
    here.end(node::Signal::KILL);
    eventually("the clone that needs it is paused", || {
        let machine = there.client().machine("web.2").unwrap();
        machine.status == MachineStatus::Paused && machine.detail.contains("does not answer")
    });
    assert_eq!(
        there.client().machine("web.3").unwrap().status,
        MachineStatus::Running
    );
    there.type_and_wait(
        "web.3",
        "md5sum /bin/busybox && echo alone-$((7+7))",
        "alone-14",
    );
    here.start_again();
    eventually("it goes on", || {
        there.client().machine("web.2").unwrap().status == MachineStatus::Running
    });
    there.type_and_wait(
        "web.2",
        "md5sum /bin/busybox && echo again-$((9+9))",
        "again-18",
    );
    let killed = here
        .client()
        .kill("web", &KillRequest { all: true })
        .unwrap();
    assert_eq!(killed.ended, ["web.1", "web.2", "web.3"]);
    assert!(there.client().machines().unwrap().machines.is_empty());
    // nothing of the fork is left
    assert!(there.client().images().unwrap().images.is_empty());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_host_that_dies_during_a_fork_leaves_its_clones_to_another_or_to_nobody() {
    let with_a_page = || Setup {
        web: Some(node::free_address()),
        ..Setup::on_the_network()
    };
    let here = TestNode::with(with_a_page());
    let mut there = TestNode::with(with_a_page());
    cluster(&[&here, &there]);
    with_a_mark(&here);
    let request = ForkRequest {
        clones: 2,
        hosts: vec![HERE.into(), there.url()],
        ..Default::default()
    };
    // `at_hosts`: all hosts have promised room, and the parent's state is taken now
    let fork = |request: &ForkRequest, at_hosts: &mut dyn FnMut()| {
        let events = here.client().fork("web", request).unwrap();
        let outcome = events.finish(|event| {
            if matches!(&event, Event::Stage { name, .. } if name == "hosts") {
                at_hosts();
            }
        });
        outcome.unwrap().fork.unwrap()
    };
    let at = |clone: &CloneInfo| (clone.state, clone.host.clone());

    // it dies before it is told of a clone: another host starts that
    let first = fork(&request, &mut || there.end(node::Signal::KILL));
    assert_eq!((first.granted, first.running), (2, 2), "{:?}", first.clones);
    for clone in &first.clones {
        assert_eq!(at(clone), (CloneState::Running, None));
        here.type_and_wait(&clone.name, "cat /www/mark; echo seen-$((5+5))", "seen-10");
    }
    there.start_again();

    // it dies while it is at it: nobody knows whether that clone ran, so there is none. In clear text, where the question is
    // with the host at once: one that does not shake hands was not asked
    let request = ForkRequest {
        hosts: vec![HERE.into(), there.page_url()],
        insecure: true,
        ..request
    };
    let second = std::thread::scope(|scope| {
        fork(&request, &mut || {
            there.signal(node::Signal::STOP);
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(4));
                there.signal(node::Signal::KILL);
            });
        })
    });
    assert_eq!(
        (second.granted, second.running),
        (2, 1),
        "{:?}",
        second.clones
    );
    let (lost, runs): (Vec<_>, Vec<_>) = second
        .clones
        .iter()
        .partition(|clone| clone.state == CloneState::Failed);
    assert_eq!((lost.len(), runs.len()), (1, 1));
    assert!(lost[0].detail.contains(&there.page_url()), "{:?}", lost[0]);
    here.type_and_wait(
        &runs[0].name,
        "cat /www/mark; echo seen-$((6+6))",
        "seen-12",
    );
    let all = KillRequest { all: true };
    assert_eq!(here.client().kill("web", &all).unwrap().ended.len(), 3);
    assert_eq!(here.client().machines().unwrap().machines.len(), 1);
    there.end(node::Signal::KILL);
    there.start_again();
    assert!(there.client().machines().unwrap().machines.is_empty());
    // a page takes no other token than its own
    let stranger = ForkRequest {
        clones: 1,
        hosts: vec![there.page_url()],
        hosts_token: Some("another-token-12345".into()),
        ..request
    };
    let error = here.client().fork("web", &stranger).unwrap();
    let error = error.finish(|_| ()).unwrap_err();
    assert!(error.to_string().contains("FLOE_HOSTS_TOKEN"), "{error}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn several_other_hosts_get_a_parents_state_by_multicast_unless_it_is_off() {
    let mut here = TestNode::on_the_network();
    let others = [TestNode::on_the_network(), TestNode::on_the_network()];
    cluster(&[&here, &others[0], &others[1]]);
    with_a_mark(&here);
    let request = ForkRequest {
        clones: 2,
        hosts: others.iter().map(TestNode::url).collect(),
        ..Default::default()
    };
    let (first, _) = fork(&here, "web", &request);
    assert_eq!(first.running, 2);
    let group = first.multicast.expect("two other hosts have a group");
    assert!(group.group.ip().is_multicast());
    for (node, name) in others.iter().zip(["web.1", "web.2"]) {
        node.type_and_wait(name, "cat /www/mark; echo seen-$((5+5))", "seen-10");
        assert!(node.console(name).contains("before-42"));
    }
    let all = KillRequest { all: true };
    let killed = here.client().kill("web", &all).unwrap();
    assert_eq!(killed.ended, ["web.1", "web.2"]);
    // the group goes with its last clone, and tells what it has done
    let sent = || {
        let log = here.log();
        let (_, stats) = log.split_once("its multicast ends")?;
        let (sent, _) = stats.split_once(" sent: ")?.1.split_once(',')?;
        Some(sent.parse::<u64>().unwrap())
    };
    eventually("the group has ended", || sent().is_some());
    assert!(sent().is_some_and(|sent| sent > 0), "{}", here.log());
    let off = ForkRequest {
        multicast: MulticastUse::Off,
        ..request
    };
    let (second, _) = fork(&here, "web", &off);
    assert_eq!((second.running, second.multicast), (2, None));

    here.client().kill("web", &all).unwrap();

    // a node that was replaced has the groups of the one before it
    let auto = ForkRequest {
        multicast: MulticastUse::Auto,
        ..off
    };
    let (third, _) = fork(&here, "web", &auto);
    let group = third.multicast.expect("two other hosts have a group");
    let is_open = || std::net::UdpSocket::bind(group.server).is_err();
    assert!(is_open());
    eventually("the fork is stored", || {
        let images = here.client().images().unwrap().images;
        images.iter().any(|image| image.id == third.image)
    });
    here.end(node::Signal::KILL);
    assert!(!is_open());
    here.start_again();
    eventually("the group is open again", is_open);
    let killed = here.client().kill("web", &all).unwrap();
    assert_eq!(killed.ended.len(), 2);
    eventually("its port is free again", || !is_open());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_full_disk_on_a_clones_host_stops_that_clone_alone_until_there_is_room() {
    let here = TestNode::on_the_network();
    let there = TestNode::with(Setup {
        disk_bytes: Some(128 << 20),
        ..Setup::on_the_network()
    });
    cluster(&[&here, &there]);
    here.import_tiny("tiny", Some(&here.blank_disk()));
    here.run_named("tiny", "web");
    here.wait_console("web", "floe-guest ready");
    let request = ForkRequest {
        clones: 2,
        hosts: vec![HERE.into(), there.url()],
        ..Default::default()
    };
    fork(&here, "web", &request);
    there.type_and_wait("web.2", "echo up-$((5+5))", "up-10");
    let filler = there.fill_disk(1 << 20);
    // what it says stands nowhere while the disk is full
    let console = there.type_line(
        "web.2",
        "dd if=/dev/urandom of=/dev/vda bs=64k count=64 conv=fsync 2>/dev/null; echo wrote-$((9+9))",
    );
    let client = there.client();
    eventually("the clone stands still and says why", || {
        let clone = client.machine("web.2").unwrap();
        clone.status == MachineStatus::Paused
            && clone.detail.contains("the host's disk is full")
            && clone.detail.contains("floe start web.2")
    });
    drop(console);
    let family = here.client().family("web").unwrap();
    assert!(
        family.clones[1].detail.contains("disk is full"),
        "{family:?}"
    );
    for name in ["web", "web.1"] {
        here.type_and_wait(name, "echo well-$((7+7))", "well-14");
    }

    // a further clone does not fit, says so, and leaves nothing
    let more = ForkRequest {
        clones: 1,
        hosts: vec![there.url()],
        ..Default::default()
    };
    let (refused, _) = fork(&here, "web", &more);
    let clone = &refused.clones[0];
    assert_eq!((refused.running, clone.state), (0, CloneState::Failed));
    eprintln!("{}", clone.detail);
    assert!(
        clone.detail.contains("a new machine needs 16 MiB"),
        "{}",
        clone.detail
    );
    assert!(clone.detail.contains("make room"), "{}", clone.detail);
    let machines = client.machines().unwrap().machines;
    assert_eq!(machines.len(), 1, "{machines:?}");
    assert!(!there.home().join("machines").join(&clone.name).exists());

    std::fs::remove_file(filler).unwrap();
    there.wait_console("web.2", "wrote-18");
    let (fits, _) = fork(&here, "web", &more);
    assert_eq!(fits.running, 1);
    let killed = here
        .client()
        .kill("web", &KillRequest { all: true })
        .unwrap();
    assert_eq!(killed.failed, Vec::<String>::new());
    assert!(client.machines().unwrap().machines.is_empty());
}

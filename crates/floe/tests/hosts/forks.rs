//! The node's promises about forks, kept with real guests.

use super::swarm::{World, swarm};
use crate::support::command::code;
use crate::support::forks::{clones, fork, with_a_mark};
use crate::support::node::{self, Setup, TestNode, cluster, eventually};
use floe_api::*;

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
        let read = node.client().swarm().unwrap().swarms;
        assert_eq!(read.len(), 1, "{read:?}");
        assert_eq!(read[0].machines, [name]);
        assert_eq!(read[0].way, SwarmWay::Multicast, "{read:?}");
        assert!(read[0].why.contains("one network segment"), "{read:?}");
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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_clone_reads_what_its_parent_did_not_change_from_the_pieces_on_its_own_host() {
    let world = World::new(false);
    let (one, two) = (TestNode::on_the_network(), TestNode::on_the_network());
    cluster(&[&one, &two]);
    for (node, name) in [(&one, "one"), (&two, "two")] {
        node.run(&world.request(name, Some(SwarmUse::On)));
        node.wait_console(name, "floe-guest ready");
    }
    let seed = SwarmSeed {
        image: world.address(),
        token: Some(world.token.clone()),
        ..Default::default()
    };
    two.client().swarm_seed(&seed).unwrap();
    let whole = |info: SwarmInfo| info.pieces > 0 && info.pieces_here == info.pieces;
    eventually("all pieces", || swarm(&two).is_some_and(whole));
    // two of the six MiB that the clone reads, which brings the packs' indices into memory; the other four are in pieces alone
    world.reads(&two, "two", 1, 1);
    world.reads(&two, "two", 5, 1);

    let request = ForkRequest {
        clones: 1,
        hosts: vec![two.url()],
        ..Default::default()
    };
    let (made, _) = fork(&one, "one", &request);
    world.reads(&two, &made.clones[0].name, 1, 6);
    let swarms = two.client().swarm().unwrap().swarms;
    let lent = swarms.iter().find_map(|info| info.lent);
    let lent = lent.unwrap_or_else(|| panic!("{swarms:?}"));
    // a frame brings sixteen chunks, of which one was asked for
    assert!(lent.shelf_bytes > 64 << 10, "{swarms:?}");
    let shown = code(&two, 0, &["swarm", "status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("were in pieces here"), "{shown}");
}

//! The node's promises about forks, kept with real guests.

use crate::support::forks::{clones, fork, settling, with_a_mark};
use crate::support::node::{self, Setup, TestNode, cluster, eventually};
use floe_api::*;
use std::time::Duration;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
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
#[ignore = "needs root, FUSE and QEMU: make test"]
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
    // and still known to those who have not heard that answer, until there is another fork
    let family = client.family("web").unwrap();
    assert_eq!(family.missing, half.clones[..1]);
    assert!(family.clones.iter().any(|clone| clone.name == "web.4"));
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
#[ignore = "needs root, FUSE and QEMU: make test"]
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

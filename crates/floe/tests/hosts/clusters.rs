//! Promises of clusters: who gets in, who does not, and what can be read on the way.

use crate::support::clusters::{ask_by_hand, init, invite, join, names, quiet, stranger};
use crate::support::forks::{clones, fork, with_a_mark};
use crate::support::node::{self, TestNode, cluster, eventually};
use floe_api::*;
use std::{
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::mpsc,
    time::Duration,
};

/// Connections of strangers at each port.
const SILENT: usize = 300;
/// How long they are held before they are closed and made anew: a node does not wait longer for a handshake.
const HELD: Duration = Duration::from_secs(9);

/// Holds silent connections to ports until the sender is dropped.
fn strangers(ports: Vec<SocketAddr>) -> mpsc::Sender<()> {
    let (over, is_over) = mpsc::channel();
    let (held, are_held) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let each = ports.iter().flat_map(|port| (0..SILENT).map(move |_| port));
            // one that is refused is what a node may do
            let _silent: Vec<_> = each.map(TcpStream::connect).collect();
            let _ = held.send(());
            if let Err(mpsc::RecvTimeoutError::Disconnected) = is_over.recv_timeout(HELD) {
                return;
            }
        }
    });
    are_held.recv().unwrap();
    over
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn certificates_are_renewed_before_they_end_and_a_restarted_node_keeps_its_place() {
    let (mut here, mut there) = (quiet(), quiet());
    init(&here, Some(CERTIFICATE_S_MIN));
    join(&there, "second", &invite(&here, None)).unwrap();
    let until = |node: &TestNode| node.client().cluster().unwrap().certified_until_unix_s;
    let key = |node: &TestNode| std::fs::read(node.home().join("cluster/node.pem")).unwrap();
    let before = [until(&here), until(&there)];
    let keys = [key(&here), key(&there)];
    eventually("both have new certificates", || {
        until(&here) > before[0] && until(&there) > before[1]
    });
    assert_ne!([key(&here), key(&there)], keys);
    for node in [&mut here, &mut there] {
        node.end(node::Signal::KILL);
    }
    for node in [&mut here, &mut there] {
        node.start_again();
    }
    assert_eq!(names(&there), ["first", "second"]);
    let kept = there.home().join("cluster/node.pem").display().to_string();
    let welcome = stranger(
        here.member_address().unwrap(),
        &["-cert", &kept, "-key", &kept],
    );
    assert!(welcome.contains("200 OK"), "{welcome}");
    // files that make no sense cost a node its place, and nothing else
    there.end(node::Signal::TERM);
    std::fs::write(there.home().join("cluster/cluster.json"), b"").unwrap();
    there.start_again();
    assert!(!there.client().cluster().unwrap().joined);
    assert!(there.log().contains("has lost its place"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_fork_gets_through_to_a_host_at_whose_port_strangers_hold_all_that_they_can() {
    let (here, there) = (TestNode::on_the_network(), TestNode::on_the_network());
    cluster(&[&here, &there]);
    with_a_mark(&here);
    let ports = [&here, &there].map(|node| node.member_address().unwrap());
    let silent = strangers(ports.to_vec());
    let request = ForkRequest {
        clones: 1,
        hosts: vec![there.url()],
        ..Default::default()
    };
    let (forked, _) = fork(&here, "web", &request);
    assert_eq!(forked.clones[0].state, CloneState::Running, "{forked:?}");
    assert_eq!(forked.clones[0].host, Some(there.url()));
    // what it has not touched comes by the other's port
    there.type_and_wait("web.1", "cat /www/mark; echo seen-$((5+5))", "seen-10");
    assert!(there.console("web.1").contains("before-42"));
    let killed = here.client().kill("web", &KillRequest { all: true });
    assert_eq!(killed.unwrap().ended, ["web.1"]);
    drop(silent);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_members_order_opens_nothing_of_the_host_that_receives_it() {
    let (here, there) = (TestNode::on_the_network(), TestNode::on_the_network());
    cluster(&[&here, &there]);
    with_a_mark(&here);
    let (forked, _) = fork(&here, "web", &clones(1));
    let pem = there.home().join("cluster/node.pem").display().to_string();
    let asks = |request: &str, body: &str| {
        let at = here.member_address().unwrap();
        ask_by_hand(at, &["-cert", &pem, "-key", &pem], request, body)
    };
    // machines that it has not ordered do not exist for it
    let absent = |answer: &str| answer.contains("404") && answer.contains("there is no machine");
    for name in ["web", "web.1", "nobody"] {
        let family = asks(&format!("GET /v1/machines/{name}/family"), "");
        assert!(absent(&family), "{family}");
        assert!(name == "web.1" || !family.contains("web.1"), "{family}");
        for all in [false, true] {
            let kill = format!("POST /v1/machines/{name}/kill");
            let killed = asks(&kill, &format!("{{\"all\":{all}}}"));
            assert!(absent(&killed), "{killed}");
        }
    }
    // nor can it have a clone that is read from elsewhere, or one of an image that only this host has
    let order = |source: &str| {
        let order = CloneRequest {
            name: "stolen".into(),
            fork: "00ff".into(),
            parent: "web".into(),
            number: 1,
            image: forked.image.clone(),
            source: source.into(),
            token: "0".repeat(64),
            ..Default::default()
        };
        asks("POST /v1/clones", &serde_json::to_string(&order).unwrap())
    };
    let own = format!("floe://{}/fork", there.member_address().unwrap());
    let others = format!("floe://{}/fork", here.member_address().unwrap());
    for source in [&*others, "floe+http://127.0.0.1:1/fork", "file:///etc"] {
        let refused = order(source);
        assert!(
            refused.contains("orders a clone that is read from elsewhere"),
            "{refused}"
        );
    }
    let refused = order(&own);
    assert!(!refused.contains("200 OK"), "{refused}");
    let machines = here.client().machines().unwrap().machines;
    let names: Vec<&str> = machines.iter().map(|machine| &*machine.name).collect();
    assert_eq!(names, ["web", "web.1"]);

    // its own clones it has as ever, with their clones, also when the one in between has ended
    let request = ForkRequest {
        clones: 1,
        hosts: vec![there.url()],
        ..Default::default()
    };
    let (away, _) = fork(&here, "web", &request);
    let name = away.clones[0].name.clone();
    fork(&there, &name, &clones(1));
    let family = here.client().family("web").unwrap();
    let there_too = family
        .clones
        .iter()
        .find(|clone| clone.name == name)
        .unwrap();
    assert_eq!(there_too.clones[0].name, format!("{name}.1"));
    there.client().remove_machine(&name, true).unwrap();
    let ended = here.client().kill("web", &KillRequest { all: true });
    assert_eq!(ended.unwrap().failed, Vec::<String>::new());
    eventually("nothing of it is left there", || {
        there.client().machines().unwrap().machines.is_empty()
    });
}

/// Copies the files of one directory to another, which has nothing else afterwards.
fn copy_files(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to); // it may not be there yet
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_authority_from_a_backup_brings_nobody_back_who_was_revoked() {
    let (mut here, there, third, fourth) = (quiet(), quiet(), quiet(), quiet());
    init(&here, None);
    join(&there, "second", &invite(&here, None)).unwrap();
    join(&third, "third", &invite(&here, None)).unwrap();
    let (files, backup) = (here.home().join("cluster"), here.home().join("backup"));
    copy_files(&files, &backup);
    let revoke = |node: &TestNode, name: &str| {
        let request = ClusterRevoke { name: name.into() };
        node.client().cluster_revoke(&request).unwrap().untold
    };
    assert_eq!(revoke(&here, "third"), Vec::<String>::new());
    join(&fourth, "fourth", &invite(&here, None)).unwrap();
    eventually("all know", || {
        [&there, &fourth].iter().all(|node| names(node).len() == 3)
    });

    here.end(node::Signal::KILL);
    copy_files(&backup, &files);
    here.start_again();
    eventually("it is told what it has forgotten", || {
        names(&here) == ["first", "second", "fourth"]
    });
    let lost = third.home().join("cluster/node.pem").display().to_string();
    for node in [&here, &there, &fourth] {
        let at = node.member_address().unwrap();
        let refused = stranger(at, &["-cert", &lost, "-key", &lost]);
        assert!(!refused.contains("200 OK"), "{refused}");
    }
    // and all go by what it says from then on
    assert_eq!(revoke(&here, "fourth"), Vec::<String>::new());
    assert_eq!(names(&there), ["first", "second"]);
    join(&third, "third", &{
        third.client().cluster_leave(&Default::default()).unwrap();
        invite(&here, None)
    })
    .unwrap();
    eventually("all know", || names(&there) == ["first", "second", "third"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lost_list_of_members_is_asked_for_again() {
    let (here, mut there) = (quiet(), quiet());
    init(&here, None);
    join(&there, "second", &invite(&here, None)).unwrap();
    let list = there.home().join("cluster/roster.json");
    for damage in [None, Some(&b"{\"number\": 2, \"mem"[..])] {
        there.end(node::Signal::TERM);
        match damage {
            None => std::fs::remove_file(&list).unwrap(),
            Some(text) => std::fs::write(&list, text).unwrap(),
        }
        there.start_again();
        eventually("it has the list again", || {
            names(&there) == ["first", "second"]
        });
    }
    // files that can't be read for a moment cost it its place no longer than that
    there.end(node::Signal::TERM);
    let (file, away) = (
        there.home().join("cluster/ca.pem"),
        there.home().join("away"),
    );
    std::fs::rename(&file, &away).unwrap();
    there.start_again();
    assert!(!there.client().cluster().unwrap().joined);
    std::fs::rename(&away, &file).unwrap();
    eventually("it has its place again", || {
        names(&there) == ["first", "second"]
    });
}

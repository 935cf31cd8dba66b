//! Promises of clusters: who gets in, who does not, and what can be read on the way.

use crate::support::clusters::{init, invite, join, names, quiet, stranger};
use crate::support::node::{self, TestNode, eventually};
use floe_api::*;
use std::path::Path;

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

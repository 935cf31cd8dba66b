//! Promises of clusters: who gets in, who does not, and what can be read on the way.

use crate::support::clusters::{init, invite, join, names, quiet, stranger};
use crate::support::node::{self, TestNode, eventually};
use floe_api::*;

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

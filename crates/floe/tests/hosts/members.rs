//! Swarms whose members no hub lists, with real guests: `floe run --swarm-members`, `floe swarm listen`.

use super::swarm::{DISK_MIB, World, becomes_connected, by_hand, connected, key, swarm};
use crate::support::clusters::{ask_by_hand, stranger};
use crate::support::command::code;
use crate::support::node::{Signal, TestNode, cluster, eventually};
use floe_api::*;
use floe_image::Hash;
use std::{fs, net::SocketAddr, path::Path};

/// A node's line in a list of members on this host.
fn member(node: &TestNode) -> SwarmMember {
    let report = node.client().swarm_listen().unwrap();
    let here = |at: &String| {
        let at: SocketAddr = at.parse().unwrap();
        at.is_ipv4().then(|| format!("127.0.0.1:{}", at.port()))
    };
    SwarmMember {
        key: report.key.unwrap(),
        addresses: report.addresses.iter().filter_map(here).collect(),
    }
}

/// Looks whether a node has something of its image from another one that has read it, and returns what it says of the swarm then. How much that
/// is depends on how much it has brought ahead from the hub meanwhile.
fn comes_from_the_other(world: &World, one: &TestNode, two: &TestNode) -> SwarmInfo {
    becomes_connected(one, two);
    world.reads(one, "one", 0, DISK_MIB);
    world.reads(two, "two", 0, DISK_MIB / 2);
    let after = swarm(two).unwrap();
    assert!(after.received_bytes > 0, "{after:?}");
    after
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn nodes_that_their_users_list_bring_an_image_to_each_other_and_the_hub_tells_nobody_of_them() {
    let world = World::new(false);
    let (one, mut two, other) = (TestNode::start(), TestNode::start(), TestNode::start());
    let shown = code(&one, 0, &["swarm", "listen"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let named = member(&one);
    assert!(shown.starts_with(&named.key), "{shown}");
    let members = SwarmMembers::List(vec![named, member(&two)]);
    let boot = |node: &TestNode, name: &str| {
        node.run(&RunRequest {
            swarm_members: members.clone(),
            ..world.request(name, None)
        });
        node.wait_console(name, "floe-guest ready");
    };
    boot(&one, "one");
    boot(&two, "two");
    let after = comes_from_the_other(&world, &one, &two);

    // who may read the image is told of nobody, also one that is told to meet everybody
    let image: Hash = after.image.parse().unwrap();
    let hub = world.client(Some(&world.token));
    assert_eq!(
        hub.join_swarm(&image, &by_hand(true))
            .unwrap()
            .members
            .len(),
        1
    );
    // one that knows them and is not listed by them is not let in
    boot(&other, "other");
    world.reads(&other, "other", 0, 4);
    eventually("it has its list", || {
        swarm(&other).is_some_and(|swarm| swarm.peers.len() == 2)
    });
    assert_eq!(swarm(&other).unwrap().received_bytes, 0);
    assert!(connected(&other).is_empty());

    // the list is the machine's: a node that starts again has it
    two.end(Signal::KILL);
    two.start_again();
    becomes_connected(&one, &two);
    world.reads(&two, "two", DISK_MIB / 2, DISK_MIB / 2);
    let lab = one.home().join("lab");
    fs::write(&lab, "# nobody\nweb 10.0.0.1:4433\n").unwrap();
    let run = |image: &str, list: &Path| {
        let list = list.to_str().unwrap();
        code(&one, 2, &["run", image, "--swarm-members", list]).stderr
    };
    let said = run(&world.address(), &lab);
    assert!(String::from_utf8_lossy(&said).contains("line 2"));
    // what none of them has comes from a hub: an image that is on none can't come so
    fs::write(&lab, format!("{}\n", member(&two))).unwrap();
    one.import_tiny("mine", None);
    let said = run("mine", &lab);
    assert!(String::from_utf8_lossy(&said).contains("is on no hub"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn members_of_a_cluster_bring_an_image_to_each_other_and_nobody_else_hears_of_it() {
    let world = World::new(false);
    let (one, two) = (TestNode::on_the_network(), TestNode::on_the_network());
    let (idle, outside) = (TestNode::on_the_network(), TestNode::start());
    cluster(&[&one, &two, &idle]);
    let request = |name: &str| RunRequest {
        swarm_members: SwarmMembers::Cluster,
        ..world.request(name, None)
    };
    for (node, name) in [(&one, "one"), (&two, "two")] {
        node.run(&request(name));
        node.wait_console(name, "floe-guest ready");
    }
    let after = comes_from_the_other(&world, &one, &two);

    // a member is told, and of nothing else than what is asked for; a member that takes no part says so
    let (port, idles) = (
        one.member_address().unwrap(),
        idle.member_address().unwrap(),
    );
    let pem = two.home().join("cluster/node.pem").display().to_string();
    let certificate = ["-cert", &*pem, "-key", &*pem];
    let asked = format!("GET /v1/swarm/{}", after.image);
    let whose = key(&one).unwrap();
    let told = ask_by_hand(port, &certificate, &asked, "");
    assert!(told.contains(&whose) && !told.contains("root"), "{told}");
    let told = ask_by_hand(port, &certificate, &format!("{asked}/packs"), "");
    assert!(told.contains(&whose) && told.contains("root"), "{told}");
    let another = format!("GET /v1/swarm/{}", "0b".repeat(32));
    for (at, asked) in [(port, &another), (idles, &asked)] {
        let told = ask_by_hand(at, &certificate, asked, "");
        assert!(
            told.contains("404") && told.contains("in no swarm"),
            "{told}"
        );
    }
    // who is no member gets no answer, the hub knows of nobody, and a node without a cluster is told that it has none
    assert!(!ask_by_hand(port, &[], &asked, "").contains(&whose));
    assert!(!stranger(port, &[]).contains("200 OK"));
    let image: Hash = after.image.parse().unwrap();
    let hub = world.client(Some(&world.token));
    assert_eq!(
        hub.join_swarm(&image, &by_hand(true))
            .unwrap()
            .members
            .len(),
        1
    );
    outside.run(&request("outside"));
    eventually("it is told", || {
        swarm(&outside).is_some_and(|swarm| swarm.trouble.contains("in no cluster"))
    });

    // who was removed from the cluster is shown out
    let removed = ClusterRevoke {
        name: "node-1".into(),
    };
    one.client().cluster_revoke(&removed).unwrap();
    eventually("the end of the connection", || connected(&one).is_empty());
    world.reads(&two, "two", DISK_MIB / 2, 2);
}

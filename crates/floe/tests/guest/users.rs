//! Whom the kernel takes machines for: users of their own on the whole host, and what it ends first when memory is full.

use crate::support::node::{Signal, TestNode, eventually};
use crate::support::other_users::{as_user, processes, status_field};
use crate::support::resources::{now, pid};
use floe_api::*;
use std::{collections::BTreeMap, fs, path::Path};

/// Where the nodes of a host claim users.
const CLAIMS: &str = "/run/floe-users";

/// Bit of the capability that lets a process lower anybody's score for when memory is full (capabilities(7)).
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// The users of all QEMUs of a node, those that wait among them, by their processes.
fn users(node: &TestNode) -> BTreeMap<u32, u32> {
    let qemus = processes(node.home()).into_iter();
    let qemus = qemus.filter(|(_, line)| line.starts_with("/usr/bin/qemu-system"));
    let user = |pid| Some((pid, status_field(pid, "Uid:")?.parse().ok()?));
    qemus.filter_map(|(pid, _)| user(pid)).collect()
}

/// Asserts that no two QEMUs of these nodes have one user; returns how many there are.
fn all_differ(nodes: &[&TestNode]) -> usize {
    let all = nodes.iter().flat_map(|node| users(node));
    let mut all: Vec<u32> = all.map(|(_, user)| user).collect();
    let count = all.len();
    assert!(all.iter().all(|user| *user >= 90_000), "{all:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "two have one user: {all:?}");
    count
}

fn user_of(node: &TestNode, name: &str) -> u32 {
    let user = status_field(pid(node, name), "Uid:").unwrap();
    user.parse().unwrap()
}

/// The node that has claimed a user.
fn owner(user: u32) -> Option<std::path::PathBuf> {
    fs::read_link(Path::new(CLAIMS).join(user.to_string())).ok()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn no_two_machines_of_a_host_have_one_user_whatever_nodes_they_are_of() {
    let mut nodes = [TestNode::start(), TestNode::start(), TestNode::start()];
    for node in &nodes {
        let disk = node.blank_disk();
        node.import_tiny("tiny", Some(&disk));
        node.run_named("tiny", "web");
        node.wait_console("web", "floe-guest ready");
        let request = ForkRequest {
            clones: 1,
            ..Default::default()
        };
        let forked = node.client().fork("web", &request).unwrap().finish(|_| ());
        assert_eq!(forked.unwrap().fork.unwrap().running, 1);
    }
    assert!(all_differ(&nodes.each_ref()) >= 6);

    // a node that was killed has the same again, and others get none of it meanwhile
    let [first, second, _] = &mut nodes;
    let had = user_of(first, "web");
    first.end(Signal::KILL);
    second.run_named("tiny", "next");
    first.start_again();
    eventually("it is taken over", || {
        first.client().machine("web").unwrap().pid.is_some()
    });
    assert_eq!(user_of(first, "web"), had);
    all_differ(&nodes.each_ref());

    // what a machine had is free once it is removed
    let [first, second, _] = &mut nodes;
    let user = user_of(first, "web.1");
    assert_eq!(owner(user).as_deref(), Some(first.home()));
    first.client().remove_machine("web.1", true).unwrap();
    assert_eq!(owner(user), None);

    // after a reboot nothing is claimed, and a node that starts later finds its machine's user with another one
    let mark = "echo mine-$((4+5)) > /dev/vda; sync; echo wrote-$((2+2))";
    first.type_and_wait("web", mark, "wrote-4");
    first.client().stop("web", &now()).unwrap();
    first.end(Signal::TERM);
    for claim in fs::read_dir(CLAIMS).unwrap().flatten() {
        if fs::read_link(claim.path()).unwrap() == first.home() {
            fs::remove_file(claim.path()).unwrap();
        }
    }
    second.run_named("tiny", "taker");
    assert_eq!(user_of(second, "taker"), had);
    first.start_again();
    let started = first.client().start("web", &StartRequest::default());
    started.unwrap().finish(|_| ()).unwrap();
    assert_ne!(user_of(first, "web"), had);
    eventually("it has booted again", || {
        first.console("web").matches("floe-guest ready").count() == 2
    });
    let read = "until head -c 6 /dev/vda; do sleep 1; done; echo read-$((3+3))";
    first.type_and_wait("web", read, "read-6");
    assert!(first.console("web").contains("mine-9"));
    all_differ(&nodes.each_ref());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn when_memory_is_full_the_kernel_ends_a_machine_before_its_node_and_no_machine_comes_before_that()
{
    let node = TestNode::start();
    node.boot_tiny("web");
    let qemu = pid(&node, "web");
    let read = |pid: u32, file: &str| -> i32 {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        text.trim().parse().unwrap()
    };
    let others = processes(node.home()).into_iter();
    let others: Vec<(u32, String)> = others
        .filter(|(_, line)| !line.starts_with("/usr/bin/qemu-system"))
        .collect();
    assert!(others.len() >= 2, "node and supervisor: {others:?}");
    for (pid, line) in &others {
        // what the kernel compares
        let (theirs, its) = (read(*pid, "oom_score"), read(qemu, "oom_score"));
        assert!(its > theirs, "{its} and {theirs} of {line}");
    }

    // whoever has taken a QEMU over can make it worse, and never better than it was
    let file = format!("/proc/{qemu}/oom_score_adj");
    let had = read(qemu, "oom_score_adj");
    let user = user_of(&node, "web");
    let set = |to: i32| as_user(user, || fs::write(&file, to.to_string()));
    // without this capability, which some containers' root lacks, the kernel keeps no bound but the one that the node has itself
    let bounded = status_field(others[0].0, "CapEff:").unwrap();
    let bounded = u64::from_str_radix(&bounded, 16).unwrap() & CAP_SYS_RESOURCE != 0;
    let least = if bounded { had } else { 0 };
    for better in [-1000, least - 1] {
        assert!(set(better).is_err(), "{better}");
    }
    set(had + 1).unwrap();
    assert_eq!(read(qemu, "oom_score_adj"), had + 1);
    assert!(set(least - 1).is_err());
}

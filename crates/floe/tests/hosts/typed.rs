//! What follows a machine that moves: what its users type, and the programs in it that had it move.

use crate::support::command::{floe, ok, run, said};
use crate::support::hosts::Hosts;
use crate::support::node::{Setup, Signal, TestNode, cluster, eventually};
use floe_api::{MachineInfo, MachineStatus, MoveStanding};

/// Two nodes of a cluster, `node-0` and `node-1`, on hosts of their own. The guests of the first may have their machines moved.
fn pair(hosts: &Hosts) -> [TestNode; 2] {
    let at = |n: usize| {
        let allowed = (n == 0).then(|| "--guest-moves".to_owned());
        TestNode::with(Setup {
            web: Some(format!("10.90.0.{}:7070", n + 1)),
            member: Some(format!("10.90.0.{}:7071", n + 1)),
            namespace: Some(hosts.names[n].clone()),
            args: allowed.into_iter().collect(),
            ..Default::default()
        })
    };
    let nodes = [at(0), at(1)];
    cluster(&[&nodes[0], &nodes[1]]);
    nodes
}

/// What a node has of the machine.
fn web(node: &TestNode) -> Option<MachineInfo> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().find(|machine| machine.name == "web")
}

fn runs(node: &TestNode) -> bool {
    web(node).is_some_and(|web| web.status == MachineStatus::Running)
}

/// Whether the machine runs on this node and the other one has nothing of it.
fn is_at(nodes: &[TestNode; 2], at: usize) -> bool {
    runs(&nodes[at]) && web(&nodes[1 - at]).is_none()
}

/// Whether the machine runs on the second node, to which the first one has lent it.
fn is_lent(nodes: &[TestNode; 2]) -> bool {
    let moves = web(&nodes[0]).and_then(|web| web.moves);
    runs(&nodes[1]) && moves.is_some_and(|moves| moves.standing == MoveStanding::Lent)
}

/// Has the machine come back to the first node once nothing is left to be done of the move before.
fn recall(nodes: &[TestNode; 2]) {
    eventually("it comes back", || {
        let done = run(&nodes[0], &["recall", "web", "--from", "node-1"]);
        let told = said(&done);
        let later = told.contains("a moment ago") || told.contains("not forgotten it yet");
        assert!(done.status.success() || later, "{told}");
        done.status.success()
    });
    eventually("it is gone there", || is_at(nodes, 0));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_typed_follows_a_machine_to_another_node_and_back() {
    let hosts = Hosts::new();
    let mut nodes = pair(&hosts);
    nodes[0].boot_tiny("web");
    let cat = "stty -echo; echo reads-$((6*7)); cat > /www/got; stty echo";
    ok(&nodes[0], &["type", "web", cat]);
    nodes[0].wait_console("web", "reads-42");
    let mut all = String::new();
    let mut types = |node: &TestNode, line: &str| {
        ok(node, &["type", "web", line]);
        all += line;
        all += "\n";
    };
    types(&nodes[0], "at home");
    let mut moving = floe(&nodes[0], &["move", "web", "--to", "node-1"])
        .spawn()
        .unwrap();
    let mut number = 0;
    let status = loop {
        number += 1;
        types(&nodes[0], &format!("on its way {number}"));
        if let Some(status) = moving.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success());
    types(&nodes[0], "from afar");
    nodes[1].end(Signal::KILL);
    types(&nodes[0], "while its node is away");
    nodes[1].start_again();
    types(&nodes[0], "and back");
    nodes[0].end(Signal::KILL);
    nodes[0].start_again();
    types(&nodes[0], "by the next node");
    let got = |node: &TestNode| {
        let done = run(node, &["exec", "web", "--", "cat", "/www/got"]);
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    eventually("all that was typed is there", || {
        got(&nodes[1]).len() >= all.len()
    });
    assert_eq!(got(&nodes[1]), all);
    recall(&nodes);
    ok(&nodes[0], &["type", "web", "at home again"]);
    all += "at home again\n";
    eventually("the rest is there", || got(&nodes[0]).len() >= all.len());
    assert_eq!(got(&nodes[0]), all);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_moves_its_machine_only_where_its_node_allows_that() {
    let hosts = Hosts::new();
    let mut nodes = pair(&hosts);
    nodes[0].boot_tiny("web");
    let nowhere = "floe-guest offload nobody 2>&1 | grep -q 'no member' && echo stays-$((3+4))";
    nodes[0].type_and_wait("web", nowhere, "stays-7");
    let home = "floe-guest recall 2>&1 | grep -q 'comes from' && echo home-$((4+5))";
    nodes[0].type_and_wait("web", home, "home-9");
    // the only other node, which the program names once it is there; with more there
    let go = "echo on-$(floe-guest offload --cpus 2)-$((20+3))";
    ok(&nodes[0], &["type", "web", go]);
    eventually("it is lent", || is_lent(&nodes));
    nodes[1].wait_console("web", "on-node-1-23");
    let cpus = |node: &TestNode| web(node).map(|web| web.cpus);
    eventually("it has more", || cpus(&nodes[1]) == Some(2));
    let back = "floe-guest recall 2>&1 | grep -q 'guest-moves' && echo kept-$((5+4))";
    nodes[1].type_and_wait("web", back, "kept-9");
    nodes[1].end(Signal::KILL);
    nodes[1].start_as(&["--guest-moves"]);
    let back = "until node=$(floe-guest recall); do sleep 1; done; echo on-$node-$((30+4))";
    eventually("it is taken over", || {
        is_lent(&nodes) && run(&nodes[1], &["type", "web", back]).status.success()
    });
    eventually("it is back", || is_at(&nodes, 0));
    nodes[0].wait_console("web", "on-node-0-34");
    assert_eq!(cpus(&nodes[0]), Some(1));
}

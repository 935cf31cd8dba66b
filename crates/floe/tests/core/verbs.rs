//! Verbs on machines that exist: restart, wait, events, stats, rename.

use crate::support::command::{code, said};
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::verbs::machine;
use floe_api::*;

/// Kills a machine's QEMU as the kernel would that is short of memory.
fn kill_qemu(node: &TestNode, name: &str) {
    let pid = machine(node, name).pid.unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_becomes_of_a_machine_that_ended_is_kept_across_nodes() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", None);
    code(&node, 2, &["run", "tiny", "--rm", "--restart", "always"]);
    code(&node, 2, &["run", "tiny", "--restart", "on-failure:0"]);
    code(&node, 0, &["run", "tiny", "--name", "brief", "--rm"]);
    code(&node, 5, &["restart", "brief"]);
    let run = |name: &str, policy: &str| {
        code(
            &node,
            0,
            &["run", "tiny", "--name", name, "--restart", policy],
        );
    };
    run("twice", "on-failure:2");
    run("always", "always");
    run("unless", "unless-stopped");
    let shown = said(&code(&node, 0, &["ps", "twice"]));
    assert!(shown.contains("on-failure:2, 0 in a row"), "{shown}");

    kill_qemu(&node, "brief");
    let first = machine(&node, "twice").pid;
    kill_qemu(&node, "twice");
    eventually("it is started again", || {
        let info = machine(&node, "twice");
        info.status == MachineStatus::Running && info.pid != first
    });
    eventually("what was to be removed is", || {
        node.client().machine("brief").is_err()
    });
    for name in ["always", "unless"] {
        code(&node, 0, &["stop", "--now", name]);
    }
    // one ends while no node is there, another is to be removed by the next node
    code(&node, 0, &["run", "tiny", "--name", "brief", "--rm"]);
    node.end(Signal::KILL);
    for name in ["twice", "brief"] {
        let record = node.home().join(format!("machines/{name}/vm/machine.json"));
        let record = std::fs::read(record).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let pid = record["process"]["pid"].as_i64().unwrap() as i32;
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    node.start_again();
    for name in ["twice", "always"] {
        eventually("it is started by the next node", || {
            machine(&node, name).status == MachineStatus::Running
        });
    }
    eventually("what was to be removed is", || {
        node.client().machine("brief").is_err()
    });
    assert_eq!(machine(&node, "unless").status, MachineStatus::Stopped);
    // a machine that has run for a minute has not failed in a row: on a slow host that takes some more kills
    eventually("it has failed too often", || {
        let info = machine(&node, "twice");
        if info.status == MachineStatus::Running {
            kill_qemu(&node, "twice");
            code(&node, 1, &["wait", "twice"]);
        }
        let info = machine(&node, "twice");
        info.status == MachineStatus::Failed && info.restarts == 0
    });
    // its user's stop ends a wait for the next start
    kill_qemu(&node, "always");
    eventually("it has ended", || {
        let info = machine(&node, "always");
        info.status == MachineStatus::Failed || info.restarts > 0
    });
    code(&node, 0, &["stop", "--now", "always"]);
    let record = std::fs::read_to_string(node.home().join("machines/always/machine.json"));
    assert!(record.unwrap().contains(r#""due": false"#));
}

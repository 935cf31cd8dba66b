//! Verbs on machines that exist: restart, wait, events, stats, rename.

mod command;
mod node;

use command::{ends, floe, said};
use floe_api::*;
use node::{Signal, TestNode, eventually};
use std::{
    io::{BufRead, BufReader},
    process::{Output, Stdio},
};

fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

/// Runs a command whose exit code is to be this.
fn code(node: &TestNode, expected: i32, args: &[&str]) -> Output {
    let output = ends(floe(node, args));
    assert_eq!(
        output.status.code(),
        Some(expected),
        "floe {}: {}",
        args.join(" "),
        said(&output)
    );
    output
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn who_waits_and_watches_is_told_as_it_happens_and_a_restart_is_a_boot() {
    let node = TestNode::start();
    node.boot_tiny("web");
    code(&node, 0, &["wait", "web", "--for", "running"]);
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    code(&node, 3, &["wait", "nosuch"]);
    let late = code(&node, 1, &["wait", "web", "--timeout", "1"]);
    assert!(said(&late).contains("within 1 s"), "{}", said(&late));

    let follow = ["events", "--since", "1h", "--machine", "web", "--json"];
    let mut events = floe(&node, &follow).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut until = |kind: Happened| {
        let events = lines.by_ref().map(|line| {
            let line = line.unwrap();
            serde_json::from_str::<NodeEvent>(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
        });
        let seen: Vec<NodeEvent> = events
            .inspect(|event| assert_eq!(event.subject, "web"))
            .take_while(|event| event.kind != kind)
            .collect();
        seen.into_iter().map(|e| e.kind).collect::<Vec<_>>()
    };
    // what was before is told first, then what happens now
    assert!(!until(Happened::MachineStarted).contains(&Happened::MachinePaused));
    let waits = floe(&node, &["wait", "web", "--for", "paused"]).spawn();
    code(&node, 0, &["pause", "web"]);
    assert!(waits.unwrap().wait().unwrap().success());
    let kinds = until(Happened::MachinePaused);
    let expected = |kind: &Happened| *kind == Happened::MachineAnswers;
    assert!(kinds.iter().all(expected), "{kinds:?}");
    code(&node, 0, &["resume", "web"]);

    let stats = code(&node, 0, &["stats", "web", "--once", "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    let of = &stats["machines"][0];
    assert_eq!(of["name"], "web");
    for figure in ["own_bytes", "cpu_us", "ram_bytes"] {
        assert!(of[figure].as_u64().is_some_and(|n| n > 0), "{stats}");
    }
    assert!(of["cpu_percent"].is_f64(), "{stats}");
    code(&node, 3, &["stats", "nosuch", "--once"]);

    let before = machine(&node, "web").pid;
    let again = code(&node, 0, &["restart", "web", "--timeout", "1"]);
    // the tiny guest does not know what a power button is
    assert!(said(&again).contains("switched off"), "{}", said(&again));
    let info = machine(&node, "web");
    assert_eq!(info.status, MachineStatus::Running);
    assert!(info.pid != before && !info.restored, "{info:?}");
    let kinds = until(Happened::MachineStarted);
    assert!(kinds.contains(&Happened::MachineStopped), "{kinds:?}");

    let waits = floe(&node, &["wait", "web"]).spawn();
    code(&node, 6, &["stop", "web", "--timeout", "1"]);
    assert_eq!(waits.unwrap().wait().unwrap().code(), Some(6));
    code(&node, 0, &["restart", "web", "--force"]);
    let qemu = machine(&node, "web").pid.unwrap();
    let qemu = rustix::process::Pid::from_raw(qemu as i32).unwrap();
    rustix::process::kill_process(qemu, Signal::KILL).unwrap();
    code(&node, 1, &["wait", "web"]);
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_machine_that_runs_is_renamed_and_its_old_name_is_free() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    node.type_and_wait("web", "echo kept > /dev/vda; echo ok-$((40+2))", "ok-42");
    let qemu = machine(&node, "web").pid;
    let waits = floe(&node, &["wait", "web", "--for", "paused"]).spawn();
    code(&node, 2, &["rename", "web", "Web"]);
    code(&node, 2, &["rename", "web", "web.1"]);
    code(&node, 0, &["rename", "web", "old"]);
    code(&node, 3, &["rename", "web", "older"]);
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    code(&node, 1, &["rename", "old", "web"]);
    // who waited for it waits for it still; its agent, its console and its place among the host's promises came along
    code(&node, 0, &["pause", "old"]);
    assert!(waits.unwrap().wait().unwrap().success());
    code(&node, 0, &["resume", "old"]);
    code(&node, 0, &["exec", "old", "--", "true"]);
    // a kill in the middle leaves one of the names: the record's write decides, and a directory's name says nothing
    let at = |round: &str| format!("old{round}");
    for round in 0..4 {
        let (from, to) = match round {
            0 => ("old".to_owned(), at("0")),
            n => (at(&(n - 1).to_string()), at(&n.to_string())),
        };
        let mut rename = floe(&node, &["rename", &from, &to]).spawn().unwrap();
        if round % 2 == 0 {
            rename.wait().unwrap();
        }
        node.end(Signal::KILL);
        rename.wait().unwrap();
        node.start_again();
        eventually("it is taken over under one of its names", || {
            let list = node.client().machines().unwrap().machines;
            let mine = list.iter().filter(|m| m.pid == qemu);
            let names: Vec<_> = mine.map(|m| m.name.clone()).collect();
            names == [from.clone()] || names == [to.clone()]
        });
        let renamed = node.client().machine(&to).is_ok();
        assert!(renamed || round % 2 == 1, "an answer was not kept");
        if !renamed {
            code(&node, 0, &["rename", &from, &to]);
        }
    }
    let (name, shared) = (at("3"), "machines/web");
    assert!(node.home().join(shared).exists());
    code(&node, 0, &["stop", "--now", &name]);
    code(&node, 0, &["rename", &name, "last"]);
    code(&node, 0, &["start", "last", "--wait", "agent"]);
    let read = code(
        &node,
        0,
        &["exec", "last", "--", "head", "-c", "4", "/dev/vda"],
    );
    assert!(said(&read).contains("kept"), "{}", said(&read));
    // what has clones stays what they know
    code(&node, 0, &["fork", "last"]);
    code(&node, 5, &["rename", "last", "first"]);
    code(&node, 5, &["rename", "last.1", "first"]);
    code(&node, 0, &["kill", "--all", "last"]);
    code(&node, 0, &["rm", "--force", "last"]);
    code(&node, 0, &["exec", "web", "--", "true"]);
    assert_eq!(node.client().machines().unwrap().machines.len(), 1);
}

//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::command::{floe, run};
use crate::support::exec::{sh, text, wait_for};
use crate::support::node::TestNode;
use std::{fs, io::Read, path::Path};

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_clone_has_its_parents_processes_but_not_their_streams() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let line =
        "echo ready; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over; echo over > /tmp/out";
    let mut child = floe(&node, &["exec", "web", "--", "sh", "-c", line])
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    let done = run(&node, &["fork", "web", "-n", "1"]);
    assert!(done.status.success(), "{done:?}\n{}", node.log());
    wait_for(&node, "web.1", "true");
    let machine = |name: &str, line: &str| run(&node, &["exec", name, "--", "sh", "-c", line]);
    let done = machine("web.1", "ls /tmp/go; touch /tmp/go");
    assert!(done.status.success(), "{done:?}");
    wait_for(&node, "web.1", "grep over /tmp/out");
    // the parent's command heard nothing of that, and is still there
    assert!(child.try_wait().unwrap().is_none());
    assert!(machine("web", "touch /tmp/go").status.success());
    let done = child.wait_with_output().unwrap();
    assert_eq!(
        (done.status.code(), text(&done.stdout)),
        (Some(0), "over\n".into())
    );
    // the same of an image
    let done = run(&node, &["exec", "--detach", "web", "--", "sleep", "3000"]);
    assert!(done.status.success(), "{done:?}");
    let done = run(
        &node,
        &["capture", "web", "--name", "kept", "--rehearse", "0"],
    );
    assert!(done.status.success(), "{done:?}");
    node.run_named("kept", "again");
    wait_for(&node, "again", "pidof sleep");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_agent_is_installed_over_the_console_of_a_guest_that_has_none() {
    let node = TestNode::start();
    node.boot_tiny("web");
    // the program is that of the guest; then the guest has none any more
    let agent = node.home().join("agent");
    let done = run(
        &node,
        &["cp", "web:/bin/floe-guest", agent.to_str().unwrap()],
    );
    assert!(done.status.success(), "{done:?}");
    sh(&node, "rm /bin/floe-guest");
    node.type_and_wait(
        "web",
        "kill $(pidof floe-guest); echo gone-$((1+1))",
        "gone-2",
    );
    let done = run(&node, &["exec", "web", "--", "true"]);
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    let install = [
        "agent",
        "install",
        "web",
        "--agent",
        agent.to_str().unwrap(),
    ];
    let done = run(&node, &install);
    assert!(done.status.success(), "{done:?}\n{}", node.console("web"));
    assert!(
        text(&done.stdout).contains("the agent runs in web"),
        "{done:?}"
    );
    assert_eq!(
        sh(
            &node,
            "command -v floe-guest || ls /usr/local/bin/floe-guest"
        ),
        "/usr/local/bin/floe-guest\n"
    );
    // once more, over the one that runs; and what it is not for is said
    let done = run(&node, &["agent", "install", "web", "--agent", "/none"]);
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    // the console is the user's again
    node.type_and_wait("web", "echo again-$((2+2))", "again-4");

    // another one takes the place of the one that runs, without the console; what runs in the guest goes on
    sh(&node, "sleep 100000 >/dev/null 2>&1 &");
    let other = node.home().join("other-agent");
    let mut program = fs::read(&agent).unwrap();
    program.extend(b"another");
    fs::write(&other, &program).unwrap();
    let replace = |agent: &Path| {
        let agent = agent.to_str().unwrap();
        run(&node, &["agent", "install", "web", "--agent", agent])
    };
    let done = replace(&other);
    assert!(text(&done.stdout).contains("is replaced"), "{done:?}");
    let runs = "[ $(tail -c 7 /proc/$PPID/exe) = another ] && pidof sleep";
    sh(&node, runs);
    wait_for(&node, "web", "! ls /usr/local/bin/*.floe-* 2>/dev/null");
    assert!(text(&replace(&other).stdout).contains("has this agent"));

    // what is no program, or one that does not serve, leaves it where it is
    let broken = node.home().join("broken-agent");
    for (content, why) in [
        ("no program", "does not run there"),
        ("#!/bin/sh\n[ $1 = --help ]\n", "it ended at once"),
    ] {
        fs::write(&broken, content).unwrap();
        let done = replace(&broken);
        assert!(!done.status.success(), "{done:?}");
        assert!(text(&done.stderr).contains(why), "{done:?}");
        sh(&node, runs);
        sh(&node, "! ls /usr/local/bin/*.floe-*");
    }
}

//! A node's machines that are given more CPUs and memory while they run, kept with real guests: their images, restored
//! machines and clones have all of it.
//!
//! The node has no command for that yet. So each test does what a node does that ends in the middle: it ends the node, takes the
//! machine over, adds to it, and lets the next node find a machine that has grown.

use crate::support::node::{PATIENCE, Signal, TestNode, eventually, finish};
use floe_api::*;
use floe_machine::{MEMORY_STEP_BYTES, Machine, qmp::Qmp};
use std::{os::unix::net::UnixStream, time::Instant};

/// Memory that the tiny guest is imported with.
const AT_THE_START: u64 = 256 << 20;

const ONLINE: &str = "for c in /sys/devices/system/cpu/cpu[1-9]*/online; do echo 1 >$c; done; \
    for m in /sys/devices/system/memory/memory*/state; do grep -q off $m && echo online_movable >$m; done 2>/dev/null";

/// Gives a machine one more CPU, memory block and network card while no node is there; it has `now` CPUs and cards then.
fn grow(node: &mut TestNode, name: &str, now: u32) {
    let record = node.home().join("machines").join(name).join("machine.json");
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let vm = node
        .home()
        .join(record["place"].as_str().unwrap())
        .join("vm");
    let qmp = |command: &str| {
        let spare = UnixStream::connect(vm.join("run/qmp-spare.sock")).unwrap();
        let spare = Qmp::over(spare, |_| {}).unwrap();
        spare.execute(command, serde_json::json!({})).unwrap();
    };
    // a restored guest that runs needs its memory's file, and so a node; without, its QEMU may not even answer
    qmp("stop");
    node.end(Signal::KILL);
    let machine = Machine::adopt(&vm).unwrap();
    machine.add_cpus(1).unwrap();
    machine.add_memory(MEMORY_STEP_BYTES).unwrap();
    machine.add_card(None).unwrap();
    drop(machine);
    node.start_again();
    qmp("cont");
    let has = "$(nproc)-$(ls /sys/class/net|grep -c eth)-$(cat /sys/devices/system/memory/memory*/state|grep -c online)";
    // the memory of the start is two blocks of the guest's
    let line = format!(
        "until {ONLINE}; [ {has} = {now}-{now}-{} ]; do sleep 1; done; echo has-{now}-$((20+2))",
        now + 1
    );
    node.type_and_wait(name, &line, &format!("has-{now}-22"));
}

/// What a shell in the guest answers: the text behind the mark that only its output has.
fn ask(node: &TestNode, name: &str, mark: &str, command: &str) -> String {
    let begin = format!("{mark}=[");
    let _console = node.type_line(name, &format!("echo {mark}=\"[$({command})]\""));
    let until = Instant::now() + PATIENCE;
    loop {
        let console = node.console(name);
        let answer = console
            .rsplit_once(&begin)
            .and_then(|(_, rest)| rest.split_once(']'));
        if let Some((answer, _)) = answer {
            return answer.to_owned();
        }
        assert!(
            Instant::now() < until,
            "{name} never answered {command}:\n{console}"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Random content in a file of memory; returns its sum.
fn fill(node: &TestNode, name: &str, file: &str, mib: u32) -> String {
    let done = format!("filled-{file}");
    let line =
        format!("dd if=/dev/urandom of=/dev/shm/{file} bs=1M count={mib}; echo {done}-$((30+3))");
    node.type_and_wait(name, &line, &format!("{done}-33"));
    sum(node, name, file, &format!("written-{file}"))
}

fn sum(node: &TestNode, name: &str, file: &str, mark: &str) -> String {
    let sum = ask(
        node,
        name,
        mark,
        &format!("md5sum </dev/shm/{file}|head -c32"),
    );
    assert_eq!(sum.len(), 32, "{sum}");
    sum
}

fn capture(node: &TestNode, machine: &str, image: &str) -> ImageDetail {
    let request = CaptureRequest {
        name: Some(image.into()),
        ..Default::default()
    };
    finish(node.client().capture(machine, &request).unwrap());
    node.client().image(image).unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn added_memory_is_in_images_restored_machines_and_clones() {
    let mut node = TestNode::start();
    node.boot_tiny("one");
    grow(&mut node, "one", 2);
    assert_eq!(ask(&node, "one", "cpus", "nproc"), "2");
    // what was brought online as movable is what such files get first
    let first = fill(&node, "one", "first", 60);
    let image = capture(&node, "one", "grown");
    let block = image.regions.iter().find(|region| region.name == "ram1");
    let block = block.expect("the block is a region");
    assert_eq!(block.bytes, MEMORY_STEP_BYTES);
    assert!(block.segments >= 15, "it holds the content: {block:?}");
    assert_eq!(image.cpus, Some(2));
    assert_eq!(image.memory_bytes, Some(AT_THE_START + MEMORY_STEP_BYTES));
    let info = node.client().machine("one").unwrap();
    assert_eq!(
        (info.cpus, info.memory_bytes),
        (2, AT_THE_START + MEMORY_STEP_BYTES)
    );

    // The next capture of the same machine stands on the first, and memory that was given back is zeros in it.
    node.type_and_wait("one", "rm /dev/shm/first; echo gone-$((40+4))", "gone-44");
    let emptied = capture(&node, "one", "emptied");
    assert_eq!(emptied.memory_bytes, image.memory_bytes);

    // A restored machine has it all, and can be given more.
    node.run_named("grown", "two");
    assert_eq!(sum(&node, "two", "first", "restored"), first);
    assert_eq!(
        ask(&node, "two", "cards", "ls /sys/class/net|grep -c eth"),
        "2"
    );
    grow(&mut node, "two", 3);
    assert_eq!(ask(&node, "two", "cpus", "nproc"), "3");
    let second = fill(&node, "two", "second", 30);
    capture(&node, "two", "more");
    // One that stands on a capture later than the one that it was restored from.
    let third = fill(&node, "two", "third", 10);
    capture(&node, "two", "most");

    // Clones of it have it all.
    let request = ForkRequest {
        clones: 2,
        settle: true,
        ..Default::default()
    };
    let forked = finish(node.client().fork("two", &request).unwrap());
    assert_eq!(forked.fork.unwrap().running, 2);
    let check = |node: &TestNode, name: &str| {
        for (file, expected) in [("first", &first), ("second", &second), ("third", &third)] {
            assert_eq!(&sum(node, name, file, &format!("{name}-{file}")), expected);
        }
    };
    check(&node, "two.1");
    // also once they stand on the stored image, with a node that knows nothing of the fork but its files
    let settled = || {
        let clone = node.client().machine("two.2").unwrap();
        clone.cloned.is_some_and(|cloned| cloned.settled)
    };
    eventually("the clones settle", settled);
    grow(&mut node, "two.2", 4);
    check(&node, "two.2");
    let all = capture(&node, "two.2", "all");
    assert_eq!(all.cpus, Some(4));
    assert_eq!(all.memory_bytes, Some(AT_THE_START + 3 * MEMORY_STEP_BYTES));
    for machine in ["one", "two", "two.1", "two.2"] {
        node.client().remove_machine(machine, true).unwrap();
    }
    node.run_named("all", "last");
    check(&node, "last");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_killed_before_a_fork_is_stored_costs_no_added_memory() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    grow(&mut node, "web", 2);
    let content = fill(&node, "web", "x", 60);
    let request = ForkRequest {
        clones: 2,
        ..Default::default()
    };
    let forked = finish(node.client().fork("web", &request).unwrap());
    assert_eq!(forked.fork.unwrap().running, 2);
    node.end(Signal::KILL);
    node.start_again();
    for clone in ["web.1", "web.2"] {
        let runs = || node.client().machine(clone).unwrap().status == MachineStatus::Running;
        eventually("the clone goes on", runs);
        assert_eq!(sum(&node, clone, "x", &format!("{clone}-x")), content);
    }
    assert!(node.log().contains("fork.found"), "{}", node.log());
    // what was found again is stored whole, and the content is in the block that was added
    let settled = || {
        let clone = node.client().machine("web.2").unwrap();
        clone.cloned.is_some_and(|cloned| cloned.settled)
    };
    eventually("the clones settle", settled);
    let image = capture(&node, "web.2", "kept");
    let block = image.regions.iter().find(|region| region.name == "ram1");
    assert!(block.is_some_and(|block| block.segments >= 15), "{image:?}");
    assert_eq!(sum(&node, "web.2", "x", "stored"), content);
}

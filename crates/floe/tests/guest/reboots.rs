//! Guests that boot anew, with real ones: what was added to their machine while it ran, and what was taken from it.

use super::resize::{counted, floe_ends, has, leave_in_the_record, qmp, sh};
use crate::support::node::{Signal, TestNode, eventually};

const MIB: u64 = 1 << 20;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_that_reboots_has_all_cpus_of_its_machine_and_that_is_shown_whoever_saw_it() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    floe_ends(&node, &["resize", "web", "--cpus", "3"], 0);
    for node_is_there in [true, false] {
        floe_ends(&node, &["resize", "web", "--cpus", "1"], 0);
        assert_eq!(
            (sh(&node, "web", "nproc").as_str(), has(&node, "web").0),
            ("1", 1)
        );
        if node_is_there {
            let _console = node.type_line("web", "reboot -f");
            eventually("it is told", || has(&node, "web").0 == 3);
        } else {
            node.end(Signal::KILL);
            qmp(&node, "web", "system_reset");
            node.start_again();
            eventually("it is noticed", || has(&node, "web").0 == 3);
        }
        assert_eq!(sh(&node, "web", "nproc"), "3");
        let told = "3 CPUs and 256.0 MiB of memory; it had 1 CPU and";
        assert!(node.log().contains(told), "{}", node.log());
    }
    floe_ends(&node, &["resize", "web", "--cpus", "2"], 0);
    assert_eq!(sh(&node, "web", "nproc"), "2");
}

/// Has a guest boot anew in its QEMU, by itself or, where no node is there to see it, by its QEMU, and waits until it has.
fn boots_anew(node: &mut TestNode, name: &str, node_is_there: bool) {
    sh(node, name, "touch /dev/shm/before");
    let _console = match node_is_there {
        true => Some(node.type_line(name, "reboot -f")),
        false => {
            node.end(Signal::KILL);
            qmp(node, name, "system_reset");
            node.start_again();
            None
        }
    };
    let line = "[ -e /dev/shm/before ] && echo before || echo anew";
    eventually("it boots anew", || sh(node, name, line) == "anew");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_that_reboots_uses_what_was_added_and_its_balloon_takes_nothing_that_it_lacks() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let small = counted(&node, "web");
    let unused = |node: &TestNode| node.client().machine("web").unwrap().memory_unused_bytes;
    floe_ends(&node, &["resize", "web", "--memory", "512M"], 0);
    assert!(counted(&node, "web") > small + 240);
    for node_is_there in [true, false] {
        boots_anew(&mut node, "web", node_is_there);
        eventually("what was added is in use", || {
            counted(&node, "web") > small + 240
        });
        eventually("that is known", || unused(&node) == 0);
        assert_eq!(has(&node, "web"), (1, 512));
        if node_is_there {
            eventually("it is told", || {
                node.log().contains("its guest uses all of its memory")
            });
        }
    }

    // With a balloon that has nearly as much as there was at first. While only that is in use, it has nothing.
    floe_ends(&node, &["resize", "web", "--memory", "288M"], 0);
    boots_anew(&mut node, "web", true);
    eventually("what was added is in use", || {
        counted(&node, "web") > small + 240
    });
    eventually("the balloon has what it had", || {
        qmp(&node, "web", "query-balloon")["actual"].as_u64() == Some(288 * MIB)
    });
    eventually("that is known", || unused(&node) == 0);
    assert_eq!(has(&node, "web"), (1, 288));
    let killed = "dmesg | grep -c 'Out of memory: Killed' || true";
    assert_eq!(sh(&node, "web", killed), "0");

    // It starts from its disks with all that it has.
    floe_ends(&node, &["resize", "web", "--memory", "512M"], 0);
    let restart = ["restart", "web", "--force", "--wait", "agent"];
    floe_ends(&node, &restart, 0);
    eventually("what was added is in use", || {
        counted(&node, "web") > small + 240
    });
    eventually("that is known", || unused(&node) == 0);
    assert_eq!(has(&node, "web"), (1, 512));

    // One without an agent, as it may be after a boot: of what is not in use, nothing is taken from the rest.
    let kill = "kill $(pidof floe-guest); echo gone-$((40+4))";
    node.type_and_wait("web", kill, "gone-44");
    node.end(Signal::KILL);
    leave_in_the_record(&node, "web", |record| {
        let unused = serde_json::json!({"bytes": 256 * MIB, "then_bytes": 512 * MIB});
        record["given"] = serde_json::json!({ "unused": unused });
    });
    node.start_again();
    eventually("that is shown", || unused(&node) == 256 * MIB);
    let shown = floe_ends(&node, &["ps", "web"], 0);
    assert!(shown.contains("256.0 MiB of it not in use"), "{shown}");
    for (mib, outside) in [(256, 512), (128, 384)] {
        let memory = format!("{mib}M");
        let said = floe_ends(&node, &["resize", "web", "--memory", &memory], 5);
        assert!(said.contains("no agent answers in it"), "{said}");
        let actual = qmp(&node, "web", "query-balloon")["actual"].as_u64();
        assert_eq!(actual, Some(outside * MIB));
        assert_eq!(has(&node, "web"), (1, mib));
    }
}

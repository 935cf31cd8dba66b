//! Machines that become larger and smaller while they run, with real guests: `floe resize`, `floe attach`, `floe detach`.

mod command;
mod node;

use command::{ends, floe, said};
use floe_api::*;
use node::{PATIENCE, Setup, Signal, TestNode, eventually, finish};
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// Runs floe, which must end with this exit code, and returns what it said.
fn floe_ends(node: &TestNode, args: &[&str], code: i32) -> String {
    let done = ends(floe(node, args));
    let said = said(&done);
    assert_eq!(
        done.status.code(),
        Some(code),
        "{args:?}: {said}\n{}",
        node.log()
    );
    said
}

/// What a shell's line in a guest writes; it is tried until the guest's agent answers.
fn sh(node: &TestNode, name: &str, line: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = ends(floe(node, &["exec", name, "--", "sh", "-c", line]));
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        assert!(
            Instant::now() < until,
            "{line}: {}\n{}",
            said(&done),
            node.log()
        );
    }
}

/// CPUs and MiB of memory that a machine is said to have.
fn has(node: &TestNode, name: &str) -> (u32, u64) {
    let info = node.client().machine(name).unwrap();
    (info.cpus, info.memory_bytes / MIB)
}

/// How many network cards the guest sees.
fn cards(node: &TestNode, name: &str) -> String {
    sh(node, name, "ls /sys/class/net | grep -c eth")
}

/// MiB of memory that the guest's kernel counts, with those in its balloon and without its own.
fn counted(node: &TestNode, name: &str) -> u64 {
    let line = "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo";
    sh(node, name, line).parse::<u64>().unwrap() >> 10
}

/// What the node has promised, in its own words.
fn promised(node: &TestNode) -> String {
    let mut checks = node.client().doctor().unwrap().checks.into_iter();
    let check = checks.find(|check| check.name == "promises");
    check.unwrap().detail
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_machine_grows_and_shrinks_and_so_do_its_images_and_clones() {
    let mut node = TestNode::with(Setup {
        args: ["--memory".into(), "1G".into()].into(),
        ..Default::default()
    });
    node.boot_tiny("web");
    let small = counted(&node, "web");
    assert!(
        promised(&node).contains("promised 304.0 MiB"),
        "{}",
        promised(&node)
    );
    let said = floe_ends(
        &node,
        &["resize", "web", "--cpus", "3", "--memory", "400M"],
        0,
    );
    let told = "web has 3 CPUs and 400.0 MiB of memory; it had 1 CPU and 256.0 MiB";
    assert!(said.contains(told), "{said}");
    assert_eq!(
        (sh(&node, "web", "nproc").as_str(), has(&node, "web")),
        ("3", (3, 400))
    );
    // a block of 256 MiB, of which the balloon has what is too much: the guest's kernel counts that as used
    let grown = counted(&node, "web");
    assert!(grown > small + 240, "{small} became {grown}");
    assert!(
        promised(&node).contains("promised 448.0 MiB"),
        "{}",
        promised(&node)
    );
    let shown = floe_ends(&node, &["ps", "web"], 0);
    assert!(shown.contains("at most 8 while it runs"), "{shown}");

    // Another node knows all of it, and takes it back.
    node.end(Signal::KILL);
    node.start_again();
    eventually("the machine is taken over", || {
        promised(&node).contains("promised 448.0 MiB")
    });
    let said = floe_ends(
        &node,
        &["resize", "web", "--cpus", "2", "--memory", "192M"],
        0,
    );
    assert!(said.contains("web has 2 CPUs and 192.0 MiB"), "{said}");
    assert_eq!(sh(&node, "web", "nproc"), "2");
    assert!(
        promised(&node).contains("promised 240.0 MiB"),
        "{}",
        promised(&node)
    );
    let log = node.log();
    assert!(log.contains("machine.resized"), "{log}");

    // Another card: its driver sets it up, and a capture has it.
    let said = floe_ends(&node, &["attach", "web", "--network"], 0);
    assert!(said.contains("web has the card nic1\n"), "{said}");
    assert_eq!(cards(&node, "web"), "2");

    // Its image is as it was, and a machine of it grows: first by what was taken, then by hardware.
    let request = CaptureRequest {
        name: Some("sized".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &request).unwrap());
    // what was given can be taken away, and nothing else
    let said = floe_ends(&node, &["detach", "web", "nic0"], 3);
    assert!(said.contains("it was given nic1"), "{said}");
    floe_ends(&node, &["detach", "web", "nic1"], 0);
    assert_eq!(cards(&node, "web"), "1");
    floe_ends(&node, &["rm", "--force", "web"], 0);
    node.run_named("sized", "two");
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("2", (2, 192))
    );
    floe_ends(
        &node,
        &["resize", "two", "--cpus", "4", "--memory", "640M"],
        0,
    );
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("4", (4, 640))
    );
    let all = counted(&node, "two");
    assert!(all > small + 360, "{small} became {all}");

    assert_eq!(cards(&node, "two"), "2");

    // A clone too.
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork("two", &request).unwrap());
    assert_eq!(
        (sh(&node, "two.1", "nproc").as_str(), has(&node, "two.1")),
        ("4", (4, 640))
    );
    floe_ends(
        &node,
        &["resize", "two.1", "--cpus", "1", "--memory", "256M"],
        0,
    );
    assert_eq!(has(&node, "two.1"), (1, 256));
    assert_eq!(sh(&node, "two.1", "nproc"), "1");
    assert_eq!(has(&node, "two"), (4, 640), "nobody else");

    // More than the profile and more than the host: nothing is done, and the way out is named.
    let said = floe_ends(&node, &["resize", "two", "--cpus", "9"], 5);
    assert!(
        said.contains("can have 8 CPUs") && said.contains("floe stop two"),
        "{said}"
    );
    let said = floe_ends(&node, &["resize", "two", "--memory", "100G"], 5);
    assert!(
        said.contains("can have 16.0 GiB") && said.contains("floe stop two"),
        "{said}"
    );
    let said = floe_ends(
        &node,
        &["resize", "two", "--memory", "2G", "--cpus", "5"],
        5,
    );
    assert!(said.contains("--overcommit"), "{said}");
    assert_eq!(has(&node, "two"), (4, 640));

    // A stopped one starts with it.
    floe_ends(&node, &["stop", "--now", "two"], 0);
    floe_ends(
        &node,
        &["resize", "two", "--cpus", "2", "--memory", "320M"],
        0,
    );
    assert_eq!(has(&node, "two"), (2, 320));
    floe_ends(&node, &["start", "two", "--wait", "agent"], 0);
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("2", (2, 320))
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_guest_that_cannot_follow_keeps_what_it_has_and_the_reason_is_told() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        cmdline: Some("console=ttyS0 init_on_free=1 quiet nr_cpus=1".into()),
        wait: Wait::Agent,
        ..Default::default()
    });
    // a kernel that takes no further CPU
    let said = floe_ends(&node, &["resize", "web", "--cpus", "2"], 5);
    assert!(
        said.contains("has 1 of 2 CPUs online") && said.contains("floe restart web"),
        "{said}"
    );
    assert_eq!(
        (sh(&node, "web", "nproc").as_str(), has(&node, "web").0),
        ("1", 1)
    );

    // a guest whose programs need what it is to give: they keep it, and nothing of theirs is lost
    let sum = sh(
        &node,
        "web",
        "dd if=/dev/urandom of=/dev/shm/x bs=1M count=110 2>/dev/null; md5sum </dev/shm/x",
    );
    let said = floe_ends(&node, &["resize", "web", "--memory", "64M"], 5);
    assert!(said.contains("of 64.0 MiB: it gives no more"), "{said}");
    let (_, left) = has(&node, "web");
    assert!((110..256).contains(&left), "{left} MiB");
    assert_eq!(sh(&node, "web", "md5sum </dev/shm/x"), sum);
    assert_eq!(
        sh(
            &node,
            "web",
            "dmesg | grep -c 'Out of memory: Killed' || true"
        ),
        "0"
    );
    // and with that out of the way it gives it, and gets it back
    sh(&node, "web", "rm /dev/shm/x");
    floe_ends(&node, &["resize", "web", "--memory", "128M"], 0);
    floe_ends(&node, &["resize", "web", "--memory", "256M"], 0);
    assert_eq!(has(&node, "web"), (1, 256));

    // one that stands still
    floe_ends(&node, &["pause", "web"], 0);
    let said = floe_ends(&node, &["resize", "web", "--memory", "128M"], 5);
    assert!(said.contains("stands still for its user"), "{said}");
    floe_ends(&node, &["resume", "web"], 0);

    // without the driver, and without the agent
    sh(&node, "web", "rmmod virtio_balloon");
    let said = floe_ends(&node, &["resize", "web", "--memory", "128M"], 5);
    assert!(said.contains("modprobe virtio_balloon"), "{said}");
    node.run_named("tiny", "other");
    node.wait_console("other", "floe-guest ready");
    floe_ends(&node, &["resize", "other", "--cpus", "2"], 0);
    node.type_and_wait(
        "other",
        "kill $(pidof floe-guest); echo gone-$((40+4))",
        "gone-44",
    );
    let said = floe_ends(&node, &["resize", "other", "--cpus", "1"], 5);
    assert!(said.contains("floe agent install other"), "{said}");
    assert_eq!(has(&node, "other"), (2, 256));
}

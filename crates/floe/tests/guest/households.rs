//! What a guest can have by cloning its machine, kept with real guests: as many clones as its user allows, and with them no more of the
//! host than without.

use crate::support::command::{code, said as printed};
use crate::support::guests::{WHOAMI, booted, names, said, said_by};
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::resources::{group, household, needs_groups, pid, quota_of, said_by as file};
use floe_api::*;
use std::path::PathBuf;

/// Memory that each of the guests takes, in MiB: two of them more than is left for all, and one less.
const FILL_MIB: u64 = 100;

/// Memory that the household has beside what its first machine takes, in bytes: enough for two clones that do nothing.
const SPARE_BYTES: u64 = 260 << 20;

fn limit(node: &TestNode, name: &str, request: LimitRequest) {
    node.client().limit(name, &request).unwrap();
}

fn limits(node: &TestNode, name: &str) -> Limits {
    node.client().machine(name).unwrap().limits
}

/// How many periods the kernel has counted in which the household of a process was bounded, and how much time it has had, in microseconds.
fn periods(pid: u32) -> (u64, u64) {
    let stat = file(&household(pid, "cpu"), "cpu.stat", "cpu.stat");
    let of = |stat: &str, name: &str| -> Option<u64> {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    let periods = of(&stat, "nr_periods").unwrap();
    // version 1 counts time in another place, in nanoseconds
    let us = of(&stat, "usage_usec").unwrap_or_else(|| {
        let ns = file(&household(pid, "cpuacct"), "cpuacct.usage", "cpu.stat");
        ns.parse::<u64>().unwrap() / 1000
    });
    (periods, us)
}

#[test]
#[ignore = "needs root, FUSE, QEMU and control groups: make test-all"]
fn the_clones_that_a_guest_makes_share_its_limits() {
    let mut node = TestNode::start();
    needs_groups(&node);
    booted(&node, 1);
    node.run_named("tiny", "other");
    node.wait_console("other", "floe-guest ready");
    let used = node.client().machine("web").unwrap().stats.memory_bytes;
    let memory_max = used + SPARE_BYTES;
    let request = LimitRequest {
        memory_max_bytes: Some(memory_max),
        io_weight: Some(10),
        ..Default::default()
    };
    limit(&node, "web", request);
    let clone =
        "t=$(floe-guest ticket 2 | cut -d' ' -f1); id=$(floe-guest clone $t); echo i-am-$id-";
    node.type_and_wait("web", clone, "i-am-0-");
    let all = ["web", "web.1", "web.2"];
    assert_eq!(names(&node), ["other", "web", "web.1", "web.2"]);

    // they are in one group, which has the limit; none has one of its own beside
    let pids = all.map(|name| pid(&node, name));
    for controller in ["cpu", "memory"] {
        let one = household(pids[0], controller);
        assert!(pids.iter().all(|pid| household(*pid, controller) == one));
        assert_ne!(household(pid(&node, "other"), controller), one);
    }
    let most = |group: &(PathBuf, bool)| -> Option<u64> {
        let text = file(group, "memory.limit_in_bytes", "memory.max");
        let bytes: u64 = text.parse().ok()?;
        (bytes < 1 << 60).then_some(bytes)
    };
    // whole pages
    assert_eq!(
        most(&household(pids[0], "memory")),
        Some(memory_max & !4095)
    );
    for pid in pids {
        assert_eq!(most(&group(pid, "memory")), None);
    }
    let io = node.client().io().unwrap().machines;
    for name in all {
        let its = io.iter().find(|machine| machine.name == name).unwrap();
        assert_eq!((its.weight, its.among), (10, 3), "{name}");
    }

    // changed for one of them, they change for all, and are what they were under the next node
    let request = LimitRequest {
        cpu_millicores: Some(100),
        ..Default::default()
    };
    limit(&node, "web.2", request);
    node.end(Signal::KILL);
    node.start_again();
    eventually("they are taken over", || {
        let machines = node.client().machines().unwrap().machines;
        machines.iter().all(|machine| machine.pid.is_some())
    });
    for name in all {
        let its = limits(&node, name);
        assert_eq!(its.cpu_millicores, Some(100), "{name}");
        assert_eq!(its.memory_max_bytes, Some(memory_max), "{name}");
        assert_eq!(quota_of(pid(&node, name)), Some(100));
    }
    for name in all {
        node.type_and_wait(name, "while :; do :; done & echo bu''sy", "busy");
    }
    let before = periods(pids[0]);
    let mut after = before;
    eventually("the kernel has bounded them for a while", || {
        after = periods(pids[0]);
        after.0 >= before.0 + 50
    });
    // a tenth of a core in each period of a tenth of a second, and what is left of those before and after
    let (periods, us) = (after.0 - before.0, after.1 - before.1);
    assert!(
        us <= (periods + 10) * 10_000,
        "{us} us in {periods} periods"
    );
    let request = LimitRequest {
        cpu_millicores: Some(0),
        ..Default::default()
    };
    limit(&node, "web", request);
    assert!(all.iter().all(|name| quota_of(pid(&node, name)).is_none()));

    // each of them fits, all do not: one is ended, and nobody else
    let fill = format!("dd if=/dev/zero of=/www/fill bs=1M count={FILL_MIB}");
    let _typed = all.map(|name| node.type_line(name, &fill));
    let failed = || {
        let machines = all.map(|name| node.client().machine(name).unwrap());
        let mut failed = machines.into_iter();
        failed.find(|machine| machine.status == MachineStatus::Failed)
    };
    eventually("one of them is ended", || failed().is_some());
    let why = failed().unwrap().detail;
    assert!(
        why.contains("memory limit of") && why.contains("shares"),
        "{why}"
    );
    node.type_and_wait("other", "echo fi''ne", "fine");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_clones_its_machine_as_often_as_its_user_allows() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    node.type_and_wait("web", WHOAMI, "0 web");
    let refused = said(&node, 1, "floe-guest ticket 1 2>&1");
    assert!(refused.contains("(not-allowed)"), "{refused}");
    assert!(refused.contains("--clones"), "{refused}");
    let told = printed(&code(&node, 0, &["limit", "web", "--clones", "2"]));
    assert!(told.contains("2 clones that its guest makes"), "{told}");

    // it gets as many as it may have, and they count together wherever in the household they are made
    let asked = said(&node, 2, "set -- $(floe-guest ticket 5); echo got-$2");
    assert!(asked.contains("got-2"), "{asked}");
    node.type_and_wait("web", "echo i-am-$(floe-guest clone $1)-", "i-am-0-");
    assert_eq!(names(&node), ["web", "web.1", "web.2"]);
    let ready = "until floe-guest whoami >/dev/null 2>&1; do sleep 1; done; ";
    let full = |number: u32, name: &str| {
        let ticket = format!("{ready}floe-guest ticket 1 2>&1");
        let refused = said_by(&node, name, number, &ticket);
        assert!(refused.contains("(no-room)"), "{name}: {refused}");
        assert!(refused.contains("all the 2 clones"), "{name}: {refused}");
    };
    full(3, "web");
    full(4, "web.1");
    let kill = KillRequest::default();
    node.client().kill("web.2", &kill).unwrap();
    let asked = said_by(
        &node,
        "web.1",
        5,
        "set -- $(floe-guest ticket 5); echo got-$2",
    );
    assert!(asked.contains("got-1"), "{asked}");
    node.type_and_wait("web.1", "echo we-are-$(floe-guest clone $1)-", "we-are-0-");
    assert_eq!(names(&node), ["web", "web.1", "web.1.1"]);
    full(6, "web");
    node.end(Signal::KILL);
    node.start_again();
    let full = |number: u32, name: &str| {
        let ticket = format!("{ready}floe-guest ticket 1 2>&1");
        let refused = said_by(&node, name, number, &ticket);
        assert!(refused.contains("all the 2 clones"), "{name}: {refused}");
    };
    full(7, "web");
    full(8, "web.1.1");

    // what the user makes is the user's own: a machine with limits and clones of its own
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    let forked = node.client().fork("web", &request).unwrap().finish(|_| ());
    let forked = forked.unwrap().fork.unwrap();
    let own = forked.clones[0].name.as_str();
    assert_eq!(forked.running, 1);
    let ticket = format!("{ready}set -- $(floe-guest ticket 5); echo got-$2");
    let asked = said_by(&node, own, 9, &ticket);
    assert!(asked.contains("got-2"), "{asked}");
    full(10, "web");
    assert_eq!(limits(&node, own).clones, Some(2));
    // which change for it alone
    code(&node, 0, &["limit", own, "--clones", "none"]);
    assert_eq!(limits(&node, own).clones, None);
    assert_eq!(limits(&node, "web.1").clones, Some(2));
}

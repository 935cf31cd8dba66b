//! The promises about what a program inside of a guest can do, kept with real guests: floe-guest and libfloe's examples run in
//! them.

use crate::support::guests::{HOST, Reports, WHOAMI, booted, booted_of, names, said};
use crate::support::node::{self, Setup, TestNode, cluster, eventually};
use floe_api::*;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn no_clone_has_a_network_before_it_knows_who_it_is_and_no_call_waits_for_a_dead_node() {
    let mut node = TestNode::start();
    booted(&node, 1);
    // the agent was there, and is not when its machine is cloned
    said(
        &node,
        1,
        "kill $(pidof floe-guest); while pidof floe-guest; do sleep 1; done",
    );
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    let forked = node.client().fork("web", &request).unwrap().finish(|_| ());
    let name = forked.unwrap().fork.unwrap().clones[0].name.clone();
    let cable = "echo cable-$(cat /sys/class/net/eth0/carrier)-$(hostname)";
    node.type_and_wait(&name, cable, "cable-0-floe");
    let clone = node.client().machine(&name).unwrap();
    assert_eq!(clone.cloned.unwrap().identity, Identity::Pending);
    assert!(clone.detail.contains("no network"), "{}", clone.detail);
    node.type_and_wait("web", cable, "cable-1-floe");
    node.type_and_wait(
        &name,
        &format!("(floe-guest serve 2>/dev/null &); {WHOAMI}"),
        "1 web.1 web",
    );
    node.type_and_wait(&name, cable, "cable-1-web-1");
    let clone = node.client().machine(&name).unwrap();
    assert_eq!(clone.cloned.unwrap().identity, Identity::Placed);
    assert_eq!(clone.detail, "");
    node.client().kill(&name, &KillRequest::default()).unwrap();

    // the node is killed while a program waits for its answer
    said(
        &node,
        2,
        &format!("(floe-guest serve 2>/dev/null &); {WHOAMI}"),
    );
    let command = "t=$(floe-guest ticket 1 | cut -d' ' -f1); id=$(floe-guest clone $t); while [ $id != 0 ]; do sleep 1; done";
    said(&node, 3, command);
    eventually("the clone is stored", || {
        let machines = node.client().machines().unwrap().machines;
        machines
            .iter()
            .any(|machine| machine.cloned.as_ref().is_some_and(|cloned| cloned.settled))
    });
    // the node has its call when another one that came after it is answered; it came when its caller sleeps
    let asleep = "until grep -q '^State:.S' /proc/$!/status; do sleep 1; done";
    let join = format!("floe-guest join $t 2>&1 & {asleep}; floe-guest whoami");
    said(&node, 4, &join);
    node.end(node::Signal::KILL);
    node.start_again();
    node.wait_console("web", "(unreachable)");
    // what it did before is not forgotten
    let again = said(&node, 5, "floe-guest clone $t 2>&1");
    assert!(again.contains("(spent)"), "{again}");
    let killed = said(&node, 6, "floe-guest kill $t");
    assert!(killed.contains("1 ended"), "{killed}");
    assert_eq!(names(&node), ["web"]);

    // the node is killed while it makes clones: the program is told, its machine goes on, and no clone is half there
    said(&node, 7, "t=$(floe-guest ticket 4 | cut -d' ' -f1)");
    said(&node, 8, "(floe-guest clone $t 2>&1 | sed s/^/forked-/ &)");
    let first = node.home().join("machines/web.1");
    eventually("the first clone is being made", || first.exists());
    node.end(node::Signal::KILL);
    node.start_again();
    let told = |console: &str| {
        let answer = console.split_once("forked-floe-guest");
        answer.is_some_and(|(_, answer)| answer.contains("(unreachable)"))
    };
    eventually("the program is told", || told(&node.console("web")));
    for name in names(&node) {
        let machine = node.client().machine(&name).unwrap();
        let whole = machine.status == MachineStatus::Running;
        assert!(whole || machine.detail.contains("floe kill"), "{machine:?}");
        if name != "web" {
            node.client().kill(&name, &KillRequest::default()).unwrap();
        }
    }
    let left = std::fs::read_dir(node.home().join("machines")).unwrap();
    assert_eq!(left.count(), 1);
    let again = "t=$(floe-guest ticket 1 | cut -d' ' -f1); id=$(floe-guest clone $t); while [ $id != 0 ]; do sleep 1; done; floe-guest kill $t";
    let again = said(&node, 9, again);
    assert!(again.contains("1 ended"), "{again}");
    assert_eq!(names(&node), ["web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_program_waits_for_and_ends_its_clones_on_another_host_also_when_that_dies_meanwhile() {
    let mut there = TestNode::on_the_network();
    let here = TestNode::with(Setup {
        args: vec!["--guest-hosts".into(), there.url()],
        ..Setup::on_the_network()
    });
    cluster(&[&here, &there]);
    booted(&here, 1);
    // clones that end by themselves
    let fork = |n: u32, then: &str| {
        format!(
            "t=$(floe-guest ticket {n} | cut -d' ' -f1); id=$(floe-guest clone $t); if [ $id != 0 ]; then {then}; fi"
        )
    };
    said(&here, 1, &fork(2, "floe-guest exit; sleep 1000"));
    let joined = said(&here, 2, "floe-guest join $t");
    assert!(joined.contains("2 ended, 0 of them lost"), "{joined}");
    assert_eq!(names(&here), ["web"]);
    assert_eq!(names(&there), Vec::<String>::new());
    assert!(there.log().contains("clone 2 of web"), "{}", there.log());

    // clones that would work for ever
    said(&here, 3, &fork(2, "sleep 100000"));
    assert_eq!(names(&there).len(), 2);
    let killed = said(&here, 4, "floe-guest kill $t");
    assert!(killed.contains("2 ended"), "{killed}");
    assert_eq!(names(&there), Vec::<String>::new());

    // of clones whose node is dead nobody knows whether they work: they are waited for, and not counted as lost
    said(&here, 5, &fork(1, "sleep 100000"));
    said(&here, 6, "(floe-guest join $t 2>&1 | sed s/^/waited-/ &)");
    there.end(node::Signal::KILL);
    let waited = said(&here, 7, "floe-guest join $t --timeout 3 2>&1");
    assert!(waited.contains("(timeout)"), "{waited}");
    let refused = said(&here, 8, "floe-guest kill $t 2>&1");
    assert!(refused.contains("(failed)"), "{refused}");
    there.start_again();
    let clone = names(&there);
    assert_eq!(clone.len(), 1);
    there
        .client()
        .kill(&clone[0], &KillRequest::default())
        .unwrap();
    here.wait_console("web", "waited-1 ended, 0 of them lost");
    assert_eq!(names(&here), ["web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn the_papers_four_patterns_run_as_they_are() {
    four_patterns("tiny", "");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn the_papers_four_patterns_run_in_python() {
    four_patterns("mpi", "python3 /usr/share/floe/examples/NAME.py");
}

/// Figure 1 of the paper: each pattern's example in a guest, called by its name, or by `call` with the name in it.
fn four_patterns(guest: &str, call: &str) {
    let node = TestNode::start();
    let reports = Reports::listen();
    booted_of(guest, &node, 2);
    let reported = |command: &str| {
        let (name, rest) = command.split_once(' ').unwrap();
        let program = match call {
            "" => name.to_owned(),
            call => call.replace("NAME", name),
        };
        format!("FLOE_REPORT={HOST}:{} {program} {rest}", reports.port)
    };
    let run = |command: &str, done: &str| {
        let command = format!("{}; echo {done}-$((8+8))", reported(command));
        node.type_and_wait("web", &command, &format!("{done}-16"));
    };
    run("sandbox 'rm -rf /etc; echo ruined'", "sandboxed");
    assert_eq!(
        reports.take(2, &node),
        [
            "sandbox 0: 1 clone is gone, and /etc is still here",
            "sandbox 1: the command ended with 0"
        ]
    );
    // on two vCPUs three clones are two machines, one of which has two processes
    run("parallel 3 1000 hierarchical", "counted");
    let told = reports.take(4, &node);
    assert_eq!(told[0], "parallel 0: 2 of 2 machines ended, 0 lost");
    let primes = |line: &String| -> u32 { line.split(' ').nth(4).unwrap().parse().unwrap() };
    assert_eq!(told[1..].iter().map(primes).sum::<u32>(), 168, "{told:?}");

    // load comes and goes
    let command = format!("mkfifo /load; {}", reported("load < /load &"));
    node.type_and_wait(
        "web",
        &format!("{command} exec 3>/load; echo opened-$((8+8))"),
        "opened-16",
    );
    let load = |number: u32, line: &str, told: &[&str]| {
        said(&node, number, line);
        assert_eq!(reports.take(told.len(), &node), told);
    };
    load(
        1,
        "echo high >&3",
        &["load 0: 1 workers", "load: worker 1 is ready"],
    );
    load(
        2,
        "echo high >&3",
        &["load 0: 2 workers", "load: worker 2 is ready"],
    );
    load(3, "echo low >&3", &["load 0: 1 workers"]);
    load(4, "exec 3>&-; wait", &["load 0: done"]);
    run("opportunistic 3 2", "opportune");
    assert_eq!(
        reports.take(4, &node),
        [
            "opportunistic 0: 3 pieces are done",
            "opportunistic: piece 1 is done",
            "opportunistic: piece 2 is done",
            "opportunistic: piece 3 is done",
        ]
    );
    eventually("only the parent is left", || names(&node) == ["web"]);
}

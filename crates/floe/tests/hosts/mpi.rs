//! The promises about MPI, kept with MPICH as Debian has it: its mpiexec, its library and a program that was built for it run
//! in real guests, and know nothing of clones.

use crate::support::hosts::Hosts;
use crate::support::node::{Setup, TestNode, eventually};
use floe_api::*;

/// A machine of the guest with MPICH, whose agent has been heard.
fn booted(node: &TestNode, name: &str, network: bool) {
    node.run(&RunRequest {
        image: "mpi".into(),
        name: Some(name.into()),
        network: network.then(NetworkRequest::default),
        limits: Limits {
            clones: Some(64),
            ..Default::default()
        },
        ..Default::default()
    });
    node.wait_console(name, "floe-guest ready");
    node.type_and_wait(
        name,
        "until floe-guest whoami 2>/dev/null; do sleep 1; done",
        &format!("0 {name}"),
    );
}

/// What a command prints in a machine, line by line, and its exit status.
fn said(node: &TestNode, name: &str, number: u32, command: &str) -> (Vec<String>, i32) {
    // what is typed is echoed: it must not look like what is printed
    let typed = format!(
        "{command} >/tmp/said 2>&1; echo $?x | sed s/^/status-{number}-/; sed s/^/{number}:/ /tmp/said; echo over-$((100+{number}))"
    );
    node.type_and_wait(name, &typed, &format!("over-{}", 100 + number));
    let console = node.console(name).replace('\r', "");
    let mark = format!("status-{number}-");
    let status = console
        .lines()
        .find_map(|line| line.strip_prefix(&mark)?.strip_suffix('x')?.parse().ok());
    let prefix = format!("{number}:");
    let lines = console
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    eprintln!("{command}: {status:?} {lines:#?}");
    let status = status.unwrap_or_else(|| panic!("no status of {command}: {console}"));
    (lines, status)
}

fn names(node: &TestNode) -> Vec<String> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().map(|machine| machine.name).collect()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_mpi_program_as_it_is_runs_its_ranks_in_clones() {
    let node = TestNode::start();
    node.import_guest("mpi", "mpi", None);
    booted(&node, "web", true);
    let has = |lines: &[String], start: &str| {
        assert!(
            lines.iter().any(|line| line.starts_with(start)),
            "{start}: {lines:?}"
        );
    };

    let (lines, status) = said(&node, "web", 1, "floe-mpirun -n 3 mpi-ranks");
    assert_eq!(status, 0, "{lines:?}");
    for rank in 0..3 {
        let line = format!("rank {rank} of 3 on web-{}", rank + 1);
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
    has(
        &lines,
        "3 ranks on 3 hosts: pi is 3.141593, 0 of 65536 sums are wrong",
    );
    assert_eq!(names(&node), ["web"], "clones end with their run");

    // a rank that fails ends the others, and its status is the whole's; the first rank can stay where the user is
    let failing = "floe-mpirun --ppn 2 --rank0-here -n 4 mpi-ranks fail 2";
    let (lines, status) = said(&node, "web", 2, failing);
    assert_eq!(status, 7, "{lines:?}");
    has(&lines, "rank 0 of 4 on floe");
    has(&lines, "rank 1 of 4 on floe");
    has(&lines, "rank 3 of 4 on web-1");
    has(&lines, "rank 2 fails");
    assert_eq!(names(&node), ["web"]);

    // there is no room for all of them
    let (lines, status) = said(&node, "web", 3, "floe-mpirun -n 1000 mpi-ranks");
    assert_eq!(status, 125, "{lines:?}");
    let few = "clones have room, and the ranks need 1000";
    assert!(lines.iter().any(|line| line.contains(few)), "{lines:?}");
    assert_eq!(names(&node), ["web"]);

    // whoever interrupts it ends the ranks and their clones
    let interrupted = "(floe-mpirun --verbose -n 2 sh -c 'echo up-$PMI_RANK; sleep 100000' </dev/null >/tmp/ranks 2>&1; echo $? >/tmp/status) & until grep -q up-0 /tmp/ranks && grep -q up-1 /tmp/ranks; do sleep 1; done; kill -INT $(pidof floe-mpirun); wait; cat /tmp/status";
    let (lines, _) = said(
        &node,
        "web",
        4,
        &format!("sh -c '{}'", interrupted.replace('\'', "'\\''")),
    );
    has(&lines, "130");
    eventually("only the parent is left", || names(&node) == ["web"]);

    // clones that cannot see their parent say so by ending
    booted(&node, "alone", false);
    let (lines, status) = said(&node, "alone", 5, "floe-mpirun -n 1 mpi-ranks");
    assert_eq!(status, 125, "{lines:?}");
    assert!(
        lines.iter().any(|line| line.contains("--network")),
        "{lines:?}"
    );
    let mut left = names(&node);
    left.sort();
    assert_eq!(left, ["alone", "web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn ranks_find_each_other_on_different_hosts() {
    let hosts = Hosts::new();
    let here = TestNode::with(Setup {
        web: Some("10.90.0.1:7070".into()),
        namespace: Some(hosts.names[0].clone()),
        // on a network that only the hosts are in, without a cluster
        args: [
            "--guest-hosts",
            "here,http://10.90.0.2:7070",
            "--insecure-hosts",
        ]
        .map(String::from)
        .to_vec(),
        ..Default::default()
    });
    let there = TestNode::in_namespace(&hosts.names[1], "10.90.0.2:7070");
    here.import_guest("mpi", "mpi", None);
    booted(&here, "web", true);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| said(&here, "web", 1, "floe-mpirun -n 4 mpi-ranks"));
        eventually("two of the clones are there", || names(&there).len() == 2);
        let (lines, status) = run.join().unwrap();
        assert_eq!(status, 0, "{lines:?}");
        let sum = "4 ranks on 4 hosts: pi is 3.141593, 0 of 65536 sums are wrong";
        assert!(lines.iter().any(|line| line.starts_with(sum)), "{lines:?}");
    });
    assert_eq!(names(&here), ["web"]);
    eventually("none is left there", || names(&there).is_empty());
}

//! The promises about what a program inside of a guest can do, kept with real guests: floe-guest and libfloe's examples run in
//! them.

mod node;

use floe_api::*;
use node::{Setup, TestNode, cluster, eventually};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
};

/// As soon as the agent is there.
const WHOAMI: &str = "until floe-guest whoami 2>/dev/null; do sleep 1; done";
/// How a guest sees the host's own address.
const HOST: &str = "10.0.2.2";

/// What guests say over their network, line by line: a clone's console goes when it ends.
struct Reports {
    port: u16,
    lines: Receiver<String>,
}

impl Reports {
    fn listen() -> Reports {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            }
        });
        Reports { port, lines }
    }

    /// The next `count` lines, in order.
    fn take(&self, count: usize, node: &TestNode) -> Vec<String> {
        let next = |n| {
            let line = self.lines.recv_timeout(node::PATIENCE);
            line.unwrap_or_else(|_| panic!("only {n} of {count} reports\n{}", node.log()))
        };
        let mut lines: Vec<String> = (0..count).map(next).collect();
        lines.sort();
        lines
    }
}

/// The tiny guest as `web`; its agent has been heard.
fn booted(node: &TestNode, cpus: u32) {
    booted_of("tiny", node, cpus);
}

/// Another guest as `web`.
fn booted_of(guest: &str, node: &TestNode, cpus: u32) {
    node.import_guest(guest, guest, None);
    node.run(&RunRequest {
        image: guest.into(),
        name: Some("web".into()),
        cpus: Some(cpus),
        allow_host: HostAccess::All, // to report there
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    node.type_and_wait("web", WHOAMI, "0 web");
}

/// What a command prints in `web`.
fn said(node: &TestNode, number: u32, command: &str) -> String {
    let done = format!("said-{}", 1000 + number);
    node.type_and_wait(
        "web",
        &format!("{command}; echo said-$((1000+{number}))"),
        &done,
    );
    let console = node.console("web");
    let typed = format!("echo said-$((1000+{number}))");
    // the terminal breaks lines that are longer than it is wide
    let plain = console.replace("\r\n", "\n");
    let from = plain.rfind(&typed).map_or(0, |at| at + typed.len());
    plain[from..].to_owned()
}

fn names(node: &TestNode) -> Vec<String> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().map(|machine| machine.name).collect()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_program_clones_its_machine_and_each_clone_knows_which_one_it_is() {
    let node = TestNode::start();
    let reports = Reports::listen();
    booted(&node, 1);
    // every clone tells its number, names, address, and what it draws: the parent tells the same of itself
    let tell = format!(
        "tell() {{ echo $1 $(floe-guest whoami) $(hostname) $(cat /sys/class/net/eth0/address) $(head -c 16 /dev/urandom | md5sum | cut -c1-32) | nc {HOST} {}; }}",
        reports.port
    );
    node.type_and_wait(
        "web",
        &format!("{tell}; echo defined-$((1+1))"),
        "defined-2",
    );
    node.type_and_wait(
        "web",
        "echo old > /etc/machine-id; t=$(floe-guest ticket 3 | cut -d' ' -f1); id=$(floe-guest clone $t); tell $id; if [ $id != 0 ]; then cat /etc/machine-id /run/floe.identity; floe-guest exit; fi; echo cloned-$((3+4))",
        "cloned-7",
    );
    let told = reports.take(4, &node);
    eprintln!("{told:#?}");
    let fields: Vec<Vec<&str>> = told.iter().map(|line| line.split(' ').collect()).collect();
    for (n, words) in fields.iter().enumerate() {
        let number = n.to_string();
        let (machine, host) = match n {
            0 => ("web".to_owned(), "floe".to_owned()),
            n => (format!("web.{n}"), format!("web-{n}")),
        };
        let parent: &[&str] = if n == 0 { &[] } else { &["web"] };
        let expected = [
            &[number.as_str(), number.as_str(), machine.as_str()],
            parent,
            &[host.as_str()],
        ]
        .concat();
        assert_eq!(words[..expected.len()], expected, "{told:?}");
    }
    let different = |from_end: usize| {
        let mut all: Vec<_> = fields
            .iter()
            .map(|words| words[words.len() - from_end])
            .collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    assert_eq!(different(1), 4, "two draw the same: {told:?}");
    assert_eq!(different(2), 4, "two have one address: {told:?}");
    // all of them end by themselves, and nothing stays of them
    node.type_and_wait(
        "web",
        "floe-guest join $t; echo joined-$((4+5))",
        "joined-9",
    );
    assert!(
        node.console("web").contains("3 ended, 0 of them lost"),
        "{}",
        node.console("web")
    );
    assert_eq!(names(&node), ["web"]);

    // a ticket is good once, and its clones can't be waited for again
    let refused = [
        ("floe-guest clone $t", "unknown-ticket"),
        ("floe-guest clone 00ff00ff", "unknown-ticket"),
        ("floe-guest join $t", "unknown-ticket"),
        ("floe-guest exit", "not-a-clone"),
        ("floe-guest ticket 0", "usage"),
    ];
    for (number, (command, code)) in refused.into_iter().enumerate() {
        let said = said(&node, number as u32, &format!("{command} 2>&1"));
        assert!(said.contains(&format!("({code})")), "{command}: {said}");
    }
    // whoever asks for more than there is gets less
    let said_of = |number, command| said(&node, number, command);
    let all = said_of(10, "set -- $(floe-guest ticket 1000000000); echo got-$2");
    assert!(all.contains("got-64"), "{all}");
    let more = said_of(11, "floe-guest ticket 1 2>&1");
    assert!(more.contains("(no-room)"), "{more}");
    said_of(12, "floe-guest kill $1");

    // garbage on the port, and the agent is heard again after it
    let garbage = "kill $(pidof floe-guest); port=$(dirname $(grep -l org.floe.0 /sys/class/virtio-ports/*/name)); until head -c 30000 /dev/urandom > /dev/${port##*/}; do sleep 1; done; (floe-guest serve 2>/dev/null &); until floe-guest whoami 2>/dev/null; do sleep 1; done; echo threw-$((6+7))";
    node.type_and_wait("web", garbage, "threw-13");

    // two processes at once: each is a parent of its own clone, and none of two
    let both = "for n in 1 2; do (t=$(floe-guest ticket 1 | cut -d' ' -f1); id=$(floe-guest clone $t); echo pair-$n-$id | nc 10.0.2.2 PORT; [ $id != 0 ] || floe-guest kill $t) & done; wait; echo both-$((7+8))";
    let both = both.replace("PORT", &reports.port.to_string());
    node.type_and_wait("web", &both, "both-15");
    let mut pairs = reports.take(2, &node);
    while pairs.iter().filter(|pair| pair.ends_with("-0")).count() < 2 {
        pairs.extend(reports.take(1, &node));
    }
    for n in ["pair-1-0", "pair-2-0"] {
        assert!(pairs.iter().any(|pair| pair == n), "{pairs:?}");
    }
    eventually("only the parent is left", || names(&node) == ["web"]);
}

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

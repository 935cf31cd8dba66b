//! Verbs on machines that exist: restart, wait, events, stats, rename.

use crate::support::command::{code, ends, floe, said};
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::verbs::{guest, machine, read};
use floe_api::*;
use rustix::process::{Pid, kill_process};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

/// What `floe stats` says of the machine `web`, which runs and has an agent.
fn stats_are_told(node: &TestNode) {
    let stats = code(node, 0, &["stats", "web", "--once", "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    let of = &stats["machines"][0];
    assert_eq!(of["name"], "web");
    for figure in ["own_bytes", "cpu_us", "ram_bytes"] {
        assert!(of[figure].as_u64().is_some_and(|n| n > 0), "{stats}");
    }
    assert!(of["cpu_percent"].is_f64(), "{stats}");
    assert!(
        of.get("network").is_none(),
        "nobody has asked for it: {stats}"
    );
    let ping = [
        "exec", "web", "--", "ping", "-c", "1", "-W", "20", "10.0.2.2",
    ];
    code(node, 0, &ping);
    let looks = ["stats", "web", "--network", "--once", "--json"];
    let stats: serde_json::Value = serde_json::from_slice(&code(node, 0, &looks).stdout).unwrap();
    let of = &stats["machines"][0];
    for figure in ["received_bytes", "sent_bytes"] {
        let counted = of["network"][figure].as_u64();
        assert!(counted.is_some_and(|n| n >= 84), "{stats}");
    }
    assert!(of["sent_bytes_s"].is_f64(), "{stats}");
    // one that can't be asked has none, and says why
    code(node, 0, &["pause", "web"]);
    let stats = said(&code(node, 0, &looks));
    assert!(
        stats.contains("stands still") && !stats.contains("sent_bytes_s"),
        "{stats}"
    );
    let shown = said(&code(node, 0, &["stats", "web", "--network", "--once"]));
    assert!(shown.contains("RECEIVED"), "{shown}");
    code(node, 0, &["resume", "web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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

    stats_are_told(&node);
    // what a shell asks at a Tab
    for (words, name) in [
        (["floe", "stop", "w"], "web"),
        (["floe", "run", "t"], "tiny"),
    ] {
        let mut completed = floe(&node, &["--"]);
        completed.args(words).env("FLOE_COMPLETE", "bash");
        completed.env("_CLAP_COMPLETE_INDEX", "2");
        let completed = ends(completed);
        assert!(said(&completed).contains(name), "{}", said(&completed));
    }
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
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_that_runs_is_renamed_and_its_old_name_is_free() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    node.type_and_wait("web", "echo kept > /dev/vda; echo ok-$((40+2))", "ok-42");
    let qemu = machine(&node, "web").pid;
    let client = node.client();
    let waits = std::thread::spawn(move || {
        let query = WaitQuery {
            what: WaitFor::Paused,
            timeout_s: None,
        };
        client.wait("web", &query).unwrap().name
    });
    code(&node, 2, &["rename", "web", "Web"]);
    code(&node, 2, &["rename", "web", "web.1"]);
    code(&node, 0, &["rename", "web", "old"]);
    code(&node, 3, &["rename", "web", "older"]);
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    code(&node, 1, &["rename", "old", "web"]);
    // who waited for it waits for it still; its agent, its console and its place among the host's promises came along
    code(&node, 0, &["pause", "old"]);
    assert_eq!(waits.join().unwrap(), "old");
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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_shell_at_once_and_the_machine_goes_with_it() {
    use std::io::Write;
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let shell = |args: &[&str], typed: &str| {
        let mut command = floe(&node, args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        stdin.write_all(typed.as_bytes()).unwrap();
        drop(stdin);
        shell.wait_with_output().unwrap()
    };
    let run = ["run", "-i", "--rm", "tiny", "--name", "one"];
    let cat = [&run[..], &["--", "sh", "-c", "cat; exit 7"]].concat();
    let ended = shell(&cat, "hello-cat\n");
    assert_eq!(ended.status.code(), Some(7), "{}", said(&ended));
    assert_eq!(ended.stdout, b"hello-cat\n", "{}", said(&ended));
    assert!(node.client().machine("one").is_err(), "it went along");

    node.run_named("tiny", "two");
    code(&node, 0, &["wait", "two", "--for", "answers"]);
    code(
        &node,
        0,
        &["capture", "two", "--name", "live", "--rehearse", "0"],
    );
    let typed = "echo in-$((40+2)); exit 3\n";
    let ended = shell(&["run", "-i", "--rm", "live", "--name", "three"], typed);
    assert_eq!(ended.status.code(), Some(3), "{}", said(&ended));
    assert!(said(&ended).contains("in-42"), "{}", said(&ended));
    assert!(node.client().machine("three").is_err(), "it went along");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_nobody_uses_is_removed_and_nothing_else() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    for name in ["runs", "stopped"] {
        node.run_named("tiny", name);
    }
    node.wait_console("runs", "floe-guest ready");
    // the image of the first capture loses its name to the second
    for _ in 0..2 {
        code(
            &node,
            0,
            &["capture", "runs", "--name", "live", "--rehearse", "0"],
        );
    }
    code(&node, 0, &["stop", "--now", "stopped"]);
    let images = || node.client().images().unwrap().images;
    let nameless = || images().iter().filter(|i| i.names.is_empty()).count();
    // the running machine's disks may stand on one of them
    let before = (images().len(), nameless());
    let asked = code(&node, 2, &["prune"]);
    assert!(said(&asked).contains("--force"), "{}", said(&asked));
    let shown = code(&node, 0, &["prune", "--dry-run"]);
    assert!(said(&shown).contains("stopped") && said(&shown).contains("would free"));
    assert!(!said(&shown).contains("runs"), "{}", said(&shown));
    assert_eq!((images().len(), nameless()), before);
    assert_eq!(node.client().machines().unwrap().machines.len(), 2);
    code(&node, 0, &["prune", "images", "--force"]);
    assert_eq!(node.client().machines().unwrap().machines.len(), 2);
    let done = code(&node, 0, &["prune", "--force", "--json"]);
    let done: PruneReport = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.machines.len(), 1);
    assert!(done.freed_bytes > 0 && done.problems.is_empty(), "{done:?}");
    let left = node.client().machines().unwrap().machines;
    assert_eq!(
        left.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
        ["runs"]
    );
    let named = images().iter().filter(|i| !i.names.is_empty()).count();
    assert_eq!((named, nameless()), (2, 0), "{:?}", images());
    node.type_and_wait("runs", "echo still-$((40+2))", "still-42");
    node.run_named("live", "again");
}

/// 100 MiB in sectors.
const SECTORS_100M: u64 = (100 << 20) / 512;

/// How many sectors a guest takes its disk for.
fn sectors(node: &TestNode, name: &str) -> u64 {
    guest(node, name, "cat /sys/block/vda/size")
        .parse()
        .unwrap()
}

fn write(node: &TestNode, name: &str, sector: u64, text: &str) {
    let to = format!("echo {text} | dd of=/dev/vda bs=512 seek={sector} conv=fsync");
    guest(node, name, &to);
}

/// Asks for a larger disk, and kills the node when the disk is that large and its QEMU, which hangs, does not know it.
fn kill_in_resize(node: &mut TestNode, qemu: Pid, size: &str, shown: &str) {
    kill_process(qemu, Signal::STOP).unwrap();
    let resize = floe(node, &["disk", "resize", "web", "disk0", size]);
    let mut resize = { resize }.stderr(Stdio::null()).spawn().unwrap();
    eventually("the disk is larger", || {
        said(&code(node, 0, &["disk", "ls", "web"])).contains(shown)
    });
    node.end(Signal::KILL);
    assert!(!resize.wait().unwrap().success());
    kill_process(qemu, Signal::CONT).unwrap();
    node.start_again();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_of_a_running_machine_is_made_larger_and_its_guest_is_told_whoever_is_killed() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    write(&node, "web", 77, "before");
    let grown = code(&node, 0, &["disk", "resize", "web", "disk0", "80M"]);
    assert!(said(&grown).contains("80.0 MiB"), "{}", said(&grown));
    assert!(
        said(&grown).contains("resize2fs /dev/vda1"),
        "{}",
        said(&grown)
    );
    let first = (80 << 20) / 512;
    eventually("the guest sees it", || sectors(&node, "web") == first);
    write(&node, "web", first - 1, "first");
    let smaller = code(&node, 5, &["disk", "resize", "web", "disk0", "79M"]);
    assert!(said(&smaller).contains("at its end"), "{}", said(&smaller));
    code(&node, 0, &["disk", "resize", "web", "disk0", "80M"]);

    // the guest stands still, its QEMU hangs, and the node is killed between the disk and QEMU
    code(&node, 0, &["pause", "web"]);
    let pid = machine(&node, "web").pid.unwrap();
    let qemu = Pid::from_raw(pid as i32).unwrap();
    kill_in_resize(&mut node, qemu, "100M", "100.0 MiB");
    eventually("it is taken over and resumed", || {
        ends(floe(&node, &["resume", "web"])).status.success()
    });
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    eventually("the guest sees what it was not told", || {
        sectors(&node, "web") == SECTORS_100M
    });
    assert_eq!(machine(&node, "web").pid, Some(pid));
    let end = SECTORS_100M - 1;
    write(&node, "web", end, "end");
    code(
        &node,
        0,
        &["capture", "web", "--name", "large", "--rehearse", "0"],
    );
    code(&node, 0, &["fork", "web"]);
    node.run_named("large", "copy");
    let all_have = |node: &TestNode, names: &[&str]| {
        for name in names {
            code(node, 0, &["wait", name, "--for", "answers"]);
            assert_eq!(sectors(node, name), SECTORS_100M, "{name}");
            for (at, text) in [(77, "before"), (first - 1, "first"), (end, "end")] {
                assert_eq!(read(node, name, at), text, "{name}");
            }
        }
    };
    all_have(&node, &["web", "web.1", "copy"]);
    code(&node, 0, &["kill", "--all", "web"]);
    kill_process(qemu, Signal::KILL).unwrap();
    code(&node, 1, &["wait", "web", "--for", "stopped"]);
    code(&node, 0, &["start", "web"]);
    all_have(&node, &["web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_is_made_larger_and_what_is_taken_of_it_later_is_too() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    code(&node, 0, &["wait", "web", "--for", "answers"]);
    write(&node, "web", 77, "before");
    // what is in a layer below the top one stays
    code(&node, 0, &["fork", "web"]);
    write(&node, "web", 78, "later");
    code(&node, 0, &["kill", "--all", "web"]);
    // not in order: the next node finds it ended
    node.end(Signal::KILL);
    node.start_again();
    code(&node, 0, &["wait", "web", "--for", "running"]);
    code(&node, 0, &["stop", "--now", "web"]);
    let smaller = code(&node, 5, &["disk", "resize", "web", "disk0", "32M"]);
    assert!(said(&smaller).contains("at its end"), "{}", said(&smaller));
    code(&node, 3, &["disk", "resize", "web", "disk7", "100M"]);
    code(&node, 2, &["disk", "resize", "web", "disk0", "104857601"]);
    let grown = code(&node, 0, &["disk", "resize", "web", "disk0", "100M"]);
    assert!(said(&grown).contains("100.0 MiB"), "{}", said(&grown));
    code(&node, 0, &["start", "web", "--wait", "agent"]);
    assert_eq!(sectors(&node, "web"), SECTORS_100M);
    let end = SECTORS_100M - 1;
    write(&node, "web", end, "end");
    code(
        &node,
        0,
        &["capture", "web", "--name", "large", "--rehearse", "0"],
    );
    code(&node, 0, &["fork", "web"]);
    node.run_named("large", "copy");
    for name in ["web", "web.1", "copy"] {
        code(&node, 0, &["wait", name, "--for", "answers"]);
        assert_eq!(sectors(&node, name), SECTORS_100M, "{name}");
        for (at, text) in [(77, "before"), (78, "later"), (end, "end")] {
            assert_eq!(read(&node, name, at), text, "{name}");
        }
    }
    let listed = code(&node, 0, &["disk", "ls", "copy"]);
    assert!(said(&listed).contains("100.0 MiB"), "{}", said(&listed));
}

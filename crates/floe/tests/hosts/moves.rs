//! Machines that move between the nodes of a cluster, and nodes that are killed meanwhile: `floe move`.

use crate::support::command::{code, run, said};
use crate::support::hosts::Hosts;
use crate::support::node::{Signal, TestNode, cluster, eventually};
use floe_api::{client::ClientError, *};
use std::{fs, io::Read, path::PathBuf};

/// Random bytes on the machine's disk: more than all of its memory has that is not zero, once that is compressed.
const DISK_BYTES: usize = 64 << 20;
/// A port of the host that leads to the machine.
const FORWARD: &str = "18080:80";
/// The steps of a move as it tells of them.
const STEPS: [&str; 6] = [
    "ask",
    "store",
    "copy ahead",
    "qemu end",
    "bring",
    "go on there",
];
/// How often it is tried to kill a node in a moment that is soon over.
const TRIES_MAX: usize = 5;

/// Two nodes of a cluster, `node-0` and `node-1`, on hosts of their own.
fn pair(hosts: &Hosts) -> [TestNode; 2] {
    let at = |n: usize| {
        let address = format!("10.90.0.{}:7070", n + 1);
        TestNode::in_namespace(&hosts.names[n], &address)
    };
    let nodes = [at(0), at(1)];
    cluster(&[&nodes[0], &nodes[1]]);
    nodes
}

/// Boots the tiny guest as `web` on a node, with a mark in its memory.
fn boot(node: &TestNode) {
    node.boot_tiny("web");
    mark(node);
}

fn mark(node: &TestNode) {
    let mark = "echo before-$((40+2)) > /www/mark; echo wrote-$((1+1))";
    node.type_and_wait("web", mark, "wrote-2");
}

fn to(number: usize) -> MoveRequest {
    MoveRequest {
        to: Some(format!("node-{number}")),
        ..Default::default()
    }
}

fn moved(node: &TestNode, request: &MoveRequest) -> Result<Outcome, ClientError> {
    let events = node.client().move_machine("web", request)?;
    events.finish(|_| ())
}

/// Moves the machine to the other node once nothing is left to be done of the move before.
fn moves_again(nodes: &[TestNode; 2], from: usize) -> MoveReport {
    let mut last = None;
    eventually("it can move again", || {
        let ended = moved(&nodes[from], &to(1 - from)).map_err(|error| error.to_api());
        let busy = matches!(&ended, Err(error) if error.code == ErrorCode::Busy);
        last = Some(ended);
        !busy
    });
    last.unwrap().unwrap().moved.unwrap()
}

/// What a node has of the machine.
fn web(node: &TestNode) -> Option<MachineInfo> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().find(|machine| machine.name == "web")
}

fn runs(node: &TestNode) -> bool {
    web(node).is_some_and(|web| web.status == MachineStatus::Running)
}

fn is_fenced(web: &MachineInfo) -> bool {
    let moves = web.moves.as_ref();
    moves.is_some_and(|moves| moves.standing == MoveStanding::Fenced)
}

/// The node on which the machine runs, if it is on no other.
fn place(nodes: &[TestNode; 2]) -> Option<usize> {
    let at = |n: usize| runs(&nodes[n]) && web(&nodes[1 - n]).is_none();
    (0..2).find(|n| at(*n))
}

/// Looks whether the guest has in its memory what it wrote at first. `answer` is said once.
fn remembers(node: &TestNode, answer: usize) {
    let look = format!("cat /www/mark; echo seen-$(({answer}+0))");
    node.type_and_wait("web", &look, &format!("seen-{answer}"));
    assert!(node.console("web").contains("before-42"));
}

/// A disk with random bytes, in a node's directory.
fn disk(node: &TestNode, content: &[u8]) -> PathBuf {
    let path = node.home().join("disk.raw");
    fs::write(&path, content).unwrap();
    path
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_moves_with_all_that_it_is_and_only_what_the_other_node_lacks_is_sent() {
    let hosts = Hosts::new();
    let nodes = pair(&hosts);
    let mut content = vec![0; DISK_BYTES];
    let mut random = fs::File::open("/dev/urandom").unwrap();
    // it begins with zeros, as an empty disk does
    random.read_exact(&mut content[1 << 20..]).unwrap();
    for node in &nodes {
        let disk = disk(node, &content);
        node.import_tiny("tiny", Some(&disk));
    }
    nodes[0].run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        forwards: vec![FORWARD.parse().unwrap()],
        restart: RestartPolicy::Always,
        ..Default::default()
    });
    nodes[0].wait_console("web", "floe-guest ready");
    mark(&nodes[0]);
    let write = "echo kept-on-disk | dd of=/dev/vda bs=512 seek=8 conv=sync,fsync 2>/dev/null; echo put-$((2+2))";
    nodes[0].type_and_wait("web", write, "put-4");

    // to nobody, to itself and to nowhere it does not move, and goes on
    for (there, said) in [("nobody", "no member"), ("node-0", "this node")] {
        let request = MoveRequest {
            to: Some(there.into()),
            ..Default::default()
        };
        let error = moved(&nodes[0], &request).unwrap_err().to_api();
        assert!(error.message.contains(said), "{error}");
    }
    assert!(runs(&nodes[0]));
    let error = moved(&nodes[0], &MoveRequest::default()).unwrap_err();
    assert_eq!(error.to_api().code, ErrorCode::Usage);

    let keep = MoveRequest {
        keep: true,
        ..to(1)
    };
    let outcome = moved(&nodes[0], &keep).unwrap();
    let report = outcome.moved.unwrap();
    eprintln!("{report:?}");
    assert_eq!((&*report.to, &*report.trouble), ("node-1", ""));
    assert!(report.wire_bytes < DISK_BYTES as u64, "{report:?}");
    assert_eq!(place(&nodes), Some(1));
    let there = web(&nodes[1]).unwrap();
    assert_eq!(there.forwards, [FORWARD.parse().unwrap()]);
    assert_eq!(there.restart, RestartPolicy::Always);
    assert_eq!(there.image_name, "tiny");
    remembers(&nodes[1], 10);
    let read = "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=512 skip=8 count=1 2>/dev/null | head -n 1; echo got-$((3+3))";
    nodes[1].type_and_wait("web", read, "got-6");
    assert!(nodes[1].console("web").contains("kept-on-disk"));

    // and back, where what it was is kept: the other node forgets its copy before it can
    let second = moves_again(&nodes, 1);
    eprintln!("{second:?}");
    assert!(second.wire_bytes < report.wire_bytes);
    assert_eq!(place(&nodes), Some(0));
    remembers(&nodes[0], 20);

    // and away, by the command, after it was parked; what its memory was goes with it
    code(&nodes[0], 0, &["park", "web"]);
    eventually("it moves away", || {
        let done = run(&nodes[0], &["move", "web", "--to", "node-1", "--still"]);
        let told = said(&done);
        let moved = told.contains("web is on node-1") && told.contains("it is parked there");
        assert!(moved || told.contains("has not forgotten it yet"), "{told}");
        assert_eq!(moved, done.status.success(), "{told}");
        moved
    });
    let status = web(&nodes[1]).map(|web| web.status);
    assert_eq!(
        (status, web(&nodes[0])),
        (Some(MachineStatus::Parked), None)
    );
    code(&nodes[1], 0, &["wake", "web"]);
    remembers(&nodes[1], 30);
    eventually("the images of its memory are gone here", || {
        nodes[0].images_stored() == 1
    });
    let nobody = code(&nodes[0], 0, &["move", "--all", "--to", "node-1"]);
    assert_eq!(said(&nobody), "");

    // who gave it has it back, and nothing else that is there
    nodes[1].run_named("tiny", "other");
    let refused = code(&nodes[0], 3, &["recall", "other", "--from", "node-1"]);
    assert!(said(&refused).contains("of yours"), "{}", said(&refused));
    let back = code(&nodes[0], 0, &["recall", "web", "--from", "node-1"]);
    assert!(said(&back).contains("web is back"), "{}", said(&back));
    assert!(runs(&nodes[0]));
    eventually("it is gone there", || place(&nodes) == Some(0));
    remembers(&nodes[0], 40);
    let refused = code(&nodes[1], 3, &["recall", "web", "--from", "node-0"]);
    assert!(said(&refused).contains("of yours"), "{}", said(&refused));
}

/// Moves the machine to and fro, and kills the node that gives it, or the one that takes it, at each step of that.
fn killed(gives: bool) {
    let hosts = Hosts::new();
    let mut nodes = pair(&hosts);
    boot(&nodes[0]);
    for (round, step) in STEPS.iter().enumerate() {
        let from = place(&nodes).unwrap();
        let there = 1 - from;
        let victim = if gives { from } else { there };
        let mut was_killed = false;
        eventually("it moves, and a node is killed meanwhile", || {
            let request = to(there);
            let events = nodes[from].client().move_machine("web", &request).unwrap();
            for event in events {
                match event {
                    Ok(Event::Stage { name, .. }) if name == *step && !was_killed => {
                        nodes[victim].end(Signal::KILL);
                        nodes[victim].start_again();
                        was_killed = true;
                    }
                    // the other node has not forgotten it yet
                    Err(error) if !was_killed => {
                        let error = error.to_api();
                        assert_eq!(error.code, ErrorCode::Busy, "{error}");
                    }
                    // the call may fail with the node that was killed
                    _ => {}
                }
            }
            was_killed
        });
        eventually("it runs on one of the two, and is on no other", || {
            place(&nodes).is_some()
        });
        let at = place(&nodes).unwrap();
        eprintln!("killed at {step:?}: from {from}, now on {at}");
        remembers(&nodes[at], 100 + round);
        assert_eq!(place(&nodes), Some(at));
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_is_killed_at_any_step_of_giving_a_machine_leaves_it_on_one_of_the_two() {
    killed(true);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_is_killed_at_any_step_of_taking_a_machine_leaves_it_on_one_of_the_two() {
    killed(false);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_goes_on_here_if_the_other_node_is_gone_and_that_one_is_fenced_when_it_comes_back_late()
{
    let hosts = Hosts::new();
    let mut nodes = pair(&hosts);
    boot(&nodes[0]);
    for round in 0..TRIES_MAX {
        let from = place(&nodes).unwrap();
        let there = 1 - from;
        let mut was_killed = false;
        eventually("it is on its way", || {
            let request = to(there);
            let events = nodes[from].client().move_machine("web", &request).unwrap();
            for event in events {
                // it is given now, and the other node does not say that it runs; hanging up leaves it so
                if let Ok(Event::Stage { name, .. }) = event
                    && name == "bring"
                {
                    nodes[there].end(Signal::KILL);
                    was_killed = true;
                    break;
                }
            }
            was_killed
        });
        let mut given = false;
        eventually("what was given stays given", || {
            let web = web(&nodes[from]);
            let moves = web.as_ref().and_then(|web| web.moves.as_ref());
            given = moves.is_some_and(|moves| moves.standing == MoveStanding::Given);
            given || web.is_none()
        });
        if !given {
            // the other node was faster
            nodes[there].start_again();
            eventually("it is there", || place(&nodes) == Some(there));
            remembers(&nodes[there], 100 + round);
            continue;
        }
        // nothing lets it go on but the one word for that
        for args in [&["wake", "web"][..], &["rm", "--force", "web"]] {
            eventually("it is refused, and the way out is named", || {
                let refused = run(&nodes[from], args);
                refused.status.code() == Some(5) && said(&refused).contains("--here")
            });
        }
        eventually("nobody is at it", || {
            run(&nodes[from], &["move", "web", "--here"])
                .status
                .success()
        });
        assert!(runs(&nodes[from]));
        remembers(&nodes[from], 200);
        nodes[there].start_again();
        eventually("the other node hears that it is too late", || {
            !runs(&nodes[there]) && web(&nodes[there]).is_none_or(|web| is_fenced(&web))
        });
        if web(&nodes[there]).is_some_and(|web| web.status == MachineStatus::Stopped) {
            let images = nodes[there].client().images().unwrap().images;
            let late =
                |image: &ImageSummary| image.names.iter().any(|name| name.contains("-late-"));
            assert!(images.iter().any(late), "{images:?}");
            code(&nodes[there], 5, &["start", "web"]);
        }
        remembers(&nodes[from], 300);
        // once that node has said that it has nothing that goes on, the machine moves there again
        if web(&nodes[there]).is_some() {
            code(&nodes[there], 0, &["rm", "web"]);
        }
        moves_again(&nodes, from);
        assert_eq!(place(&nodes), Some(there));
        remembers(&nodes[there], 400);
        return;
    }
    panic!("the other node was always faster");
}

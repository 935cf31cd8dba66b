//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::command::{floe, run};
use crate::support::exec::{sh, text, wait_for};
use crate::support::node::{Signal, TestNode};
use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Output, Stdio},
};

/// Runs floe with some input, and returns how that ended.
fn run_with(node: &TestNode, args: &[&str], input: &[u8]) -> Output {
    let mut child = floe(node, args).stdin(Stdio::piped()).spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    let input = input.to_vec();
    // a command that ends early takes no more
    let writes = std::thread::spawn(move || drop(to.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writes.join().unwrap();
    output
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_command_has_its_streams_its_exit_code_and_its_limits() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let line = "cat; echo out; echo err >&2; exit 7";
    let done = run_with(
        &node,
        &["exec", "-i", "web", "--", "sh", "-c", line],
        b"in\n",
    );
    assert_eq!(done.status.code(), Some(7), "{done:?}\n{}", node.log());
    assert_eq!(
        (text(&done.stdout), text(&done.stderr)),
        ("in\nout\n".into(), "err\n".into())
    );
    // without -i there is no input, and what is lacking is said as a shell says it
    assert_eq!(sh(&node, "cat; pwd; echo $HOME"), "/root\n/root\n");
    let done = run(&node, &["exec", "web", "--", "no-such-command"]);
    assert_eq!(done.status.code(), Some(127), "{done:?}");
    assert!(text(&done.stderr).contains("no-such-command"), "{done:?}");
    let done = run(&node, &["exec", "web", "--", "/etc"]);
    assert_eq!(done.status.code(), Some(126), "{done:?}");
    let line = "kill -9 $$";
    let done = run(&node, &["exec", "web", "--", "sh", "-c", line]);
    assert_eq!(done.status.code(), Some(128 + 9), "{done:?}");

    let args = ["exec", "--user", "33:", "web", "--", "true"];
    assert_eq!(run(&node, &args).status.code(), Some(126), "no such user");
    let args = [
        "exec",
        "--user",
        "33",
        "--cwd",
        "/www",
        "--env",
        "A=b c",
        "web",
        "--",
        "sh",
        "-c",
        "id -u; id -g; pwd; echo \"$A\"",
    ];
    assert_eq!(text(&run(&node, &args).stdout), "33\n33\n/www\nb c\n");

    let done = run(
        &node,
        &["exec", "--timeout", "1", "web", "--", "sleep", "1000"],
    );
    assert_eq!(done.status.code(), Some(124), "{done:?}");
    assert_eq!(sh(&node, "ps | grep -c '[s]leep 1000' || true"), "0\n");

    // more than any buffer holds, both ways, and a child that keeps the pipe is not waited for
    let big: Vec<u8> = (0..3_000_000u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let done = run_with(&node, &["exec", "-i", "web", "--", "cat"], &big);
    assert!(done.stdout == big, "{} of {}", done.stdout.len(), big.len());
    assert_eq!(sh(&node, "sleep 1000 & echo done"), "done\n");
    sh(&node, "kill $(pidof sleep)");

    // signals are passed on
    let line = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
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
    signal(&child, Signal::TERM);
    let done = child.wait_with_output().unwrap();
    assert_eq!(
        (done.status.code(), text(&done.stdout)),
        (Some(3), "caught\n".into())
    );

    let done = run(&node, &["exec", "--detach", "web", "--", "sleep", "2000"]);
    let pid = text(&done.stdout);
    assert!(pid.trim().parse::<u32>().is_ok(), "{done:?}");
    sh(&node, &format!("grep sleep /proc/{}/comm", pid.trim()));

    // many at a time
    let all: Vec<Child> = (0..16)
        .map(|n| {
            floe(&node, &["exec", "web", "--", "echo", &n.to_string()])
                .spawn()
                .unwrap()
        })
        .collect();
    for (n, child) in all.into_iter().enumerate() {
        let done = child.wait_with_output().unwrap();
        assert_eq!(text(&done.stdout), format!("{n}\n"), "{done:?}");
    }

    // a port of the guest, without any network
    let request = b"GET / HTTP/1.0\r\n\r\n";
    let done = run_with(&node, &["dial", "web", "80"], request);
    assert!(text(&done.stdout).contains("floe tiny guest"), "{done:?}");

    // a machine without an agent says how it gets one
    node.type_and_wait(
        "web",
        "kill $(pidof floe-guest); echo gone-$((1+1))",
        "gone-2",
    );
    let done = run(&node, &["exec", "web", "--", "true"]);
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    assert!(
        text(&done.stderr).contains("floe agent install web"),
        "{done:?}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn files_and_directories_are_copied_both_ways_whole_or_not_at_all() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let copy = |from: &str, to: &str| {
        let done = run(&node, &["cp", from, to]);
        assert!(
            done.status.success(),
            "{from} {to}: {done:?}\n{}",
            node.log()
        );
    };
    let big: Vec<u8> = (0..5_000_000u32)
        .map(|n| (n.wrapping_mul(n) >> 9) as u8)
        .collect();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(at("tree/sub/big"), &big).unwrap();
    fs::write(at("tree/tool"), "#!/bin/sh\necho run\n").unwrap();
    fs::set_permissions(at("tree/tool"), fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("sub/big", at("tree/link")).unwrap();
    copy(&at("tree"), "web:/tmp/");
    assert_eq!(
        sh(
            &node,
            "/tmp/tree/tool; stat -c %a /tmp/tree/tool; ls -a /tmp/tree"
        ),
        "run\n750\n.\n..\nlink\nsub\ntool\n"
    );
    copy("web:/tmp/tree", &at("back"));
    assert!(fs::read(at("back/sub/big")).unwrap() == big);
    assert_eq!(
        fs::read_link(at("back/link")).unwrap(),
        Path::new("sub/big")
    );
    let mode = fs::metadata(at("back/tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750);

    // one file, to a name, into a directory, and through standard input and output
    copy("web:/tmp/tree/tool", &at("tool"));
    copy(&at("tool"), "web:/tmp/again");
    assert_eq!(
        sh(&node, "cat /tmp/again; stat -c %a /tmp/again"),
        "#!/bin/sh\necho run\n750\n"
    );
    let done = run(&node, &["cp", "web:/tmp/tree/sub/big", "-"]);
    assert!(done.stdout == big, "{:?}", text(&done.stderr));
    let done = run_with(&node, &["cp", "-", "web:/tmp/from-input"], &big);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(
        sh(&node, "cmp /tmp/from-input /tmp/tree/sub/big && echo same"),
        "same\n"
    );

    // into a directory that exists it goes under its own name, but only once
    copy("web:/tmp/tree", &at("back"));
    assert!(fs::metadata(at("back/tree/tool")).is_ok());
    // what fails says why, and leaves nothing
    for (from, to, why) in [
        ("web:/tmp/tree", at("back"), "exists already"),
        ("web:/tmp/none", at("none"), "No such file"),
        ("web:/tmp/tree", "-".into(), "directory"),
        (&at("tree"), "web:/tmp/none/x".into(), "No such file"),
        (&at("none"), "web:/tmp/".into(), "No such file"),
        (&at("tree/tool"), "web:/proc/1/x".into(), "/proc/1/"),
    ] {
        let done = run(&node, &["cp", from, &to]);
        assert!(!done.status.success(), "{from} {to}: {done:?}");
        assert!(text(&done.stderr).contains(why), "{from} {to}: {done:?}");
    }
    // an upload that is cut off
    let mut child = floe(&node, &["cp", "-", "web:/tmp/cut"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(&big).unwrap();
    wait_for(&node, "web", "ls -a /tmp | grep -q 'cut.floe-'");
    signal(&child, Signal::KILL);
    child.wait_with_output().unwrap();
    wait_for(&node, "web", "! ls -a /tmp | grep -q cut");
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["back", "tool", "tree"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_runs_in_a_guest_outlives_its_command_and_its_node() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    // a command that is killed: what it has started goes on, and its output stops nothing
    let line = "echo ready; while [ ! -e /tmp/go ]; do echo more; done; echo over > /tmp/one";
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
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    drop(child);
    // one whose node is killed is told so
    let line = "echo ready; cat; while [ ! -e /tmp/go ]; do echo more; sleep 0.1; done; echo over > /tmp/two";
    let mut child = floe(&node, &["exec", "-i", "web", "--", "sh", "-c", line])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    node.end(Signal::KILL);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(125), "{done:?}");
    assert!(text(&done.stderr).contains("goes on"), "{done:?}");
    node.start_again();
    wait_for(&node, "web", "true");
    sh(&node, "touch /tmp/go");
    wait_for(&node, "web", "grep over /tmp/one && grep over /tmp/two");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_terminal_is_one_and_answers_beside_a_copy() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let done = run(
        &node,
        &[
            "exec",
            "-t",
            "web",
            "--",
            "sh",
            "-c",
            "tty; stty size; echo $TERM",
        ],
    );
    assert_eq!(
        text(&done.stdout),
        "/dev/pts/0\r\n24 80\r\ndumb\r\n",
        "{done:?}"
    );
    // a large copy, as long as the keys are typed
    let mut copy = floe(&node, &["exec", "web", "--", "cat", "/dev/zero"])
        .spawn()
        .unwrap();
    let mut zeros = copy.stdout.take().unwrap();
    let reads =
        std::thread::spawn(move || std::io::copy(&mut zeros, &mut std::io::sink()).unwrap());
    let mut typist = floe(
        &node,
        &["exec", "-it", "web", "--", "sh", "-c", "stty -echo; cat"],
    )
    .stdin(Stdio::piped())
    .spawn()
    .unwrap();
    let (mut keys, mut screen) = (typist.stdin.take().unwrap(), typist.stdout.take().unwrap());
    for n in 0..20 {
        writeln!(keys, "line {n}").unwrap();
        let wanted = format!("line {n}\r\n");
        let mut seen = String::new();
        while !seen.ends_with(&wanted) {
            let mut byte = [0; 1];
            screen.read_exact(&mut byte).unwrap();
            seen.push(char::from(byte[0]));
        }
    }
    signal(&copy, Signal::TERM);
    assert_eq!(copy.wait().unwrap().code(), Some(128 + 15));
    assert!(reads.join().unwrap() > 0);
    // its end hangs the terminal up, as any terminal's
    sh(&node, "pidof cat");
    signal(&typist, Signal::TERM);
    assert_eq!(typist.wait().unwrap().code(), Some(128 + 15));
    wait_for(&node, "web", "! pidof cat");
}

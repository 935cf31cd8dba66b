//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::command::{floe, run};
use crate::support::exec::{Echo, sh, text, wait_for};
use crate::support::node::{Signal, TestNode, eventually};
use std::{
    fs,
    io::Read,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    process::{Child, Command},
};

/// Starts a process in a session of its own, a daemon, and one that does not mind being asked to end.
const STRAYS: &str = "setsid sleep 5001 & (setsid sleep 5002 &); setsid sh -c 'trap \"\" TERM INT; sleep 5003; sleep 5003' &";
/// Succeeds if none of them runs.
const NONE_RUNS: &str = "! ps | grep '[s]leep 500[1-3]'";

/// Succeeds if so many processes sleep.
fn sleepers(count: u32) -> String {
    format!("[ $(pidof sleep | wc -w) = {count} ]")
}

/// Starts a command, and returns once it has said that it is ready.
fn ready(mut command: Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut ready = [0; "ready\n".len()];
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    child
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// A command that is ended leaves nothing, and one that ends by itself leaves what it wants to.
fn strays_end_with_their_command(node: &TestNode) {
    let exec = |line: &str| floe(node, &["exec", "web", "--", "sh", "-c", line]);
    // by Ctrl-C
    let child = ready(exec(&format!("{STRAYS} echo ready; sleep 5001")));
    wait_for(node, "web", &sleepers(4));
    signal(&child, Signal::INT);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(128 + 2), "{done:?}");
    sh(node, NONE_RUNS);
    // when its time is over
    let line = format!("{STRAYS} sleep 5001");
    let limited = ["exec", "--timeout", "2", "web", "--", "sh", "-c", &line];
    let done = run(node, &limited);
    assert_eq!(done.status.code(), Some(124), "{done:?}");
    sh(node, NONE_RUNS);
    // by one who insists, though it minds nothing but that
    let line = format!("trap '' TERM INT; {STRAYS} echo ready; while :; do sleep 5001; done");
    let mut child = ready(exec(&line));
    wait_for(node, "web", &sleepers(4));
    eventually("its end", || {
        signal(&child, Signal::INT);
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    wait_for(node, "web", NONE_RUNS);
    // by itself
    assert_eq!(sh(node, &format!("{STRAYS} echo over")), "over\n");
    wait_for(node, "web", &sleepers(3));
    sh(
        node,
        "kill -9 $(ps | awk '/[s]leep 500[1-3]/ { print $1 }')",
    );
    wait_for(node, "web", NONE_RUNS);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn nothing_is_left_of_a_command_that_is_ended_whatever_sessions_it_has_begun() {
    let node = TestNode::start();
    node.boot_tiny("web");
    sh(
        &node,
        "grep ':name=floe:/[1-9]' /proc/self/cgroup && [ -z \"$FLOE_COMMAND\" ]",
    );
    strays_end_with_their_command(&node);
    // of all these commands no group is left but that of who looks
    sh(
        &node,
        "mkdir /tmp/groups && mount -t cgroup -o none,name=floe floe /tmp/groups",
    );
    wait_for(&node, "web", "[ $(ls -d /tmp/groups/[1-9]* | wc -l) = 1 ]");
    // the agent is in none of them, and no mount is in anybody's way
    sh(
        &node,
        "grep ':name=floe:/$' /proc/$PPID/cgroup && umount /tmp/groups && ! grep floe /proc/mounts",
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_without_control_groups_is_searched_for_what_a_command_has_started() {
    let node = TestNode::start();
    node.boot_tiny("web");
    // where the next agent would mount the groups there is a file
    let again = "p=$(pidof floe-guest); kill $p; while [ -e /proc/$p/exe ]; do sleep 0.1; done; touch /run/floe.groups; \
        setsid floe-guest serve </dev/null >/dev/null 2>/dev/kmsg & echo again-$((1+1))";
    node.type_and_wait("web", again, "again-2");
    wait_for(&node, "web", "[ -n \"$FLOE_COMMAND\" ]");
    strays_end_with_their_command(&node);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_command_that_takes_all_memory_ends_alone() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let mut other = Echo::start(&node, "web");
    other.says("before");
    let done = run(&node, &["exec", "web", "--", "tail", "/dev/zero"]);
    assert_eq!(done.status.code(), Some(128 + 9), "{done:?}");
    sh(&node, "dmesg | grep 'Out of memory: Killed'");
    other.says("after");
    other.ends();
    // the kernel never chooses the agent; what it starts is as any other process, whichever way that is started
    let scores = "cat /proc/$PPID/oom_score_adj /proc/self/oom_score_adj";
    assert_eq!(sh(&node, scores), "-1000\n0\n");
    for options in [["exec", "--tty"], ["exec", "--user=33"]] {
        let command = ["web", "--", "cat", "/proc/self/oom_score_adj"];
        let done = run(&node, &[&options[..], &command[..]].concat());
        assert_eq!(text(&done.stdout).trim_end(), "0", "{done:?}");
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_clone_has_its_parents_processes_but_not_their_streams() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let line =
        "echo ready; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over; echo over > /tmp/out";
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
    let done = run(&node, &["fork", "web", "-n", "1"]);
    assert!(done.status.success(), "{done:?}\n{}", node.log());
    wait_for(&node, "web.1", "true");
    let machine = |name: &str, line: &str| run(&node, &["exec", name, "--", "sh", "-c", line]);
    let done = machine("web.1", "ls /tmp/go; touch /tmp/go");
    assert!(done.status.success(), "{done:?}");
    wait_for(&node, "web.1", "grep over /tmp/out");
    // the parent's command heard nothing of that, and is still there
    assert!(child.try_wait().unwrap().is_none());
    assert!(machine("web", "touch /tmp/go").status.success());
    let done = child.wait_with_output().unwrap();
    assert_eq!(
        (done.status.code(), text(&done.stdout)),
        (Some(0), "over\n".into())
    );
    // the same of an image
    let done = run(&node, &["exec", "--detach", "web", "--", "sleep", "3000"]);
    assert!(done.status.success(), "{done:?}");
    let done = run(
        &node,
        &["capture", "web", "--name", "kept", "--rehearse", "0"],
    );
    assert!(done.status.success(), "{done:?}");
    node.run_named("kept", "again");
    wait_for(&node, "again", "pidof sleep");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_agent_is_installed_over_the_console_of_a_guest_that_has_none() {
    let node = TestNode::start();
    node.boot_tiny("web");
    // the program is that of the guest; then the guest has none any more
    let agent = node.home().join("agent");
    let done = run(
        &node,
        &["cp", "web:/bin/floe-guest", agent.to_str().unwrap()],
    );
    assert!(done.status.success(), "{done:?}");
    sh(&node, "rm /bin/floe-guest");
    node.type_and_wait(
        "web",
        "kill $(pidof floe-guest); echo gone-$((1+1))",
        "gone-2",
    );
    let done = run(&node, &["exec", "web", "--", "true"]);
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    let install = [
        "agent",
        "install",
        "web",
        "--agent",
        agent.to_str().unwrap(),
    ];
    let done = run(&node, &install);
    assert!(done.status.success(), "{done:?}\n{}", node.console("web"));
    assert!(
        text(&done.stdout).contains("the agent runs in web"),
        "{done:?}"
    );
    assert_eq!(
        sh(
            &node,
            "command -v floe-guest || ls /usr/local/bin/floe-guest"
        ),
        "/usr/local/bin/floe-guest\n"
    );
    // once more, over the one that runs; and what it is not for is said
    let done = run(&node, &["agent", "install", "web", "--agent", "/none"]);
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    // the console is the user's again
    node.type_and_wait("web", "echo again-$((2+2))", "again-4");

    // another one takes the place of the one that runs, without the console; what runs in the guest goes on
    sh(&node, "sleep 100000 >/dev/null 2>&1 &");
    let other = node.home().join("other-agent");
    let mut program = fs::read(&agent).unwrap();
    program.extend(b"another");
    fs::write(&other, &program).unwrap();
    let replace = |agent: &Path| {
        let agent = agent.to_str().unwrap();
        run(&node, &["agent", "install", "web", "--agent", agent])
    };
    let done = replace(&other);
    assert!(text(&done.stdout).contains("is replaced"), "{done:?}");
    let runs = "[ $(tail -c 7 /proc/$PPID/exe) = another ] && pidof sleep";
    sh(&node, runs);
    wait_for(&node, "web", "! ls /usr/local/bin/*.floe-* 2>/dev/null");
    assert!(text(&replace(&other).stdout).contains("has this agent"));

    // what is no program, or one that does not serve, leaves it where it is
    let broken = node.home().join("broken-agent");
    for (content, why) in [
        ("no program", "does not run there"),
        ("#!/bin/sh\n[ $1 = --help ]\n", "it ended at once"),
    ] {
        fs::write(&broken, content).unwrap();
        let done = replace(&broken);
        assert!(!done.status.success(), "{done:?}");
        assert!(text(&done.stderr).contains(why), "{done:?}");
        sh(&node, runs);
        sh(&node, "! ls /usr/local/bin/*.floe-*");
    }
}

/// Copies by `floe cp`, which must succeed.
fn copied(node: &TestNode, from: &str, to: &str) {
    let done = run(node, &["cp", from, to]);
    assert!(done.status.success(), "{from}: {done:?}\n{}", node.log());
}

/// Makes a file of so many bytes with these words of four letters in it.
fn with_holes(path: &Path, size: u64, words: &[(u64, &str)]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, word) in words {
        file.write_all_at(word.as_bytes(), *at).unwrap();
    }
}

/// Asserts that a file has this size and these words, and takes little more than they do.
fn has_holes(path: &Path, size: u64, words: &[(u64, &str)]) {
    let file = fs::File::open(path).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!(found.len(), size, "{}", path.display());
    let most = words.len() as u64 * (16 << 10);
    let taken = found.blocks() * 512;
    assert!(taken <= most, "{} takes {taken} bytes", path.display());
    for (at, word) in words {
        let mut read = [0; 4];
        file.read_exact_at(&mut read, *at).unwrap();
        assert_eq!(&read, word.as_bytes(), "{} at {at}", path.display());
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_sparse_file_takes_what_its_data_takes_into_a_guest_and_out_of_it() {
    const GIB: u64 = 1 << 30;
    let node = TestNode::start();
    node.boot_tiny("web");
    sh(&node, "mkdir /holes && mount -t tmpfs holes /holes");
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let words = [(0, "zero"), (7 * GIB, "mid."), (20 * GIB - 4, "last")];
    let disk = tree.join("disk");
    with_holes(&disk, 20 * GIB, &words);
    with_holes(&tree.join("nothing"), 3 * GIB, &[]);
    fs::write(tree.join("plain"), "plain").unwrap();
    // alone and in a directory; zeros would take the guest's memory many times
    copied(&node, disk.to_str().unwrap(), "web:/holes/disk");
    copied(&node, tree.to_str().unwrap(), "web:/holes/tree");
    for (path, size) in [("disk", 20), ("tree/disk", 20), ("tree/nothing", 3)] {
        let line = format!("stat -c %s /holes/{path}; du -k /holes/{path} | cut -f1");
        let said = sh(&node, &line);
        let numbers: Vec<u64> = said.lines().map(|n| n.trim().parse().unwrap()).collect();
        assert_eq!(numbers[0], size * GIB, "{path}: {said}");
        assert!(numbers[1] <= 64, "{path} takes {} KiB", numbers[1]);
    }
    // one that the guest has made
    let write = "printf made | dd of=/holes/tree/made bs=4 seek=$((1 << 30)) conv=notrunc";
    sh(&node, write);

    copied(&node, "web:/holes/disk", dir.path().to_str().unwrap());
    has_holes(&dir.path().join("disk"), 20 * GIB, &words);
    let back = dir.path().join("back");
    copied(&node, "web:/holes/tree", back.to_str().unwrap());
    has_holes(&back.join("disk"), 20 * GIB, &words);
    has_holes(&back.join("nothing"), 3 * GIB, &[]);
    has_holes(&back.join("made"), 4 * GIB + 4, &[(4 * GIB, "made")]);
    assert_eq!(fs::read(back.join("plain")).unwrap(), b"plain");

    // an agent that knows no holes: its tools are this script, by which it starts its own program
    let older = dir.path().join("older");
    let script = "#!/bin/sh\n\
        if [ \"$2\" = sparse ]; then echo '\"sparse\" is no form of a copy; is the node newer?' >&2; exit 1; fi\n\
        exec /bin/floe-guest \"$@\"\n";
    fs::write(&older, script).unwrap();
    fs::set_permissions(&older, fs::Permissions::from_mode(0o755)).unwrap();
    copied(&node, older.to_str().unwrap(), "web:/older");
    let line = "mount -t tmpfs t /proc && mkdir /proc/self && cp /older /proc/self/exe";
    sh(&node, line);
    let words = [(0, "zero"), (512 << 10, "half")];
    let small = dir.path().join("small");
    with_holes(&small, 1 << 20, &words);
    copied(&node, small.to_str().unwrap(), "web:/holes/small");
    let again = dir.path().join("again");
    copied(&node, "web:/holes/small", again.to_str().unwrap());
    assert_eq!(fs::read(&again).unwrap(), fs::read(&small).unwrap());
}

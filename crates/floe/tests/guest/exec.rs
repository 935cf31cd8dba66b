//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::command::{floe, run};
use crate::support::exec::{sh, text, wait_for};
use crate::support::node::TestNode;
use std::{
    fs,
    io::Read,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
};

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

//! What can happen to a session with a guest: a terminal on this side, an agent that dies, a guest that lies.

use crate::support::command::{floe_by, run};
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::terminal::Terminal;
use floe_guest::copy::pieces;
use rustix::termios::LocalModes;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Child;

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_terminal_here_is_the_guests_and_an_agent_that_dies_is_told_of() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let terminal = Terminal::open(100, 40);
    let before = terminal.mode();
    assert!(
        before
            .local_modes
            .contains(LocalModes::ICANON | LocalModes::ISIG)
    );
    let script = "stty size; while [ \"$(stty size)\" != '50 120' ]; do sleep 0.1; done; echo resized; \
        trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done";
    let args = ["exec", "-it", "web", "--", "sh", "-c", script];
    // the terminal has to be the one that controls the command, for the kernel to tell it of a new size
    let mut child = terminal.run(&node, &args);
    terminal.wait("40 100\r\n");
    let raw = terminal.mode();
    assert!(
        !raw.local_modes
            .intersects(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
    );
    terminal.resize(120, 50);
    terminal.wait("resized\r\n");
    terminal.wait("ready\r\n");
    // Ctrl-C is a key here, and a signal there
    (&terminal.keys).write_all(b"\x03").unwrap();
    terminal.wait("caught\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let after = terminal.mode();
    assert_eq!(
        (after.local_modes, after.input_modes, after.output_modes),
        (before.local_modes, before.input_modes, before.output_modes)
    );

    // the agent dies without a word; what it has started goes on
    let mut child = floe_by(
        &node,
        &[],
        &["exec", "web", "--", "sh", "-c", "echo ready; sleep 4000"],
    )
    .spawn()
    .unwrap();
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    node.type_and_wait(
        "web",
        "kill -9 $(pidof floe-guest); echo killed-$((1+1))",
        "killed-2",
    );
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(125), "{done:?}\n{}", node.log());
    assert!(
        text(&done.stderr).contains("its agent has ended"),
        "{done:?}"
    );
    // the next one is there as soon as it says so
    node.type_and_wait(
        "web",
        "floe-guest serve 2>/dev/null & echo again-$((1+1))",
        "again-2",
    );
    eventually("an answer of the new agent", || {
        run(&node, &["exec", "web", "--", "pidof", "sleep"])
            .status
            .success()
    });
}

/// A part of a tar archive; names and links are taken as they are.
fn entry(kind: u8, name: &str, link: &str, content: &[u8], size: u64) -> Vec<u8> {
    let mut head = [0; 512];
    head[..name.len()].copy_from_slice(name.as_bytes());
    head[100..108].copy_from_slice(b"0000755\0");
    head[108..124].copy_from_slice(b"0000000\x000000000\0");
    head[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    head[136..148].copy_from_slice(b"00000000000\0");
    head[148..156].copy_from_slice(b"        ");
    head[156] = kind;
    head[157..157 + link.len()].copy_from_slice(link.as_bytes());
    head[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = head.to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(512 + content.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str) -> Vec<u8> {
    entry(b'0', name, "", b"!", 1)
}

/// What a tool of an honest agent would send around an archive.
fn framed(parts: &[Vec<u8>], whole: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = pieces::Writer::new(&mut bytes);
    out.write_all(&entry(b'5', ".", "", b"", 0)).unwrap();
    out.write_all(&parts.concat()).unwrap();
    if whole {
        out.write_all(&[0; 1024]).unwrap();
        out.finish().unwrap();
    } else {
        out.flush().unwrap();
    }
    bytes
}

/// Everything below a directory, with what links lead to.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            found.push(entry.path().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    found
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_guest_that_lies_about_its_files_writes_nothing_outside_the_copy() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    let out = outside.to_str().unwrap();
    let absolute = format!("{out}/x");
    let link = |name: &str, to: &str| entry(b'2', name, to, b"", 0);
    let hostile = [
        ("parent", vec![file("../outside/x")]),
        ("absolute", vec![file(&absolute)]),
        (
            "below",
            vec![entry(b'5', "a", "", b"", 0), file("a/../../outside/x")],
        ),
        ("through", vec![link("l", out), file("l/x")]),
        ("onto", vec![link("l", &absolute), file("l")]),
        (
            "twice",
            vec![
                link("l", ".."),
                link("l/outside/m", "/"),
                file("l/outside/x"),
            ],
        ),
        ("hard", vec![entry(b'1', "h", "/etc/passwd", b"", 0)]),
        ("device", vec![entry(b'3', "d", "", b"", 0)]),
        ("pipe", vec![entry(b'6', "p", "", b"", 0)]),
        (
            "sizeless",
            vec![entry(b'0', "s", "", b"", u64::from(u32::MAX))],
        ),
    ];
    let mut all: Vec<(String, Vec<u8>)> = hostile
        .iter()
        .map(|(name, parts)| ((*name).to_owned(), framed(parts, true)))
        .collect();
    all.push(("cut".into(), framed(&[file("a")], false)));
    all.push((
        "noise".into(),
        (0..9999u32).map(|n| ((n * n) >> 3) as u8).collect(),
    ));
    // a file of 8 GiB that never ends
    all.push((
        "endless".into(),
        framed(&[entry(b'0', "big", "", b"", (1 << 33) - 1)], false),
    ));
    let mut more = 65536u32.to_le_bytes().to_vec();
    more.resize(4 + 65536, b'x');
    all.push(("more".into(), more));
    let made = dir.path().join("made");
    fs::create_dir(&made).unwrap();
    for (name, bytes) in &all {
        fs::write(made.join(name), bytes).unwrap();
    }
    let done = run(&node, &["cp", made.to_str().unwrap(), "web:/made"]);
    assert!(done.status.success(), "{done:?}");
    // the agent starts its tools by /proc/self/exe, which this guest has made another program
    let script = "#!/bin/sh\n/bin/busybox cat /made/$3\n[ $3 = endless ] || exit 0\nwhile /bin/busybox cat /made/more; do :; done\n";
    let line = format!(
        "printf %s '{script}' > /lie; chmod 755 /lie; mount -t tmpfs t /proc && mkdir /proc/self && cp /lie /proc/self/exe && echo lies-$((1+1))"
    );
    let done = run(&node, &["exec", "web", "--", "sh", "-c", &line]);
    assert!(text(&done.stdout).contains("lies-2"), "{done:?}");

    let target = dir.path().join("target");
    let to = target.to_str().unwrap();
    let before = tree(dir.path());
    for (name, _) in all
        .iter()
        .filter(|(name, _)| name != "endless" && name != "more")
    {
        let done = run(&node, &["cp", &format!("web:{name}"), to]);
        assert_eq!(done.status.code(), Some(1), "{name}: {done:?}");
        assert_eq!(tree(dir.path()), before, "{name}");
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    }
    // what never ends is ended by whoever has asked for it, and leaves nothing
    let child = floe_by(&node, &[], &["cp", "web:endless", to])
        .spawn()
        .unwrap();
    eventually("a file that grows", || {
        let files = tree(dir.path())
            .into_iter()
            .filter(|path| path.ends_with("/big"));
        files
            .into_iter()
            .any(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 1 << 20))
    });
    signal(&child, Signal::TERM);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert_eq!(tree(dir.path()), before);
    let done = run(&node, &["exec", "web", "--", "true"]);
    assert!(
        done.status.success(),
        "the guest is still spoken with: {done:?}"
    );
}

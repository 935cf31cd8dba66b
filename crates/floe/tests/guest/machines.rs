//! The node's promises about machines, kept with real guests: FUSE, QEMU, and processes that are killed.

use crate::support::command::ok;
use crate::support::machines::capture_with_a_mark;
use crate::support::node::{self, Setup, TestNode, finish};
use floe_api::*;
use floe_hub::{HubOptions, Tls};

/// Processes of QEMU whose files are below a directory, in order.
fn qemus_of(home: &std::path::Path) -> Vec<u32> {
    let home = home.display().to_string();
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            command.contains("qemu-system") && command.contains(&home)
        })
        .collect();
    pids.sort_unstable();
    pids
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_ends_leaves_no_qemu_that_it_was_just_starting_ahead() {
    let mut node = TestNode::start();
    capture_with_a_mark(&node);
    node.client().remove_machine("one", true).unwrap();
    for name in ["two", "three"] {
        node.run_named("tiny-live", name);
        // the next run's QEMU is being started in the background now
        let running = node.client().machines().unwrap().machines;
        node.end(node::Signal::TERM);
        let mut known: Vec<u32> = running.iter().filter_map(|machine| machine.pid).collect();
        known.sort_unstable();
        assert_eq!(qemus_of(node.home()), known, "{}", node.log());
        node.start_again();
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_reads_from_two_hubs_each_with_an_authority_of_its_own() {
    let here = TestNode::start();
    capture_with_a_mark(&here);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let hubs = dirs.each_ref().map(|dir| {
        let token = floe_hub::create_token(dir.path(), "ann").unwrap();
        let mut options = HubOptions::new(dir.path(), "127.0.0.1:0".parse().unwrap());
        options.tls = Tls::SelfSigned { names: vec![] };
        let hub = floe_hub::serve(options).unwrap();
        let push = PushRequest {
            image: "tiny-live".into(),
            to: hub.url(),
            name: None,
            token: Some(token),
            ca: Some(hub.ca_file().unwrap().display().to_string()),
            public: true,
            seed: false,
            seed_until: None,
        };
        finish(here.client().push(&push).unwrap());
        hub
    });
    let urls = hubs.each_ref().map(|hub| hub.url());
    let files = hubs.each_ref().map(|hub| hub.ca_file().unwrap().to_owned());
    // a read that no hub answers is an error and no wait without end
    let mut there = TestNode::with(Setup {
        args: vec!["--io-timeout".into(), "120".into()],
        ..Default::default()
    });
    let run = |home: &std::path::Path, [first, second]: [&std::path::Path; 2]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["run", &format!("{}/tiny-live", urls[0]), "--name", "two"])
            .args(["--source", &format!("{}/tiny-live", urls[1])])
            .args(["--ca", &format!("{}={}", urls[0], first.display())])
            .args(["--ca", &format!("{}={}", urls[1], second.display())])
            .args(["--wait", "none"])
            .env("FLOE_HOME", home)
            .env_remove("FLOE_SOCKET")
            .output()
            .unwrap()
    };

    // the authority of the other hub is no authority here
    let swapped = run(there.home(), [&files[1], &files[0]]);
    let stderr = String::from_utf8_lossy(&swapped.stderr);
    assert_eq!(swapped.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("TLS"), "{stderr}");
    assert!(there.client().machines().unwrap().machines.is_empty());

    let right = run(there.home(), [&files[0], &files[1]]);
    let stderr = String::from_utf8_lossy(&right.stderr);
    assert!(right.status.success(), "{stderr}\n{}", there.log());
    there.type_and_wait("two", "cat /www/mark", "marker-42");
    let sources = there.client().machine("two").unwrap().sources;
    assert_eq!(sources.len(), 2, "{sources:?}");
    assert!(!there.console("two").contains("floe-guest ready"));

    // With the first hub and all that was fetched gone, the machine starts from what only the second can give to a node that knows its
    // authority from the machine's record alone.
    let now = StopRequest {
        now: true,
        timeout_s: None,
    };
    there.client().stop("two", &now).unwrap();
    let [first, second] = hubs;
    first.stop();
    first.wait();
    there.end(node::Signal::TERM);
    std::fs::remove_dir_all(there.home().join("cache")).unwrap();
    there.start_again();
    finish(
        there
            .client()
            .start("two", &StartRequest::default())
            .unwrap(),
    );
    there.wait_console("two", "floe-guest ready");
    second.shutdown();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_view_whose_directory_was_swapped_is_what_a_node_that_ends_unmounts() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", None);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["own/view", "others/view"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("others", at("others/view"), "tmpfs", flags, c"").unwrap();
    std::fs::write(at("others/view/file"), "content").unwrap();
    let request = MountRequest {
        image: "tiny".into(),
        path: at("own/view").display().to_string(),
        token: None,
        ca: None,
    };
    node.client().mount(&request).unwrap();
    // by its owner, who wants something else unmounted
    std::fs::rename(at("own"), at("moved")).unwrap();
    std::os::unix::fs::symlink(at("others"), at("own")).unwrap();
    node.end(node::Signal::TERM);
    let left = std::fs::read_to_string(at("others/view/file"));
    let view = std::fs::read_dir(at("moved/view")).unwrap().count();
    rustix::mount::unmount(at("others/view"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(left.unwrap(), "content");
    assert_eq!(view, 0, "{}", node.log());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn floe_down_ends_the_machines_that_a_node_which_is_gone_has_left() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    node.run_named("tiny", "odd");
    node.wait_console("odd", "floe-guest ready");
    node.end(node::Signal::KILL);
    // no node can know whose QEMU that is
    let record = node.home().join("machines/odd/machine.json");
    std::fs::write(&record, "{\"version\": 1, \"na").unwrap();
    assert_eq!(qemus_of(node.home()).len(), 2);
    let mount = format!(" {} ", node.home().join("mnt").display());
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(mounts().contains(&mount));

    let said = ok(&node, &["down", "--machines"]);
    assert!(said.contains("has ended"), "{said}");
    assert_eq!(qemus_of(node.home()), Vec::<u32>::new());
    assert!(!mounts().contains(&mount), "{}", mounts());
    let said = ok(&node, &["down", "--machines"]);
    assert!(said.contains("no machine runs"), "{said}");
    // its disks are as it has left them
    node.start_again();
    let status = |name: &str| node.client().machine(name).unwrap().status;
    assert_eq!(status("web"), MachineStatus::Stopped);
    assert_eq!(status("odd"), MachineStatus::Failed);
    // nor does the mount of a node without machines stay, with the supervisor that holds it
    for name in ["web", "odd"] {
        node.client().remove_machine(name, false).unwrap();
    }
    node.end(node::Signal::KILL);
    assert!(mounts().contains(&mount));
    ok(&node, &["down", "--machines"]);
    assert!(!mounts().contains(&mount), "{}", mounts());
}

/// A machine whose memory is that of an image, and whose guest reads of it without end; its process.
fn run_that_reads(node: &TestNode) -> u32 {
    capture_with_a_mark(node);
    node.client().remove_machine("one", true).unwrap();
    node.run_named("tiny-live", "two");
    let reads = "(while :; do find / >/dev/null 2>&1; done) & X=7; echo begun-$X";
    node.type_and_wait("two", reads, "begun-7");
    node.client().machine("two").unwrap().pid.unwrap()
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_whose_record_cannot_be_read_waits_for_it_through_nodes_that_come_and_go() {
    let mut node = TestNode::start();
    let pid = run_that_reads(&node);
    let record = node.home().join("machines/two/machine.json");
    let text = std::fs::read(&record).unwrap();
    node.end(node::Signal::KILL);
    std::fs::write(&record, "").unwrap();
    node.start_again();
    let status = node.client().machine("two").unwrap().status;
    assert_eq!(status, MachineStatus::Failed);
    node.end(node::Signal::TERM);
    assert!(is_alive(pid), "{}", node.log());
    std::fs::write(&record, text).unwrap();
    node.start_again();
    node.type_and_wait("two", "echo still-$X", "still-7");
    assert_eq!(node.client().machine("two").unwrap().pid, Some(pid));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_whose_files_cannot_be_opened_waits_until_they_can_or_its_user_ends_it() {
    let mut node = TestNode::start();
    let pid = run_that_reads(&node);
    let record = std::fs::read(node.home().join("machines/two/machine.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let place = node.home().join(record["place"].as_str().unwrap());
    let (disks, away) = (place.join("disks"), place.join("away"));
    for ends in [false, true] {
        node.end(node::Signal::KILL);
        std::fs::rename(&disks, &away).unwrap();
        std::os::unix::fs::symlink(&disks, &disks).unwrap(); // leads to itself
        node.start_again();
        let two = || node.client().machine("two").unwrap();
        node::eventually("that is told", || {
            two().detail.contains("can't be put onto the mount")
        });
        assert!(is_alive(pid), "{}", node.log());
        if ends {
            let now = StopRequest {
                now: true,
                ..Default::default()
            };
            node.client().stop("two", &now).unwrap();
            assert!(!is_alive(pid), "{}", node.log());
        }
        std::fs::remove_file(&disks).unwrap();
        std::fs::rename(&away, &disks).unwrap();
        if !ends {
            node.type_and_wait("two", "echo still-$X", "still-7");
            assert_eq!(two().pid, Some(pid));
        }
    }
    finish(
        node.client()
            .start("two", &StartRequest::default())
            .unwrap(),
    );
}

//! Nothing is left standing: what a node, its supervisor or a disk that ends or fills up at the worst moment leaves behind goes on.

use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use crate::support::standing::fork;
use floe_api::*;
use std::{
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

/// The supervisor of a node's mount.
fn supervisor_of(node: &TestNode) -> Option<i32> {
    let socket = node.home().join("run/supervisor.sock");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        let mut words = command.trim_end_matches('\0').rsplit('\0');
        words.next().map(Path::new) == Some(&socket) && words.next() == Some("supervisor")
    })
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// How many mounts there are on a node's mountpoint, one on the other.
fn mounts_of(node: &TestNode) -> usize {
    let mountpoint = node.home().join("mnt").display().to_string();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let on_it = |line: &&str| line.split(' ').nth(4) == Some(&mountpoint);
    table.lines().filter(on_it).count()
}

/// What the supervisor holds; nothing if there is none.
fn held(node: &TestNode) -> Vec<String> {
    let socket = node.home().join("run/supervisor.sock");
    let client = floe_mount::supervisor::Client::connect(&socket);
    client
        .and_then(|mut client| client.list())
        .unwrap_or_default()
}

/// Boots the tiny guest as `web`, with a disk.
fn boot_with_a_disk(node: &TestNode) {
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
}

/// Writes a text to the guest's disk and waits until it is durable.
fn write_to_disk(node: &TestNode, name: &str, sector: u32, text: &str) {
    let command = format!(
        "printf {text} | dd of=/dev/vda bs=512 seek={sector} conv=sync,fsync 2>/dev/null; echo synced-{sector}-$((40+2))"
    );
    node.type_and_wait(name, &command, &format!("synced-{sector}-42"));
}

/// A number that no earlier command of this test program's had: what is waited for must not be on the console already.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Asserts what is in a sector of the guest's disk.
fn read_from_disk(node: &TestNode, name: &str, sector: u32, text: &str) {
    let number = unique();
    let command = format!(
        "echo 3 > /proc/sys/vm/drop_caches; echo sector-$(dd if=/dev/vda bs=512 skip={sector} count=1 2>/dev/null | tr -d '\\0')-$(({number}+1))-end"
    );
    node.type_and_wait(name, &command, &format!("-{}-end", number + 1));
    let console = node.console(name);
    assert!(
        console.contains(&format!("sector-{text}-{}-end", number + 1)),
        "{console}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_supervisor_that_dies_is_replaced_and_a_node_that_dies_after_it_loses_nothing() {
    let mut node = TestNode::start();
    boot_with_a_disk(&node);
    let pid = node.client().machine("web").unwrap().pid;
    for round in 0..3u32 {
        let before = supervisor_of(&node).unwrap();
        let mut holds = held(&node);
        assert!(!holds.is_empty());
        kill(before);
        eventually("another supervisor holds the same", || {
            let mut now = held(&node);
            now.sort();
            holds.sort();
            supervisor_of(&node).is_some_and(|pid| pid != before) && now == holds
        });
        write_to_disk(&node, "web", 2048 + round, &format!("round-{round}"));
        node.end(Signal::KILL);
        node.start_again();
        assert!(node.client().node().unwrap().took_over);
        eventually("the machine is taken over", || {
            node.client().machine("web").unwrap().status == MachineStatus::Running
        });
        assert_eq!(node.client().machine("web").unwrap().pid, pid);
        for past in 0..=round {
            read_from_disk(&node, "web", 2048 + past, &format!("round-{past}"));
        }
    }
    assert_eq!(mounts_of(&node), 1);
    node.client()
        .shutdown(&ShutdownRequest {
            stop_machines: true,
        })
        .unwrap();
    eventually("the mount is gone", || mounts_of(&node) == 0);
    eventually("the supervisor has ended", || {
        supervisor_of(&node).is_none()
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_died_with_its_supervisor_says_so_and_its_machines_start_from_their_disks() {
    let mut node = TestNode::start();
    boot_with_a_disk(&node);
    for round in 0..2u32 {
        write_to_disk(&node, "web", 2048 + round, &format!("round-{round}"));
        let supervisor = supervisor_of(&node).unwrap();
        node.signal(Signal::STOP); // so that it starts no other
        kill(supervisor);
        node.end(Signal::KILL);
        node.start_again();
        assert!(!node.client().node().unwrap().took_over);
        assert_eq!(mounts_of(&node), 1, "the dead mount is gone");
        assert!(node.log().contains("a mount was dead"), "{}", node.log());
        eventually("the machine's end is told", || {
            let machine = node.client().machine("web").unwrap();
            machine.status == MachineStatus::Failed && machine.detail.contains("floe start web")
        });
        let start = node.client().start("web", &StartRequest::default());
        finish(start.unwrap());
        eventually("it boots", || {
            let console = node.console("web");
            console.matches("floe-guest ready").count() > round as usize + 1
        });
        for past in 0..=round {
            read_from_disk(&node, "web", 2048 + past, &format!("round-{past}"));
        }
    }
    node.client()
        .shutdown(&ShutdownRequest {
            stop_machines: true,
        })
        .unwrap();
    eventually("the mount is gone", || mounts_of(&node) == 0);
}

fn is_settled(node: &TestNode, clone: &str) -> bool {
    let machine = node.client().machine(clone).unwrap();
    machine.cloned.unwrap().settled
}

fn runs(node: &TestNode, name: &str) -> bool {
    node.client().machine(name).unwrap().status == MachineStatus::Running
}

/// What a node keeps of forks that are not stored yet: with the supervisor, and in files.
fn kept_layers(node: &TestNode) -> (usize, usize) {
    let held = held(node).into_iter();
    let files = std::fs::read_dir(node.home().join("forks")).unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_layer = |name: &String| name.starts_with("layer-");
    (
        held.filter(is_layer).count(),
        names.filter(is_layer).count(),
    )
}

/// Has the guest show the sum of what it has in its memory.
fn sum_of_memory(node: &TestNode, name: &str) -> String {
    let number = unique();
    let command = format!("echo sum-$(md5sum < /dev/shm/x | head -c 32)-$(({number}+1))-end");
    let end = format!("-{}-end", number + 1);
    node.type_and_wait(name, &command, &end);
    let console = node.console(name);
    let before = console[..console.find(&end).unwrap()].rsplit("sum-").next();
    before.unwrap().to_owned()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_killed_before_a_fork_is_stored_costs_no_clone() {
    let mut node = TestNode::start();
    boot_with_a_disk(&node);
    node.type_and_wait(
        "web",
        "dd if=/dev/urandom of=/dev/shm/x bs=1M count=16 2>/dev/null; echo filled-$((1+1))",
        "filled-2",
    );
    let sum = sum_of_memory(&node, "web");
    assert_eq!(sum.len(), 32);
    write_to_disk(&node, "web", 2048, "before-the-fork");
    fork(&node, "web", 2);
    // a clone of a clone stands on a layer that is itself in memory only
    fork(&node, "web.1", 1);
    let clones = ["web.1", "web.2", "web.1.1"];
    assert!(clones.iter().all(|clone| !is_settled(&node, clone)));
    // the parent's end takes no file along that its clones' disks need
    write_to_disk(&node, "web", 2048, "after-the-fork");
    node.client().remove_machine("web", true).unwrap();
    for round in 0..2 {
        assert_eq!(kept_layers(&node).0, 2);
        node.end(Signal::KILL);
        node.start_again();
        for clone in clones {
            eventually("the clone goes on", || runs(&node, clone));
            // round 0: nothing of this was touched before the kill
            if round > 0 || clone != "web.2" {
                assert_eq!(sum_of_memory(&node, clone), sum, "{clone}");
                read_from_disk(&node, clone, 2048, "before-the-fork");
            }
        }
        if clones.iter().any(|clone| is_settled(&node, clone)) {
            break; // a slow host: a fork was stored meanwhile
        }
    }
    assert!(node.log().contains("fork.found"), "{}", node.log());
    // what was found again is stored like any other fork, and then nothing of it is left
    eventually("the forks are stored", || {
        clones.iter().all(|clone| is_settled(&node, clone))
    });
    eventually("nothing is kept any more", || kept_layers(&node) == (0, 0));
    for clone in clones {
        assert_eq!(sum_of_memory(&node, clone), sum, "{clone}");
        read_from_disk(&node, clone, 2048, "before-the-fork");
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_whose_memory_is_lost_delay_nobody_and_are_told_as_such() {
    let mut node = TestNode::start();
    boot_with_a_disk(&node);
    fork(&node, "web", 3);
    // as if the supervisor had not had the memory to hold it
    node.signal(Signal::STOP);
    let socket = node.home().join("run/supervisor.sock");
    let mut supervisor = floe_mount::supervisor::Client::connect(&socket).unwrap();
    for name in supervisor.list().unwrap() {
        if name.starts_with("layer-") {
            supervisor.drop_fd(&name).unwrap();
        }
    }
    // clones that run into what they lack while there is no node stand still there, and answer nobody
    let typed: Vec<_> = ["web.1", "web.2", "web.3"]
        .into_iter()
        .map(|clone| {
            let socket = node
                .home()
                .join(format!("machines/{clone}/vm/run/console.sock"));
            let mut console = UnixStream::connect(socket).unwrap();
            console
                .write_all(b"find / -xdev -type f | xargs md5sum\n")
                .unwrap();
            console
        })
        .collect();
    node.end(Signal::KILL);
    node.start_again();
    let client = node.client();
    eventually("the parent goes on", || runs(&node, "web"));
    write_to_disk(&node, "web", 2048, "healthy");
    for clone in ["web.1", "web.2", "web.3"] {
        let machine = client.machine(clone).unwrap();
        assert_ne!(machine.status, MachineStatus::Running, "{machine:?}");
        assert!(machine.detail.contains("memory"), "{machine:?}");
        assert!(machine.detail.contains("floe kill"), "{machine:?}");
        let start = client.start(clone, &StartRequest::default()).unwrap();
        let error = start.finish(|_| ()).unwrap_err().to_api();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.message.contains("cannot go on"), "{error}");
    }
    drop(typed);
    let killed = client.kill("web", &KillRequest { all: true }).unwrap();
    assert_eq!(killed.ended, ["web.1", "web.2", "web.3"]);
    assert!(runs(&node, "web"));
    read_from_disk(&node, "web", 2048, "healthy");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_whose_qemu_answers_no_node_can_be_stopped_and_started_from_its_disks() {
    let mut node = TestNode::start();
    boot_with_a_disk(&node);
    write_to_disk(&node, "web", 2048, "before");
    let pid = node.client().machine("web").unwrap().pid.unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    node.end(Signal::KILL);
    node.start_again();
    // what a start says to do
    let start = || node.client().start("web", &StartRequest::default());
    let refused = start().unwrap().finish(|_| ()).unwrap_err().to_api();
    assert_eq!(refused.code, ErrorCode::Busy, "{refused}");
    assert!(refused.fix.contains("floe stop --now web"), "{refused}");
    let stop = StopRequest {
        now: true,
        ..Default::default()
    };
    let stopped = node.client().stop("web", &stop).unwrap();
    assert_eq!(stopped.status, MachineStatus::Stopped, "{stopped:?}");
    // it has ended, though its parent may not have asked how
    let left = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    assert!(left.is_err() || left.is_ok_and(|status| status.contains("State:\tZ")));
    let booted = || node.console("web").matches("floe-guest ready").count();
    let before = booted();
    finish(start().unwrap());
    eventually("it boots", || booted() > before);
    read_from_disk(&node, "web", 2048, "before");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_whose_log_takes_nothing_goes_on() {
    for hub in [false, true] {
        let mut node = TestNode::with(Setup {
            log_is_full: true,
            hub,
            ..Default::default()
        });
        // it tells where it answers after it answers: by the time that a machine has booted it would have ended
        node.import_tiny("tiny", None);
        node.run_named("tiny", "web");
        node.wait_console("web", "floe-guest ready");
        assert!(runs(&node, "web"));
        node.end(Signal::TERM);
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn on_a_full_disk_a_killed_node_comes_back_and_machines_go_on_once_there_is_room_for_what_they_write()
 {
    let mut node = TestNode::with(Setup {
        disk_bytes: Some(512 << 20),
        ..Default::default()
    });
    boot_with_a_disk(&node);
    node.run_named("tiny", "other");
    node.wait_console("other", "floe-guest ready");
    write_to_disk(&node, "web", 2048, "before");
    let stop = StopRequest {
        now: true,
        ..Default::default()
    };
    node.client().stop("other", &stop).unwrap();
    let filler = node.fill_disk(0);
    let number = unique();
    let typed = node.type_line(
        "web",
        &format!("dd if=/dev/urandom of=/dev/vda bs=1M seek=8 count=4 conv=fsync; echo wrote-$(({number}+1))"),
    );
    let is_paused = || {
        let machine = node.client().machine("web").unwrap();
        machine.status == MachineStatus::Paused && machine.detail.contains("disk is full")
    };
    eventually("the guest that writes is paused", is_paused);
    for _ in 0..2 {
        node.end(Signal::KILL);
        node.start_again();
        // the same is told by a node that has not seen it happen
        eventually("the guest is told as paused", || {
            let machine = node.client().machine("web").unwrap();
            machine.status == MachineStatus::Paused && machine.detail.contains("disk is full")
        });
    }
    // a machine can be started, stopped and removed: that is how room is made
    finish(
        node.client()
            .start("other", &StartRequest::default())
            .unwrap(),
    );
    eventually("it boots", || {
        node.console("other").matches("floe-guest ready").count() > 1
    });
    node.client().remove_machine("other", true).unwrap();
    std::fs::remove_file(filler).unwrap();
    // nobody has to tell it to
    node.wait_console("web", &format!("wrote-{}", number + 1));
    drop(typed); // a console has one client
    assert!(runs(&node, "web"));
    read_from_disk(&node, "web", 2048, "before");
}

/// All small files of a state directory that are a node's own: neither guests' data nor what is checked by its hash in use.
fn state_files(home: &Path) -> Vec<std::path::PathBuf> {
    let mut dirs = vec![home.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = entry.file_name().into_string().unwrap();
            if kind.is_dir() && name != "mnt" {
                dirs.push(path);
            } else if kind.is_file() && !name.ends_with(".log") && !name.ends_with(".raw") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_starts_whichever_of_its_files_is_damaged() {
    let mut node = TestNode::on_the_network();
    boot_with_a_disk(&node);
    finish(
        node.client()
            .capture("web", &CaptureRequest::default())
            .unwrap(),
    );
    fork(&node, "web", 1);
    let killed = node.client().kill("web.1", &KillRequest::default());
    killed.unwrap();
    let stop = StopRequest {
        now: true,
        ..Default::default()
    };
    node.client().stop("web", &stop).unwrap();
    // what only some nodes have
    let kept = [
        ("forks/00ff.json", "{}"),
        ("networks/00ff.json", "{}"),
        ("tickets/00ff.json", "{}"),
        ("run/inodes.json", "{}"),
    ];
    node.end(Signal::TERM);
    for (file, text) in kept {
        let path = node.home().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let files = state_files(node.home());
    assert!(files.len() > 15, "{files:?}");
    // before the node sets the first one aside
    let files = files.into_iter().map(|file| {
        let good = std::fs::read(&file).unwrap();
        (file, good)
    });
    for (file, good) in files.collect::<Vec<_>>() {
        let half = good[..good.len() / 2].to_vec();
        let garbage: Vec<u8> = (0..200u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for bad in [Vec::new(), half, garbage] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &bad).unwrap();
            eprintln!("{} with {} bytes", file.display(), bad.len());
            node.start_again();
            node.client().machines().unwrap();
            node.end(Signal::TERM);
        }
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &good).unwrap();
    }
    node.start_again();
    let start = node.client().start("web", &StartRequest::default());
    finish(start.unwrap());
}

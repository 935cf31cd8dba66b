//! What a node can't read when it starts is left alone or set aside: no error is taken for an absence, and nothing that a guest wrote
//! is lost.

use crate::support::life::{machine, runs};
use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use floe_api::client::ClientError;
use floe_api::*;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// All files below a directory with their bytes.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let (entry, path) = entry
            .map(|entry| (entry.file_type().unwrap(), entry.path()))
            .unwrap();
        // not into the mount: a node that was ended while it started leaves it without one that answers
        if entry.is_dir() && !path.ends_with("mnt") {
            found.extend(content(&path));
        } else if entry.is_file() {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

/// Boots the tiny guest with a disk, and has it write a text to that.
fn boot_and_write(node: &TestNode, name: &str, text: &str) {
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", name);
    node.wait_console(name, "floe-guest ready");
    write(node, name, text);
}

/// Has a guest write a text to its disk, durably.
fn write(node: &TestNode, name: &str, text: &str) {
    let command = format!(
        "printf {text} | dd of=/dev/vda bs=512 seek=2048 conv=sync,fsync 2>/dev/null; echo wrote-{text}-$((40+2))"
    );
    node.type_and_wait(name, &command, &format!("wrote-{text}-42"));
}

/// Asserts what a guest finds on its disk.
fn reads(node: &TestNode, name: &str, text: &str) {
    // an answer is not mistaken for an earlier one
    static ASKED: AtomicU32 = AtomicU32::new(1000);
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    let command = format!(
        "echo 3 > /proc/sys/vm/drop_caches; echo found-$(dd if=/dev/vda bs=512 skip=2048 count=1 2>/dev/null | tr -d '\\0')-$(({number}+1))-end"
    );
    let answer = format!("found-{text}-{}-end", number + 1);
    node.type_and_wait(name, &command, &answer);
}

fn refused<T>(result: Result<T, ClientError>) -> String {
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_with_a_damaged_record_loses_nothing_whatever_is_refused_and_can_be_removed() {
    let mut node = TestNode::start();
    boot_and_write(&node, "z", "kept");
    node.run_named("tiny", "other");
    let now = StopRequest {
        now: true,
        ..Default::default()
    };
    node.client().stop("z", &now).unwrap();
    node.client().stop("other", &now).unwrap();
    node.end(Signal::KILL);
    let dir = node.home().join("machines/z");
    let record = dir.join("machine.json");
    let good = fs::read(&record).unwrap();
    fs::write(&record, &good[..good.len() / 2]).unwrap();
    let before = content(&dir);
    assert!(
        before.keys().any(|path| path.ends_with("layer-1.data")),
        "{:?}",
        before.keys()
    );
    node.start_again();
    let run = RunRequest {
        image: "tiny".into(),
        name: Some("z".into()),
        ..Default::default()
    };
    let refusal = refused(node.client().run(&run).and_then(|run| run.finish(|_| ())));
    assert_eq!(content(&dir), before, "every byte is still there");
    let refusals = [
        refusal,
        refused(node.client().rename("other", "z")),
        refused(
            node.client()
                .start("z", &StartRequest::default())
                .and_then(|start| start.finish(|_| ())),
        ),
    ];
    for refusal in refusals {
        assert!(refusal.contains("floe rm z"), "{refusal}");
        assert!(refusal.contains("machine.json"), "{refusal}");
    }
    let shown = machine(&node, "z");
    assert_eq!(shown.status, MachineStatus::Failed);
    for part in ["machine.json", "floe rm z"] {
        assert!(shown.detail.contains(part), "{}", shown.detail);
    }
    let all = node.client().machines().unwrap().machines;
    let names: Vec<&str> = all.iter().map(|machine| machine.name.as_str()).collect();
    assert_eq!(names, ["other", "z"]);
    assert_eq!(content(&dir), before, "every byte is still there");
    // with the record from a backup it is as before
    node.end(Signal::KILL);
    fs::write(&record, &good).unwrap();
    node.start_again();
    finish(node.client().start("z", &StartRequest::default()).unwrap());
    eventually("it boots", || {
        node.console("z").matches("floe-guest ready").count() > 1
    });
    reads(&node, "z", "kept");
    // its QEMU runs on without a record: only who insists removes it
    node.end(Signal::KILL);
    fs::remove_file(&record).unwrap();
    node.start_again();
    let refusal = refused(node.client().remove_machine("z", false));
    assert!(refusal.contains("--force"), "{refusal}");
    assert!(dir.join("disks").exists());
    node.client().remove_machine("z", true).unwrap();
    assert!(!dir.exists());
    node.run_named("tiny", "z");
    assert!(runs(&node, "z"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_start_finds_errors_in_place_of_everything_and_every_byte_is_there_afterwards() {
    let mut node = TestNode::start();
    node.end(Signal::TERM);
    let home = node.home().to_owned();
    let put = |path: &str, bytes: &str| {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    let put_loop = |path: &str| symlink(home.join(path), home.join(path)).unwrap();
    // machines: no record, a directory and a link to itself in place of one, a file in place of a machine
    put("machines/lost/disks/disks/disk0/layer-0.data", "byte-1");
    put("machines/isdir/disks/disks/disk0/layer-0.data", "byte-2");
    put("machines/isdir/machine.json/inside", "byte-3");
    put("machines/loops/disks/disks/disk0/layer-0.data", "byte-4");
    put_loop("machines/loops/machine.json");
    put("machines/plain", "byte-5");
    // disks of layers, and of QEMUs that waited, which no record names
    put("forks/layer-0123456789abcdef/disk0-1", "byte-6");
    put(
        "standby/1-00000000/disks/disks/disk0/layer-0.data",
        "byte-7",
    );
    put("standby/plain", "byte-8");
    put_loop("standby/loops");
    // records that are none
    put("forks/0000000000000001.json/inside", "byte-9");
    put("networks/0000000000000002.json/inside", "byte-10");
    put("pool/substrate.json/inside", "byte-11");
    put("tickets/0000000000000003.json/inside", "byte-12");
    put("swarm/seeds.json/inside", "byte-13");
    put("views/0000/view.json/inside", "byte-14");
    put_loop("networks/0000000000000004.json");
    put_loop("views/loops");
    for round in 0..2 {
        node.start_again();
        let machines = node.client().machines().unwrap().machines;
        node.end(Signal::TERM);
        let mut bytes: Vec<String> = content(&home)
            .into_values()
            .filter_map(|bytes| String::from_utf8(bytes).ok())
            .filter(|text| text.starts_with("byte-"))
            .collect();
        bytes.sort_by_key(|text| text[5..].parse::<u32>().unwrap());
        let all: Vec<String> = (1..=14).map(|number| format!("byte-{number}")).collect();
        assert_eq!(bytes, all, "round {round}:\n{}", node.log());
        let names: Vec<&str> = machines.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["isdir", "loops", "lost", "plain"], "round {round}");
    }
    // what may belong to one of them is set aside once none is left
    node.start_again();
    for name in ["isdir", "loops", "lost", "plain"] {
        node.client().remove_machine(name, false).unwrap();
    }
    node.end(Signal::TERM);
    node.start_again();
    let aside = home.join("set-aside");
    eventually("what waited is set aside", || {
        !home.join("standby/1-00000000").exists()
    });
    let kept = content(&aside);
    let has = |text: &str| kept.values().any(|bytes| bytes == text.as_bytes());
    assert!(has("byte-6") && has("byte-7"), "{:?}", kept.keys());
    assert!(node.log().contains("is set aside"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_fails_to_start_leaves_the_guests_to_the_next_one() {
    let mut node = TestNode::start();
    boot_and_write(&node, "web", "kept");
    let pid = machine(&node, "web").pid;
    for wrong in ["pool/budget", "swarm/key", "machines"] {
        node.end(Signal::KILL);
        let (path, away) = (node.home().join(wrong), node.home().join("away"));
        let was_there = path.exists();
        if was_there {
            fs::rename(&path, &away).unwrap();
        }
        symlink(&path, &path).unwrap();
        node.fails_to_start();
        assert!(
            node.log().contains(path.to_str().unwrap()),
            "{}",
            node.log()
        );
        fs::remove_file(&path).unwrap();
        if was_there {
            fs::rename(&away, &path).unwrap();
        }
        node.start_again();
        assert!(node.client().node().unwrap().took_over, "{}", node.log());
        eventually("the machine is taken over", || runs(&node, "web"));
        assert_eq!(machine(&node, "web").pid, pid);
        reads(&node, "web", "kept");
    }
}

/// Takes every byte that is left on the disk of a node.
fn fill(path: &Path) {
    let mut filler = fs::File::create(path).unwrap();
    let full = (0..1 << 20).any(|_| filler.write_all(&[7; 4096]).is_err());
    assert!(full);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_killed_node_starts_again_on_a_disk_without_a_byte_of_room_and_guests_go_on() {
    let mut node = TestNode::with(Setup {
        disk_bytes: Some(256 << 20),
        ..Default::default()
    });
    boot_and_write(&node, "web", "kept");
    let pid = machine(&node, "web").pid;
    // what it kept back is used up, and a start would like to note something
    let filler = node.fill_disk(0);
    fs::File::options()
        .write(true)
        .open(node.home().join("run/reserve"))
        .unwrap()
        .set_len(0)
        .unwrap();
    fs::remove_file(node.home().join(".private")).unwrap();
    let rest = node.home().join("filler-2");
    fill(&rest);
    for _ in 0..2 {
        node.end(Signal::KILL);
        node.start_again();
        assert!(node.client().node().unwrap().took_over);
        eventually("the machine is taken over", || runs(&node, "web"));
        assert_eq!(machine(&node, "web").pid, pid);
        reads(&node, "web", "kept");
    }
    fs::remove_file(filler).unwrap();
    fs::remove_file(rest).unwrap();
    write(&node, "web", "again");
    reads(&node, "web", "again");
}

//! Promises about QEMUs that wait before it is known what they are to continue, kept with real guests.

use crate::support::node::{self, Signal, TestNode, eventually};
use floe_api::*;
use std::{collections::BTreeSet, fs, path::PathBuf};

/// Bytes that each clone is to find in its memory and on its disk.
const MEMORY_MB: u64 = 8;

const DISK_MB: u64 = 4;

/// How many clones the forks have that prepare the next ones.
const CLONES: u32 = 3;

/// The machines whose QEMU had waited, by name.
fn waited(node: &TestNode) -> BTreeSet<String> {
    let dirs = fs::read_dir(node.home().join("machines")).unwrap();
    let records = dirs.flatten().filter_map(|dir| {
        let text = fs::read(dir.path().join("machine.json")).ok()?;
        serde_json::from_slice::<serde_json::Value>(&text).ok()
    });
    let of_standby = records.filter(|record| {
        let place = record["place"].as_str().unwrap_or_default();
        place.starts_with("standby/")
    });
    let names = of_standby.map(|record| record["name"].as_str().unwrap_or_default().to_owned());
    names.collect()
}

/// The processes of all QEMUs that were started ahead, those that machines have by now among them.
fn started_ahead(node: &TestNode) -> Vec<(PathBuf, u32)> {
    let dirs = fs::read_dir(node.home().join("standby"));
    let dirs = dirs.into_iter().flatten().flatten();
    let process = dirs.filter_map(|dir| {
        let text = fs::read(dir.path().join("vm/qemu.json")).ok()?;
        let id: serde_json::Value = serde_json::from_slice(&text).ok()?;
        Some((dir.path(), id["pid"].as_u64()? as u32))
    });
    process.collect()
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn fork(node: &TestNode, clones: u32) -> ForkReport {
    let request = ForkRequest {
        clones,
        ..Default::default()
    };
    let events = node.client().fork("web", &request).unwrap();
    let outcome = events.finish(|_| ());
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    let report = outcome.fork.unwrap();
    assert_eq!(report.running, clones, "{report:?}\n{}", node.log());
    report
}

fn kill_all(node: &TestNode) {
    let all = KillRequest { all: true };
    let killed = node.client().kill("web", &all).unwrap();
    assert!(killed.failed.is_empty(), "{killed:?}");
}

fn blanks(node: &TestNode) -> u64 {
    node.client().node().unwrap().blanks
}

/// Returns the sums of what a guest has in memory and on its disk, which it reads anew.
fn sums(node: &TestNode, machine: &str, number: u32) -> String {
    let command = format!(
        "echo 3 > /proc/sys/vm/drop_caches; echo sums $(md5sum < /www/data | cut -c1-32) $(dd if=/dev/vda bs=1M count={DISK_MB} 2>/dev/null | md5sum | cut -c1-32) $((8000+{number}))"
    );
    let done = format!("{}", 8000 + number);
    node.type_and_wait(machine, &command, &done);
    let console = node.console(machine).replace("\r\n", "\n");
    let mut lines = console
        .lines()
        .filter(|line| line.starts_with("sums ") && line.ends_with(&done));
    let line = lines.next_back().unwrap_or_else(|| panic!("{console}"));
    line.trim_end_matches(&done).to_owned()
}

/// The file that a QEMU has mapped as its RAM, by device and inode: those with the same file share its pages.
fn ram_file(node: &TestNode, machine: &str) -> String {
    let pid = node.client().machine(machine).unwrap().pid.unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("/ram")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    format!("{} {}", words[3], words[4])
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_on_qemus_that_waited_have_their_parents_memory_and_disk_and_share_its_pages() {
    let mut node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    let fill = format!(
        "dd if=/dev/urandom of=/www/data bs=1M count={MEMORY_MB} 2>/dev/null; dd if=/dev/urandom of=/dev/vda bs=1M seek=1 count=3 conv=fsync 2>/dev/null; echo filled-$((4+5))"
    );
    node.type_and_wait("web", &fill, "filled-9");
    let of_parent = sums(&node, "web", 1);

    // the first fork finds none; for the next one as many wait as it had clones
    fork(&node, CLONES);
    assert!(waited(&node).is_empty());
    kill_all(&node);
    eventually("QEMUs wait for the next fork", || {
        blanks(&node) == u64::from(CLONES)
    });
    let waiting = started_ahead(&node);
    assert_eq!(waiting.len(), CLONES as usize);

    // one of them dies; of four clones two find a QEMU, and nobody notices a difference
    let (_, victim) = waiting[0];
    let victim = rustix::process::Pid::from_raw(victim as i32).unwrap();
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    eventually("it is dead", || !lives(waiting[0].1));
    fork(&node, CLONES + 1);
    let had_waited = waited(&node);
    assert_eq!(had_waited.len(), CLONES as usize - 1, "{}", node.log());
    for number in 1..=CLONES + 1 {
        let name = format!("web.{number}");
        assert_eq!(sums(&node, &name, 10 + number), of_parent, "{name}");
    }
    let files: BTreeSet<String> = had_waited
        .iter()
        .map(|name| ram_file(&node, name))
        .collect();
    assert_eq!(files.len(), 1, "they share their clean pages: {files:?}");
    // each has a disk and a memory of its own
    let first = had_waited.first().unwrap();
    let change = "echo changed > /www/data; dd if=/dev/zero of=/dev/vda bs=1M seek=1 count=3 conv=fsync 2>/dev/null; echo own-$((6+7))";
    node.type_and_wait(first, change, "own-13");
    let second = had_waited.last().unwrap();
    assert_eq!(sums(&node, second, 31), of_parent);
    assert_eq!(sums(&node, "web", 32), of_parent);
    assert_ne!(sums(&node, first, 33), of_parent);

    let clones = LimitRequest {
        clones: Some(2),
        ..Default::default()
    };
    node.client().limit("web", &clones).unwrap();
    // a guest's ticket prepares more; the node is killed meanwhile, and the next one takes over what runs, and ends what waits
    let ticket = "floe-guest ticket 2; echo ticket-$((3+6))";
    node.type_and_wait("web", ticket, "ticket-9");
    eventually("QEMUs wait for the ticket", || blanks(&node) >= 2);
    let before: BTreeSet<u32> = started_ahead(&node)
        .into_iter()
        .map(|(_, pid)| pid)
        .collect();
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(waited(&node), had_waited);
    assert_eq!(sums(&node, second, 41), of_parent);
    eventually("only machines have QEMUs that were started ahead", || {
        started_ahead(&node).len() == had_waited.len()
    });
    let of_machines = started_ahead(&node);
    assert!(of_machines.iter().all(|(_, pid)| lives(*pid)));
    for pid in before {
        let of_machine = of_machines.iter().any(|(_, of)| *of == pid);
        eventually("those that waited have ended", || of_machine || !lives(pid));
    }

    // what a machine had that waited goes with the machine, and the rest with the node
    kill_all(&node);
    eventually("their files are gone", || started_ahead(&node).is_empty());
    let another = "floe-guest ticket 2; echo another-$((3+7))";
    node.type_and_wait("web", another, "another-10");
    eventually("QEMUs wait for the ticket again", || blanks(&node) >= 2);
    node.end(Signal::TERM);
    assert_eq!(started_ahead(&node), []);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_run_of_a_later_state_finds_the_qemu_that_waits_for_its_hardware() {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    let stop = |name: &str, image: &str| {
        let request = CaptureRequest {
            name: Some(image.into()),
            stop: true,
            ..Default::default()
        };
        node::finish(node.client().capture(name, &request).unwrap());
    };
    stop("web", "first");
    node.run_named("first", "one");
    eventually("one waits for the next run", || blanks(&node) == 1);
    let fill = format!(
        "dd if=/dev/urandom of=/www/data bs=1M count={MEMORY_MB} 2>/dev/null; dd if=/dev/urandom of=/dev/vda bs=1M seek=1 count=3 conv=fsync 2>/dev/null; echo filled-$((4+5))"
    );
    node.type_and_wait("one", &fill, "filled-9");
    let of_one = sums(&node, "one", 1);
    stop("one", "second");
    // the one that has loaded the first image is of no use for the second
    node.run_named("second", "two");
    assert!(waited(&node).contains("two"), "{}", node.log());
    assert_eq!(sums(&node, "two", 2), of_one);
    eventually("the next one waits", || blanks(&node) == 1);
    node.client().remove_machine("two", true).unwrap();
    // an image with other hardware starts a QEMU of its own
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("other".into()),
        memory_bytes: Some(320 << 20),
        ..Default::default()
    });
    node.wait_console("other", "floe-guest ready");
    stop("other", "third");
    node.run_named("third", "three");
    assert!(!waited(&node).contains("three"));
    node.type_and_wait("three", "echo three-$((5+6))", "three-11");
}

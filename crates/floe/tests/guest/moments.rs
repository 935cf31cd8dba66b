//! What is captured or forked of a machine that is busy is one moment of it, although most of its memory is copied before that.

use crate::support::dock::sh;
use crate::support::forks::{clones, fork};
use crate::support::machines::capture;
use crate::support::node::{TestNode, eventually, finish};
use floe_api::{CaptureRequest, KillRequest};

/// Bytes of the disk that is read over and over.
const DISK_BYTES: usize = 24 << 20;
/// Writes numbered generations of a file of 24 MB, more than is left to a pause, and looks whether each is whole.
const WRITER: &str = r#"g=0
while :; do
  g=$((g+1))
  awk -v g=$g 'BEGIN { for (p = 0; p < 6144; p++) printf "%08d %4086s\n", g, "" }' 1<>/dev/shm/pages
  if [ "$(uniq /dev/shm/pages | wc -l)" = 1 ]; then echo whole=$g; else echo torn=$g; fi
done"#;
/// Reads the disk past what the guest has of it, so that it arrives in memory at any time, and looks whether what is in
/// memory then is the disk's.
const READER: &str = r#"g=0
is=$(md5sum < /dev/vda)
while :; do
  g=$((g+1))
  echo 3 > /proc/sys/vm/drop_caches
  cat /dev/vda > /dev/null
  if [ "$(md5sum < /dev/vda)" = "$is" ]; then echo read=$g; else echo torn=$g; fi
done"#;

/// Returns a disk of one partition, no two pages of which are alike.
fn distinct(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    let mut disk: Vec<u8> = (0..len).map(|_| next()).collect();
    // what has not even a partition table is taken for no disk
    let sectors = u32::try_from(len / 512).unwrap();
    disk[..510].fill(0);
    disk[450] = 0x83; // of Linux
    disk[454..458].copy_from_slice(&1_u32.to_le_bytes());
    disk[458..462].copy_from_slice(&(sectors - 1).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// Waits until a machine has done a few things more, and checks that it has found nothing wrong.
fn goes_on_whole(node: &TestNode, name: &str) {
    let count = |what: &str| node.console(name).matches(what).count();
    let before = (count("whole="), count("read="));
    eventually(&format!("{name} goes on"), || {
        count("whole=") > before.0 + 1 && count("read=") > before.1 + 1
    });
    let console = node.console(name);
    assert!(!console.contains("torn="), "{name}:\n{console}");
}

/// Forks a machine, and checks that both are whole.
fn forks_whole(node: &TestNode, name: &str) {
    let (report, _) = fork(node, name, &clones(1));
    goes_on_whole(node, &report.clones[0].name);
    goes_on_whole(node, name);
    let all = KillRequest { all: true };
    assert_eq!(node.client().kill(name, &all).unwrap().ended.len(), 1);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_that_never_stops_writing_and_reading_is_forked_and_captured_as_it_is_at_one_moment() {
    let node = TestNode::start();
    let disk = node.blank_disk();
    std::fs::write(&disk, distinct(DISK_BYTES)).unwrap();
    node.import_tiny("tiny", Some(&disk));
    node.run_named("tiny", "one");
    node.wait_console("one", "floe-guest ready");
    for (file, script) in [("writer", WRITER), ("reader", READER)] {
        sh(
            &node,
            "one",
            &format!("cat > /www/{file} <<'END'\n{script}\nEND"),
        );
    }
    node.type_and_wait("one", "sh /www/writer & sh /www/reader &", "whole=2");
    node.wait_console("one", "read=2");
    // memory of a machine that was booted, then that of one that was restored
    forks_whole(&node, "one");
    let request = CaptureRequest {
        stop: true,
        rehearse_s: Some(0),
        ..capture("live")
    };
    finish(node.client().capture("one", &request).unwrap());
    node.run_named("live", "two");
    goes_on_whole(&node, "two");
    forks_whole(&node, "two");
    let again = CaptureRequest {
        name: Some("again".into()),
        ..request
    };
    finish(node.client().capture("two", &again).unwrap());
    node.run_named("again", "three");
    goes_on_whole(&node, "three");
}

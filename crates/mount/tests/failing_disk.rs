//! Tests with a real kernel, a real file system, and a disk under it that stops taking writes: ext4 on a loop device, whose
//! file lies on a tmpfs without room for some of the blocks; or that stands still: frozen, every write to it waits.

mod common;

use common::frail::{Frail, Frozen, eventually, run};
use common::{Place, map};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const LEN: usize = 4 << 20;

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn no_flush_succeeds_after_a_failed_one_before_the_data_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine_in(&node, "a", &frail.ext4.join("a"));
    let disk = OpenOptions::new()
        .read(true)
        .write(true)
        .open(machine.disk_path("disk0").unwrap())
        .unwrap();
    disk.write_all_at(&[0x5A; LEN], 0).unwrap();
    disk.sync_data().unwrap();
    run("sync", &["-f", frail.ext4.to_str().unwrap()]);
    assert!(frail.break_blocks_of(0x5A) >= LEN / 4096);

    disk.write_all_at(&[0xC3; LEN], 0).unwrap();
    disk.sync_data().unwrap_err();
    disk.sync_data()
        .expect_err("the second flush knows nothing of the first one's error");
    let failed = machine.failed_disks();
    assert_eq!((failed.len(), failed[0].disk.as_str()), (1, "disk0"));

    frail.mend();
    disk.sync_data().unwrap();
    assert!(machine.failed_disks().is_empty());
    // Reads what is on the disk, not what is in the page cache.
    let layer = frail.ext4.join("a/disks/disk0/layer-1.data");
    let mut options = OpenOptions::new();
    let layer = options.read(true).custom_flags(libc::O_DIRECT).open(layer);
    let mut there = memmap2::MmapMut::map_anon(LEN).unwrap();
    layer.unwrap().read_exact_at(&mut there, 0).unwrap();
    assert!(there.iter().all(|byte| *byte == 0xC3));
    drop(disk);
    node.mount.unmount().unwrap();
}

/// Returns whether the thread of this name waits in the kernel for a disk.
fn waits_for_a_disk(thread: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.map(|task| task.path()).any(|task| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('D'));
        stat.contains(&format!("({thread})")) && state == Some(true)
    })
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disk_that_stands_still_does_not_hold_up_the_planner() {
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine_in(&node, "a", &frail.ext4.join("a"));
    machine.set_pid(std::process::id());
    let memory = map(&machine.ram_path().unwrap());
    let pages = place.ram.len() / 4096;
    let touch = |from: usize, to: usize| {
        for page in from..to {
            assert!(memory[page * 4096..][..4096] == place.ram[page * 4096..][..4096]);
        }
    };
    let frozen = Frozen::freeze(&frail.ext4);
    // What is touched is to be written to the trace, which is on that disk.
    touch(0, 64);
    eventually("the disk stands still", || waits_for_a_disk("floe-traces"));
    // Neighbours of what is touched are fetched ahead all the same, and what is known to be wanted is too.
    let ahead = || node.mount.stats().ahead_chunks;
    let before = ahead();
    touch(pages / 4, pages / 2);
    eventually("nothing is fetched ahead", || ahead() > before);
    let before = ahead();
    let wanted = (pages as u64 * 3 / 4..pages as u64).collect();
    let image = node.image.as_ref().unwrap();
    image.expect("ram", wanted, Some(&machine)).unwrap();
    eventually("what is wanted is not fetched", || ahead() > before + 500);
    // its thread may be awake for the moment of a look
    eventually("the disk stands still no more", || {
        waits_for_a_disk("floe-traces")
    });
    drop(frozen);
    // Nothing of the trace is lost.
    let trace = std::fs::read(machine.trace_path().unwrap()).unwrap();
    let traced = floe_image::TraceReader::new(&trace).unwrap().count() as u64;
    assert_eq!(traced, machine.stats().faults);
    drop(memory);
    node.mount.unmount().unwrap();
}

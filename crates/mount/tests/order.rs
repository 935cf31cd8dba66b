//! Tests through a real kernel that the queue before the host's disk keeps its promises: with a hundred machines, with a disk that
//! stands still, with a flush of much, and for pages of an image that are on the disk. That what a machine needs after an input is waited
//! for, there and on a link. And that each read is classified once, whether or not it had to wait there.

mod common;

use common::frail::{Frail, Frozen, eventually};
use common::{DISK_BYTES, Node, Place, map};
use floe_mount::{IoMachine, MachineHandle};
use floe_sched::{Class, MachineStatus};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// As many requests are in the disk's own queue at most: one for each worker.
const WORKERS: usize = 8;

fn open(machine: &MachineHandle) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    options.open(machine.disk_path("disk0").unwrap()).unwrap()
}

/// Writes, flushes and reads back a part of a disk, so many times.
fn work(disk: &File, part: u64, bytes: usize, rounds: std::ops::Range<u8>) {
    let mut seen = vec![0; bytes];
    for round in rounds {
        let fill = vec![round.wrapping_mul(31) ^ part as u8; bytes];
        disk.write_all_at(&fill, part * bytes as u64).unwrap();
        disk.sync_data().unwrap();
        disk.read_exact_at(&mut seen, part * bytes as u64).unwrap();
        assert!(seen == fill, "part {part}, round {round}");
    }
}

fn machines(node: &Node) -> Vec<IoMachine> {
    node.mount.io_status().unwrap().machines
}

fn queued(node: &Node) -> usize {
    machines(node).iter().map(|one| one.status.queued).sum()
}

/// Returns how many requests of a machine that a guest waited for were served by the disk's workers.
fn served(node: &Node, name: &str) -> u64 {
    let all = machines(node);
    let machine = all.iter().find(|one| one.name == name);
    machine.map_or(0, |one| one.status.classes.iter().map(|c| c.served).sum())
}

/// Returns how many of these machines' requests of a class were served.
fn of_class<'a>(machines: impl Iterator<Item = &'a MachineStatus>, class: Class) -> u64 {
    machines
        .map(|machine| machine.classes[class as usize].served)
        .sum()
}

/// Returns pages that are not zero, each so far from the others that what is brought around one of them has none of the others.
fn far_pages() -> Vec<usize> {
    let all = (0..DISK_BYTES / 4096).step_by(64);
    all.filter(|page| page % 5 != 3).collect()
}

/// A place whose cache is on a disk, wherever the rest of the test's files are; and where that is.
fn cached(root: &Path, frail: &Frail) -> (Place, PathBuf) {
    let place = Place::make(root);
    let cache = frail.ext4.join("cache");
    std::fs::create_dir(&cache).unwrap();
    std::os::unix::fs::symlink(&cache, place.root.join("cache")).unwrap();
    (place, cache)
}

/// Has the host forget what it has read of a directory's files.
fn forget(dir: &Path) {
    for file in std::fs::read_dir(dir).unwrap().flatten() {
        let file = File::open(file.path()).unwrap();
        rustix::fs::fsync(&file).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_hundred_machines_share_a_disk_and_none_starves() {
    const MACHINES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let all: Vec<MachineHandle> = (0..MACHINES)
        .map(|number| place.machine(&node, &format!("m{number}")))
        .collect();
    let (left, most) = (AtomicUsize::new(MACHINES), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for machine in &all {
            let left = &left;
            scope.spawn(move || {
                work(&open(machine), 1, 16 << 10, 1..4);
                left.fetch_sub(1, Ordering::Release);
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            let disk = node.mount.io_status().unwrap().disk;
            most.fetch_max(disk.in_flight, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert!((1..=WORKERS).contains(&most.into_inner()));
    for machine in machines(&node) {
        assert_eq!(machine.status.queued, 0, "{}", machine.name);
        assert!(served(&node, &machine.name) >= 3, "{}", machine.name);
    }
    assert_eq!(machines(&node).len(), MACHINES);
    assert_eq!(node.mount.stats().errors, 0);
    drop(all);
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disk_that_stands_still_delays_who_waits_for_it_and_loses_nothing() {
    const THREADS: u64 = 12;
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let all = ["a", "b"].map(|name| place.machine_in(&node, name, &frail.ext4.join(name)));
    let memory = map(&all[0].ram_path().unwrap());
    let stalled = AtomicBool::new(false);
    // The guard acts once in sixteen requests.
    for machine in &all {
        work(&open(machine), 0, 4096, 1..20);
    }
    std::thread::scope(|scope| {
        let frozen = Frozen::freeze(&frail.ext4);
        for thread in 0..THREADS {
            for machine in &all {
                let stalled = &stalled;
                scope.spawn(move || {
                    work(&open(machine), thread, 64 << 10, 1..5);
                    assert!(stalled.load(Ordering::Acquire), "it did not stand still");
                });
            }
        }
        eventually("nothing waits", || queued(&node) >= THREADS as usize / 2);
        // Longer than after which a queue counts as starving, in which nothing is served.
        std::thread::sleep(Duration::from_millis(800));
        let disk = node.mount.io_status().unwrap().disk;
        assert!((1..=WORKERS).contains(&disk.in_flight), "{disk:?}");
        // Memory doesn't need that disk.
        for page in 0..64 {
            let at = page * 4096;
            assert!(memory[at..at + 4096] == place.ram[at..at + 4096]);
        }
        stalled.store(true, Ordering::Release);
        drop(frozen);
    });
    assert_eq!(queued(&node), 0);
    eventually("something is counted as under way for ever", || {
        node.mount.io_status().unwrap().disk.in_flight == 0
    });
    for name in ["a", "b"] {
        // Each round's flush at least.
        assert!(served(&node, name) >= THREADS * 4, "{name}");
    }
    let guarded = node.mount.io_status().unwrap().disk.guarded;
    assert!(guarded >= 1, "nothing counted as starving");
    assert_eq!(node.mount.stats().errors, 0);
    drop((memory, all));
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_large_flush_is_written_in_pieces_and_is_durable_when_it_is_answered() {
    const LEN: usize = 24 << 20;
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let disks = frail.ext4.join("a");
    let machine = place.machine_in(&node, "a", &disks);
    machine.grow_disk("disk0", 32 << 20).unwrap();
    let disk = open(&machine);
    let before = served(&node, "a");
    disk.write_all_at(&vec![0xC7; LEN], 4096).unwrap();
    disk.sync_data().unwrap();
    // The largest piece is of 4 MiB, the first ones are smaller.
    let pieces = served(&node, "a") - before;
    assert!(pieces > (LEN >> 22) as u64, "{pieces}");
    // Reads what is on the disk, not what is in the page cache.
    let layer = disks.join("disks/disk0/layer-2.data");
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_DIRECT);
    let mut there = memmap2::MmapMut::map_anon(LEN).unwrap();
    let layer = options.open(layer).unwrap();
    layer.read_exact_at(&mut there, 4096).unwrap();
    assert!(there.iter().all(|byte| *byte == 0xC7));
    // A flush of little goes its old way. What has ended is counted after it was answered.
    let settled = || {
        eventually("something is counted as under way for ever", || {
            node.mount.io_status().unwrap().disk.in_flight == 0
        });
    };
    settled();
    let before = served(&node, "a");
    disk.write_all_at(&[1; 4096], 0).unwrap();
    disk.sync_data().unwrap();
    settled();
    assert_eq!(served(&node, "a") - before, 1);
    drop(disk);
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_page_of_an_image_that_is_on_the_disk_waits_in_the_queue_as_its_machines_demand() {
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let (place, cache) = cached(dir.path(), &frail);
    let touch = |node: &Node| {
        let machine = place.machine(node, "a");
        let memory = map(&machine.ram_path().unwrap());
        for page in 0..256 {
            let at = page * 4096;
            assert!(memory[at..at + 4096] == place.ram[at..at + 4096]);
        }
    };
    {
        let node = place.start(place.options());
        touch(&node);
        node.mount.unmount().unwrap();
    }
    let node = place.start(place.options());
    forget(&cache);
    touch(&node);
    // What the disk read ahead is in memory by then, and doesn't wait.
    assert!(served(&node, "a") >= 1);
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_page_that_is_on_the_disk_is_waited_for_after_an_input() {
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let (place, cache) = cached(dir.path(), &frail);
    let pages = far_pages();
    let touch = |memory: &[u8], page: usize| {
        let at = page * 4096;
        assert!(memory[at..at + 4096] == place.ram[at..at + 4096]);
    };
    {
        let node = place.start(place.options());
        let memory = map(&place.machine(&node, "a").ram_path().unwrap());
        pages.iter().for_each(|page| touch(&memory, *page));
        drop(memory);
        node.mount.unmount().unwrap();
    }
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let memory = map(&machine.ram_path().unwrap());
    let waited_for = || {
        let all = machines(&node);
        of_class(all.iter().map(|one| &one.status), Class::Interactive)
    };
    forget(&cache);
    pages[..2].iter().for_each(|page| touch(&memory, *page));
    eventually("no page has waited for the disk", || served(&node, "a") > 0);
    assert_eq!(waited_for(), 0);
    for page in &pages[2..] {
        forget(&cache);
        machine.input();
        touch(&memory, *page);
    }
    eventually("no page was waited for", || waited_for() > 0);
    // nobody knows which program it was, and that is told
    let unknown = machines(&node)[0].unknown.unwrap();
    assert!(unknown.status.reads >= 2, "{unknown:?}");
    assert_eq!(node.mount.stats().errors, 0);
    drop((memory, machine));
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_comes_over_a_link_is_waited_for_after_an_input() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let (memory, disk) = (map(&machine.ram_path().unwrap()), open(&machine));
    let of_memory = |page: usize| {
        let at = page * 4096;
        assert!(memory[at..at + 4096] == place.ram[at..at + 4096]);
    };
    let of_disk = |page: usize| {
        let (at, mut seen) = (page * 4096, [0; 4096]);
        disk.read_exact_at(&mut seen, at as u64).unwrap();
        assert!(seen == place.disk[at..at + 4096]);
    };
    let fetched = |class| of_class(node.fetcher.status().unwrap().machines.iter(), class);
    let pages = far_pages();
    of_memory(pages[0]);
    of_disk(pages[0]);
    eventually("what was missing was not fetched", || {
        fetched(Class::Normal) >= 2
    });
    assert_eq!(fetched(Class::Interactive), 0);
    let needs: [&dyn Fn(usize); 2] = [&of_memory, &of_disk];
    for need in needs {
        let before = fetched(Class::Interactive);
        for page in &pages[1..] {
            machine.input();
            need(*page);
        }
        eventually("nothing was waited for", || {
            fetched(Class::Interactive) > before
        });
    }
    assert_eq!(node.mount.stats().errors, 0);
    drop((memory, disk, machine));
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn each_read_is_classified_once_whether_or_not_it_had_to_wait() {
    const PAGES: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let verdicts = dir.path().join("verdicts");
    let mut options = place.options();
    options.io_trace = Some(verdicts.clone());
    let node = place.start(options);
    let machine = place.machine(&node, "a");
    let disk = open(&machine);
    let mut page = [0; 4096];
    // first they have to be fetched, then they are here
    for _ in 0..2 {
        for number in 0..PAGES {
            let at = number * 4096;
            disk.read_exact_at(&mut page, at as u64).unwrap();
            assert!(page == place.disk[at..at + 4096]);
        }
    }
    let recorded = || {
        machines(&node); // writes out what was recorded
        let rows = std::fs::read_to_string(verdicts.join("a.csv")).unwrap();
        rows.lines().filter(|row| row.contains(",read,")).count()
    };
    // a read of what is here is recorded just after it was answered
    eventually("a read was not classified", || recorded() >= 2 * PAGES);
    assert_eq!(recorded(), 2 * PAGES);
    drop(disk);
    node.mount.unmount().unwrap();
}

//! Tests through a real kernel that requests find their machine, and that a busy disk's queue loses none.

mod common;

use common::{DISK_BYTES, Node, Place, map};
use floe_mount::{DiskSpec, MachineHandle, MachineSpec};
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Users that exist on no host.
const USERS: [u32; 2] = [89_001, 89_002];

fn machine_of(place: &Place, node: &Node, name: &str, uid: u32) -> MachineHandle {
    let spec = MachineSpec {
        name: name.into(),
        uid,
        gid: uid,
        image: node.image.clone().unwrap(),
        dir: place.root.join("machines").join(name),
        disks: vec![DiskSpec::of_region("disk0", DISK_BYTES as u64)],
        base: None,
    };
    node.mount.add_machine(spec).unwrap()
}

/// Returns the numbers of the memory's pages that aren't zero.
fn pages(place: &Place) -> Vec<u64> {
    let all = place.ram.chunks(4096).enumerate();
    let filled = all.filter(|(_, page)| page.iter().any(|b| *b != 0));
    filled.map(|(number, _)| number as u64).collect()
}

/// Reads a page in another process that runs as this user.
fn read_as(uid: u32, file: &Path, page: u64) {
    let status = Command::new("dd")
        .args(["of=/dev/null", "bs=4096", "count=1", "status=none"])
        .arg(format!("if={}", file.display()))
        .arg(format!("skip={page}"))
        .uid(uid)
        .gid(uid)
        .status()
        .unwrap();
    assert!(status.success());
}

/// Waits until a machine has that many faults; the answer comes before the record.
fn until_faults(machine: &MachineHandle, faults: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    while machine.stats().faults != faults {
        let now = machine.stats().faults;
        assert!(Instant::now() < until, "{now} faults instead of {faults}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_machine_is_known_by_its_user_whatever_process_asks() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    // No process is set for either machine.
    let machines = [0, 1].map(|i| machine_of(&place, &node, &format!("m{i}"), USERS[i]));
    let pages = pages(&place);
    for (number, page) in pages[..9].iter().enumerate() {
        let i = usize::from(number % 3 == 0);
        read_as(USERS[i], &machines[i].ram_path().unwrap(), *page);
    }
    until_faults(&machines[0], 6);
    until_faults(&machines[1], 3);
    // The user of two machines identifies neither: now the process must be known.
    let third = machine_of(&place, &node, "m2", USERS[0]);
    read_as(USERS[0], &machines[0].ram_path().unwrap(), pages[10]);
    read_as(USERS[1], &machines[1].ram_path().unwrap(), pages[11]);
    until_faults(&machines[1], 4);
    assert_eq!((machines[0].stats().faults, third.stats().faults), (6, 0));
    drop(third);
    node.mount.remove_machine("m2").unwrap();
    read_as(USERS[0], &machines[0].ram_path().unwrap(), pages[12]);
    until_faults(&machines[0], 7);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_an_unknown_thread_touches_is_accounted_for_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    // Both run as the node's own user, as they do where the node is not root.
    let (a, b) = (place.machine(&node, "a"), place.machine(&node, "b"));
    a.set_pid(std::process::id());
    let (memory, pages) = (map(&a.ram_path().unwrap()), pages(&place));
    for (number, page) in pages[..8].iter().enumerate() {
        // Each thread is a new one that nobody has noted; like a VMM's thread, it lives on.
        let (memory, at) = (&memory, *page as usize * 4096);
        let (go_on, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let touch = scope.spawn(move || {
                let byte = memory[at];
                let _ = ended.recv();
                byte
            });
            until_faults(&a, number as u64 + 1);
            drop(go_on);
            assert_eq!(touch.join().unwrap(), place.ram[at]);
        });
    }
    assert_eq!(b.stats().faults, 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn disk_requests_beyond_the_queues_room_are_all_done() {
    const THREADS: usize = 24;
    const ROUNDS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let mut options = place.options();
    options.disk_requests_queued_max = 1;
    let node = place.start(options);
    let machines = ["a", "b"].map(|name| place.machine(&node, name));
    let open = |machine: &MachineHandle| -> File {
        let path = machine.disk_path("disk0").unwrap();
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    };
    let part = DISK_BYTES / THREADS / 4096 * 4096;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = open(&machines[thread % 2]);
            scope.spawn(move || {
                let (first, mut seen) = ((thread * part) as u64, vec![0; part]);
                for round in 0..ROUNDS {
                    let fill = vec![(thread * ROUNDS + round + 1) as u8; part];
                    file.write_all_at(&fill, first).unwrap();
                    file.sync_all().unwrap();
                    file.read_exact_at(&mut seen, first).unwrap();
                    assert!(seen == fill, "thread {thread}, round {round}");
                }
            });
        }
        // Memory is read meanwhile.
        let memory = map(&machines[0].ram_path().unwrap());
        for page in pages(&place) {
            let at = page as usize * 4096;
            assert_eq!(memory[at], place.ram[at]);
        }
    });
    assert_eq!(node.mount.stats().errors, 0);
    node.mount.unmount().unwrap();
}

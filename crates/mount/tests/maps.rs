//! Tests through a real kernel that which file each block of an image's disk belongs to is found out once for all machines of the image,
//! also of the next node, that each machine knows its own disk all the same, and that maps come once their image has, and go where others
//! are used instead.

mod common;

use common::frail::eventually;
use common::{Node, Place};
use floe_extents::{Limits, Map};
use floe_image::{Hash, MachineConfig};
use floe_mount::{DiskSpec, MachineHandle, MachineSpec};
use floe_store::{Ingest, IngestOptions, Repository};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {done:?}");
}

/// Makes an ext4 in a file; returns its bytes.
fn ext4(path: &Path) -> Vec<u8> {
    let files = path.with_extension("files");
    std::fs::create_dir_all(files.join("usr/bin")).unwrap();
    for name in ["editor", "player", "viewer"] {
        std::fs::write(files.join("usr/bin").join(name), [7; 3 * BLOCK]).unwrap();
    }
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
    run(make.arg(&files).arg(path).arg("16M"));
    std::fs::read(path).unwrap()
}

/// Adds a file to it.
fn change(path: &Path) -> Vec<u8> {
    let source = path.with_extension("source");
    std::fs::write(&source, [9; 5 * BLOCK]).unwrap();
    let request = format!("write {} new", source.display());
    run(Command::new("debugfs")
        .args(["-w", "-R", &request])
        .arg(path));
    std::fs::read(path).unwrap()
}

fn files_of(disk: &[u8]) -> usize {
    Map::read(disk, Limits::default()).unwrap().files().count()
}

/// A disk of a machine, which is known to the queue from then on.
fn disk(machine: &MachineHandle) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let disk = options.open(machine.disk_path("disk0").unwrap()).unwrap();
    disk.sync_data().unwrap();
    disk
}

/// An image of a disk, with the disk's size.
fn image_of(place: &Place, disk: &[u8]) -> (Hash, u64) {
    let repository = Repository::open(&place.root.join("repo")).unwrap();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    ingest.region_bytes("disk0", disk).unwrap();
    let image = ingest.finish(MachineConfig::default()).unwrap();
    (image, disk.len() as u64)
}

/// A machine of an image that is on this host, unless somebody has said something else of the image before.
fn machine(place: &Place, node: &Node, (image, bytes): (Hash, u64), name: &str) -> MachineHandle {
    let image = node.add_image(image);
    image.keep_maps(place.root.join("maps"), || true);
    let spec = MachineSpec {
        name: name.into(),
        uid: 0,
        gid: 0,
        image,
        dir: place.root.join("machines").join(name),
        disks: vec![DiskSpec::of_region("disk0", bytes)],
        base: None,
    };
    node.mount.add_machine(spec).unwrap()
}

/// How many files of a machine's disk are known, or why none are.
fn known(node: &Node, machine: &MachineHandle) -> Option<Result<usize, String>> {
    let all = node.mount.io_status().unwrap().machines;
    let found = all.into_iter().find(|one| one.name == machine.name());
    found.unwrap().files
}

/// Sends inputs until so many files of a machine's disk are known.
fn knows(node: &Node, machine: &MachineHandle, files: usize) {
    eventually(&format!("{} files are known", machine.name()), || {
        machine.input();
        known(node, machine) == Some(Ok(files))
    });
}

/// Writes what makes one content of a disk another one.
fn write_what_differs(machine: &MachineHandle, before: &[u8], after: &[u8]) {
    let disk = disk(machine);
    for at in (0..after.len()).step_by(BLOCK) {
        let block = &after[at..at + BLOCK];
        if block != &before[at..at + BLOCK] {
            disk.write_all_at(block, at as u64).unwrap();
        }
    }
    disk.sync_data().unwrap();
}

fn end(node: Node) {
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disks_files_are_found_out_once_and_each_machine_knows_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let path = dir.path().join("disk.raw");
    let before = ext4(&path);
    let after = change(&path);
    let files = files_of(&before);
    assert_eq!(files_of(&after), files + 1);
    let image = image_of(&place, &before);

    let node = place.start(place.options());
    let first = machine(&place, &node, image, "first");
    disk(&first);
    knows(&node, &first, files);
    let kept = place.root.join("maps/disk0.files");
    let made = std::fs::metadata(&kept).unwrap().ino();

    // one that has written a file before anybody asked, and one that does so afterwards
    let second = machine(&place, &node, image, "second");
    let third = machine(&place, &node, image, "third");
    let write = |machine: &MachineHandle| write_what_differs(machine, &before, &after);
    write(&second);
    knows(&node, &second, files + 1);
    disk(&third);
    knows(&node, &third, files);
    write(&third);
    knows(&node, &third, files + 1);
    knows(&node, &first, files);
    // and one that has made all of it anew
    let fourth = machine(&place, &node, image, "fourth");
    let path = dir.path().join("other.raw");
    ext4(&path);
    let other = change(&path);
    disk(&fourth).write_all_at(&other, 0).unwrap();
    knows(&node, &fourth, files_of(&other));
    assert_eq!(node.mount.stats().errors, 0);
    drop((first, second, third, fourth));
    end(node);

    // the next node takes what was kept
    assert_eq!(std::fs::metadata(&kept).unwrap().ino(), made);
    let node = place.start(place.options());
    let again = machine(&place, &node, image, "second");
    disk(&again);
    knows(&node, &again, files + 1);
    assert_eq!(std::fs::metadata(&kept).unwrap().ino(), made);
    drop(again);
    end(node);

    // and makes it anew if it was damaged
    let whole = std::fs::read(&kept).unwrap();
    std::fs::write(&kept, &whole[..whole.len() / 2]).unwrap();
    let node = place.start(place.options());
    let again = machine(&place, &node, image, "second");
    disk(&again);
    knows(&node, &again, files + 1);
    assert!(std::fs::read(&kept).unwrap() == whole);
    drop(again);
    end(node);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_machine_whose_image_was_still_coming_knows_its_files_at_an_input_after_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let bytes = ext4(&dir.path().join("disk.raw"));
    let image = image_of(&place, &bytes);
    let node = place.start(place.options());
    let here = Arc::new(AtomicBool::new(false));
    let look = here.clone();
    node.add_image(image.0)
        .keep_maps(place.root.join("maps"), move || {
            look.load(Ordering::Acquire)
        });
    let streamed = machine(&place, &node, image, "streamed");
    disk(&streamed);
    streamed.input();
    eventually("it is known why no files are", || {
        let why = known(&node, &streamed).and_then(Result::err);
        why.is_some_and(|why| why.contains("not all of it is on this host"))
    });
    let is_kept = || place.root.join("maps/disk0.files").try_exists().unwrap();
    assert!(!is_kept());
    here.store(true, Ordering::Release);
    knows(&node, &streamed, files_of(&bytes));
    assert!(is_kept());
    assert_eq!(node.mount.stats().errors, 0);
    drop(streamed);
    end(node);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn of_more_machines_than_can_be_known_those_are_that_were_used_last() {
    const PLACES: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let path = dir.path().join("disk.raw");
    let before = ext4(&path);
    let after = change(&path);
    let (image, files) = (image_of(&place, &before), files_of(&before));
    let node = place.start(place.options());
    let all: Vec<MachineHandle> = (0..=PLACES)
        .map(|number| machine(&place, &node, image, &format!("m{number}")))
        .collect();
    for machine in &all {
        disk(machine);
        knows(&node, machine, files);
    }
    // the last one has the place of the first one
    let is_known: Vec<bool> = all
        .iter()
        .map(|machine| known(&node, machine).is_some())
        .collect();
    assert!(is_known.is_sorted() && !is_known[0], "{is_known:?}");
    // which has written meanwhile, and is known again when it is used again
    write_what_differs(&all[0], &before, &after);
    knows(&node, &all[0], files + 1);
    assert_eq!(node.mount.stats().errors, 0);
    drop(all);
    end(node);
}

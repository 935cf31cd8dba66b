//! Tests through a real kernel that which file each block of an image's disk belongs to is found out once for all machines of the image,
//! also of the next node, and that each machine knows its own disk all the same.

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

fn machine(place: &Place, node: &Node, (image, bytes): (Hash, u64), name: &str) -> MachineHandle {
    let image = node.add_image(image);
    image.is_on_this_host(place.root.join("maps"));
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

/// Waits until so many files of a machine's disk are known, after an input.
fn knows(node: &Node, machine: &MachineHandle, files: usize) {
    machine.input();
    eventually(&format!("{} files are known", machine.name()), || {
        let all = node.mount.io_status().unwrap().machines;
        let found = all.into_iter().find(|one| one.name == machine.name());
        found.is_some_and(|one| one.files == Some(Ok(files)))
    });
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
    let repository = Repository::open(&place.root.join("repo")).unwrap();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    ingest.region_bytes("disk0", &before).unwrap();
    let image = ingest.finish(MachineConfig::default()).unwrap();
    let image = (image, before.len() as u64);

    let node = place.start(place.options());
    let first = machine(&place, &node, image, "first");
    disk(&first);
    knows(&node, &first, files);
    let kept = place.root.join("maps/disk0.files");
    let made = std::fs::metadata(&kept).unwrap().ino();

    // one that has written a file before anybody asked, and one that does so afterwards
    let second = machine(&place, &node, image, "second");
    let third = machine(&place, &node, image, "third");
    let write = |machine: &MachineHandle| {
        let disk = disk(machine);
        for at in (0..after.len()).step_by(BLOCK) {
            let block = &after[at..at + BLOCK];
            if block != &before[at..at + BLOCK] {
                disk.write_all_at(block, at as u64).unwrap();
            }
        }
        disk.sync_data().unwrap();
    };
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

//! Disks that a machine is given, and that are taken away, while its VMM runs.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::Place;
use floe_mount::{DiskSpec, Mount};
use std::fs::File;
use std::os::unix::fs::FileExt;

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disk_comes_and_goes_while_its_machine_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let spec = |size| DiskSpec {
        name: "disk1".into(),
        base: None,
        size,
    };
    let first = machine.freeze().unwrap();
    node.mount.add_disk("a", &spec(64 << 10)).unwrap();
    assert!(node.mount.add_disk("a", &spec(64 << 10)).is_err());
    assert!(node.mount.add_disk("b", &spec(64 << 10)).is_err());
    let path = machine.disk_path("disk1").unwrap();
    assert_eq!(machine.disk_paths().last(), Some(&path));
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let file = open();
    file.write_all_at(b"of the first", 4096).unwrap();
    // what was frozen before knows nothing of it
    let image = node.image.clone().unwrap();
    machine.drop_frozen(&first, &image).unwrap();
    assert!(!machine.has_frozen(&first));
    let frozen = machine.freeze().unwrap();
    assert_eq!(frozen.disks().len(), 2);
    file.write_all_at(b"later", 0).unwrap();

    node.mount.remove_disk("a", "disk1").unwrap();
    assert!(node.mount.remove_disk("a", "disk1").is_err());
    assert!(file.write_all_at(b"too late", 0).is_err());
    assert!(!path.exists() && machine.disk_path("disk1").is_none());
    let recorded = |name: &str| {
        let dir = dir.path().join("machines/a");
        Mount::recorded_sizes(&dir).unwrap().contains_key(name)
    };
    assert!(recorded("disk0") && !recorded("disk1"));
    // what was frozen of it is still there for whoever stores it
    let chunks: Vec<_> = frozen.disks()[1].chunks().collect();
    assert_eq!(chunks.len(), 1);
    assert_eq!(&chunks[0].as_ref().unwrap().1[..12], b"of the first");

    // another of its name begins empty, and a freeze of the first one is none of its own
    node.mount.add_disk("a", &spec(32 << 10)).unwrap();
    let file = open();
    let mut all = vec![1; 32 << 10];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
    file.write_all_at(b"second", 0).unwrap();
    machine.drop_frozen(&frozen, &image).unwrap();
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(&all[..6], b"second");
    drop(file);
    node.mount.remove_machine("a").unwrap();
    assert!(recorded("disk1"), "with the machine it stays");
}

//! Disks that a machine is given, and that are taken away, while its VMM runs.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::{DISK_BYTES, Node, Place, Random};
use floe_image::{Hash, MachineConfig};
use floe_mount::{DiskSpec, FrozenLayers, Mount};
use floe_store::{Ingest, IngestOptions, Repository};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Stores a frozen disk as an image over the one that it stands on.
fn stored(place: &Place, frozen: &FrozenLayers) -> Hash {
    let repository = Repository::open(&place.root.join("repo")).unwrap();
    let disk = &frozen.disks()[0];
    let (parent, region) = disk.base().unwrap();
    let options = IngestOptions {
        parent: Some(parent),
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&repository, options).unwrap();
    let chunks = disk.chunks().map(|chunk| chunk.map_err(io::Error::other));
    ingest
        .region_from_pages("disk0", disk.size(), Some(region), chunks)
        .unwrap();
    ingest.region_from_parent("ram").unwrap();
    ingest.finish(MachineConfig::default()).unwrap()
}

fn content_of(frozen: &FrozenLayers) -> Vec<(u64, Vec<u8>)> {
    let chunks = frozen.disks()[0].chunks().map(Result::unwrap);
    chunks.map(|(at, bytes)| (at, bytes.to_vec())).collect()
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_is_written_is_merged_under_a_writer_and_who_holds_the_old_layers_sees_no_change() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let path = machine.disk_path("disk0").unwrap();
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let model = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (file, mut random) = (open(), Random(11));
            let mut model = place.disk.clone();
            while !stop.load(Ordering::Relaxed) {
                let at = random.below(DISK_BYTES as u64 / 512 - 16) * 512;
                let data = vec![random.below(256) as u8; (random.below(16) as usize + 1) * 512];
                file.write_all_at(&data, at).unwrap();
                model[at as usize..][..data.len()].copy_from_slice(&data);
                let mut back = vec![0; data.len()];
                file.read_exact_at(&mut back, at).unwrap();
                assert!(
                    back == data,
                    "what was just written reads as something else"
                );
            }
            model
        });
        // whatever fails here, the writer ends
        let ending = Ending(&stop);
        for _ in 0..4 {
            let frozen = machine.freeze().unwrap();
            let held = machine.frozen_before().unwrap();
            let before = content_of(&held);
            let image = node.add_image(stored(&place, &frozen));
            machine.drop_frozen(&frozen, &image).unwrap();
            assert!(!machine.has_frozen(&frozen));
            assert!(content_of(&held) == before, "a holder sees a change");
        }
        drop(ending);
        writer.join().unwrap()
    });
    // nobody writes any more: the next one takes all of it
    let frozen = machine.freeze().unwrap();
    let image = node.add_image(stored(&place, &frozen));
    machine.drop_frozen(&frozen, &image).unwrap();
    let stats = machine.stats();
    assert_eq!((stats.layers, stats.overlay_bytes), (1, 0));
    assert!(machine.frozen_before().is_none());
    let mut all = vec![0; DISK_BYTES];
    open().read_exact_at(&mut all, 0).unwrap();
    assert!(all == model);
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_merge_that_was_cut_off_at_any_step_leaves_the_disk_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let mut model = place.disk.clone();
    let mut base = None;
    let start = |base: Option<Hash>| -> (Node, floe_mount::MachineHandle) {
        let node = place.start(place.options());
        base.into_iter().for_each(|id| drop(node.add_image(id)));
        let machine = place.machine(&node, "a");
        (node, machine)
    };
    // 0: after the freeze, 1: once the image is stored, 2: once the disk stands on it
    for step in [0, 1, 2, 1, 0, 2] {
        let (node, machine) = start(base);
        let file = File::options()
            .read(true)
            .write(true)
            .open(machine.disk_path("disk0").unwrap())
            .unwrap();
        for (number, at) in [0, 5 * 512, 40 << 10, (1 << 20) + 512]
            .into_iter()
            .enumerate()
        {
            let data = vec![model[at].wrapping_add(number as u8 + 1); 1536];
            file.write_all_at(&data, at as u64).unwrap();
            model[at..][..data.len()].copy_from_slice(&data);
        }
        let frozen = machine.freeze().unwrap();
        file.write_all_at(&[step as u8; 512], 2 << 20).unwrap();
        model[2 << 20..][..512].fill(step as u8);
        if step > 0 {
            let id = stored(&place, &frozen);
            if step > 1 {
                let image = node.add_image(id);
                machine.drop_frozen(&frozen, &image).unwrap();
                base = Some(id);
            }
        }
        drop((file, frozen, machine, node));

        let (node, machine) = start(base);
        let recorded = Mount::recorded_bases(&place.root.join("machines/a")).unwrap();
        assert_eq!(recorded, [base.unwrap_or(place.id)]);
        let mut all = vec![0; DISK_BYTES];
        let file = File::open(machine.disk_path("disk0").unwrap()).unwrap();
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model, "step {step}");
        drop((file, machine, node));
    }
}

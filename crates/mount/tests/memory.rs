//! Tests memory that was added to a captured machine, as QEMU maps it when the machine is restored.

mod common;

use common::{Place, content, map};
use floe_image::{MachineConfig, memory_region};
use floe_mount::{DiskSpec, MachineSpec};
use floe_store::{Ingest, IngestOptions, Repository};

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_machine_has_a_file_for_each_block_of_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut place = Place::make(dir.path());
    let blocks: Vec<Vec<u8>> = (1..4).map(|seed| content(10 + seed, 256 << 10)).collect();
    let repository = Repository::open(&dir.path().join("repo")).unwrap();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    // Neither the blocks' order in the image nor what lies between them matters.
    for block in [2, 0, 1] {
        ingest
            .region_bytes(&memory_region(block), &blocks[block])
            .unwrap();
        ingest
            .region_bytes(&format!("other{block}"), b"small")
            .unwrap();
    }
    place.id = ingest.finish(MachineConfig::default()).unwrap();
    let node = place.start(place.options());
    let spec = |name: &str, disks| MachineSpec {
        name: name.into(),
        uid: 0,
        gid: 0,
        image: node.image.clone().unwrap(),
        dir: dir.path().join("machines").join(name),
        disks,
        base: None,
    };
    let machine = node.mount.add_machine(spec("grown", Vec::new())).unwrap();
    let paths = machine.memory_paths();
    assert_eq!(paths.len(), 3);
    for (block, path) in paths.iter().enumerate() {
        assert!(path.ends_with(memory_region(block)), "{path:?}");
        assert!(map(path)[..] == blocks[block][..], "block {block}");
    }
    let shown = std::fs::read_dir(paths[0].parent().unwrap()).unwrap();
    assert_eq!(
        shown.count(),
        3,
        "the machine sees nothing else of its image"
    );
    let clash = spec("clash", vec![DiskSpec::of_region("ram2", 4096)]);
    let error = node.mount.add_machine(clash).err().unwrap().to_string();
    assert!(error.contains("ram1"), "{error}");
}

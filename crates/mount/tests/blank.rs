//! Tests files that are opened and mapped before it is known what they are to contain.

mod common;

use common::{DISK_BYTES, Node, Place, RAM_BYTES, map};
use floe_image::MachineConfig;
use floe_mount::{BlankDisk, BlankSpec, DiskSpec, ImageHandle, MachineSpec, MountError};
use floe_store::{Ingest, IngestOptions, Repository};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many bytes at the beginning of its disk a blank shows.
const BEGINNING: usize = 512;

fn blank(place: &Place, node: &Node) -> ImageHandle {
    node.mount.blank(BlankSpec {
        memory: vec![("ram".into(), RAM_BYTES as u64)],
        disks: vec![BlankDisk {
            name: "disk0".into(),
            size: DISK_BYTES as u64,
            beginning: place.disk[..BEGINNING].to_vec(),
        }],
    })
}

fn spec(place: &Place, name: &str, image: &ImageHandle) -> MachineSpec {
    MachineSpec {
        name: name.into(),
        uid: 0,
        gid: 0,
        image: image.clone(),
        dir: place.root.join("machines").join(name),
        disks: vec![DiskSpec::of_region("disk0", DISK_BYTES as u64)],
        base: None,
    }
}

/// What a VMM has of a machine's files once it has started.
struct Vmm {
    memory: memmap2::MmapMut,
    disk: File,
}

impl Vmm {
    fn start(dir: &Path) -> Vmm {
        let ram = File::open(dir.join("ram")).unwrap();
        // SAFETY: a private mapping; that its file's content is replaced before the first touch is what is tested.
        let memory = unsafe { memmap2::MmapOptions::new().map_copy(&ram).unwrap() };
        let mut options = OpenOptions::new();
        let disk = options.read(true).write(true).open(dir.join("disk0"));
        let disk = disk.unwrap();
        assert_eq!(memory.len(), RAM_BYTES);
        assert_eq!(disk.metadata().unwrap().len(), DISK_BYTES as u64);
        Vmm { memory, disk }
    }

    fn looks_at_its_disk(&self) -> Vec<u8> {
        let mut sector = vec![0; BEGINNING];
        self.disk.read_exact_at(&mut sector, 0).unwrap();
        sector
    }

    fn sees_all_of(&self, place: &Place) {
        assert!(self.memory[..] == place.ram[..]);
        let mut disk = vec![0; DISK_BYTES];
        self.disk.read_exact_at(&mut disk, 0).unwrap();
        assert!(disk == place.disk);
    }
}

fn refusal(bound: Result<floe_mount::MachineHandle, MountError>) -> String {
    match bound {
        Err(MountError::Blank { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was bound"),
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_waited_on_one_blank_sees_the_image_and_shares_its_pages() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let image = node.image.clone().unwrap();
    let blank = blank(&place, &node);
    let machines = ["a", "b"].map(|name| {
        let spec = spec(&place, name, &blank);
        node.mount.add_machine(spec).unwrap()
    });
    let dirs = ["a", "b"].map(|name| node.mount.mountpoint().join("machines").join(name));
    let [mut a, b] = [0, 1].map(|n: usize| Vmm::start(&dirs[n]));
    for vmm in [&a, &b] {
        assert_eq!(vmm.looks_at_its_disk(), place.disk[..BEGINNING]);
    }
    assert_eq!(blank.stats().zero_chunks, 0, "nothing else was read");
    drop(machines);
    let bound = node.mount.bind_machine(spec(&place, "a", &image)).unwrap();
    a.sees_all_of(&place);
    node.mount.bind_machine(spec(&place, "b", &image)).unwrap();
    let before = node.mount.stats().region_reads;
    b.sees_all_of(&place);
    let again = node.mount.stats().region_reads - before;
    assert!(
        again < before / 2,
        "{again} requests for pages that a has read with {before}"
    );
    // what one of them writes is its own
    a.memory[..3].copy_from_slice(b"new");
    a.disk.write_all_at(b"new", 4096).unwrap();
    b.sees_all_of(&place);
    assert_eq!(bound.stats().writes, 1);
    // whoever comes later gets the image from files of its own
    let late = place.machine(&node, "late");
    assert!(map(&late.ram_path().unwrap())[..] == place.ram[..]);
    let bound = node.mount.bind_machine(spec(&place, "a", &image));
    assert_eq!(refusal(bound), "it is no blank");
    node.mount.remove_machine("a").unwrap();
    b.sees_all_of(&place);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_blank_that_was_touched_or_does_not_fit_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let image = node.image.clone().unwrap();
    let machines = node.mount.mountpoint().join("machines");
    let add = |name: &str| {
        let blank = blank(&place, &node);
        node.mount.add_machine(spec(&place, name, &blank)).unwrap();
        Vmm::start(&machines.join(name))
    };
    let bind = |name: &str| refusal(node.mount.bind_machine(spec(&place, name, &image)));

    let seen = add("seen");
    assert_eq!(seen.memory[RAM_BYTES / 2], 0);
    assert_eq!(bind("seen"), "something has read of it and has seen zeros");
    let mut touched = add("touched");
    touched.memory[8192] = 1; // a private page, which outlives all that the page cache forgets
    assert_eq!(
        bind("touched"),
        "something has read of it and has seen zeros"
    );
    assert_eq!(touched.memory[8192], 1);
    let disk = add("disk");
    disk.disk.read_exact_at(&mut [0; 512], 1 << 20).unwrap();
    assert_eq!(bind("disk"), "something has read of it and has seen zeros");
    let written = add("written");
    written.disk.write_all_at(&[1; 4096], 1 << 20).unwrap();
    assert_eq!(bind("written"), "something was written to its disks");

    // another image: the same sizes, another beginning of the disk
    let repository = Repository::open(&dir.path().join("repo")).unwrap();
    let other = |ram: usize, disk: &[u8]| {
        let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
        ingest.region_bytes("ram", &vec![7; ram]).unwrap();
        ingest.region_bytes("disk0", disk).unwrap();
        node.add_image(ingest.finish(MachineConfig::default()).unwrap())
    };
    let vmm = add("fits");
    let mut disk = place.disk.clone();
    disk[3] ^= 1;
    let begins = other(RAM_BYTES, &disk);
    let reason = refusal(node.mount.bind_machine(spec(&place, "fits", &begins)));
    assert_eq!(reason, "disk disk0 begins with something else");
    let small = other(RAM_BYTES / 2, &place.disk);
    let reason = refusal(node.mount.bind_machine(spec(&place, "fits", &small)));
    assert_eq!(reason, "the image's memory has another size");
    let mut larger = spec(&place, "fits", &image);
    larger.disks[0].size += 4096;
    let reason = refusal(node.mount.bind_machine(larger));
    assert_eq!(reason, "the image has other disks");
    let mut other_name = spec(&place, "fits", &image);
    other_name.disks[0].name = "disk1".into();
    let reason = refusal(node.mount.bind_machine(other_name));
    assert_eq!(reason, "it has no disk disk1");
    // none of that has done it any harm
    node.mount
        .bind_machine(spec(&place, "fits", &image))
        .unwrap();
    vmm.sees_all_of(&place);

    // two that share a blank can't become different images
    let shared = blank(&place, &node);
    for name in ["one", "two"] {
        node.mount.add_machine(spec(&place, name, &shared)).unwrap();
    }
    let same = other(RAM_BYTES, &place.disk);
    node.mount.bind_machine(spec(&place, "one", &same)).unwrap();
    assert_eq!(bind("two"), "its ram has other content already");
    assert!(map(&machines.join("one/ram"))[..] == vec![7; RAM_BYTES][..]);
    node.mount.bind_machine(spec(&place, "two", &same)).unwrap();
    assert!(
        matches!(
            node.mount.bind_machine(spec(&place, "nobody", &image)),
            Err(MountError::Unknown { .. })
        ),
        "there is none of that name"
    );
}

//! Tests the mount through a real kernel.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::{DISK_BYTES, Place, RAM_BYTES, Random, map};
use floe_image::{Hash, MachineConfig, TraceReader};
use floe_planner::{Method, Model, Timed, TrainOptions, ZeroTrace, train};
use floe_store::{Ingest, IngestOptions, Repository};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn open(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn regions_are_the_images_bytes_however_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let memory = map(&machine.ram_path().unwrap());
    let mut order: Vec<usize> = (0..RAM_BYTES / 4096).collect();
    let mut random = Random(7);
    (1..order.len())
        .rev()
        .for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    for page in order {
        assert!(
            memory[page * 4096..][..4096] == place.ram[page * 4096..][..4096],
            "page {page}"
        );
    }
    let stats = node.mount.stats();
    assert_eq!(
        stats.region_read_bytes,
        4096 * stats.region_reads,
        "a fault reads one page"
    );
    let zeros = place.ram.chunks(4096).filter(|page| *page == [0; 4096]);
    let (all, zeros) = ((RAM_BYTES / 4096) as u64, zeros.count() as u64);
    let pushed = stats.pushed_bytes / 4096;
    assert!(
        pushed <= zeros,
        "only zero pages need no request: {stats:?}"
    );
    assert!(
        (all - pushed..=all + few(all)).contains(&stats.region_reads),
        "{stats:?}"
    );
    assert_eq!(
        std::fs::read(node.image.as_ref().unwrap().region_path("disk0").unwrap()).unwrap(),
        place.disk
    );
    assert_eq!(
        std::fs::read(machine.disk_path("disk0").unwrap()).unwrap(),
        place.disk
    );
    // The same inode: what one machine has touched, another needn't ask for.
    let other = place.machine(&node, "b");
    let before = node.mount.stats().region_reads;
    assert!(map(&other.ram_path().unwrap())[..] == place.ram[..]);
    assert!(node.mount.stats().region_reads - before <= few(all));
}

/// Returns how many of `pages` cached pages the kernel may read again in a test: it may drop a clean page at any time, and on
/// some hosts it does. Pages that were never cached would all be read again.
fn few(pages: u64) -> u64 {
    pages / 4
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn an_image_can_be_opened_for_writing_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let file = open(&machine.ram_path().unwrap());
    let mut page = [0; 4096];
    file.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(
        file.write_at(&[1; 4096], 0).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
    assert_eq!(
        file.write_at(&[1; 10], 5000).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
    assert!(file.set_len(4096).is_err());
    file.set_len(RAM_BYTES as u64).unwrap();
    rustix::fs::fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        4096,
    )
    .unwrap();
    let mut all = vec![0; RAM_BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == place.ram);
    assert!(File::create(machine.ram_path().unwrap().with_file_name("new")).is_err());
}

/// Does one random operation on the disk and on the model.
fn step(random: &mut Random, file: &File, model: &mut [u8]) {
    let size = model.len() as u64;
    let unit = [1, 512, 4096][random.below(3) as usize];
    let offset = random.below(size / unit) * unit;
    let len = ((random.below(40) + 1) * unit).min(size - offset);
    let range = offset as usize..(offset + len) as usize;
    match random.below(10) {
        0..4 => {
            let mut data = vec![0; len as usize];
            data.iter_mut().for_each(|b| *b = random.below(256) as u8);
            file.write_all_at(&data, offset).unwrap();
            model[range].copy_from_slice(&data);
        }
        4..8 => {
            let mut data = vec![0xEE; len as usize];
            file.read_exact_at(&mut data, offset).unwrap();
            assert!(data == model[range], "read {len} at {offset}");
        }
        8 => {
            let mode = if random.below(2) == 0 {
                FallocateFlags::PUNCH_HOLE
            } else {
                FallocateFlags::ZERO_RANGE
            };
            rustix::fs::fallocate(file, mode | FallocateFlags::KEEP_SIZE, offset, len).unwrap();
            model[range].fill(0);
        }
        _ => file.sync_data().unwrap(),
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disk_behaves_like_a_plain_file_through_freezes_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let mut model = place.disk.clone();
    let mut random = Random(42);
    for round in 0..4 {
        let node = place.start(place.options());
        let machine = place.machine(&node, "a");
        let file = open(&machine.disk_path("disk0").unwrap());
        for i in 0..400 {
            step(&mut random, &file, &mut model);
            if i % 150 == 149 {
                machine.freeze().unwrap();
            }
        }
        assert!(file.write_at(&[0], DISK_BYTES as u64).is_err());
        assert!(file.set_len(DISK_BYTES as u64 + 1).is_err());
        let mut all = vec![0; DISK_BYTES];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model, "round {round}");
        assert!(machine.stats().overlay_bytes > 0);
        drop(file);
        node.mount.remove_machine("a").unwrap();
        node.mount.unmount().unwrap();
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_disk_grows_while_it_is_open_and_goes_on_as_a_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let mut model = place.disk.clone();
    let mut random = Random(43);
    for round in 1..5 {
        let node = place.start(place.options());
        let machine = place.machine_of(&node, "a", model.len() as u64);
        let path = machine.disk_path("disk0").unwrap();
        let file = open(&path);
        let mut all = vec![0; model.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model, "before round {round}");
        let (before, bytes) = (model.len() as u64, model.len() as u64 + round * 5 * 4096);
        for _ in 0..100 {
            step(&mut random, &file, &mut model);
        }
        let frozen = (round == 2).then(|| machine.freeze().unwrap());
        assert!(file.write_at(&[1], before).is_err());
        machine.grow_disk("disk0", bytes).unwrap();
        // the kernel keeps attributes for ever unless it is told
        assert_eq!(file.metadata().unwrap().len(), bytes);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
        // what QEMU does when it is told
        file.set_len(bytes).unwrap();
        assert!(file.set_len(bytes + 512).is_err());
        assert!(machine.grow_disk("disk0", before).is_err());
        assert!(machine.grow_disk("disk7", bytes).is_err());
        assert_eq!(machine.disk_sizes(), [("disk0".to_owned(), bytes)]);
        assert!(frozen.is_none_or(|frozen| frozen.disks()[0].size() == before));
        model.resize(bytes as usize, 0);
        for _ in 0..300 {
            step(&mut random, &file, &mut model);
        }
        assert!(file.write_at(&[0], bytes).is_err());
        let mut all = vec![0; model.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model, "round {round}");
        drop(file);
        node.mount.remove_machine("a").unwrap();
        node.mount.unmount().unwrap();
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn whole_chunks_and_sectors_are_written_without_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    node.source.down.store(true, Ordering::Relaxed);
    let machine = place.machine(&node, "a");
    let file = open(&machine.disk_path("disk0").unwrap());
    file.write_all_at(&[1; 64 << 10], 8192).unwrap();
    file.write_all_at(&[2; 512], 512).unwrap();
    file.sync_all().unwrap();
    let mut back = [0; 512];
    file.read_exact_at(&mut back, 512).unwrap();
    assert_eq!(back, [2; 512]);
    node.source.down.store(false, Ordering::Relaxed);
    let mut merged = [0; 4096];
    file.read_exact_at(&mut merged, 0).unwrap();
    assert_eq!(merged[..512], place.disk[..512]);
    assert_eq!(merged[512..1024], [2; 512]);
    assert_eq!(merged[1024..], place.disk[1024..4096]);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_freeze_under_writes_splits_them_and_a_published_one_becomes_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let path = machine.disk_path("disk0").unwrap();
    let (stop, begun) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut model, frozen) = std::thread::scope(|scope| {
        // Writes generation after generation over all sectors of some chunks, always in the same order.
        let writer = scope.spawn(|| {
            let file = open(&path);
            let mut model = place.disk.clone();
            let mut generation = 1u64;
            while !stop.load(Ordering::Relaxed) {
                begun.store(generation, Ordering::Relaxed);
                for at in (0..256 << 10).step_by(1536) {
                    let data = generation.to_le_bytes().repeat(64);
                    file.write_all_at(&data, at as u64).unwrap();
                    model[at..at + 512].copy_from_slice(&data);
                }
                generation += 1;
            }
            model
        });
        let until = |generation| {
            while begun.load(Ordering::Relaxed) < generation {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // Every sector was written once before the freeze, and some are written during it.
        until(3);
        let frozen = machine.freeze().unwrap();
        until(begun.load(Ordering::Relaxed) + 1);
        stop.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), frozen)
    });
    let disk = &frozen.disks()[0];
    let mut snapshot = place.disk.clone();
    for chunk in disk.chunks() {
        let (chunk, bytes) = chunk.unwrap();
        snapshot[chunk as usize * 4096..][..4096].copy_from_slice(&bytes);
    }
    // One moment of one writer that writes in order: generations fall by at most one, and only once.
    let generations: Vec<u64> = (0..256 << 10)
        .step_by(1536)
        .map(|at| u64::from_le_bytes(snapshot[at..at + 8].try_into().unwrap()))
        .collect();
    assert!(
        generations
            .windows(2)
            .all(|w| w[0] == w[1] || w[0] == w[1] + 1),
        "{generations:?}"
    );
    assert!(generations[0] - generations[generations.len() - 1] <= 1);
    assert_eq!(disk.base(), Some((place.id, "disk0")));

    // Once published, the frozen content becomes the base; what was written since stays on top.
    let repository = Repository::open(&place.root.join("repo")).unwrap();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    ingest.region_bytes("disk0", &snapshot).unwrap();
    let image = node.add_image(ingest.finish(MachineConfig::default()).unwrap());
    machine.drop_frozen(&frozen, &image).unwrap();
    assert_eq!(machine.stats().layers, 1);
    let file = open(&path);
    let mut random = Random(5);
    (0..300).for_each(|_| step(&mut random, &file, &mut model));
    let mut all = vec![0; DISK_BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == model);
    assert_eq!(
        floe_mount::Mount::recorded_bases(&place.root.join("machines/a")).unwrap(),
        [image.id()]
    );
    // The frozen layers are still readable for whoever holds them.
    let again: u64 = disk
        .chunks()
        .map(|c| u64::from(c.unwrap().1 == snapshot[..4096]))
        .sum();
    assert!(again <= disk.count());
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn pushed_pages_are_read_without_asking() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let image = node.image.clone().unwrap();
    let file = File::open(machine.ram_path().unwrap()).unwrap();
    let mut half = vec![0; RAM_BYTES / 2];
    file.read_exact_at(&mut half, 0).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let pages = (RAM_BYTES / 4096) as u64;
    let before = node.mount.stats().region_reads;
    let report = node.mount.push(&image, "ram", 0..pages / 2).unwrap();
    assert_eq!((report.bytes, report.missing), (RAM_BYTES as u64 / 2, 0));
    let memory = map(&machine.ram_path().unwrap());
    assert!(memory[..RAM_BYTES / 2] == place.ram[..RAM_BYTES / 2]);
    assert!(node.mount.stats().region_reads - before <= few(pages / 2));
    assert!(memory[RAM_BYTES / 2..] == place.ram[RAM_BYTES / 2..]);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_is_around_touched_pages_needs_no_request() {
    const PAGES: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let whole = std::fs::read(machine.ram_path().unwrap()).unwrap();
    assert!(whole == place.ram, "and all of it is in the cache now");
    drop((machine, node));

    let node = place.start(place.options());
    let machine = place.machine(&node, "b");
    let image = node.image.clone().unwrap();
    let memory = map(&machine.ram_path().unwrap());
    let zero = |page: usize| place.ram[page * 4096..][..4096].iter().all(|b| *b == 0);
    let touch = |page: usize| assert!(memory[page * 4096] == place.ram[page * 4096]);
    let pushed = |pages: usize| {
        let since = Instant::now();
        while node.mount.stats().pushed_bytes < pages as u64 * 4096 {
            let stats = node.mount.stats();
            assert!(since.elapsed() < Duration::from_secs(20), "{stats:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        node.mount.stats().region_reads
    };

    // While touches are watched: zero pages are pushed around zero ones, and nothing around others.
    let (zeros, others): (Vec<usize>, Vec<usize>) = (0..PAGES).partition(|page| zero(*page));
    // One page in each quarter of the block.
    [3, 18, 33, 48].into_iter().for_each(touch);
    let requests = pushed(zeros.len() - 4);
    zeros.iter().for_each(|page| touch(*page));
    let again = node.mount.stats().region_reads - requests;
    assert!(again <= few(zeros.len() as u64), "{again}");
    let touched = image.stats().touched_chunks;
    others.iter().for_each(|page| touch(*page));
    let seen = image.stats().touched_chunks - touched;
    assert_eq!(seen, others.len() as u64);

    // While they are not watched: everything that is here is pushed.
    image.unwatch();
    [0, 17, 34, 51]
        .into_iter()
        .for_each(|page| touch(PAGES + page));
    let requests = pushed(zeros.len() - 4 + PAGES - 4);
    assert!(memory[PAGES * 4096..][..PAGES * 4096] == place.ram[PAGES * 4096..][..PAGES * 4096]);
    let again = node.mount.stats().region_reads - requests;
    assert!(again <= few(PAGES as u64), "{again}");
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_source_that_comes_back_lets_the_guest_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    node.source.down.store(true, Ordering::Relaxed);
    let memory = map(&machine.ram_path().unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| memory[..1 << 20] == place.ram[..1 << 20]);
        while node.mount.stats().waiting == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(400));
        assert!(!reader.is_finished());
        let waits = machine.waits();
        assert!(
            waits.memory >= Some(Duration::from_millis(400)) && waits.disks.is_none(),
            "{waits:?}"
        );
        // Other requests aren't held up: what needs no source is served.
        let file = open(&machine.disk_path("disk0").unwrap());
        file.write_all_at(&[3; 4096], 0).unwrap();
        node.source.down.store(false, Ordering::Relaxed);
        assert!(reader.join().unwrap());
    });
    assert_eq!(machine.waits(), floe_mount::Waits::default());
    assert!(node.mount.stats().wait_us >= 400_000);
    assert_eq!(node.mount.stats().errors, 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn without_a_source_a_read_fails_after_the_timeout_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let mut options = place.options();
    options.io_timeout = Some(Duration::from_millis(600));
    let node = place.start(options);
    node.source.down.store(true, Ordering::Relaxed);
    let machine = place.machine(&node, "a");
    let file = open(&machine.disk_path("disk0").unwrap());
    let start = Instant::now();
    let error = file.read_exact_at(&mut [0; 8192], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(start.elapsed() >= Duration::from_millis(600));
    node.source.down.store(false, Ordering::Relaxed);
    let mut back = [0; 8192];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, place.disk[..8192]);
}

/// A tmpfs that goes away with the test.
struct Small(std::path::PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_full_layer_is_enospc_and_the_disk_goes_on_when_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    rustix::mount::mount(
        "floe-test",
        &small,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=1m",
    )
    .unwrap();
    let small = Small(small);
    let node = place.start(place.options());
    let machine = place.machine_in(&node, "a", &small.0.join("a"));
    let file = open(&machine.disk_path("disk0").unwrap());
    let mut model = place.disk.clone();
    let mut written = 0;
    let error = loop {
        match file.write_all_at(&[9; 64 << 10], written) {
            Ok(()) => model[written as usize..][..64 << 10].fill(9),
            Err(e) => break e,
        }
        written += 64 << 10;
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    rustix::mount::mount_remount(&small.0, rustix::mount::MountFlags::empty(), c"size=32m")
        .unwrap();
    file.write_all_at(&[8; 64 << 10], written).unwrap();
    model[written as usize..][..64 << 10].fill(8);
    file.sync_all().unwrap();
    let mut all = vec![0; DISK_BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == model);
    drop(file);
    node.mount.unmount().unwrap();
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn the_trace_has_every_chunk_once_with_its_machine() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let (a, b) = (place.machine(&node, "a"), place.machine(&node, "b"));
    a.set_pid(std::process::id());
    let memory = map(&a.ram_path().unwrap());
    let touched: Vec<u32> = (0..40).map(|i| i * 3).collect();
    for page in touched.iter().chain(&touched) {
        assert_eq!(
            memory[*page as usize * 4096],
            place.ram[*page as usize * 4096]
        );
    }
    let file = open(&b.disk_path("disk0").unwrap());
    file.read_exact_at(&mut [0; 8192], 4096).unwrap();
    // The answer comes before the record.
    std::thread::sleep(Duration::from_millis(100));
    let trace = |m: &floe_mount::MachineHandle| {
        let bytes = std::fs::read(m.trace_path().unwrap()).unwrap();
        let mut accesses: Vec<(u8, u32)> = TraceReader::new(&bytes)
            .unwrap()
            .map(|a| (a.region, a.chunk))
            .collect();
        // Two threads that answered at the same time may record in either order.
        accesses.sort();
        accesses
    };
    let not_zero = |c: &u32| place.ram[*c as usize * 4096..][..4096] != [0; 4096];
    assert_eq!(
        trace(&a),
        touched
            .iter()
            .filter(|c| not_zero(c))
            .map(|c| (0, *c))
            .collect::<Vec<_>>()
    );
    assert_eq!(trace(&b), [(1, 1), (1, 2)]);
    let stats = node.image.as_ref().unwrap().stats();
    let not_zero = touched.iter().filter(|c| not_zero(c)).count() as u64;
    assert_eq!(stats.touched_chunks, not_zero + 2);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn names_come_and_go_with_their_machines() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let list = |path: &str| {
        let mut names: Vec<String> = std::fs::read_dir(place.root.join("mnt").join(path))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(""), ["images", "machines"]);
    assert_eq!(list("machines/a"), ["disk0", "ram"]);
    let path = machine.disk_path("disk0").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), DISK_BYTES as u64);
    node.mount.remove_machine("a").unwrap();
    assert!(!path.exists());
    assert!(list("machines").is_empty());
    let error = node.mount.remove_machine("a").unwrap_err().to_string();
    assert!(error.contains("no machine"), "{error}");
    let bad = floe_mount::MachineSpec {
        name: "../x".into(),
        uid: 0,
        gid: 0,
        image: node.image.clone().unwrap(),
        dir: dir.path().into(),
        disks: vec![],
        base: None,
    };
    assert!(node.mount.add_machine(bad).is_err());
}

/// A model of runs that touch every third page of memory, in order, within a second.
fn model(image: &Hash) -> Arc<Model> {
    let run = |shift: u64| {
        let pages = (0..RAM_BYTES as u32 / 4096).step_by(3);
        let accesses: Vec<_> = pages
            .map(|chunk| Timed {
                t_us: u64::from(chunk) * 150 + shift,
                region: 0,
                chunk,
            })
            .collect();
        ZeroTrace {
            end_us: accesses.last().map_or(0, |a| a.t_us),
            accesses,
        }
    };
    let traces = [run(0), run(1000), run(5000)];
    Arc::new(train(
        Method::Floe,
        image,
        &traces,
        &TrainOptions::default(),
    ))
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_model_brings_chunks_before_they_are_touched_and_a_pause_ends() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    node.source.delay_us.store(2000, Ordering::Relaxed);
    let machine = place.machine(&node, "a");
    let image = node.image.clone().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    image.on_buffering(move |machine, b| {
        assert_eq!(machine, "a");
        let _ = tell.send(b.pause);
    });
    machine.stream(false);
    image.model(model(&Hash::of(b"another image")));
    image.model(model(&place.id));
    let pages: Vec<usize> = (0..RAM_BYTES / 4096).step_by(3).collect();
    let nonzero = |p: &&usize| place.ram[**p * 4096..][..4096].iter().any(|b| *b != 0);
    let known = pages.iter().filter(nonzero).count() as u64;
    let deadline = Instant::now() + Duration::from_secs(60);
    // What the model knows is fetched, and nothing else: no zero chunk, no neighbour.
    while machine.progress().buffered_chunks < known && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let progress = machine.progress();
    assert_eq!(progress.buffered_chunks, known, "{progress:?}");
    assert_eq!(progress.fetched_ahead, known);
    let memory = map(&machine.ram_path().unwrap());
    for page in &pages {
        assert!(memory[page * 4096..][..4096] == place.ram[page * 4096..][..4096]);
    }
    while machine.progress().touched < known && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let progress = machine.progress();
    assert_eq!(
        (progress.touched, progress.misses),
        (known, 0),
        "{progress:?}"
    );
    assert_eq!((progress.unused, progress.buffering), (0, None));
    // Whether it paused depends on how fast this disk is; each pause was followed by its end.
    let said: Vec<bool> = told.try_iter().collect();
    assert!(said.chunks(2).all(|pair| pair == [true, false]), "{said:?}");
}

//! Measures without the lab what the first touch of a page costs (cold, pushed, and touched by another before) and how fast the
//! disk is, and prints it. Needs root: `cargo run --release -p floe-mount --example touch`

#[path = "../tests/common/mod.rs"]
mod common;

use common::{DISK_BYTES, Place, RAM_BYTES, Random, map};
use std::os::unix::fs::FileExt;
use std::time::Instant;

fn median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Touches pages in a random order; returns the median and the 99th percentile in microseconds.
fn touch(memory: &[u8], pages: std::ops::Range<usize>) -> (f64, f64) {
    let mut order: Vec<usize> = pages.collect();
    let mut random = Random(11);
    (1..order.len())
        .rev()
        .for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    let time = |page: &usize| {
        let start = Instant::now();
        std::hint::black_box(memory[page * 4096]);
        start.elapsed().as_secs_f64() * 1e6
    };
    median(order.iter().map(time).collect())
}

fn main() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let place = Place::make(dir.path());
    // Keeps all threads on one core: a fault is fastest there.
    let mut core = rustix::thread::CpuSet::new();
    core.set(0);
    rustix::thread::sched_setaffinity(None, &core).expect("core 0 is there");
    let node = place.start(place.options());
    let machine = place.machine(&node, "a");
    let ram = machine.ram_path().expect("the image has memory");
    let all = (RAM_BYTES / 4096) as u64;
    // Reads everything once, so that it is in the store and in the page cache, then drops it from the page cache.
    let file = std::fs::File::open(&ram).expect("it can be opened");
    std::fs::read(&ram).expect("it can be read");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .expect("pages can be dropped");
    println!(
        "cold, local store   {:?} us (median, p99)",
        touch(&map(&ram), 0..all as usize)
    );
    println!(
        "touched by another  {:?} us",
        touch(&map(&ram), 0..all as usize)
    );
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .expect("pages can be dropped");
    let start = Instant::now();
    let image = node.image.clone().expect("it was added");
    node.mount
        .push(&image, "ram", 0..all)
        .expect("pages can be pushed");
    println!(
        "push                {:.0} MB/s",
        RAM_BYTES as f64 / 1e6 / start.elapsed().as_secs_f64()
    );
    println!(
        "pushed              {:?} us",
        touch(&map(&ram), 0..all as usize)
    );
    let path = machine.disk_path("disk0").expect("there is a disk");
    let disk = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("it can be opened");
    for (what, size) in [("4 KiB", 4096), ("1 MiB", 1 << 20)] {
        let mut buf = vec![7; size];
        let rounds = (4 * DISK_BYTES / size) as u64;
        let at = |i: u64| i * size as u64 % DISK_BYTES as u64;
        let start = Instant::now();
        (0..rounds).for_each(|i| disk.write_all_at(&buf, at(i)).expect("it can be written"));
        let write = rounds as f64 * size as f64 / 1e6 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        (0..rounds).for_each(|i| disk.read_exact_at(&mut buf, at(i)).expect("it can be read"));
        let read = rounds as f64 * size as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("disk, {what}         write {write:.0} MB/s, read {read:.0} MB/s");
    }
    drop(disk);
    node.mount.unmount().expect("it can be unmounted");
}

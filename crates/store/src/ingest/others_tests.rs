//! Tests what an image borrows from images that aren't related to it.

use std::time::Duration;

use super::tests::{back, chunk, repository};
use super::*;
use crate::GcOptions;

fn shared(repository: &Repository, bytes: &[u8]) -> (Hash, IngestStats) {
    let options = IngestOptions {
        share: true,
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(repository, options).unwrap();
    ingest.region_bytes("disk0", bytes).unwrap();
    ingest.finish_with_stats(MachineConfig::default()).unwrap()
}

fn collect(repository: &Repository, min_age: Duration) -> u64 {
    let options = GcOptions {
        min_age,
        ..GcOptions::default()
    };
    repository.gc(&options).unwrap().packs
}

fn disk(chunks: std::ops::Range<u64>) -> Vec<u8> {
    chunks.flat_map(chunk).collect()
}

#[test]
fn what_any_image_has_is_stored_once_and_outlives_the_image_that_it_came_with() {
    let (_dir, repository) = repository();
    let (first, stats) = shared(&repository, &disk(1..3000));
    assert_eq!(stats.new_chunks, 2999);
    // The same chunks and one more, at other places.
    let moved = disk(0..3000);
    let (second, stats) = shared(&repository, &moved);
    assert_eq!((stats.new_chunks, stats.dedup_chunks), (1, 2999));
    assert!(stats.new_stored_bytes < 200 << 10, "{stats:?}");
    // An image without any of these chunks doesn't list their packs.
    let (third, stats) = shared(&repository, &disk(9000..9100));
    assert_eq!((stats.new_chunks, stats.dedup_chunks), (100, 0));
    assert_eq!(repository.layout(&third).unwrap().packs.len(), 1);

    let own = |id: &Hash| {
        repository.inspect(id).unwrap().pack_bytes - repository.shared_bytes(id).unwrap()
    };
    assert!(own(&second) > 0 && own(&second) < 200 << 10);
    assert_eq!(repository.shared_bytes(&third).unwrap(), 0);
    let entry = |id: Hash| {
        repository
            .list()
            .unwrap()
            .into_iter()
            .find(|entry| entry.id == id)
    };
    for id in [first, second, third] {
        let listed = entry(id).unwrap();
        assert_eq!(listed.shared_bytes, repository.shared_bytes(&id).unwrap());
        assert_eq!(listed.pack_bytes - listed.shared_bytes, own(&id));
    }

    // Publishing the second image doesn't publish what only the first has.
    let (fourth, _) = shared(&repository, &disk(5..6));
    assert!(repository.packs_without_strangers(&fourth).unwrap().len() < 2);
    let foreign = repository.layout(&first).unwrap().packs;
    let alone = repository.packs_without_strangers(&fourth).unwrap();
    assert!(alone.iter().all(|pack| !foreign.contains(pack)));

    repository.remove(&first).unwrap();
    collect(&repository, Duration::ZERO);
    assert!(back(&repository, &second, "disk0") == moved);
    let damage = repository.verify(&second, &|_, _| true).unwrap().damage;
    assert!(damage.is_empty(), "{damage:?}");
    for id in [second, third, fourth] {
        repository.remove(&id).unwrap();
    }
    assert!(collect(&repository, Duration::ZERO) > 0);
    let packs = walk(&repository.dir().join("packs"));
    assert_eq!(packs, 0, "nothing is left of them");
}

fn walk(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| if path.is_dir() { walk(&path) } else { 1 })
        .sum()
}

#[test]
fn a_pack_that_was_borrowed_stays_while_the_image_is_not_yet_published() {
    let (_dir, repository) = repository();
    let bytes = disk(1..2000);
    let (first, _) = shared(&repository, &bytes);
    let old = std::time::SystemTime::now() - Duration::from_secs(48 * 3600);
    for pack in repository.layout(&first).unwrap().packs {
        let file = File::open(repository.pack_path(&pack.id)).unwrap();
        file.set_modified(old).unwrap();
    }
    let options = IngestOptions {
        share: true,
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&repository, options).unwrap();
    ingest.region_bytes("disk0", &bytes).unwrap();
    repository.remove(&first).unwrap();
    assert_eq!(collect(&repository, Duration::from_secs(24 * 3600)), 0);
    let id = ingest.finish(MachineConfig::default()).unwrap();
    assert!(back(&repository, &id, "disk0") == bytes);

    // A pack that was removed before is stored again.
    let mut late = Ingest::new(
        &repository,
        IngestOptions {
            share: true,
            ..IngestOptions::default()
        },
    )
    .unwrap();
    repository.remove(&id).unwrap();
    collect(&repository, Duration::ZERO);
    late.region_bytes("disk0", &bytes).unwrap();
    let id = late.finish(MachineConfig::default()).unwrap();
    assert!(back(&repository, &id, "disk0") == bytes);
}

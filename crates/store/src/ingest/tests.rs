use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::FileExt;

use floe_image::{CHUNK_SIZE, Kind, SEGMENT_SPAN};
use proptest::prelude::*;

use super::*;
use crate::GcOptions;

pub(super) fn repository() -> (tempfile::TempDir, Repository) {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    (dir, repository)
}

/// Returns chunk number n; all are distinct, not zero, and compressible.
pub(super) fn chunk(n: u64) -> [u8; CHUNK_SIZE] {
    let mut data = [0u8; CHUNK_SIZE];
    for (i, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(
            &(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64 / 16)).to_le_bytes(),
        );
    }
    data[0] = 1;
    data
}

pub(super) fn back(repository: &Repository, id: &Hash, region: &str) -> Vec<u8> {
    let bytes = repository.read_region(id, region, 1 << 30).unwrap();
    let file = tempfile::tempfile().unwrap();
    let stats = repository
        .export(id, region, &file, &mut |_, _| true)
        .unwrap();
    assert_eq!(stats.bytes, bytes.len() as u64);
    let mut exported = vec![0; bytes.len()];
    file.read_exact_at(&mut exported, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), stats.bytes);
    assert!(exported == bytes, "export and read_region differ");
    bytes
}

fn from_bytes(
    repository: &Repository,
    parent: Option<Hash>,
    name: &str,
    bytes: &[u8],
) -> (Hash, IngestStats) {
    let mut ingest = Ingest::new(
        repository,
        IngestOptions {
            parent,
            ..IngestOptions::default()
        },
    )
    .unwrap();
    ingest.region_bytes(name, bytes).unwrap();
    ingest.finish_with_stats(MachineConfig::default()).unwrap()
}

/// The sizes at limits, and what is special about each.
const SIZES: [(u64, &str); 9] = [
    (0, "no segment"),
    (1, "less than a chunk"),
    (4096, "one chunk"),
    (4097, "a chunk and a padded one"),
    (16 * 4096, "one full frame"),
    (17 * 4096 - 1, "a frame and a carried chunk"),
    (SEGMENT_SPAN, "one segment, no second"),
    (SEGMENT_SPAN + 1, "two segments, the second nearly empty"),
    (3 * SEGMENT_SPAN - 4095, "three segments, two workers"),
];

#[test]
fn every_size_comes_back_byte_for_byte_from_file_and_reader() {
    for (size, path) in SIZES {
        let (dir, repository) = repository();
        let bytes: Vec<u8> = (0..size.div_ceil(4096))
            .flat_map(chunk)
            .take(size as usize)
            .collect();
        let file = dir.path().join("raw");
        std::fs::write(&file, &bytes).unwrap();
        let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
        ingest.region_from_file("disk0", &file).unwrap();
        ingest
            .region_from_reader("disk1", size, &bytes[..])
            .unwrap();
        let (id, stats) = ingest.finish_with_stats(MachineConfig::default()).unwrap();
        assert!(back(&repository, &id, "disk0") == bytes, "{path}");
        assert!(back(&repository, &id, "disk1") == bytes, "{path}");
        assert_eq!(stats.new_chunks, size.div_ceil(4096), "{path}");
        assert_eq!(
            stats.dedup_chunks,
            size.div_ceil(4096),
            "{path}: the second region is the first again"
        );
        assert!(repository.verify(&id, &|_, _| true).unwrap().is_sound());
    }
}

#[test]
fn holes_and_zeros_cost_nothing_and_come_back_as_holes() {
    use std::os::unix::fs::MetadataExt;
    let (dir, repository) = repository();
    let path = dir.path().join("sparse");
    let file = File::create(&path).unwrap();
    let size = 40 * SEGMENT_SPAN + 1234;
    file.set_len(size).unwrap();
    file.write_all_at(&chunk(1), 8192).unwrap();
    file.write_all_at(&chunk(2), 7 * SEGMENT_SPAN - 2048)
        .unwrap(); // across two segments
    file.write_all_at(&[0; 65536], 20 * SEGMENT_SPAN).unwrap(); // written zeros
    file.write_all_at(&[9; 10], size - 10).unwrap();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    ingest.region_from_file("disk0", &path).unwrap();
    let (id, stats) = ingest.finish_with_stats(MachineConfig::default()).unwrap();
    assert_eq!(
        (stats.new_chunks, stats.new_segments, stats.bytes_in),
        (4, 4, size)
    );
    assert_eq!(stats.zero_chunks, size.div_ceil(4096) - 4);
    assert!(stats.new_stored_bytes < 64 * 1024, "{stats:?}");
    assert!(back(&repository, &id, "disk0") == std::fs::read(&path).unwrap());
    let out = File::create(dir.path().join("out")).unwrap();
    let exported = repository
        .export(&id, "disk0", &out, &mut |_, _| true)
        .unwrap();
    assert!(exported.written_bytes <= 4 * 4096);
    out.sync_all().unwrap();
    assert!(out.metadata().unwrap().blocks() * 512 <= 64 * 1024);
    let region = &repository.inspect(&id).unwrap().regions[0];
    assert_eq!(
        (region.chunks, region.zero_chunks),
        (size.div_ceil(4096), size.div_ceil(4096) - 4)
    );
}

#[test]
fn an_equal_chunk_is_stored_once_in_an_image_and_its_children() {
    let (_dir, repository) = repository();
    let mut bytes: Vec<u8> = (0..100).flat_map(|n| chunk(n % 10)).collect();
    let (parent, stats) = from_bytes(&repository, None, "disk0", &bytes);
    assert_eq!((stats.new_chunks, stats.dedup_chunks), (10, 90));
    // The child has all chunks one place further on, and one new chunk.
    bytes.splice(0..0, chunk(99));
    let (child, stats) = from_bytes(&repository, Some(parent), "disk0", &bytes);
    assert_eq!(stats.new_chunks, 1);
    assert_eq!(stats.unchanged_chunks + stats.dedup_chunks, 100);
    assert!(back(&repository, &child, "disk0") == bytes);
    let inspection = repository.inspect(&child).unwrap();
    assert_eq!(inspection.lineage, [parent]);
    assert_eq!(inspection.shared_with_parent_bytes, 100 * 4096);
    // Another image that isn't the parent lends its chunks too.
    let options = IngestOptions {
        also: vec![child],
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&repository, options).unwrap();
    ingest.region_bytes("ram", &bytes).unwrap();
    let (other, stats) = ingest.finish_with_stats(MachineConfig::default()).unwrap();
    assert_eq!(stats.new_chunks, 0);
    assert!(back(&repository, &other, "ram") == bytes);
    // The same content again gives the same segment, so nothing is stored at all.
    let (_, stats) = from_bytes(&repository, Some(child), "disk0", &bytes);
    assert_eq!(
        (stats.new_chunks, stats.new_segments, stats.new_stored_bytes),
        (0, 0, 0)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Pages over a parent that may be larger or smaller give exactly the parent with those pages.
    #[test]
    fn a_layer_is_its_parent_with_the_pages_written_over_it(
        parent_size in 1..3 * SEGMENT_SPAN, size in 1..3 * SEGMENT_SPAN,
        parent_pages in proptest::collection::btree_map(0..3072u64, 0..50u64, 0..60),
        pages in proptest::collection::btree_map(0..3072u64, 0..50u64, 0..60),
        threads in 1..4usize,
    ) {
        let (_dir, repository) = repository();
        let content = |n: u64| if n == 0 { [0; CHUNK_SIZE] } else { chunk(n) };
        let apply = |mut bytes: Vec<u8>, size: u64, pages: &BTreeMap<u64, u64>| {
            bytes.resize(size as usize, 0);
            for (&at, &n) in pages {
                let from = at as usize * CHUNK_SIZE;
                if from < bytes.len() {
                    let to = (from + CHUNK_SIZE).min(bytes.len());
                    bytes[from..to].copy_from_slice(&content(n)[..to - from]);
                }
            }
            bytes
        };
        let layer = |parent: Option<Hash>, size: u64, pages: &BTreeMap<u64, u64>| {
            let options = IngestOptions { parent, threads, ..IngestOptions::default() };
            let mut ingest = Ingest::new(&repository, options).unwrap();
            let inside = pages.iter().filter(|(at, _)| **at < size.div_ceil(4096));
            let base = parent.map(|_| "ram");
            ingest.region_from_pages("ram", size, base, inside.map(|(&at, &n)| Ok((at, content(n))))).unwrap();
            ingest.finish_with_stats(MachineConfig::default()).unwrap()
        };
        let (parent, _) = layer(None, parent_size, &parent_pages);
        let expected = apply(Vec::new(), parent_size, &parent_pages);
        prop_assert!(back(&repository, &parent, "ram") == expected);
        let (child, stats) = layer(Some(parent), size, &pages);
        // The parent's last chunk is padded with zeros, so a larger child has zeros there.
        let expected = apply(expected, size, &pages);
        prop_assert!(back(&repository, &child, "ram") == expected);
        let distinct: HashSet<u64> = pages.values().copied().filter(|&n| n != 0).collect();
        prop_assert!(stats.new_chunks <= distinct.len() as u64 + 1);
        // The same content read as a whole gives the same tree.
        let (again, _) = from_bytes(&repository, Some(parent), "ram", &expected);
        prop_assert_eq!(&repository.manifest(&again).unwrap().regions, &repository.manifest(&child).unwrap().regions);
    }
}

#[test]
fn a_shorter_region_read_whole_is_no_patch_of_the_longer_one() {
    let (_dir, repository) = repository();
    let parent: Vec<u8> = (1..=900).flat_map(chunk).collect();
    let (id, _) = from_bytes(&repository, None, "ram", &parent);
    for chunks in [899, 815] {
        let bytes = &parent[..chunks * CHUNK_SIZE - 1];
        let (child, stats) = from_bytes(&repository, Some(id), "ram", bytes);
        assert!(back(&repository, &child, "ram") == bytes);
        assert_eq!((stats.new_chunks, stats.new_segments), (1, 1));
    }
}

#[test]
fn pages_out_of_order_or_out_of_range_are_refused_and_nothing_is_published() {
    let (_dir, repository) = repository();
    for pages in [vec![5u64, 4], vec![3, 3], vec![10_000]] {
        let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
        let result = ingest.region_from_pages(
            "ram",
            1 << 20,
            None,
            pages.into_iter().map(|at| Ok((at, chunk(at)))),
        );
        assert!(matches!(result, Err(StoreError::Invalid { .. })));
        assert!(ingest.finish(MachineConfig::default()).is_err());
    }
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    assert!(ingest.region_bytes("../etc", b"x").is_err());
    assert!(ingest.region_from_parent("ram").is_err());
    ingest.region_bytes("ram", b"x").unwrap();
    assert!(ingest.region_bytes("ram", b"x").is_err());
    assert!(repository.list().unwrap().is_empty());
}

#[test]
fn an_ingest_that_fails_or_is_stopped_leaves_nothing_behind() {
    let (_dir, repository) = repository();
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    ingest.on_progress(|progress| progress.done_bytes < 2 * SEGMENT_SPAN);
    let bytes: Vec<u8> = (0..4096).flat_map(chunk).collect();
    assert!(matches!(
        ingest.region_bytes("ram", &bytes),
        Err(StoreError::Cancelled)
    ));
    drop(ingest);
    let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
    let error = ingest
        .region_from_reader("ram", bytes.len() as u64 + 1, &bytes[..])
        .unwrap_err();
    assert!(error.to_string().contains("ended before"), "{error}");
    drop(ingest);
    // The syncing thread holds its last file until it notices that the ingest is gone.
    let report = loop {
        let report = repository
            .gc(&GcOptions {
                min_age: std::time::Duration::ZERO,
                ..GcOptions::default()
            })
            .unwrap();
        if std::fs::read_dir(repository.tmp_dir())
            .unwrap()
            .next()
            .is_none()
        {
            break report;
        }
    };
    assert_eq!((report.images, report.packs), (0, 0));
    assert!(repository.list().unwrap().is_empty());
}

#[test]
fn packs_stay_below_their_limit_and_hold_every_item_once() {
    let (_dir, repository) = repository();
    let mut seed = 1u64;
    let mut noise = vec![0u8; 9 << 20];
    for byte in &mut noise {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        *byte = (seed >> 56) as u8;
    }
    let options = IngestOptions {
        pack_bytes_max: 1 << 20,
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&repository, options).unwrap();
    ingest.region_bytes("ram", &noise).unwrap();
    let (id, stats) = ingest.finish_with_stats(MachineConfig::default()).unwrap();
    let layout = repository.layout(&id).unwrap();
    assert!(layout.packs.len() >= 9);
    assert!(layout.packs.iter().all(|pack| pack.file_bytes <= 1 << 20));
    assert_eq!(
        stats.new_stored_bytes,
        layout.packs.iter().map(|p| p.file_bytes).sum::<u64>()
    );
    assert!(back(&repository, &id, "ram") == noise);
    let wants: Vec<_> = noise
        .chunks(4096)
        .map(|c| (Kind::Chunk, Hash::of(c)))
        .collect();
    let mut seen = HashSet::new();
    let missing = repository
        .read_items(&id, &wants, &mut |kind, hash, bytes| {
            assert_eq!((kind, Hash::of(bytes)), (Kind::Chunk, hash));
            assert!(seen.insert(hash));
        })
        .unwrap();
    assert!(missing.is_empty() && seen.len() == wants.len());
}

#[test]
fn a_few_changed_chunks_are_patches_of_their_segment_and_many_a_new_segment() {
    let (_dir, repository) = repository();
    let mut bytes: Vec<u8> = (1..=1500).flat_map(chunk).collect();
    let (mut id, _) = from_bytes(&repository, None, "ram", &bytes);
    let segments = repository.manifest(&id).unwrap().regions[0]
        .segments
        .clone();
    let layer = |parent: Hash, size: usize, pages: &[(u64, [u8; CHUNK_SIZE])]| {
        let options = IngestOptions {
            parent: Some(parent),
            ..IngestOptions::default()
        };
        let mut ingest = Ingest::new(&repository, options).unwrap();
        ingest
            .region_from_pages(
                "ram",
                size as u64,
                Some("ram"),
                pages.iter().copied().map(Ok),
            )
            .unwrap();
        ingest.finish_with_stats(MachineConfig::default()).unwrap()
    };
    // One ingest after another: what was changed before stays changed, and a chunk may come back or become zeros.
    let steps: [&[(u64, u64)]; 3] = [
        &[(3, 9001), (1200, 9002)],
        &[(4, 9003), (1200, 0)],
        &[(3, 4)],
    ];
    for (step, expected) in steps.iter().zip([2, 3, 2]) {
        let content = |n: u64| if n == 0 { [0; CHUNK_SIZE] } else { chunk(n) };
        let pages: Vec<_> = step.iter().map(|(at, n)| (*at, content(*n))).collect();
        for (at, page) in &pages {
            bytes[*at as usize * CHUNK_SIZE..][..CHUNK_SIZE].copy_from_slice(page);
        }
        let (next, stats) = layer(id, bytes.len(), &pages);
        let region = repository.manifest(&next).unwrap().regions[0].clone();
        assert_eq!((stats.new_segments, &region.segments), (0, &segments));
        assert_eq!(region.patches.len(), expected);
        assert!(back(&repository, &next, "ram") == bytes);
        let report = repository.verify(&next, &|_, _| true).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        id = next;
    }
    assert_eq!(
        repository.inspect(&id).unwrap().shared_with_parent_bytes,
        1499 * 4096
    );
    // A shorter region keeps the patches that are within it; the segment that was cut is stored anew.
    bytes.truncate(1100 * CHUNK_SIZE);
    let (cut, _) = layer(id, bytes.len(), &[]);
    let region = repository.manifest(&cut).unwrap().regions[0].clone();
    assert!(back(&repository, &cut, "ram") == bytes);
    assert_eq!(region.patches.len(), 1);
    // Half of a segment's chunks cost more as patches than as a new table.
    let pages: Vec<_> = (0..512).map(|at| (at, chunk(20_000 + at))).collect();
    let (many, stats) = layer(cut, bytes.len(), &pages);
    assert_eq!(stats.new_segments, 1);
    assert!(
        repository.manifest(&many).unwrap().regions[0]
            .patches
            .is_empty()
    );
}

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use floe_image::{CHUNK_SIZE, MachineConfig, SEGMENT_SPAN};

use super::*;
use crate::{GcOptions, Ingest, IngestOptions};

/// Returns chunks that compress to about a third, each with a different content.
fn chunk(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = vec![n as u8 | 1; CHUNK_SIZE];
    for byte in &mut out[..CHUNK_SIZE / 3] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 32) as u8;
    }
    out
}

fn hash(n: u64) -> Hash {
    Hash::of(&chunk(n))
}

/// A repository whose packs are small.
struct Fixture {
    _dir: tempfile::TempDir,
    repository: Repository,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::create(&dir.path().join("repo")).unwrap();
        Fixture {
            _dir: dir,
            repository,
        }
    }

    fn image(&self, parent: Option<Hash>, regions: &[(&str, Vec<u64>)]) -> Hash {
        let options = IngestOptions {
            parent,
            threads: 1,
            pack_bytes_max: 512 << 10,
            created_unix_s: Some(1),
            ..IngestOptions::default()
        };
        let mut ingest = Ingest::new(&self.repository, options).unwrap();
        for (name, chunks) in regions {
            let bytes: Vec<u8> = chunks.iter().flat_map(|n| chunk(*n)).collect();
            ingest.region_bytes(name, &bytes).unwrap();
        }
        ingest.finish(MachineConfig::default()).unwrap()
    }

    fn optimize(&self, id: &Hash, clusters: &[Vec<Hash>]) -> Optimized {
        let ready = self.repository.rearrange(id, clusters, &mut |_, _| true);
        ready.unwrap().publish().unwrap()
    }

    /// Checks that every byte of every region is there, and that `verify` finds nothing wrong.
    fn check(&self, id: &Hash, regions: &[(&str, Vec<u64>)]) {
        let repository = Repository::open(self.repository.dir()).unwrap();
        for repository in [&self.repository, &repository] {
            for (name, chunks) in regions {
                let bytes: Vec<u8> = chunks.iter().flat_map(|n| chunk(*n)).collect();
                let read = repository.read_region(id, name, u64::MAX).unwrap();
                assert!(read == bytes, "region {name} differs");
            }
            let report = repository.verify(id, &|_, _| true).unwrap();
            assert!(report.is_sound(), "{report:?}");
        }
    }

    fn litter(&self) -> crate::GcReport {
        let options = GcOptions {
            min_age: Duration::ZERO,
            ..GcOptions::default()
        };
        self.repository.gc(&options).unwrap()
    }

    fn pack_files(&self) -> usize {
        let folders = std::fs::read_dir(self.repository.dir().join("packs")).unwrap();
        folders
            .map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count())
            .sum()
    }
}

/// Two regions of 1400 and 600 chunks, with one content in both.
fn regions() -> Vec<(&'static str, Vec<u64>)> {
    let disk = (2000..2599).chain([7]).collect();
    vec![("ram", (0..1400).collect()), ("disk0", disk)]
}

/// Clusters of every 40th chunk from both regions: as scattered as possible.
fn scattered() -> Vec<Vec<Hash>> {
    let of = |first: u64| -> Vec<Hash> {
        let ram = (first..1400).step_by(40);
        let disk = (2000 + first..2599).step_by(40);
        ram.chain(disk).map(hash).collect()
    };
    vec![of(3), of(17), of(29)]
}

/// Counts runs of frames without a gap.
fn runs(places: &[crate::FramePlace]) -> usize {
    let follows = |a: &crate::FramePlace, b: &crate::FramePlace| {
        a.pack == b.pack && a.offset + u64::from(a.len) == b.offset
    };
    places.chunk_by(follows).count()
}

fn chunks_of(cluster: &[Hash]) -> Vec<(Kind, Hash)> {
    cluster.iter().map(|hash| (Kind::Chunk, *hash)).collect()
}

#[test]
fn clusters_lie_side_by_side_and_nothing_else_has_changed() {
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    let manifest = fixture.repository.manifest_bytes(&id).unwrap();
    let before = fixture.repository.layout(&id).unwrap();
    let places = |cluster: &[Hash]| {
        let scope = fixture.repository.scope(&id).unwrap();
        scope.frames_of(&chunks_of(cluster)).unwrap()
    };
    for cluster in &scattered() {
        assert!(runs(&places(cluster)) > 20);
    }
    let told = Cell::new((0, 0));
    let ready = fixture
        .repository
        .rearrange(&id, &scattered(), &mut |done, total| {
            assert!(done >= told.get().0 && done <= total);
            told.set((done, total));
            true
        })
        .unwrap();
    assert_eq!(fixture.repository.layout(&id).unwrap(), before);
    assert_eq!(told.get().0, told.get().1);
    let report = ready.publish().unwrap();
    for cluster in &scattered() {
        let frames = places(cluster);
        assert_eq!(runs(&frames), 1);
        // At most a few neighbours at both ends.
        assert!(frames.len() <= cluster.len().div_ceil(16) + 1);
    }
    // The first cluster begins a pack: nothing else is read with it but what fills its last frame.
    let scope = fixture.repository.scope(&id).unwrap();
    let layout = fixture.repository.layout(&id).unwrap();
    assert_eq!(places(&scattered()[0])[0].offset, 16);
    fixture.check(&id, &regions());
    assert_eq!(fixture.repository.manifest_bytes(&id).unwrap(), manifest);
    let all: u64 = layout.packs.iter().map(|pack| pack.file_bytes).sum();
    assert_eq!((report.clusters, report.chunks), (3, 150));
    assert_eq!((report.shared_chunks, report.shared_bytes), (0, 0));
    assert_eq!(report.packs_before, before.packs.len() as u64);
    assert_eq!(
        (report.packs_after, report.bytes_after),
        (layout.packs.len() as u64, all)
    );
    assert_eq!(report.freed_bytes, report.bytes_before);
    assert_eq!(report.written_bytes, report.bytes_after);
    assert!(report.bytes_after < report.bytes_before * 11 / 10);
    // Each item is there once, tables first.
    let mut seen = HashSet::new();
    for pack in &layout.packs {
        let index = fixture.repository.index(pack).unwrap();
        assert!(index.hashes().iter().all(|hash| seen.insert(*hash)));
    }
    assert_eq!(seen.len(), 1400 + 599 + 3);
    let tables = scope.frames_of(&[(
        Kind::Segment,
        manifest_of(&fixture, &id).regions[0].segments[0],
    )]);
    assert_eq!(tables.unwrap()[0].pack, 0);
    // The rest is in the order of the regions.
    let rest: Vec<Hash> = regions()
        .iter()
        .flat_map(|(_, chunks)| chunks.iter().map(|n| hash(*n)))
        .filter(|hash| !scattered().iter().any(|cluster| cluster.contains(hash)))
        .collect();
    assert_eq!(runs(&places(&rest[..64])), 1);
    assert_eq!(fixture.pack_files(), layout.packs.len());
    assert_eq!(fixture.litter(), crate::GcReport::default());
}

fn manifest_of(fixture: &Fixture, id: &Hash) -> Manifest {
    fixture.repository.manifest(id).unwrap()
}

#[test]
fn the_same_clusters_again_change_nothing_and_other_ones_do() {
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    fixture.optimize(&id, &scattered());
    let first = fixture.repository.layout(&id).unwrap();
    let again = fixture.optimize(&id, &scattered());
    assert_eq!(fixture.repository.layout(&id).unwrap(), first);
    assert_eq!(again.freed_bytes, 0);
    let mut reversed = scattered();
    reversed.reverse();
    let other = fixture.optimize(&id, &reversed);
    assert_ne!(fixture.repository.layout(&id).unwrap(), first);
    // Only the packs that hold clusters are written.
    assert!(other.written_bytes < other.bytes_after / 3, "{other:?}");
    fixture.check(&id, &regions());
    // Clusters of another image: nothing to do.
    let nothing = fixture.optimize(&id, &[vec![Hash::of(b"foreign"), Hash::ZERO], vec![]]);
    assert_eq!(
        (nothing.clusters, nothing.written_bytes, nothing.freed_bytes),
        (0, 0, 0)
    );
    fixture.check(&id, &regions());
}

#[test]
fn packs_that_other_images_list_stay_and_what_is_stored_twice_is_told() {
    let fixture = Fixture::new();
    let parent = fixture.image(None, &regions());
    let mut changed = regions();
    changed[0].1[100..160].copy_from_slice(&(5000..5060).collect::<Vec<u64>>());
    let child = fixture.image(Some(parent), &changed);
    let parents = fixture.repository.layout(&parent).unwrap();
    let clusters = vec![(90..170).map(|n| hash(changed[0].1[n])).collect::<Vec<_>>()];
    let report = fixture.optimize(&child, &clusters);
    assert_eq!((report.chunks, report.shared_chunks), (80, 20));
    assert!(report.shared_bytes > 20 * 1000 && report.shared_bytes < 20 * 4096);
    assert!(report.written_bytes < report.bytes_after / 3);
    assert_eq!(fixture.repository.layout(&parent).unwrap(), parents);
    fixture.check(&child, &changed);
    fixture.check(&parent, &regions());
    let scope = fixture.repository.scope(&child).unwrap();
    assert_eq!(runs(&scope.frames_of(&chunks_of(&clusters[0])).unwrap()), 1);
    // Without the parent the packs are the child's own.
    fixture.repository.remove(&parent).unwrap();
    fixture.litter();
    let report = fixture.optimize(&child, &scattered());
    assert_eq!(report.shared_chunks, 0);
    fixture.check(&child, &changed);
}

#[test]
fn a_patched_chunks_former_content_stays_with_its_segment() {
    let fixture = Fixture::new();
    let parent = fixture.image(None, &regions());
    let options = IngestOptions {
        parent: Some(parent),
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(&fixture.repository, options).unwrap();
    let pages = [(5u64, chunk(9000)), (800, vec![0; CHUNK_SIZE])];
    ingest
        .region_from_pages("ram", 1400 * 4096, Some("ram"), pages.into_iter().map(Ok))
        .unwrap();
    ingest.region_from_parent("disk0").unwrap();
    let child = ingest.finish(MachineConfig::default()).unwrap();
    assert!(!manifest_of(&fixture, &child).regions[0].patches.is_empty());
    fixture.repository.remove(&parent).unwrap();
    fixture.litter();
    fixture.optimize(&child, &[vec![hash(9000), hash(1)]]);
    let report = fixture.repository.verify(&child, &|_, _| true).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(
        fixture
            .repository
            .chunk_hashes(
                &child,
                &[(0, 5), (0, 800), (1, 0), (0, 6), (0, 5000), (9, 0)]
            )
            .unwrap(),
        [
            hash(9000),
            Hash::ZERO,
            hash(2000),
            hash(6),
            Hash::ZERO,
            Hash::ZERO
        ]
    );
}

#[test]
fn an_interruption_at_any_step_leaves_a_whole_image() {
    let stop = || StoreError::Invalid {
        what: "the power went".to_owned(),
    };
    for step in [Step::Written, Step::Placed, Step::Switched] {
        let fixture = Fixture::new();
        let id = fixture.image(None, &regions());
        let before = fixture.repository.layout(&id).unwrap();
        let fail = |at: Step| if at == step { Err(stop()) } else { Ok(()) };
        let ready = fixture
            .repository
            .rearrange_with(&id, &scattered(), &mut |_, _| true, &fail);
        let done = ready.and_then(|ready| ready.publish_with(&fail));
        assert!(done.is_err(), "{step:?}");
        fixture.check(&id, &regions());
        let after = fixture.repository.layout(&id).unwrap();
        assert_eq!(after == before, step != Step::Switched);
        fixture.litter();
        assert_eq!(fixture.pack_files(), after.packs.len());
        fixture.check(&id, &regions());
        // The next attempt succeeds.
        fixture.optimize(&id, &scattered());
        fixture.check(&id, &regions());
    }
    // Killed when the new packs have their names: nothing refers to them.
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    let before = fixture.pack_files();
    let ready = fixture
        .repository
        .rearrange(&id, &scattered(), &mut |_, _| true);
    std::mem::forget(ready.unwrap());
    assert!(fixture.pack_files() > before);
    fixture.check(&id, &regions());
    assert!(fixture.litter().packs > 0);
    assert_eq!(fixture.pack_files(), before);
    fixture.check(&id, &regions());
}

#[test]
fn stopped_at_any_moment_it_leaves_everything_as_it_was() {
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    let before = fixture.repository.layout(&id).unwrap();
    let mut moments = 0;
    loop {
        let calls = Cell::new(0);
        let ready = fixture
            .repository
            .rearrange(&id, &scattered(), &mut |_, _| {
                calls.set(calls.get() + 1);
                calls.get() <= moments
            });
        assert_eq!(fixture.repository.layout(&id).unwrap(), before);
        assert_eq!(fixture.pack_files() > before.packs.len(), ready.is_ok());
        match ready {
            Ok(_) => break, // dropped without being published
            Err(error) => assert!(matches!(error, StoreError::Cancelled), "{error}"),
        }
        moments += 1;
    }
    assert!(moments > 3);
    assert_eq!(fixture.pack_files(), before.packs.len());
    fixture.check(&id, &regions());
}

#[test]
fn a_damaged_chunk_is_not_copied_and_what_changed_meanwhile_wins() {
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    let ready = fixture
        .repository
        .rearrange(&id, &scattered(), &mut |_, _| true);
    let slow = fixture
        .repository
        .rearrange(&id, &scattered()[..1], &mut |_, _| true);
    ready.unwrap().publish().unwrap();
    let error = slow.unwrap().publish().unwrap_err();
    assert!(error.to_string().contains("meanwhile"), "{error}");
    fixture.check(&id, &regions());
    let removed = fixture
        .repository
        .rearrange(&id, &scattered()[..1], &mut |_, _| true);
    fixture.repository.remove(&id).unwrap();
    assert!(matches!(
        removed.unwrap().publish(),
        Err(StoreError::NotFound { .. })
    ));
    fixture.litter();
    assert_eq!(fixture.pack_files(), 0);

    let id = fixture.image(None, &regions());
    let layout = fixture.repository.layout(&id).unwrap();
    let path = fixture.repository.pack_path(&layout.packs[0].id);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[400] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let refused = fixture
        .repository
        .rearrange(&id, &scattered(), &mut |_, _| true);
    assert!(refused.is_err());
    assert_eq!(fixture.repository.layout(&id).unwrap(), layout);
    assert_eq!(fixture.pack_files(), layout.packs.len());
}

#[test]
fn readers_go_on_while_packs_come_and_go() {
    let fixture = Fixture::new();
    let id = fixture.image(None, &regions());
    let old_scope = fixture.repository.scope(&id).unwrap();
    let wants: Vec<_> = (0..1400)
        .step_by(7)
        .map(|n| (Kind::Chunk, hash(n)))
        .collect();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // Stands for another process: it has its own repository.
    let other = Repository::open(fixture.repository.dir()).unwrap();
    let reader = std::thread::spawn({
        let (stop, wants) = (stop.clone(), wants.clone());
        move || {
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds < 2 {
                let mut came = HashSet::new();
                let missing = other.read_items(&id, &wants, &mut |_, hash, bytes| {
                    assert!(Hash::of(bytes) == hash && came.insert(hash));
                });
                assert!(missing.unwrap().is_empty() && came.len() == wants.len());
                rounds += 1;
            }
        }
    });
    for round in 0..6 {
        fixture.optimize(&id, &scattered()[round % 3..]);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    reader.join().unwrap();
    // A scope of the old packs reports that they are gone, and never returns anything wrong.
    let result = old_scope.read(&wants, &mut |_, hash, bytes| {
        assert_eq!(Hash::of(bytes), hash)
    });
    assert!(result.is_err());
    fixture.check(&id, &regions());
}

#[test]
fn a_cluster_that_has_no_room_in_a_pack_begins_the_next() {
    let fixture = Fixture::new();
    // 12 clusters of 1.5 MiB compressed: a pack of 8 MiB holds five of them.
    let noise = |n: u64| {
        let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let words = (0..CHUNK_SIZE / 8).flat_map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.collect::<Vec<u8>>()
    };
    let chunks: Vec<Vec<u8>> = (1..=12 * 384).map(noise).collect();
    let mut ingest = Ingest::new(&fixture.repository, IngestOptions::default()).unwrap();
    ingest.region_bytes("ram", &chunks.concat()).unwrap();
    let id = ingest.finish(MachineConfig::default()).unwrap();
    assert!(chunks.len() as u64 * CHUNK_SIZE as u64 > SEGMENT_SPAN);
    let clusters: Vec<Vec<Hash>> = (0..12)
        .map(|c| (0..384).map(|i| Hash::of(&chunks[i * 12 + c])).collect())
        .collect();
    fixture.optimize(&id, &clusters);
    let scope = fixture.repository.scope(&id).unwrap();
    for cluster in &clusters {
        assert_eq!(runs(&scope.frames_of(&chunks_of(cluster)).unwrap()), 1);
    }
    let packs = fixture.repository.layout(&id).unwrap().packs;
    assert!(packs.len() >= 4 && packs.iter().all(|p| p.file_bytes <= PACK_BYTES_MAX));
    assert!(
        fixture
            .repository
            .verify(&id, &|_, _| true)
            .unwrap()
            .is_sound()
    );
}

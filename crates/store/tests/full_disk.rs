//! Tests a disk that is full, a small tmpfs: errors are clear, nothing is left half written, and work goes on afterwards.

use std::path::{Path, PathBuf};

use floe_image::{CHUNK_SIZE, Hash, Kind, MachineConfig};
use floe_store::{Cache, Ingest, IngestOptions, Repository, StoreError};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A tmpfs of `size`, unmounted when dropped.
struct SmallDisk {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl SmallDisk {
    fn mount(size: &str) -> SmallDisk {
        let dir = tempfile::Builder::new()
            .prefix("floe-full-disk-")
            .tempdir()
            .unwrap();
        let path = dir.path().to_path_buf();
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        mount("floe-test", &path, "tmpfs", MountFlags::empty(), &*options).unwrap();
        SmallDisk { _dir: dir, path }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let words = (0..bytes / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

fn assert_full(result: Result<impl Sized, StoreError>) {
    let error = result.err().expect("there is no room for it");
    assert!(
        error.is_full() && error.to_string().contains("free space"),
        "{error}"
    );
}

#[test]
#[ignore = "needs root to mount a small file system: make test-all"]
fn a_cache_on_a_full_disk_lives_within_what_it_has() {
    let disk = SmallDisk::mount("1M");
    let cache = Cache::open(&disk.path.join("cache"), 64 << 20).unwrap();
    let chunks: Vec<(Hash, Vec<u8>)> = (0..1000)
        .map(|n| noise(n, CHUNK_SIZE))
        .map(|data| (Hash::of(&data), data))
        .collect();
    for (hash, data) in &chunks {
        cache.put(hash, data, None).unwrap();
    }
    let mut out = [0u8; CHUNK_SIZE];
    let mut found = 0;
    for (hash, data) in &chunks {
        if cache.get(hash, &mut out, None).unwrap() {
            assert!(out[..] == data[..]);
            found += 1;
        }
    }
    assert!((100..256).contains(&found), "{found} chunks in a megabyte");
    assert_eq!(cache.stats().corrupt, 0);
    // A machine that needs more than there is gets an error, and keeps what it has.
    let pin = cache.pin();
    let mut pinned = Vec::new();
    let error = chunks
        .iter()
        .find_map(|(hash, data)| match cache.put(hash, data, Some(&pin)) {
            Ok(()) => {
                pinned.push((hash, data));
                None
            }
            Err(error) => Some(error),
        });
    assert_full(Err::<(), _>(error.expect("a megabyte cannot hold four")));
    for (hash, data) in pinned {
        assert!(cache.get(hash, &mut out, None).unwrap() && out[..] == data[..]);
    }
    drop((pin, cache));
    let cache = Cache::open(&disk.path.join("cache"), 64 << 20).unwrap();
    assert!(cache.verify(&mut |_, _| true).unwrap().dropped.is_empty());
    assert!(
        chunks
            .iter()
            .any(|(hash, _)| cache.contains(Kind::Chunk, hash))
    );
}

fn import(repository: &Repository, bytes: &[u8]) -> Result<Hash, StoreError> {
    let mut ingest = Ingest::new(repository, IngestOptions::default())?;
    ingest.region_bytes("disk0", bytes)?;
    ingest.finish(MachineConfig::default())
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
#[ignore = "needs root to mount a small file system: make test-all"]
fn an_import_that_fills_the_disk_says_so_and_leaves_the_repository_as_it_was() {
    let disk = SmallDisk::mount("8M");
    let repository = Repository::create(&disk.path.join("repo")).unwrap();
    let small = noise(1, 1 << 20);
    let first = import(&repository, &small).unwrap();
    // Enough to fail in the middle of a pack, and at its end.
    for bytes in [32 << 20, 7 << 20] {
        assert_full(import(&repository, &noise(2, bytes)));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while files(&repository.tmp_dir()) > 0 {
            assert!(
                std::time::Instant::now() < deadline,
                "temporary files stay behind"
            );
            std::thread::yield_now();
        }
        assert_eq!(repository.list().unwrap().len(), 1);
        assert!(repository.verify(&first, &|_, _| true).unwrap().is_sound());
    }
    let pack = repository.layout(&first).unwrap().packs[0];
    let filler = disk.path.join("filler");
    let free = rustix::fs::statvfs(&disk.path).unwrap();
    std::fs::write(
        &filler,
        vec![1u8; ((free.f_bavail - 10) * free.f_frsize) as usize],
    )
    .unwrap();
    assert_full(repository.adopt_pack(&repository.pack_path(&pack.id)));
    assert_eq!(files(&repository.tmp_dir()), 0);
    std::fs::remove_file(&filler).unwrap();
    // What the error advises works.
    let second = import(&repository, &noise(3, 2 << 20)).unwrap();
    assert!(repository.verify(&second, &|_, _| true).unwrap().is_sound());
    assert!(repository.read_region(&first, "disk0", 1 << 30).unwrap() == small);
}

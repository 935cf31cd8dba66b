use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

const CHUNK: u64 = CHUNK_SIZE as u64;

/// Returns chunk number n and its hash; all are distinct, and none is zero.
fn chunk(n: u64) -> (Hash, [u8; CHUNK_SIZE]) {
    let mut data = [0u8; CHUNK_SIZE];
    for (i, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes());
    }
    data[0] = 1;
    (Hash::of(&data), data)
}

fn holds(cache: &Cache, n: u64) -> bool {
    let (hash, data) = chunk(n);
    let mut out = [0u8; CHUNK_SIZE];
    let found = cache.get(&hash, &mut out, None).unwrap();
    assert!(
        !found || out == data,
        "chunk {n} came back with other bytes"
    );
    found
}

fn put(cache: &Cache, n: u64, pin: Option<&Pin>) -> Result<(), StoreError> {
    let (hash, data) = chunk(n);
    cache.put(&hash, &data, pin)
}

#[derive(Debug, Clone)]
enum Op {
    Put(u64),
    PutPinned(u64),
    Get(u64),
    GetPinned(u64),
    Unpin,
    Gc(u64),
    Reopen,
    Flip(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..96u64;
    prop_oneof![
        6 => n.clone().prop_map(Op::Put),
        2 => n.clone().prop_map(Op::PutPinned),
        6 => n.clone().prop_map(Op::Get),
        2 => n.prop_map(Op::GetPinned),
        1 => Just(Op::Unpin),
        1 => (0..80u64).prop_map(Op::Gc),
        1 => Just(Op::Reopen),
        1 => (0..64u64, 0..4096u64).prop_map(|(slot, at)| Op::Flip(slot, at)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, a chunk that is found has its own bytes, a pinned one is found, and the budget is kept.
    #[test]
    fn a_cache_behaves_like_a_map_that_may_forget_what_is_not_pinned(ops in proptest::collection::vec(op(), 1..120)) {
        let dir = tempfile::tempdir().unwrap();
        let budget = 128 * CHUNK;
        let mut cache = Cache::open(dir.path(), budget).unwrap();
        let mut pin = Some(cache.pin());
        let mut pinned: HashMap<u64, ()> = HashMap::new();
        let mut flipped = false;
        for op in ops {
            match op {
                Op::Put(n) => match put(&cache, n, None) {
                    Ok(()) => prop_assert!(holds(&cache, n)),
                    Err(e) => prop_assert!(e.is_full() && pinned.len() >= 64),
                },
                Op::PutPinned(n) => match put(&cache, n, pin.as_ref()) {
                    Ok(()) => { pinned.insert(n, ()); }
                    Err(e) => prop_assert!(e.is_full() && pinned.len() >= 64),
                },
                Op::Get(n) => { holds(&cache, n); }
                Op::GetPinned(n) => {
                    let (hash, _) = chunk(n);
                    let mut out = [0u8; CHUNK_SIZE];
                    if cache.get(&hash, &mut out, pin.as_ref()).unwrap() {
                        pinned.insert(n, ());
                    }
                }
                Op::Unpin => { pin = Some(cache.pin()); pinned.clear(); }
                Op::Gc(n) => { cache.gc(n * CHUNK).unwrap(); prop_assert!(cache.stats().bytes <= (n.max(pinned.len() as u64)) * CHUNK); }
                Op::Reopen => {
                    drop((pin.take(), cache));
                    cache = Cache::open(dir.path(), budget).unwrap();
                    if !flipped {
                        for &n in pinned.keys() { prop_assert!(holds(&cache, n), "chunk {} lost by a restart", n); }
                    }
                    pin = Some(cache.pin());
                    pinned.clear();
                }
                // The disk flips a bit while the cache is closed.
                Op::Flip(slot, at) => {
                    drop((pin.take(), cache));
                    let file = OpenOptions::new().read(true).write(true).open(dir.path().join("chunks.slab")).unwrap();
                    let mut byte = [0u8];
                    if file.read_exact_at(&mut byte, slot * CHUNK + at).is_ok() {
                        file.write_all_at(&[byte[0] ^ 0x10], slot * CHUNK + at).unwrap();
                    }
                    flipped = true;
                    cache = Cache::open(dir.path(), budget).unwrap();
                    pin = Some(cache.pin());
                    pinned.clear();
                }
            }
            for &n in pinned.keys() { prop_assert!(holds(&cache, n), "pinned chunk {} was evicted", n); }
            prop_assert!(cache.stats().chunks <= 64);
        }
    }

    #[test]
    fn a_garbled_table_or_slab_never_returns_wrong_bytes(
        edits in proptest::collection::vec((any::<bool>(), 0..20_000u64, any::<u8>()), 0..40),
        cut in proptest::option::of((any::<bool>(), 0..20_000u64)),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 256 * CHUNK).unwrap();
        for n in 0..64 { put(&cache, n, None).unwrap(); }
        drop(cache);
        let open = |slab| OpenOptions::new().write(true).open(dir.path().join(if slab { "chunks.slab" } else { "chunks.table" })).unwrap();
        for (slab, at, byte) in edits { open(slab).write_all_at(&[byte], at).unwrap(); }
        if let Some((slab, len)) = cut { open(slab).set_len(len).unwrap(); }
        let cache = Cache::open(dir.path(), 256 * CHUNK).unwrap();
        for n in 0..64 { holds(&cache, n); }
        for n in 0..64 { put(&cache, n, None).unwrap(); }
        for n in 0..64 { prop_assert!(holds(&cache, n)); }
    }

    #[test]
    fn foreign_table_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        slab::decode_header(&bytes, 4096);
        slab::decode_entry(3, &bytes);
    }
}

#[test]
fn a_restart_finds_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::new();
    segment.set(7, Hash::of(b"seven"));
    {
        let cache = Cache::open(dir.path(), 1 << 20).unwrap();
        for n in 0..100 {
            put(&cache, n, None).unwrap();
        }
        cache
            .put_segment(&segment.id(), &segment.encode(), None)
            .unwrap();
        cache.flush().unwrap();
    }
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    assert!((0..100).all(|n| holds(&cache, n)));
    assert_eq!(*cache.get_segment(&segment.id(), None).unwrap(), segment);
    assert_eq!(cache.stats().chunks, 100);
    assert_eq!(
        cache.verify(&mut |_, _| true).unwrap(),
        CacheReport {
            checked: 101,
            dropped: vec![]
        }
    );
}

#[test]
fn a_smaller_budget_drops_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 512 * CHUNK).unwrap();
    for n in 0..256 {
        put(&cache, n, None).unwrap();
    }
    drop(cache);
    let cache = Cache::open(dir.path(), 64 * CHUNK).unwrap();
    assert_eq!(cache.stats().chunks, 32);
    assert_eq!((0..256).filter(|&n| holds(&cache, n)).count(), 32);
    assert_eq!(
        std::fs::metadata(dir.path().join("chunks.slab"))
            .unwrap()
            .len(),
        32 * CHUNK
    );
}

#[test]
fn a_second_opener_is_told_who_holds_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    let pin = cache.pin();
    drop(cache);
    match Cache::open(dir.path(), 1 << 20).map(drop) {
        Err(error @ StoreError::Busy { .. }) => {
            assert!(
                error
                    .to_string()
                    .contains(&format!("process {}", std::process::id())),
                "{error}"
            );
        }
        other => panic!("the cache was opened twice: {other:?}"),
    }
    drop(pin);
    Cache::open(dir.path(), 1 << 20).unwrap();
}

#[test]
fn wrong_bytes_are_refused_before_they_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    let (hash, mut data) = chunk(1);
    data[9] ^= 1;
    assert!(matches!(
        cache.put(&hash, &data, None),
        Err(StoreError::Corrupt { .. })
    ));
    assert!(matches!(
        cache.put(&hash, &data[1..], None),
        Err(StoreError::Invalid { .. })
    ));
    assert!(!cache.contains(Kind::Chunk, &hash));
}

#[test]
fn a_cache_full_of_pinned_chunks_says_so_and_works_on_when_one_machine_ends() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 32 * CHUNK).unwrap();
    let pin = cache.pin();
    for n in 0..16 {
        put(&cache, n, Some(&pin)).unwrap();
    }
    let error = put(&cache, 99, None).unwrap_err();
    assert!(
        error.is_full() && error.to_string().contains("stop a machine"),
        "{error}"
    );
    assert_eq!(cache.gc(0).unwrap(), 0);
    assert!((0..16).all(|n| holds(&cache, n)));
    drop(pin);
    put(&cache, 99, None).unwrap();
    assert!(holds(&cache, 99));
    assert_eq!(cache.stats().pinned_bytes, 0);
}

#[test]
fn gc_gives_the_space_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 2048 * CHUNK).unwrap();
    for n in 0..512 {
        put(&cache, n, None).unwrap();
    }
    cache.flush().unwrap();
    let blocks = || {
        std::fs::metadata(dir.path().join("chunks.slab"))
            .unwrap()
            .blocks()
            * 512
    };
    let before = blocks();
    assert_eq!(cache.gc(16 * CHUNK).unwrap(), 496 * CHUNK);
    assert_eq!(cache.stats().bytes, 16 * CHUNK);
    assert!(
        blocks() <= before - 496 * CHUNK,
        "{} of {before} bytes are still there",
        blocks()
    );
}

#[test]
fn chunks_are_forgotten_that_nobody_has_pinned_and_their_slots_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 64 * CHUNK).unwrap();
    let pin = cache.pin();
    for n in 0..8 {
        put(&cache, n, (n == 3).then_some(&pin)).unwrap();
    }
    // one of them is not here
    let hashes: Vec<Hash> = (2..9).map(|n| chunk(n).0).collect();
    assert_eq!(cache.forget_chunks(&hashes).unwrap(), 5 * CHUNK);
    assert_eq!(cache.forget_chunks(&hashes).unwrap(), 0);
    let left: Vec<u64> = (0..9).filter(|n| holds(&cache, *n)).collect();
    assert_eq!(left, [0, 1, 3]);
    assert_eq!(cache.stats().bytes, 3 * CHUNK);
    for n in 10..15 {
        put(&cache, n, None).unwrap();
    }
    assert!(
        [0, 1, 3]
            .into_iter()
            .chain(10..15)
            .all(|n| holds(&cache, n))
    );
    // also after a restart
    drop((pin, cache));
    let cache = Cache::open(dir.path(), 64 * CHUNK).unwrap();
    assert!((4..9).all(|n| !holds(&cache, n)) && holds(&cache, 3));
}

/// Many threads use a cache that is far too small: every read is right, whatever is evicted meanwhile.
#[test]
fn readers_never_see_a_slot_that_is_being_reused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 64 * CHUNK).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for seed in 0..3u64 {
            let (cache, stop) = (&cache, &stop);
            readers.push(scope.spawn(move || {
                let (mut hits, mut n) = (0u64, seed);
                while !stop.load(Ordering::Relaxed) {
                    n = n
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    hits += u64::from(holds(cache, (n >> 33) % 200));
                }
                hits
            }));
        }
        let writers: Vec<_> = (0..3u64)
            .map(|seed| {
                let cache = &cache;
                scope.spawn(move || {
                    let mut n = seed + 77;
                    for _ in 0..20_000 {
                        n = n
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        put(cache, (n >> 33) % 200, None).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(
            readers.into_iter().map(|r| r.join().unwrap()).sum::<u64>() > 0,
            "no reader ever hit"
        );
    });
    let stats = cache.stats();
    assert!(
        stats.evictions > 0 && stats.corrupt == 0 && stats.chunks <= 32,
        "{stats:?}"
    );
}

//! Tests what the fetcher promises: demand first, each hash once, an answer for everybody, wrong data for nobody.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use common::proxy::{Fault, Proxy};
use common::script::{Act, Script};
use common::*;
use floe_image::{Hash, Kind};
use floe_source::{
    Class, Each, FetchOptions, Fetcher, Hub, LinkEstimate, MachineId, Purpose, SourceError, Who,
};
use floe_store::Cache;
use parking_lot::Mutex;
use proptest::prelude::*;

const IMAGE: Hash = Hash([9; 32]);
/// Who prefetches.
const AHEAD: Who = Who {
    machine: MachineId(7),
    purpose: Purpose::Prefetch,
    class: Class::Normal,
};

fn items(from: u64, count: u64) -> Vec<(Hash, Vec<u8>)> {
    (from..from + count)
        .map(|i| (Hash::of(&content(i)), content(i)))
        .collect()
}

fn wants(items: &[(Hash, Vec<u8>)]) -> Vec<(Kind, Hash)> {
    items.iter().map(|(hash, _)| (Kind::Chunk, *hash)).collect()
}

struct Bench {
    script: Arc<Script>,
    fetcher: Fetcher,
    cache: Arc<Cache>,
    _dir: tempfile::TempDir,
}

fn bench(items: &[(Hash, Vec<u8>)], options: FetchOptions) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(dir.path(), 64 << 20).unwrap());
    let script = Script::new(items);
    let fetcher = Fetcher::new(script.clone(), cache.clone(), options);
    Bench {
        script,
        fetcher,
        cache,
        _dir: dir,
    }
}

/// One thread of each kind, and batches of 16 chunks, so that the order of requests is the order of decisions.
fn single() -> FetchOptions {
    FetchOptions {
        demand_threads: 1,
        prefetch_threads: 1,
        here_max: 0,
        ..FetchOptions::default()
    }
}

type Outcome = (Hash, Result<Vec<u8>, SourceError>);

fn demand(bench: &Bench, hash: Hash, tell: &mpsc::Sender<Outcome>) {
    let tell = tell.clone();
    bench
        .fetcher
        .demand(Who::default(), &IMAGE, Kind::Chunk, &hash, move |outcome| {
            // If a test has failed already, nobody listens.
            let _ = tell.send((hash, outcome.map(<[u8]>::to_vec)));
        });
}

fn next(told: &mpsc::Receiver<Outcome>) -> Outcome {
    told.recv_timeout(Duration::from_secs(60))
        .expect("a demand was never answered")
}

fn telling() -> (Each, mpsc::Receiver<(Hash, bool)>) {
    let (tell, told) = mpsc::channel();
    let each: Each = Arc::new(move |_, hash, outcome| tell.send((*hash, outcome.is_ok())).unwrap());
    (each, told)
}

#[test]
fn a_demand_brings_the_bytes_into_the_cache() {
    let all = items(0, 2);
    let bench = bench(&all, FetchOptions::default());
    let (tell, told) = mpsc::channel();
    demand(&bench, all[0].0, &tell);
    assert_eq!(next(&told).1.unwrap(), all[0].1);
    assert!(bench.cache.contains(Kind::Chunk, &all[0].0));
    assert_eq!(
        bench
            .fetcher
            .demand_wait(&IMAGE, Kind::Chunk, &all[1].0)
            .unwrap(),
        all[1].1
    );
    // Now without the source. Zeros need none.
    let reads = bench.script.reads();
    assert_eq!(
        bench
            .fetcher
            .demand_wait(&IMAGE, Kind::Chunk, &all[0].0)
            .unwrap(),
        all[0].1
    );
    assert_eq!(
        bench
            .fetcher
            .demand_wait(&IMAGE, Kind::Chunk, &Hash::ZERO)
            .unwrap(),
        vec![0; 4096]
    );
    assert_eq!(
        bench
            .fetcher
            .demand_wait(&IMAGE, Kind::Segment, &Hash::ZERO)
            .unwrap()
            .len(),
        32768
    );
    assert_eq!(bench.script.reads(), reads);
}

#[test]
fn a_demand_overtakes_all_prefetch() {
    let all = items(0, 200);
    let bench = bench(&all, single());
    bench.script.close(&[Purpose::Prefetch]);
    bench.fetcher.prefetch(AHEAD, &IMAGE, wants(&all[..150]));
    bench.script.await_waiting(1);
    // One that nobody asked for yet, and one from the end of the prefetch queue.
    let (tell, told) = mpsc::channel();
    for hash in [all[199].0, all[149].0] {
        demand(&bench, hash, &tell);
        assert!(next(&told).1.is_ok());
    }
    let log = bench.script.log.lock().clone();
    let order: Vec<Purpose> = log.iter().map(|(purpose, _)| *purpose).collect();
    assert_eq!(
        order,
        [Purpose::Prefetch, Purpose::Demand, Purpose::Demand],
        "the prefetch at the gate has not ended"
    );
    bench.script.close(&[]);
    let (each, told) = telling();
    bench
        .fetcher
        .prefetch_with(AHEAD, &IMAGE, wants(&all), each);
    for _ in &all {
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().1);
    }
    assert!(!bench.script.read_twice_at_once());
    let asked: usize = bench
        .script
        .log
        .lock()
        .iter()
        .map(|(_, wants)| wants.len())
        .sum();
    assert_eq!(asked, 200, "each hash was asked for once");
}

#[test]
fn what_a_prefetch_is_reading_is_read_for_a_demand_where_that_costs_nothing() {
    let all = items(0, 4);
    for merges in [false, true] {
        let bench = bench(&all, single());
        bench.script.merges.store(merges, SeqCst);
        bench.script.close(&[Purpose::Prefetch]);
        let (each, told_each) = telling();
        bench
            .fetcher
            .prefetch_with(AHEAD, &IMAGE, wants(&all), each);
        bench.script.await_waiting(1);
        let (tell, told) = mpsc::channel();
        demand(&bench, all[3].0, &tell);
        demand(&bench, all[3].0, &tell);
        if merges {
            // the prefetch stands at its gate all the time
            for _ in 0..2 {
                assert_eq!(next(&told).1.unwrap(), all[3].1);
            }
            assert!(
                told_each
                    .recv_timeout(Duration::from_secs(60))
                    .is_ok_and(|(hash, came)| hash == all[3].0 && came)
            );
        }
        bench.script.close(&[]);
        let answers = if merges { 0 } else { 2 };
        for _ in 0..answers {
            assert_eq!(next(&told).1.unwrap(), all[3].1);
        }
        for _ in 0..if merges { 3 } else { 4 } {
            assert!(told_each.recv_timeout(Duration::from_secs(60)).unwrap().1);
        }
        let purposes: Vec<Purpose> = bench.script.log.lock().iter().map(|(p, _)| *p).collect();
        let expected: &[Purpose] = match merges {
            true => &[Purpose::Prefetch, Purpose::Demand],
            false => &[Purpose::Prefetch],
        };
        assert_eq!(purposes, expected);
        let stats = bench.fetcher.stats();
        assert_eq!((stats.prefetch_in_flight_bytes, stats.waiting), (0, 0));
    }
}

#[test]
fn a_whole_image_in_the_queue_does_not_hold_up_another_ones_prefetch() {
    let all = items(0, 1000);
    let bench = bench(&all, single());
    bench.script.close(&[Purpose::Prefetch]);
    let (each, told) = telling();
    let other = Hash([8; 32]);
    bench.fetcher.prefetch(AHEAD, &IMAGE, wants(&all[..900]));
    bench.script.await_waiting(1);
    bench
        .fetcher
        .prefetch_with(AHEAD, &other, wants(&all[900..910]), each);
    bench.script.close(&[]);
    for _ in 0..10 {
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().1);
    }
    let log = bench.script.log.lock().clone();
    let turn = log.iter().position(|(_, read)| read.contains(&all[900].0));
    // First come the request under way and one of the image whose turn it was, then the other image's; nothing in between was
    // lost.
    assert!(turn.is_some_and(|turn| turn <= 2), "turn {turn:?}");
    let others: Vec<Hash> = all[900..910].iter().map(|(hash, _)| *hash).collect();
    assert_eq!(
        log[turn.unwrap()].1,
        others,
        "in its order, and nobody else's with it"
    );
}

#[test]
fn a_source_is_told_who_asks_and_what_for() {
    let all = items(0, 4);
    let bench = bench(&all, single());
    let (each, told) = telling();
    let purposes = [Purpose::Store, Purpose::Seed, Purpose::Settle];
    let who = |machine, purpose| Who {
        machine: MachineId(machine),
        purpose,
        class: Class::Bulk,
    };
    let (tell, stored) = mpsc::channel();
    bench.fetcher.demand(
        who(1, purposes[0]),
        &IMAGE,
        Kind::Chunk,
        &all[0].0,
        move |outcome| tell.send(outcome.is_ok()).unwrap(),
    );
    assert!(stored.recv_timeout(Duration::from_secs(60)).unwrap());
    for (number, purpose) in purposes.into_iter().enumerate().skip(1) {
        let want = wants(&all[number..=number]);
        bench
            .fetcher
            .prefetch_with(who(number as u32 + 1, purpose), &IMAGE, want, each.clone());
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().1);
    }
    let asked = bench.script.asked.lock().clone();
    let expected = (1..)
        .zip(purposes)
        .map(|(machine, purpose)| who(machine, purpose));
    assert_eq!(asked, expected.collect::<Vec<_>>());
}

#[test]
fn no_prefetch_starts_while_a_demand_has_no_thread() {
    let all = items(0, 100);
    let bench = bench(&all, single());
    let (tell, told) = mpsc::channel();
    bench.script.close(&[Purpose::Demand, Purpose::Prefetch]);
    demand(&bench, all[0].0, &tell);
    bench.script.await_waiting(1);
    bench.fetcher.prefetch(AHEAD, &IMAGE, wants(&all[10..90]));
    bench.script.await_waiting(2);
    for (hash, _) in &all[1..5] {
        demand(&bench, *hash, &tell);
    }
    // The prefetch ends while four demands wait for the only thread: they go first, together.
    bench.script.close(&[Purpose::Demand]);
    let first_prefetch_done = || bench.fetcher.stats().prefetch_in_flight_bytes == 0;
    while !first_prefetch_done() {
        std::thread::yield_now();
    }
    // Leaves time for a prefetch that should not start; the demand's thread still waits at its gate.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.script.log.lock().len(), 2, "a prefetch started");
    bench.script.close(&[]);
    for _ in 0..5 {
        next(&told).1.unwrap();
    }
    // Once a thread has taken the demands, prefetch goes on beside it, and either may reach the source first.
    let log = bench.script.log.lock().clone();
    let second = log[2..].iter().find(|(p, _)| *p == Purpose::Demand);
    assert_eq!(second.map(|(_, wants)| wants.len()), Some(4), "{log:?}");
}

#[test]
fn fifty_waiters_cost_one_fetch() {
    let all = items(0, 1);
    let bench = bench(&all, FetchOptions::default());
    bench.script.close(&[Purpose::Demand]);
    let (tell, told) = mpsc::channel();
    for _ in 0..50 {
        demand(&bench, all[0].0, &tell);
    }
    assert_eq!(bench.fetcher.stats().waiting, 50);
    bench.script.close(&[]);
    for _ in 0..50 {
        assert_eq!(next(&told).1.unwrap(), all[0].1);
    }
    assert_eq!(bench.script.reads(), 1);
    let stats = bench.fetcher.stats();
    assert_eq!(
        (stats.joined, stats.waiting, stats.demand_items),
        (49, 0, 1)
    );
}

#[test]
fn prefetch_in_flight_is_bounded() {
    let all = items(0, 400);
    let limit = 40 * 4096;
    let bench = bench(
        &all,
        FetchOptions {
            prefetch_threads: 8,
            prefetch_bytes_max: limit,
            ..FetchOptions::default()
        },
    );
    let worst = Arc::new(AtomicUsize::new(0));
    bench.script.close(&[Purpose::Prefetch]);
    let (each, told) = telling();
    bench
        .fetcher
        .prefetch_with(AHEAD, &IMAGE, wants(&all), each);
    bench.script.await_waiting(1);
    for _ in 0..1000 {
        worst.fetch_max(
            bench.fetcher.stats().prefetch_in_flight_bytes as usize,
            SeqCst,
        );
        std::thread::yield_now();
    }
    bench.script.close(&[]);
    for _ in &all {
        worst.fetch_max(
            bench.fetcher.stats().prefetch_in_flight_bytes as usize,
            SeqCst,
        );
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().1);
    }
    assert!(
        worst.load(SeqCst) <= limit as usize,
        "{}",
        worst.load(SeqCst)
    );
}

#[test]
fn what_fails_is_tried_again_until_it_comes() {
    let all = items(0, 1);
    for trouble in [Act::GiveThenFail(0), Act::Lie, Act::Silent, Act::Panic] {
        let bench = bench(&all, FetchOptions::default());
        bench.script.play(&[trouble; 3]);
        assert_eq!(
            bench
                .fetcher
                .demand_wait(&IMAGE, Kind::Chunk, &all[0].0)
                .unwrap(),
            all[0].1,
            "{trouble:?}"
        );
        assert_eq!(bench.fetcher.stats().failures, 3);
    }
}

#[test]
fn a_demand_ends_with_its_deadline_and_tells_the_last_trouble() {
    let all = items(0, 1);
    let limit = Some(Duration::from_millis(150));
    let bench = bench(
        &all,
        FetchOptions {
            demand_deadline: limit,
            ..FetchOptions::default()
        },
    );
    bench.script.play(&[Act::GiveThenFail(0); 1000]);
    let error = bench
        .fetcher
        .demand_wait(&IMAGE, Kind::Chunk, &all[0].0)
        .unwrap_err();
    assert!(
        matches!(&error, SourceError::Unreachable { reason, .. } if reason.contains("script")),
        "{error}"
    );
    assert!(bench.script.reads() > 1);
}

#[test]
fn a_demand_with_a_limit_of_its_own_ends_with_that_and_is_asked_for_no_longer() {
    let all = items(0, 1);
    let bench = bench(&all, FetchOptions::default());
    bench.script.play(&[Act::GiveThenFail(0); 1000]);
    let (tell, told) = mpsc::channel();
    let (hash, most) = (all[0].0, Duration::from_millis(150));
    let done = move |outcome: Result<&[u8], SourceError>| {
        let _ = tell.send((hash, outcome.map(<[u8]>::to_vec)));
    };
    let item = (Kind::Chunk, &hash);
    let fetcher = &bench.fetcher;
    fetcher.demand_within(Who::default(), Some(most), &IMAGE, item, false, done);
    let error = next(&told).1.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    assert_eq!(fetcher.stats().waiting, 0);
}

#[test]
fn missing_and_denied_items_are_asked_for_once_more_and_then_fail() {
    let bench = bench(&[], FetchOptions::default());
    let absent = items(0, 1)[0].0;
    let error = bench
        .fetcher
        .demand_wait(&IMAGE, Kind::Chunk, &absent)
        .unwrap_err();
    assert!(matches!(error, SourceError::Missing { .. }), "{error}");
    assert_eq!(bench.script.reads(), 2);
    bench.script.play(&[Act::Deny, Act::Deny]);
    let error = bench
        .fetcher
        .demand_wait(&IMAGE, Kind::Chunk, &absent)
        .unwrap_err();
    assert!(matches!(error, SourceError::Denied { .. }), "{error}");
    assert_eq!(bench.script.reads(), 4);
}

#[test]
fn one_refusal_on_the_way_is_survived() {
    let all = items(0, 1);
    let bench = bench(&all, FetchOptions::default());
    bench.script.play(&[Act::Deny]);
    let got = bench
        .fetcher
        .demand_wait(&IMAGE, Kind::Chunk, &all[0].0)
        .unwrap();
    assert_eq!(got, all[0].1);
    // And a source that says at first that it has nothing.
    let late = items(7, 1);
    bench.script.items.lock().extend(late.iter().cloned());
    bench.script.play(&[Act::Lack]);
    let got = bench
        .fetcher
        .demand_wait(&IMAGE, Kind::Chunk, &late[0].0)
        .unwrap();
    assert_eq!(got, late[0].1);
    assert_eq!(bench.script.reads(), 4);
}

#[test]
fn a_failed_prefetch_is_tried_a_few_times_and_then_given_up() {
    let all = items(0, 3);
    let bench = bench(&all, single());
    bench.script.play(&[
        Act::GiveThenFail(1),
        Act::GiveThenFail(0),
        Act::GiveThenFail(0),
        Act::GiveThenFail(0),
    ]);
    let (each, told) = telling();
    bench
        .fetcher
        .prefetch_with(AHEAD, &IMAGE, wants(&all), each);
    let got: HashMap<Hash, bool> = (0..3)
        .map(|_| told.recv_timeout(Duration::from_secs(60)).unwrap())
        .collect();
    assert_eq!(
        [got[&all[0].0], got[&all[1].0], got[&all[2].0]],
        [true, false, false]
    );
    assert_eq!(bench.script.reads(), 4);
    // It can be asked for again.
    assert!(
        bench
            .fetcher
            .demand_wait(&IMAGE, Kind::Chunk, &all[1].0)
            .is_ok()
    );
}

#[test]
fn cancelled_prefetch_is_not_read_and_its_waiters_are_told() {
    let all = items(0, 100);
    let bench = bench(&all, single());
    bench.script.close(&[Purpose::Prefetch]);
    let (each, told) = telling();
    bench
        .fetcher
        .prefetch_with(AHEAD, &IMAGE, wants(&all), each);
    bench.script.await_waiting(1);
    bench.fetcher.cancel_prefetch(&IMAGE);
    bench.script.close(&[]);
    let good = (0..100)
        .filter(|_| told.recv_timeout(Duration::from_secs(60)).unwrap().1)
        .count();
    let read: usize = bench
        .script
        .log
        .lock()
        .iter()
        .map(|(_, wants)| wants.len())
        .sum();
    assert_eq!(good, read);
    assert!(read < 100, "{read}");
    assert_eq!(bench.fetcher.stats().prefetch_queued, 0);
}

#[test]
fn dropping_it_answers_everybody() {
    let all = items(0, 20);
    let bench = bench(&all, single());
    bench.script.close(&[Purpose::Demand, Purpose::Prefetch]);
    let (tell, told) = mpsc::channel();
    let (each, prefetched) = telling();
    bench
        .fetcher
        .prefetch_with(AHEAD, &IMAGE, wants(&all[10..]), each);
    // Demands that no thread has taken would keep it from starting.
    bench.script.await_waiting(1);
    for (hash, _) in &all[..10] {
        demand(&bench, *hash, &tell);
    }
    bench.script.await_waiting(2);
    drop(bench.fetcher);
    for _ in 0..10 {
        assert!(matches!(next(&told).1, Err(SourceError::Stopped { .. })));
    }
    for _ in 0..10 {
        assert!(!prefetched.recv_timeout(Duration::from_secs(60)).unwrap().1);
    }
    bench.script.close(&[]);
}

#[test]
fn a_full_cache_does_not_stop_a_guest() {
    // The cache holds far less than is demanded, and what it holds is pinned.
    let all = items(0, 3000);
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(dir.path(), 1 << 20).unwrap());
    let script = Script::new(&all);
    let fetcher = Fetcher::new(script, cache.clone(), FetchOptions::default());
    let pin = cache.pin();
    for (hash, bytes) in &all {
        assert_eq!(
            &fetcher.demand_wait(&IMAGE, Kind::Chunk, hash).unwrap(),
            bytes
        );
        let _ = cache.get(hash, &mut [0; 4096], Some(&pin));
    }
    assert!(fetcher.stats().not_cached > 0, "{:?}", fetcher.stats());
}

#[test]
fn a_hub_that_hangs_and_dies_delays_a_guest_and_no_more() {
    let fixture = Fixture::new();
    let server = hub_server(&fixture.repository);
    let proxy = Proxy::new(server.addr);
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(dir.path(), 64 << 20).unwrap());
    let source =
        Arc::new(Hub::new(&origin(&format!("http://{}", proxy.addr)), &options()).unwrap());
    let limits = FetchOptions {
        attempt_timeout: Duration::from_millis(200),
        ..FetchOptions::default()
    };
    let fetcher = Fetcher::new(source, cache, limits);
    let faults = [
        Fault::Hang,
        Fault::Refuse,
        Fault::Error,
        Fault::Cut(40),
        Fault::Flip(900),
        Fault::Endless,
    ];
    for (i, fault) in faults.into_iter().enumerate() {
        proxy.inject(fault, 2);
        let (hash, bytes) = &fixture.chunks[i * 20];
        assert_eq!(
            &fetcher
                .demand_wait(&fixture.image, Kind::Chunk, hash)
                .unwrap(),
            bytes,
            "{fault:?}"
        );
    }
    assert!(fetcher.stats().failures >= faults.len() as u64);
    assert!(fetcher.link() != LinkEstimate::default());
}

#[derive(Clone, Debug)]
enum Step {
    Demand(usize),
    Prefetch(Vec<usize>),
    Cancel,
    Acts(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40usize).prop_map(Step::Demand),
        3 => prop::collection::vec(0..40usize, 1..30).prop_map(Step::Prefetch),
        1 => Just(Step::Cancel),
        2 => prop::collection::vec(any::<u8>(), 1..4).prop_map(Step::Acts),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is asked for and whatever goes wrong: each demand is answered once, with the right bytes (items 36 to 39 are
    /// missing); each prefetch is reported once; and nothing is read twice at the same time.
    #[test]
    fn everybody_gets_one_right_answer(steps in prop::collection::vec(step(), 1..40)) {
        let all = items(0, 40);
        let bench = bench(&all[..36], FetchOptions { demand_threads: 3, ..FetchOptions::default() });
        let (tell, told) = mpsc::channel();
        let prefetched = Arc::new(Mutex::new(0usize));
        let (mut demands, mut prefetches) = (0, 0);
        for step in steps {
            match step {
                Step::Demand(i) => {
                    demands += 1;
                    demand(&bench, all[i].0, &tell);
                }
                Step::Prefetch(which) => {
                    prefetches += which.len();
                    let count = prefetched.clone();
                    let each: Each = Arc::new(move |_, _, _| *count.lock() += 1);
                    let items = which.iter().map(|i| (Kind::Chunk, all[*i].0)).collect();
                    bench.fetcher.prefetch_with(AHEAD, &IMAGE, items, each);
                }
                Step::Cancel => bench.fetcher.cancel_prefetch(&IMAGE),
                Step::Acts(acts) => {
                    let act = |n: &u8| match n % 5 {
                        0 => Act::GiveThenFail(usize::from(n / 5 % 4)),
                        1 => Act::Lie,
                        2 => Act::Silent,
                        _ => Act::Give,
                    };
                    bench.script.acts.lock().extend(acts.iter().map(act));
                }
            }
        }
        for _ in 0..demands {
            let (hash, outcome) = next(&told);
            let i = all.iter().position(|(h, _)| *h == hash).unwrap();
            match outcome {
                Ok(bytes) => prop_assert!(i < 36 && bytes == all[i].1),
                Err(error) => prop_assert!(i >= 36 && matches!(error, SourceError::Missing { .. }), "{}: {}", i, error),
            }
        }
        // What is still queued is reported when the fetcher is dropped.
        let stats = bench.fetcher.stats();
        prop_assert_eq!(stats.waiting, 0);
        drop(bench.fetcher);
        let patience = std::time::Instant::now() + Duration::from_secs(60);
        while *prefetched.lock() < prefetches && std::time::Instant::now() < patience {
            std::thread::yield_now();
        }
        prop_assert_eq!(*prefetched.lock(), prefetches);
        prop_assert!(told.try_recv().is_err(), "a demand was answered twice");
        prop_assert!(!bench.script.read_twice_at_once());
    }
}

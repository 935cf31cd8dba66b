//! Tests what the wrappers add: another try, another source, several sources at once.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use common::script::{Act, Script};
use common::{LIMIT, content, read_all};
use floe_image::{Hash, Kind};
use floe_source::{Failover, Purpose, Request, Retry, RetryOptions, Source, SourceError, Striped};

const IMAGE: Hash = Hash([9; 32]);

fn items(from: u64, count: u64) -> Vec<(Hash, Vec<u8>)> {
    (from..from + count)
        .map(|i| (Hash::of(&content(i)), content(i)))
        .collect()
}

fn wants(items: &[(Hash, Vec<u8>)]) -> Vec<(Kind, Hash)> {
    items.iter().map(|(hash, _)| (Kind::Chunk, *hash)).collect()
}

fn quick(attempts: u32) -> RetryOptions {
    RetryOptions {
        attempts,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(2),
    }
}

#[test]
fn trying_again_asks_only_for_the_rest_and_knows_when_to_stop() {
    let all = items(0, 5);
    let script = Script::new(&all);
    let source = Retry::new(
        script.play(&[Act::GiveThenFail(2), Act::GiveThenFail(1), Act::Give]),
        quick(5),
    );
    let (outcome, got) = read_all(&source, &IMAGE, &wants(&all), LIMIT);
    outcome.unwrap();
    assert_eq!(got.len(), 5);
    let sizes: Vec<usize> = script
        .log
        .lock()
        .iter()
        .map(|(_, wants)| wants.len())
        .collect();
    assert_eq!(sizes, [5, 3, 2]);

    let script = Script::new(&all);
    let source = Retry::new(script.play(&[Act::GiveThenFail(0); 9]), quick(3));
    assert!(matches!(
        read_all(&source, &IMAGE, &wants(&all), LIMIT).0,
        Err(SourceError::Unreachable { .. })
    ));
    assert_eq!(script.reads(), 3);

    // What is denied or missing is asked for once only, and so is everything if there is no time for a pause.
    let script = Script::new(&all);
    let source = Retry::new(script.play(&[Act::Deny]), quick(9));
    assert!(matches!(
        read_all(&source, &IMAGE, &wants(&all), LIMIT).0,
        Err(SourceError::Denied { .. })
    ));
    assert!(matches!(
        read_all(&source, &IMAGE, &wants(&items(50, 1)), LIMIT).0,
        Err(SourceError::Missing { .. })
    ));
    assert_eq!(script.reads(), 2);
    let slow = RetryOptions {
        first_pause: LIMIT,
        longest_pause: LIMIT,
        attempts: 9,
    };
    let source = Retry::new(script.play(&[Act::GiveThenFail(0)]), slow);
    assert!(
        read_all(&source, &IMAGE, &wants(&all), Duration::from_secs(1))
            .0
            .is_err()
    );
    assert_eq!(script.reads(), 3);
}

#[test]
fn another_source_is_asked_for_what_one_lacks() {
    let (mine, yours) = (items(0, 3), items(3, 3));
    let (a, b) = (Script::new(&mine), Script::new(&yours));
    let source = Failover::new(vec![a.clone(), b.clone()]);
    let all = [mine.clone(), yours.clone()].concat();
    let (outcome, got) = read_all(&source, &IMAGE, &wants(&all), LIMIT);
    outcome.unwrap();
    assert_eq!(got.len(), 6);
    assert_eq!(
        b.log.lock()[0].1,
        yours.iter().map(|(hash, _)| *hash).collect::<Vec<_>>()
    );

    let nowhere = items(90, 1);
    let error = read_all(&source, &IMAGE, &wants(&nowhere), LIMIT)
        .0
        .unwrap_err();
    assert!(
        matches!(&error, SourceError::Missing { at, .. } if at == "script, script"),
        "{error}"
    );
    // A source that could not answer may have it, so it isn't missing.
    a.play(&[Act::GiveThenFail(0)]);
    let error = read_all(&source, &IMAGE, &wants(&nowhere), LIMIT)
        .0
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[test]
fn a_source_that_failed_is_asked_last_for_a_while() {
    let all = items(0, 1);
    let (a, b) = (Script::new(&all), Script::new(&all));
    let source = Failover::new(vec![a.play(&[Act::GiveThenFail(0)]), b.clone()]);
    for _ in 0..3 {
        read_all(&source, &IMAGE, &wants(&all), LIMIT).0.unwrap();
    }
    assert_eq!((a.reads(), b.reads()), (1, 3));
    // If the other one fails too, the failed one is asked after all.
    b.play(&[Act::GiveThenFail(0)]);
    read_all(&source, &IMAGE, &wants(&all), LIMIT).0.unwrap();
    assert_eq!((a.reads(), b.reads()), (2, 4));
}

#[test]
fn refused_access_is_not_hidden_by_another_source() {
    let all = items(0, 1);
    let (a, b) = (Script::new(&all), Script::new(&all));
    let source = Failover::new(vec![a.play(&[Act::Deny]), b.clone()]);
    assert!(matches!(
        read_all(&source, &IMAGE, &wants(&all), LIMIT).0,
        Err(SourceError::Denied { .. })
    ));
    assert_eq!(b.reads(), 0);
}

#[test]
fn names_fail_over_too() {
    let (a, b) = (Script::new(&[]), Script::new(&[]));
    let source = Failover::new(vec![a.play(&[Act::GiveThenFail(0)]), b]);
    assert_eq!(source.resolve("x").unwrap(), Hash::of(b"resolved"));
}

/// Returns what each of the sources was asked for.
fn asked(sources: &[&Script]) -> Vec<Vec<Hash>> {
    let of = |script: &&Script| {
        let log = script.log.lock();
        log.iter().flat_map(|(_, wants)| wants.clone()).collect()
    };
    sources.iter().map(of).collect()
}

#[test]
fn a_long_read_is_split_between_sources_and_each_chunk_asked_for_once() {
    let all = items(0, 500);
    let (a, b) = (Script::new(&all), Script::new(&all));
    // Neither may go ahead before the other has begun.
    a.close(&[Purpose::Demand]);
    b.close(&[Purpose::Demand]);
    let source = Arc::new(Striped::new(vec![a.clone(), b.clone()]));
    let reader = {
        let (source, wants) = (source.clone(), wants(&all));
        std::thread::spawn(move || read_all(&*source, &IMAGE, &wants, LIMIT))
    };
    a.await_waiting(1);
    b.await_waiting(1);
    a.close(&[]);
    b.close(&[]);
    let (outcome, got) = reader.join().unwrap();
    outcome.unwrap();
    assert_eq!(got.len(), all.len());
    let asked = asked(&[&a, &b]);
    assert!(asked.iter().all(|wants| !wants.is_empty()));
    let once: HashSet<Hash> = asked.iter().flatten().copied().collect();
    assert_eq!((once.len(), asked.concat().len()), (500, 500));
}

#[test]
fn no_chunk_is_lost_when_a_source_fails_hangs_up_or_lacks_it() {
    let all = items(0, 400);
    for act in [Act::GiveThenFail(7), Act::Panic] {
        let (a, b) = (Script::new(&all), Script::new(&all));
        let source = Striped::new(vec![a.play(&[act]), b.clone()]);
        let read = std::panic::AssertUnwindSafe(|| read_all(&source, &IMAGE, &wants(&all), LIMIT));
        match (std::panic::catch_unwind(read), act) {
            (Ok((outcome, got)), _) => {
                outcome.unwrap();
                assert_eq!(got.len(), 400);
            }
            (Err(_), act) => assert_eq!(act, Act::Panic, "a panic is passed on, not waited for"),
        }
    }
    // One source that has half of the items, and one that has the other half.
    let (a, b) = (Script::new(&all[..200]), Script::new(&all[200..]));
    let source = Striped::new(vec![a, b]);
    let (outcome, got) = read_all(&source, &IMAGE, &wants(&all), LIMIT);
    outcome.unwrap();
    assert_eq!(got.len(), 400);
    // What no source has is missing; the rest is delivered.
    let more = items(0, 401);
    let (outcome, got) = read_all(&source, &IMAGE, &wants(&more), LIMIT);
    assert!(
        matches!(outcome, Err(SourceError::Missing { .. })),
        "{outcome:?}"
    );
    assert_eq!(got.len(), 400);
}

#[test]
fn a_source_that_has_nothing_of_the_image_is_not_asked_each_time() {
    let all = items(0, 400);
    let (a, b) = (Script::new(&[]), Script::new(&all));
    let source = Striped::new(vec![a.clone(), b]);
    let ahead = |wants: &[(Kind, Hash)]| {
        let mut got = 0;
        let request = Request::prefetch(LIMIT);
        let read = source.read(&IMAGE, wants, &request, &mut |_, _, _| got += 1);
        read.unwrap();
        assert_eq!(got, wants.len());
    };
    for wants in wants(&all).chunks(20) {
        ahead(wants);
    }
    assert!(a.reads() <= 2, "{}", a.reads());
}

#[test]
fn refused_access_to_one_of_several_is_seen() {
    let all = items(0, 400);
    let (a, b) = (Script::new(&all), Script::new(&all));
    let source = Striped::new(vec![a.play(&[Act::Deny]), b]);
    let mut denied = false;
    // The other source may have read everything before this one begins.
    for _ in 0..1000 {
        a.play(&[Act::Deny]);
        let outcome = read_all(&source, &IMAGE, &wants(&all), LIMIT).0;
        denied |= matches!(outcome, Err(SourceError::Denied { .. }));
        if denied {
            break;
        }
    }
    assert!(denied);
}

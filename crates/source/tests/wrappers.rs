//! What the wrappers add: another try, another source.

mod common;

use std::time::Duration;

use common::script::{Act, Script};
use common::{LIMIT, content, read_all};
use floe_image::{Hash, Kind};
use floe_source::{Failover, Retry, RetryOptions, Source, SourceError};

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

    // Refused or missing: once is enough. No time for a pause: likewise.
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
    // Who could not answer may have it: not missing then.
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
    // With the other one failing too, the sick one is asked after all.
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

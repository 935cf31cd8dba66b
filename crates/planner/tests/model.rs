//! Tests what training promises: the paper's clusters, the same bytes whatever the order of the traces, bounded work, and a
//! decoder that accepts only complete, valid models.

use floe_image::Hash;
use floe_planner::{ACCESSES_MAX, ChunkAt, Method, Model, Timed, TrainOptions, ZeroTrace, train};
use proptest::prelude::*;
use std::collections::HashSet;

const SECOND: u64 = 1_000_000;

fn trace(accesses: &[(u32, u64)]) -> ZeroTrace {
    let mut accesses: Vec<Timed> = accesses
        .iter()
        .map(|(chunk, t_us)| Timed {
            t_us: *t_us,
            region: 0,
            chunk: *chunk,
        })
        .collect();
    accesses.sort();
    ZeroTrace {
        end_us: accesses.last().map_or(0, |a| a.t_us),
        accesses,
    }
}

fn learn(method: Method, traces: &[ZeroTrace]) -> Model {
    train(
        method,
        &Hash::of(b"image"),
        traces,
        &TrainOptions::default(),
    )
}

fn chunks(model: &Model) -> Vec<Vec<u32>> {
    let numbers = |c: &floe_planner::Cluster| c.chunks.iter().map(|a| a.chunk).collect();
    model.clusters().iter().map(numbers).collect()
}

#[test]
fn a_profile_orders_by_mean_time_and_tells_how_often_a_chunk_was_seen() {
    let model = learn(
        Method::VmTorrent,
        &[
            trace(&[(1, 0), (2, 10 * SECOND), (3, 4 * SECOND)]),
            trace(&[(1, 2 * SECOND), (2, 0)]),
        ],
    );
    let rows: Vec<_> = model
        .rows()
        .iter()
        .map(|r| (r.at.chunk, r.mean_ms, r.seen))
        .collect();
    assert_eq!(rows, [(1, 1000, 2), (3, 4000, 1), (2, 5000, 2)]);
}

#[test]
fn a_trace_is_cut_where_nothing_happens_for_longer_than_the_interval() {
    let model = learn(
        Method::VTube,
        &[trace(&[
            (1, 0),
            (2, SECOND),
            (3, 3 * SECOND),
            (4, 6 * SECOND),
        ])],
    );
    assert_eq!(chunks(&model), [vec![1, 2, 3], vec![4]]);
}

#[test]
fn overlapping_clusters_become_their_intersection_and_complements() {
    let model = learn(
        Method::VTube,
        &[
            trace(&[(1, 0), (2, 1), (3, 2)]),
            trace(&[(2, 0), (3, 1), (4, 2)]),
        ],
    );
    let found: HashSet<Vec<u32>> = chunks(&model).into_iter().collect();
    assert_eq!(found, HashSet::from([vec![1], vec![2, 3], vec![4]]));
}

#[test]
fn what_is_left_of_a_cluster_is_checked_against_the_interval_again() {
    // 1 and 3 are 3 s apart and were in one cluster only because of 2, which the other trace takes away.
    let model = learn(
        Method::VTube,
        &[
            trace(&[(1, 0), (2, 3 * SECOND / 2), (3, 3 * SECOND)]),
            trace(&[(2, 0)]),
        ],
    );
    let found: HashSet<Vec<u32>> = chunks(&model).into_iter().collect();
    assert_eq!(found, HashSet::from([vec![1], vec![2], vec![3]]));
}

#[test]
fn a_film_is_cut_into_clusters_that_tell_the_time() {
    let film: Vec<_> = (0..1000).map(|i| (i, u64::from(i) * SECOND / 10)).collect();
    let model = learn(Method::Floe, &[trace(&film)]);
    assert!(
        model.clusters().len() >= 20,
        "{} clusters",
        model.clusters().len()
    );
    let film = learn(Method::VTube, &[trace(&film)]);
    assert_eq!(film.clusters().len(), 1);
}

/// Returns runs of the same program: mostly the same chunks at nearly the same times.
fn runs(n: u64, accesses: u32) -> Vec<ZeroTrace> {
    let run = |seed: u64| {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> 16
        };
        let mut t = 0;
        let accesses = (0..accesses).filter_map(|i| {
            t += if next() % 500 == 0 {
                3 * SECOND
            } else {
                next() % 2000
            };
            (next() % 10 != 0).then_some((i * 2 + u32::from(next() % 50 == 0), t))
        });
        trace(&accesses.collect::<Vec<_>>())
    };
    (0..n).map(run).collect()
}

#[test]
fn sixteen_long_traces_are_learnt_and_their_models_read_again() {
    let traces = runs(16, 110_000);
    assert!(traces.iter().all(|t| t.accesses.len() > 90_000));
    for method in Method::ALL {
        let model = learn(method, &traces);
        let bytes = model.encode();
        assert_eq!(Model::decode(&bytes).unwrap(), model);
        println!(
            "{method:?}: {} clusters, {} bytes",
            model.clusters().len(),
            bytes.len()
        );
        assert!(bytes.len() < 32 << 20);
    }
}

#[test]
fn a_hostile_trace_adds_no_more_than_its_bound_and_changes_no_frequency() {
    let honest = runs(5, 2000);
    let all: Vec<_> = (0..ACCESSES_MAX as u32 + 50_000)
        .map(|i| (i, u64::from(i)))
        .collect();
    let mut poisoned = honest.clone();
    poisoned.extend([trace(&all), trace(&all)]);
    let (clean, dirty) = (
        learn(Method::VmTorrent, &honest),
        learn(Method::VmTorrent, &poisoned),
    );
    assert_eq!(dirty.traces(), 6, "a repeated trace counts once");
    assert!(dirty.rows().len() <= clean.rows().len() + ACCESSES_MAX);
    let seen = |m: &Model, at: ChunkAt| m.rows().iter().find(|r| r.at == at).map_or(0, |r| r.seen);
    for row in clean.rows().iter().step_by(97) {
        assert!(seen(&dirty, row.at) <= row.seen + 1);
    }
}

fn model() -> impl Strategy<Value = Model> {
    let access = (0u32..60, 0u64..20 * SECOND);
    let one = proptest::collection::vec(access, 0..40);
    (proptest::collection::vec(one, 0..6), 0usize..3).prop_map(|(raw, method)| {
        let traces: Vec<_> = raw.iter().map(|a| trace(a)).collect();
        learn(Method::ALL[method], &traces)
    })
}

proptest! {
    #[test]
    fn the_order_of_the_traces_does_not_matter(
        raw in proptest::collection::vec(proptest::collection::vec((0u32..40, 0u64..15 * SECOND), 1..30), 1..6),
        turn in 0usize..6,
    ) {
        let traces: Vec<_> = raw.iter().map(|a| trace(a)).collect();
        let mut turned = traces.clone();
        turned.rotate_left(turn % traces.len());
        turned.reverse();
        for method in Method::ALL {
            prop_assert_eq!(learn(method, &traces).encode(), learn(method, &turned).encode());
        }
    }

    #[test]
    fn clusters_are_disjoint_and_hold_every_chunk(
        raw in proptest::collection::vec(proptest::collection::vec((0u32..40, 0u64..15 * SECOND), 1..30), 1..6),
    ) {
        let traces: Vec<_> = raw.iter().map(|a| trace(a)).collect();
        let all: HashSet<u32> = raw.iter().flatten().map(|a| a.0).collect();
        for method in [Method::VTube, Method::Floe] {
            let model = learn(method, &traces);
            let found: Vec<u32> = model.chunks().map(|c| c.chunk).collect();
            prop_assert_eq!(found.len(), all.len());
            prop_assert_eq!(found.into_iter().collect::<HashSet<_>>(), all.clone());
        }
    }

    #[test]
    fn a_model_comes_back_from_its_bytes(model in model()) {
        let bytes = model.encode();
        prop_assert_eq!(Model::decode(&bytes).unwrap(), model);
    }

    #[test]
    fn a_damaged_model_is_refused(model in model(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = model.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Model::decode(&bytes).is_err());
        prop_assert!(Model::decode(&bytes[..at]).is_err());
    }

    #[test]
    fn foreign_bytes_with_a_right_checksum_never_panic(mut body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"FLOEMODL\x01\0\0\0".to_vec();
        bytes.append(&mut body);
        let checksum = Hash::of(&bytes);
        bytes.extend_from_slice(&checksum.0);
        if let Ok(model) = Model::decode(&bytes) {
            prop_assert_eq!(model.encode(), bytes);
        }
    }
}

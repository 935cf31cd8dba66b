//! Compares the simulator with sums that can be calculated by hand, and checks its laws on generated runs.
use floe_planner::{Config, Method, Policy, Timed, TrainOptions, Urgency, ZeroTrace, train};
use floe_simulator::sim::download::{Download, Item};
use floe_simulator::sim::synthetic::{Shape, workload};
use floe_simulator::sim::{LinkSpec, ReplayError, Run, Setup, StallKind, replay};
use floe_testbed::link::Rate;
use floe_testbed::shape::{ImageShape, RegionShape};
use proptest::prelude::*;
use std::sync::Arc;

const CHUNK_BYTES: usize = 2000;

/// Makes a link of 8 Mbit/s, on which a byte takes a microsecond, with round trips of 100 ms.
fn link() -> LinkSpec {
    LinkSpec {
        name: "8".into(),
        rate: Rate::BitsPerSecond(8_000_000),
        rtt_ns: 100_000_000,
    }
}

fn image(chunks: &[u64]) -> ImageShape {
    image_of(Urgency::Memory, chunks)
}

fn image_of(urgency: Urgency, chunks: &[u64]) -> ImageShape {
    let mut region = RegionShape::new(1, urgency);
    chunks.iter().for_each(|c| region.put(*c));
    ImageShape {
        regions: vec![region],
        chunk_wire_bytes: CHUNK_BYTES,
    }
}

fn trace(accesses: &[(u32, u64)], end_us: u64) -> ZeroTrace {
    let accesses = accesses.iter().map(|(chunk, t_us)| Timed {
        region: 0,
        chunk: *chunk,
        t_us: *t_us,
    });
    ZeroTrace {
        accesses: accesses.collect(),
        end_us,
    }
}

fn run_demand(image: &ImageShape, trace: &ZeroTrace, link: &LinkSpec) -> Run {
    let config = Config {
        policy: Policy::DemandOnly,
        ..Config::default()
    };
    replay(&Setup {
        image,
        trace,
        link,
        config,
        model: None,
        preamble_bytes: 1000,
    })
    .unwrap()
}

#[test]
fn one_miss_costs_the_round_trip_and_its_bytes() {
    // The start takes 100 ms and 1000 bytes. At 3 s of the machine's time all tables have long arrived, so there is one
    // miss of 102 ms.
    let run = run_demand(&image(&[7]), &trace(&[(7, 3_000_000)], 4_000_000), &link());
    let waits: Vec<_> = run.stalls.iter().map(|s| (s.kind, s.ns())).collect();
    assert_eq!(
        waits,
        [
            (StallKind::Start, 101_000_000),
            (StallKind::Demand, 102_000_000)
        ]
    );
    assert_eq!(run.end_ns, 4_203_000_000);
    assert_eq!((run.accessed, run.fetched, run.missed), (1, 1, 1));
    assert_eq!(run.wire_bytes, 1000 + 2000 + run.table_bytes);
    assert_eq!(run.fetch_ratio(), 1.0);
    assert!((run.wait_s() - 0.203).abs() < 1e-9);
    assert!((run.launch_s() - 0.101).abs() < 1e-9);
    assert_eq!((run.buffering_ratio(), run.buffering_per_min()), (0.0, 0.0));
}

#[test]
fn a_miss_without_its_table_waits_for_that_first() {
    // Touched at once: the table (128 bytes and one hash of 32) has been under way since the start, and is needed at the
    // same moment.
    let run = run_demand(&image(&[7]), &trace(&[(7, 0)], 1_000_000), &link());
    assert_eq!(run.table_bytes, 160);
    let wait: u64 = run.stalls.iter().map(|s| s.ns()).sum();
    // Start and table share their round trip; then comes the chunk's.
    assert!((202_000_000..=203_400_000).contains(&wait), "{wait} ns");
}

#[test]
fn waiting_moves_what_comes_later_and_nothing_else() {
    let accesses = [(1, 2_000_000), (2, 2_000_000), (900, 2_500_000)];
    let run = run_demand(&image(&[1, 2, 900]), &trace(&accesses, 3_000_000), &link());
    let own: Vec<u64> = run.stalls.iter().map(|s| s.own_ns / 1_000_000).collect();
    assert_eq!(own, [0, 2000, 2000, 2500]);
    assert_eq!(run.end_ns, (101 + 3 * 102 + 3000) * 1_000_000);
    assert_eq!(run.missed, 3);
}

/// Returns the milliseconds of each wait of a machine, its start included.
fn waits_ms(urgency: Urgency, chunks: &[u64], accesses: &[(u32, u64)]) -> Vec<u64> {
    let image = image_of(urgency, chunks);
    let run = run_demand(&image, &trace(accesses, 4_000_000), &link());
    assert_eq!(
        (run.accessed, run.missed),
        (accesses.len() as u64, accesses.len() as u64)
    );
    let waits: Vec<u64> = run.stalls.iter().map(|s| s.ns() / 1_000_000).collect();
    assert_eq!(run.end_ns, (4000 + waits.iter().sum::<u64>()) * 1_000_000);
    waits
}

#[test]
fn all_that_a_request_of_a_disk_lacks_is_demanded_at_once() {
    let chunks: Vec<u64> = (100..116).collect();
    // One chunk alone, then a request of what is on both sides of it, recorded in three microseconds.
    let mut accesses = vec![(108, 2_000_000)];
    accesses.extend((100..108).map(|chunk| (chunk, 3_000_000)));
    accesses.extend((109..116).map(|chunk| (chunk, 3_000_003)));
    let waits = waits_ms(Urgency::Storage, &chunks, &accesses);
    assert_eq!(waits, [101, 102, 100 + 15 * 2]);
    // Memory is faulted in a page at a time.
    let waits = waits_ms(Urgency::Memory, &chunks, &accesses);
    assert_eq!(waits.len(), 1 + 16);
    assert!(waits[1..].iter().all(|wait| *wait == 102), "{waits:?}");
}

#[test]
fn what_no_request_can_have_together_is_demanded_one_after_the_other() {
    let two = |chunks: &[u64], accesses: &[(u32, u64)]| {
        assert_eq!(
            waits_ms(Urgency::Storage, chunks, accesses),
            [101, 102, 102]
        );
    };
    // a chunk between the two was not touched
    two(&[5, 6, 7], &[(5, 3_000_000), (7, 3_000_000)]);
    // the guest did something between the two
    two(&[5, 6], &[(5, 3_000_000), (6, 3_000_100)]);
    // a request reads onwards
    two(&[5, 6], &[(6, 3_000_000), (5, 3_000_000)]);
    // where nothing is between the two, a request may cover both
    let together = [(5, 3_000_000), (9, 3_000_000)];
    assert_eq!(waits_ms(Urgency::Storage, &[5, 9], &together), [101, 104]);
    // more than a mebibyte
    let chunks: Vec<u64> = (0..300).collect();
    let accesses: Vec<(u32, u64)> = (0..300).map(|chunk| (chunk, 3_000_000)).collect();
    let waits = waits_ms(Urgency::Storage, &chunks, &accesses);
    assert_eq!(waits, [101, 100 + 256 * 2, 100 + 44 * 2]);
}

#[test]
fn a_request_without_its_table_is_tried_again_as_a_whole() {
    let chunks: Vec<u64> = (0..16).collect();
    let accesses: Vec<(u32, u64)> = (0..16).map(|chunk| (chunk, 0)).collect();
    let image = image_of(Urgency::Storage, &chunks);
    let run = run_demand(&image, &trace(&accesses, 1_000_000), &link());
    assert_eq!((run.missed, run.table_bytes), (16, 128 + 16 * 32));
    // The table has been under way since the start; then one round trip brings all chunks.
    let wait: u64 = run.stalls.iter().map(|s| s.ns()).sum();
    assert!((233_000_000..=235_500_000).contains(&wait), "{wait} ns");
}

#[test]
fn paused_time_counts_as_buffering() {
    let (image, traces) = workload(&Shape::INTERACTIVE, 4, 11);
    let hash = floe_image::Hash::of(b"made up");
    let model = train(Method::VTube, &hash, &traces[1..], &TrainOptions::default());
    let run = run_with(&image, &traces[0], Policy::VTube, Some(Arc::new(model)));
    let paused: u64 = run
        .stalls
        .iter()
        .filter(|s| s.kind == StallKind::Buffering)
        .map(|s| s.ns())
        .sum();
    assert!(paused > 0, "a burst that the link can't carry is buffered");
    let ratio = paused as f64 / run.end_ns as f64;
    assert!((run.buffering_ratio() - ratio).abs() < 1e-12);
    assert!(run.buffering_per_min() > 0.0);
    check(&run, &traces[0]);
}

fn run_with(
    image: &ImageShape,
    trace: &ZeroTrace,
    policy: Policy,
    model: Option<Arc<floe_planner::Model>>,
) -> Run {
    let config = Config {
        policy,
        ..Config::default()
    };
    let link = LinkSpec {
        name: "7.2".into(),
        rate: Rate::BitsPerSecond(7_200_000),
        rtt_ns: 120_000_000,
    };
    replay(&Setup {
        image,
        trace,
        link: &link,
        config,
        model,
        preamble_bytes: 60_000,
    })
    .unwrap()
}

/// Checks what is true of every run.
fn check(run: &Run, trace: &ZeroTrace) {
    assert_eq!(run.accessed, trace.accesses.len() as u64);
    assert!(
        run.fetched >= run.accessed,
        "all that was touched was fetched"
    );
    assert!(run.missed + run.late <= run.accessed);
    let waited: u64 = run.stalls.iter().map(|s| s.ns()).sum();
    assert_eq!(
        run.end_ns,
        run.own_ns + waited,
        "running or waiting, nothing else"
    );
    for pair in run.stalls.windows(2) {
        assert!(pair[0].to_ns <= pair[1].from_ns && pair[0].own_ns <= pair[1].own_ns);
    }
}

#[test]
fn every_policy_serves_every_access_and_twice_the_same() {
    for (shape, seed) in [(Shape::INTERACTIVE, 3), (Shape::FIXED, 4)] {
        let (image, traces) = workload(&shape, 4, seed);
        let hash = floe_image::Hash::of(b"made up");
        for (policy, method) in [
            (Policy::DemandOnly, None),
            (Policy::Neighbours, None),
            (Policy::VmTorrent, Some(Method::VmTorrent)),
            (Policy::VTube, Some(Method::VTube)),
            (Policy::Floe, Some(Method::Floe)),
        ] {
            let options = TrainOptions::default();
            let model = method.map(|m| Arc::new(train(m, &hash, &traces[1..], &options)));
            let run = run_with(&image, &traces[0], policy, model.clone());
            check(&run, &traces[0]);
            let again = run_with(&image, &traces[0], policy, model);
            assert_eq!(run, again, "{policy:?}");
            if policy == Policy::DemandOnly {
                assert_eq!((run.fetched, run.missed), (run.accessed, run.accessed));
            }
        }
    }
}

#[test]
fn a_trace_of_an_unknown_region_is_refused() {
    let mut trace = trace(&[(1, 0)], 1);
    trace.accesses[0].region = 3;
    let (image, link) = (image(&[1]), link());
    let setup = Setup {
        image: &image,
        trace: &trace,
        link: &link,
        config: Config::default(),
        model: None,
        preamble_bytes: 0,
    };
    assert!(matches!(replay(&setup), Err(ReplayError::Region(3))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_link_never_carries_more_than_it_can(
        asks in proptest::collection::vec((0u64..50_000_000, any::<bool>(), 0u64..300, 1usize..9000), 1..120),
        rate in 100_000u64..100_000_000,
    ) {
        let link = LinkSpec { rate: Rate::BitsPerSecond(rate), ..link() };
        let mut download = Download::new(&link);
        let (mut now, mut wanted, mut came) = (0, std::collections::BTreeSet::new(), Vec::new());
        let mut largest = 0;
        for (wait, demand, chunk, bytes) in asks {
            let until = now + wait;
            while let Some(at) = download.next_ns().filter(|at| *at <= until) {
                came.extend(download.advance(at).map(|item| (at, item)));
            }
            now = until;
            let item = Item::Chunk(0, chunk);
            largest = largest.max(bytes);
            if !wanted.insert(item) {
                continue;
            }
            if demand {
                download.demand(now, item, bytes);
            } else {
                download.prefetch(item, bytes);
                download.send(now);
            }
            let able = now as u128 * u128::from(rate) / 8_000_000_000;
            prop_assert!(u128::from(download.carried().wire_bytes) <= able);
        }
        while let Some(at) = download.next_ns() {
            prop_assert!(at >= now);
            now = at;
            came.extend(download.advance(at).map(|item| (at, item)));
            let able = now as u128 * u128::from(rate) / 8_000_000_000;
            prop_assert!(u128::from(download.carried().wire_bytes) <= able);
        }
        prop_assert!(download.is_idle());
        let came: Vec<Item> = came.into_iter().map(|(_, item)| item).collect();
        prop_assert_eq!(came.len(), wanted.len(), "each once");
        prop_assert!(came.iter().all(|item| wanted.contains(item)));
    }

    #[test]
    fn every_access_is_served_whatever_the_run(
        touches in proptest::collection::btree_map(0u32..5000, 0u64..20_000_000, 1..150),
        rate in 200_000u64..50_000_000,
        rtt_ms in 1u64..300,
        neighbours in any::<bool>(),
        disk in any::<bool>(),
        step_us in 1u64..2_000_000,
    ) {
        let chunks: Vec<u64> = touches.keys().map(|c| u64::from(*c)).collect();
        // In steps, so that some are one request.
        let stepped = touches.into_iter().map(|(chunk, t_us)| (chunk, t_us - t_us % step_us));
        let mut accesses: Vec<(u32, u64)> = stepped.collect();
        accesses.sort_by_key(|(_, t_us)| *t_us);
        let trace = trace(&accesses, 21_000_000);
        let link = LinkSpec { name: "any".into(), rate: Rate::BitsPerSecond(rate), rtt_ns: rtt_ms * 1_000_000 };
        let policy = if neighbours { Policy::Neighbours } else { Policy::DemandOnly };
        let config = Config { policy, ..Config::default() };
        let image = image_of(if disk { Urgency::Storage } else { Urgency::Memory }, &chunks);
        let run = replay(&Setup { image: &image, trace: &trace, link: &link, config, model: None, preamble_bytes: 5000 }).unwrap();
        check(&run, &trace);
        let able = u128::from(run.end_ns) * u128::from(rate) / 8_000_000_000;
        prop_assert!(u128::from(run.wire_bytes) <= able);
    }
}

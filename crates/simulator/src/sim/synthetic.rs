//! Generated workloads: bursts of state in an order that differs from run to run, as in section 4.1 of the vTube paper.
use floe_planner::{Timed, Urgency, ZeroTrace};
use floe_testbed::shape::{ImageShape, RegionShape};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::BTreeSet;

/// The properties of a workload's runs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of things that a user can do; each touches its own state in a burst.
    pub activities: usize,
    /// Number of these activities in a run.
    pub activities_per_run: usize,
    /// Chunks of the burst at the start, which all runs have.
    pub start_chunks: u32,
    /// Mean number of chunks in an activity's burst.
    pub burst_chunks: u32,
    /// Chunks of a run that no other run touches.
    pub lonely_chunks: u32,
    /// Mean time between two activities, in microseconds.
    pub gap_us: u64,
    /// The time over which a burst is spread, in microseconds.
    pub burst_us: u64,
    /// Whether each run does its activities in a different order.
    pub shuffled: bool,
}

impl Shape {
    /// Like a game: much variation.
    pub const INTERACTIVE: Shape = Shape {
        activities: 24,
        activities_per_run: 8,
        start_chunks: 2_500,
        burst_chunks: 600,
        lonely_chunks: 40,
        gap_us: 12_000_000,
        burst_us: 1_000_000,
        shuffled: true,
    };

    /// Like a compilation: every run is the same.
    pub const FIXED: Shape = Shape {
        activities: 10,
        activities_per_run: 10,
        start_chunks: 2_000,
        burst_chunks: 500,
        lonely_chunks: 5,
        gap_us: 5_000_000,
        burst_us: 1_500_000,
        shuffled: false,
    };
}

/// Number of chunks in each of the two regions that runs use.
const REGION_CHUNKS: u32 = 1 << 18;
/// Most neighbouring chunks in a row in a burst.
const RUN_CHUNKS_MAX: u32 = 48;

/// Generates runs and their image. The same seed generates the same.
pub fn workload(shape: &Shape, runs: usize, seed: u64) -> (ImageShape, Vec<ZeroTrace>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut taken = BTreeSet::new();
    let start = burst(&mut random, &mut taken, shape.start_chunks);
    let activities: Vec<Vec<(u8, u32)>> = (0..shape.activities)
        .map(|_| {
            let chunks = random.random_range(shape.burst_chunks / 3..=shape.burst_chunks * 5 / 3);
            burst(&mut random, &mut taken, chunks.max(1))
        })
        .collect();
    let traces: Vec<ZeroTrace> = (0..runs)
        .map(|_| {
            let mut accesses = Vec::new();
            spread(&mut random, &mut accesses, &start, 0, 2 * shape.burst_us);
            let mut at_us = 2 * shape.burst_us;
            let mut order: Vec<usize> = (0..shape.activities).collect();
            if shape.shuffled {
                order.shuffle(&mut random);
            }
            for activity in order.into_iter().take(shape.activities_per_run) {
                at_us += random.random_range(shape.gap_us / 2..=shape.gap_us * 3 / 2);
                // Not every run completes its activities.
                let all = &activities[activity];
                let part = if shape.shuffled {
                    random.random_range(all.len() * 7 / 10..=all.len())
                } else {
                    all.len()
                };
                spread(
                    &mut random,
                    &mut accesses,
                    &all[..part],
                    at_us,
                    shape.burst_us,
                );
                at_us += shape.burst_us;
            }
            let lonely = burst(&mut random, &mut taken, shape.lonely_chunks);
            for (region, chunk) in lonely {
                let t_us = random.random_range(0..at_us);
                accesses.push(Timed {
                    region,
                    chunk,
                    t_us,
                });
            }
            accesses.sort_by_key(|a| (a.t_us, a.region, a.chunk));
            ZeroTrace {
                accesses,
                end_us: at_us + shape.gap_us,
            }
        })
        .collect();
    let mut regions = [Urgency::Memory, Urgency::Storage]
        .map(|urgency| RegionShape::new(REGION_CHUNKS.into(), urgency));
    for (region, chunk) in &taken {
        regions[usize::from(*region)].put(u64::from(*chunk));
    }
    // Chunks that no run touches, but that a prefetch of neighbours would fetch.
    for region in &mut regions {
        for _ in 0..region.nonzero_chunks() / 2 {
            region.put(random.random_range(0..u64::from(REGION_CHUNKS)));
        }
    }
    let image = ImageShape {
        regions: regions.into(),
        chunk_wire_bytes: 1450,
    };
    (image, traces)
}

/// Returns chunks that nothing else uses, in rows of neighbours.
fn burst(random: &mut StdRng, taken: &mut BTreeSet<(u8, u32)>, chunks: u32) -> Vec<(u8, u32)> {
    let mut found = Vec::with_capacity(chunks as usize);
    while found.len() < chunks as usize {
        let region = u8::from(random.random_bool(0.3));
        let first = random.random_range(0..REGION_CHUNKS - RUN_CHUNKS_MAX);
        let length = random.random_range(1..=RUN_CHUNKS_MAX);
        for chunk in first..first + length {
            if found.len() < chunks as usize && taken.insert((region, chunk)) {
                found.push((region, chunk));
            }
        }
    }
    found
}

/// Adds touches at even intervals, with some random variation.
fn spread(
    random: &mut StdRng,
    accesses: &mut Vec<Timed>,
    chunks: &[(u8, u32)],
    from_us: u64,
    over_us: u64,
) {
    let step = over_us / chunks.len().max(1) as u64;
    for (n, (region, chunk)) in chunks.iter().enumerate() {
        let t_us = from_us + n as u64 * step + random.random_range(0..=step);
        accesses.push(Timed {
            region: *region,
            chunk: *chunk,
            t_us,
        });
    }
}

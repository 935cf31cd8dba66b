//! Traces with the waiting taken out, by themselves and as a table of all from which a model is made.

use super::{ChunkAt, MODEL_CHUNKS_MAX};
use floe_image::{Access, TraceReader};
use std::collections::HashSet;

/// How many accesses of a trace are used; later ones are left out. 200,000 chunks are 800 MB.
pub const ACCESSES_MAX: usize = 200_000;

/// A first access, at the time at which a machine that never waits would have made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timed {
    /// Microseconds since the start.
    pub t_us: u64,
    /// The region's number in the manifest.
    pub region: u8,
    /// The chunk's number in the region.
    pub chunk: u32,
}

/// A trace with the waiting taken out (vTube 3, step 5: the zero-latency idealised trace).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZeroTrace {
    /// First accesses ordered by time, each chunk once.
    pub accesses: Vec<Timed>,
    /// When the trace ends, in microseconds since its start.
    pub end_us: u64,
}

impl ZeroTrace {
    /// Makes one from a trace, to its end or to [`ACCESSES_MAX`] accesses.
    pub fn from_reader(reader: TraceReader<'_>) -> ZeroTrace {
        ZeroTrace::from_accesses(reader)
    }

    /// Makes one from accesses. A machine with several virtual CPUs waits for several chunks at once: the intervals `[t_us,
    /// t_us + wait_us)` are merged, so that time in which several CPUs waited is taken out once.
    pub fn from_accesses(accesses: impl IntoIterator<Item = Access>) -> ZeroTrace {
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        // Waiting before the present access: the sum of the intervals that are over, and the one that is still open.
        let (mut waited, mut open_from, mut open_to) = (0u64, 0u64, 0u64);
        let mut last = 0;
        for access in accesses.into_iter().take(ACCESSES_MAX) {
            let t = access.t_us.max(last);
            last = t;
            if t >= open_to {
                waited = waited.saturating_add(open_to - open_from);
                (open_from, open_to) = (t, t);
            }
            let t_us = t.saturating_sub(waited).saturating_sub(t - open_from);
            open_to = open_to.max(t.saturating_add(access.wait_us));
            if seen.insert((access.region, access.chunk)) {
                out.push(Timed {
                    t_us,
                    region: access.region,
                    chunk: access.chunk,
                });
            }
        }
        let end_us = out.last().map_or(0, |a| a.t_us);
        ZeroTrace {
            accesses: out,
            end_us,
        }
    }
}

/// The distinct chunks of all traces, and each trace as numbers of them.
pub(super) struct Table {
    pub chunks: Vec<ChunkAt>,
    /// For each trace (number of the chunk, microseconds), ordered by time.
    pub traces: Vec<Vec<(u32, u64)>>,
}

impl Table {
    pub fn new(traces: &[&ZeroTrace]) -> Table {
        let most = ACCESSES_MAX.min(MODEL_CHUNKS_MAX / traces.len().max(1));
        let accesses = |t: &ZeroTrace| -> Vec<(ChunkAt, u64)> {
            let taken = t.accesses.iter().take(most);
            let at = |a: &Timed| ChunkAt {
                region: a.region,
                chunk: a.chunk,
            };
            taken.map(|a| (at(a), a.t_us)).collect()
        };
        let all = traces.iter().flat_map(|t| accesses(t));
        let mut chunks: Vec<ChunkAt> = all.map(|(at, _)| at).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let numbered = traces.iter().map(|t| {
            let mut row: Vec<(u32, u64)> = accesses(t)
                .into_iter()
                .filter_map(|(at, t)| Some((chunks.binary_search(&at).ok()? as u32, t)))
                .collect();
            // Traces needn't be trusted: each chunk is kept once, and they are ordered by time.
            row.sort_unstable();
            row.dedup_by_key(|(i, _)| *i);
            row.sort_by_key(|(_, t)| *t);
            row
        });
        let traces = numbered.collect();
        Table { chunks, traces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(chunk: u32, t_us: u64, wait_us: u64) -> Access {
        Access {
            region: 0,
            chunk,
            t_us,
            wait_us,
        }
    }

    fn times(accesses: &[Access]) -> Vec<u64> {
        let zero = ZeroTrace::from_accesses(accesses.iter().copied());
        zero.accesses.iter().map(|a| a.t_us).collect()
    }

    #[test]
    fn waiting_is_taken_out_of_all_that_follows() {
        assert_eq!(
            times(&[at(0, 100, 50), at(1, 160, 1000), at(2, 1170, 0)]),
            [100, 110, 120]
        );
    }

    #[test]
    fn overlapping_waits_are_merged_and_not_added_up() {
        // Two virtual CPUs wait from 100 to 300 and from 200 to 400; the third access comes 10 after both are over.
        assert_eq!(
            times(&[at(0, 100, 200), at(1, 200, 200), at(2, 410, 0)]),
            [100, 100, 110]
        );
    }

    #[test]
    fn a_chunk_counts_once_and_a_long_trace_is_cut() {
        let twice = ZeroTrace::from_accesses([at(7, 0, 0), at(7, 5, 0)]);
        assert_eq!(twice.accesses.len(), 1);
        let long = ZeroTrace::from_accesses((0..300_000).map(|i| at(i, u64::from(i), 0)));
        assert_eq!(long.accesses.len(), ACCESSES_MAX);
    }

    proptest! {
        #[test]
        fn time_never_runs_backwards_nor_faster_than_the_machine(
            raw in proptest::collection::vec((any::<u16>(), 0u64..1 << 62, 0u64..1 << 62), 0..60)
        ) {
            let mut raw: Vec<_> = raw.into_iter().map(|(c, t, w)| at(c.into(), t, w)).collect();
            raw.sort_by_key(|a| a.t_us);
            let zero = ZeroTrace::from_accesses(raw.iter().copied());
            prop_assert!(zero.accesses.windows(2).all(|w| w[0].t_us <= w[1].t_us));
            for a in &zero.accesses {
                prop_assert!(raw.iter().any(|r| r.chunk == a.chunk && a.t_us <= r.t_us));
            }
        }
    }
}

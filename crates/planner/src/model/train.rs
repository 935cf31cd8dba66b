//! Makes a model from traces. It uses no floating point and nothing depends on the order of a hash map: the same traces in any
//! order, on any machine, give the same bytes.

use super::partition::{Cut, partition};
use super::{
    ACCESSES_MAX, Body, ChunkAt, Cluster, MODEL_CHUNKS_MAX, Method, Model, Row, Seen, TRACES_MAX,
    ZeroTrace,
};
use floe_image::Hash;

/// How clusters are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// Accesses further apart than this belong to different clusters (vTube 4.2.1: 2 s), in microseconds.
    pub clustering_interval_us: u64,
    /// The same for this project's own method.
    pub floe_interval_us: u64,
    /// This project's own method also cuts a cluster that has lasted this long in a trace, in microseconds: otherwise a film
    /// that plays without a pause would be one cluster, and its time would say nothing.
    pub floe_span_us: u64,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            clustering_interval_us: 2_000_000,
            floe_interval_us: 1_000_000,
            floe_span_us: 4_000_000,
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
    fn new(traces: &[&ZeroTrace]) -> Table {
        let most = ACCESSES_MAX.min(MODEL_CHUNKS_MAX / traces.len().max(1));
        let accesses = |t: &ZeroTrace| -> Vec<(ChunkAt, u64)> {
            let taken = t.accesses.iter().take(most);
            let at = |a: &super::Timed| ChunkAt {
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

fn ms(us: u64) -> u32 {
    u32::try_from(us / 1000).unwrap_or(u32::MAX)
}

/// Trains a model. Equal traces count once (so repeating a trace gives it no more weight), and at most [`TRACES_MAX`] count at
/// all. A single trace can add at most [`ACCESSES_MAX`] chunks, each recorded as seen in that trace only; all traces together
/// give at most [`MODEL_CHUNKS_MAX`] accesses.
pub fn train(method: Method, image: &Hash, traces: &[ZeroTrace], options: &TrainOptions) -> Model {
    let mut sorted: Vec<&ZeroTrace> = traces.iter().filter(|t| !t.accesses.is_empty()).collect();
    sorted.sort();
    sorted.dedup();
    sorted.truncate(TRACES_MAX);
    let table = Table::new(&sorted);
    let body = match method {
        Method::VmTorrent => Body::Profile(profile(&table)),
        Method::VTube => Body::Clusters(clusters(
            &table,
            Cut {
                interval_us: options.clustering_interval_us,
                span_us: u64::MAX,
            },
        )),
        Method::Floe => Body::Clusters(clusters(
            &table,
            Cut {
                interval_us: options.floe_interval_us,
                span_us: options.floe_span_us,
            },
        )),
    };
    Model {
        method,
        image: *image,
        traces: sorted.len() as u32,
        body,
    }
}

/// Makes a profile (VMTorrent 2.2.3): the mean time of the first access, and in how many runs, earliest first.
fn profile(table: &Table) -> Vec<Row> {
    let mut sums = vec![(0u128, 0u32); table.chunks.len()];
    for (i, t) in table.traces.iter().flatten() {
        let (sum, seen) = &mut sums[*i as usize];
        *sum += u128::from(*t);
        *seen += 1;
    }
    let mut rows: Vec<(u128, Row)> = Vec::with_capacity(sums.len());
    for (at, (sum, seen)) in table.chunks.iter().zip(sums) {
        let mean_us = sum / u128::from(seen.max(1));
        let mean_ms = ms(u64::try_from(mean_us).unwrap_or(u64::MAX));
        rows.push((
            mean_us,
            Row {
                at: *at,
                mean_ms,
                seen,
            },
        ));
    }
    rows.sort_by_key(|(mean_us, row)| (*mean_us, row.at));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn clusters(table: &Table, cut: Cut) -> Vec<Cluster> {
    let labels = partition(table, cut);
    let n = labels.iter().max().map_or(0, |m| *m as usize + 1);
    let mut clusters = vec![Cluster::default(); n];
    // For each chunk the sum over the traces of the time since its cluster's first access, which orders the chunks within it.
    let mut offsets = vec![0u128; table.chunks.len()];
    for (number, trace) in table.traces.iter().enumerate() {
        let number = number as u32;
        let mut first = vec![None; n];
        for (i, t) in trace {
            let label = labels[*i as usize] as usize;
            let since = *first[label].get_or_insert(*t);
            offsets[*i as usize] += u128::from(t - since);
            let seen = &mut clusters[label].seen;
            match seen.last_mut() {
                Some(last) if last.trace == number => last.last_ms = ms(*t),
                _ => seen.push(Seen {
                    trace: number,
                    first_ms: ms(*t),
                    last_ms: ms(*t),
                }),
            }
        }
    }
    for (i, label) in labels.iter().enumerate() {
        clusters[*label as usize].chunks.push(table.chunks[i]);
    }
    // Chunks were added in the order of `table.chunks`, so a search finds their numbers again.
    for cluster in &mut clusters {
        let at = |c: &ChunkAt| table.chunks.binary_search(c).map_or(0, |i| offsets[i]);
        cluster.chunks.sort_by_cached_key(|c| (at(c), *c));
    }
    clusters.sort_by_cached_key(|c| (c.mean_ms(), c.chunks.first().copied()));
    clusters
}

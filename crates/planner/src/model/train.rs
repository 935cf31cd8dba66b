//! Makes a model from traces. It uses no floating point and nothing depends on the order of a hash map: the same traces in any
//! order, on any machine, give the same bytes.

use super::partition::{Cut, partition};
use super::zero::Table;
use super::{Body, ChunkAt, Cluster, Method, Model, Row, Seen, TRACES_MAX, ZeroTrace};
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

fn ms(us: u64) -> u32 {
    u32::try_from(us / 1000).unwrap_or(u32::MAX)
}

/// Trains a model. Equal traces count once (so repeating a trace gives it no more weight), and at most [`TRACES_MAX`] count at
/// all. A single trace can add at most [`ACCESSES_MAX`](super::ACCESSES_MAX) chunks, each recorded as seen in that trace only; all
/// traces together give at most [`MODEL_CHUNKS_MAX`](super::MODEL_CHUNKS_MAX) accesses.
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

//! Divides chunks into disjoint clusters (vTube 4.2.1).
//!
//! The paper groups each trace by a clustering interval, then replaces overlapping clusters of different traces by their
//! intersection and complements until none overlap. The result can be stated directly: two chunks are in the same cluster
//! exactly if every trace has both in one of its clusters or has neither. So each trace refines one labelling of the chunks,
//! which takes time in proportion to its accesses, not to pairs of clusters. Then the interval is checked again: chunks between
//! two of a cluster may have gone to another one, and the rest may be too far apart.

use super::zero::Table;
use std::collections::HashMap;

/// How often the second check is repeated; each time only splits what is still too far apart.
const RECHECKS_MAX: usize = 8;

/// Where a trace is cut into clusters.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Cut between accesses that are further apart than this.
    pub interval_us: u64,
    /// Cut when a cluster has lasted this long.
    pub span_us: u64,
}

/// Returns a label for each chunk; labels are numbered from 0 without gaps.
pub(super) fn partition(table: &Table, cut: Cut) -> Vec<u32> {
    let mut labels = vec![0u32; table.chunks.len()];
    let mut next = 1u32;
    for trace in &table.traces {
        refine(&mut labels, &mut next, trace, cut);
    }
    for _ in 0..RECHECKS_MAX {
        let before = next;
        for trace in &table.traces {
            recheck(&mut labels, &mut next, trace, cut);
        }
        if before == next {
            break;
        }
    }
    // Refining leaves labels that no chunk has any more.
    let mut names = HashMap::new();
    for label in &mut labels {
        let new = names.len() as u32;
        *label = *names.entry(*label).or_insert(new);
    }
    labels
}

/// Splits every cluster by this trace's bursts: chunks stay together if they were in the same burst.
fn refine(labels: &mut [u32], next: &mut u32, trace: &[(u32, u64)], cut: Cut) {
    let mut new: HashMap<(u32, u32), u32> = HashMap::new();
    let first = trace.first().map_or(0, |(_, t)| *t);
    let (mut burst, mut start, mut last) = (0u32, first, first);
    for (i, t) in trace {
        if t - last > cut.interval_us || t - start > cut.span_us {
            burst += 1;
            start = *t;
        }
        last = *t;
        let label = &mut labels[*i as usize];
        let name = new.entry((*label, burst)).or_insert_with(|| {
            *next += 1;
            *next
        });
        *label = *name;
    }
}

/// Splits clusters whose chunks are further apart in this trace than the interval.
fn recheck(labels: &mut [u32], next: &mut u32, trace: &[(u32, u64)], cut: Cut) {
    // For each cluster: its last access, and the label of what came after the last gap.
    let mut state: HashMap<u32, (u64, u32)> = HashMap::new();
    for (i, t) in trace {
        let label = &mut labels[*i as usize];
        let (last, name) = state.entry(*label).or_insert((*t, *label));
        if *t - *last > cut.interval_us {
            *next += 1;
            *name = *next;
        }
        *last = *t;
        *label = *name;
    }
}

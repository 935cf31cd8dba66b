//! vTube's choice of clusters as published (4.2.2), for comparison.

use super::groups::Groups;
use super::plan::{Planned, Timelines};
use crate::Config;
use crate::model::{Cluster, Model, follows_after};

/// A pause shorter than this isn't worth the interruption, in microseconds. The paper names no bound; with this one and the next it has
/// been compared with our own rule from the beginning, whatever that one's are.
pub(crate) const PAUSE_US_MIN: u64 = 200_000;
/// The shortest time that the machine runs between two pauses, in microseconds.
pub(crate) const RUN_US_MIN: u64 = 250_000;
/// A cluster isn't handled again within this time, in microseconds: a burst misses in it many times at once.
const AGAIN_US: u64 = 1_000_000;

/// What all machines of an image share of the rule.
#[derive(Debug)]
pub(crate) struct VTube {
    timelines: Timelines,
    /// For each cluster the fraction of all chunks that are in smaller clusters.
    percentile: Vec<f64>,
}

/// The clusters that are selected for one machine, and when each is needed.
#[derive(Debug)]
pub(crate) struct Selected {
    /// The earliest time at which a selected cluster is needed, on the machine's own clock; `u64::MAX` if it isn't selected.
    due_us: Vec<u64>,
    last_trigger: Option<(Option<u32>, u64)>,
    pub hint_at_us: u64,
}

/// Returns for each cluster the fraction of all chunks that are in smaller clusters.
pub(crate) fn percentiles(clusters: &[Cluster]) -> Vec<f64> {
    let mut sizes: Vec<usize> = clusters.iter().map(|c| c.chunks.len()).collect();
    sizes.sort_unstable();
    let all: usize = sizes.iter().sum();
    let mut before = Vec::with_capacity(sizes.len());
    let mut sum = 0;
    for size in &sizes {
        before.push(sum);
        sum += size;
    }
    let of = |size: usize| before[sizes.partition_point(|s| *s < size)];
    clusters
        .iter()
        .map(|c| of(c.chunks.len()) as f64 / all.max(1) as f64)
        .collect()
}

impl Selected {
    /// Nothing is selected yet.
    pub(crate) fn new(model: &Model, config: &Config) -> Self {
        Self {
            due_us: vec![u64::MAX; model.clusters().len()],
            last_trigger: None,
            hint_at_us: config.hint_us,
        }
    }

    /// Returns the selected clusters that aren't all here, ordered by the time at which they are needed.
    pub(crate) fn plan(&self, groups: &Groups) -> Vec<Planned> {
        let wanted = (0..self.due_us.len() as u32).filter(|g| groups.missing_chunks(*g) > 0);
        let mut plan: Vec<Planned> = wanted
            .filter(|g| self.due_us[*g as usize] != u64::MAX)
            .map(|g| Planned {
                group: g,
                due_us: self.due_us[g as usize],
                order_us: self.due_us[g as usize],
                sure: true,
                backed: true,
            })
            .collect();
        plan.sort_by_key(|p| (p.order_us, p.group));
        plan
    }
}

impl VTube {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            timelines: Timelines::new(model),
            percentile: percentiles(model.clusters()),
        }
    }

    /// Selects what follows cluster `x` (`None`: the machine's start); returns false if that was done a moment ago.
    pub(crate) fn trigger(
        &mut self,
        selected: &mut Selected,
        model: &Model,
        x: Option<u32>,
        run_us: u64,
        config: &Config,
    ) -> bool {
        let again = |(last, at): (Option<u32>, u64)| last == x && run_us < at + AGAIN_US;
        if selected.last_trigger.is_some_and(again) {
            return false;
        }
        selected.last_trigger = Some((x, run_us));
        let clusters = model.clusters();
        let window_ms = config.lookout_us / 1000;
        let mut found = std::mem::take(&mut self.timelines.scratch);
        let traces = match x {
            Some(x) => clusters[x as usize].seen.len(),
            None => self.timelines.traces.len(),
        };
        for (number, line) in self.timelines.traces.iter().enumerate() {
            let from = match x {
                None => None,
                Some(x) => {
                    let seen = &clusters[x as usize].seen;
                    let Ok(i) = seen.binary_search_by_key(&(number as u32), |s| s.trace) else {
                        continue;
                    };
                    Some(seen[i])
                }
            };
            for (seen, y) in line {
                let interval = match &from {
                    None => Some(seen.first_ms),
                    Some(x) => follows_after(x, seen),
                };
                if let Some(ms) = interval.filter(|ms| u64::from(*ms) <= window_ms) {
                    found.add(*y, 1.0, ms);
                }
            }
        }
        for (y, follows, interval_ms) in found.drain() {
            let probability = follows / traces.max(1) as f64;
            if probability > self.percentile[y as usize] || Some(y) == x {
                let due = run_us + u64::from(interval_ms) * 1000;
                let known = &mut selected.due_us[y as usize];
                *known = due.min(*known);
            }
        }
        self.timelines.scratch = found;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ChunkAt;

    #[test]
    fn a_percentile_is_the_share_of_chunks_in_smaller_clusters() {
        let cluster = |n: u32| Cluster {
            chunks: (0..n).map(|chunk| ChunkAt { region: 0, chunk }).collect(),
            seen: Vec::new(),
        };
        let all = [cluster(1), cluster(6), cluster(1), cluster(2)];
        assert_eq!(percentiles(&all), [0.0, 0.4, 0.0, 0.2]);
    }
}

//! The runs of `stream-sim`, and which of its workloads they are of.
use floe_simulator::sim::sweep::Key;
use floe_simulator::sim::{LinkSpec, Run};
use floe_testbed::traces::Workload;
use std::collections::{BTreeMap, BTreeSet};

/// Workloads that a user drives: what they touch differs most from run to run.
const INTERACTIVE: [&str; 5] = ["desktop", "gallery", "game", "mixed", EVERYONE];
/// The combined workload of all users of the image that has most workloads.
pub const EVERYONE: &str = "everyone";
/// Workloads that do the same every time.
pub const STEADY: [&str; 4] = ["compile", "playback", "video", "audio"];

/// All runs of an experiment.
pub struct Runs {
    /// What was replayed.
    pub workloads: Vec<Workload>,
    /// The links.
    pub links: Vec<LinkSpec>,
    /// The results.
    pub runs: BTreeMap<Key, Run>,
}

/// Returns the share of what a run touches that another run of the workload doesn't, averaged over all pairs.
pub fn variation(workload: &Workload) -> f64 {
    let sets: Vec<BTreeSet<(u8, u32)>> = workload
        .traces
        .iter()
        .map(|t| t.accesses.iter().map(|a| (a.region, a.chunk)).collect())
        .collect();
    let (mut sum, mut pairs) = (0.0, 0.0);
    for (n, one) in sets.iter().enumerate() {
        for (_, other) in sets.iter().enumerate().filter(|(m, _)| *m != n) {
            let alone = one.difference(other).count();
            sum += alone as f64 / one.len().max(1) as f64;
            pairs += 1.0;
        }
    }
    sum / f64::max(pairs, 1.0)
}

impl Runs {
    /// Returns the index of the interactive workload whose runs differ most; of all workloads if none is interactive.
    pub fn most_variable(&self) -> usize {
        let by_variation = |numbers: &[usize]| {
            let variation = |n: &usize| variation(&self.workloads[*n]);
            let most = numbers
                .iter()
                .max_by(|a, b| variation(a).total_cmp(&variation(b)));
            most.copied()
        };
        let all: Vec<usize> = (0..self.workloads.len()).collect();
        let interactive: Vec<usize> = all
            .iter()
            .copied()
            .filter(|n| self.is_one_of(*n, &INTERACTIVE))
            .collect();
        by_variation(&interactive)
            .or_else(|| by_variation(&all))
            .unwrap_or(0)
    }

    /// Returns the index of a workload that does the same every time.
    pub fn steady(&self) -> usize {
        let all = 0..self.workloads.len();
        let mut steady = all.filter(|n| self.is_one_of(*n, &STEADY));
        steady.next_back().unwrap_or(0)
    }

    /// Returns whether the name of a workload has one of these in it.
    pub fn is_one_of(&self, workload: usize, kinds: &[&str]) -> bool {
        let name = &self.workloads[workload].meta.workload;
        kinds.iter().any(|kind| name.contains(kind))
    }

    /// Returns all runs of a workload, a link and a policy; `None` means all of them.
    pub fn of(
        &self,
        workload: Option<usize>,
        link: Option<usize>,
        policy: usize,
    ) -> impl Iterator<Item = &Run> {
        self.runs
            .iter()
            .filter(move |(key, _)| {
                key.policy == policy
                    && workload.is_none_or(|w| w == key.workload)
                    && link.is_none_or(|l| l == key.link)
            })
            .map(|(_, run)| run)
    }
}

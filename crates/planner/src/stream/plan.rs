//! What is planned, and whether the link can keep up with it.

use super::groups::Groups;
use crate::model::{Model, Seen};
use crate::{Config, Link};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A group that is to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub group: u32,
    /// When it is needed on the machine's own clock (paused time not counted), in microseconds.
    pub due_us: u64,
    /// The time by which the plan is ordered for sending, in microseconds.
    pub order_us: u64,
    /// Whether it is probable enough to pause the machine for it.
    pub sure: bool,
    /// Whether enough traces have it; otherwise it counts as speculation.
    pub backed: bool,
}

/// How long a machine that goes on now would have to wait, by a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lateness {
    /// The longest wait for anything in the plan, in microseconds.
    pub us: u64,
    /// Bytes that have to arrive before the link can keep up with the rest (vTube 4.2.3).
    pub bytes: u64,
}

/// What is planned for one machine, and its own time.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<'a> {
    /// Ordered by `order_us`.
    pub plan: &'a [Planned],
    pub run_us: u64,
}

/// Computes the lateness of each machine of an image, in their order. Their plans are sent in turns, and what two of them plan
/// is sent once. Groups that aren't sure aren't waited for, but those that are sent earlier take their time.
pub(crate) fn lateness(
    all: &[Ahead<'_>],
    groups: &Groups,
    link: Link,
    config: &Config,
) -> Vec<Lateness> {
    let mut bytes = 0.0;
    let mut us = vec![0.0f64; all.len()];
    let mut at = vec![0; all.len()];
    // Whose turn it is: who has least of its own on the way.
    let mut turns: BinaryHeap<_> = (0..all.len()).map(|n| Reverse((0u64, n))).collect();
    // How many bytes come before the end of each group that another machine may plan too.
    let mut come: HashMap<u32, f64> = HashMap::new();
    while let Some(Reverse((sent, n))) = turns.pop() {
        let mut own = sent;
        while own == sent || turns.is_empty() {
            let Some(planned) = all[n].plan.get(at[n]) else {
                break;
            };
            at[n] += 1;
            let missing = groups.missing_chunks(planned.group);
            if missing == 0 {
                continue;
            }
            let known = come.get(&planned.group).copied();
            let end = known.unwrap_or_else(|| {
                bytes += f64::from(missing) * config.wire_bytes();
                own += u64::from(missing);
                bytes
            });
            if known.is_none() && all.len() > 1 {
                come.insert(planned.group, end);
            }
            if planned.sure {
                let left = planned.due_us.saturating_sub(all[n].run_us) as f64;
                us[n] = us[n].max(end / link.bytes_per_s * 1e6 - left);
            }
        }
        if at[n] < all[n].plan.len() {
            turns.push(Reverse((own, n)));
        }
    }
    let late = |us: &f64| Lateness {
        us: *us as u64,
        bytes: (us / 1e6 * link.bytes_per_s) as u64,
    };
    us.iter().map(late).collect()
}

/// The clusters of each trace, ordered by time.
#[derive(Debug)]
pub(crate) struct Timelines {
    pub traces: Vec<Vec<(Seen, u32)>>,
    pub scratch: Scratch,
}

impl Timelines {
    pub(crate) fn new(model: &Model) -> Self {
        let mut traces: Vec<Vec<(Seen, u32)>> = vec![Vec::new(); model.traces() as usize];
        for (g, cluster) in model.clusters().iter().enumerate() {
            for seen in &cluster.seen {
                if let Some(line) = traces.get_mut(seen.trace as usize) {
                    line.push((*seen, g as u32));
                }
            }
        }
        for line in &mut traces {
            line.sort_by_key(|(seen, g)| (seen.first_ms, *g));
        }
        Self {
            traces,
            scratch: Scratch::new(model.clusters().len()),
        }
    }
}

/// Sums for groups, which are cleared without going through all groups each time.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    sums: Vec<(f64, u32)>,
    used: Vec<u32>,
}

impl Scratch {
    fn new(groups: usize) -> Self {
        Self {
            sums: vec![(0.0, u32::MAX); groups],
            used: Vec::new(),
        }
    }

    /// Adds weight to a group, and keeps the least of its times.
    pub(crate) fn add(&mut self, group: u32, weight: f64, ms: u32) {
        let (sum, least) = &mut self.sums[group as usize];
        if *least == u32::MAX && *sum == 0.0 {
            self.used.push(group);
        }
        *sum += weight;
        *least = ms.min(*least);
    }

    /// Returns all groups that something was added to, with sum and least time, and clears them.
    pub(crate) fn drain(&mut self) -> Vec<(u32, f64, u32)> {
        let used = std::mem::take(&mut self.used);
        used.into_iter()
            .map(|g| {
                let (sum, least) = std::mem::replace(&mut self.sums[g as usize], (0.0, u32::MAX));
                (g, sum, least)
            })
            .collect()
    }
}

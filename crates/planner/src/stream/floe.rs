//! This project's own rule: follows every trace at once, and weighs what each says by how well it has predicted this run so far
//! (VMTorrent's paper calls that the weighted combination of the best matches of several profiles, 2.2.3).
//!
//! Each machine has a *follower* of each trace: where in that trace the machine is now, judged by the clusters that it touched
//! last, and a score, the share of touched clusters that the trace has. A cluster's probability is the weight of the traces that still have
//! it ahead of them; the time until it is needed is a distribution over these traces, of which the mean and the minimum are
//! used. Cost and benefit decide what is fetched: fetching ahead saves a round trip and the transfer with that probability, and
//! costs bytes; pausing the machine for it saves the same, and costs the transfer for certain.
//!
//! Clusters are of two classes. *Backed* ones are probable and were seen in two traces (in one, if there are no more than two).
//! All others are *speculative*; what is fetched of them in vain is bounded by [`Config::speculation_ratio`] times what was
//! touched or is backed, whatever the traces say, so that a hostile trace can't cause fetches without limit.

use super::groups::Groups;
use super::plan::{Planned, Timelines};
use crate::model::Model;
use crate::{Config, Link};

/// With no more traces than this, one is enough to back a cluster; otherwise nothing could ever be fetched.
const FEW_TRACES: u32 = 2;
/// Factor by which a follower's score decays with each cluster: about the last fifty count.
const SCORE_KEPT: f64 = 0.98;
/// The power to which scores are raised: a trace that predicted 95 % weighs twice as much as one that predicted 80 %.
const SCORE_POWER: i32 = 4;
/// Weight of doubt: a cluster that all of n equal traces have is needed with probability n / (n + this).
const DOUBT: f64 = 0.25;
/// A cluster that began at most this long before the follower's position may still be going on, in milliseconds.
const BEHIND_MS: u32 = 5_000;
/// Factor for the probability of a cluster that is behind the follower and that the machine hasn't touched.
const SKIPPED: f64 = 0.2;
/// A follower jumps within its trace only if another recent cluster is this near, in milliseconds.
const JUMP_NEAR_MS: u32 = 10_000;
/// Probability that the rest of a touched cluster is needed.
const OPEN: f64 = 0.95;
/// How long a plan is kept, in microseconds; the second value applies after a miss.
const PLAN_US: u64 = 1_000_000;
const PLAN_AFTER_MISS_US: u64 = 100_000;
/// Speculative groups are sent as if they were needed this much later, in microseconds: what is backed and needed soon goes
/// first.
const SPECULATION_LATER_US: u64 = 10_000_000;

/// Where the machine is in one trace.
#[derive(Clone, Debug)]
struct Follower {
    at_ms: u32,
    since_us: u64,
    score: f64,
    recent_ms: [u32; 4],
}

/// What the traces say about one group.
#[derive(Clone, Copy, Debug, Default)]
struct Forecast {
    weight: f64,
    /// Over the traces that have it ahead: sum of the weights, weighted sum of the milliseconds, least milliseconds.
    ahead: f64,
    ahead_ms: f64,
    least_ms: u32,
}

/// What all machines of an image share of the rule.
#[derive(Debug)]
pub(crate) struct Floe {
    timelines: Timelines,
    support: Vec<u32>,
    /// Empty but while a plan is made.
    forecast: Vec<Forecast>,
    few: bool,
}

/// Where one machine is, by this rule.
#[derive(Debug)]
pub(crate) struct Place {
    followers: Vec<Follower>,
    touched: Vec<bool>,
    /// Touched groups of which something may be missing.
    open: Vec<u32>,
    planned_at_us: Option<u64>,
    missed: bool,
}

/// What a plan depends on.
pub(crate) struct Choice<'a> {
    pub config: &'a Config,
    pub link: Link,
    pub run_us: u64,
    /// How many speculative chunks may be sent.
    pub speculation: u64,
}

impl Place {
    /// Returns the place of a machine that starts.
    pub(crate) fn new(model: &Model) -> Self {
        let follower = Follower {
            at_ms: 0,
            since_us: 0,
            score: 1.0,
            recent_ms: [0; 4],
        };
        Self {
            followers: vec![follower; model.traces() as usize],
            touched: vec![false; model.clusters().len()],
            open: Vec::new(),
            planned_at_us: None,
            missed: false,
        }
    }

    /// Notes that the machine touched a chunk of a group.
    pub(crate) fn touch(&mut self, model: &Model, group: u32, missed: bool, run_us: u64) {
        self.missed |= missed;
        if std::mem::replace(&mut self.touched[group as usize], true) {
            return;
        }
        self.open.push(group);
        let mut seen = model.clusters()[group as usize].seen.iter().peekable();
        for (number, follower) in self.followers.iter_mut().enumerate() {
            let found = seen.next_if(|s| s.trace as usize == number);
            follower.score *= SCORE_KEPT;
            if let Some(found) = found {
                follower.score += 1.0 - SCORE_KEPT;
                follower.go(found.first_ms, run_us);
            }
        }
    }

    /// Returns whether it is time for a new plan.
    pub(crate) fn is_due(&self, run_us: u64) -> bool {
        let Some(at) = self.planned_at_us else {
            return true;
        };
        let after = if self.missed {
            PLAN_AFTER_MISS_US
        } else {
            PLAN_US
        };
        run_us >= at + after
    }
}

impl Floe {
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            timelines: Timelines::new(model),
            support: model
                .clusters()
                .iter()
                .map(|c| c.seen.len() as u32)
                .collect(),
            forecast: vec![Forecast::default(); model.clusters().len()],
            few: model.traces() <= FEW_TRACES,
        }
    }

    /// Returns whether two traces have a group (or one, if there are few traces).
    pub(crate) fn is_backed(&self, group: u32) -> bool {
        self.few || self.support[group as usize] > 1
    }

    /// Returns what to fetch for a machine, in order.
    // Long: one plan, from what is most urgent to what is least.
    pub(crate) fn plan(
        &mut self,
        place: &mut Place,
        groups: &Groups,
        choice: &Choice<'_>,
    ) -> Vec<Planned> {
        place.planned_at_us = Some(choice.run_us);
        place.missed = false;
        let best = place.followers.iter().map(|f| f.score).fold(1e-9, f64::max);
        let weights: Vec<f64> = place
            .followers
            .iter()
            .map(|f| (f.score / best).powi(SCORE_POWER))
            .collect();
        let all: f64 = weights.iter().sum::<f64>() + DOUBT;
        let lookout_ms = u32::try_from(choice.config.floe_lookout_us / 1000).unwrap_or(u32::MAX);
        let mut used = Vec::new();
        for ((line, follower), weight) in self
            .timelines
            .traces
            .iter_mut()
            .zip(&place.followers)
            .zip(&weights)
        {
            // What has arrived is never missing again, so each entry is removed only once.
            line.retain(|(_, g)| groups.missing_chunks(*g) > 0);
            let now_ms = follower.now_ms(choice.run_us);
            let behind_ms = follower.at_ms.saturating_sub(BEHIND_MS);
            let last_ms = now_ms.saturating_add(lookout_ms);
            for (seen, g) in line.iter().take_while(|(s, _)| s.first_ms <= last_ms) {
                let forecast = &mut self.forecast[*g as usize];
                if forecast.weight == 0.0 {
                    used.push(*g);
                    forecast.least_ms = u32::MAX;
                }
                if seen.first_ms < behind_ms {
                    forecast.weight += weight * SKIPPED;
                    continue;
                }
                let ms = seen.first_ms.saturating_sub(now_ms);
                forecast.weight += weight;
                forecast.ahead += weight;
                forecast.ahead_ms += weight * f64::from(ms);
                forecast.least_ms = forecast.least_ms.min(ms);
            }
        }
        let mut speculative: Vec<(f64, Planned)> = Vec::new();
        let mut plan = Vec::new();
        place.open.retain(|g| groups.missing_chunks(*g) > 0);
        for g in &place.open {
            if self.forecast[*g as usize].weight == 0.0 {
                used.push(*g);
            }
            self.forecast[*g as usize] = Forecast {
                weight: all * OPEN,
                ahead: 1.0,
                ahead_ms: 0.0,
                least_ms: 0,
            };
        }
        for g in used {
            let forecast = std::mem::take(&mut self.forecast[g as usize]);
            let missing = groups.missing_chunks(g);
            let probability = (forecast.weight / all).min(OPEN);
            let (wait, fetch) = worth(probability, missing, choice);
            let after_ms = forecast.when_ms().unwrap_or(f64::from(lookout_ms));
            let due_us = choice.run_us + (after_ms * 1000.0) as u64;
            let mut planned = Planned {
                group: g,
                due_us,
                order_us: due_us,
                sure: wait,
                backed: true,
            };
            if probability >= choice.config.backed_probability && self.is_backed(g) {
                if fetch > 0.0 {
                    plan.push(planned);
                }
            } else if fetch > 0.0 {
                planned.sure = false;
                planned.backed = false;
                planned.order_us += SPECULATION_LATER_US;
                speculative.push((fetch, planned));
            }
        }
        speculative.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.group.cmp(&b.1.group)));
        let mut left = choice.speculation;
        for (_, planned) in speculative {
            if left == 0 {
                break;
            }
            // A group too large for what is left is begun: as its chunks get used there will be room for more.
            left = left.saturating_sub(u64::from(groups.new_chunks(planned.group)));
            plan.push(planned);
        }
        plan.sort_by_key(|p| (p.order_us, p.group));
        plan
    }
}

/// Returns whether to pause for a group, and the benefit of fetching it, relative to the transfer time (fetch if above zero).
fn worth(probability: f64, chunks: u32, choice: &Choice<'_>) -> (bool, f64) {
    let transfer_us =
        f64::from(chunks) * choice.config.wire_bytes() / choice.link.bytes_per_s * 1e6;
    let saved_us = probability * (choice.link.rtt_us as f64 + transfer_us);
    let wait = saved_us > transfer_us * choice.config.patience;
    let wasted_us = (1.0 - probability) * transfer_us * choice.config.waste_price;
    let fetch = (saved_us - wasted_us) / transfer_us.max(1.0);
    (wait, fetch)
}

impl Follower {
    /// Moves the follower after a group of its trace was touched. A single one far away may be the guest's housekeeping, so it
    /// takes two that are near each other to move the follower there.
    fn go(&mut self, to_ms: u32, run_us: u64) {
        let near = |ms: u32| to_ms.abs_diff(ms) <= JUMP_NEAR_MS;
        let onwards = to_ms >= self.at_ms && near(self.now_ms(run_us));
        if near(self.at_ms) || onwards || self.recent_ms.into_iter().any(near) {
            let back = to_ms < self.at_ms && near(self.at_ms);
            if !back {
                self.at_ms = to_ms;
                self.since_us = run_us;
            }
        }
        self.recent_ms.rotate_right(1);
        self.recent_ms[0] = to_ms;
    }

    fn now_ms(&self, run_us: u64) -> u32 {
        let since_ms = run_us.saturating_sub(self.since_us) / 1000;
        self.at_ms
            .saturating_add(u32::try_from(since_ms).unwrap_or(u32::MAX))
    }
}

impl Forecast {
    /// Returns the average of the mean and the least time, because late is worse than early; `None` if no trace has it ahead.
    fn when_ms(&self) -> Option<f64> {
        (self.ahead > 0.0).then(|| 0.5 * (self.ahead_ms / self.ahead + f64::from(self.least_ms)))
    }
}

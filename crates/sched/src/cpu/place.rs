//! Which core a task goes to when it is made, wakes, or moves: the kernel's choice, and the same without cores that have a sibling
//! (section 4.5).

use super::queues::{Place, Queues, TaskId};

/// The kernel moves tasks between busy cores if one has this many percent more to do.
const IMBALANCE_PCT: u64 = 125;
/// A task that wakes stays where it was unless its waker's core, with it, would have no more than this many percent of the work that is
/// there without it (`wake_affine`).
const AFFINE_PCT: u64 = 112;

impl Queues {
    /// Returns the cores where a task may go: all, or those with the fewest siblings in their queues, which are none as long as there are
    /// no more vCPUs than cores (`SCHED_DISPATCH` of algorithm 2). Siblings that sleep keep no core.
    fn candidates(&self, id: TaskId, spreads: bool) -> Vec<usize> {
        let all = 0..self.cores();
        if !spreads || self.task(id).is_none_or(|task| task.machine.is_none()) {
            return all.collect();
        }
        let siblings: Vec<usize> = all.map(|core| self.siblings_on(id, core)).collect();
        let fewest = siblings.iter().min().copied().unwrap_or(0);
        let has_fewest = |(core, count): (usize, &usize)| (*count == fewest).then_some(core);
        siblings.iter().enumerate().filter_map(has_fewest).collect()
    }

    /// Returns the core for a task that is new or wakes, woken by one that runs on `waker`.
    pub(super) fn core_for(&self, id: TaskId, spreads: bool, waker: Option<usize>) -> usize {
        let candidates = self.candidates(id, spreads);
        // of equals the first, as the kernel searches: a rule by a task's number would keep siblings apart, whose numbers follow each other
        let shortest = candidates
            .iter()
            .copied()
            .min_by_key(|core| self.load(*core));
        let shortest = shortest.unwrap_or(0);
        let Some(task) = self.task(id) else {
            return shortest;
        };
        let before = task.core;
        if self.is_new(id) || !candidates.contains(&before) {
            return shortest;
        }
        if self.length(before) == 0 || self.length(shortest) > 0 && waker.is_none() {
            return before;
        }
        if self.length(shortest) == 0 {
            return shortest;
        }
        match waker {
            Some(waker) if candidates.contains(&waker) => {
                let there = self.load(waker) + u64::from(task.weight);
                let pulls = 100 * there <= AFFINE_PCT * self.load(before);
                if pulls { waker } else { before }
            }
            _ => before,
        }
    }

    /// Returns a task that should move to this core, because it is free or has much less to do than another: the last one of the busiest
    /// queue that may go there.
    pub(super) fn surplus_for(&self, core: usize, spreads: bool) -> Option<TaskId> {
        let mut others: Vec<usize> = (0..self.cores()).filter(|other| *other != core).collect();
        others.sort_by_key(|other| (std::cmp::Reverse(self.load(*other)), *other));
        let free = self.length(core) == 0;
        for other in others {
            let uneven = self.load(other) * 100 > self.load(core) * IMBALANCE_PCT
                && self.length(other) >= self.length(core) + 2;
            // who runs stays: only what waits can move
            if !(uneven || free && self.waiting(other) > 0) {
                // the heaviest may be one task alone, which runs
                continue;
            }
            let waiting = (0..self.waiting(other)).rev();
            let mut movable = waiting.filter_map(|ordinate| self.nth(other, ordinate));
            if let Some(id) = movable.find(|id| self.may_move(*id, core, spreads)) {
                return Some(id);
            }
        }
        None
    }

    /// `can_migration` of section 4.5: a vCPU goes to no core that has more of its siblings than its own.
    fn may_move(&self, id: TaskId, to: usize, spreads: bool) -> bool {
        let Some(task) = self.task(id) else {
            return false;
        };
        let waits = task.place == Place::Waits;
        let there = self.siblings_on(id, to);
        waits && (!spreads || there == 0 || there < self.siblings_on(id, task.core))
    }
}

//! How a program's runs begin: soon after inputs, or at any time.
//!
//! A program that looks for updates now and then does so just after an input, or just before one, by chance only. The paper's counts take
//! long to show that, the longer the faster inputs follow each other; but such a program's runs begin soon after inputs no more often than
//! by chance. How soon is soon depends on whether the guest has its processors for itself or waits for them: the shorter time says more
//! after a few runs, the longer one is used when there are many.

use super::counts::Gap;
use super::limits::{
    CHANCE_GAP_US, CHANCE_PERCENT_FIRST, CHANCE_PERCENT_LATE_MAX, CHANCE_US, PERIOD_US, PROMPT_US,
    RUNS_SHARE_PERCENT_MAX, RUNS_WEIGHT_LATE_MIN, RUNS_WEIGHT_MAX, RUNS_WEIGHT_MIN,
};

/// How soon after an input something begins: within [`PROMPT_US`], within [`PERIOD_US`].
pub(super) type Soon = [bool; 2];

/// Returns how soon after the last input something comes.
pub(super) fn soon(gap: Gap) -> Soon {
    [PROMPT_US, PERIOD_US].map(|within| gap.has_input && gap.us < within)
}

/// How likely it is that something that pays no regard to inputs begins soon after one: the part of all time that is soon after one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chance {
    soon_us: [u64; 2],
    all_us: u64,
}

impl Chance {
    /// Notes the time between two inputs.
    pub fn note(&mut self, gap: Gap) {
        if !gap.has_input {
            return;
        }
        let all = self.soon_us.iter_mut().zip([PROMPT_US, PERIOD_US]);
        all.for_each(|(sum, within)| *sum += gap.us.min(within));
        self.all_us += gap.us.min(CHANCE_GAP_US);
        if self.all_us > CHANCE_US {
            self.soon_us = self.soon_us.map(|us| us / 2);
            self.all_us /= 2;
        }
    }

    fn percent(self) -> [u32; 2] {
        match self.all_us {
            0 => CHANCE_PERCENT_FIRST,
            all => self.soon_us.map(|us| (us * 100 / all) as u32),
        }
    }
}

/// How the runs of a program begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    /// The weight of all of them: their requests, up to [`super::limits::RUN_WEIGHT`] of each.
    weight: u32,
    /// The weight of those that began so soon after an input.
    soon: [u32; 2],
    /// What that would be by chance, times 100.
    by_chance: [u32; 2],
}

impl Runs {
    /// Adds a request to the weight of its run.
    pub fn add(&mut self, soon: Soon, chance: Chance) {
        self.weight += 1;
        for (at, percent) in chance.percent().into_iter().enumerate() {
            self.soon[at] += u32::from(soon[at]);
            self.by_chance[at] += percent;
        }
        if self.weight > RUNS_WEIGHT_MAX {
            self.weight /= 2;
            self.soon = self.soon.map(|weight| weight / 2);
            self.by_chance = self.by_chance.map(|weight| weight / 2);
        }
    }

    /// Returns whether they may be answers to inputs: more of them begin soon after one than half way between chance and always.
    pub fn may_answer(self) -> bool {
        let half_way = (self.weight * 100 + self.by_chance[0]) / 2;
        let share = half_way.min(self.weight * RUNS_SHARE_PERCENT_MAX);
        let is_prompt = self.soon[0] * 100 > share;
        self.weight < RUNS_WEIGHT_MIN || is_prompt || self.may_answer_late()
    }

    /// Returns whether a run that began so soon after an input may be an answer to it, by how those before began.
    pub fn may_be_answer(self, soon: Soon) -> bool {
        let [is_prompt, is_answer] = soon;
        self.weight < RUNS_WEIGHT_MIN || is_prompt || (is_answer && self.may_answer_late())
    }

    /// Returns whether those may be that begin later than a launch does where processors are idle.
    fn may_answer_late(self) -> bool {
        // where inputs follow each other fast, the longer time tells nothing
        let tells = self.by_chance[1] <= self.weight * CHANCE_PERCENT_LATE_MAX;
        let is_soon = self.soon[1] * 400 > self.weight * 300 + self.by_chance[1];
        tells && is_soon && self.weight >= RUNS_WEIGHT_LATE_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Runs that begin so long after inputs that come every ten seconds.
    fn runs(after_us: impl Iterator<Item = u64>) -> Runs {
        let gap = |us| Gap {
            us,
            has_input: true,
        };
        let (mut runs, mut chance) = (Runs::default(), Chance::default());
        for after in after_us {
            chance.note(gap(10 * SECOND));
            for _ in 0..super::super::limits::RUN_WEIGHT {
                runs.add(soon(gap(after)), chance);
            }
        }
        runs
    }

    #[test]
    fn what_begins_at_any_time_is_found_out_however_fast_inputs_follow_each_other() {
        let at_any_time = |number: u64| runs((0..number).map(|n| n * 7_919_123 % (10 * SECOND)));
        assert!(at_any_time(1).may_answer());
        for number in 4..200 {
            assert!(!at_any_time(number).may_answer(), "{number}");
        }
    }

    #[test]
    fn what_answers_is_believed_also_if_it_does_something_by_itself_now_and_then() {
        for number in 1..200 {
            let mostly = |n: u64| if n % 5 == 4 { 3 * SECOND } else { SECOND / 4 };
            assert!(runs((0..number).map(mostly)).may_answer(), "{number}");
        }
    }

    #[test]
    fn a_guest_that_waits_for_processors_answers_late_and_is_believed_after_some_runs() {
        let late = |number: u64| runs((0..number).map(|_| 3 * SECOND));
        assert!(!late(3).may_answer());
        assert!(late(6).may_answer() && late(6).may_answer_late());
        assert!(late(100).may_answer());
    }
}

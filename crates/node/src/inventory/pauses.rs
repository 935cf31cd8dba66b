//! When a machine was paused for buffering: shown to its user, and left out of its trace.

use floe_api::Buffering;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many pauses are kept for a machine, to be left out of its trace.
const PAUSES_MAX: usize = 4096;

/// The pauses for buffering of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pauses {
    /// When the pause under way began, in microseconds of Unix time; `None` if the machine is not paused.
    pub since_us: Option<u64>,
    /// What it waits for, as the planner last said.
    pub buffering: Buffering,
    /// Begin and end of pauses that are over, the newest [`PAUSES_MAX`] of them, in microseconds of Unix time.
    pub over: Vec<(u64, u64)>,
}

/// Returns the Unix time in microseconds.
pub(crate) fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

impl Pauses {
    /// Returns the pauses of a machine whose earlier ones are known.
    pub fn after(over: Vec<(u64, u64)>) -> Pauses {
        Pauses {
            over,
            ..Default::default()
        }
    }

    /// Returns what it waits for, if it is paused.
    pub fn buffering(&self) -> Option<Buffering> {
        self.since_us.map(|_| self.buffering)
    }

    /// Returns how many pauses there were and how many seconds they took together, including the one under way.
    pub fn sum(&self, now_us: u64) -> (u64, f64) {
        let over: u64 = self
            .over
            .iter()
            .map(|(from, to)| to.saturating_sub(*from))
            .sum();
        let now = self.since_us.map(|since| now_us.saturating_sub(since));
        let count = self.over.len() + usize::from(now.is_some());
        (count as u64, (over + now.unwrap_or(0)) as f64 / 1e6)
    }

    /// Returns begin and end of all pauses; the one under way ends at `now_us`.
    pub fn all(&self, now_us: u64) -> Vec<(u64, u64)> {
        let now = self.since_us.map(|since| (since, now_us.max(since)));
        self.over.iter().copied().chain(now).collect()
    }

    pub fn end(&mut self, now_us: u64) {
        if let Some(since) = self.since_us.take() {
            if self.over.len() >= PAUSES_MAX {
                self.over.remove(0);
            }
            self.over.push((since, now_us.max(since)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_summed_up_and_the_one_under_way_counts() {
        let mut pauses = Pauses::after(vec![(1_000_000, 1_500_000)]);
        assert_eq!(pauses.sum(9_000_000), (1, 0.5));
        assert_eq!(pauses.buffering(), None);
        pauses.since_us = Some(8_000_000);
        assert_eq!(pauses.sum(9_000_000), (2, 1.5));
        assert_eq!(
            pauses.all(9_000_000),
            [(1_000_000, 1_500_000), (8_000_000, 9_000_000)]
        );
        pauses.end(8_250_000);
        assert_eq!(pauses.sum(9_000_000), (2, 0.75));
        // the clock was set back
        pauses.since_us = Some(20);
        pauses.end(10);
        assert_eq!(pauses.over.last(), Some(&(20, 20)));
        for at in 0..PAUSES_MAX as u64 {
            pauses.since_us = Some(at);
            pauses.end(at + 1);
        }
        assert_eq!((pauses.over.len(), pauses.over[0]), (PAUSES_MAX, (0, 1)));
    }
}

//! Decides when something that a machine waits for is read from the hub although the swarm may still bring it. No I/O, no clock.
//!
//! Nobody is to wait longer than with the hub alone. So a demand waits as long as the hub takes for all but a twentieth of its answers,
//! as it was measured of late, and is then read there, while its pieces still come. Prefetch waits. If each demand were read twice the
//! hub would have as much to send as without a swarm: at most a twentieth of what came as pieces is read this way. Where no other node is
//! connected there is nothing to wait for.

use std::{collections::VecDeque, time::Duration};

/// Answers of the hub that count.
const ANSWERS: usize = 64;
/// The wait before any answer of the hub was measured.
const UNKNOWN: Duration = Duration::from_millis(250);
/// The shortest wait: on a quick network a piece that is 16 times as long as a chunk takes longer than the hub, and nobody notices.
const LEAST: Duration = Duration::from_millis(20);
/// One byte may be read from the hub this way for so many that came as pieces.
const PIECES_EACH: u64 = 20;
/// Bytes that may be read this way before any piece has come: the packs' indices come first, and are long.
const FIRST_BYTES: u64 = 128 << 10;
/// Bytes that are saved up at most.
const SAVED_BYTES_MAX: u64 = 4 << 20;

/// How a hub answers, and what may still be read from it.
#[derive(Clone, Debug)]
pub(super) struct Hedge {
    /// Bytes of an answer, and how long it took; the latest last.
    answers: VecDeque<(u64, Duration)>,
    /// Bytes that may be read from the hub.
    saved: u64,
    /// Bytes of pieces that were counted.
    received: u64,
}

impl Default for Hedge {
    fn default() -> Hedge {
        Hedge {
            answers: VecDeque::new(),
            saved: FIRST_BYTES,
            received: 0,
        }
    }
}

impl Hedge {
    /// Notes that the hub took so long for an answer of so many bytes.
    pub fn answered(&mut self, bytes: u64, took: Duration) {
        if self.answers.len() == ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((bytes, took));
    }

    /// Returns how long a demand of so many bytes waits for the swarm, of which nobody or somebody is connected.
    pub fn patience(&self, connected: bool, bytes: u64) -> Duration {
        if !connected {
            return Duration::ZERO;
        }
        let mut took: Vec<Duration> = self.answers.iter().map(|(_, took)| *took).collect();
        took.sort_unstable();
        let place = (took.len() * 95).div_ceil(100).saturating_sub(1);
        let Some(late) = took.get(place) else {
            return UNKNOWN;
        };
        let all: u64 = self.answers.iter().map(|(bytes, _)| *bytes).sum();
        let mean = (all as f64 / took.len() as f64).max(1.0);
        // an answer that is longer than usual takes longer in proportion; a shorter one is mostly the way there and back
        let times = (bytes as f64 / mean).clamp(1.0, 1e6);
        late.mul_f64(times).max(LEAST)
    }

    /// Takes how many bytes have come as pieces since the beginning.
    pub fn received(&mut self, bytes: u64) {
        let new = bytes.saturating_sub(self.received);
        let earned = new / PIECES_EACH;
        // what is too little for a byte counts the next time
        self.received += earned * PIECES_EACH;
        self.saved = self.saved.saturating_add(earned).min(SAVED_BYTES_MAX);
    }

    /// Whether so many bytes may be read from the hub now; if so they count.
    pub fn spend(&mut self, connected: bool, bytes: u64) -> bool {
        if !connected {
            return true;
        }
        let left = self.saved.checked_sub(bytes);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_demand_waits_as_long_as_the_hub_mostly_takes() {
        let mut hedge = Hedge::default();
        assert_eq!(hedge.patience(true, 4096), UNKNOWN);
        for took in 1..=100 {
            hedge.answered(4096, ms(took));
        }
        // of the last 64, 61 took no longer
        assert_eq!(hedge.patience(true, 4096), ms(97));
        assert_eq!(hedge.patience(true, 100), ms(97));
        assert_eq!(hedge.patience(true, 3 * 4096), ms(3 * 97));
        assert_eq!(hedge.patience(false, 3 * 4096), Duration::ZERO);
        (0..ANSWERS).for_each(|_| hedge.answered(4096, ms(1)));
        assert_eq!(hedge.patience(true, 4096), LEAST);
    }

    #[test]
    fn who_is_alone_reads_the_hub_as_much_as_it_wants() {
        let mut hedge = Hedge::default();
        assert!(!hedge.spend(true, FIRST_BYTES + 1));
        assert!(hedge.spend(false, u64::MAX) && hedge.spend(true, FIRST_BYTES));
        assert!(!hedge.spend(true, 1) && hedge.spend(false, 1));
    }

    proptest! {
        #[test]
        fn no_demand_is_early_and_the_hub_gives_a_twentieth_at_most(
            steps in prop::collection::vec((1u64..2_000_000, 0u64..10_000, 1u64..300_000), 1..200),
        ) {
            let (mut hedge, mut came, mut spent) = (Hedge::default(), 0, 0);
            let mut took: Vec<Duration> = Vec::new();
            for (bytes, wait_ms, wish) in steps {
                came += bytes;
                hedge.received(came);
                hedge.answered(65_536, ms(wait_ms));
                took.push(ms(wait_ms));
                let patience = hedge.patience(true, wish);
                let of_late = &took[took.len().saturating_sub(ANSWERS)..];
                let in_time = of_late.iter().filter(|took| **took <= patience).count();
                prop_assert!(in_time * 100 >= of_late.len() * 95, "{patience:?}");
                if hedge.spend(true, wish) {
                    spent += wish;
                }
                prop_assert!(spent <= FIRST_BYTES + came / PIECES_EACH, "{spent} of {came}");
                prop_assert!(hedge.saved <= SAVED_BYTES_MAX);
            }
        }
    }
}

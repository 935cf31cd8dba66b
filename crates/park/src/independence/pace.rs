//! Decides when the next piece of an image may be taken: at a limited rate, and after what guests wait for. No I/O, no clock.

/// How long one piece lets the demands of guests go first: after that it goes although some wait, so that it comes to an end on a
/// link that is always busy.
pub(super) const HOLD_MAX_US: u64 = 500_000;
/// How long until demands are looked at again.
pub(super) const LOOK_AGAIN_US: u64 = 5_000;

/// When pieces may be taken. Times are microseconds on any clock that does not go back.
#[derive(Debug)]
pub(super) struct Pace {
    rate_bytes_s: u64,
    /// When what was taken so far is paid for.
    free_us: u64,
    /// Since when the next piece has let demands go first.
    held_since_us: Option<u64>,
}

impl Pace {
    /// `rate_bytes_s`: the most that is taken in a second; 0 counts as 1.
    pub fn new(rate_bytes_s: u64) -> Pace {
        Pace {
            rate_bytes_s: rate_bytes_s.max(1),
            free_us: 0,
            held_since_us: None,
        }
    }

    /// Asks for a piece. `demand`: whether a guest waits for something. Returns how long to wait until asking again for the same
    /// piece; `None` means that it is taken now.
    pub fn ask(&mut self, now_us: u64, bytes: u64, demand: bool) -> Option<u64> {
        if self.free_us > now_us {
            return Some(self.free_us - now_us);
        }
        if demand {
            let since = *self.held_since_us.get_or_insert(now_us);
            if now_us - since < HOLD_MAX_US {
                return Some(LOOK_AGAIN_US);
            }
        }
        self.held_since_us = None;
        let cost = u128::from(bytes) * 1_000_000 / u128::from(self.rate_bytes_s);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        self.free_us = now_us.saturating_add(cost);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes pieces one after the other; `demand` says whether a guest waits at an ask. Returns when each was taken.
    fn take(rate: u64, pieces: &[u64], mut demand: impl FnMut() -> bool) -> Vec<u64> {
        let mut pace = Pace::new(rate);
        let mut now = 7;
        let mut taken = Vec::new();
        for bytes in pieces {
            while let Some(wait) = pace.ask(now, *bytes, demand()) {
                assert!(wait > 0, "it would spin");
                now += wait;
            }
            taken.push(now);
        }
        taken
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_has_more_than_its_rate_and_one_piece(
            rate in 1u64..100_000_000,
            pieces in proptest::collection::vec(1u64..2_000_000, 1..40),
            demands in proptest::collection::vec(any::<bool>(), 1..50),
        ) {
            let mut demands = demands.iter().copied().cycle();
            let taken = take(rate, &pieces, || demands.next().unwrap());
            for first in 0..taken.len() {
                for last in first..taken.len() {
                    let bytes: u64 = pieces[first..last].iter().sum();
                    let most = u128::from(taken[last] - taken[first] + (last - first) as u64) * u128::from(rate);
                    prop_assert!(u128::from(bytes) * 1_000_000 <= most + 1_000_000 * (last - first) as u128);
                }
            }
        }

        #[test]
        fn demands_that_never_end_hold_each_piece_for_a_bounded_time(
            rate in 1_000u64..100_000_000, pieces in proptest::collection::vec(1u64..2_000_000, 1..40),
        ) {
            let quiet = take(rate, &pieces, || false);
            let busy = take(rate, &pieces, || true);
            for (number, (quiet, busy)) in quiet.iter().zip(&busy).enumerate() {
                let held = (number as u64 + 1) * (HOLD_MAX_US + LOOK_AGAIN_US);
                prop_assert!(busy > quiet && busy - quiet <= held);
            }
        }
    }

    #[test]
    fn a_demand_that_ends_lets_the_piece_go_at_once() {
        let mut pace = Pace::new(1_000_000);
        assert_eq!(pace.ask(0, 1_000, true), Some(LOOK_AGAIN_US));
        assert_eq!(pace.ask(5_000, 1_000, false), None);
        assert_eq!(pace.ask(5_400, 1_000, false), Some(600));
    }
}

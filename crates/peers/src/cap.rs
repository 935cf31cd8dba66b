//! Bounds what a host gives to others, in all of its swarms together.
use crate::tree::PIECE_BYTES;
use floe_swarm::policy::PLACES;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// So much passes at once after a quiet time, in microseconds of the rate: twice as long as the time between two ticks of a swarm.
const BURST_US: u64 = 100_000;

/// A host that gives as much as a link of 20 Mbit/s carries, in bytes a second, has a full share of a warden's duties. It is a constant, since
/// hosts can't know each other's links, and what is the most for one must not be little for another.
const FULL: u64 = 2_500_000;

/// Returns at how many of its [`PLACES`] a host with this cap is a warden.
pub(crate) fn places(rate: Option<u64>) -> u8 {
    let most = u64::from(PLACES);
    let places = rate.map_or(most, |rate| rate.saturating_mul(most) / FULL);
    places.clamp(1, most) as u8
}

/// A token bucket. Decided without a clock.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Bytes a second; `None` for all that the link carries.
    rate: Option<u64>,
    /// Bytes that may pass now, and when that was so.
    tokens: u64,
    at_us: u64,
}

impl Bucket {
    fn set(&mut self, now_us: u64, rate: Option<u64>) {
        self.fill(now_us);
        self.rate = rate;
        self.tokens = self.tokens.min(self.most());
    }

    fn most(&self) -> u64 {
        match self.rate {
            None | Some(0) => 0,
            // what was kept for a piece that is not whole yet has room of its own
            Some(rate) => rate / (1_000_000 / BURST_US) + PIECE_BYTES,
        }
    }

    fn fill(&mut self, now_us: u64) {
        let passed_us = u128::from(now_us.saturating_sub(self.at_us));
        let more = u128::from(self.rate.unwrap_or(0)) * passed_us / 1_000_000;
        // time that is worth less than a byte isn't lost
        if more > 0 {
            let all = u128::from(self.tokens) + more;
            self.tokens = all.min(u128::from(self.most())) as u64;
            self.at_us = now_us;
        } else if self.rate.unwrap_or(0) == 0 {
            self.at_us = now_us;
        }
    }

    /// Returns how many of these pieces may be sent now.
    fn take(&mut self, now_us: u64, pieces: usize) -> usize {
        if self.rate.is_none() {
            return pieces;
        }
        self.fill(now_us);
        let taken = (self.tokens / PIECE_BYTES).min(pieces as u64);
        self.tokens -= taken * PIECE_BYTES;
        taken as usize
    }
}

/// A [`Bucket`] that all swarms of a host share.
#[derive(Debug)]
pub(crate) struct Cap {
    bucket: Mutex<Bucket>,
    since: Instant,
}

impl Cap {
    pub(crate) fn new() -> Cap {
        Cap {
            bucket: Mutex::default(),
            since: Instant::now(),
        }
    }

    fn with<T>(&self, does: impl FnOnce(&mut Bucket, u64) -> T) -> T {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        does(&mut bucket, self.since.elapsed().as_micros() as u64)
    }

    /// Sets the rate in bytes a second.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.with(|bucket, now_us| bucket.set(now_us, rate));
    }

    /// Returns the rate.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.with(|bucket, _| bucket.rate)
    }

    /// Returns how many of these pieces may be sent now.
    pub(crate) fn take(&self, pieces: usize) -> usize {
        self.with(|bucket, now_us| bucket.take(now_us, pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_rate_is_no_cap_and_a_rate_of_nothing_lets_nothing_pass() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(0, 1000), 1000);
        bucket.set(5_000_000, Some(0));
        assert_eq!(
            (bucket.take(5_000_000, 1), bucket.take(u64::MAX, 1)),
            (0, 0)
        );
        bucket.set(u64::MAX, None);
        assert_eq!(bucket.take(0, 7), 7);
    }

    #[test]
    fn a_cap_below_what_a_slow_link_carries_makes_a_host_the_warden_of_less() {
        let rates = [0, 64 << 10, FULL / 2, FULL - 1, FULL, u64::MAX];
        let all = rates.map(|rate| places(Some(rate)));
        assert_eq!((all, places(None)), ([1, 1, 4, 7, 8, 8], PLACES));
    }

    proptest! {
        #[test]
        fn what_passes_is_what_the_rate_allows_however_it_is_asked_for(
            rate in 1u64..200_000_000,
            asks in prop::collection::vec((1u64..60_000, 0usize..200), 1..300),
        ) {
            let (mut bucket, mut now_us, mut sent, mut greedy) = (Bucket::default(), 0, 0u64, true);
            bucket.set(0, Some(rate));
            for (after_us, pieces) in asks {
                now_us += after_us;
                let taken = bucket.take(now_us, pieces);
                prop_assert!(taken <= pieces);
                greedy &= taken < pieces;
                sent += taken as u64 * PIECE_BYTES;
                let most = u128::from(rate) * u128::from(now_us) / 1_000_000;
                prop_assert!(u128::from(sent) <= most + u128::from(bucket.most()));
                // who always wants more than there is gets all of it but what is kept for the next piece
                let lost = u128::from(PIECE_BYTES) + 300;
                if greedy {
                    prop_assert!(u128::from(sent) + lost >= most, "{sent} of {most}");
                }
            }
        }
    }
}

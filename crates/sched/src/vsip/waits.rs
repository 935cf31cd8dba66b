//! How long requests took, and how many there are in a second.

use crate::ClassStatus;

/// Parts into which each doubling of time is divided.
const PARTS: u64 = 4;

/// Buckets: the last one is for half an hour and more.
const BUCKETS: usize = 128;

/// All counts are halved when there are so many, so that the latest few thousand requests decide.
const COUNTED_MAX: u32 = 8192;

/// The waits of one class of a machine's requests.
#[derive(Debug)]
pub(super) struct Waits {
    buckets: Box<[u16; BUCKETS]>,
    counted: u32,
    mean_us: f64,
    served: u64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            buckets: Box::new([0; BUCKETS]),
            counted: 0,
            mean_us: 0.0,
            served: 0,
        }
    }
}

impl Waits {
    pub(super) fn add(&mut self, wait_us: u64) {
        self.served += 1;
        self.counted += 1;
        self.mean_us += (wait_us as f64 - self.mean_us) / f64::from(self.counted);
        self.buckets[bucket(wait_us)] += 1;
        if self.counted >= COUNTED_MAX {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.counted = self.buckets.iter().map(|count| u32::from(*count)).sum();
        }
    }

    pub(super) fn status(&self) -> ClassStatus {
        ClassStatus {
            served: self.served,
            wait_mean_us: self.mean_us,
            wait_p50_us: self.quantile(0.5),
            wait_p99_us: self.quantile(0.99),
        }
    }

    fn quantile(&self, part: f64) -> u64 {
        let mut left = (f64::from(self.counted) * part).ceil() as i64;
        for (at, count) in self.buckets.iter().enumerate() {
            left -= i64::from(*count);
            if *count > 0 && left <= 0 {
                return (lower(at) + lower(at + 1)) / 2;
            }
        }
        0
    }
}

/// Returns the bucket of a wait.
fn bucket(wait_us: u64) -> usize {
    if wait_us < PARTS {
        return wait_us as usize;
    }
    let doublings = u64::from(wait_us.ilog2());
    let part = (wait_us >> (doublings - 2)) & (PARTS - 1);
    (((doublings - 1) * PARTS + part) as usize).min(BUCKETS - 1)
}

/// Returns the shortest wait of a bucket.
fn lower(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let (doublings, part) = (bucket / PARTS + 1, bucket % PARTS);
    (PARTS + part) << (doublings - 2)
}

/// Requests and bytes a second, over the last whole second or more.
#[derive(Debug, Default)]
pub(super) struct Rate {
    began_us: u64,
    requests: u64,
    bytes: u64,
    last: (f64, f64),
}

impl Rate {
    pub(super) fn add(&mut self, now_us: u64, bytes: u64) {
        let past = now_us.saturating_sub(self.began_us);
        if past >= 1_000_000 {
            self.last = self.per_second(past);
            (self.began_us, self.requests, self.bytes) = (now_us, 0, 0);
        }
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns requests and bytes a second.
    pub(super) fn now(&self, now_us: u64) -> (f64, f64) {
        let past = now_us.saturating_sub(self.began_us);
        match past {
            1_000_000.. => self.per_second(past),
            _ => self.last,
        }
    }

    fn per_second(&self, past_us: u64) -> (f64, f64) {
        let seconds = past_us as f64 / 1e6;
        (self.requests as f64 / seconds, self.bytes as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Quantiles are right to within a fifth, whatever was waited, and never beyond what there is a bucket for.
        #[test]
        fn quantiles_are_right_to_within_a_fifth(mut waits in proptest::collection::vec(1u64..1 << 30, 1..500)) {
            let mut counted = Waits::default();
            waits.iter().for_each(|wait| counted.add(*wait));
            waits.sort_unstable();
            let status = counted.status();
            let real = waits[(waits.len() as f64 * 0.5).ceil() as usize - 1] as f64;
            prop_assert!((status.wait_p50_us as f64 - real).abs() <= 1.0 + real * 0.2, "{real} {status:?}");
            prop_assert_eq!(status.served, waits.len() as u64);
            prop_assert!(bucket(u64::MAX) < BUCKETS);
        }
    }

    #[test]
    fn old_waits_are_forgotten() {
        let mut waits = Waits::default();
        (0..20_000).for_each(|_| waits.add(1_000_000));
        (0..40_000).for_each(|_| waits.add(100));
        let status = waits.status();
        assert!(status.wait_p99_us > 80 && status.wait_p50_us < 125);
        assert!(status.wait_mean_us < 60_000.0, "{status:?}");
        assert_eq!(status.served, 60_000);
    }

    #[test]
    fn a_rate_is_that_of_the_last_second_and_fades() {
        let mut rate = Rate::default();
        (0..3000u64).for_each(|request| rate.add(request * 1000, 4096));
        let (requests, bytes) = rate.now(3_000_000);
        assert!((900.0..1100.0).contains(&requests), "{requests}");
        assert!((bytes / requests - 4096.0).abs() < 1.0);
        assert!(rate.now(100_000_000).0 < 50.0);
    }
}

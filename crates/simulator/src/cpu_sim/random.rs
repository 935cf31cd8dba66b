//! Chance that is the same in each run, on each machine.

/// A sequence of random numbers (SplitMix64, Steele, Lea and Flood 2014): small, and its values are part of what a seed means.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Whether something of this probability happens.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// A time around `mean`, at most `part` of it away.
    pub fn around(&mut self, mean: u64, part: f64) -> u64 {
        (mean as f64 * (1.0 + part * (2.0 * self.unit() - 1.0))).max(1.0) as u64
    }

    /// A time that is as likely to end now as at any other moment.
    pub fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.unit()).ln()).clamp(1.0, 1e15) as u64
    }
}

//! Limits how much a guest may send: a bucket that refills with time. No clock.

/// Lines that a guest may send at once.
const BURST: u64 = 256;
/// Lines per second in the long run: more than any program's calls need.
const PER_SECOND: u64 = 32;
/// How many lines an invalid line counts as.
const GARBAGE_COST: u64 = 4;

/// One bucket; its level is in thousandths of a line.
#[derive(Debug)]
pub(super) struct Meter {
    burst: u64,
    per_second: u64,
    left: u64,
    then_ms: u64,
}

impl Meter {
    /// Returns a full bucket for lines.
    pub fn new() -> Meter {
        Meter::of(BURST, PER_SECOND)
    }

    /// Returns a full bucket with other bounds: so much at once, and so much a second in the long run.
    pub fn of(burst: u64, per_second: u64) -> Meter {
        Meter {
            burst,
            per_second,
            left: burst * 1000,
            then_ms: 0,
        }
    }

    /// Counts a line, `understood` or not; returns false if it is one too many.
    pub fn take(&mut self, now_ms: u64, understood: bool) -> bool {
        let passed = now_ms.saturating_sub(self.then_ms);
        self.then_ms = self.then_ms.max(now_ms);
        let come = passed.saturating_mul(self.per_second);
        self.left = self.left.saturating_add(come).min(self.burst * 1000);
        let cost = 1000 * if understood { 1 } else { GARBAGE_COST };
        match self.left.checked_sub(cost) {
            Some(left) => self.left = left,
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let mut meter = Meter::new();
        let passed = (0..10_000).take_while(|_| meter.take(5, false)).count() as u64;
        assert_eq!(passed, BURST / GARBAGE_COST);
        assert!(!meter.take(5, false));
        assert!(meter.take(1005, true));
        let mut meter = Meter::new();
        assert!((0..100_000).all(|n| meter.take(n * 1000 / PER_SECOND, true)));
    }
}

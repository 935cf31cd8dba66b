//! How much a host may say: it pays for the work that a message makes its reader do, so that no host can keep another busy. No clock.

/// What may be saved up, in steps of work: listing a piece is one, and so is any message.
const SAVED: u64 = 1 << 16;
/// What comes in each second. A host that receives at 10 Gbit/s has 19 000 pieces to ask for and as many to tell of.
const PER_SECOND: u64 = 1 << 16;

/// What a host may still do.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u64,
    at_us: u64,
}

impl Budget {
    /// Makes the budget of a host that has said nothing yet: enough to list once which of so many pieces it has, and some more.
    pub fn new(pieces: u32, now_us: u64) -> Budget {
        Budget {
            left: SAVED + 2 * u64::from(pieces),
            at_us: now_us,
        }
    }

    /// Pays for so much work. Returns whether there was enough; a host that has not is flooding.
    pub fn pay(&mut self, work: u64, now_us: u64) -> bool {
        let more = now_us.saturating_sub(self.at_us).saturating_mul(PER_SECOND) / 1_000_000;
        if more > 0 {
            self.at_us = now_us;
            // what was there at the start may be used up slowly, but doesn't come again
            self.left = self.left.max(self.left.saturating_add(more).min(SAVED));
        }
        let enough = work <= self.left;
        self.left = self.left.saturating_sub(work);
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_map_passes_once_and_a_flood_does_not() {
        let mut budget = Budget::new(1 << 20, 0);
        assert!(budget.pay(1 << 20, 10) && budget.pay(1 << 20, 20));
        assert!(!budget.pay(1 << 20, 30));
    }

    #[test]
    fn who_asks_at_the_speed_of_a_fast_link_is_never_stopped() {
        let mut budget = Budget::new(100, 0);
        for second in 0..100 {
            for step in 0..1000 {
                assert!(budget.pay(60, second * 1_000_000 + step * 1000));
            }
        }
        assert!(!budget.pay(SAVED + 1, 1 << 60));
    }
}

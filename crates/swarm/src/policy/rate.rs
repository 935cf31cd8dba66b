//! How fast pieces come, so that no more of them are asked for ahead of need than come in a moment: what is on its way already lies in
//! queues of the network, and a demand that is asked for later comes after it. The moment begins with the time that a piece takes with
//! nothing before it: a distant link has that many on the way without any queue (its product of bandwidth and delay).

/// Pieces are counted in slices of this length, in microseconds: long enough that a burst which a busy host takes in at once is no speed.
const SLICE_US: u64 = 200_000;
/// What the best slice counts for shrinks by this factor with each slice that was slower, so that a link that became slow is found out.
const FADE: f64 = 0.93;

/// The time of the quickest piece grows by this factor with each slice, so that a way that became longer is found out.
const LENGTHEN: f64 = 1.02;

/// The speed at which pieces come of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    since_us: u64,
    came: u32,
    /// Pieces a second in the best slice of late.
    best: f64,
    /// How long the quickest piece of late took, in microseconds; 0 before the first.
    quickest_us: f64,
    /// Whether as many pieces as may be were under way in this slice.
    full: bool,
    /// Pieces a second in the best slice of late in which they were. While only single pieces are needed nothing is learnt of the link.
    filled: f64,
}

impl Rate {
    /// Notes that a piece has come so long after it was asked for.
    pub(super) fn came(&mut self, now_us: u64, took_us: u64) {
        self.turn(now_us);
        self.came += 1;
        let took_us = took_us.max(1) as f64;
        if self.quickest_us == 0.0 || took_us < self.quickest_us {
            self.quickest_us = took_us;
        }
    }

    /// Ends slices that are over. While nothing comes nothing is learnt.
    fn turn(&mut self, now_us: u64) {
        let took_us = now_us.saturating_sub(self.since_us);
        if took_us < SLICE_US {
            return;
        }
        let speed = f64::from(self.came) * 1e6 / took_us as f64;
        self.best = speed.max(self.best * FADE);
        if std::mem::take(&mut self.full) {
            self.filled = speed.max(self.filled * FADE);
        }
        self.quickest_us *= LENGTHEN;
        (self.since_us, self.came) = (now_us, 0);
    }

    /// Returns how many pieces come in a second; 0 before any was counted.
    pub(super) fn speed(&self) -> f64 {
        self.best
    }

    /// Notes that as many pieces as may be are under way ahead of need.
    pub(super) fn fills(&mut self) {
        self.full = true;
    }

    /// Returns how many pieces come in a second while as many as may be are under way; 0 before that was so.
    pub(super) fn filled(&self) -> f64 {
        self.filled
    }

    /// Returns how long the quickest piece of late took, in microseconds; 0 before the first.
    pub(super) fn quickest_us(&self) -> f64 {
        self.quickest_us
    }

    /// Returns how many pieces may be under way if the last of them is to wait so long behind the others; at least `least` and at most
    /// `most`.
    pub(super) fn under_way(&self, queue_us: u64, least: usize, most: usize) -> usize {
        let us = self.quickest_us + queue_us as f64;
        let pieces = (self.best * us / 1e6).ceil() as usize;
        pieces.max(least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    #[test]
    fn as_many_are_on_their_way_as_come_in_that_time() {
        let mut rate = Rate::default();
        assert_eq!(rate.under_way(100 * MS, 2, 16), 2);
        let mut now_us = 5_000_000;
        for _ in 0..100 {
            rate.came(now_us, 1);
            now_us += 10 * MS;
        }
        assert_eq!(rate.under_way(95 * MS, 2, 16), 10);
        assert_eq!(rate.under_way(1_000 * MS, 2, 16), 16);
    }

    #[test]
    fn a_burst_is_no_speed_and_a_link_that_became_slow_is_found_out() {
        let mut rate = Rate::default();
        let mut now_us = 1_000_000;
        for _ in 0..100 {
            now_us += 400 * MS;
            for _ in 0..4 {
                rate.came(now_us, MS);
            }
        }
        assert!(rate.under_way(1_000 * MS, 1, 100) <= 11);
        for _ in 0..100 {
            now_us += 1_000 * MS;
            rate.came(now_us, MS);
        }
        assert!(rate.under_way(1_000 * MS, 1, 100) <= 2);
    }

    #[test]
    fn a_long_way_is_filled_although_one_piece_at_a_time_comes_slowly() {
        let (mut rate, mut now_us, way_us) = (Rate::default(), 0, 200 * MS);
        for _ in 0..20 {
            let under_way = rate.under_way(100 * MS, 1, 64);
            for step in 0..10 {
                now_us += way_us / 10;
                for _ in 0..under_way * (step + 1) / 10 - under_way * step / 10 {
                    rate.came(now_us, way_us);
                }
            }
        }
        assert_eq!(rate.under_way(100 * MS, 1, 64), 64);
    }
}

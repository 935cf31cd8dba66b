//! How a guest's balloon is brought to a size: it is asked, watched, and left alone before it hurts. No I/O, no clock.
//!
//! A guest gives memory as fast as it finds some. One that has none left to give finds less and less, and begins to take memory from its
//! own programs; one that runs out takes some back. Either ends the attempt: the guest is asked to keep what it had then, and a
//! margin, so that it can breathe.

/// How long a guest may give or take nothing before it has given what it could, in ms. A loaded host's guest may stand still for
/// seconds.
pub(super) const STALL_MS: u64 = 15_000;
/// How much of its memory a guest may take back before that counts as a need, in bytes.
const SWAY_BYTES: u64 = 8 << 20;
/// Least margin that a guest gets beyond what it has kept, in bytes.
const MARGIN_LEAST_BYTES: u64 = 16 << 20;
/// The margin as a divisor of the memory that it had.
const MARGIN_PART: u64 = 16;

/// A balloon on its way.
#[derive(Debug)]
pub(super) struct Balloon {
    /// What the guest had, in bytes.
    began: u64,
    /// What it is to have.
    wanted: u64,
    /// The nearest that it has come.
    nearest: u64,
    moved_ms: u64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again in a while.
    Wait,
    /// The guest has as much as it is to have.
    Reached,
    /// It does not come further. It is to be asked to have so many bytes.
    BackOff(u64),
}

impl Balloon {
    /// Begins with a guest that has been asked to have `wanted` bytes.
    pub fn new(now_ms: u64, has: u64, wanted: u64) -> Balloon {
        Balloon {
            began: has,
            wanted,
            nearest: has,
            moved_ms: now_ms,
        }
    }

    /// Decides by how many bytes the guest has now.
    pub fn sees(&mut self, now_ms: u64, has: u64) -> Next {
        if has == self.wanted {
            return Next::Reached;
        }
        let gap = has.abs_diff(self.wanted);
        let nearest = self.nearest.abs_diff(self.wanted);
        if gap < nearest {
            (self.nearest, self.moved_ms) = (has, now_ms);
        }
        let shrinks = self.wanted < self.began;
        let takes_back = shrinks && has > self.nearest.saturating_add(SWAY_BYTES);
        let stalls = now_ms.saturating_sub(self.moved_ms) >= STALL_MS;
        match (takes_back || stalls, shrinks) {
            (false, _) => Next::Wait,
            (true, false) => Next::BackOff(has),
            (true, true) => {
                let margin = (self.began / MARGIN_PART).max(MARGIN_LEAST_BYTES);
                Next::BackOff(has.saturating_add(margin).min(self.began))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Runs a balloon over what is seen each second, and returns what it decides first, and when.
    fn decides(began: u64, wanted: u64, seen: &[u64]) -> (usize, Next) {
        let mut balloon = Balloon::new(0, began * MIB, wanted * MIB);
        for (second, has) in seen.iter().enumerate() {
            match balloon.sees(second as u64 * 1000, has * MIB) {
                Next::Wait => {}
                next => return (second, next),
            }
        }
        (seen.len(), Next::Wait)
    }

    #[test]
    fn a_guest_that_gives_what_is_asked_for_is_waited_for() {
        assert_eq!(
            decides(1024, 512, &[1024, 900, 700, 512]),
            (3, Next::Reached)
        );
        assert_eq!(decides(512, 1024, &[512, 700, 1024]), (2, Next::Reached));
        assert_eq!(decides(512, 512, &[512]), (0, Next::Reached));
        // slow is not stuck
        let slow: Vec<u64> = (0..100).map(|second| 1024 - second / 10).collect();
        assert_eq!(decides(1024, 512, &slow), (100, Next::Wait));
    }

    #[test]
    fn a_guest_that_gives_no_more_keeps_a_margin() {
        let mut stuck = vec![1024, 800];
        stuck.extend([700; 40]);
        let (second, next) = decides(1024, 512, &stuck);
        assert_eq!((second, next), (2 + 15, Next::BackOff(764 * MIB)));
        // and never more than it had
        assert_eq!(decides(256, 64, &[250; 40]).1, Next::BackOff(256 * MIB));
    }

    #[test]
    fn a_guest_that_takes_memory_back_gets_it_at_once() {
        let (second, next) = decides(1024, 256, &[1024, 600, 400, 404, 420]);
        assert_eq!((second, next), (4, Next::BackOff(484 * MIB)));
        // a little up and down is none
        assert_eq!(
            decides(1024, 256, &[1024, 400, 404, 398, 256]).1,
            Next::Reached
        );
    }

    #[test]
    fn a_guest_without_a_driver_gets_back_what_it_has() {
        assert_eq!(decides(1024, 512, &[1024; 40]).1, Next::BackOff(1024 * MIB));
        assert_eq!(decides(512, 1024, &[600; 40]).1, Next::BackOff(600 * MIB));
    }
}

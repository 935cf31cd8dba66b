//! How slow a peer may be: a state machine without sockets and clocks.
//!
//! What counts is time in which *we* wait for the peer, to send or to take bytes; whatever time we need ourselves is not its
//! fault. In each stretch of such waiting it must move some bytes. The bound lies far below what an honest slow link moves (100
//! kbit/s shared by twenty connections gives each 600 bytes a second) and far above what a stranger sends who only wants
//! to hold something.

use std::time::Duration;

/// How slow a peer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes a second, on the average of each stretch.
    pub bytes_per_s_min: u64,
    /// Length of a stretch of waiting.
    pub stretch: Duration,
}

/// Watches one direction of a connection or one body.
#[derive(Clone, Debug)]
pub struct Watch {
    pace: Pace,
    waited: Duration,
    /// Bytes moved when the stretch began.
    began_at: u64,
}

impl Watch {
    /// From now on, with `moved` bytes moved before.
    pub fn new(pace: Pace, moved: u64) -> Watch {
        Watch {
            pace,
            waited: Duration::ZERO,
            began_at: moved,
        }
    }

    /// How much longer to wait before looking again.
    pub fn look_in(&self) -> Duration {
        self.pace.stretch.saturating_sub(self.waited)
    }

    /// We have waited for so long since the last call, and `moved` bytes have been moved in all. Whether the peer is too slow.
    pub fn is_too_slow(&mut self, waited: Duration, moved: u64) -> bool {
        self.waited += waited;
        if self.waited < self.pace.stretch {
            return false;
        }
        let needed = self.pace.bytes_per_s_min as f64 * self.waited.as_secs_f64();
        let came = moved.saturating_sub(self.began_at);
        *self = Watch::new(self.pace, moved);
        (came as f64) < needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACE: Pace = Pace {
        bytes_per_s_min: 256,
        stretch: Duration::from_secs(30),
    };

    /// Whether a peer that moves `bytes` every `every_ms` is cut off within ten minutes.
    fn is_cut(bytes: u64, every_ms: u64) -> bool {
        let mut watch = Watch::new(PACE, 0);
        let every = Duration::from_millis(every_ms);
        let steps = 600_000 / every_ms;
        (1..=steps).any(|n| watch.is_too_slow(every, n * bytes))
    }

    #[test]
    fn a_drip_is_cut_off_and_a_slow_link_is_not() {
        assert!(is_cut(1, 1000) && is_cut(1, 10_000) && is_cut(100, 1000));
        // 100 kbit/s, alone and as one of twenty connections
        assert!(!is_cut(1460, 117) && !is_cut(1460, 2336));
        // an outage of 25 s in a link of 50 kB/s
        assert!(!is_cut(1_250_000, 25_000));
    }

    proptest! {
        #[test]
        fn who_keeps_the_pace_is_never_cut_and_who_stops_always_is(
            steps in proptest::collection::vec(1u64..20_000, 1..100), surplus in 0u64..1000
        ) {
            let mut watch = Watch::new(PACE, 7);
            let mut moved = 7;
            for ms in steps {
                moved += 256 * ms / 1000 + 1 + surplus;
                prop_assert!(!watch.is_too_slow(Duration::from_millis(ms), moved));
                prop_assert!(watch.look_in() <= PACE.stretch);
            }
            watch.is_too_slow(PACE.stretch, moved);
            prop_assert!(watch.is_too_slow(PACE.stretch, moved));
        }
    }
}

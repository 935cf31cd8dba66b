//! Decides whether a client is too slow: a state machine without sockets and clocks.
//!
//! Only the time in which the *server* waits for the client counts, to send or to take bytes. In each stretch of such
//! waiting, the client must move a minimum of bytes. The minimum is far below what an honest slow link moves (100 kbit/s
//! shared by twenty connections gives each 600 bytes per second) and far above what an attacker sends who only wants to
//! occupy a connection.

use std::time::Duration;

/// How slow a client may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Least bytes per second, averaged over each stretch.
    pub bytes_per_s_min: u64,
    /// Length of a stretch of waiting.
    pub stretch: Duration,
}

/// Measures one direction of a connection, or one body.
#[derive(Clone, Debug)]
pub struct Watch {
    pace: Pace,
    waited: Duration,
    /// Bytes that had been moved when the stretch began.
    began_at: u64,
}

impl Watch {
    /// Begins to measure; `moved` bytes have been moved before.
    pub fn new(pace: Pace, moved: u64) -> Watch {
        Watch {
            pace,
            waited: Duration::ZERO,
            began_at: moved,
        }
    }

    /// Returns how much longer to wait before checking again.
    pub fn look_in(&self) -> Duration {
        self.pace.stretch.saturating_sub(self.waited)
    }

    /// Adds `waited`, the time spent waiting since the last call; `moved` is the total of bytes. Returns whether the
    /// client is too slow.
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

    /// Returns whether a client that moves `bytes` every `every_ms` is cut off within ten minutes.
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

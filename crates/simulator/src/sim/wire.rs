//! The bottleneck of a link in virtual time: computes when bytes that are put on it have passed.
use floe_testbed::link::{MTU, Rate};

/// A link, as the simulator describes it.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Its name in figures.
    pub name: String,
    /// How fast bytes pass.
    pub rate: Rate,
    /// Time from a request to the first byte of its answer on an idle link, in nanoseconds.
    pub rtt_ns: u64,
}

/// One direction of a link. Bytes pass in the order in which they are put on it.
#[derive(Clone, Debug)]
pub struct Wire {
    rate: Rate,
    /// When the last byte put on it has passed.
    free_ns: u64,
    /// On a recorded link: the next unused moment; the next field is what the last used one can still carry.
    next: u64,
    left: usize,
}

/// When some bytes passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// When the first byte began to pass.
    pub first_ns: u64,
    /// When the last byte had passed.
    pub last_ns: u64,
}

impl Wire {
    /// Makes an idle link.
    pub fn new(rate: Rate) -> Wire {
        Wire {
            rate,
            free_ns: 0,
            next: 0,
            left: 0,
        }
    }

    /// Puts `bytes` on the link at `ready_ns`, after everything that was put on it before. Costs O(log moments) on a
    /// recorded link.
    pub fn carry(&mut self, ready_ns: u64, bytes: usize) -> Passed {
        let start_ns = ready_ns.max(self.free_ns);
        let passed = match &self.rate {
            Rate::Unlimited => Passed {
                first_ns: start_ns,
                last_ns: start_ns,
            },
            Rate::BitsPerSecond(rate) => {
                let took = (bytes as u128 * 8_000_000_000).div_ceil(u128::from((*rate).max(1)));
                Passed {
                    first_ns: start_ns,
                    last_ns: start_ns + u64::try_from(took).unwrap_or(u64::MAX / 2),
                }
            }
            Rate::Recorded(trace) => {
                // What a past moment could have carried is lost.
                if start_ns > self.free_ns {
                    self.left = 0;
                }
                if self.left == 0 && trace.nth_ns(self.next) < start_ns {
                    self.next = trace.first_at(start_ns);
                }
                let (mut at, mut first, mut bytes) = (self.free_ns, None, bytes);
                while bytes > 0 {
                    if self.left == 0 {
                        at = trace.nth_ns(self.next);
                        (self.next, self.left) = (self.next + 1, MTU);
                    }
                    first.get_or_insert(at);
                    let taken = bytes.min(self.left);
                    (bytes, self.left) = (bytes - taken, self.left - taken);
                }
                Passed {
                    first_ns: first.unwrap_or(start_ns),
                    last_ns: first.map_or(start_ns, |_| at),
                }
            }
        };
        self.free_ns = passed.last_ns;
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testbed::link::Trace;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn recorded(text: &str) -> Wire {
        let trace = Trace::parse(text.as_bytes()).unwrap();
        Wire::new(Rate::Recorded(Arc::new(trace)))
    }

    #[test]
    fn a_fixed_link_carries_its_rate() {
        let mut wire = Wire::new(Rate::BitsPerSecond(8_000_000));
        let passed = wire.carry(5_000, 1000);
        assert_eq!((passed.first_ns, passed.last_ns), (5_000, 1_005_000));
        assert_eq!(wire.carry(0, 500).last_ns, 1_505_000);
        assert_eq!(wire.carry(9_000_000, 1).first_ns, 9_000_000);
    }

    #[test]
    fn a_recorded_link_carries_a_packet_at_each_of_its_moments() {
        let mut wire = recorded("10\n20\n20\n30\n");
        let ms = 1_000_000;
        let passed = wire.carry(0, 1600);
        assert_eq!((passed.first_ns, passed.last_ns), (10 * ms, 20 * ms));
        // The rest of the second packet and the third one, both at 20 ms.
        assert_eq!(wire.carry(20 * ms, 2900).last_ns, 20 * ms);
        assert_eq!(wire.carry(20 * ms, 1).last_ns, 30 * ms);
        // The rest of the moment at 30 ms is gone by 31 ms; the loop starts over.
        assert_eq!(wire.carry(31 * ms, 1).last_ns, 40 * ms);
    }

    proptest! {
        #[test]
        fn no_more_passes_than_the_moments_can_carry(
            steps in proptest::collection::vec(0u64..9, 1..40),
            puts in proptest::collection::vec((0u64..40_000_000, 1usize..4000), 1..60),
        ) {
            let (mut at, mut text) = (0, String::new());
            for step in &steps { at += step; text += &format!("{at}\n"); }
            prop_assume!(at > 0);
            let trace = Trace::parse(text.as_bytes()).unwrap();
            let mut wire = Wire::new(Rate::Recorded(Arc::new(trace)));
            let trace = Trace::parse(text.as_bytes()).unwrap();
            let (mut now, mut last, mut sent) = (0, 0, 0);
            for (wait, bytes) in puts {
                now += wait;
                let passed = wire.carry(now, bytes);
                prop_assert!(passed.first_ns >= now.max(last) && passed.last_ns >= passed.first_ns);
                last = passed.last_ns;
                sent += bytes;
                // All moments up to and including that of the last byte.
                let moments = trace.first_at(last + 1);
                prop_assert!(sent <= moments as usize * MTU, "{sent} bytes in {moments} moments");
            }
        }
    }
}

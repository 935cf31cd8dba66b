//! How much may be in flight on a link, so that the link is full and its queue is not.

use crate::{Config, Link};

/// The window in units of what the link holds. It is more than 1, or it would never be seen that a link has become faster.
const RUNNING: f64 = 1.25;
/// The same while all machines that stream over the link are paused, so that no demand can queue behind it.
const PAUSED: f64 = 2.0;
/// The round trip may grow to this many times its minimum before the window is reduced.
const RTT_RISE: f64 = 1.5;
/// Shorter growth comes from the clock and the scheduler, in microseconds.
const RTT_SLACK_US: u64 = 10_000;
/// The window's share: multiplied by the first at each measurement with a long queue, raised by the second at each without one,
/// and never below the third.
const GIVE_WAY: f64 = 0.7;
const COME_BACK: f64 = 0.15;
const SHARE_MIN: f64 = 0.25;
/// After this many measurements a minimum that wasn't reached again is forgotten, since routes change.
const RTT_MIN_ESTIMATES: u32 = 120;

/// Bounds the number of chunks in flight.
#[derive(Debug)]
pub(crate) struct Pace {
    share: f64,
    rtt_min_us: u64,
    estimates_since_min: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            share: 1.0,
            rtt_min_us: u64::MAX,
            estimates_since_min: 0,
        }
    }
}

impl Pace {
    /// Notes a measurement of the link.
    pub(crate) fn estimate(&mut self, link: Link) {
        self.estimates_since_min += 1;
        if link.rtt_us <= self.rtt_min_us || self.estimates_since_min > RTT_MIN_ESTIMATES {
            self.rtt_min_us = link.rtt_us;
            self.estimates_since_min = 0;
        }
        let most = (self.rtt_min_us as f64 * RTT_RISE) as u64 + RTT_SLACK_US;
        self.share = if link.rtt_us > most {
            (self.share * GIVE_WAY).max(SHARE_MIN)
        } else {
            (self.share + COME_BACK).min(1.0)
        };
    }

    /// Returns how many chunks may be in flight. Counts with the shortest round trip: what is above it is a queue.
    pub(crate) fn window_chunks(&self, link: Option<Link>, paused: bool, config: &Config) -> u64 {
        let (least, most) = (config.in_flight_chunks_min, config.in_flight_chunks_max);
        let Some(link) = link else {
            return u64::from(least);
        };
        let rtt_us = link.rtt_us.min(self.rtt_min_us) as f64;
        let within = link.bytes_per_s * rtt_us / 1e6 / config.wire_bytes();
        let factor = if paused { PAUSED } else { RUNNING * self.share };
        ((within * factor) as u64).clamp(u64::from(least), u64::from(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(rtt_us: u64) -> Link {
        Link {
            bytes_per_s: 900e3,
            rtt_us,
        }
    }

    #[test]
    fn a_queue_that_grows_is_given_way_to_and_a_queue_that_ends_is_forgotten() {
        let (config, mut pace) = (Config::default(), Pace::default());
        pace.estimate(link(120_000));
        let full = pace.window_chunks(Some(link(120_000)), false, &config);
        (0..10).for_each(|_| pace.estimate(link(400_000)));
        let less = pace.window_chunks(Some(link(400_000)), false, &config);
        assert!(less * 3 < full, "{less} of {full}");
        (0..10).for_each(|_| pace.estimate(link(125_000)));
        let again = pace.window_chunks(Some(link(125_000)), false, &config);
        assert_eq!(again, full);
    }
}

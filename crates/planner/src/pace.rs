//! How much may be under way on a link, so that the link is full and its queue is not.

use crate::{Config, Link};

/// Of the link's own content; more than one, or a link that became faster would never be seen to be.
const RUNNING: f64 = 1.25;
/// The same while all machines that stream over it are paused: no demand can be behind it.
const PAUSED: f64 = 2.0;
/// The round trip may rise to this part of its minimum before we give way.
const RTT_RISE: f64 = 1.5;
/// Rises below this are the clock's and the scheduler's, in microseconds.
const RTT_SLACK_US: u64 = 10_000;
/// What is left of the window after each estimate with a long queue, and what comes back after one without.
const GIVE_WAY: f64 = 0.7;
const COME_BACK: f64 = 0.15;
const SHARE_MIN: f64 = 0.25;
/// Estimates after which a minimum that wasn't seen again is forgotten: routes change.
const RTT_MIN_ESTIMATES: u32 = 120;

/// The window of chunks in flight.
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
    /// The link was measured.
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

    /// Chunks that may be in flight. The round trip counted is the shortest one: what is above it is a queue.
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

//! Estimates how good a link is from what it has carried: round-trip time and bandwidth, as BBR does.
//!
//! Bandwidth is the highest delivery rate of the last ten seconds, measured from the first to the last byte of an answer, and
//! only if the answer is long enough: a 4 KiB answer measures the round trip, not the link. Concurrent answers count together,
//! since they share the link. The round-trip time is the shortest time to a first byte in the same window, so that this host's
//! own queue doesn't inflate it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a sample counts. Long enough to see both a full pipe and an idle one, short enough to follow a
/// handover from Wi-Fi to mobile.
const WINDOW: Duration = Duration::from_secs(10);

/// Fewest bytes that say something about bandwidth: some ten packets after the first.
const SAMPLE_BYTES_MIN: u64 = 16 << 10;

/// Most samples kept; if there are more within the window the oldest is dropped.
const SAMPLES_MAX: usize = 64;

/// What a link has carried and how fast it seems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEstimate {
    /// Bytes received on the wire, with headers where they are known.
    pub wire_bytes: u64,
    /// Requests made.
    pub requests: u64,
    /// Bandwidth towards this host; `None` until something large enough was read.
    pub bytes_per_s: Option<u64>,
    /// Round-trip time, including the server's time to a first byte.
    pub rtt_us: Option<u64>,
}

impl LinkEstimate {
    /// Returns the traffic of both links, and this link's estimates; the other's where this one has none.
    pub(crate) fn with(self, other: LinkEstimate) -> LinkEstimate {
        LinkEstimate {
            wire_bytes: self.wire_bytes + other.wire_bytes,
            requests: self.requests + other.requests,
            bytes_per_s: self.bytes_per_s.or(other.bytes_per_s),
            rtt_us: self.rtt_us.or(other.rtt_us),
        }
    }
}

/// Measures one link. All methods are given the time, so that tests need no clock.
#[derive(Debug, Default)]
pub struct LinkMeter(Mutex<Meter>);

#[derive(Debug, Default)]
struct Meter {
    wire_bytes: u64,
    requests: u64,
    rates: VecDeque<(Instant, u64)>,
    rtts: VecDeque<(Instant, u64)>,
}

/// An answer that is being received.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    started: Instant,
    /// Set at the first byte: the time, and what the whole link had carried by then.
    first: Option<(Instant, u64)>,
}

impl LinkMeter {
    /// Notes that a request leaves.
    pub fn request(&self, now: Instant) -> Answer {
        self.0.lock().requests += 1;
        Answer {
            started: now,
            first: None,
        }
    }

    /// Notes that `bytes` of the answer arrived.
    pub fn received(&self, answer: &mut Answer, bytes: usize, now: Instant) {
        let mut meter = self.0.lock();
        meter.wire_bytes += bytes as u64;
        if answer.first.is_none() {
            let total = meter.wire_bytes;
            answer.first = Some((now, total));
            let rtt_us = now.saturating_duration_since(answer.started).as_micros() as u64;
            keep(&mut meter.rtts, now, rtt_us.max(1));
        }
    }

    /// Notes that the answer is complete.
    pub fn ended(&self, answer: Answer, now: Instant) {
        let Some((first_at, before)) = answer.first else {
            return;
        };
        let mut meter = self.0.lock();
        let delivered = meter.wire_bytes - before;
        let took_us = now.saturating_duration_since(first_at).as_micros() as u64;
        if delivered >= SAMPLE_BYTES_MIN {
            // What arrived faster than this came out of a buffer: measure from the request instead.
            let whole_us = now.saturating_duration_since(answer.started).as_micros() as u64;
            let us = if took_us < 50 { whole_us } else { took_us }.max(1);
            keep(
                &mut meter.rates,
                now,
                delivered.saturating_mul(1_000_000) / us,
            );
        }
    }

    /// Returns what is known at `now`. If the window has emptied, the last sample still counts.
    pub fn estimate(&self, now: Instant) -> LinkEstimate {
        let mut meter = self.0.lock();
        let meter = &mut *meter;
        forget(&mut meter.rates, now);
        forget(&mut meter.rtts, now);
        LinkEstimate {
            wire_bytes: meter.wire_bytes,
            requests: meter.requests,
            bytes_per_s: meter.rates.iter().map(|s| s.1).max(),
            rtt_us: meter.rtts.iter().map(|s| s.1).min(),
        }
    }
}

fn keep(samples: &mut VecDeque<(Instant, u64)>, now: Instant, value: u64) {
    samples.push_back((now, value));
    forget(samples, now);
    while samples.len() > SAMPLES_MAX {
        samples.pop_front();
    }
}

fn forget(samples: &mut VecDeque<(Instant, u64)>, now: Instant) {
    while samples.len() > 1 && now.saturating_duration_since(samples[0].0) > WINDOW {
        samples.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_long_answer_tells_the_bandwidth_and_the_round_trip() {
        let meter = LinkMeter::default();
        let start = Instant::now();
        let mut answer = meter.request(start);
        meter.received(&mut answer, 1000, start + ms(120));
        for i in 1..=100 {
            meter.received(&mut answer, 9000, start + ms(120 + i * 10));
        }
        meter.ended(answer, start + ms(1120));
        let seen = meter.estimate(start + ms(1200));
        assert_eq!(seen.rtt_us, Some(120_000));
        assert_eq!(seen.bytes_per_s, Some(900_000));
        assert_eq!((seen.wire_bytes, seen.requests), (901_000, 1));
    }

    #[test]
    fn short_answers_say_nothing_about_bandwidth() {
        let meter = LinkMeter::default();
        let start = Instant::now();
        let mut answer = meter.request(start);
        meter.received(&mut answer, 4096, start + ms(120));
        meter.ended(answer, start + ms(120));
        assert_eq!(meter.estimate(start + ms(121)).bytes_per_s, None);
    }

    #[test]
    fn concurrent_answers_share_one_link() {
        let meter = LinkMeter::default();
        let start = Instant::now();
        let (mut a, mut b) = (meter.request(start), meter.request(start));
        meter.received(&mut a, 1, start + ms(10));
        meter.received(&mut b, 1, start + ms(10));
        for i in 1..=50 {
            meter.received(&mut a, 1000, start + ms(10 + i * 2));
            meter.received(&mut b, 1000, start + ms(10 + i * 2));
        }
        meter.ended(a, start + ms(110));
        meter.ended(b, start + ms(110));
        let rate = meter.estimate(start + ms(110)).bytes_per_s.unwrap();
        assert!((999_000..=1_001_000).contains(&rate), "{rate}");
    }

    #[test]
    fn a_link_that_got_slower_is_believed_after_the_window() {
        let meter = LinkMeter::default();
        let start = Instant::now();
        for (at, took) in [(0, 100), (5_000, 1_000), (11_000, 1_000)] {
            let mut answer = meter.request(start + ms(at));
            meter.received(&mut answer, 1, start + ms(at));
            meter.received(&mut answer, 100_000, start + ms(at + took));
            meter.ended(answer, start + ms(at + took));
        }
        assert_eq!(
            meter.estimate(start + ms(12_000)).bytes_per_s,
            Some(100_000)
        );
    }
}

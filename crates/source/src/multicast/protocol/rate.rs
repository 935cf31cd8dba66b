//! Rates: how fast data is received or sent now, and how fast a server may send.

use std::time::Duration;

/// The unit of time in which bytes are counted (section 4.5).
const TICK: Duration = Duration::from_millis(10);
/// Weight of the newest tick in the average.
const WEIGHT: f64 = 0.25;
/// After this many ticks without a byte the average counts as zero.
const TICKS_MAX: u32 = 64;

/// The lowest rate limit: 16 Mbit/s. Without it a single loss on an idle group would cut the limit to what was being sent then,
/// which is next to nothing.
pub const RATE_MIN: u64 = 2_000_000;
/// The highest rate limit: a gigabit a second.
pub const RATE_MAX: u64 = 125_000_000;
/// The limit at first: half of what a link of 100 Mbit/s can carry.
const RATE_FIRST: f64 = 6_000_000.0;
/// By how much the limit grows in each tick in which it holds something back, in bytes per second.
const GROWTH_A_TICK: f64 = 1_000_000.0;
/// Most ticks that count at once: a server that did not run for a while has learnt nothing in that time.
const GROWTH_TICKS_MAX: f64 = 10.0;
/// Shortest wait for the limit, so that a few packets go out together.
const WAIT_MIN: Duration = Duration::from_micros(200);
/// Losses within this time count as one: a full queue somewhere drops many packets at once.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// Longest burst, in time at the present rate. The kernel's timers are no finer, and receivers' buffers can hold it.
const BURST: Duration = Duration::from_millis(5);
/// The burst is never less than these bytes: some chunks, so that a demand on an idle group never waits.
const BURST_BYTES_MIN: f64 = 32_000.0;

/// Measures a rate: a weighted average of the bytes in each 10 ms.
#[derive(Clone, Debug, Default)]
pub struct RateMeter {
    tick: u128,
    bytes: u64,
    average: f64,
}

impl RateMeter {
    /// Notes that this many bytes were received or sent.
    pub fn add(&mut self, now: Duration, bytes: usize) {
        self.pass(now);
        self.bytes += bytes as u64;
    }

    /// Returns the rate in bytes per second.
    pub fn bytes_per_s(&mut self, now: Duration) -> u64 {
        self.pass(now);
        (self.average / TICK.as_secs_f64()) as u64
    }

    fn pass(&mut self, now: Duration) {
        let tick = now.as_nanos() / TICK.as_nanos();
        let passed = tick.saturating_sub(self.tick).min(u128::from(TICKS_MAX));
        for _ in 0..passed {
            self.average += WEIGHT * (self.bytes as f64 - self.average);
            self.bytes = 0;
        }
        self.tick = self.tick.max(tick);
    }
}

/// The server's flow control: the limit grows linearly, and a loss cuts it to three quarters of what receivers get on average.
#[derive(Clone, Debug)]
pub struct FlowControl {
    limit: f64,
    tokens: f64,
    at: Duration,
    /// Whether something waits because of the limit.
    held: bool,
    cut_at: Option<Duration>,
}

impl Default for FlowControl {
    fn default() -> FlowControl {
        FlowControl {
            limit: RATE_FIRST,
            tokens: BURST_BYTES_MIN,
            at: Duration::ZERO,
            held: false,
            cut_at: None,
        }
    }
}

impl FlowControl {
    /// Returns the present limit in bytes per second.
    pub fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Returns whether something may be sent now; the error is the time when it may.
    pub fn may_send(&mut self, now: Duration) -> Result<(), Duration> {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        if self.held {
            let ticks = (passed / TICK.as_secs_f64()).min(GROWTH_TICKS_MAX);
            self.limit = (self.limit + GROWTH_A_TICK * ticks).min(RATE_MAX as f64);
        }
        let burst = (self.limit * BURST.as_secs_f64()).max(BURST_BYTES_MIN);
        self.tokens = (self.tokens + passed * self.limit).min(burst);
        self.held = self.tokens <= 0.0;
        if !self.held {
            return Ok(());
        }
        let missing = Duration::from_secs_f64((1.0 - self.tokens) / self.limit);
        Err(now + missing.max(WAIT_MIN))
    }

    /// Notes that this many bytes were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Notes that something that was sent has not arrived. `mean` is what the receivers get on average, in bytes per second.
    pub fn lost(&mut self, now: Duration, mean: u64) {
        if self.cut_at.is_some_and(|at| now < at + CUT_EVERY) {
            return;
        }
        self.cut_at = Some(now);
        // Never raised here: a receiver may still report a rate from better times.
        self.limit = (mean as f64 * 0.75).min(self.limit).max(RATE_MIN as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_rate_is_what_has_arrived_lately() {
        let mut meter = RateMeter::default();
        for n in 0..100 {
            meter.add(ms(n * 10), 10_000);
        }
        let rate = meter.bytes_per_s(ms(1000));
        assert!((950_000..=1_000_000).contains(&rate), "{rate}");
        assert!(meter.bytes_per_s(ms(1100)) < rate / 10);
        assert_eq!(meter.bytes_per_s(ms(100_000)), 0);
    }

    /// Sends all that the limit allows between two times; returns how many bytes.
    fn send(flow: &mut FlowControl, from: Duration, to: Duration) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < to {
            match flow.may_send(now) {
                Ok(()) => {
                    flow.sent(1400);
                    sent += 1400;
                }
                Err(later) => now = later,
            }
        }
        sent
    }

    #[test]
    fn the_limit_grows_while_it_holds_something_back_and_falls_once_for_many_losses() {
        let mut flow = FlowControl::default();
        send(&mut flow, ms(0), ms(1000));
        let grown = flow.limit();
        assert!((40_000_000..=RATE_MAX).contains(&grown), "{grown}");
        // An idle hour counts as ten ticks at most.
        assert!(flow.may_send(ms(3_600_000)).is_ok());
        assert!(flow.limit() <= grown + 10_000_000, "{}", flow.limit());
        for n in 0..90 {
            flow.lost(ms(3_600_000 + n), 20_000_000);
        }
        assert_eq!(flow.limit(), 15_000_000);
        // Receivers that get nothing can't stop the server, and receivers that overstate their rate can't speed it up.
        flow.lost(ms(3_601_000), 0);
        assert_eq!(flow.limit(), RATE_MIN);
        flow.lost(ms(3_602_000), u64::MAX);
        assert_eq!(flow.limit(), RATE_MIN);
    }

    #[test]
    fn what_is_sent_keeps_to_the_limit() {
        let mut flow = FlowControl::default();
        send(&mut flow, ms(0), ms(5_000));
        let before = flow.limit();
        let sent = send(&mut flow, ms(5_000), ms(6_000));
        assert!(sent >= before * 9 / 10, "{sent} of {before}");
        assert!(sent <= RATE_MAX + RATE_MAX / 100, "{sent}");
    }
}

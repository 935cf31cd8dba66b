//! How many requests a device may have at once: as many as it needs for its full throughput and no more, because what waits in
//! the device's own queue can't be overtaken.
//!
//! Throughput is measured over epochs in which the device had all that it may have, all the time. Now and then an epoch is run
//! with more at once: if that gains less than half of what it would gain on a device that is not yet busy, requests only
//! waited longer, and the old depth comes back. Then one is run with fewer, which stay if nearly nothing is lost.

use super::config::SECOND_US;

/// Completions in an epoch: so many, and eight for each request that may be under way, so that chance decides seldom.
const EPOCH_MIN: usize = 32;

/// Epochs between probes when the last ones changed nothing: at first, and at most. On a hard disk some 3 and 40 seconds.
const PROBE_AFTER: u32 = 8;
const PROBE_AFTER_MAX: u32 = 128;

/// An epoch so many times slower than the last ones was a stall, which says nothing about depth.
const STALL_FACTOR: f64 = 4.0;

/// That many stalls in a row are no stalls: the device has become slower.
const STALLS_MAX: u32 = 3;

/// In microseconds: for how long the device is then not held free for anybody, so that it can be measured while it is kept busy; and how
/// long after the last measurement that is done. Without this, a machine for which the device is always held free would prevent every
/// measurement.
const LOOK_US: u64 = 3_000_000;
const LOOK_EVERY_US: u64 = 60_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Steady,
    Up { from: usize },
    Down { from: usize },
}

/// Finds a device's depth and its throughput. Costs are in requests of ordinary size.
#[derive(Debug)]
pub(super) struct Depth {
    limit: usize,
    max: usize,
    phase: Phase,
    /// Throughput of the last epoch at the depth that probes start from, in cost per microsecond.
    base: f64,
    /// Predicted throughput, in cost per microsecond.
    capacity: f64,
    /// Epochs until the next probe, and how many there were before the last.
    probe_in: u32,
    probe_after: u32,
    stalls: u32,
    /// Completions that are still of requests from before the depth changed.
    settling: usize,
    epoch: Option<Epoch>,
    /// When the device is to be measured undisturbed, and until when it is, if that has begun.
    look_us: u64,
    looks_until_us: Option<u64>,
    /// The second in which throughput is measured whatever the load.
    second: Epoch,
}

#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    began_us: u64,
    served: usize,
    cost: f64,
}

impl Epoch {
    fn new(now_us: u64) -> Epoch {
        Epoch {
            began_us: now_us,
            ..Epoch::default()
        }
    }

    fn add(&mut self, cost: f64) {
        self.served += 1;
        self.cost += cost;
    }

    fn rate(&self, now_us: u64) -> f64 {
        self.cost / now_us.saturating_sub(self.began_us).max(1) as f64
    }
}

impl Depth {
    pub(super) fn new(start: usize, max: usize, capacity_per_s: f64) -> Depth {
        Depth {
            limit: start.clamp(1, max),
            max,
            phase: Phase::Steady,
            base: 0.0,
            capacity: capacity_per_s / SECOND_US,
            probe_in: 1,
            probe_after: PROBE_AFTER,
            stalls: 0,
            settling: 0,
            epoch: None,
            look_us: 0,
            looks_until_us: None,
            second: Epoch::default(),
        }
    }

    /// Returns how many requests may be under way.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the predicted throughput, in requests of ordinary size per microsecond.
    pub(super) fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Returns whether the device may be held free, which disturbs its measurement.
    pub(super) fn may_hold(&mut self, now_us: u64) -> bool {
        match self.looks_until_us {
            None => true,
            Some(until) if until > now_us => false,
            Some(_) => {
                self.known(now_us);
                true
            }
        }
    }

    /// Records a request that was served together with another one; only that other one is reported by [`Depth::served`].
    pub(super) fn served_with_another(&mut self, cost: f64) {
        self.second.cost += cost;
        if let Some(epoch) = &mut self.epoch
            && self.settling == 0
        {
            epoch.cost += cost;
        }
    }

    fn known(&mut self, now_us: u64) {
        self.look_us = now_us + LOOK_EVERY_US;
        self.looks_until_us = None;
    }

    /// Records a request that was served. `full` tells whether the device had all that it may have until then, and something waits
    /// to take the place.
    pub(super) fn served(&mut self, now_us: u64, cost: f64, full: bool) {
        self.second.add(cost);
        if now_us.saturating_sub(self.second.began_us) >= SECOND_US as u64 {
            // A device that wasn't kept busy can do at least what it did.
            self.capacity = self.capacity.max(self.second.rate(now_us));
            self.second = Epoch::new(now_us);
        }
        if !full {
            return self.interrupt();
        }
        if now_us >= self.look_us && self.looks_until_us.is_none() {
            self.looks_until_us = Some(now_us + LOOK_US);
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        let Some(epoch) = &mut self.epoch else {
            self.epoch = Some(Epoch::new(now_us));
            return;
        };
        epoch.add(cost);
        if epoch.served >= EPOCH_MIN + 8 * self.limit {
            let rate = epoch.rate(now_us);
            self.epoch = Some(Epoch::new(now_us));
            self.end_of_epoch(rate);
            if self.phase == Phase::Steady && self.probe_in > 1 {
                self.known(now_us);
            }
        }
    }

    /// Gives the epoch up: the device didn't have all that it may have. A probe ends with it.
    pub(super) fn interrupt(&mut self) {
        self.epoch = None;
        if let Phase::Up { from } | Phase::Down { from } = self.phase {
            self.probe_in = self.probe_after;
            self.change(Phase::Steady, from);
        }
    }

    fn end_of_epoch(&mut self, rate: f64) {
        if rate < self.base / STALL_FACTOR && self.stalls < STALLS_MAX {
            self.stalls += 1;
            return self.interrupt();
        }
        self.stalls = 0;
        match self.phase {
            Phase::Steady => {
                self.base = rate;
                self.capacity += (rate - self.capacity) / 4.0;
                self.probe_in = self.probe_in.saturating_sub(1);
                if self.probe_in == 0 {
                    self.probe_up();
                }
            }
            Phase::Up { from } => {
                let more = (self.limit - from) as f64 / from as f64;
                if rate >= self.base * (1.0 + more / 2.0) {
                    self.found(rate);
                } else {
                    self.probe_down(from);
                }
            }
            Phase::Down { from } => {
                let less = (from - self.limit) as f64 / from as f64;
                if rate >= self.base * (1.0 - less / 4.0) {
                    self.found(rate);
                } else {
                    self.probe_in = self.probe_after;
                    self.probe_after = (self.probe_after * 2).min(PROBE_AFTER_MAX);
                    self.change(Phase::Steady, from);
                }
            }
        }
    }

    /// Stays where the probe led, and looks further soon.
    fn found(&mut self, rate: f64) {
        self.base = rate;
        self.capacity = self.capacity.max(rate);
        self.phase = Phase::Steady;
        self.probe_in = 1;
        self.probe_after = PROBE_AFTER;
    }

    fn probe_up(&mut self) {
        let from = self.limit;
        let to = (from + step(from)).min(self.max);
        if to > from {
            self.change(Phase::Up { from }, to);
        } else {
            self.probe_down(from);
        }
    }

    fn probe_down(&mut self, from: usize) {
        if from > 1 {
            self.change(Phase::Down { from }, from - step(from));
        } else {
            self.probe_in = self.probe_after;
            self.probe_after = (self.probe_after * 2).min(PROBE_AFTER_MAX);
            self.change(Phase::Steady, from);
        }
    }

    fn change(&mut self, phase: Phase, limit: usize) {
        if limit != self.limit {
            self.settling = self.limit.max(limit);
            self.epoch = None;
        }
        self.phase = phase;
        self.limit = limit;
    }
}

/// How far a probe goes from a depth.
fn step(depth: usize) -> usize {
    (depth / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Serves `seconds` of a device that is kept full: `channels` requests at once, each taking `service_us`.
    fn run(depth: &mut Depth, now_us: &mut f64, seconds: f64, channels: usize, service_us: f64) {
        let until = *now_us + seconds * 1e6;
        while *now_us < until {
            *now_us += service_us / depth.limit().min(channels) as f64;
            depth.served(*now_us as u64, 1.0, true);
        }
    }

    #[test]
    fn one_arm_gets_one_or_two_requests_and_eight_channels_get_eight() {
        for (channels, service_us, least, most) in [
            (1, 8333.0, 1, 2),
            (4, 200.0, 4, 5),
            (8, 400.0, 8, 10),
            (24, 100.0, 22, 30),
        ] {
            let mut depth = Depth::new(2, 63, 200.0);
            let mut now = 0.0;
            run(&mut depth, &mut now, 60.0, channels, service_us);
            let found = depth.limit();
            assert!((least..=most).contains(&found), "{channels}: {found}");
            let capacity = depth.capacity() * 1e6;
            let real = channels as f64 / service_us * 1e6;
            assert!((0.85..1.05).contains(&(capacity / real)), "{capacity}");
        }
    }

    #[test]
    fn a_device_that_becomes_another_one_is_measured_anew() {
        let mut depth = Depth::new(2, 63, 200.0);
        let mut now = 0.0;
        run(&mut depth, &mut now, 10.0, 16, 200.0);
        assert!(depth.limit() >= 14, "{}", depth.limit());
        run(&mut depth, &mut now, 300.0, 1, 8333.0);
        assert!(depth.limit() <= 2, "{}", depth.limit());
        assert!((depth.capacity() * 1e6 / 120.0 - 1.0).abs() < 0.05);
        run(&mut depth, &mut now, 300.0, 16, 200.0);
        assert!(depth.limit() >= 14, "{}", depth.limit());
    }

    #[test]
    fn a_stall_of_ten_seconds_changes_nothing() {
        let mut depth = Depth::new(2, 63, 200.0);
        let mut now = 0.0;
        run(&mut depth, &mut now, 30.0, 4, 200.0);
        let (limit, capacity) = (depth.limit(), depth.capacity());
        now += 10e6;
        run(&mut depth, &mut now, 1.0, 4, 200.0);
        assert_eq!(depth.limit(), limit);
        assert!(depth.capacity() > capacity * 0.95);
    }

    proptest! {
        /// Whatever it is told, the depth stays within its bounds and the capacity is a positive number.
        #[test]
        fn depth_stays_within_bounds(
            max in 1usize..40,
            start in 1usize..60,
            steps in proptest::collection::vec((0u64..2_000_000, 0.0f64..300.0, any::<bool>()), 0..2000),
        ) {
            let mut depth = Depth::new(start, max, 100.0);
            let mut now = 0;
            for (wait, cost, full) in steps {
                now += wait;
                depth.served(now, cost, full);
                prop_assert!((1..=max).contains(&depth.limit()));
                prop_assert!(depth.capacity() > 0.0 && depth.capacity().is_finite());
            }
        }
    }
}

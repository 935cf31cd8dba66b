//! What a policy reports of the machines that it serves, and the limits that can be set for them.

use crate::MachineId;

/// Most machines that have a limit together: more than a host has.
const MACHINES_MAX: u32 = 1 << 20;

/// What a machine may have of a device or link that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its share, against those of the other machines that want something; 1 to 1000.
    pub weight: u32,
    /// Above this many percent of what the device can do, its requests wait until nobody else has any; 1 to 100. 100 is no
    /// bound.
    pub cap_percent: u32,
    /// How many machines share this weight and this cap, this one among them: each has an equal part of both; at least 1.
    pub among: u32,
}

impl Limit {
    /// The limit of a machine for which nobody has set one.
    pub const DEFAULT: Limit = Limit {
        weight: 5,
        cap_percent: 100,
        among: 1,
    };

    /// The part of a weight of 1 in which parts of weights are counted.
    pub(crate) const WEIGHT_PARTS: u32 = 1 << 20;

    /// Returns this machine's own weight, in [`Limit::WEIGHT_PARTS`]; not 0.
    pub(crate) fn weight_parts(self) -> u32 {
        (self.weight * Limit::WEIGHT_PARTS / self.among).max(1)
    }

    /// Returns this machine's own part of what the device can do, above which its requests wait; `None` if there is no bound.
    pub(crate) fn cap(self) -> Option<f64> {
        (self.cap_percent < 100).then(|| f64::from(self.cap_percent) / f64::from(100 * self.among))
    }

    /// Returns the nearest limit that there is.
    pub fn clamped(self) -> Limit {
        Limit {
            weight: self.weight.clamp(1, 1000),
            cap_percent: self.cap_percent.clamp(1, 100),
            among: self.among.clamp(1, MACHINES_MAX),
        }
    }
}

impl Default for Limit {
    fn default() -> Limit {
        Limit::DEFAULT
    }
}

/// How many requests of one class were served, and how long the latest few thousand took from being queued to being done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassStatus {
    /// How many were served since the machine came.
    pub served: u64,
    /// Mean of their waits, in microseconds.
    pub wait_mean_us: f64,
    /// Median of their waits, in microseconds, to within a fifth.
    pub wait_p50_us: u64,
    /// 99th percentile of their waits, in microseconds, to within a fifth.
    pub wait_p99_us: u64,
}

/// What a policy knows of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineStatus {
    /// Which one.
    pub machine: MachineId,
    /// What it may have.
    pub limit: Limit,
    /// Those of its requests that a guest waits for, by [`crate::Class`], in the order of that type.
    pub classes: [ClassStatus; 3],
    /// How many of its requests are queued.
    pub queued: usize,
    /// How many of them are being served.
    pub in_flight: usize,
    /// Requests served for it per second, lately.
    pub requests_per_s: f64,
    /// Bytes served for it per second, lately.
    pub bytes_per_s: f64,
    /// Requests of ordinary size per second that it is predicted to get if all machines that are at work want all that they can
    /// get.
    pub predicted_per_s: f64,
    /// How far its interactive requests may overtake what is queued: requests of ordinary size that it may have beyond its share
    /// before it waits for its turn like others. 0: it has had all of it.
    pub ahead: f64,
    /// Whether it has had more than its cap.
    pub capped: bool,
}

/// What a policy knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The predicted throughput of the device, in requests of ordinary size per second.
    pub capacity_per_s: f64,
    /// How many requests it may have to do at once.
    pub depth: usize,
    /// How many requests it is doing.
    pub in_flight: usize,
    /// How often the starvation guard has acted: a request was served out of its turn because its kind had waited too long.
    pub guarded: u64,
    /// How long the device was kept free for an interactive machine's next request, in microseconds in total.
    pub held_us: u64,
    /// All machines that it knows, by number.
    pub machines: Vec<MachineStatus>,
}

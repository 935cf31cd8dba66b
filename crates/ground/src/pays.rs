//! When it pays to have a machine go on on a strong host, and come back: a model. No I/O and no clock.
//!
//! The paper (AMPhone, section 5.5) says that offloading pays for programs that compute for long enough, and not for those that wait for
//! sensors or a person. As a sum: a job that takes `W` here takes `W / s` there, and to go there and back takes
//!
//! ```text
//! T = still + up / rate_up + down / rate_down + k * round trip
//! ```
//! so that it pays if `W > W* = T * s / (s - 1)`. `s` is what the whole job gains: of a program that needs a CPU for a part `b` of its time only
//! that part becomes faster, `s = 1 / (1 - b + b / speedup)`. What the device's battery gives is told by a proxy: seconds of its CPU, bytes of
//! its radio and seconds that it waits, each with a stated price ([`Costs`]), which is a phone's and no measurement of this host.

/// A program that needs a CPU for less of its time than this waits for something else: a person, a sensor, the network.
pub const BUSY_MIN: f64 = 0.25;
/// What is gained must be more than this to be worth the trouble, as a ratio of times.
pub const GAIN_MIN: f64 = 1.05;

/// What does not depend on the job, the machine or the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds that a machine stands still on both ways together beside what its bytes and the link take: it is captured and stored, a QEMU
    /// loads it.
    pub still_s: f64,
    /// How many round trips both ways take together, connections and questions included.
    pub round_trips: f64,
    /// Energy of one second of the device's CPU, in joules.
    pub cpu_joule_s: f64,
    /// Energy of one byte over the device's radio, in joules.
    pub byte_joule: f64,
    /// Energy of one second in which the device waits, in joules.
    pub wait_joule_s: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            still_s: 3.0,
            round_trips: 30.0,
            // one core of a phone, its LTE radio at some Mbit/s, and the phone with its screen off
            cpu_joule_s: 1.5,
            byte_joule: 2e-6,
            wait_joule_s: 0.2,
        }
    }
}

/// A job on a machine that may go to a strong host for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// How long the job takes here, in seconds.
    pub work_s: f64,
    /// For which part of that time it needs a CPU, from 0 to 1.
    pub busy: f64,
    /// How much faster the other host's CPUs do what needs them.
    pub speedup: f64,
    /// Bytes on the wire on the way there.
    pub up_bytes: f64,
    /// Bytes on the wire on the way back.
    pub down_bytes: f64,
    /// Bytes a second on the way there.
    pub up_bytes_s: f64,
    /// Bytes a second on the way back.
    pub down_bytes_s: f64,
    /// Seconds of a round trip.
    pub round_trip_s: f64,
}

/// What the model says of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds from its begin to its answer on the device, here.
    pub here_s: f64,
    /// The same on the other host, both ways included.
    pub there_s: f64,
    /// `here_s / there_s`.
    pub gain: f64,
    /// From how many seconds of work here on it pays; `None` if it never does.
    pub break_even_s: Option<f64>,
    /// What the device's battery gives for it here, in joules, by the proxy.
    pub here_joule: f64,
    /// The same if the other host does it.
    pub there_joule: f64,
}

/// What is advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done sooner on the other host.
    Pays,
    /// It is not done enough sooner.
    DoesNot,
    /// It waits for a person, a sensor or the network, which no CPU makes faster.
    Bound,
}

impl Case {
    /// How much sooner the whole job is done there, without the ways.
    pub fn job_speedup(&self) -> f64 {
        let busy = self.busy.clamp(0.0, 1.0);
        1.0 / (1.0 - busy + busy / self.speedup.max(f64::MIN_POSITIVE))
    }

    /// Seconds that both ways take.
    pub fn ways_s(&self, costs: &Costs) -> f64 {
        let takes = |bytes: f64, rate: f64| bytes.max(0.0) / rate.max(f64::MIN_POSITIVE);
        let up = takes(self.up_bytes, self.up_bytes_s);
        let down = takes(self.down_bytes, self.down_bytes_s);
        costs.still_s + up + down + costs.round_trips * self.round_trip_s
    }

    /// Returns what the model says.
    pub fn forecast(&self, costs: &Costs) -> Forecast {
        let (speedup, ways_s) = (self.job_speedup(), self.ways_s(costs));
        let there_s = self.work_s / speedup + ways_s;
        let cpu_s = self.work_s * self.busy.clamp(0.0, 1.0);
        let bytes = self.up_bytes.max(0.0) + self.down_bytes.max(0.0);
        Forecast {
            here_s: self.work_s,
            there_s,
            gain: self.work_s / there_s,
            break_even_s: (speedup > 1.0).then(|| ways_s * speedup / (speedup - 1.0)),
            here_joule: costs.cpu_joule_s * cpu_s + costs.wait_joule_s * (self.work_s - cpu_s),
            there_joule: costs.byte_joule * bytes + costs.wait_joule_s * there_s,
        }
    }

    /// Returns what is advised for it.
    pub fn verdict(&self, costs: &Costs) -> Verdict {
        if self.busy < BUSY_MIN {
            return Verdict::Bound;
        }
        match self.forecast(costs).gain >= GAIN_MIN {
            true => Verdict::Pays,
            false => Verdict::DoesNot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 20 MB there and 5 back at 7.2 Mbit/s and 120 ms, to a host that is ten times as fast.
    const CASE: Case = Case {
        work_s: 600.0,
        busy: 1.0,
        speedup: 10.0,
        up_bytes: 20e6,
        down_bytes: 5e6,
        up_bytes_s: 0.9e6,
        down_bytes_s: 0.9e6,
        round_trip_s: 0.12,
    };

    #[test]
    fn a_long_computation_pays_and_a_short_one_or_one_that_waits_does_not() {
        let costs = Costs::default();
        let forecast = CASE.forecast(&costs);
        // 3 s, 27.8 s of bytes and 3.6 s of round trips, and a tenth of the work
        assert!((forecast.there_s - 94.378).abs() < 0.01, "{forecast:?}");
        assert!((forecast.break_even_s.unwrap() - 38.197).abs() < 0.01);
        assert!(forecast.there_joule < forecast.here_joule);
        assert_eq!(CASE.verdict(&costs), Verdict::Pays);
        let short = Case {
            work_s: 38.0,
            ..CASE
        };
        assert_eq!(short.verdict(&costs), Verdict::DoesNot);
        let waits = Case { busy: 0.1, ..CASE };
        assert_eq!(waits.verdict(&costs), Verdict::Bound);
        let slower = Case {
            speedup: 0.5,
            ..CASE
        };
        assert_eq!(slower.forecast(&costs).break_even_s, None);
        assert_eq!(slower.verdict(&costs), Verdict::DoesNot);
        // what needs a CPU for half of its time is done in little more than half of it by the fastest
        let half = Case { busy: 0.5, ..CASE };
        assert!((half.job_speedup() - 1.818).abs() < 0.001);
    }

    proptest! {
        /// The times are equal at the break-even, and it pays above and not below; no figure is none.
        #[test]
        fn it_pays_above_the_break_even_and_not_below(
            busy in 0.01f64..=1.0,
            speedup in 0.1f64..100.0,
            bytes in 0.0f64..1e10,
            rate in 1e3f64..1e9,
            round_trip_s in 0.0f64..1.0,
            times in 0.01f64..100.0,
        ) {
            let costs = Costs::default();
            let case = Case {
                work_s: 1.0,
                busy,
                speedup,
                up_bytes: bytes,
                down_bytes: bytes / 7.0,
                up_bytes_s: rate,
                down_bytes_s: rate * 2.0,
                round_trip_s,
            };
            let forecast = case.forecast(&costs);
            prop_assert!(forecast.there_s.is_finite() && forecast.there_joule.is_finite());
            match forecast.break_even_s {
                Some(work_s) => {
                    let at = Case { work_s, ..case }.forecast(&costs);
                    prop_assert!((at.gain - 1.0).abs() < 1e-6, "{}", at.gain);
                    let off = Case { work_s: work_s * times, ..case }.forecast(&costs);
                    prop_assert!((times > 1.0 + 1e-6) <= (off.gain > 1.0), "{times} {}", off.gain);
                    prop_assert!((times < 1.0 - 1e-6) <= (off.gain < 1.0), "{times} {}", off.gain);
                }
                None => prop_assert!(forecast.gain <= 1.0),
            }
        }
    }
}

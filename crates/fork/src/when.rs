//! Decides when a fork's layer is stored: not while clones need the CPUs for their work, and not at all if they have ended by
//! then.
//!
//! Packing costs a core some seconds for each GB that the parent has written. Clones that were made for a job want that core
//! themselves, and most of them end with the job, so packing waits until the host has a core to spare.

use std::time::Duration;

/// The earliest age: the clones of the shortest jobs have ended by then.
const SOONEST: Duration = Duration::from_secs(5);
/// The latest age: clones depend on a node's memory no longer than this, however busy the host is.
const LATEST: Duration = Duration::from_secs(120);
/// How many cores must be idle on average: packing takes one.
const IDLE_CORES: f64 = 0.9;
/// A layer that nobody needs leaves its parent's disks one layer higher. From this height on it is stored all the same, since
/// each read goes through all layers.
const HIGH: usize = 16;
/// From this height on it is stored at once, since the number of layers is limited.
const TOO_HIGH: usize = 64;

/// What is known at the moment of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The time since the fork.
    pub age: Duration,
    /// Whether any machine or other fork needs it.
    pub needed: bool,
    /// Whether it was asked for (`--settle`), or the node ends.
    pub hurry: bool,
    /// How many of the host's cores were idle lately; `None` if that is unknown.
    pub idle_cores: Option<f64>,
    /// Whether the host's memory is short; the layer takes part of it.
    pub memory_short: bool,
    /// How many layers the parent's disks have; 0 if none of them is this fork's.
    pub height: usize,
}

/// What is to be done with the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Decide again later.
    Wait,
    /// Store it as an image.
    Store,
    /// Remove it.
    Drop,
}

/// Decides what is to be done now.
pub(super) fn next(seen: &Seen) -> Next {
    if !seen.needed && seen.height < HIGH {
        return Next::Drop;
    }
    let spare = seen.idle_cores.is_none_or(|cores| cores >= IDLE_CORES);
    let now = seen.height >= TOO_HIGH
        || seen.hurry
        || seen.memory_short
        || seen.age >= LATEST
        || (seen.age >= SOONEST && spare);
    match now {
        true => Next::Store,
        false => Next::Wait,
    }
}

/// How long the host's CPUs have been busy and idle, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTimes {
    idle: u64,
    all: u64,
}

impl CpuTimes {
    /// Reads the first line of `/proc/stat`; returns `None` if it is missing or malformed.
    pub fn read(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests' time is included in user
        let times = line.split_ascii_whitespace().take(8);
        let times: Vec<u64> = times.map(|time| time.parse().ok()).collect::<Option<_>>()?;
        let idle = times
            .get(3)?
            .checked_add(times.get(4).copied().unwrap_or(0))?;
        let all = times
            .iter()
            .try_fold(0u64, |sum, time| sum.checked_add(*time))?;
        Some(CpuTimes { idle, all })
    }

    /// Returns how many of `cores` were idle on average since `then`; `None` if no time has passed.
    pub fn idle_since(&self, then: &CpuTimes, cores: usize) -> Option<f64> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)?;
        let idle = self.idle.saturating_sub(then.idle); // iowait may decrease
        Some(idle as f64 / all as f64 * cores as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(age_s: u64, idle_cores: f64) -> Seen {
        Seen {
            age: Duration::from_secs(age_s),
            needed: true,
            hurry: false,
            idle_cores: Some(idle_cores),
            memory_short: false,
            height: 2,
        }
    }

    #[test]
    fn a_busy_host_stores_late_and_an_idle_one_soon() {
        assert_eq!(next(&seen(0, 2.0)), Next::Wait);
        assert_eq!(next(&seen(5, 2.0)), Next::Store);
        assert_eq!(next(&seen(5, 0.3)), Next::Wait);
        assert_eq!(next(&seen(119, 0.0)), Next::Wait);
        assert_eq!(next(&seen(120, 0.0)), Next::Store);
        let unknown = Seen {
            idle_cores: None,
            ..seen(5, 0.0)
        };
        assert_eq!(next(&unknown), Next::Store);
    }

    #[test]
    fn who_asks_for_it_and_short_memory_do_not_wait() {
        let base = seen(0, 0.0);
        let hurry = Seen {
            hurry: true,
            ..base
        };
        let short = Seen {
            memory_short: true,
            ..base
        };
        assert_eq!([next(&hurry), next(&short)], [Next::Store; 2]);
    }

    #[test]
    fn what_nobody_needs_is_dropped_until_disks_get_too_high() {
        let gone = Seen {
            needed: false,
            hurry: true,
            ..seen(0, 2.0)
        };
        assert_eq!(next(&gone), Next::Drop);
        let high = Seen {
            height: HIGH,
            ..gone
        };
        assert_eq!(next(&high), Next::Store);
        let too_high = Seen {
            height: TOO_HIGH,
            ..seen(0, 0.0)
        };
        assert_eq!(next(&too_high), Next::Store);
    }

    #[test]
    fn idle_cores_are_those_of_the_time_between() {
        let then = CpuTimes::read("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3 4\n").unwrap();
        let now = CpuTimes::read("cpu  150 0 50 830 70 0 0 0 7 0\n").unwrap();
        assert_eq!(now.idle_since(&then, 4), Some(2.0));
        assert_eq!(now.idle_since(&now, 4), None);
        assert_eq!(then.idle_since(&now, 4), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(cpu [0-9 ]{0,80}|\\PC{0,80})") {
            let _ = CpuTimes::read(&text);
        }

        #[test]
        fn what_is_needed_is_never_dropped_and_stored_in_the_end(
            age_s in 0u64..1000, idle in 0.0f64..8.0, hurry: bool, memory_short: bool, height in 0usize..64,
        ) {
            let seen = Seen { hurry, memory_short, height, ..seen(age_s, idle) };
            prop_assert_ne!(next(&seen), Next::Drop);
            if seen.age >= LATEST {
                prop_assert_eq!(next(&seen), Next::Store);
            }
        }
    }
}

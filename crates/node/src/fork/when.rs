//! When a fork's layer is stored: not while clones want the CPUs for their work, and not at all if they are gone by then.
//!
//! Packing costs a core some seconds for each GB that the parent has written. Clones that were made for a job want that core
//! themselves, and most of them are ended with the job; so it waits for a host that has a core to spare.

use std::time::Duration;

/// Clones of the shortest jobs are gone by then.
const SOONEST: Duration = Duration::from_secs(5);
/// No host is so busy that clones rest on a node's memory for longer.
const LATEST: Duration = Duration::from_secs(120);
/// Cores that do nothing, on average: packing takes one.
const IDLE_CORES: f64 = 0.9;
/// A layer that nobody needs leaves its parent's disks one layer higher. From so many on it is stored all the same, as each read looks
/// through all of them.
const HIGH: usize = 16;
/// With so many there is no time to wait: there is an end to them.
const TOO_HIGH: usize = 64;

/// What is known at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Since the fork.
    pub age: Duration,
    /// Whether any machine or other fork needs it.
    pub needed: bool,
    /// Whether it was asked for (`--settle`), or the node ends.
    pub hurry: bool,
    /// Cores of the host that did nothing lately; `None` if nobody can tell.
    pub idle_cores: Option<f64>,
    /// Whether the host's memory is short: the layer is a part of it.
    pub memory_short: bool,
    /// Layers of the parent's highest disk, as long as one of them is this fork's.
    pub height: usize,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again.
    Wait,
    /// Make it an image.
    Store,
    /// Forget it.
    Drop,
}

/// Decides.
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

/// What the host's CPUs have done until one moment, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTimes {
    idle: u64,
    all: u64,
}

impl CpuTimes {
    /// From `/proc/stat`; `None` if it isn't there or says something else.
    pub fn read(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; a guest's time is in the user's already
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

    /// Of so many cores, those that have done nothing since then; `None` if no time has passed.
    pub fn idle_since(&self, then: &CpuTimes, cores: usize) -> Option<f64> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)?;
        let idle = self.idle.saturating_sub(then.idle); // iowait may go back
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

//! Decides when a machine is idle, and has been for long enough to be parked. No I/O and no clock: what was counted goes in, and whether
//! to park comes out.
//!
//! A machine is idle while nobody uses it and its own use of processor, disks and network stays below a floor for each, on the average of a
//! window. A guest's own timers, and a service that wakes up for a moment now and then, stay below it.

use std::time::Duration;

/// Floor of processor time, in thousandths of a core: all of QEMU's threads. Measured under emulation, an idle guest of Debian takes
/// 22, one with nothing but busybox 5; on real CPUs both take less.
pub(super) const CPU_FLOOR_MILLICORES: u64 = 50;
/// Floor of what its guest reads from its disks and writes to them, in bytes a second: a journal's commits are below it.
pub(super) const DISK_FLOOR_BYTES_PER_S: u64 = 16 << 10;
/// Floor of what its connections and its network card carry, in bytes a second: less than one small packet.
pub(super) const NETWORK_FLOOR_BYTES_PER_S: u64 = 64;
/// Longest time over which is averaged.
const WINDOW_MAX: Duration = Duration::from_secs(15);

/// What is known of a machine at one moment. The sums may begin anew, with another QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Processor time that its QEMU has used, in microseconds.
    pub cpu_us: u64,
    /// Bytes that its guest has read from its disks and written to them.
    pub disk_bytes: u64,
    /// Bytes that its connections have carried.
    pub network_bytes: u64,
    /// Whether somebody looks at its screen or console, runs something in it, or does something with it.
    pub accompanied: bool,
}

/// What is known of how long a machine has been idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Idleness {
    /// The begin of the window.
    window: Option<(Duration, Seen)>,
    /// Since when it is idle.
    since: Option<Duration>,
}

impl Idleness {
    /// Takes in what was seen at a time (since any beginning). Returns whether the machine is to be parked. After a yes it has to be idle
    /// for as long again before the next one.
    pub fn look(&mut self, now: Duration, seen: Seen, park_after: Duration) -> bool {
        let Some((began, before)) = self.window.filter(|_| !seen.accompanied) else {
            *self = Idleness {
                window: Some((now, seen)),
                since: None,
            };
            return false;
        };
        let long = now.saturating_sub(began);
        if long < (park_after / 4).min(WINDOW_MAX) || long.is_zero() {
            return false;
        }
        self.window = Some((now, seen));
        if is_busy(long, &before, &seen) {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(began);
        let parks = now.saturating_sub(since) >= park_after;
        if parks {
            self.since = None;
        }
        parks
    }
}

/// Whether a machine has used more than a floor in this time.
fn is_busy(long: Duration, before: &Seen, after: &Seen) -> bool {
    let us = long.as_micros();
    let above = |before: u64, after: u64, floor_per_s: u64| {
        // a sum that has become smaller is another's
        after < before || u128::from(after - before) * 1_000_000 > u128::from(floor_per_s) * us
    };
    above(before.cpu_us, after.cpu_us, CPU_FLOOR_MILLICORES * 1000)
        || above(before.disk_bytes, after.disk_bytes, DISK_FLOOR_BYTES_PER_S)
        || above(
            before.network_bytes,
            after.network_bytes,
            NETWORK_FLOOR_BYTES_PER_S,
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AFTER: Duration = Duration::from_secs(60);

    /// A machine that is looked at each second, and does what `does` adds to what it has done.
    fn parked_at(seconds: u64, mut does: impl FnMut(u64, &mut Seen)) -> Option<u64> {
        let (mut idleness, mut seen) = (Idleness::default(), Seen::default());
        (0..seconds).find(|&second| {
            does(second, &mut seen);
            idleness.look(Duration::from_secs(second), seen, AFTER)
        })
    }

    #[test]
    fn a_guest_that_only_keeps_time_is_parked_after_the_time_and_not_sooner() {
        let at = parked_at(200, |_, seen| seen.cpu_us += 20_000);
        assert_eq!(at, Some(60));
        // a burst of a service that wakes up now and then
        let at = parked_at(200, |second, seen| {
            seen.cpu_us += 10_000 + u64::from(second % 20 == 7) * 300_000;
            seen.disk_bytes += u64::from(second % 30 == 0) * (64 << 10);
        });
        assert_eq!(at, Some(60));
    }

    #[test]
    fn whatever_it_uses_above_a_floor_keeps_it_and_so_does_company() {
        let busy: [fn(u64, &mut Seen); 5] = [
            |_, seen| seen.cpu_us += 150_000,
            |_, seen| seen.disk_bytes += 20 << 10,
            |_, seen| seen.network_bytes += 100,
            |second, seen| seen.network_bytes += u64::from(second % 15 == 0) * 2000,
            |second, seen| seen.accompanied = second % 30 < 2,
        ];
        for (number, does) in busy.into_iter().enumerate() {
            assert_eq!(parked_at(1000, does), None, "{number}");
        }
    }

    #[test]
    fn the_time_begins_anew_with_each_use_and_with_each_request_to_park() {
        let at = parked_at(400, |second, seen| {
            seen.cpu_us += u64::from(second < 100) * 500_000;
        });
        // the window in which the use ended counts as use
        assert!(matches!(at, Some(160..=175)), "{at:?}");
        let mut idleness = Idleness::default();
        let asked: Vec<u64> = (0..200)
            .filter(|s| idleness.look(Duration::from_secs(*s), Seen::default(), AFTER))
            .collect();
        assert_eq!(asked, [60, 120, 180]);
    }

    proptest! {
        /// However often it is looked at: it is never parked before the time, nor while somebody was with it within the time.
        #[test]
        fn it_is_never_parked_sooner_than_after_the_time(
            looks in prop::collection::vec((1u64..40_000, 0u64..200_000, prop::bool::weighted(0.05)), 1..200),
            after_s in 1u64..100,
        ) {
            let after = Duration::from_secs(after_s);
            let (mut idleness, mut seen) = (Idleness::default(), Seen::default());
            let (mut now, mut alone_since) = (Duration::ZERO, None);
            for (ms, cpu_us, accompanied) in looks {
                now += Duration::from_millis(ms);
                seen = Seen { cpu_us: seen.cpu_us + cpu_us, accompanied, ..seen };
                if accompanied {
                    alone_since = Some(now);
                }
                let since = *alone_since.get_or_insert(now);
                if idleness.look(now, seen, after) {
                    prop_assert!(!accompanied && now - since >= after);
                    alone_since = Some(now);
                }
            }
        }
    }
}

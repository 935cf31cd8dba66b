//! Decides how soon a parked machine that could not be woken is tried again for those who connect to it. No I/O and no clock: times are
//! since any beginning, such as the node's.

use super::afterwards::wait_after;
use std::time::Duration;

/// What is known of a parked machine's failures to wake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asleep {
    /// How often it could not be woken since it was parked, or found parked.
    in_a_row: u32,
    /// Until when nobody who connects wakes it.
    until: Duration,
    /// Why it could not be woken the last time.
    why: String,
}

impl Asleep {
    /// It could not be woken.
    pub fn failed(&mut self, now: Duration, why: String) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.until = now.saturating_add(wait_after(self.in_a_row));
        self.why = why;
    }

    /// Returns until when those who connect wait; `None` if the first of them wakes it at once.
    pub fn rests_until(&self, now: Duration) -> Option<Duration> {
        (now < self.until).then_some(self.until)
    }

    /// Returns what users are told of it; nothing if it never failed. `has_ports` is whether anybody can connect to it.
    pub fn told(&self, now: Duration, name: &str, has_ports: bool) -> Option<String> {
        if self.in_a_row == 0 {
            return None;
        }
        let times = match self.in_a_row {
            1 => String::new(),
            times => format!(", {times} times in a row"),
        };
        let again = match self.rests_until(now) {
            _ if !has_ports => String::new(),
            None => "a connection to one of its ports has it tried again; ".into(),
            Some(until) => {
                let s = until.saturating_sub(now).as_secs() + 1;
                format!(
                    "a connection to one of its ports has it tried again, but not within {s} s; "
                )
            }
        };
        Some(format!(
            "it could not be woken{times}: {}; {again}floe wake {name} tries at once",
            self.why
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_failed_is_tried_ever_later_and_that_is_told() {
        let mut asleep = Asleep::default();
        let s = Duration::from_secs;
        assert_eq!(asleep.rests_until(s(0)), None);
        assert_eq!(asleep.told(s(0), "web", true), None);
        for (now, rests_s) in [(10, 1), (11, 2), (20, 4), (30, 8)] {
            asleep.failed(s(now), "no memory is left".into());
            assert_eq!(asleep.rests_until(s(now)), Some(s(now + rests_s)));
            assert_eq!(asleep.rests_until(s(now + rests_s)), None);
        }
        let told = |at, has_ports| asleep.told(s(at), "web", has_ports).unwrap();
        assert_eq!(
            told(31, true),
            "it could not be woken, 4 times in a row: no memory is left; a connection to one of its ports has it tried again, but not within 8 s; floe wake web tries at once"
        );
        assert!(told(99, true).contains("has it tried again; floe wake web"));
        assert!(!told(31, false).contains("connection"));
    }

    proptest! {
        /// Somebody connects all the time: however long that goes on, it is tried only now and then, and never given up.
        #[test]
        fn who_connects_without_end_has_it_tried_at_most_once_a_minute(every_ms in 1u64..400, minutes in 3u64..30) {
            let mut asleep = Asleep::default();
            let mut tried = Vec::new();
            for ms in (0..minutes * 60_000).step_by(every_ms as usize) {
                let now = Duration::from_millis(ms);
                if asleep.rests_until(now).is_none() {
                    tried.push(now);
                    asleep.failed(now, String::new());
                }
            }
            // some while the time doubles, and then one a minute
            prop_assert!((minutes as usize..minutes as usize + 7).contains(&tried.len()), "{}", tried.len());
            let waits: Vec<_> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
            prop_assert!(waits.iter().all(|wait| *wait < Duration::from_secs(61)));
        }
    }
}

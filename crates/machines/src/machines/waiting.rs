//! When a machine that waits for its source is paused, and when it goes on. Decisions only: no I/O, no clock.
//!
//! A CPU that touches a page which is not on this host stands still until that has come, even if it takes minutes. The guest's other CPUs
//! and its clock go on meanwhile, so it takes the one for broken. So a machine is paused once a page of its *memory* has been waited for
//! longer than a bound; many pages that each come late, but earlier, pause nothing. It goes on once *nothing* of it waits: QEMU does not
//! go on before requests of its disks are done either.

use floe_mount::Waits;
use std::time::Duration;

/// What is to be done with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// It is to be paused: it has waited for so long.
    Pause(Duration),
    /// It may go on: it has waited for so long.
    GoOn(Duration),
}

/// What is known of a machine that waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// When it began to wait for what it is paused for.
    since: Option<Duration>,
}

impl Waiting {
    /// Returns what is to be done with a machine whose requests have waited so long. `paused`: whether it is paused for that. If it should
    /// be and is not, because it could not be paused, that is to be done again. `now` is the time on any clock that does not go back.
    pub fn look(
        &mut self,
        now: Duration,
        bound: Duration,
        waits: Waits,
        paused: bool,
    ) -> Option<Act> {
        if !paused {
            let waited = waits.memory.filter(|waited| *waited >= bound);
            self.since = waited.map(|waited| now.saturating_sub(waited));
            return waited.map(Act::Pause);
        }
        let since = *self.since.get_or_insert(now);
        waits
            .longest()
            .is_none()
            .then(|| Act::GoOn(now.saturating_sub(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUND: Duration = Duration::from_secs(10);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn waits(memory: Option<u64>, disks: Option<u64>) -> Waits {
        Waits {
            memory: memory.map(s),
            disks: disks.map(s),
        }
    }

    #[test]
    fn a_machine_is_paused_after_the_bound_and_goes_on_when_all_has_come() {
        let mut machine = Waiting::default();
        let mut look = |now, waits, paused| machine.look(s(now), BOUND, waits, paused);
        assert_eq!(look(100, waits(Some(9), Some(500)), false), None);
        let pause = Some(Act::Pause(s(10)));
        assert_eq!(look(101, waits(Some(10), None), false), pause);
        // an operation was under way
        assert_eq!(
            look(102, waits(Some(11), None), false),
            Some(Act::Pause(s(11)))
        );
        assert_eq!(look(103, waits(Some(12), None), true), None);
        // a CPU that has its page may touch another, and QEMU waits for disks too
        assert_eq!(look(280, waits(Some(1), None), true), None);
        assert_eq!(look(281, waits(None, Some(190)), true), None);
        assert_eq!(look(282, waits(None, None), true), Some(Act::GoOn(s(191))));
        assert_eq!(look(283, waits(None, None), false), None);
        // the next pause is another one
        assert_eq!(look(290, waits(Some(10), None), false), pause);
        assert_eq!(look(295, waits(None, None), true), Some(Act::GoOn(s(15))));
    }

    #[test]
    fn disks_alone_pause_nobody() {
        let mut machine = Waiting::default();
        assert_eq!(
            machine.look(s(1000), BOUND, waits(None, Some(900)), false),
            None
        );
    }

    proptest! {
        /// A guest touches one page after the other, and each comes after some time. It is paused for exactly those that take longer than
        /// the bound, once each, and goes on at the first look after they came.
        #[test]
        fn slow_pages_pause_nobody_and_silent_sources_pause_once(
            pages in prop::collection::vec(0u64..40, 1..40),
        ) {
            let mut machine = Waiting::default();
            let (mut now, mut paused, mut pauses) = (0, false, 0);
            for takes in &pages {
                for waited in 0..=*takes {
                    let left = (waited < *takes).then_some(waited);
                    let act = machine.look(s(now), BOUND, waits(left, None), paused);
                    match act {
                        Some(Act::Pause(_)) => {
                            prop_assert!(!paused && waited >= BOUND.as_secs());
                            (paused, pauses) = (true, pauses + 1);
                        }
                        Some(Act::GoOn(lasted)) => {
                            prop_assert!(paused && left.is_none());
                            prop_assert_eq!(lasted, s(*takes));
                            paused = false;
                        }
                        None => prop_assert!(!paused || left.is_some()),
                    }
                    now += 1;
                }
                prop_assert!(!paused);
            }
            let silent = pages.iter().filter(|takes| **takes > BOUND.as_secs());
            prop_assert_eq!(pauses, silent.count());
        }
    }
}

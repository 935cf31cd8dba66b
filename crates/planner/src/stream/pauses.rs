//! When one machine is paused for what comes too late, and when it goes on.
//!
//! ```text
//! starting -- late --> paused -- what is planned comes in time, or it has waited enough --> running -- missed, and late --> paused
//!     \------------------------------ the first touch ------------------------------------->
//! ```
//! A pause is an interruption, and each costs its viewer the same whether it is short or long. So a machine that runs is left running
//! while it would have to wait for a short time only: it waits for the few chunks that it touches, and the link brings the others
//! meanwhile. If it falls further behind, that becomes one pause in the place of several. For the same reason it runs undisturbed for a
//! while after a pause; a miss in that time is not forgotten. Before its first touch nobody is interrupted, and a shorter pause is worth
//! its while.

use super::Waiting;
use super::plan::Lateness;

/// What pauses are held to, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The shortest pause before the machine has touched anything.
    pub start_us_min: u64,
    /// The shortest pause of a machine that runs.
    pub pause_us_min: u64,
    /// The shortest time between two pauses.
    pub run_us_min: u64,
    /// A pause in which nothing arrives for this long ends.
    pub idle_us_max: u64,
    /// The longest pause.
    pub pause_us_max: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It has touched nothing yet.
    Starting,
    Running {
        /// No pause begins before this time.
        undisturbed_until_us: u64,
    },
    Paused {
        since_us: u64,
        /// When something arrived last.
        progress_us: u64,
        told: Waiting,
    },
}

/// The pauses of one machine.
#[derive(Debug)]
pub(crate) struct Pauses {
    state: State,
    /// How long the pauses that are over lasted.
    over_us: u64,
    /// Set at the start and at a miss, until it is decided whether to pause.
    stalled: bool,
}

impl Pauses {
    /// `running`: it runs already, so its start isn't buffered.
    pub(crate) fn new(running: bool) -> Self {
        let state = match running {
            true => State::Running {
                undisturbed_until_us: 0,
            },
            false => State::Starting,
        };
        Self {
            state,
            over_us: 0,
            stalled: !running,
        }
    }

    /// Returns how long it was paused until now, in microseconds.
    pub(crate) fn paused_us(&self, now_us: u64) -> u64 {
        let open_us = match self.state {
            State::Paused { since_us, .. } => now_us.saturating_sub(since_us),
            State::Starting | State::Running { .. } => 0,
        };
        self.over_us + open_us
    }

    /// Returns why it is paused, if it is.
    pub(crate) fn told(&self) -> Option<Waiting> {
        match self.state {
            State::Paused { told, .. } => Some(told),
            State::Starting | State::Running { .. } => None,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.told().is_some()
    }

    /// Notes that the machine touched something.
    pub(crate) fn touched(&mut self) {
        if let State::Starting = self.state {
            self.state = State::Running {
                undisturbed_until_us: 0,
            };
        }
    }

    /// Notes that the guest waits for something that its model foresees.
    pub(crate) fn missed(&mut self) {
        self.stalled = true;
    }

    /// Notes that something arrived.
    pub(crate) fn came(&mut self, now_us: u64) {
        if let State::Paused { progress_us, .. } = &mut self.state {
            *progress_us = now_us;
        }
    }

    /// Returns whether it is to be decided now whether the machine pauses or goes on.
    pub(crate) fn decides(&self, now_us: u64) -> bool {
        match self.state {
            State::Paused { .. } => true,
            State::Starting => self.stalled,
            State::Running {
                undisturbed_until_us,
            } => self.stalled && now_us >= undisturbed_until_us,
        }
    }

    /// Decides for a machine whose plan comes that late. Returns whether it pauses or goes on, if that changes.
    pub(crate) fn decide(&mut self, now_us: u64, late: Lateness, terms: &Terms) -> Option<bool> {
        self.stalled = false;
        let now_told = Waiting {
            missing_bytes: late.bytes,
            eta_us: late.us,
        };
        let (since_us, progress_us) = match &mut self.state {
            State::Paused {
                since_us,
                progress_us,
                told,
            } => {
                *told = now_told;
                (*since_us, *progress_us)
            }
            state => {
                let shortest_us = match state {
                    State::Starting => terms.start_us_min,
                    _ => terms.pause_us_min,
                };
                if late.us < shortest_us {
                    return None;
                }
                *state = State::Paused {
                    since_us: now_us,
                    progress_us: now_us,
                    told: now_told,
                };
                return Some(true);
            }
        };
        let long_us = now_us.saturating_sub(since_us);
        let goes_on = late.us == 0
            || now_us.saturating_sub(progress_us) >= terms.idle_us_max
            || long_us >= terms.pause_us_max;
        if !goes_on {
            return None;
        }
        self.over_us += long_us;
        self.state = State::Running {
            undisturbed_until_us: now_us + terms.run_us_min,
        };
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;
    const TERMS: Terms = Terms {
        start_us_min: SECOND / 5,
        pause_us_min: 2 * SECOND,
        run_us_min: 2 * SECOND,
        idle_us_max: 5 * SECOND,
        pause_us_max: 60 * SECOND,
    };

    fn late(us: u64) -> Lateness {
        Lateness { us, bytes: us }
    }

    /// A machine that misses, and whose plan comes that late.
    fn misses(pauses: &mut Pauses, now_us: u64, late_us: u64) -> Option<bool> {
        pauses.touched();
        pauses.missed();
        let decides = pauses.decides(now_us);
        decides
            .then(|| pauses.decide(now_us, late(late_us), &TERMS))
            .flatten()
    }

    #[test]
    fn short_waits_are_left_to_the_machine_until_they_add_up_to_one_pause() {
        let mut pauses = Pauses::new(true);
        for tenth in 1..20 {
            let at = tenth * SECOND / 10;
            assert_eq!(misses(&mut pauses, at, at), None, "{at}");
        }
        assert_eq!(misses(&mut pauses, 2 * SECOND, 2 * SECOND), Some(true));
        assert_eq!(pauses.told().unwrap().eta_us, 2 * SECOND);
        // however little is left, it goes on once nothing is
        pauses.came(3 * SECOND);
        assert_eq!(pauses.decide(3 * SECOND, late(1), &TERMS), None);
        assert_eq!(pauses.told().unwrap().eta_us, 1);
        assert_eq!(pauses.decide(4 * SECOND, late(0), &TERMS), Some(false));
        assert_eq!(pauses.paused_us(9 * SECOND), 2 * SECOND);
    }

    #[test]
    fn a_miss_soon_after_a_pause_waits_for_its_turn_and_is_not_forgotten() {
        let mut pauses = Pauses::new(true);
        assert_eq!(misses(&mut pauses, 0, 3 * SECOND), Some(true));
        assert_eq!(pauses.decide(SECOND, late(0), &TERMS), Some(false));
        assert_eq!(misses(&mut pauses, 2 * SECOND, 9 * SECOND), None);
        assert!(!pauses.decides(3 * SECOND - 1));
        assert!(pauses.decides(3 * SECOND), "without another miss");
        let again = pauses.decide(3 * SECOND, late(9 * SECOND), &TERMS);
        assert_eq!(again, Some(true));
    }

    #[test]
    fn the_start_is_buffered_for_less_and_that_ends_with_the_first_touch() {
        let start = |us| {
            let mut pauses = Pauses::new(false);
            assert!(pauses.decides(0));
            let paused = pauses.decide(0, late(us), &TERMS);
            assert!(pauses.is_paused() || !pauses.decides(SECOND));
            paused
        };
        assert_eq!(start(SECOND / 5), Some(true));
        assert_eq!(start(SECOND / 5 - 1), None);
        let mut pauses = Pauses::new(false);
        assert_eq!(misses(&mut pauses, 0, SECOND), None);
        assert!(!Pauses::new(true).decides(0), "it runs already");
    }

    #[test]
    fn a_pause_in_which_nothing_comes_ends_and_so_does_the_longest() {
        let mut pauses = Pauses::new(false);
        assert_eq!(pauses.decide(0, late(SECOND), &TERMS), Some(true));
        let (mut now, mut last) = (0, None);
        while last.is_none() {
            now += SECOND;
            if now < 3 * SECOND {
                pauses.came(now);
            }
            last = pauses.decide(now, late(SECOND), &TERMS);
        }
        assert_eq!((now, last), (7 * SECOND, Some(false)));
        let mut pauses = Pauses::new(false);
        assert_eq!(pauses.decide(0, late(SECOND), &TERMS), Some(true));
        let mut now = 0;
        while pauses.is_paused() {
            now += SECOND;
            pauses.came(now);
            pauses.decide(now, late(SECOND), &TERMS);
        }
        assert_eq!(now, 60 * SECOND);
    }

    proptest! {
        /// Whatever is missed and however late it comes: pauses of a machine that runs are apart, none begins for less than its least, and
        /// each ends.
        #[test]
        fn pauses_are_apart_worth_their_while_and_end(
            running: bool,
            events in proptest::collection::vec((0u8..4, 0u64..3 * SECOND, 0u64..8 * SECOND), 1..80),
        ) {
            let mut pauses = Pauses::new(running);
            let (mut now, mut ended, mut began, mut paused_us) = (0, None, 0, 0);
            let mut touched = running;
            for (what, after, late_us) in events {
                now += after;
                match what {
                    0 => {
                        touched |= !pauses.is_paused();
                        pauses.touched();
                    }
                    1 => {
                        touched |= !pauses.is_paused();
                        pauses.touched();
                        pauses.missed();
                    }
                    2 => pauses.came(now),
                    _ => {}
                }
                if !pauses.decides(now) {
                    continue;
                }
                match pauses.decide(now, late(late_us), &TERMS) {
                    Some(true) => {
                        let least = if touched { TERMS.pause_us_min } else { TERMS.start_us_min };
                        prop_assert!(late_us >= least);
                        prop_assert!(ended.is_none_or(|at| now >= at + TERMS.run_us_min));
                        began = now;
                    }
                    Some(false) => {
                        paused_us += now - began;
                        ended = Some(now);
                        touched = true;
                    }
                    None => {}
                }
            }
            let open = if pauses.is_paused() { now - began } else { 0 };
            prop_assert_eq!(pauses.paused_us(now), paused_us + open);
            if pauses.is_paused() {
                let end = pauses.decide(now + TERMS.pause_us_max, late(SECOND), &TERMS);
                prop_assert_eq!(end, Some(false));
            }
        }
    }
}

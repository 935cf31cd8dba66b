//! Decides when a blow falls and whether everything has recovered from it: a state machine with time and events as input.
//!
//! ```text
//! wait for the blow's moment, then its delay -> Strike
//! (the driver hits, and starts everything again at once) -> Up
//! every guest makes progress -> the next blow; if one does not in time -> Hung, and later -> GiveUp
//! ```

use super::schedule::{Blow, Moment, Schedule};
use std::time::Duration;

/// A blow whose moment does not come falls after this time, because what it waits for may fail repeatedly.
const MOMENT_MAX: Duration = Duration::from_secs(4);
/// Steps that every guest must make before the next blow.
const STEPS: u32 = 2;
/// Longest time for a guest to boot from its disk, emulated beside another one.
const BOOT_MAX: Duration = Duration::from_secs(120);
/// The run ends this many hang limits after a guest was found to hang.
const GIVE_UP: u32 = 6;

/// An event that the storm reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Work of this kind began.
    Began(Moment),
    /// Everything was started again after the last blow.
    Up {
        /// Number of processes, links and disks that were hit.
        kills: u64,
    },
    /// A guest was started from its disk.
    Booting(usize),
    /// A guest made progress.
    Progress(usize),
    /// Only time has passed.
    Tick,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hit, start everything again at once, and send [`Event::Up`].
    Strike(Blow),
    /// A guest makes no progress although everything is up. Sent once for each hang.
    Hung(usize),
    /// The guest still makes no progress.
    GiveUp(usize),
    /// There were enough kills.
    Finish,
}

/// When the run ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After this much time.
    pub until: Duration,
    /// Or after this many kills.
    pub kills: u64,
    /// How long a guest may make no progress with everything up until it counts as hung.
    pub hung_after: Duration,
}

enum State {
    /// The next blow waits for its moment; `began` is when the moment began.
    Waiting {
        blow: Blow,
        since: Duration,
        began: Option<Duration>,
    },
    /// The driver is hitting.
    Struck,
    /// Everything is up; each guest still has this many steps to make.
    Recovering {
        steps: Vec<u32>,
    },
    Over,
}

struct Guest {
    /// Since when progress is expected.
    since: Duration,
    booting: bool,
    hung: bool,
}

/// The state of the storm.
pub struct Storm {
    schedule: Schedule,
    limits: Limits,
    state: State,
    guests: Vec<Guest>,
    /// Number of kills so far.
    pub kills: u64,
}

impl Storm {
    /// Makes a storm over this many guests, which make progress at `now`.
    pub fn new(schedule: Schedule, limits: Limits, guests: usize, now: Duration) -> Storm {
        let guest = || Guest {
            since: now,
            booting: false,
            hung: false,
        };
        Storm {
            schedule,
            limits,
            state: State::Recovering {
                steps: vec![STEPS; guests],
            },
            guests: std::iter::repeat_with(guest).take(guests).collect(),
            kills: 0,
        }
    }

    /// Processes an event. Returns what has to be done.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Began(moment) => self.began(now, moment),
            Event::Up { kills } => self.up(now, kills),
            Event::Booting(guest) => {
                self.guests[guest].booting = true;
                self.guests[guest].since = now;
            }
            Event::Progress(guest) => self.progress(now, guest),
            Event::Tick => {}
        }
        let mut actions = self.look(now);
        actions.extend(self.strike(now));
        actions
    }

    fn began(&mut self, now: Duration, moment: Moment) {
        if let State::Waiting { blow, began, .. } = &mut self.state
            && blow.moment == moment
        {
            began.get_or_insert(now);
        }
    }

    fn up(&mut self, now: Duration, kills: u64) {
        self.kills += kills;
        for guest in &mut self.guests {
            guest.since = guest.since.max(now);
        }
        self.state = State::Recovering {
            steps: vec![STEPS; self.guests.len()],
        };
    }

    fn progress(&mut self, now: Duration, guest: usize) {
        self.guests[guest] = Guest {
            since: now,
            booting: false,
            hung: false,
        };
        if let State::Recovering { steps } = &mut self.state {
            steps[guest] = steps[guest].saturating_sub(1);
            if steps.iter().all(|left| *left == 0) {
                self.state = self.next(now);
            }
        }
    }

    fn next(&mut self, now: Duration) -> State {
        if now >= self.limits.until || self.kills >= self.limits.kills {
            return State::Over;
        }
        let blow = self.schedule.next_blow();
        let at_once = matches!(blow.moment, Moment::Any | Moment::Start);
        State::Waiting {
            blow,
            since: now,
            began: at_once.then_some(now),
        }
    }

    /// Looks for guests that make no progress although everything is up.
    fn look(&mut self, now: Duration) -> Vec<Action> {
        if matches!(self.state, State::Struck | State::Over) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for (index, guest) in self.guests.iter_mut().enumerate() {
            let bound = match guest.booting {
                true => self.limits.hung_after.max(BOOT_MAX),
                false => self.limits.hung_after,
            };
            let stood = now.saturating_sub(guest.since);
            if stood >= bound && !guest.hung {
                guest.hung = true;
                actions.push(Action::Hung(index));
            }
            if stood >= bound + GIVE_UP * self.limits.hung_after {
                guest.since = now;
                actions.push(Action::GiveUp(index));
            }
        }
        actions
    }

    fn strike(&mut self, now: Duration) -> Option<Action> {
        if matches!(self.state, State::Over) {
            return Some(Action::Finish);
        }
        let State::Waiting { blow, since, began } = &self.state else {
            return None;
        };
        // the second blow on a node that starts is the driver's: it falls after the delay
        let delay = match blow.moment {
            Moment::Start => Duration::ZERO,
            _ => blow.delay,
        };
        let due = began.unwrap_or(*since + MOMENT_MAX) + delay;
        if now < due {
            return None;
        }
        let blow = blow.clone();
        self.state = State::Struck;
        Some(Action::Strike(blow))
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::Victim;
    use super::*;

    const LIMITS: Limits = Limits {
        until: Duration::from_secs(1000),
        kills: 10,
        hung_after: Duration::from_secs(10),
    };

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Makes a storm over one guest that hits only hubs, and whose first blow waits for `moment`.
    fn waiting_for(moment: Moment) -> (Storm, Blow) {
        for seed in 0.. {
            let victims = [Victim::Hub];
            let blow = Schedule::new(seed, &victims).next_blow();
            if blow.moment == moment {
                return (
                    Storm::new(Schedule::new(seed, &victims), LIMITS, 1, s(0.0)),
                    blow,
                );
            }
        }
        unreachable!("some seed has it")
    }

    #[test]
    fn a_blow_falls_in_its_moment_once_every_guest_gets_on() {
        let (mut storm, blow) = waiting_for(Moment::Push);
        assert_eq!(storm.handle(s(1.0), Event::Began(Moment::Push)), []);
        assert_eq!(storm.handle(s(1.0), Event::Progress(0)), []);
        assert_eq!(storm.handle(s(1.1), Event::Progress(0)), []);
        assert_eq!(storm.handle(s(1.2), Event::Began(Moment::Pull)), []);
        assert_eq!(
            storm.handle(s(2.0), Event::Tick),
            [],
            "the push that it waits for has not begun"
        );
        storm.handle(s(3.0), Event::Began(Moment::Push));
        let at = s(3.0) + blow.delay;
        assert_eq!(storm.handle(at - s(0.001), Event::Tick), []);
        assert_eq!(storm.handle(at, Event::Tick), [Action::Strike(blow)]);
        assert_eq!(
            storm.handle(at + s(60.0), Event::Tick),
            [],
            "the driver is at work"
        );
    }

    #[test]
    fn a_moment_that_does_not_come_is_not_waited_for_for_ever() {
        let (mut storm, blow) = waiting_for(Moment::Pull);
        storm.handle(s(0.5), Event::Progress(0));
        storm.handle(s(1.0), Event::Progress(0));
        storm.handle(s(4.0), Event::Progress(0));
        assert_eq!(
            storm.handle(s(1.0) + MOMENT_MAX + blow.delay, Event::Tick),
            [Action::Strike(blow)]
        );
    }

    #[test]
    fn a_guest_that_stands_still_is_told_once_and_given_up_later() {
        let (mut storm, _) = waiting_for(Moment::Push);
        assert_eq!(storm.handle(s(9.9), Event::Tick), []);
        assert_eq!(storm.handle(s(10.0), Event::Tick), [Action::Hung(0)]);
        assert_eq!(storm.handle(s(20.0), Event::Tick), []);
        assert_eq!(storm.handle(s(70.0), Event::Tick), [Action::GiveUp(0)]);
        storm.handle(s(71.0), Event::Progress(0));
        assert_eq!(storm.handle(s(82.0), Event::Tick)[0], Action::Hung(0));
    }

    #[test]
    fn a_guest_that_boots_has_longer() {
        let (mut storm, _) = waiting_for(Moment::Push);
        storm.handle(s(5.0), Event::Booting(0));
        assert_eq!(storm.handle(s(100.0), Event::Tick), []);
        assert_eq!(storm.handle(s(125.0), Event::Tick), [Action::Hung(0)]);
    }

    #[test]
    fn it_ends_after_enough_kills_or_enough_time_with_every_guest_getting_on() {
        let (mut storm, _) = waiting_for(Moment::Any);
        storm.handle(s(1.0), Event::Up { kills: 10 });
        assert_eq!(storm.handle(s(2.0), Event::Progress(0)), []);
        assert_eq!(storm.handle(s(3.0), Event::Progress(0)), [Action::Finish]);
        let (mut storm, _) = waiting_for(Moment::Any);
        storm.handle(s(1000.0), Event::Progress(0));
        assert_eq!(
            storm.handle(s(1001.0), Event::Progress(0)),
            [Action::Finish]
        );
    }
}

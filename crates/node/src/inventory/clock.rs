//! A guest's clock, which stands still with its machine: by how much it is late then, and when somebody is to set it.

use super::{Entry, identity::GuestState};
use std::time::{Duration, Instant};

/// How late a guest's clock may be until it is set: most pauses take a moment, and asking a guest costs it something.
const LATE_MAX: Duration = Duration::from_secs(2);

/// How long a guest's CPUs have stood still.
#[derive(Debug, Default)]
pub(crate) struct Stood {
    /// Since when they stand.
    since: Option<Instant>,
    /// For how long they have stood since its clock was set.
    late: Duration,
    /// Whether QEMU's agent is being asked to set the clock, or did not do so when it was: then it isn't asked again.
    left: bool,
}

/// Who is to set a guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setter {
    /// floe's agent, which has answered.
    Agent,
    /// QEMU's, since floe's has not. The clock is late by so much.
    Qemus(Duration),
}

impl Stood {
    fn stands(&mut self, now: Instant) {
        self.since = self.since.or(Some(now));
    }

    /// If nobody knows since when they stood, that was too long.
    fn goes_on(&mut self, now: Instant) {
        let since = self.since.take();
        let stood = since.map_or(LATE_MAX, |since| now.saturating_duration_since(since));
        self.late = self.late.saturating_add(stood);
    }

    /// Returns who is to set the clock now. From then on it counts as right. `agent`: whether floe's agent has answered. `waited`: whether
    /// it has had its time to.
    fn setter(&mut self, agent: bool, waited: bool) -> Option<Setter> {
        if self.since.is_some() || self.late < LATE_MAX {
            return None;
        }
        let setter = match agent {
            true => Setter::Agent,
            false if waited && !self.left => Setter::Qemus(self.late),
            false => return None,
        };
        self.left = !agent;
        self.late = Duration::ZERO;
        Some(setter)
    }
}

impl GuestState {
    /// Whether floe's agent has had so much time to answer.
    fn had(&self, limit: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() > limit)
    }
}

impl Entry {
    /// Notes that its CPUs stand still from now on.
    pub fn clock_stands(&self) {
        self.state.write().guest.stood.stands(Instant::now());
    }

    /// Notes that they go on.
    pub fn clock_goes_on(&self) {
        self.state.write().guest.stood.goes_on(Instant::now());
    }

    /// Returns who is to set its guest's clock now, if that is late: the caller has it set. floe's agent has `limit` to answer before it is
    /// the turn of QEMU's.
    pub fn clock_to_set(&self, limit: Duration) -> Option<Setter> {
        let guest = &mut self.state.write().guest;
        let (agent, waited) = (guest.agent, guest.had(limit));
        guest.stood.setter(agent, waited)
    }

    /// Notes that QEMU's agent has set the clock.
    pub fn qemus_agent_answers(&self) {
        self.state.write().guest.stood.left = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_set_once_its_machine_has_stood_for_longer_than_a_moment() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut stood = Stood::default();
        stood.stands(at(0));
        stood.goes_on(at(900));
        assert_eq!(stood.setter(true, true), None);
        // moments add up, and a second reason to stand is no second pause
        stood.stands(at(1000));
        stood.stands(at(1500));
        assert_eq!(stood.setter(true, true), None, "it stands");
        stood.goes_on(at(2200));
        assert_eq!(
            stood.setter(false, false),
            None,
            "its agent may still answer"
        );
        assert_eq!(stood.setter(true, false), Some(Setter::Agent));
        assert_eq!(stood.setter(true, false), None);
    }

    #[test]
    fn who_stood_for_nobody_knows_how_long_is_late_and_who_does_not_answer_is_asked_once() {
        let now = Instant::now();
        let mut stood = Stood::default();
        stood.goes_on(now);
        assert_eq!(stood.setter(false, true), Some(Setter::Qemus(LATE_MAX)));
        stood.goes_on(now);
        assert_eq!(stood.setter(false, true), None);
        stood.left = false;
        assert_eq!(stood.setter(false, true), Some(Setter::Qemus(LATE_MAX)));
        stood.goes_on(now);
        assert_eq!(stood.setter(true, true), Some(Setter::Agent));
    }
}

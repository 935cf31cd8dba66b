//! A guest's clock, which stands still with its machine and shows an earlier moment in a machine that is restored: by how much it is late
//! then, and who is to set it.

use super::Entry;
use floe_ground::news::News;
use std::time::{Duration, Instant};

/// How late a guest's clock may be until it is set: most pauses take a moment, and asking a guest costs it something.
const LATE_MAX: Duration = Duration::from_secs(2);
/// From how many seconds on users are told that a clock is behind. A clone's is always a little behind, by the time that its fork took.
const CLOCK_BEHIND_MIN_S: u64 = 5;
/// The first words of a machine's detail that says that nobody has set its clock.
const CLOCK_STALE: &str = "its clock shows the time of the capture";

/// What is known of a guest's clock.
#[derive(Debug, Default)]
pub struct Clock {
    /// Since when its CPUs stand still.
    since: Option<Instant>,
    /// By how much it is late, as far as nobody was asked to set it.
    late: Duration,
    /// Whether QEMU's agent is being asked to set it, or did not do so when it was: then it isn't asked again.
    left: bool,
    /// Whether floe's agent is not expected to answer, so that nobody waits for it.
    alone: bool,
    /// How old the state was that its guest continued from, in seconds, while nobody has set it since.
    behind_s: Option<u64>,
}

/// Who is to set a guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setter {
    /// floe's agent, which has answered.
    Agent,
    /// QEMU's, since floe's has not. The clock is late by so much.
    Qemus(Duration),
}

impl Clock {
    fn stands(&mut self, now: Instant) {
        self.since = self.since.or(Some(now));
    }

    /// If nobody knows since when they stood, that was too long.
    fn goes_on(&mut self, now: Instant) {
        let since = self.since.take();
        let stood = since.map_or(LATE_MAX, |since| now.saturating_duration_since(since));
        self.late = self.late.saturating_add(stood);
    }

    /// However young the state is that it continues from, or if nobody knows: the clock is to be set.
    fn continues(&mut self, behind_s: u64, awaited: bool) {
        self.behind_s = Some(behind_s);
        self.alone = !awaited;
        self.late = LATE_MAX.max(Duration::from_secs(behind_s));
    }

    /// Returns who is to set the clock now. From then on it counts as right. `agent`: whether floe's agent has answered. `waited`: whether
    /// it has had its time to.
    fn setter(&mut self, agent: bool, waited: bool) -> Option<Setter> {
        if self.since.is_some() || self.late < LATE_MAX {
            return None;
        }
        let setter = match agent {
            true => Setter::Agent,
            false if (waited || self.alone) && !self.left => Setter::Qemus(self.late),
            false => return None,
        };
        self.left = !agent;
        self.late = Duration::ZERO;
        Some(setter)
    }

    /// Returns by how many seconds it is behind, if that is worth telling: QEMU's agent was asked, and nobody has set it so far.
    fn told_s(&self, agent: bool) -> Option<u64> {
        let told = self.left && !agent;
        self.behind_s.filter(|s| told && *s >= CLOCK_BEHIND_MIN_S)
    }
}

impl Entry {
    /// Notes that its CPUs stand still from now on.
    pub fn clock_stands(&self) {
        self.state.write().guest.clock.stands(Instant::now());
    }

    /// Notes that they go on.
    pub fn clock_goes_on(&self) {
        self.state.write().guest.clock.goes_on(Instant::now());
    }

    /// Notes that its guest continues from a state of so many seconds ago, and so does its clock. `awaited`: floe's agent in the guest is
    /// expected to set it.
    pub fn clock_is_behind(&self, seconds: u64, awaited: bool) {
        self.state.write().guest.clock.continues(seconds, awaited);
    }

    /// Returns who is to set its guest's clock now, if that is late: the caller has it set. floe's agent has `limit` to answer before it is
    /// the turn of QEMU's, unless nobody expects it to.
    pub fn clock_to_set(&self, limit: Duration) -> Option<Setter> {
        let guest = &mut self.state.write().guest;
        let (agent, waited) = (guest.agent, guest.had(limit));
        guest.clock.setter(agent, waited)
    }

    /// Notes that floe's agent is sent the time.
    pub fn clock_is_sent(&self) {
        self.state.write().guest.clock.late = Duration::ZERO;
    }

    /// Notes that somebody in its guest has set the clock.
    pub fn clock_is_set(&self) {
        {
            let clock = &mut self.state.write().guest.clock;
            clock.behind_s = None;
            clock.left = false;
        }
        if self.state().record.detail.starts_with(CLOCK_STALE) {
            // if it can't be written, the next start says so
            let _ = self.update(|record| record.detail.clear());
        }
    }

    /// Notes why QEMU's agent has not set the clock, which was late by so much; returns what is told of that. That it shows the time of the
    /// capture stays known when the node is another one.
    pub fn clock_stays_late(&self, late: Duration, why: String) -> News {
        if self.state().guest.clock.behind_s.is_none() {
            return News::ClockLate { late, why };
        }
        let detail = format!("{CLOCK_STALE}: {why}");
        // it is not for want of this that a guest is worse off
        let _ = self.update(|record| record.detail = detail);
        News::ClockNotSet(why)
    }

    /// Returns what is shown of a machine whose clock nobody has set so far; `None` for any other, and while floe's agent in the guest is
    /// about to.
    pub fn clock_detail(&self) -> Option<String> {
        let state = self.state();
        let guest = &state.guest;
        let has_qemu = state.vm.is_some();
        let behind_s = guest.clock.told_s(guest.agent).filter(|_| has_qemu)?;
        Some(clock_behind(&state.record.name, behind_s))
    }
}

/// Says that a guest's clock is behind, and what sets it.
fn clock_behind(machine: &str, seconds: u64) -> String {
    let behind = match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    };
    format!(
        "{CLOCK_STALE}, {behind} ago, until an agent in the guest sets it, and none has answered yet; by hand, in the guest: hwclock \
         --hctosys (the mainboard's clock is right); floe agent install {machine} puts an agent there"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_set_once_its_machine_has_stood_for_longer_than_a_moment() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut clock = Clock::default();
        clock.stands(at(0));
        clock.goes_on(at(900));
        assert_eq!(clock.setter(true, true), None);
        // moments add up, and a second reason to stand is no second pause
        clock.stands(at(1000));
        clock.stands(at(1500));
        assert_eq!(clock.setter(true, true), None, "it stands");
        clock.goes_on(at(2200));
        assert_eq!(
            clock.setter(false, false),
            None,
            "its agent may still answer"
        );
        assert_eq!(clock.setter(true, false), Some(Setter::Agent));
        assert_eq!(clock.setter(true, false), None);
    }

    #[test]
    fn who_stood_for_nobody_knows_how_long_is_late_and_who_does_not_answer_is_asked_once() {
        let now = Instant::now();
        let mut clock = Clock::default();
        clock.goes_on(now);
        assert_eq!(clock.setter(false, true), Some(Setter::Qemus(LATE_MAX)));
        clock.goes_on(now);
        assert_eq!(clock.setter(false, true), None);
        clock.left = false;
        assert_eq!(clock.setter(false, true), Some(Setter::Qemus(LATE_MAX)));
        clock.goes_on(now);
        assert_eq!(clock.setter(true, true), Some(Setter::Agent));
    }

    #[test]
    fn the_clock_of_a_restored_guest_is_set_by_floes_agent_or_qemus_whichever_is_there() {
        let day = Duration::from_secs(86_400);
        // one with an agent: that has its time, then it is the turn of QEMU's
        let mut clock = Clock::default();
        clock.continues(day.as_secs(), true);
        assert_eq!(clock.setter(false, false), None);
        assert_eq!(clock.told_s(false), None, "an agent is about to set it");
        assert_eq!(clock.setter(false, true), Some(Setter::Qemus(day)));
        assert_eq!(clock.told_s(false), Some(day.as_secs()));
        assert_eq!(clock.told_s(true), None, "floe's has answered after all");
        assert_eq!(clock.setter(false, true), None, "once");
        // one without is not waited for, however young the state is
        let mut clock = Clock::default();
        clock.continues(0, false);
        assert_eq!(clock.setter(false, false), Some(Setter::Qemus(LATE_MAX)));
        assert_eq!(clock.told_s(false), None, "that is next to nothing");
        // a pause changes nothing of what is told of it
        clock.continues(60, false);
        assert_eq!(clock.setter(false, false), None, "it was asked in vain");
        clock.goes_on(Instant::now());
        assert_eq!(clock.told_s(false), Some(60));
    }

    #[test]
    fn a_clock_that_nobody_has_set_says_how_far_it_is_behind_and_what_sets_it() {
        for (seconds, behind) in [
            (7, "7 s ago"),
            (150, "2 min ago"),
            (3 * 3600, "3 h ago"),
            (12 * 86400 + 7, "12 days ago"),
            (u64::MAX, "days ago"),
        ] {
            let told = clock_behind("web", seconds);
            assert!(told.starts_with(CLOCK_STALE), "{told}");
            for part in [behind, "hwclock --hctosys", "floe agent install web"] {
                assert!(told.contains(part), "{told}");
            }
        }
    }

    #[test]
    fn who_has_set_a_clock_is_believed_and_why_nobody_has_says_since_when_it_is_late() {
        let inventory = crate::inventory::tests::inventory();
        let operation = crate::inventory::tests::reserve(&inventory, Some("web")).unwrap();
        let late = Duration::from_secs(7);
        operation.clock_is_behind(CLOCK_BEHIND_MIN_S, true);
        assert_eq!(
            operation.clock_to_set(Duration::ZERO),
            None,
            "it has no QEMU"
        );
        assert_eq!(operation.clock_detail(), None, "it has no QEMU");
        let why = || "no agent".to_owned();
        let told = operation.clock_stays_late(late, why());
        assert_eq!(told, News::ClockNotSet(why()));
        operation.clock_is_sent();
        operation.clock_is_set();
        assert_eq!(operation.state().guest.clock.late, Duration::ZERO);
        let (_, told) = operation.clock_stays_late(late, why()).event();
        for part in ["7 s late", "stood still", "no agent"] {
            assert!(told.contains(part), "{told}");
        }
    }
}

//! Whether the other nodes of a swarm answer at all. No I/O, no clock.

use std::time::Duration;

/// A host that runs and has been listed for so long has had a connection by then, unless something between the hosts drops their packets.
const ANSWER: Duration = Duration::from_secs(15);

/// What is known of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// When others were first listed; `None` while nobody is.
    listed_at: Option<Duration>,
    /// Whether one of them was ever connected.
    met: bool,
}

impl Reach {
    /// Notes at a time, counted from any fixed moment, whether others are listed and whether one of them is connected.
    pub fn look(&mut self, now: Duration, listed: bool, connected: bool) {
        self.met |= connected;
        self.listed_at = listed.then(|| self.listed_at.unwrap_or(now));
    }

    /// Whether other nodes have been listed for long and none of them has ever answered.
    pub fn is_blocked(&self, now: Duration) -> bool {
        let long = |at: Duration| now.saturating_sub(at) >= ANSWER;
        !self.met && self.listed_at.is_some_and(long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn others_that_are_listed_and_never_answer_are_told_of_in_time() {
        let mut reach = Reach::default();
        reach.look(s(100), false, false);
        assert!(!reach.is_blocked(s(1000)), "alone");
        reach.look(s(1000), true, false);
        reach.look(s(1010), true, false);
        assert!(!reach.is_blocked(s(1014)) && reach.is_blocked(s(1015)));
        // they leave, and others come
        reach.look(s(1020), false, false);
        reach.look(s(1030), true, false);
        assert!(!reach.is_blocked(s(1044)) && reach.is_blocked(s(1045)));
        // one that was connected once shows that packets pass
        reach.look(s(1050), true, true);
        reach.look(s(1060), true, false);
        assert!(!reach.is_blocked(s(9000)));
    }
}

//! Decides when what a command has started is ended, and when the command counts as ended. No I/O, no clock.
//!
//! A command ends by itself, and what it leaves running goes on. Or it is ended, because its time is over or its user wants that: then all
//! that it started is asked to end, what is left after a while is killed, and only then the command counts as ended.

/// How long processes have between the request to end and their end, in ms.
const GRACE_MS: u64 = 5_000;
/// How often to check whether all have ended, in ms. Nothing tells of the end of those that are no children of the agent.
const LOOK_MS: u64 = 20;
/// How long killed processes are waited for, in ms. One that waits for a disk can't end before that answers.
const KILLED_MS_MAX: u64 = 5_000;

/// The request to end.
const TERM: u8 = libc::SIGTERM as u8;
/// The end.
const KILL: u8 = libc::SIGKILL as u8;

/// Returns whether this signal means that everything the command has started is to end. A terminal that was closed (SIGHUP) does not say
/// so: what was made to outlive that goes on.
pub(super) fn wants_end(signal: u8) -> bool {
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGKILL].contains(&libc::c_int::from(signal))
}

/// What is known of a command's end.
pub(super) struct Ending {
    /// When its time is over.
    limit_ms: Option<u64>,
    timed_out: bool,
    /// Whether it is being ended.
    wanted: bool,
    /// Whether all have been asked to end by SIGTERM.
    asked: bool,
    /// When all that is left is killed, or killed again.
    kill_ms: Option<u64>,
    /// When it was killed first.
    killed_ms: Option<u64>,
    /// Whether the command's first process has ended.
    over: bool,
    /// When to check next whether others are left.
    look_ms: u64,
    done: bool,
}

impl Ending {
    /// Begins with a command that has started; its time is over at `limit_ms`.
    pub fn new(limit_ms: Option<u64>) -> Ending {
        Ending {
            limit_ms,
            timed_out: false,
            wanted: false,
            asked: false,
            kill_ms: None,
            killed_ms: None,
            over: false,
            look_ms: 0,
            done: false,
        }
    }

    /// Notes that its user sends a signal that [wants its end](wants_end). Returns whether everything that it started is to get the signal.
    pub fn told(&mut self, now_ms: u64, signal: u8) -> bool {
        if self.over && !self.wanted {
            return false; // it has ended by itself
        }
        self.wanted = true;
        self.asked |= signal == TERM;
        if signal == KILL {
            self.kill_ms = Some(now_ms);
        }
        true
    }

    /// Notes that its first process has ended.
    pub fn over(&mut self, now_ms: u64) {
        self.over = true;
        if self.wanted {
            self.kill_ms = self.kill_ms.or(Some(now_ms + GRACE_MS));
        }
    }

    /// Returns the signal that all that is left gets now, if any. `is_left` looks whether any process is.
    pub fn step(&mut self, now_ms: u64, is_left: impl FnOnce() -> bool) -> Option<u8> {
        if !self.over && self.limit_ms.is_some_and(|limit| now_ms >= limit) {
            self.limit_ms = None;
            (self.timed_out, self.wanted, self.asked) = (true, true, true);
            self.kill_ms = self.kill_ms.or(Some(now_ms + GRACE_MS));
            return Some(TERM);
        }
        let in_vain = |killed: u64| now_ms >= killed + KILLED_MS_MAX;
        if self.over && !self.done && now_ms >= self.look_ms {
            self.look_ms = now_ms + LOOK_MS;
            self.done = !self.wanted || self.killed_ms.is_some_and(in_vain) || !is_left();
            if !self.done && !self.asked {
                // shells have what they start in the background ignore Ctrl-C
                self.asked = true;
                return Some(TERM);
            }
        }
        if self.done || self.kill_ms.is_none_or(|at| now_ms < at) {
            return None;
        }
        let killed = *self.killed_ms.get_or_insert(now_ms);
        // again: what one of them was just starting was not there yet
        self.kill_ms = (!in_vain(killed)).then_some(now_ms + LOOK_MS);
        Some(KILL)
    }

    /// Returns the time of the next [step](Ending::step) without an event, in ms.
    pub fn next_ms(&self) -> Option<u64> {
        if self.done {
            return None;
        }
        let limit = self.limit_ms.filter(|_| !self.over);
        let look = self.over.then_some(self.look_ms);
        [limit, look, self.kill_ms].into_iter().flatten().min()
    }

    /// Returns whether it has ended, together with everything that was to end with it.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Returns whether its time was over.
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: u8 = libc::SIGINT as u8;

    fn nobody_asks() -> bool {
        unreachable!("nobody asks yet")
    }

    #[test]
    fn what_a_command_leaves_behind_that_ends_by_itself_goes_on() {
        let mut ending = Ending::new(Some(1_000));
        assert_eq!(ending.next_ms(), Some(1_000));
        assert_eq!(ending.step(999, nobody_asks), None);
        ending.over(999);
        assert_eq!(ending.step(999, nobody_asks), None);
        assert!(ending.is_done() && !ending.timed_out());
        assert_eq!(ending.next_ms(), None);
        assert!(!ending.told(1_000, INT), "it has ended");
        assert_eq!(ending.step(100_000, nobody_asks), None);
    }

    #[test]
    fn all_are_asked_to_end_when_the_time_is_over_and_then_killed() {
        let mut ending = Ending::new(Some(1_000));
        assert_eq!(ending.step(1_000, nobody_asks), Some(TERM));
        assert_eq!(ending.next_ms(), Some(1_000 + GRACE_MS));
        assert_eq!(ending.step(1_001, nobody_asks), None);
        // its first process has obeyed, another has not
        ending.over(1_500);
        assert_eq!(ending.step(1_500, || true), None);
        assert_eq!(ending.next_ms(), Some(1_500 + LOOK_MS));
        assert_eq!(ending.step(1_501, nobody_asks), None, "it has just looked");
        let end = 1_000 + GRACE_MS;
        assert_eq!(ending.step(end - 1, || true), None);
        assert_eq!(ending.step(end, nobody_asks), Some(KILL));
        assert!(!ending.is_done());
        assert_eq!(ending.step(end + LOOK_MS, || false), None);
        assert!(ending.is_done() && ending.timed_out());
        assert_eq!(ending.next_ms(), None);
    }

    #[test]
    fn a_command_that_does_not_obey_is_killed_with_the_others() {
        let mut ending = Ending::new(Some(1_000));
        assert_eq!(ending.step(1_000, nobody_asks), Some(TERM));
        let end = 1_000 + GRACE_MS;
        assert_eq!(ending.step(end, nobody_asks), Some(KILL));
        ending.over(end + 1);
        // one that was being started in that moment
        assert_eq!(ending.step(end + 1, || true), None);
        assert_eq!(ending.step(end + LOOK_MS, nobody_asks), Some(KILL));
        assert_eq!(ending.step(end + 1 + LOOK_MS, || false), None);
        assert!(ending.is_done());
    }

    #[test]
    fn a_command_takes_its_time_after_ctrl_c_and_the_others_some_more() {
        let mut ending = Ending::new(None);
        assert!(ending.told(5, INT));
        assert_eq!(
            ending.next_ms(),
            None,
            "it tidies up for as long as it takes"
        );
        assert_eq!(ending.step(100_000, nobody_asks), None);
        ending.over(100_000);
        assert_eq!(ending.step(100_000, || true), Some(TERM));
        let end = 100_000 + GRACE_MS;
        assert_eq!(ending.step(end - 1, || true), None);
        assert_eq!(ending.step(end + LOOK_MS, || true), Some(KILL));
        assert!(!ending.timed_out());
        // who insists does not wait so long
        let mut ending = Ending::new(None);
        assert!(ending.told(5, TERM));
        ending.over(10);
        assert_eq!(ending.step(10, || true), None, "they were asked with it");
        assert!(ending.told(12, KILL));
        assert_eq!(ending.next_ms(), Some(12));
        assert_eq!(ending.step(12, nobody_asks), Some(KILL));
    }

    #[test]
    fn what_not_even_a_kill_ends_is_not_waited_for_without_end() {
        let mut ending = Ending::new(None);
        assert!(ending.told(0, KILL));
        let (mut now_ms, mut killed) = (0, 0);
        while let Some(next) = ending.next_ms() {
            now_ms = next;
            killed += u64::from(ending.step(now_ms, || true).is_some());
        }
        assert!(
            (KILLED_MS_MAX..2 * KILLED_MS_MAX).contains(&now_ms),
            "{now_ms}"
        );
        assert!(killed <= KILLED_MS_MAX / LOOK_MS + 1, "{killed}");
        // its end is an event
        assert!(!ending.is_done());
        ending.over(now_ms + 1);
        assert_eq!(ending.step(now_ms + 1, || true), None);
        assert!(ending.is_done());
    }

    #[test]
    fn a_closed_terminal_is_no_wish_that_all_end() {
        assert!([INT, TERM, KILL].into_iter().all(wants_end));
        let others = [libc::SIGHUP, libc::SIGPIPE, libc::SIGUSR1, libc::SIGCONT];
        assert!(!others.into_iter().any(|number| wants_end(number as u8)));
    }
}

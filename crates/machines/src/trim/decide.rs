//! Decides which machine's guest is to tell its disks what it no longer uses, and when. No I/O and no clock: times are since any
//! beginning, such as the node's.

use std::{collections::BTreeMap, time::Duration};

/// How long until a guest is asked for the first time, and again: as often as most systems do it by themselves, or oftener.
const EVERY: Duration = Duration::from_secs(24 * 3600);
/// How long a guest that is never quiet is let alone.
const LATE: Duration = Duration::from_secs(3 * 24 * 3600);
/// A guest that has moved no more bytes to and from its disks between two looks is quiet.
const QUIET_BYTES: u64 = 4 << 20;

/// What a look sees of a machine that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The name of its directory on the mount, which it keeps.
    pub machine: String,
    /// Whether its user has it left alone.
    pub left_alone: bool,
    /// Bytes that it has written to its disks since it runs.
    pub written_bytes: u64,
    /// Bytes that it has read from them.
    pub read_bytes: u64,
}

/// What is known of the machines that run.
#[derive(Debug, Default)]
pub(super) struct Plan(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    /// Since when it is known, or when it was asked last.
    since: Duration,
    /// What it had written by then.
    written_bytes: u64,
    /// What it had moved at the last look.
    moved_bytes: u64,
}

impl Plan {
    /// Takes in all machines that run; returns the one to ask now, if any: one at a time, the one that has waited longest. It counts as
    /// asked, whatever comes of that. A machine that did not run meanwhile begins anew.
    pub fn look(&mut self, now: Duration, seen: &[Seen]) -> Option<String> {
        self.0
            .retain(|machine, _| seen.iter().any(|one| one.machine == *machine));
        let mut due: Option<(Duration, &Seen)> = None;
        for one in seen {
            let moved_bytes = one.written_bytes.saturating_add(one.read_bytes);
            let known = self.0.entry(one.machine.clone()).or_insert(Known {
                since: now,
                written_bytes: one.written_bytes,
                moved_bytes,
            });
            // its counters begin anew with its QEMU
            let begins = moved_bytes < known.moved_bytes;
            let moves = match begins {
                true => moved_bytes,
                false => moved_bytes - known.moved_bytes,
            };
            known.moved_bytes = moved_bytes;
            let waits = now.saturating_sub(known.since);
            let quiet = moves <= QUIET_BYTES || waits >= LATE;
            let wrote = one.written_bytes != known.written_bytes;
            let is_due = !one.left_alone && waits >= EVERY && quiet && wrote;
            if is_due && due.is_none_or(|(longest, _)| waits > longest) {
                due = Some((waits, one));
            }
        }
        let (_, one) = due?;
        let known = self.0.get_mut(&one.machine)?;
        known.since = now;
        known.written_bytes = one.written_bytes;
        Some(one.machine.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;
    const DAY: u64 = 24 * 3600;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn seen(machine: &str, written_bytes: u64) -> Seen {
        Seen {
            machine: machine.into(),
            left_alone: false,
            written_bytes,
            read_bytes: 0,
        }
    }

    #[test]
    fn a_guest_that_wrote_is_asked_once_a_day_when_it_is_quiet() {
        let mut plan = Plan::default();
        assert_eq!(plan.look(at(0), &[seen("web", 100)]), None);
        assert_eq!(plan.look(at(DAY - 1), &[seen("web", 200)]), None);
        // busy at this moment
        assert_eq!(plan.look(at(DAY), &[seen("web", 200 + (64 << 20))]), None);
        let quiet = [seen("web", 201 + (64 << 20))];
        assert_eq!(plan.look(at(DAY + MINUTE), &quiet), Some("web".into()));
        // nothing was written since, however long that is
        assert_eq!(plan.look(at(9 * DAY), &quiet), None);
        let wrote = [seen("web", 202 + (64 << 20))];
        assert_eq!(plan.look(at(9 * DAY + MINUTE), &wrote), Some("web".into()));
    }

    #[test]
    fn a_guest_that_is_left_alone_is_not_asked_until_it_no_longer_is() {
        let mut plan = Plan::default();
        let mut web = seen("web", 0);
        web.left_alone = true;
        let mut look = |day: u64, web: &Seen| plan.look(at(day * DAY), std::slice::from_ref(web));
        assert_eq!(look(0, &web), None);
        web.written_bytes = 1;
        assert_eq!(look(9, &web), None);
        web.left_alone = false;
        assert_eq!(look(9, &web), Some("web".into()));
    }

    #[test]
    fn a_guest_that_is_never_quiet_is_asked_all_the_same() {
        let mut plan = Plan::default();
        let busy = |minute: u64| [seen("web", minute * (64 << 20))];
        let asked: Vec<u64> = (0..=4 * DAY / MINUTE)
            .filter(|minute| plan.look(at(minute * MINUTE), &busy(*minute)).is_some())
            .collect();
        assert_eq!(asked, [3 * DAY / MINUTE]);
    }

    #[test]
    fn machines_take_turns_and_one_that_was_away_begins_anew() {
        let mut plan = Plan::default();
        plan.look(at(0), &[seen("a", 0)]);
        plan.look(at(MINUTE), &[seen("a", 0), seen("b", 0)]);
        let both = [seen("b", 1), seen("a", 1)];
        assert_eq!(plan.look(at(2 * DAY), &both), Some("a".into()));
        assert_eq!(plan.look(at(2 * DAY), &both), Some("b".into()));
        assert_eq!(plan.look(at(2 * DAY), &both), None);
        plan.look(at(3 * DAY), &[seen("b", 1)]);
        assert_eq!(plan.look(at(4 * DAY), &[seen("a", 9), seen("b", 1)]), None);
        // a QEMU that counts from the beginning
        assert_eq!(plan.look(at(5 * DAY), &[seen("a", 5)]), Some("a".into()));
    }
}

//! What becomes of a request whose chunk its source does not give: it is tried again, or fails. Decisions only: no I/O, no clock.
//!
//! | the source | without a limit | with one | errno |
//! | --- | --- | --- | --- |
//! | can't be reached, breaks off, sends something else | tried again, soon and then each [`PASSES_MAX`] | so until the limit | EIO |
//! | gives it, and this host can't store it | the same | the same | EIO |
//! | is too slow | the same | the same | ETIMEDOUT |
//! | does not have it | tried again, at first after [`REFUSED_MIN`] and then each [`REFUSED_MAX`] | fails once that is believed | ENODATA |
//! | denies it | the same | the same | EACCES |
//! | can't serve it | the same | the same | EIO |
//!
//! Without a limit nothing fails: a CPU that waits for a page goes on once somebody has put things right, and one that gets an error is
//! lost with its machine. Who sets a limit wants to be told instead, and no limit makes a source that says no change its mind: so that is
//! waited for only until it is believed, which the fetcher takes some time for, as what stands between may say so for a while. It says that
//! something is refused after it has asked for that time; a pause here is one between two such times.

use floe_sched::MachineId;
use floe_source::{Outlook, SourceError};
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::time::Duration;

/// First pause before a request is tried again whose trouble may pass; it doubles up to [`PASSES_MAX`].
const PASSES_MIN: Duration = Duration::from_millis(50);
/// Longest such pause: a source that comes back is noticed within this time.
const PASSES_MAX: Duration = Duration::from_secs(1);
/// First pause after a refusal; it doubles up to [`REFUSED_MAX`].
const REFUSED_MIN: Duration = Duration::from_secs(1);
/// Longest such pause: who gives a token, or brings an image back, is noticed within this time.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is tried again after this pause.
    Again(Duration),
    /// It fails with this errno.
    Fail(Errno),
}

/// How long a request may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Whatever the reason; `None` is for ever.
    pub wait: Option<Duration>,
    /// How long a refusal is asked about again before it is believed, if there is a limit.
    pub believed_after: Duration,
}

/// What is known of a request that waits.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// How often in a row it failed in the same way, and the last error.
    last: Option<(u32, SourceError)>,
}

impl Patience {
    /// A chunk that the request needs was not to be had, for this reason, after it has waited for so long in all.
    pub fn failed(&mut self, waited: Duration, limit: Limit, error: SourceError) -> Act {
        let outlook = error.outlook();
        let before = self.last.take();
        let alike = before.filter(|(_, last)| last.outlook() == outlook);
        let times = alike.map_or(0, |(times, _)| times.saturating_add(1));
        let refused = outlook == Outlook::Refused;
        let late = limit.wait.is_some_and(|most| {
            let most = if refused {
                most.min(limit.believed_after)
            } else {
                most
            };
            waited >= most
        });
        let act = match (late, refused) {
            (true, _) => Act::Fail(errno(&error)),
            (false, true) => Act::Again(doubled(REFUSED_MIN, REFUSED_MAX, times)),
            (false, false) => Act::Again(doubled(PASSES_MIN, PASSES_MAX, times)),
        };
        self.last = Some((times, error));
        act
    }

    /// Returns why it waits; `None` if nothing was said of that yet.
    pub fn why(&self) -> Option<&SourceError> {
        self.last.as_ref().map(|(_, error)| error)
    }

    /// Returns whether it has just failed in a way in which it had not failed before.
    pub fn is_news(&self) -> bool {
        self.last.as_ref().is_some_and(|(times, _)| *times == 0)
    }
}

/// Returns the errno of a request that fails for this reason.
// EOPNOTSUPP is none of them: a VMM would take the operation itself for one that this file system does not have.
pub(crate) fn errno(error: &SourceError) -> Errno {
    match error {
        SourceError::Missing { .. } => Errno::NODATA,
        SourceError::Denied { .. } => Errno::ACCESS,
        SourceError::Timeout { .. } => Errno::TIMEDOUT,
        SourceError::Invalid { .. }
        | SourceError::Unreachable { .. }
        | SourceError::Unanswered { .. }
        | SourceError::Unsupported { .. }
        | SourceError::Local { .. }
        | SourceError::Stopped { .. } => Errno::IO,
    }
}

fn doubled(first: Duration, most: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(most)
}

/// How long the requests of all machines may wait.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Of those that have no limit of their own.
    all: Limit,
    of: RwLock<HashMap<MachineId, Duration>>,
}

impl Limits {
    /// Makes limits of which no machine has one of its own.
    pub fn new(all: Limit) -> Limits {
        Limits {
            all,
            of: RwLock::default(),
        }
    }

    /// Sets a machine's own limit; `None` takes it away.
    pub fn set(&self, machine: MachineId, wait: Option<Duration>) {
        let mut of = self.of.write();
        match wait {
            Some(wait) => of.insert(machine, wait),
            None => of.remove(&machine),
        };
    }

    /// Returns a machine's limit.
    pub fn of(&self, machine: MachineId) -> Limit {
        let own = self.of.read().get(&machine).copied();
        Limit {
            wait: own.or(self.all.wait),
            ..self.all
        }
    }

    /// Returns the shortest of all limits; `None` if there is none.
    pub fn shortest(&self) -> Option<Duration> {
        let of = self.of.read();
        of.values().copied().chain(self.all.wait).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each kind of error once.
    fn errors() -> [SourceError; 9] {
        let (at, what, reason) = (String::new(), String::new(), String::new());
        [
            SourceError::Missing {
                at: at.clone(),
                what: what.clone(),
            },
            SourceError::Denied {
                at: at.clone(),
                what: what.clone(),
                fix: String::new(),
            },
            SourceError::Unsupported {
                at: at.clone(),
                reason: reason.clone(),
            },
            SourceError::Unreachable {
                at: at.clone(),
                what: what.clone(),
                reason: reason.clone(),
            },
            SourceError::Unanswered {
                at: at.clone(),
                what: what.clone(),
                reason: reason.clone(),
            },
            SourceError::Invalid {
                at: at.clone(),
                what: what.clone(),
                reason: reason.clone(),
            },
            SourceError::Timeout {
                at,
                what: what.clone(),
                after: Duration::ZERO,
            },
            SourceError::Local {
                what: what.clone(),
                reason,
            },
            SourceError::Stopped { what },
        ]
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns what becomes of a request whose source fails in this way from the beginning on, and answers each time after `takes`: when
    /// it fails and with what, in milliseconds, or after how many tries that was given up.
    fn course(
        error: &SourceError,
        limit: Limit,
        takes: u64,
        tries: usize,
    ) -> Result<(u64, Errno), Vec<u64>> {
        let (mut patience, mut now, mut pauses) = (Patience::default(), 0, Vec::new());
        for _ in 0..tries {
            now += takes;
            match patience.failed(ms(now), limit, error.clone()) {
                Act::Fail(errno) => return Ok((now, errno)),
                Act::Again(pause) => pauses.push(pause.as_millis() as u64),
            }
            now += pauses.last().unwrap();
        }
        Err(pauses)
    }

    #[test]
    fn without_a_limit_nothing_fails_and_who_is_refused_asks_less_often() {
        let limit = Limit {
            wait: None,
            believed_after: ms(90_000),
        };
        for error in errors() {
            let pauses = course(&error, limit, 10, 8).unwrap_err();
            match error.outlook() {
                Outlook::Refused => assert_eq!(
                    pauses,
                    [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]
                ),
                Outlook::Passes | Outlook::Over => {
                    assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000, 1000]);
                }
            }
        }
    }

    #[test]
    fn with_a_limit_each_kind_fails_in_its_time_with_its_errno() {
        let limit = Limit {
            wait: Some(ms(600_000)),
            believed_after: ms(90_000),
        };
        // a fetcher that believes a refusal after its time, and says at once what may pass
        for (error, errno) in errors().iter().zip([
            Errno::NODATA,
            Errno::ACCESS,
            Errno::IO,
            Errno::IO,
            Errno::IO,
            Errno::IO,
            Errno::TIMEDOUT,
            Errno::IO,
            Errno::IO,
        ]) {
            match error.outlook() {
                Outlook::Refused => {
                    assert_eq!(course(error, limit, 90_000, 9), Ok((90_000, errno)))
                }
                Outlook::Passes | Outlook::Over => {
                    let (at, with) = course(error, limit, 10, 10_000).unwrap();
                    assert!((600_000..602_000).contains(&at), "{at}");
                    assert_eq!(with, errno);
                }
            }
        }
        // a limit below that time is a limit for refusals, too
        let short = Limit {
            wait: Some(ms(5_000)),
            ..limit
        };
        let (at, with) = course(&errors()[1], short, 10, 100).unwrap();
        assert_eq!(
            (with, (5_000..10_000).contains(&at)),
            (Errno::ACCESS, true),
            "{at}"
        );
    }

    #[test]
    fn another_kind_of_trouble_is_news_and_begins_with_short_pauses() {
        let (mut patience, limit) = (Patience::default(), Limit::default());
        let [missing, denied, _, unreachable, ..] = errors();
        assert!(!patience.is_news() && patience.why().is_none());
        assert_eq!(
            patience.failed(ms(1), limit, unreachable.clone()),
            Act::Again(ms(50))
        );
        assert!(patience.is_news());
        assert_eq!(
            patience.failed(ms(2), limit, unreachable.clone()),
            Act::Again(ms(100))
        );
        assert!(!patience.is_news());
        assert_eq!(patience.failed(ms(3), limit, denied), Act::Again(ms(1000)));
        assert!(patience.is_news());
        assert_eq!(patience.failed(ms(4), limit, missing), Act::Again(ms(2000)));
        assert!(matches!(patience.why(), Some(SourceError::Missing { .. })));
        assert_eq!(
            patience.failed(ms(5), limit, unreachable),
            Act::Again(ms(50))
        );
    }

    #[test]
    fn a_machines_own_limit_goes_before_that_of_all() {
        let all = Limit {
            wait: Some(ms(500)),
            believed_after: ms(90),
        };
        let limits = Limits::new(all);
        let (one, other) = (MachineId(1), MachineId(2));
        assert_eq!((limits.of(one), limits.shortest()), (all, all.wait));
        limits.set(one, Some(ms(20)));
        limits.set(other, Some(ms(9000)));
        assert_eq!(
            limits.of(one),
            Limit {
                wait: Some(ms(20)),
                ..all
            }
        );
        assert_eq!(limits.of(other).wait, Some(ms(9000)));
        assert_eq!(
            (limits.of(MachineId::NONE), limits.shortest()),
            (all, Some(ms(20)))
        );
        limits.set(one, None);
        assert_eq!((limits.of(one), limits.shortest()), (all, all.wait));
        let none = Limits::default();
        assert_eq!(none.shortest(), None);
        none.set(other, Some(ms(7)));
        assert_eq!((none.shortest(), none.of(one).wait), (Some(ms(7)), None));
    }

    proptest! {
        /// Whatever goes wrong in whatever order: no request fails before its limit, unless it was refused for as long as is believed;
        /// each is tried again within the longest pause; and none without a limit fails.
        #[test]
        fn nobody_is_given_up_too_soon(
            kinds in prop::collection::vec((0usize..9, 1u64..3000), 1..60),
            wait in prop::option::of(1u64..200_000),
            believed in 0u64..100_000,
        ) {
            let limit = Limit { wait: wait.map(ms), believed_after: ms(believed) };
            let (all, mut patience, mut now) = (errors(), Patience::default(), 0);
            for (kind, takes) in kinds {
                now += takes;
                let refused = all[kind].outlook() == Outlook::Refused;
                match patience.failed(ms(now), limit, all[kind].clone()) {
                    Act::Again(pause) => {
                        let most = if refused { REFUSED_MAX } else { PASSES_MAX };
                        prop_assert!(pause <= most);
                        prop_assert!(wait.is_none_or(|wait| now < wait));
                        now += pause.as_millis() as u64;
                    }
                    Act::Fail(with) => {
                        let wait = wait.unwrap();
                        prop_assert!(now >= wait || (refused && now >= believed));
                        prop_assert_eq!(with, errno(&all[kind]));
                        break;
                    }
                }
            }
        }
    }
}

//! Decides what becomes of a machine that has ended: it stays, is removed, or is started again. No I/O and no clock: each function
//! returns what the machine's record is to say next, so that a node that starts after a crash goes on where this one was.

use super::{lifecycle::Gone, record::Afterwards};
use floe_api::RestartPolicy;
use std::time::Duration;

/// How long until a machine is tried again that has failed for the first time.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest such time: it doubles with each failure in a row.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A machine that has run for so long has not failed in a row.
const LASTS: Duration = Duration::from_secs(60);

/// How long until a machine is tried again that has failed so many times in a row.
pub fn wait_after(in_a_row: u32) -> Duration {
    let doubled = 1u32.checked_shl(in_a_row.saturating_sub(1));
    let wait = doubled.and_then(|times| WAIT_MIN.checked_mul(times));
    wait.unwrap_or(WAIT_MAX).min(WAIT_MAX)
}

impl Afterwards {
    /// The machine has ended after it had run for so long.
    pub fn ended(self, gone: &Gone, ran: Duration) -> Afterwards {
        let by_itself = match gone {
            Gone::Asked | Gone::SwitchedOff(_) | Gone::Captured => return self.stopped(),
            Gone::ByItself { .. } | Gone::NotTakenOver(_) | Gone::NotStarted => true,
        };
        let failed = gone.is_bad() || *gone == Gone::NotStarted;
        let before = if ran >= LASTS { 0 } else { self.in_a_row };
        let due = match self.restart {
            RestartPolicy::No => false,
            RestartPolicy::OnFailure { max } => failed && max.is_none_or(|max| before < max),
            RestartPolicy::Always | RestartPolicy::UnlessStopped => by_itself,
        };
        Afterwards {
            in_a_row: if due { before.saturating_add(1) } else { 0 },
            due,
            ..self
        }
    }

    /// Its user has stopped it, or wants it to stay stopped.
    pub fn stopped(self) -> Afterwards {
        Afterwards {
            in_a_row: 0,
            due: false,
            ..self
        }
    }

    /// It runs.
    pub fn runs(self) -> Afterwards {
        Afterwards { due: false, ..self }
    }

    /// The node ends and has stopped it for that.
    pub fn stopped_with_node(self) -> Afterwards {
        Afterwards {
            due: matches!(
                self.restart,
                RestartPolicy::Always | RestartPolicy::UnlessStopped
            ),
            ..self.stopped()
        }
    }

    /// A node starts and finds it stopped.
    pub fn found_stopped(self) -> Afterwards {
        Afterwards {
            due: self.due || self.restart == RestartPolicy::Always,
            ..self
        }
    }

    /// How long after its end it is started again, if that is due.
    pub fn wait(self) -> Option<Duration> {
        self.due.then(|| wait_after(self.in_a_row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policies() -> impl Strategy<Value = RestartPolicy> {
        prop_oneof![
            Just(RestartPolicy::No),
            prop::option::of(1u32..5).prop_map(|max| RestartPolicy::OnFailure { max }),
            Just(RestartPolicy::Always),
            Just(RestartPolicy::UnlessStopped),
        ]
    }

    fn ends() -> impl Strategy<Value = Gone> {
        prop_oneof![
            Just(Gone::Asked),
            Just(Gone::SwitchedOff(30)),
            Just(Gone::Captured),
            any::<bool>().prop_map(|bad| Gone::ByItself {
                bad,
                why: "it ended".into()
            }),
            Just(Gone::NotTakenOver("lost".into())),
            Just(Gone::NotStarted),
        ]
    }

    proptest! {
        #[test]
        fn a_machine_is_started_again_as_often_as_its_policy_says_and_ever_later(
            restart in policies(),
            life in prop::collection::vec((ends(), 0u64..120, any::<bool>()), 1..60),
        ) {
            let mut now = Afterwards { restart, ..Default::default() };
            let mut in_a_row = 0;
            for (gone, ran_s, node_dies) in life {
                let before = now;
                now = now.ended(&gone, Duration::from_secs(ran_s));
                let by_user = matches!(gone, Gone::Asked | Gone::SwitchedOff(_) | Gone::Captured);
                let failed = gone.is_bad() || gone == Gone::NotStarted;
                if ran_s >= LASTS.as_secs() {
                    in_a_row = 0;
                }
                let wanted = match restart {
                    RestartPolicy::No => false,
                    RestartPolicy::OnFailure { max } => {
                        failed && max.is_none_or(|max| in_a_row < max)
                    }
                    _ => true,
                };
                prop_assert_eq!(now.due, wanted && !by_user);
                in_a_row = if now.due { in_a_row + 1 } else { 0 };
                prop_assert_eq!(now.in_a_row, in_a_row);
                match now.wait() {
                    Some(wait) => {
                        prop_assert!(wait >= WAIT_MIN && wait <= WAIT_MAX);
                        let earlier = before.wait().or(Some(WAIT_MIN)).filter(|_| in_a_row > 1);
                        prop_assert!(earlier.is_none_or(|earlier| wait >= earlier));
                    }
                    None => prop_assert!(!now.due),
                }
                if node_dies {
                    // what is due stays due; who was stopped by his user comes back with the node only if always
                    let read = serde_json::to_vec(&now).unwrap();
                    let found: Afterwards = serde_json::from_slice(&read).unwrap();
                    let found = found.found_stopped();
                    let expected = now.due || restart == RestartPolicy::Always;
                    prop_assert_eq!(found.due, expected);
                    prop_assert_eq!(found.wait().is_some(), expected);
                }
                let with_node = now.stopped_with_node().found_stopped().due;
                let kept = [RestartPolicy::Always, RestartPolicy::UnlessStopped];
                prop_assert_eq!(with_node, kept.contains(&restart));
                prop_assert!(!now.stopped().due && !now.runs().due);
            }
        }
    }

    #[test]
    fn the_time_doubles_up_to_a_minute() {
        let failed = Gone::ByItself {
            bad: true,
            why: String::new(),
        };
        let mut now = Afterwards {
            restart: RestartPolicy::Always,
            ..Default::default()
        };
        let waits = (0..40).map(|_| {
            now = now.ended(&failed, Duration::ZERO);
            now.wait().unwrap().as_secs()
        });
        let waits: Vec<u64> = waits.collect();
        assert_eq!(waits[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits[39], 60);
    }
}

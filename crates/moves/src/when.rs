//! Decides when a machine is synced by itself. No I/O and no clock.
//!
//! It is synced once the time between two syncs is over, or sooner once it has changed by so many bytes. What a machine that runs on the
//! other node has changed, that node knows: it is asked from time to time to sync the machine if that is enough. A sync that fails is
//! tried again after pauses that double, so that a link that is cut costs little; and nothing is made up for: one sync has all that
//! several would have had. [`Known`] counts what the other node does not know yet.

use std::collections::HashMap;

/// How often within the time between two syncs the other node is asked whether the machine has changed by so much.
const ASKS: u64 = 8;
/// Shortest time between two tries or questions, in milliseconds.
const AGAIN_MS_MIN: u64 = 5_000;

/// How a machine is to be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// How often, in milliseconds.
    pub every_ms: u64,
    /// After how many bytes of changes sooner.
    pub threshold_bytes: Option<u64>,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Wait,
    /// It is synced.
    Sync,
    /// The other node is asked to sync it if it has changed by so many bytes.
    SyncIf(u64),
}

/// What is known of the syncs of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syncs {
    /// When it was synced last, or when this began.
    last_ms: u64,
    /// How much it had changed by then.
    changes_then: u64,
    /// When it was tried or asked last.
    tried_ms: u64,
    /// How often in a row that has failed.
    failed: u32,
}

impl Syncs {
    /// Begins at this time, when the machine had changed by so much.
    pub fn new(now_ms: u64, changes: u64) -> Syncs {
        Syncs {
            last_ms: now_ms,
            changes_then: changes,
            tried_ms: now_ms,
            failed: 0,
        }
    }

    /// Returns what is to be done. `changes` is the count of what the machine has changed; `None` if it runs on the other node.
    pub fn next(&self, wish: &Wish, now_ms: u64, changes: Option<u64>) -> Next {
        let since = now_ms.saturating_sub(self.last_ms);
        let tried = now_ms.saturating_sub(self.tried_ms);
        if self.failed > 0 && tried < self.pause_ms(wish) {
            return Next::Wait;
        }
        if since >= wish.every_ms {
            return Next::Sync;
        }
        let Some(threshold) = wish.threshold_bytes else {
            return Next::Wait;
        };
        match changes {
            // a count that has gone back is one of another QEMU
            Some(count) if count < self.changes_then => match count >= threshold {
                true => Next::Sync,
                false => Next::Wait,
            },
            Some(count) if count - self.changes_then >= threshold => Next::Sync,
            Some(_) => Next::Wait,
            None if tried >= (wish.every_ms / ASKS).max(AGAIN_MS_MIN) => Next::SyncIf(threshold),
            None => Next::Wait,
        }
    }

    /// It was synced; it had changed by so much when that began.
    pub fn synced(&mut self, now_ms: u64, changes: u64) {
        *self = Syncs::new(now_ms, changes);
    }

    /// The other node was asked, and the machine has not changed enough.
    pub fn asked(&mut self, now_ms: u64) {
        self.tried_ms = now_ms;
        self.failed = 0;
    }

    /// It could not be synced.
    pub fn failed(&mut self, now_ms: u64) {
        self.tried_ms = now_ms;
        self.failed = self.failed.saturating_add(1);
    }

    /// How long after the last try it is tried again.
    fn pause_ms(&self, wish: &Wish) -> u64 {
        let doubled = AGAIN_MS_MIN.saturating_mul(1 << self.failed.min(16));
        doubled.min(wish.every_ms).max(AGAIN_MS_MIN)
    }
}

/// How much machines had changed when another node knew all of them last, by their keys.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<String, u64>);

impl Known {
    /// Notes that another node knows what a machine was when the count of its changes was this.
    pub fn told(&mut self, key: String, changes: u64) {
        self.0.insert(key, changes);
    }

    /// Notes that a machine is about to go on here that another node had. `kept`: that node keeps what it is.
    pub fn arrives(&mut self, key: &str, kept: bool) {
        self.0.remove(key);
        if kept {
            self.0.insert(key.to_owned(), 0);
        }
    }

    /// Notes that a machine that has come goes on here, with a QEMU whose count of changes is this: what is in it came from the other node.
    pub fn goes_on(&mut self, key: &str, changes: u64) {
        if let Some(known) = self.0.get_mut(key) {
            *known = changes;
        }
    }

    /// Returns how many bytes of a machine another node does not know, now that the count of its changes is this. `None` as a key: no
    /// node was ever told of it.
    pub fn lacks(&self, key: Option<&str>, now: u64) -> u64 {
        let then = key.and_then(|key| self.0.get(key));
        since(now, then.copied().unwrap_or_default())
    }

    /// The same of a machine that counts from now on if no node was told of it before.
    pub fn lacks_from_now_on(&mut self, key: &str, now: u64) -> u64 {
        since(now, *self.0.entry(key.to_owned()).or_insert(now))
    }
}

/// Returns what has changed since the count was `then`. One that has gone back is of another QEMU.
fn since(now: u64, then: u64) -> u64 {
    now.checked_sub(then).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WISH: Wish = Wish {
        every_ms: 300_000,
        threshold_bytes: Some(64 << 20),
    };

    #[test]
    fn it_is_synced_by_time_and_sooner_by_what_has_changed() {
        let mut syncs = Syncs::new(1000, 10 << 20);
        assert_eq!(syncs.next(&WISH, 2000, Some(10 << 20)), Next::Wait);
        assert_eq!(syncs.next(&WISH, 2000, Some(73 << 20)), Next::Wait);
        assert_eq!(syncs.next(&WISH, 2000, Some(74 << 20)), Next::Sync);
        let by_time = Wish {
            threshold_bytes: None,
            ..WISH
        };
        assert_eq!(syncs.next(&by_time, 300_999, Some(1 << 40)), Next::Wait);
        assert_eq!(syncs.next(&by_time, 301_000, Some(0)), Next::Sync);
        syncs.synced(301_000, 74 << 20);
        assert_eq!(syncs.next(&WISH, 302_000, Some(80 << 20)), Next::Wait);
        // it has another QEMU now, which began to count anew
        assert_eq!(syncs.next(&WISH, 302_000, Some(63 << 20)), Next::Wait);
        assert_eq!(syncs.next(&WISH, 302_000, Some(64 << 20)), Next::Sync);
    }

    #[test]
    fn the_other_node_is_asked_from_time_to_time_what_has_changed_there() {
        let mut syncs = Syncs::new(0, 0);
        assert_eq!(syncs.next(&WISH, 37_499, None), Next::Wait);
        assert_eq!(syncs.next(&WISH, 37_500, None), Next::SyncIf(64 << 20));
        syncs.asked(37_500);
        assert_eq!(syncs.next(&WISH, 74_999, None), Next::Wait);
        assert_eq!(syncs.next(&WISH, 75_000, None), Next::SyncIf(64 << 20));
        // whatever it says, the time comes
        assert_eq!(syncs.next(&WISH, 300_000, None), Next::Sync);
    }

    #[test]
    fn of_a_machine_that_has_come_back_the_other_node_lacks_what_it_changed_since_then() {
        let (key, mut known) = ("00112233445566aa", Known::default());
        assert_eq!(known.lacks(None, 50), 50);
        assert_eq!(known.lacks(Some(key), 50), 50);
        known.told(key.into(), 50);
        assert_eq!(known.lacks(Some(key), 70), 20);
        // it was lent, and its new QEMU has touched much of what came
        known.arrives(key, true);
        known.goes_on(key, 200);
        assert_eq!(known.lacks(Some(key), 200), 0);
        assert_eq!(known.lacks(Some(key), 230), 30);
        // it was parked and woken, which nobody was told
        assert_eq!(known.lacks(Some(key), 40), 40);
        // what was moved is kept nowhere else
        known.arrives(key, false);
        known.goes_on(key, 300);
        assert_eq!(known.lacks(Some(key), 310), 310);
        // one of which nobody was told counts from the first question on
        assert_eq!(known.lacks_from_now_on(key, 310), 0);
        assert_eq!(known.lacks_from_now_on(key, 330), 20);
    }

    proptest! {
        /// However often it fails, it is tried again, not too soon and at the latest after the time between two syncs.
        #[test]
        fn a_sync_that_fails_is_tried_again(fails in 1u32..100, every_s in 10u64..100_000) {
            let wish = Wish { every_ms: every_s * 1000, threshold_bytes: None };
            let mut syncs = Syncs::new(0, 0);
            let mut now = wish.every_ms;
            for _ in 0..fails {
                prop_assert_eq!(syncs.next(&wish, now, None), Next::Sync);
                syncs.failed(now);
                prop_assert_eq!(syncs.next(&wish, now + AGAIN_MS_MIN - 1, None), Next::Wait);
                now += wish.every_ms;
            }
            syncs.synced(now, 0);
            prop_assert_eq!(syncs.next(&wish, now + wish.every_ms - 1, None), Next::Wait);
        }
    }
}

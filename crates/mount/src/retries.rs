//! Requests whose chunks could not be had: they are tried again after a pause, and fail after a time if a user has set one (`patience`
//! decides). They have a thread of their own, because trying one may read and write disks.
//!
//! Each waiting request is in here once at most, and the kernel bounds those: one for each thread that waits for a page, and
//! `BACKGROUND_MAX` others.

use crate::core::{Core, Held};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often deadlines are checked: a fourth of the time that a request may wait, within these bounds.
const CHECK_MIN: Duration = Duration::from_millis(10);
const CHECK_MAX: Duration = Duration::from_millis(250);

#[derive(Default)]
struct State {
    /// By the time at which they are tried again, and their number.
    due: BTreeMap<(Instant, u64), Arc<Held>>,
    /// Whether limits have changed.
    changed: bool,
    closed: bool,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Retries {
    state: Mutex<State>,
    added: Condvar,
}

impl Retries {
    /// Has a request tried again at this time.
    pub(crate) fn add(&self, at: Instant, held: Arc<Held>) {
        let mut state = self.state.lock();
        if !state.closed {
            state.due.insert((at, held.asker.unique), held);
            self.added.notify_one();
        }
    }

    /// Has the thread look at the limits again.
    pub(crate) fn limits_changed(&self) {
        self.state.lock().changed = true;
        self.added.notify_one();
    }

    /// Waits for a request that is to be tried now, until `until` at most; `None` once this is closed.
    fn next(&self, until: Option<Instant>) -> Option<Option<Arc<Held>>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let first = state.due.first_key_value().map(|((at, _), _)| *at);
            if first.is_some_and(|at| at <= now) {
                return Some(state.due.pop_first().map(|(_, held)| held));
            }
            let changed = std::mem::take(&mut state.changed);
            if changed || until.is_some_and(|until| until <= now) {
                return Some(None);
            }
            match [first, until].into_iter().flatten().min() {
                Some(at) => {
                    self.added.wait_until(&mut state, at);
                }
                None => self.added.wait(&mut state),
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.due.clear();
        self.added.notify_all();
    }
}

/// Runs until the mount is gone.
pub(crate) fn run(core: &Weak<Core>, retries: &Retries) {
    // limits may be there before this thread is
    let mut check = Some(Instant::now());
    while let Some(due) = retries.next(check) {
        let Some(core) = core.upgrade() else {
            return;
        };
        if let Some(held) = due {
            core.resume(&held);
        }
        let shortest = core.waits_max.shortest();
        let every = shortest.map(|limit| (limit / 4).clamp(CHECK_MIN, CHECK_MAX));
        let now = Instant::now();
        if every.is_none() || check.is_none_or(|at| at <= now) {
            if every.is_some() {
                end_late(&core);
            }
            check = every.map(floe_threads::from_now);
        }
    }
}

/// Fails requests past their deadline.
fn end_late(core: &Core) {
    let waiting: Vec<Arc<Held>> = core.waiting.lock().values().cloned().collect();
    let is_late = |held: &&Arc<Held>| {
        let limit = core.limit_of(held);
        limit.wait.is_some_and(|most| held.since.elapsed() >= most)
    };
    let late = waiting.iter().filter(is_late);
    late.for_each(|held| core.end_late(held));
}

//! When requests are tried again whose chunks could not be had (`waiting` does that).
//!
//! Each waiting request is in here once at most, and the kernel bounds those: one for each thread that waits for a page, and
//! `BACKGROUND_MAX` others.

use crate::request::Held;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

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
    pub(crate) fn next(&self, until: Option<Instant>) -> Option<Option<Arc<Held>>> {
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

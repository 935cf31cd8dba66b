//! How floe starts threads, and what they wait on.
//!
//! All threads of floe's programs on a host are started here, so that each has a name, and none ends by a panic that nobody
//! hears of:
//!
//! - [`Threads`] holds the threads that look after something for as long as a program runs. Such a thread goes on after a
//!   panic of its work, which is logged and reported.
//! - [`keep_running`] starts a thread that must not end by a panic where no such list is at hand.
//! - [`spawn`] starts a thread for one piece of work, and [`Task`] is its result; [`scope`] starts some that borrow from their
//!   caller. A panic is logged, and reaches whoever waits for the result.
//!
//! A thread waits for what it needs, never for a time to pass after which it looks again:
//!
//! - [`Pulse`] says that something has changed, and wakes all who look at it.
//! - [`Cancel`] asks for an end. It wakes those who wait on a pulse, on a descriptor or on nothing else.
//! - [`ready`] waits for descriptors, [`ended`] for the end of a child process.
//! - [`from_now`] says when a wait is over, whatever limit somebody has given it.
//!
//! Programs on one host meet at unix sockets: [`Address`] is where one is, however long its path is.
//!
//! Not for the page fault's own threads inside FUSE requests, and not for what runs on tokio's threads: those wait on what their
//! own room has.

mod address;
mod cancel;
#[cfg(test)]
mod interleavings;
mod keep;
mod pulse;
mod ready;
mod task;

pub use address::{Address, connect, listen};
pub use cancel::{Cancel, Hook};
pub use keep::{Report, Threads, Waker};
pub use pulse::{Pulse, Seen};
pub use ready::{Ready, ended, ready};
pub use task::{Panicked, Scope, Task, keep_running, scope, spawn};

use std::time::{Duration, Instant};

/// Where `pulse.rs` takes its locks from: the standard library here, and loom in `interleavings`.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex};
}

/// A thread could not be started: the host or its user has as many as it may.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread {name}: {source}")]
pub struct StartError {
    /// The name that the thread was to have.
    pub name: String,
    /// Why the kernel refused.
    pub source: std::io::Error,
}

impl From<StartError> for std::io::Error {
    fn from(error: StartError) -> Self {
        std::io::Error::new(error.source.kind(), error)
    }
}

/// The longest wait that has an end: longer than any host runs, and shorter than what a clock can count.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns when `limit` from now is over. Limits come from users, images and other hosts, and may be longer than a clock can count: such
/// a one is over in a hundred years.
pub fn from_now(limit: Duration) -> Instant {
    Instant::now() + limit.min(WAIT_MAX)
}

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// What was waited for has come.
    Come(T),
    /// The time was over first.
    TimedOut,
    /// The [`Cancel`] was cancelled first.
    Cancelled,
}

impl<T> Waited<T> {
    /// Returns what has come, if anything has.
    pub fn come(self) -> Option<T> {
        match self {
            Waited::Come(come) => Some(come),
            Waited::TimedOut | Waited::Cancelled => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_no_clock_can_count_is_a_long_one() {
        let far = Instant::now() + Duration::from_secs(99 * 365 * 86_400);
        for limit in [Duration::MAX, Duration::from_secs(u64::MAX), WAIT_MAX] {
            assert!(from_now(limit) > far, "{limit:?}");
        }
        assert!(from_now(Duration::from_secs(1)) < far);
    }
}

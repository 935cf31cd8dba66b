//! The interface of a queue with an order.

use crate::{Limit, MachineId, Status, Who};

/// The queue has no room; contains the request that was to be queued.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// What a request does to the device or link that serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Op {
    /// Brings bytes.
    #[default]
    Read,
    /// Takes bytes.
    Write,
    /// Makes earlier writes durable. May take as long as many reads, and nothing tells how long.
    Flush,
}

/// A bounded queue of requests of many machines, which decides which one is served next.
///
/// Times are in microseconds of any clock that doesn't go backwards, the same clock in all calls.
pub trait Policy<T>: Send {
    /// Queues a request for an operation on `bytes` bytes. If the queue is full, [`Full`] gives it back.
    fn submit(
        &mut self,
        now_us: u64,
        who: Who,
        op: Op,
        bytes: u64,
        request: T,
    ) -> Result<(), Full<T>>;

    /// Removes and returns the first request, in this policy's order, that `ready` accepts. Requests that it doesn't accept
    /// keep their places. `None` if nothing may be served now; then ask again once a request was queued or served, or at
    /// [`Policy::wake_us`].
    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)>;

    /// As [`Policy::next`], for a request that the caller does itself, now, past the policy: it is returned even if the policy
    /// would have it wait, isn't counted as served, and must not be reported by [`Policy::served`].
    fn withdraw(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        self.next(now_us, ready)
    }

    /// Removes and returns a further request, which is served together with the one that [`Policy::next`] returned last, as one.
    /// It has to be as urgent, is charged for its bytes, and is reported by [`Policy::served`] like any other.
    fn join(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        self.withdraw(now_us, ready)
    }

    /// Reports that the request that [`Policy::next`] returned last has so many bytes more than it was submitted with: so many does
    /// [`Policy::served`] report for it.
    fn grow(&mut self, _bytes: u64) {}

    /// Returns how many more requests may be served now, beside those that are, however many are queued.
    fn places(&self) -> usize {
        usize::MAX
    }

    /// Reports that a request that [`Policy::next`] or [`Policy::join`] returned isn't served after all: nobody is charged for it, and
    /// nothing is learnt of it.
    fn dropped(&mut self, now_us: u64, who: Who, op: Op, bytes: u64) {
        self.served(now_us, who, op, bytes);
    }

    /// Reports that a request that [`Policy::next`] returned was served, or has failed, with what it was submitted with.
    /// Policies that limit rates or learn service times need this.
    fn served(&mut self, _now_us: u64, _who: Who, _op: Op, _bytes: u64) {}

    /// Returns when [`Policy::next`] may return a request that it doesn't return now, even if nothing else happens: for
    /// policies that hold requests back for a time.
    fn wake_us(&self) -> Option<u64> {
        None
    }

    /// Removes requests for which `keep` returns false, because nobody wants them any more.
    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool);

    /// Sets what a machine may have, from now on.
    fn limit(&mut self, _machine: MachineId, _limit: Limit) {}

    /// Reports that a machine has ended. What it has queued is still served, and then nothing is kept of it.
    fn gone(&mut self, _machine: MachineId) {}

    /// Returns what the policy knows, for people to read. `None` if it keeps no account.
    fn status(&self, _now_us: u64) -> Option<Status> {
        None
    }

    /// Returns the number of queued requests.
    fn len(&self) -> usize;

    /// Returns whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! The interface of a queue with an order.

use crate::Who;

/// The queue has no room; contains the request that was to be queued.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// A bounded queue of requests of many machines, which decides which one is served next.
///
/// Times are in microseconds of any clock that doesn't go backwards, the same clock in all calls.
pub trait Policy<T>: Send {
    /// Queues a request of `bytes` bytes. If the queue is full, [`Full`] gives it back.
    fn submit(&mut self, now_us: u64, who: Who, bytes: u64, request: T) -> Result<(), Full<T>>;

    /// Removes and returns the first request, in this policy's order, that `ready` accepts. Requests that it doesn't accept
    /// keep their places. `None` if nothing may be served now.
    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)>;

    /// Reports that a request that [`Policy::next`] returned was served. Policies that limit rates or learn service times need
    /// this.
    fn served(&mut self, _now_us: u64, _who: Who, _bytes: u64) {}

    /// Returns when [`Policy::next`] may return a request that it doesn't return now, even if nothing else happens: for
    /// policies that hold requests back for a time.
    fn wake_us(&self) -> Option<u64> {
        None
    }

    /// Removes requests for which `keep` returns false, because nobody wants them any more.
    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool);

    /// Returns the number of queued requests.
    fn len(&self) -> usize;

    /// Returns whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! The interface of a queue with an order.

use crate::Who;

/// The queue has no room; holds what was to be queued.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// A bounded queue of requests of many machines that decides which one is served next.
///
/// Times are microseconds of any clock that does not go backwards, the same one in all calls.
pub trait Policy<T>: Send {
    /// Queues a request of `bytes` bytes. [`Full`] gives it back if the queue is at its bound.
    fn submit(&mut self, now_us: u64, who: Who, bytes: u64, request: T) -> Result<(), Full<T>>;

    /// Takes out the first request, in this policy's order, that `ready` accepts. Those that it does not accept keep their
    /// places. `None`: nothing may be served now.
    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)>;

    /// A request that [`Policy::next`] gave out has been served. Policies that limit rates or learn service times need it.
    fn served(&mut self, _now_us: u64, _who: Who, _bytes: u64) {}

    /// When [`Policy::next`] may give out something that it does not give out now, though nothing else happens: for policies
    /// that hold requests back for a time.
    fn wake_us(&self) -> Option<u64> {
        None
    }

    /// Removes requests that `keep` does not keep, because nobody wants them any more.
    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool);

    /// Number of queued requests.
    fn len(&self) -> usize;

    /// Whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

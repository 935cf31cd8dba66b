//! A bounded queue between threads that must not wait and threads that may be slow. A [`Policy`] decides the order.

use floe_sched::{Full, Op, Policy, Who};
use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// A request that can be queued, and what the queue has to know about it.
pub(crate) trait Queued: Send {
    /// Returns how many bytes of memory it takes while it waits.
    fn bytes(&self) -> u64;
    /// Returns whether it is done quickly, so that a thread that must not be slow may do it.
    fn is_quick(&self) -> bool;
    /// Returns what it does to a disk, and to how many bytes.
    fn work(&self) -> (Op, u64) {
        (Op::Read, self.bytes())
    }
}

/// Requests that wait for a thread. The policy bounds their number, the queue itself their memory.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    added: Condvar,
    bytes_max: u64,
    began: Instant,
}

struct State<T> {
    policy: Box<dyn Policy<T>>,
    bytes: u64,
    closed: bool,
}

impl<T: Queued> Queue<T> {
    /// Makes a queue of at most `bytes_max` bytes, which `policy` orders and bounds in number.
    pub(crate) fn new(policy: Box<dyn Policy<T>>, bytes_max: u64) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                policy,
                bytes: 0,
                closed: false,
            }),
            added: Condvar::new(),
            bytes_max,
            began: Instant::now(),
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Queues a request; never blocks. Gives it back in [`Full`] if there is no room.
    pub(crate) fn submit(&self, who: Who, request: T) -> Result<(), Full<T>> {
        let mut state = self.state.lock();
        self.enter(&mut state, who, request)
    }

    fn enter(&self, state: &mut State<T>, who: Who, request: T) -> Result<(), Full<T>> {
        self.put(state, who, request)?;
        self.added.notify_one();
        Ok(())
    }

    fn put(&self, state: &mut State<T>, who: Who, request: T) -> Result<(), Full<T>> {
        let bytes = request.bytes();
        // One request always has room, however large it is.
        if state.closed || (state.bytes > 0 && state.bytes + bytes > self.bytes_max) {
            return Err(Full(request));
        }
        let (op, work) = request.work();
        state.policy.submit(self.now_us(), who, op, work, request)?;
        state.bytes += bytes;
        Ok(())
    }

    /// Queues a request without blocking. If nothing else waits and it may be served now, it is returned: the caller does it, and
    /// reports it by [`Queue::served`]. That spares the way to another thread.
    pub(crate) fn submit_or_start(
        &self,
        who: Who,
        request: T,
    ) -> Result<Option<(Who, T)>, Full<T>> {
        let mut state = self.state.lock();
        if !state.policy.is_empty() {
            return self.enter(&mut state, who, request).map(|()| None);
        }
        self.put(&mut state, who, request)?;
        let first = state.policy.next(self.now_us(), &mut |_, _| true);
        match &first {
            Some((_, request)) => state.bytes -= request.bytes(),
            None => _ = self.added.notify_one(),
        }
        Ok(first)
    }

    /// Queues a request without blocking, and returns what the caller has to do itself, as no request is ever dropped. Without
    /// room, a quick request is returned at once; a slow one takes the place of the first quick one that waits, which is
    /// returned instead. A slow one is returned only if nothing quick waits.
    pub(crate) fn submit_or_swap(&self, who: Who, request: T) -> Vec<(Who, T)> {
        let mut state = self.state.lock();
        let Err(Full(request)) = self.enter(&mut state, who, request) else {
            return Vec::new();
        };
        if request.is_quick() {
            return vec![(who, request)];
        }
        let now_us = self.now_us();
        let quick = state
            .policy
            .withdraw(now_us, &mut |_, other| other.is_quick());
        let Some((other_who, other)) = quick else {
            return vec![(who, request)];
        };
        state.bytes -= other.bytes();
        let mut todo = vec![(other_who, other)];
        if let Err(Full(request)) = self.enter(&mut state, who, request) {
            todo.push((who, request));
        }
        todo
    }

    /// Blocks until there is a request; returns `None` once the queue is closed.
    pub(crate) fn next(&self) -> Option<(Who, T)> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some((who, request)) = state.policy.next(self.now_us(), &mut |_, _| true) {
                state.bytes -= request.bytes();
                return Some((who, request));
            }
            match state.policy.wake_us() {
                Some(us) => {
                    let until = self.began + std::time::Duration::from_micros(us);
                    self.added.wait_until(&mut state, until);
                }
                None => self.added.wait(&mut state),
            }
        }
    }

    /// Reports that a request that [`Queue::next`] returned has been done, and what its [`Queued::work`] was.
    pub(crate) fn served(&self, who: Who, (op, bytes): (Op, u64)) {
        let mut state = self.state.lock();
        state.policy.served(self.now_us(), who, op, bytes);
        // A policy that bounds how many are served at once may have something to do for others now.
        if !state.policy.is_empty() {
            self.added.notify_one();
        }
    }

    /// Calls `with` with the policy, to change or to read what it knows of machines.
    pub(crate) fn policy<R>(&self, with: impl FnOnce(&mut dyn Policy<T>, u64) -> R) -> R {
        let mut state = self.state.lock();
        let now_us = self.now_us();
        with(&mut *state.policy, now_us)
    }

    /// Ends the threads that block in [`Queue::next`].
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.added.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::{Fifo, MachineId};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Request {
        number: u64,
        bytes: u64,
        quick: bool,
    }

    impl Queued for Request {
        fn bytes(&self) -> u64 {
            self.bytes
        }

        fn is_quick(&self) -> bool {
            self.quick
        }
    }

    fn queue(most: usize, bytes: u64) -> Queue<Request> {
        Queue::new(Box::new(Fifo::new(most)), bytes)
    }

    fn request(number: u64, quick: bool) -> Request {
        Request {
            number,
            bytes: 10,
            quick,
        }
    }

    fn who(number: u64) -> Who {
        Who::demand(MachineId(number as u32))
    }

    #[test]
    fn a_thread_that_must_not_be_slow_never_gets_a_flush_while_something_quick_waits() {
        let queue = queue(3, 1000);
        for (number, quick) in [(1, false), (2, true), (3, true)] {
            let todo = queue.submit_or_swap(who(number), request(number, quick));
            assert!(todo.is_empty());
        }
        // Full: the submitter does a quick request itself; a flush takes the place of a quick request, which the submitter does
        // instead.
        let brought = queue.submit_or_swap(who(4), request(4, true));
        assert_eq!(brought, [(who(4), request(4, true))]);
        for (number, quick) in [(5, 2), (6, 3)] {
            let todo = queue.submit_or_swap(who(number), request(number, false));
            assert_eq!(todo, [(who(quick), request(quick, true))]);
        }
        // Nothing but flushes wait: now the submitter has to do its own.
        let todo = queue.submit_or_swap(who(7), request(7, false));
        assert_eq!(todo, [(who(7), request(7, false))]);
        for number in [1, 5, 6] {
            assert_eq!(queue.next(), Some((who(number), request(number, false))));
        }
    }

    #[test]
    fn memory_is_bounded_too_and_one_request_always_has_room() {
        let queue = queue(100, 25);
        let large = Request {
            bytes: 1000,
            ..request(1, true)
        };
        assert_eq!(queue.submit(who(1), large), Ok(()));
        assert_eq!(
            queue.submit(who(2), request(2, true)),
            Err(Full(request(2, true)))
        );
        assert_eq!(queue.next(), Some((who(1), large)));
        for number in 3..5 {
            assert_eq!(queue.submit(who(number), request(number, true)), Ok(()));
        }
        assert!(queue.submit(who(5), request(5, true)).is_err());
    }

    #[test]
    fn a_request_that_waits_for_nobody_is_started_by_who_brings_it() {
        let queue = queue(2, 1000);
        for number in [1, 2] {
            let started = queue.submit_or_start(who(number), request(number, true));
            assert_eq!(started, Ok(Some((who(number), request(number, true)))));
        }
        // Behind another one it waits, and without room it is given back.
        assert_eq!(queue.submit(who(3), request(3, true)), Ok(()));
        let behind = queue.submit_or_start(who(4), request(4, true));
        assert_eq!(behind, Ok(None));
        let full = queue.submit_or_start(who(5), request(5, true));
        assert_eq!(full, Err(Full(request(5, true))));
        for number in [3, 4] {
            assert_eq!(queue.next(), Some((who(number), request(number, true))));
        }
        queue.close();
        let closed = queue.submit_or_start(who(6), request(6, true));
        assert_eq!(closed, Err(Full(request(6, true))));
    }

    #[test]
    fn closing_it_ends_who_waits_and_gives_back_what_comes_after() {
        let queue = Arc::new(queue(4, 1000));
        let (tell, told) = mpsc::channel();
        let waits = queue.clone();
        std::thread::spawn(move || tell.send(waits.next()));
        queue.close();
        assert_eq!(told.recv().unwrap(), None);
        let todo = queue.submit_or_swap(who(1), request(1, false));
        assert_eq!(todo, [(who(1), request(1, false))]);
    }

    proptest! {
        /// Each request is done exactly once, by a worker or by a submitter, whatever its size and the bounds.
        #[test]
        fn no_request_is_lost_or_done_twice(
            most in 0usize..6,
            bytes_max in 0u64..60,
            steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0u64..40), 0..80),
        ) {
            let queue = queue(most, bytes_max);
            let (mut waiting, mut done, mut all) = (0usize, Vec::new(), BTreeSet::new());
            for (number, (bring, quick, bytes)) in steps.into_iter().enumerate() {
                if bring {
                    let request = Request { number: number as u64, bytes, quick };
                    all.insert(request);
                    let todo = queue.submit_or_swap(who(number as u64), request);
                    waiting = waiting + 1 - todo.len();
                    prop_assert!(waiting <= most);
                    done.extend(todo);
                } else if waiting > 0 {
                    done.extend(queue.next());
                    waiting -= 1;
                }
            }
            for _ in 0..waiting {
                done.extend(queue.next());
            }
            prop_assert!(done.iter().all(|(w, request)| *w == who(request.number)));
            let once: BTreeSet<Request> = done.iter().map(|(_, request)| *request).collect();
            prop_assert_eq!((done.len(), once), (all.len(), all));
        }
    }
}

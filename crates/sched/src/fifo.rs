//! First come, first served.

use crate::{Full, Op, Policy, Who};
use std::collections::VecDeque;

/// Serves requests in the order in which they came, whoever makes them.
#[derive(Debug)]
pub struct Fifo<T> {
    queue: VecDeque<(Who, T)>,
    most: usize,
}

impl<T> Fifo<T> {
    /// Makes a queue of at most `most` requests.
    pub fn new(most: usize) -> Fifo<T> {
        Fifo {
            queue: VecDeque::new(),
            most,
        }
    }
}

impl<T: Send> Policy<T> for Fifo<T> {
    fn submit(
        &mut self,
        _now_us: u64,
        who: Who,
        _op: Op,
        _bytes: u64,
        request: T,
    ) -> Result<(), Full<T>> {
        if self.queue.len() >= self.most {
            return Err(Full(request));
        }
        self.queue.push_back((who, request));
        Ok(())
    }

    fn next(&mut self, _now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let place = self
            .queue
            .iter()
            .position(|(who, request)| ready(who, request))?;
        self.queue.remove(place)
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        self.queue.retain(|(_, request)| keep(request));
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}

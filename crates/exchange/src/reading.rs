//! One read of an image's items, which may take several places to bring them.

use super::pieces::Part;
use floe_image::{Hash, Kind};
use floe_source::{Request, Sink, Source, SourceError};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

/// What one read has brought so far.
pub(super) struct Reading<'a, 'b> {
    pub image: &'a Hash,
    wants: &'a [(Kind, Hash)],
    pub request: &'a Request,
    pub began: Instant,
    given: HashSet<Hash>,
    sink: &'a mut Sink<'b>,
}

impl<'a, 'b> Reading<'a, 'b> {
    /// Begins a read, with the parameters of [`Source::read`].
    pub fn new(
        image: &'a Hash,
        wants: &'a [(Kind, Hash)],
        request: &'a Request,
        sink: &'a mut Sink<'b>,
    ) -> Reading<'a, 'b> {
        Reading {
            image,
            wants,
            request,
            began: Instant::now(),
            given: HashSet::new(),
            sink,
        }
    }

    fn give(&mut self, kind: Kind, hash: Hash, bytes: &[u8]) {
        if self.given.insert(hash) {
            (self.sink)(kind, hash, bytes);
        }
    }

    /// Returns those of the items that have not come.
    fn lacking(&self, items: &[(Kind, Hash)]) -> Vec<(Kind, Hash)> {
        let items = items.iter().copied();
        items
            .filter(|(_, hash)| !self.given.contains(hash))
            .collect()
    }

    /// Returns what has not come.
    pub fn rest(&self) -> Vec<(Kind, Hash)> {
        self.lacking(self.wants)
    }

    /// Returns how many bytes that is.
    pub fn lacks(&self) -> u64 {
        let rest = self.rest();
        rest.iter().map(|(kind, _)| kind.raw_size() as u64).sum()
    }

    /// Returns the request with what is left of `limit`, which began with the read.
    pub fn within(&self, limit: Duration) -> Request {
        Request {
            deadline: limit.saturating_sub(self.began.elapsed()),
            ..*self.request
        }
    }

    /// Reads what has not come out of a swarm.
    pub fn of_swarm(&mut self, part: &Part, limit: Duration) -> Result<(), SourceError> {
        let rest = self.rest();
        self.some_of_swarm(part, &rest, limit)
    }

    /// Reads those of the items out of a swarm that have not come.
    pub fn some_of_swarm(
        &mut self,
        part: &Part,
        items: &[(Kind, Hash)],
        limit: Duration,
    ) -> Result<(), SourceError> {
        let (items, request) = (self.lacking(items), self.within(limit));
        let read = part
            .reader
            .read(&items, &request, &mut |kind, hash, bytes| {
                self.give(kind, hash, bytes);
            });
        if let Err(error @ SourceError::Invalid { .. }) = &read {
            part.note_spoilt(&self.lacking(&items), error);
        }
        read
    }

    /// Reads what has not come from a source.
    pub fn of_source(&mut self, source: &dyn Source, limit: Duration) -> Result<(), SourceError> {
        let rest = self.rest();
        self.some_of_source(source, &rest, limit)
    }

    /// Reads those of the items from a source that have not come.
    pub fn some_of_source(
        &mut self,
        source: &dyn Source,
        items: &[(Kind, Hash)],
        limit: Duration,
    ) -> Result<(), SourceError> {
        let limit = limit.min(self.request.deadline);
        let (items, request) = (self.lacking(items), self.within(limit));
        match items.is_empty() {
            true => Ok(()),
            false => source.read(self.image, &items, &request, &mut |kind, hash, bytes| {
                self.give(kind, hash, bytes);
            }),
        }
    }
}

//! Wrappers: sources that read from other sources.

use std::collections::HashSet;

use floe_image::{Hash, Kind};

use crate::{Request, Sink, Source, SourceError};

pub(crate) mod failover;
pub(crate) mod retry;
pub(crate) mod striped;
mod stripes;

/// What a read has delivered over several attempts.
struct Progress {
    rest: Vec<(Kind, Hash)>,
    given: HashSet<Hash>,
}

impl Progress {
    fn new(wants: &[(Kind, Hash)]) -> Progress {
        Progress {
            rest: wants.to_vec(),
            given: HashSet::new(),
        }
    }

    /// Asks `source` for what is still missing; no item reaches `sink` twice.
    fn attempt(
        &mut self,
        source: &dyn Source,
        image: &Hash,
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let given = &mut self.given;
        let outcome = source.read(image, &self.rest, request, &mut |kind, hash, bytes| {
            if given.insert(hash) {
                sink(kind, hash, bytes);
            }
        });
        self.rest.retain(|(_, hash)| !self.given.contains(hash));
        match outcome {
            // If every item arrived the read succeeded, whatever happened after that.
            Err(error) if !self.rest.is_empty() => Err(error),
            _ => Ok(()),
        }
    }
}

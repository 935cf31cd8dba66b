//! Sources around sources.

use std::collections::HashSet;

use floe_image::{Hash, Kind};

use crate::{Request, Sink, Source, SourceError};

pub(crate) mod failover;
pub(crate) mod retry;
pub(crate) mod striped;
mod stripes;

/// What of a read has been delivered over several attempts.
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

    /// Ask `source` for what is not there yet; no item reaches `sink` twice.
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
            // What all came is no failure, whatever happened afterwards.
            Err(error) if !self.rest.is_empty() => Err(error),
            _ => Ok(()),
        }
    }
}

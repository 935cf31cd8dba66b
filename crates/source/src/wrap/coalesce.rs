//! One fetch per hash, however many wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use floe_image::{Hash, Kind, Layout, Manifest};
use parking_lot::{Condvar, Mutex};

use crate::packed::{item_name, missing_items};
use crate::{LinkEstimate, Request, Sink, Source, SourceError};

/// Joins reads of the same item by several threads into one. Each reader waits no longer than its own deadline; a reader
/// that joined shares the fate of the read that it joined.
pub struct Coalesce {
    inner: Arc<dyn Source>,
    /// By image and hash: who may read an item in one image may not in another.
    flights: Mutex<HashMap<(Hash, Hash), Arc<Flight>>>,
}

/// An item on its way.
#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Result<Arc<[u8]>, SourceError>>>,
    landed: Condvar,
}

impl Flight {
    fn land(&self, outcome: Result<Arc<[u8]>, SourceError>) {
        let mut slot = self.outcome.lock();
        if slot.is_none() {
            *slot = Some(outcome);
            self.landed.notify_all();
        }
    }
}

/// The flights that one reader has started; whatever happens to it, they land.
struct Own<'a> {
    coalesce: &'a Coalesce,
    image: Hash,
    flights: HashMap<Hash, Arc<Flight>>,
}

impl Own<'_> {
    fn land(&mut self, hash: &Hash, outcome: Result<Arc<[u8]>, SourceError>) {
        if let Some(flight) = self.flights.remove(hash) {
            self.coalesce.flights.lock().remove(&(self.image, *hash));
            flight.land(outcome);
        }
    }

    fn land_rest(&mut self, error: &SourceError) {
        for hash in self.flights.keys().copied().collect::<Vec<_>>() {
            self.land(&hash, Err(error.clone()));
        }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.land_rest(&SourceError::Stopped {
            what: "an item that another thread was reading".into(),
        });
    }
}

impl Coalesce {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn Source>) -> Coalesce {
        Coalesce {
            inner,
            flights: Mutex::default(),
        }
    }
}

impl Source for Coalesce {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.inner.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.inner.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.inner.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let until = Instant::now() + request.deadline;
        let mut own = Own {
            coalesce: self,
            image: *image,
            flights: HashMap::new(),
        };
        let (mut mine, mut joined) = (Vec::new(), Vec::new());
        {
            let mut flights = self.flights.lock();
            for want in wants {
                let key = (*image, want.1);
                match flights.get(&key) {
                    Some(_) if own.flights.contains_key(&want.1) => {}
                    Some(flight) => joined.push((*want, flight.clone())),
                    None => {
                        let flight = Arc::new(Flight::default());
                        flights.insert(key, flight.clone());
                        own.flights.insert(want.1, flight);
                        mine.push(*want);
                    }
                }
            }
        }
        let mut outcome = Ok(());
        if !mine.is_empty() {
            outcome = self
                .inner
                .read(image, &mine, request, &mut |kind, hash, bytes| {
                    own.land(&hash, Ok(bytes.into()));
                    sink(kind, hash, bytes);
                });
            let undelivered = || SourceError::Unreachable {
                at: self.describe(),
                what: "an item that another thread was reading".into(),
                reason: "it was not delivered".into(),
            };
            own.land_rest(&outcome.as_ref().err().cloned().unwrap_or_else(undelivered));
        }
        let mut missing = Vec::new();
        for ((kind, hash), flight) in joined {
            let mut slot = flight.outcome.lock();
            while slot.is_none() && !flight.landed.wait_until(&mut slot, until).timed_out() {}
            let landed = slot.clone();
            drop(slot);
            match landed {
                Some(Ok(bytes)) => sink(kind, hash, &bytes),
                Some(Err(SourceError::Missing { .. })) => missing.push((kind, hash)),
                Some(Err(error)) => outcome = Err(error),
                None => {
                    let what = item_name(&(kind, hash));
                    outcome = Err(SourceError::Timeout {
                        at: self.describe(),
                        what,
                        after: request.deadline,
                    });
                }
            }
        }
        match (outcome, missing.first()) {
            (Ok(()), Some(first)) => Err(missing_items(&self.describe(), missing.len(), first)),
            (outcome, _) => outcome,
        }
    }

    fn link(&self) -> LinkEstimate {
        self.inner.link()
    }
}

//! Several sources that all have an image, read at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};

use floe_image::{Hash, Kind, Layout, Manifest};
use parking_lot::{Condvar, Mutex};

use super::Progress;
use super::failover::{Failover, Member};
use super::stripes::{Next, STRIPE_ITEMS_MIN, Stripes, Verdict, soonest};
use crate::packed::{Deadline, check_count, missing_items};
use crate::{LinkEstimate, Request, Sink, Source, SourceError, WholePacks};

/// How many items may wait for the caller while the sources read on.
const WAITING_ITEMS_MAX: usize = 64;

/// Several sources for one image, read at the same time. A long read is split between them according to their links' bandwidth.
/// A short read goes to the source that will be ready first, or, if somebody waits for it, to the preferred one as with
/// [`Failover`]. What one source doesn't deliver is asked of the others.
///
/// Cost: a thread for each source in a long read, some 20 us, and a copy of each item on its way to the caller's thread.
pub struct Striped {
    sources: Failover,
    /// How many bytes of short reads each source is reading.
    in_flight: Vec<AtomicU64>,
}

impl Striped {
    /// Makes a source of `sources`, with the preferred one first.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Striped {
        Striped {
            in_flight: sources.iter().map(|_| AtomicU64::new(0)).collect(),
            sources: Failover::new(sources),
        }
    }

    fn read_short(
        &self,
        members: &[usize],
        image: &Hash,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let bytes: u64 = wants.iter().map(|(kind, _)| kind.raw_size() as u64).sum();
        let in_flight = |number: &usize| self.in_flight[*number].load(Relaxed);
        let in_flight: Vec<u64> = members.iter().map(in_flight).collect();
        let number = members[soonest(&in_flight, bytes, &self.rates(members))];
        let member = &self.sources.members()[number];
        let mut progress = Progress::new(wants);
        self.in_flight[number].fetch_add(bytes, Relaxed);
        let outcome = progress.attempt(&*member.source, image, &half_of(clock), sink);
        self.in_flight[number].fetch_sub(bytes, Relaxed);
        match learn(member, outcome, progress.given.is_empty()) {
            Err(error) if error.falls_through() => {
                self.sources.read_rest(image, &mut progress, clock, sink)
            }
            outcome => outcome,
        }
    }

    fn rates(&self, members: &[usize]) -> Vec<Option<u64>> {
        let rate = |number: &usize| self.sources.members()[*number].source.link().bytes_per_s;
        members.iter().map(rate).collect()
    }

    fn read_long(
        &self,
        members: &[usize],
        image: &Hash,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let shared = Shared {
            all: self,
            members,
            clock,
            stripes: Mutex::new(Stripes::new(wants, members.len())),
            changed: Condvar::new(),
            errors: Mutex::default(),
        };
        let (send, items) = sync_channel(WAITING_ITEMS_MAX);
        floe_threads::scope(|threads| {
            for lane in 0..members.len() {
                let (send, shared) = (send.clone(), &shared);
                threads.spawn("stripe", move || shared.work(lane, image, &send));
            }
            drop(send);
            for (kind, hash, bytes) in items {
                sink(kind, hash, &bytes);
            }
        });
        let (stripes, errors) = (shared.stripes.into_inner(), shared.errors.into_inner());
        let missing: Vec<_> = stripes.missing().collect();
        // Denied access is a mistake that somebody should see, even if another source has everything.
        let denied = |error: &&SourceError| !error.falls_through();
        if let Some(error) = errors.iter().find(denied) {
            return Err(error.clone());
        }
        match (missing.first(), errors.into_iter().next()) {
            (None, _) => Ok(()),
            // A source that could not answer may have it: then "missing" would be wrong.
            (Some(_), Some(error)) => Err(error),
            (Some(first), None) => Err(missing_items(&self.describe(), missing.len(), first)),
        }
    }
}

type Parcel = (Kind, Hash, Vec<u8>);

/// One long read, shared by its threads.
struct Shared<'a> {
    all: &'a Striped,
    /// Indices of the sources that take part.
    members: &'a [usize],
    clock: &'a Deadline,
    stripes: Mutex<Stripes>,
    /// Signalled when there may be an item for a thread that waits.
    changed: Condvar,
    errors: Mutex<Vec<SourceError>>,
}

impl Shared<'_> {
    /// Reads from one source until nothing is left for it.
    fn work(&self, lane: usize, image: &Hash, send: &SyncSender<Parcel>) {
        let member = &self.all.sources.members()[self.members[lane]];
        while let Some(part) = self.next(lane) {
            // Whatever happens, the others may have its items afterwards.
            let mut ended = Ended {
                shared: self,
                lane,
                verdict: Verdict::Failed,
            };
            let mut gave = false;
            let request = half_of(self.clock);
            let outcome = member
                .source
                .read(image, &part, &request, &mut |kind, hash, bytes| {
                    gave = true;
                    if self.stripes.lock().delivered(&hash) {
                        // Can't fail: the caller takes items until nobody sends any more.
                        let _ = send.send((kind, hash, bytes.to_vec()));
                    }
                });
            match learn(member, outcome, !gave) {
                Ok(()) | Err(SourceError::Missing { .. }) => ended.verdict = Verdict::Answered,
                Err(error) => self.errors.lock().push(error),
            }
        }
    }

    fn next(&self, lane: usize) -> Option<Vec<(Kind, Hash)>> {
        let rates = self.all.rates(self.members);
        let mut stripes = self.stripes.lock();
        loop {
            match stripes.next(lane, &rates) {
                Next::Ask(part) => return Some(part),
                Next::Over => return None,
                Next::Wait => self.changed.wait(&mut stripes),
            }
        }
    }
}

/// Returns the request with half of the time that is left: a source that hangs must leave some for the others.
fn half_of(clock: &Deadline) -> Request {
    let rest = clock.request();
    Request {
        deadline: rest.deadline / 2,
        ..rest
    }
}

/// Notes the outcome of a source's answer. A source that has nothing that it was asked for may lack the whole image: it is
/// asked last for a while; otherwise each read would first have to find that out again.
fn learn(
    member: &Member,
    outcome: Result<(), SourceError>,
    gave_nothing: bool,
) -> Result<(), SourceError> {
    match &outcome {
        Err(error @ SourceError::Missing { .. }) if gave_nothing => member.failed(error),
        outcome => member.learn(outcome.as_ref().err()),
    }
    outcome
}

/// Reports that a source's reading ended, even if it panics.
struct Ended<'a> {
    shared: &'a Shared<'a>,
    lane: usize,
    verdict: Verdict,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.shared.stripes.lock().ended(self.lane, self.verdict);
        self.shared.changed.notify_all();
    }
}

impl Source for Striped {
    fn describe(&self) -> String {
        self.sources.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.sources.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.sources.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.sources.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        check_count(&self.describe(), wants)?;
        let healthy = self.sources.healthy();
        if healthy.len() < 2 {
            return self.sources.read(image, wants, request, sink);
        }
        let clock = Deadline::new(request);
        match (wants.len() >= 2 * STRIPE_ITEMS_MIN, request.is_demand()) {
            (true, _) => self.read_long(&healthy, image, wants, &clock, sink),
            (false, true) => self.sources.read(image, wants, request, sink),
            (false, false) => self.read_short(&healthy, image, wants, &clock, sink),
        }
    }

    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        self.sources.merges(image, hash)
    }

    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        self.sources.whole_packs(image)
    }

    /// Returns the sum of their traffic and bandwidth, and the longest round trip, which determines how much must be in flight.
    fn link(&self) -> LinkEstimate {
        let links = self
            .sources
            .members()
            .iter()
            .map(|member| member.source.link());
        links
            .reduce(|one, other| LinkEstimate {
                wire_bytes: one.wire_bytes + other.wire_bytes,
                requests: one.requests + other.requests,
                bytes_per_s: match (one.bytes_per_s, other.bytes_per_s) {
                    (Some(a), Some(b)) => Some(a.saturating_add(b)),
                    (a, b) => a.or(b),
                },
                rtt_us: one.rtt_us.max(other.rtt_us),
            })
            .unwrap_or_default()
    }
}

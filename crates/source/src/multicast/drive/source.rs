//! A group as a source: asks the group first, and another source before a guest notices that it takes long.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use floe_image::{CHUNK_SIZE, Hash, Kind, Layout, Manifest};
use floe_store::Cache;

use super::group::Group;
use crate::packed::{Deadline, check_count};
use crate::{LinkEstimate, LinkMeter, Request, Sink, Source, SourceError};

/// Reads by multicast what it can, and the rest from another source.
///
/// Cost beside that source's: a thread switch for each read. A guest's page waits for the group as long as answers usually
/// take, 10 to 100 ms, and is then read from the other source: a lost packet costs a guest no more than that.
pub struct Multicast {
    group: Arc<Group>,
    inner: Arc<dyn Source>,
    cache: Arc<Cache>,
    meter: LinkMeter,
    by_unicast: AtomicU64,
}

impl Multicast {
    /// Puts the group before `inner`, which must have the same image. `cache` is where the group keeps what others asked for.
    pub fn new(group: Arc<Group>, inner: Arc<dyn Source>, cache: Arc<Cache>) -> Multicast {
        Multicast {
            group,
            inner,
            cache,
            meter: LinkMeter::default(),
            by_unicast: AtomicU64::new(0),
        }
    }

    /// Returns how many items had to be read from the other source.
    pub fn by_unicast(&self) -> u64 {
        self.by_unicast.load(Relaxed)
    }

    /// Delivers what the group has put into the cache since the caller looked there.
    fn overheard(&self, wants: &[(Kind, Hash)], rest: &mut HashSet<Hash>, sink: &mut Sink<'_>) {
        for (kind, hash) in wants {
            if !self.cache.contains(*kind, hash) {
                continue;
            }
            match kind {
                Kind::Chunk => {
                    let mut chunk = [0; CHUNK_SIZE];
                    if self.cache.get(hash, &mut chunk, None).unwrap_or(false) && rest.remove(hash)
                    {
                        sink(*kind, *hash, &chunk);
                    }
                }
                Kind::Segment => {
                    if let Some(table) = self.cache.get_segment(hash, None)
                        && rest.remove(hash)
                    {
                        sink(*kind, *hash, &table.encode());
                    }
                }
            }
        }
    }

    /// Delivers what arrives from the group in time.
    fn read_group(
        &self,
        wants: &[(Kind, Hash)],
        rest: &mut HashSet<Hash>,
        request: &Request,
        sink: &mut Sink<'_>,
    ) {
        let started = Instant::now();
        let demand = request.is_demand();
        // At least half of the time is left for the other source.
        let most = request.deadline / 2;
        let mut patience = self.group.patience(demand);
        let mut answer = self.meter.request(started);
        let waiting = self.group.want(wants, demand);
        // An item that arrived before it was wanted here is in the cache, and nobody was given it.
        self.overheard(wants, rest, sink);
        let mut until = started + patience.min(most);
        while !rest.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            match waiting.parcels.recv_timeout(left) {
                Ok((kind, hash, bytes)) => {
                    let now = Instant::now();
                    self.meter.received(&mut answer, bytes.len(), now);
                    if rest.remove(&hash) {
                        sink(kind, hash, &bytes);
                    }
                    patience = self.group.patience(demand);
                    until = (now + patience).min(started + most);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if waiting.gave_up() {
                        tracing::warn!(
                            group = self.group.describe(),
                            "multicast does not pass; it goes on by unicast, and is tried again later"
                        );
                    }
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.meter.ended(answer, Instant::now());
    }
}

impl Source for Multicast {
    fn describe(&self) -> String {
        format!("{}, {}", self.group.describe(), self.inner.describe())
    }

    fn multicast(&self) -> Option<bool> {
        Some(self.group.passes())
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
        check_count(self.group.describe(), wants)?;
        let clock = Deadline::new(request);
        let mut rest: HashSet<Hash> = wants.iter().map(|(_, hash)| *hash).collect();
        self.overheard(wants, &mut rest, sink);
        let open = |rest: &HashSet<Hash>| -> Vec<(Kind, Hash)> {
            let open = wants.iter().filter(|(_, hash)| rest.contains(hash));
            open.copied().collect()
        };
        let mut left = open(&rest);
        match left.first() {
            None => return Ok(()),
            Some(_) if self.group.passes() => {
                self.read_group(&left, &mut rest, request, sink);
                left = open(&rest);
            }
            Some(first) => self.group.try_again(first),
        }
        if left.is_empty() {
            return Ok(());
        }
        self.by_unicast.fetch_add(left.len() as u64, Relaxed);
        // A neighbour from the same frame may have been delivered already.
        let wanted: HashSet<Hash> = wants.iter().map(|(_, hash)| *hash).collect();
        self.inner
            .read(image, &left, &clock.request(), &mut |kind, hash, bytes| {
                if rest.remove(&hash) || !wanted.contains(&hash) {
                    sink(kind, hash, bytes);
                }
            })
    }

    fn link(&self) -> LinkEstimate {
        let own = LinkEstimate {
            wire_bytes: self.group.stats().wire_bytes,
            ..self.meter.estimate(Instant::now())
        };
        own.with(self.inner.link())
    }
}

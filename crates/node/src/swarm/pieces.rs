//! Reads images out of the pieces of swarms: the way from a guest's fault to the hosts that have the piece.
//!
//! Whoever reads an image of a hub asks here first, at each read: a machine that runs already has the benefit as soon as its image's
//! swarm is entered. What is on this host's shelf is read from it; what is not is needed, or wanted ahead of need, and waited for. If it
//! does not come, or the image has no swarm now, the hub is read as without all this.

use super::{decide::Key, reach::Reach};
use crate::images::sources::Provide;
use floe_api::credentials::HubAddress;
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_peers::{PieceId, Shelf, Swarm};
use floe_source::{
    LinkEstimate, Origin as Address, PackBytes, PackReader, Request, Scheme, Sink, Source,
    SourceError,
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// A read that may not take longer than this is tried again by its caller: the hub is not asked for what is on its way already.
const SHORT: Duration = Duration::from_secs(1);

/// Waits on a plain thread for work of the runtime; `None` if it took longer than that, or was dropped.
pub(super) fn wait_for<T: Send + 'static>(
    runtime: &Handle,
    limit: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        if let Ok(value) = tokio::time::timeout(limit, work).await {
            let _ = done.send(value); // there is one place, and nobody else sends
        }
    });
    // the runtime itself gives up in time, or ends and drops the sender
    result.recv().ok()
}

/// The swarms whose pieces can be read. Locks: its list, only while it is looked at or changed.
#[derive(Clone, Default)]
pub(crate) struct Active(Arc<RwLock<HashMap<Key, Arc<Part>>>>);

impl Active {
    pub(super) fn part(&self, key: &Key) -> Option<Arc<Part>> {
        self.0.read().get(key).cloned()
    }

    pub(super) fn put(&self, key: Key, part: Arc<Part>) {
        self.0.write().insert(key, part);
    }

    pub(super) fn take(&self, key: &Key) -> Option<Arc<Part>> {
        self.0.write().remove(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    pub(super) fn all(&self) -> Vec<(Key, Arc<Part>)> {
        let all = self.0.read();
        all.iter()
            .map(|(key, part)| (key.clone(), part.clone()))
            .collect()
    }
}

impl Provide for Active {
    fn scheme(&self) -> Option<Scheme> {
        None
    }

    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source> {
        repository
    }

    fn elsewhere(
        &self,
        source: Arc<dyn Source>,
        _: &crate::inventory::record::Origin,
    ) -> Arc<dyn Source> {
        source
    }

    fn beside(&self, source: Arc<dyn Source>, place: &Address) -> Arc<dyn Source> {
        match HubAddress::of(place.url().as_str()) {
            Some(hub) => Arc::new(Beside {
                hub_source: source,
                hub,
                active: self.clone(),
            }),
            None => source,
        }
    }
}

/// This node's part in the swarm of an image.
pub(super) struct Part {
    /// What the hub calls the packs.
    pub content: String,
    pub swarm: Arc<Swarm>,
    pub reader: PackReader<Pieces>,
    /// Whether machines read this way although no other host is listed.
    pub always: AtomicBool,
    /// Whether another host is listed.
    pub others: AtomicBool,
    /// Whether all of it is brought here.
    pub whole: AtomicBool,
    /// Whether the others answer.
    pub reach: Mutex<Reach>,
    /// When this part began.
    pub since: Instant,
}

impl Part {
    /// Looks who is linked.
    pub fn look(&self) {
        let (listed, linked) = (self.others.load(Relaxed), self.swarm.linked() > 0);
        self.reach.lock().look(self.since.elapsed(), listed, linked);
    }

    /// Whether others are listed for long and none of them has ever answered.
    pub fn is_blocked(&self) -> bool {
        self.reach.lock().is_blocked(self.since.elapsed())
    }

    /// Whether pieces may come from others, or are brought this way all the same. Alone, a host reads its hub directly, which sends
    /// single chunks.
    pub fn is_of_use(&self) -> bool {
        self.others.load(Relaxed) || self.always.load(Relaxed)
    }
}

/// Brings ranges of packs out of a swarm.
pub(super) struct Pieces {
    at: String,
    swarm: Arc<Swarm>,
    /// The packs' numbers.
    packs: HashMap<Hash, usize>,
    /// Whether pieces that nobody stands still for come by themselves.
    ahead: bool,
    runtime: Handle,
}

impl Pieces {
    /// `packs`: their names, in the order of the content; `ahead`: whether the swarm's policy fetches anything ahead.
    pub fn new(
        at: String,
        swarm: Arc<Swarm>,
        packs: &[Hash],
        ahead: bool,
        runtime: Handle,
    ) -> Pieces {
        let packs = packs.iter().enumerate();
        Pieces {
            at,
            swarm,
            packs: packs.map(|(number, id)| (*id, number)).collect(),
            ahead,
            runtime,
        }
    }

    fn shelf(&self) -> &Shelf {
        self.swarm.shelf()
    }

    /// Returns the pieces in which a pack's range lies.
    pub fn pieces_of(&self, pack: &Hash, range: &Range<u64>) -> Range<PieceId> {
        let number = self.packs.get(pack);
        number.map_or(0..0, |number| {
            self.shelf().content().pieces_of(*number, range.clone())
        })
    }

    /// Waits for pieces that are not here.
    fn bring(&self, lacking: Vec<PieceId>, request: &Request) -> Result<(), SourceError> {
        if lacking.is_empty() {
            return Ok(());
        }
        let what = match lacking.len() {
            1 => format!("piece {}", lacking[0]),
            n => format!("{n} pieces from {}", lacking[0]),
        };
        let (swarm, demand) = (self.swarm.clone(), request.is_demand() || !self.ahead);
        let came = wait_for(&self.runtime, request.deadline, async move {
            match demand {
                true => swarm.need(&lacking).await,
                false => swarm.want(&lacking).await,
            }
        });
        match came {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(SourceError::Unreachable {
                at: self.at.clone(),
                what,
                reason: error.to_string(),
            }),
            None => Err(SourceError::Timeout {
                at: self.at.clone(),
                what,
                after: request.deadline,
            }),
        }
    }
}

impl PackBytes for Pieces {
    fn at(&self) -> &str {
        &self.at
    }

    /// All pieces of a read are asked for together: each on its own would take a round trip.
    fn about_to_read(
        &self,
        ranges: &[(Hash, Range<u64>)],
        request: &Request,
    ) -> Result<(), SourceError> {
        let mut asked = HashSet::new();
        let pieces = ranges
            .iter()
            .flat_map(|(pack, range)| self.pieces_of(pack, range));
        let lacking = pieces.filter(|piece| !self.shelf().has(*piece) && asked.insert(*piece));
        self.bring(lacking.collect(), request)
    }

    fn pack_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let pieces = self.pieces_of(pack, &range);
        let number = self.packs.get(pack).filter(|_| !pieces.is_empty());
        let Some(number) = number else {
            return Err(SourceError::Missing {
                at: self.at.clone(),
                what: what.into(),
            });
        };
        let lacking = pieces.filter(|piece| !self.shelf().has(*piece));
        self.bring(lacking.collect(), request)?;
        let read = self.shelf().read(*number, range);
        read.map_err(|error| SourceError::Unreachable {
            at: self.at.clone(),
            what: what.into(),
            reason: error.to_string(),
        })
    }
}

/// A hub, with the swarms of its images before it.
struct Beside {
    hub_source: Arc<dyn Source>,
    hub: HubAddress,
    active: Active,
}

impl Source for Beside {
    fn describe(&self) -> String {
        self.hub_source.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.hub_source.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.hub_source.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.hub_source.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let key = Key {
            hub: self.hub.clone(),
            image: *image,
        };
        let part = self.active.part(&key).filter(|part| part.is_of_use());
        let Some(part) = part else {
            return self.hub_source.read(image, wants, request, sink);
        };
        let began = Instant::now();
        // a demand that does not come leaves time for the hub; anything else comes later, and is not to be carried twice
        let goes_on = request.is_demand() && request.deadline >= SHORT;
        let share = match goes_on {
            true => request.deadline.mul_f32(0.6),
            false => request.deadline,
        };
        let mut given = HashSet::new();
        let share = Request {
            deadline: share,
            ..*request
        };
        let read = part.reader.read(wants, &share, &mut |kind, hash, bytes| {
            if given.insert(hash) {
                sink(kind, hash, bytes);
            }
        });
        drop(part);
        let Err(error) = read else {
            return Ok(());
        };
        let rest = wants.iter().filter(|(_, hash)| !given.contains(hash));
        let rest: Vec<_> = rest.copied().collect();
        if rest.is_empty() {
            return Ok(());
        }
        if !goes_on && matches!(error, SourceError::Timeout { .. }) {
            return Err(error);
        }
        tracing::debug!(image = image.short(), %error, "read from the hub instead");
        let left = Request {
            deadline: request.deadline.saturating_sub(began.elapsed()),
            ..*request
        };
        let mut only_new = |kind: Kind, hash: Hash, bytes: &[u8]| {
            if given.insert(hash) {
                sink(kind, hash, bytes);
            }
        };
        self.hub_source.read(image, &rest, &left, &mut only_new)
    }

    /// A piece that somebody waits for, and that is on its way for somebody else already, is hurried.
    fn merges(&self, image: &Hash) -> bool {
        let key = Key {
            hub: self.hub.clone(),
            image: *image,
        };
        self.active.part(&key).is_some_and(|part| part.is_of_use())
    }

    fn link(&self) -> LinkEstimate {
        self.hub_source.link()
    }
}

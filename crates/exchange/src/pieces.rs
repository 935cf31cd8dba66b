//! The swarms that images are read out of, and the bytes of their packs: those on the shelf, and those that others bring.

use super::{
    cheaper::{CHUNK_WIRE_BYTES, Choice},
    decide::Key,
    hedge::Hedge,
    reach::Reach,
    sooner::{Lack, Sooner},
};
use floe_api::{SwarmLent, credentials::HubAddress};
use floe_image::{FRAME_MAX_CHUNKS, Hash, Kind, PackRef};
use floe_peers::{PIECE_BYTES, PieceId, Shelf, ShelfError, Speed, Swarm};
use floe_source::{PackBytes, PackReader, Purpose, Request, SourceError, WholePacks};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// How often the image's model is asked for: it comes while machines run, of those that have ended, and changes seldom.
const MODEL_EVERY: Duration = Duration::from_secs(60);
/// When it is asked for again after that went wrong: until it is known whether there is one, all comes in pieces.
const MODEL_AGAIN: Duration = Duration::from_secs(5);
/// A machine that has waited for nothing for so long, and for which nothing was read ahead from the hub alone, is quiet.
const QUIET: Duration = Duration::from_secs(1);
/// The same while no other host is there that could want pieces. What was read ahead keeps a machine from waiting for seconds in which it
/// starts, and would be slowed down by what nobody needs yet.
const QUIET_ALONE: Duration = Duration::from_secs(10);
/// Most items that are brought as pieces later: 64 MiB of chunks. Further ones are left to those who want them.
const LATER_MAX: usize = 16 << 10;
/// How many of them are read at a time: a machine that is busy again waits for no more.
const LATER_ITEMS: usize = 8;
/// How long the swarm may take to say which pack is the rarest, which asks nobody.
const RAREST_TIMEOUT: Duration = Duration::from_secs(10);
/// Most images of which is known what they are based on.
const BASES_MAX: usize = 4096;
/// How many generations of forks are gone back for a swarm that has something of them.
const GENERATIONS_MAX: usize = 16;

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
pub struct Active(Arc<RwLock<All>>);

#[derive(Default)]
struct All {
    parts: HashMap<Key, Arc<Part>>,
    /// Bytes of pieces that swarms of a hub's images have brought that have ended.
    brought: HashMap<HubAddress, u64>,
    /// By the image of a fork whose clones here may read out of swarms, what is decided for that.
    lent: HashMap<Hash, Weak<Mutex<Choice>>>,
    /// What images of forks are based on, as far as their manifests were read; [`BASES_MAX`] at most.
    bases: HashMap<Hash, Hash>,
}

impl Active {
    pub(super) fn part(&self, key: &Key) -> Option<Arc<Part>> {
        self.0.read().parts.get(key).cloned()
    }

    pub(super) fn put(&self, key: Key, part: Arc<Part>) {
        self.0.write().parts.insert(key, part);
    }

    pub(super) fn take(&self, key: &Key) -> Option<Arc<Part>> {
        let mut all = self.0.write();
        let part = all.parts.remove(key)?;
        *all.brought.entry(key.hub.clone()).or_default() += part.swarm.received();
        Some(part)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.read().parts.is_empty()
    }

    pub(super) fn all(&self) -> Vec<(Key, Arc<Part>)> {
        let all = self.0.read();
        let parts = all.parts.iter();
        parts
            .map(|(key, part)| (key.clone(), part.clone()))
            .collect()
    }

    /// Returns those that are read from now.
    pub(super) fn used(&self) -> Vec<(Key, Arc<Part>)> {
        let mut all = self.all();
        all.retain(|(_, part)| part.is_of_use());
        all
    }

    /// Notes what a fork's image is based on, and where it is decided whether its clones read out of swarms.
    pub(super) fn lends(&self, fork: Hash, base: Option<Hash>, choice: &Arc<Mutex<Choice>>) {
        let mut all = self.0.write();
        all.lent.retain(|_, choice| choice.strong_count() > 0);
        all.lent.insert(fork, Arc::downgrade(choice));
        if all.bases.len() >= BASES_MAX
            && let Some(any) = all.bases.keys().next().copied()
        {
            all.bases.remove(&any);
        }
        all.bases.extend(base.map(|base| (fork, base)));
    }

    /// Returns a fork's image and those that it is based on, the nearest first, as far as they are known.
    pub(super) fn bases(&self, fork: &Hash) -> Vec<Hash> {
        let all = self.0.read();
        let line = std::iter::successors(Some(*fork), |image| all.bases.get(image).copied());
        line.take(GENERATIONS_MAX).collect()
    }

    /// Returns what the clones of a fork have read out of swarms, and by which figures that was decided; `None` if nothing was.
    pub(super) fn lent(&self, fork: &Hash) -> Option<SwarmLent> {
        let choice = self.0.read().lent.get(fork).and_then(Weak::upgrade)?;
        let told = choice.lock().told();
        (told != SwarmLent::default()).then_some(told)
    }

    /// Returns what the swarms of a hub's images have brought since the node began, in bytes of pieces, and how fast the pieces come of
    /// those that are read now: each swarm knows its own share of this host's link.
    pub(super) fn carried(&self, hub: &HubAddress) -> (u64, Vec<Speed>) {
        let all = self.0.read();
        let ended = all.brought.get(hub).copied().unwrap_or_default();
        let of_hub = all.parts.iter().filter(|(key, _)| key.hub == *hub);
        let parts: Vec<Arc<Part>> = of_hub.map(|(_, part)| part.clone()).collect();
        drop(all);
        let now: u64 = parts.iter().map(|part| part.swarm.received()).sum();
        let used = |part: &&Arc<Part>| part.is_of_use() && part.swarm.connected() > 0;
        let used = parts.iter().filter(used);
        let speeds = used.filter_map(|part| part.swarm.speed()).collect();
        (ended + now, speeds)
    }
}

/// This node's part in the swarm of an image.
pub(super) struct Part {
    /// What the hub calls the packs.
    pub content: String,
    pub swarm: Arc<Swarm>,
    pub reader: PackReader<Pieces>,
    /// Whether this host takes part although no other host is listed.
    pub always: AtomicBool,
    /// Whether another host is listed.
    pub others: AtomicBool,
    /// How many hosts are.
    pub listed: AtomicUsize,
    /// Whether all of it is brought here.
    pub whole: AtomicBool,
    /// Whether the hub is never read in another way than in pieces (`SwarmPolicy::only_pieces`).
    pub only_pieces: bool,
    /// From when on the image's model is to be asked for, `None` for now, and of which the prediction is.
    model: Mutex<(Option<Instant>, Option<Hash>)>,
    /// The pieces that a model predicts; `None` as long as it is not known whether there is a model.
    predicted: Mutex<Option<Arc<HashSet<PieceId>>>>,
    /// Whether the others answer.
    reach: Mutex<Reach>,
    /// How long a demand waits for the swarm.
    pub hedge: Arc<Mutex<Hedge>>,
    /// What is read from the hub at once.
    sooner: Mutex<Sooner>,
    /// What was read from the hub as chunks, and is to be brought as pieces later so that others can have it.
    later: Mutex<VecDeque<(Kind, Hash)>>,
    /// Whether that is being done.
    pub follows: AtomicBool,
    /// Items that are on their way from the hub as chunks, ahead of need.
    flying: Mutex<HashSet<Hash>>,
    /// Why this swarm is not read from any more, the packs that are to blame, and whether the node has acted on it.
    spoilt: Mutex<Option<(String, Vec<Hash>, bool)>>,
    /// When this part began, and how many milliseconds later a machine was last busy.
    since: Instant,
    busy_ms: AtomicU64,
}

/// Items that packs hold.
#[derive(Default)]
pub(super) struct Found {
    /// Those whose pieces are on the shelf.
    pub here: Vec<(Kind, Hash)>,
    /// Those of which a piece is lacking,
    pub there: Vec<(Kind, Hash)>,
    /// and how many pieces these are.
    pub pieces: usize,
}

impl Part {
    /// Begins to exchange `content`. `hedge` is the seed's, too.
    pub fn new(
        content: String,
        swarm: Arc<Swarm>,
        reader: PackReader<Pieces>,
        hedge: Arc<Mutex<Hedge>>,
    ) -> Part {
        let packs = reader.layout().packs.iter();
        let indices = packs.map(|pack| u64::from(pack.index_bytes).next_multiple_of(PIECE_BYTES));
        let sooner = Sooner::new(indices.sum());
        Part {
            content,
            swarm,
            reader,
            always: AtomicBool::default(),
            others: AtomicBool::default(),
            listed: AtomicUsize::default(),
            whole: AtomicBool::default(),
            only_pieces: false,
            model: Mutex::default(),
            predicted: Mutex::default(),
            reach: Mutex::default(),
            hedge,
            sooner: Mutex::new(sooner),
            later: Mutex::default(),
            spoilt: Mutex::default(),
            follows: AtomicBool::default(),
            flying: Mutex::default(),
            since: Instant::now(),
            busy_ms: AtomicU64::default(),
        }
    }

    /// Finds those of the items that the packs are known to hold, and which of them are here.
    pub fn look_up(&self, wants: &[(Kind, Hash)]) -> Found {
        let (shelf, bytes) = (self.swarm.shelf(), self.reader.bytes());
        let (mut found, mut lacking) = (Found::default(), HashSet::new());
        for (want, pack, range) in self.reader.known(wants) {
            let pieces = bytes.pieces_of(&pack, &range);
            if pieces.is_empty() {
                continue;
            }
            let lacks: Vec<PieceId> = pieces.filter(|piece| !shelf.has(*piece)).collect();
            match lacks.is_empty() {
                true => found.here.push(want),
                false => found.there.push(want),
            }
            lacking.extend(lacks);
        }
        found.pieces = lacking.len();
        found
    }

    /// Whether it is time to ask for the image's model; if so, that counts as asked.
    pub fn asks_for_model(&self, now: Instant) -> bool {
        let mut model = self.model.lock();
        let due = model.0.is_none_or(|at| now >= at);
        if due {
            model.0 = Some(now + MODEL_EVERY);
        }
        due
    }

    /// Notes that there was no answer, or none that was of use: it is asked for again soon.
    pub fn note_no_answer(&self, now: Instant) {
        self.model.lock().0 = Some(now + MODEL_AGAIN);
    }

    /// Whether the prediction is of another model.
    pub fn is_new_model(&self, model: Hash) -> bool {
        self.model.lock().1 != Some(model)
    }

    /// Notes of which model the prediction is, and what it says.
    pub fn note_prediction(&self, model: Hash, pieces: &[PieceId]) {
        self.model.lock().1 = Some(model);
        let pieces = pieces.iter().copied().collect();
        *self.predicted.lock() = Some(Arc::new(pieces));
    }

    /// Notes that there is no model, unless there was one.
    pub fn note_no_model(&self) {
        self.predicted.lock().get_or_insert_with(Arc::default);
    }

    /// Returns which of the items are read from the hub before the swarm is asked, and how long it is waited for if a machine stands still;
    /// `None` if none of them is. Predicted pieces come anyway, so that nothing of them is read twice.
    pub fn sooner_of_hub(
        &self,
        wants: &[(Kind, Hash)],
        demand: bool,
    ) -> Option<(Vec<(Kind, Hash)>, Duration)> {
        let connected = self.swarm.connected();
        let predicted = self.predicted.lock().clone();
        let predicted = predicted.filter(|_| connected > 0)?;
        let lacks = self.lacks(wants, &predicted);
        let hosts = self.listed.load(Relaxed).max(connected + 1) as u64;
        let now = self.since.elapsed();
        self.sooner.lock().choose(now, hosts, demand, &lacks)
    }

    /// Returns the items of which something lacks here, or whose place is not known, and which lie in no piece that is predicted.
    fn lacks(&self, wants: &[(Kind, Hash)], predicted: &HashSet<PieceId>) -> Vec<Lack> {
        let (shelf, bytes) = (self.swarm.shelf(), self.reader.bytes());
        let known = self.reader.known(wants).into_iter();
        let known: HashMap<_, _> = known
            .map(|(want, pack, range)| (want, (pack, range)))
            .collect();
        let lack = |item: &(Kind, Hash)| {
            let (piece, frame_bytes) = match known.get(item) {
                Some((pack, range)) => {
                    let mut pieces = bytes.pieces_of(pack, range);
                    if pieces.clone().any(|piece| predicted.contains(&piece)) {
                        return None;
                    }
                    let lacking = pieces.find(|piece| !shelf.has(*piece))?;
                    (Some(lacking), range.end - range.start)
                }
                None => (None, 0),
            };
            Some(Lack {
                item: *item,
                piece,
                bytes: hub_bytes(item.0, frame_bytes),
            })
        };
        wants.iter().filter_map(lack).collect()
    }

    /// Whether a piece is lacking here in which one of the items is known to lie.
    pub fn lacks_pieces(&self, wants: &[(Kind, Hash)]) -> bool {
        !self.look_up(wants).there.is_empty()
    }

    /// Notes that the hub is asked for items ahead of need, until what is returned is dropped.
    pub fn fly(&self, items: &[(Kind, Hash)]) -> Flight<'_> {
        let items: Vec<Hash> = items.iter().map(|(_, hash)| *hash).collect();
        self.flying.lock().extend(&items);
        Flight { part: self, items }
    }

    /// Whether an item is on its way from the hub, ahead of need.
    pub fn is_flying(&self, item: &Hash) -> bool {
        self.flying.lock().contains(item)
    }

    /// Notes how long a machine stood still for chunks of the hub, and whether they came.
    pub fn hub_took(&self, took: Duration, whole: bool) {
        let now = self.since.elapsed();
        self.sooner.lock().hub_took(now, took, whole);
    }

    /// Notes the same of pieces.
    pub fn swarm_took(&self, took: Duration, whole: bool) {
        let now = self.since.elapsed();
        self.sooner.lock().swarm_took(now, took, whole);
    }

    /// Looks who is connected.
    pub fn look(&self) {
        let (listed, connected) = (self.others.load(Relaxed), self.swarm.connected() > 0);
        self.reach
            .lock()
            .look(self.since.elapsed(), listed, connected);
    }

    /// Whether other nodes have been listed for long and none of them has ever answered.
    pub fn is_blocked(&self) -> bool {
        self.reach.lock().is_blocked(self.since.elapsed())
    }

    /// Notes that a machine stands still now, or reads ahead while this host is alone.
    pub fn note_busy(&self) {
        let ms = self.since.elapsed().as_millis() as u64;
        self.busy_ms.store(ms, Relaxed);
    }

    /// Whether no other host is listed or connected.
    pub fn is_alone(&self) -> bool {
        !self.others.load(Relaxed) && self.swarm.connected() == 0
    }

    /// Whether so many bytes may be read from the hub although they may come as pieces.
    pub fn may_hedge(&self, bytes: u64) -> bool {
        let mut hedge = self.hedge.lock();
        hedge.received(self.swarm.received());
        hedge.spend(true, bytes)
    }

    /// Notes what was read from the hub while no other host was connected, if it is to be brought as pieces later.
    pub fn keep_for_later(&self, wants: &[(Kind, Hash)]) {
        if self.always.load(Relaxed) {
            let mut later = self.later.lock();
            let room = LATER_MAX.saturating_sub(later.len());
            later.extend(wants.iter().take(room));
        }
    }

    /// Whether there is something to bring as pieces, and the machines are quiet.
    pub fn may_follow(&self) -> bool {
        let busy = Duration::from_millis(self.busy_ms.load(Relaxed));
        let enough = if self.is_alone() { QUIET_ALONE } else { QUIET };
        let quiet = self.since.elapsed().saturating_sub(busy) >= enough;
        quiet && !self.later.lock().is_empty()
    }

    /// Takes some of what is to be brought.
    pub fn take_later(&self) -> Vec<(Kind, Hash)> {
        let mut later = self.later.lock();
        let count = later.len().min(LATER_ITEMS);
        later.drain(..count).collect()
    }

    /// Whether pieces may come from others, or are brought this way all the same. Alone, a host reads its hub directly, which sends
    /// single chunks.
    pub fn is_of_use(&self) -> bool {
        let wanted = self.others.load(Relaxed) || self.always.load(Relaxed);
        wanted && self.spoilt.lock().is_none()
    }

    /// Notes that pieces fit the hub's roots and are not what the image needs: nobody reads this way any more.
    pub fn note_spoilt(&self, wants: &[(Kind, Hash)], why: &SourceError) {
        let nobody_asked = Request::demand(Duration::ZERO);
        let places = self.reader.places(wants, &nobody_asked);
        let packs = places.unwrap_or_default().into_iter().map(|(pack, _)| pack);
        let packs: BTreeSet<Hash> = packs.collect();
        self.spoil(packs.into_iter().collect(), &why.to_string());
    }

    /// Whether a range of a pack, which fits the hub's root, is what the image needs, as far as that is known; notes if it is not.
    pub fn fits(&self, pack: &Hash, range: &Range<u64>, bytes: &[u8]) -> bool {
        let fits = self.reader.fits(pack, range, bytes);
        if !fits {
            let why = format!("pack {} has other frames", pack.short());
            self.spoil(vec![*pack], &why);
        }
        fits
    }

    fn spoil(&self, packs: Vec<Hash>, why: &str) {
        let why = format!("the hub's pieces are not the image's: {why}");
        let mut spoilt = self.spoilt.lock();
        spoilt.get_or_insert((why, packs, false));
    }

    /// Returns why, and of which packs, if that has happened and was not seen to.
    pub fn newly_spoilt(&self) -> Option<(String, Vec<Hash>)> {
        let mut spoilt = self.spoilt.lock();
        let (why, packs, seen_to) = spoilt.as_mut()?;
        let first = !std::mem::replace(seen_to, true);
        first.then(|| (why.clone(), packs.clone()))
    }
}

/// Items that the hub was asked for ahead of need ([`Part::fly`]).
pub(super) struct Flight<'a> {
    part: &'a Part,
    items: Vec<Hash>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flying = self.part.flying.lock();
        for item in &self.items {
            flying.remove(item);
        }
    }
}

/// Returns how many bytes the hub sends for an item that lies in a frame of so many, 0 if that is not known: it packs a chunk by itself.
fn hub_bytes(kind: Kind, frame_bytes: u64) -> u64 {
    let raw = kind.raw_size() as u64;
    match kind {
        Kind::Chunk => (frame_bytes / FRAME_MAX_CHUNKS as u64).clamp(CHUNK_WIRE_BYTES, raw),
        Kind::Segment if frame_bytes > 0 => frame_bytes.min(raw),
        Kind::Segment => raw,
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
        let (swarm, purpose) = (self.swarm.clone(), request.who.purpose);
        let demand = purpose.is_waited_for() || !self.ahead;
        let bring = async move {
            match purpose {
                _ if demand => swarm.need(&lacking).await,
                Purpose::Seed | Purpose::Settle => swarm.copy(&lacking).await,
                _ => swarm.want(&lacking).await,
            }
        };
        let came = match request.deadline.is_zero() {
            true => None, // nobody is asked for what is not waited for
            false => wait_for(&self.runtime, request.deadline, bring),
        };
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

    /// Waits until a pack's range is here, and returns the pack's number.
    fn bring_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        what: &str,
        request: &Request,
    ) -> Result<usize, SourceError> {
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
        Ok(*number)
    }

    fn unreadable(&self, what: &str, error: &ShelfError) -> SourceError {
        SourceError::Unreachable {
            at: self.at.clone(),
            what: what.into(),
            reason: error.to_string(),
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
        let number = self.bring_range(pack, range.clone(), what, request)?;
        let read = self.shelf().read(number, range);
        read.map_err(|error| self.unreadable(what, &error))
    }
}

/// Who stores the image takes packs off the shelf as they are, so that they lie on the disk once.
impl WholePacks for Part {
    fn packs(&self) -> &[PackRef] {
        &self.reader.layout().packs
    }

    fn next(&self, left: &[PackRef]) -> usize {
        let (pieces, swarm) = (self.reader.bytes(), self.swarm.clone());
        let of = |pack: &PackRef| pieces.pieces_of(&pack.id, &(0..pack.file_bytes));
        let left: Vec<Range<PieceId>> = left.iter().map(of).collect();
        let rarest = async move { swarm.rarest(left).await };
        let rarest = wait_for(&pieces.runtime, RAREST_TIMEOUT, rarest);
        rarest.and_then(Result::ok).unwrap_or(0)
    }

    fn items(&self, pack: &PackRef, request: &Request) -> Result<Vec<(Kind, Hash)>, SourceError> {
        self.reader.pack_items(pack, request)
    }

    fn bring(&self, pack: &PackRef, request: &Request) -> Result<PathBuf, SourceError> {
        let (pieces, what) = (self.reader.bytes(), format!("pack {}", pack.id.short()));
        let number = pieces.bring_range(&pack.id, 0..pack.file_bytes, &what, request)?;
        let file = pieces.shelf().file_of(number);
        file.map_err(|error| pieces.unreadable(&what, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::world_tests::World;
    use super::*;

    #[test]
    fn a_model_is_asked_for_again_soon_if_there_was_no_answer() {
        let world = World::new(false);
        let now = Instant::now();
        let asks = |later: Duration| world.part.asks_for_model(now + later);
        assert!(asks(Duration::ZERO) && !asks(MODEL_AGAIN));
        world.part.note_no_answer(now);
        assert!(asks(MODEL_AGAIN) && !asks(MODEL_EVERY));
        assert!(asks(MODEL_AGAIN + MODEL_EVERY));
    }
}

//! Pull: copies a whole image here from any source, and fetches only what is not here yet.
//!
//! When pulling into a repository, what arrives is packed and kept from the first pack on: a journal beside the repository's
//! other temporary files names the packs of an unfinished pull, so that the next one continues with them, of whatever image it is. Packs that the source
//! brings here whole, as a swarm does, are taken as they are instead, so that they lie on the disk once.

use super::unfinished::{READ_DEADLINE, Unfinished};
use super::{Meter, OnProgress, PullOptions, TransferError, check, passes, retry_for};
use floe_image::{Hash, Kind, Manifest, PackWriter, Region, Segment};
use floe_source::{Purpose, Request, Source, WholePacks};
use floe_store::{Cache, Repository};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
use std::time::Instant;

/// How many chunks one read asks for: 1 MiB, so that progress and cancellation work over a slow link, too.
const CHUNKS_AT_A_TIME: usize = 256;
/// How many segments one read asks for, for the same reason.
const SEGMENTS_AT_A_TIME: usize = 32;
/// How many reads are under way at once.
const CONNECTIONS: usize = 4;

/// Where a pull puts the image.
#[derive(Clone, Copy)]
pub enum Destination<'a> {
    /// Into a repository, where it is published. What the cache has is taken from there.
    Repository(&'a Repository, Option<&'a Cache>),
    /// Its chunks and segments into a node's cache.
    Cache(&'a Cache),
}

/// What a pull did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PullReport {
    /// Raw bytes of the chunks and segments that were fetched.
    pub bytes_fetched: u64,
    /// Chunks that were fetched.
    pub chunks_fetched: u64,
    /// How many non-zero chunks, each counted once, were here already.
    pub chunks_reused: u64,
    /// Duration from the first request to the end.
    pub seconds: f64,
}

/// Pulls image `image` from `source`.
pub fn pull(
    source: &dyn Source,
    image: &Hash,
    to: Destination<'_>,
    options: &PullOptions,
    progress: OnProgress<'_>,
) -> Result<PullReport, TransferError> {
    let started = Instant::now();
    if let Destination::Repository(repository, _) = to
        && repository.manifest(image).is_ok()
    {
        return Ok(PullReport {
            seconds: started.elapsed().as_secs_f64(),
            ..PullReport::default()
        });
    }
    let cancel = &options.cancel;
    let manifest = retry_for(options.patience, cancel, passes, || {
        Ok(source.manifest(image)?)
    })?;
    let mut report = PullReport::default();
    let keep = loop {
        let (keep, may_take) = match to {
            Destination::Repository(repository, cache) => {
                let mut packs = Unfinished::open(repository, cache, image, options.pack_bytes)?;
                let whole = whole_packs(source, image, options);
                if let Some(whole) = &whole {
                    packs.take(&**whole, options, progress)?;
                }
                (Keep::Packs(packs), whole.is_none())
            }
            Destination::Cache(cache) => (Keep::Cache(cache), false),
        };
        let fetch = Fetch {
            source,
            image,
            keep: &keep,
            options,
            may_take,
            can_take: AtomicBool::new(false),
        };
        if fetch.items(&manifest, progress, &mut report)? {
            break keep;
        }
    };
    check(cancel)?;
    match &keep {
        Keep::Packs(packs) => packs.publish(&manifest)?,
        Keep::Cache(cache) => cache.flush()?,
    }
    Ok(PullReport {
        seconds: started.elapsed().as_secs_f64(),
        ..report
    })
}

fn whole_packs(
    source: &dyn Source,
    image: &Hash,
    options: &PullOptions,
) -> Option<Arc<dyn WholePacks>> {
    let whole = source.whole_packs(image);
    whole.filter(|_| options.whole_packs)
}

fn unique(hashes: impl Iterator<Item = Hash>) -> Vec<Hash> {
    let mut seen = HashSet::new();
    hashes.filter(|hash| seen.insert(*hash)).collect()
}

/// Called with each item of a list, fetched or found here.
type Each<'a> = &'a (dyn Fn(Kind, Hash, &[u8]) + Sync);

struct Fetch<'a> {
    source: &'a dyn Source,
    image: &'a Hash,
    keep: &'a Keep<'a>,
    options: &'a PullOptions,
    /// Whether the source could not bring packs whole when this began: a swarm takes a moment to be joined.
    may_take: bool,
    /// It can by now.
    can_take: AtomicBool,
}

impl Fetch<'_> {
    /// Makes sure that all of an image is here, and adds to `report` what had to be fetched. Returns false, with some of it here, once the
    /// source can bring packs whole: what would be packed here would lie on the disk twice.
    fn items(
        &self,
        manifest: &Manifest,
        progress: OnProgress<'_>,
        report: &mut PullReport,
    ) -> Result<bool, TransferError> {
        let ids = manifest
            .regions
            .iter()
            .flat_map(|region| &region.segments)
            .copied()
            .filter(|id| !id.is_zero());
        let segments: Vec<(Kind, Hash)> = unique(ids)
            .into_iter()
            .map(|id| (Kind::Segment, id))
            .collect();
        let chunks: Mutex<HashMap<Hash, Vec<Hash>>> = Mutex::default();
        let below = |_: Kind, id: Hash, bytes: &[u8]| {
            if let Ok(segment) = Segment::decode(bytes) {
                let below = segment
                    .hashes()
                    .iter()
                    .copied()
                    .filter(|hash| !hash.is_zero())
                    .collect();
                chunks.lock().insert(id, below);
            }
        };
        let start = Meter::new(
            (segments.len() * Kind::Segment.raw_size()) as u64,
            0,
            &|_| (),
        );
        let fetched_segments = self.all(&segments, SEGMENTS_AT_A_TIME, &start, &below)?;
        report.bytes_fetched += fetched_segments * Kind::Segment.raw_size() as u64;
        if self.can_take.load(Ordering::Relaxed) {
            return Ok(false);
        }

        let mut chunks = chunks.into_inner();
        let in_order = segments
            .iter()
            .flat_map(|(_, id)| chunks.remove(id).unwrap_or_default())
            .chain(manifest.regions.iter().flat_map(Region::patched_chunks));
        let chunks: Vec<(Kind, Hash)> = unique(in_order)
            .into_iter()
            .map(|id| (Kind::Chunk, id))
            .collect();
        let segment_bytes = (segments.len() * Kind::Segment.raw_size()) as u64;
        let total = segment_bytes + (chunks.len() * Kind::Chunk.raw_size()) as u64;
        if let Some(gate) = &self.options.gate {
            gate.room(self.keep.missing_bytes(&chunks)?)?;
        }
        let meter = Meter::new(total, segment_bytes, progress);
        let fetched = self.all(&chunks, CHUNKS_AT_A_TIME, &meter, &|_, _, _| ())?;
        report.bytes_fetched += fetched * Kind::Chunk.raw_size() as u64;
        report.chunks_fetched += fetched;
        report.chunks_reused = (chunks.len() as u64).saturating_sub(report.chunks_fetched);
        Ok(!self.can_take.load(Ordering::Relaxed))
    }

    /// Makes sure that all items are here, unless packs can be taken whole meanwhile; returns how many had to be fetched.
    fn all(
        &self,
        items: &[(Kind, Hash)],
        at_a_time: usize,
        meter: &Meter<'_>,
        each: Each<'_>,
    ) -> Result<u64, TransferError> {
        let parts: Vec<&[(Kind, Hash)]> = items.chunks(at_a_time).collect();
        let (next, fetched) = (AtomicUsize::new(0), AtomicU64::new(0));
        let failed: Mutex<Option<TransferError>> = Mutex::new(None);
        let work = || {
            let mut writer = None;
            let mut done = || -> Result<(), TransferError> {
                while failed.lock().is_none() {
                    let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    check(&self.options.cancel)?;
                    if self.may_take && whole_packs(self.source, self.image, self.options).is_some()
                    {
                        self.can_take.store(true, Ordering::Relaxed);
                    }
                    if self.can_take.load(Ordering::Relaxed) {
                        break;
                    }
                    let count = self.part(part, &mut writer, meter, each)?;
                    fetched.fetch_add(count, Ordering::Relaxed);
                }
                // done even if another thread failed: what arrived is kept for the next try
                self.keep.close(&mut writer)
            };
            if let Err(error) = done() {
                let _ = self.keep.close(&mut writer);
                failed.lock().get_or_insert(error);
            }
        };
        let connections = if self.options.connections == 0 {
            CONNECTIONS
        } else {
            self.options.connections
        };
        let threads = connections.min(parts.len());
        floe_threads::scope(|scope| scope.spawn_some("pull", threads, work));
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(fetched.into_inner()),
        }
    }

    fn part(
        &self,
        part: &[(Kind, Hash)],
        writer: &mut Option<PackWriter<Vec<u8>>>,
        meter: &Meter<'_>,
        each: Each<'_>,
    ) -> Result<u64, TransferError> {
        let mut got: HashMap<Hash, Vec<u8>> = HashMap::new();
        let mut wants = self.keep.absent(part, each, &mut got)?;
        let from_cache = got.len();
        let here = part
            .iter()
            .filter(|(_, hash)| !wants.iter().any(|(_, want)| want == hash));
        meter.add(here.map(|(kind, _)| kind.raw_size() as u64).sum(), 0);
        if let Some(gate) = &self.options.gate {
            let kept = got.values().map(Vec::len).sum::<usize>();
            let raw = |(kind, _): &(Kind, Hash)| kind.raw_size();
            let bytes = wants.iter().map(raw).sum::<usize>() + kept;
            if bytes > 0 {
                gate.pass(bytes as u64, &self.options.cancel)?;
            }
        }
        let request = Request::of(Purpose::Settle, READ_DEADLINE);
        let fetched = wants.len() as u64;
        let (patience, cancel) = (self.options.patience, &self.options.cancel);
        retry_for(patience, cancel, passes, || {
            wants.retain(|(_, hash)| !got.contains_key(hash));
            if wants.is_empty() {
                return Ok(());
            }
            let asked: HashSet<Hash> = wants.iter().map(|(_, hash)| *hash).collect();
            Ok(self
                .source
                .read(self.image, &wants, &request, &mut |kind, hash, bytes| {
                    // the source may send neighbours, too; only what was asked for is packed
                    if asked.contains(&hash) && got.insert(hash, bytes.to_vec()).is_none() {
                        each(kind, hash, bytes);
                        meter.add(bytes.len() as u64, bytes.len() as u64);
                    }
                })?)
        })?;
        debug_assert_eq!(got.len(), from_cache + fetched as usize);
        let ordered: Vec<(Kind, Hash, &[u8])> = part
            .iter()
            .filter_map(|(kind, hash)| got.get(hash).map(|bytes| (*kind, *hash, &**bytes)))
            .collect();
        self.keep.put(&ordered, writer)?;
        Ok(fetched)
    }
}

/// Where items are looked up and stored.
enum Keep<'a> {
    Packs(Unfinished<'a>),
    Cache(&'a Cache),
}

impl Keep<'_> {
    /// Returns the items that must be fetched. Those that are here in another form (in the cache) are put into `got`, to be
    /// packed; `each` is called with all that are here.
    fn absent(
        &self,
        part: &[(Kind, Hash)],
        each: Each<'_>,
        got: &mut HashMap<Hash, Vec<u8>>,
    ) -> Result<Vec<(Kind, Hash)>, TransferError> {
        let mut absent = Vec::new();
        match self {
            Keep::Cache(cache) => {
                for (kind, hash) in part {
                    match read_cached(cache, *kind, hash)? {
                        Some(bytes) => each(*kind, *hash, &bytes),
                        None => absent.push((*kind, *hash)),
                    }
                }
            }
            Keep::Packs(packs) => {
                let here = packs.repository.has(packs.known(), part)?;
                let (mut held, mut rest) = (Vec::new(), Vec::new());
                for (item, here) in part.iter().zip(here) {
                    if here {
                        held.push(*item)
                    } else {
                        rest.push(*item)
                    }
                }
                // chunks that are in packs already are not read: only segments are needed, to find what is below them
                held.retain(|(kind, _)| *kind == Kind::Segment);
                if !held.is_empty() {
                    let scope = packs.repository.scope_of(packs.known())?;
                    let damaged =
                        scope.read(&held, &mut |kind, hash, bytes| each(kind, hash, bytes))?;
                    rest.extend(damaged);
                }
                for (kind, hash) in rest {
                    match packs
                        .cache
                        .map(|cache| read_cached(cache, kind, &hash))
                        .transpose()?
                        .flatten()
                    {
                        Some(bytes) => {
                            each(kind, hash, &bytes);
                            got.insert(hash, bytes);
                        }
                        None => absent.push((kind, hash)),
                    }
                }
            }
        }
        Ok(absent)
    }

    /// Returns how many raw bytes of these items are not where they are to be stored: the most that storing the rest can take.
    fn missing_bytes(&self, items: &[(Kind, Hash)]) -> Result<u64, TransferError> {
        let raw = |(kind, _): &(Kind, Hash)| kind.raw_size() as u64;
        match self {
            Keep::Cache(_) => Ok(items.iter().map(raw).sum()),
            Keep::Packs(packs) => {
                let here = packs.repository.has(packs.known(), items)?;
                let missing = items.iter().zip(here).filter(|(_, here)| !here);
                Ok(missing.map(|(item, _)| raw(item)).sum())
            }
        }
    }

    fn put(
        &self,
        items: &[(Kind, Hash, &[u8])],
        writer: &mut Option<PackWriter<Vec<u8>>>,
    ) -> Result<(), TransferError> {
        match self {
            Keep::Cache(cache) => {
                for (kind, hash, bytes) in items {
                    cache.put_item(*kind, hash, bytes, None)?;
                }
                Ok(())
            }
            Keep::Packs(packs) => packs.put(items, writer),
        }
    }

    fn close(&self, writer: &mut Option<PackWriter<Vec<u8>>>) -> Result<(), TransferError> {
        match self {
            Keep::Cache(_) => Ok(()),
            Keep::Packs(packs) => packs.close(writer),
        }
    }
}

fn read_cached(cache: &Cache, kind: Kind, hash: &Hash) -> Result<Option<Vec<u8>>, TransferError> {
    Ok(match kind {
        Kind::Chunk => {
            let mut bytes = [0; floe_image::CHUNK_SIZE];
            cache.get(hash, &mut bytes, None)?.then(|| bytes.to_vec())
        }
        Kind::Segment => cache
            .get_segment(hash, None)
            .map(|segment| segment.encode()),
    })
}

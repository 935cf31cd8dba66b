//! Reads an image from packs that are stored somewhere as plain objects: the part that a web server and a bucket share.
//!
//! A layout names the packs that hold the image; a pack's index says where in the pack each item is. Both are fetched when
//! first needed; an index is verified by the pack's id and can be kept on disk. The frames of the wanted items are sorted, and
//! neighbours are read with one range request. A frame is always unpacked as a whole, so all of its items go to the sink.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use floe_image::{
    FormatError, FrameInfo, Hash, ImageName, Kind, LAYOUT_BYTES_MAX, Layout, MANIFEST_BYTES_MAX,
    Manifest, PackIndex, PackRef, decompress_frame,
};
use floe_store::FramePlace;
use parking_lot::Mutex;

use crate::kept::keep;
use crate::{LinkEstimate, Purpose, READ_ITEMS_MAX, Request, Sink, SourceError};

/// Frames that are no further apart than this are read together: on any link, 16 KiB take less time than another request.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Largest range request in bytes, which a thread holds in memory; longer reads become several requests.
const RANGE_BYTES_MAX: u64 = 4 << 20;

/// Most bytes of indices in memory, those of some 50 GiB of packs. Beyond that they are read again when they are needed.
const INDICES_BYTES_MAX: u64 = 1 << 30;

/// Most bytes of a tag file: an id and a date.
const TAG_FILE_BYTES_MAX: u64 = 512;

/// Brings the bytes of packs from somewhere: for a [`PackReader`](crate::PackReader), from wherever its caller has them.
pub trait PackBytes: Send + Sync {
    /// Returns where that is, for messages.
    fn at(&self) -> &str;
    /// Told of all ranges that one read is about to ask for, so that they can be brought together. It may wait for them; an error ends the
    /// read.
    fn about_to_read(
        &self,
        ranges: &[(Hash, Range<u64>)],
        request: &Request,
    ) -> Result<(), SourceError> {
        let _ = (ranges, request);
        Ok(())
    }
    /// Returns exactly the bytes of `range` of the pack with this id, within the request's deadline. `what` names them in errors. They
    /// need not be verified.
    fn pack_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError>;
}

/// Objects under a prefix: what reading an image needs of a web server or a bucket.
pub(crate) trait Objects: PackBytes {
    /// Returns the whole object, of at most `limit` bytes.
    fn get(
        &self,
        path: &str,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError>;
    /// Returns what is measured of the link.
    fn link(&self) -> LinkEstimate;
}

/// Images in packs, on some [`Objects`].
pub(crate) struct Packed<O> {
    objects: O,
    timeout: Duration,
    index_dir: Option<PathBuf>,
    layouts: Mutex<HashMap<Hash, Arc<Layout>>>,
    indices: Mutex<HashMap<Hash, Arc<IndexSlot>>>,
    /// How many bytes of indices were taken into memory since it was last emptied.
    indices_bytes: AtomicU64,
}

/// A pack's index, once it is here. The lock is held while the index is fetched, so that it is fetched once.
type IndexSlot = Mutex<Option<Arc<PackIndex>>>;

/// The frames to read, and the wanted items that are in no pack.
type Located = (Vec<Piece>, Vec<(Kind, Hash)>);

/// A frame that is wanted.
struct Piece {
    pack: Hash,
    index: Arc<PackIndex>,
    number: u32,
    frame: FrameInfo,
}

impl<O: PackBytes> Packed<O> {
    pub fn new(objects: O, timeout: Duration, index_dir: Option<PathBuf>) -> Packed<O> {
        Packed {
            objects,
            timeout,
            index_dir,
            layouts: Mutex::default(),
            indices: Mutex::default(),
            indices_bytes: AtomicU64::new(0),
        }
    }

    pub fn objects(&self) -> &O {
        &self.objects
    }

    /// Returns how long a call without a deadline of its own may take.
    pub fn patience(&self) -> Duration {
        self.timeout
    }
}

impl<O: Objects> Packed<O> {
    pub fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        let parsed = ImageName::parse(name).map_err(|e| SourceError::Unsupported {
            at: self.objects.at().into(),
            reason: e.to_string(),
        })?;
        let what = format!("image {parsed}");
        let path = format!("tags/{}", floe_store::tag_file_name(&parsed));
        let bytes = self.objects.get(
            &path,
            TAG_FILE_BYTES_MAX,
            &what,
            &Request::demand(self.timeout),
        )?;
        let tag = floe_store::parse_tag_file(&bytes);
        tag.map(|(id, _)| id)
            .ok_or_else(|| self.invalid(&what, &"it is no tag file (an id and a time)"))
    }

    pub fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        let what = format!("the manifest of image {}", id.short());
        let request = Request::demand(self.timeout);
        let bytes = self.objects.get(
            &format!("images/{id}"),
            MANIFEST_BYTES_MAX as u64,
            &what,
            &request,
        )?;
        Manifest::decode_verified(&bytes, id).map_err(|e| self.invalid(&what, &e))
    }

    pub fn layout(&self, id: &Hash) -> Result<Arc<Layout>, SourceError> {
        self.layout_within(id, &Request::demand(self.timeout))
    }

    fn layout_within(&self, id: &Hash, request: &Request) -> Result<Arc<Layout>, SourceError> {
        if let Some(layout) = self.layouts.lock().get(id) {
            return Ok(layout.clone());
        }
        let what = format!("the layout of image {}", id.short());
        let bytes = self.objects.get(
            &format!("images/{id}.layout"),
            LAYOUT_BYTES_MAX as u64,
            &what,
            request,
        )?;
        let layout = Arc::new(Layout::decode(&bytes).map_err(|e| self.invalid(&what, &e))?);
        self.layouts.lock().insert(*id, layout.clone());
        Ok(layout)
    }

    pub fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        check_count(self.objects.at(), wants)?;
        let clock = Deadline::new(request);
        let mut given = HashSet::new();
        match self.read_once(image, wants, &clock, &mut given, sink) {
            // An image that was published again has a new layout, and its old packs may be gone.
            Err(SourceError::Missing { .. }) if self.forget_layout(image) => {
                let rest: Vec<_> = wants
                    .iter()
                    .filter(|(_, hash)| !given.contains(hash))
                    .copied()
                    .collect();
                self.read_once(image, &rest, &clock, &mut given, sink)
            }
            other => other,
        }
    }

    /// Forgets a layout; returns whether there was one.
    fn forget_layout(&self, image: &Hash) -> bool {
        self.layouts.lock().remove(image).is_some()
    }

    fn read_once(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
        given: &mut HashSet<Hash>,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let layout = self.layout_within(image, &clock.request())?;
        self.read_of(&layout, wants, clock, given, sink)
    }
}

impl<O: PackBytes> Packed<O> {
    /// Reads items from the packs of a layout; those that are `given` reach the sink no more.
    pub fn read_of(
        &self,
        layout: &Layout,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
        given: &mut HashSet<Hash>,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let (pieces, missing) = self.locate(layout, wants, clock)?;
        let ranges: Vec<_> = runs(&pieces).map(range_of).collect();
        self.objects.about_to_read(&ranges, &clock.request())?;
        let mut wrong = None;
        for run in runs(&pieces) {
            let (pack, range) = range_of(run);
            let (start, len) = (range.start, range.end - range.start);
            let what = format!("pack {} at {start}+{len}", pack.short());
            let request = clock.request();
            let bytes = self.objects.pack_range(&pack, range, &what, &request)?;
            if bytes.len() as u64 != len {
                return Err(self.invalid(&what, &format!("{} bytes came", bytes.len())));
            }
            for piece in run {
                let at = (piece.frame.offset - start) as usize;
                if let Err(e) = unpack(
                    piece,
                    &bytes[at..at + piece.frame.len as usize],
                    given,
                    sink,
                ) {
                    wrong = Some(self.invalid(
                        &format!("frame {} of pack {}", piece.number, piece.pack),
                        &e,
                    ));
                }
            }
        }
        match (wrong, missing.first()) {
            (Some(error), _) => Err(error),
            (None, Some(first)) => Err(missing_items(self.objects.at(), missing.len(), first)),
            (None, None) => Ok(()),
        }
    }

    /// Returns the frames that hold the wanted items, ordered by pack and place, and the items that are in no pack. Fetches
    /// indices only while some items aren't found in those that are here.
    fn locate(
        &self,
        layout: &Layout,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
    ) -> Result<Located, SourceError> {
        let slots = self.slots(layout);
        let mut pieces = Vec::new();
        let mut seen = BTreeSet::new();
        let mut rest = wants.to_vec();
        for load in [false, true] {
            for (number, (pack, slot)) in slots.iter().enumerate() {
                if rest.is_empty() {
                    break;
                }
                let index = match (load, slot.try_lock().and_then(|here| here.clone())) {
                    (_, Some(index)) => index,
                    (false, None) => continue,
                    (true, None) => self.index(pack, slot, clock)?,
                };
                rest.retain(|want| {
                    let Some((place, frame)) = frame_of(&index, want) else {
                        return true;
                    };
                    if seen.insert((number, place)) {
                        let piece = Piece {
                            pack: pack.id,
                            index: index.clone(),
                            number: place,
                            frame,
                        };
                        pieces.push((number, piece));
                    }
                    false
                });
            }
        }
        pieces.sort_by_key(|(pack, piece)| (*pack, piece.frame.offset));
        Ok((pieces.into_iter().map(|(_, piece)| piece).collect(), rest))
    }

    fn slots<'a>(&self, layout: &'a Layout) -> Vec<(&'a PackRef, Arc<IndexSlot>)> {
        let mut indices = self.indices.lock();
        let packs = layout.packs.iter();
        packs
            .map(|pack| (pack, indices.entry(pack.id).or_default().clone()))
            .collect()
    }

    /// Returns those of the items of which the indices in memory say where they lie: the pack, and the range of the item's frame. Nothing is
    /// read for it, and nobody waited for.
    pub fn known(
        &self,
        layout: &Layout,
        wants: &[(Kind, Hash)],
    ) -> Vec<((Kind, Hash), Hash, Range<u64>)> {
        let (mut found, mut rest) = (Vec::new(), wants.to_vec());
        for (pack, slot) in self.slots(layout) {
            let Some(index) = slot.try_lock().and_then(|here| here.clone()) else {
                continue;
            };
            rest.retain(|want| {
                let Some((_, frame)) = frame_of(&index, want) else {
                    return true;
                };
                let range = frame.offset..frame.offset + u64::from(frame.len);
                found.push((*want, pack.id, range));
                false
            });
        }
        found
    }

    /// Returns where the frames of these items lie, in the order of the items, each frame once. Items that are in no pack are left out.
    pub fn places(
        &self,
        layout: &Layout,
        wants: &[(Kind, Hash)],
        clock: &Deadline,
    ) -> Result<Vec<(Hash, Range<u64>)>, SourceError> {
        let (pieces, _) = self.locate(layout, wants, clock)?;
        let mut frames = HashMap::new();
        for (number, piece) in pieces.iter().enumerate() {
            for hash in piece.index.frame_hashes(piece.number) {
                frames.entry(*hash).or_insert(number);
            }
        }
        let mut seen = BTreeSet::new();
        let of = wants.iter().filter_map(|(_, hash)| frames.get(hash));
        let each_once = of.filter(|number| seen.insert(**number));
        Ok(each_once
            .map(|number| {
                let piece = &pieces[*number];
                let start = piece.frame.offset;
                (piece.pack, start..start + u64::from(piece.frame.len))
            })
            .collect())
    }

    /// Whether all frames are right that lie wholly in a range of a pack, of which these are the bytes. Nothing is read for it: as long as
    /// the pack's index is not in memory nobody knows, and they count as right.
    pub fn fits(&self, pack: &Hash, range: &Range<u64>, bytes: &[u8]) -> bool {
        let slot = self.indices.lock().get(pack).cloned();
        let index = slot.and_then(|slot| slot.try_lock().and_then(|here| here.clone()));
        let Some(index) = index else {
            return true;
        };
        let is_right = |(number, frame): (u32, &FrameInfo)| {
            let end = frame.offset + u64::from(frame.len);
            if frame.offset < range.start || end > range.end {
                return true;
            }
            let piece = Piece {
                pack: *pack,
                index: index.clone(),
                number,
                frame: *frame,
            };
            let at = (frame.offset - range.start) as usize;
            let packed = bytes.get(at..at + frame.len as usize);
            packed.is_some_and(|packed| {
                unpack(&piece, packed, &mut HashSet::new(), &mut |_, _, _| ()).is_ok()
            })
        };
        (0..).zip(index.frames()).all(is_right)
    }

    fn index(
        &self,
        pack: &PackRef,
        slot: &IndexSlot,
        clock: &Deadline,
    ) -> Result<Arc<PackIndex>, SourceError> {
        // whoever brings the index may have more time than this caller
        let in_time = slot.try_lock_for(clock.request().deadline);
        let mut here = in_time.ok_or_else(|| SourceError::Timeout {
            at: self.objects.at().into(),
            what: format!("the index of pack {}", pack.id.short()),
            after: clock.request.deadline,
        })?;
        if let Some(index) = &*here {
            return Ok(index.clone());
        }
        // Others wait at the lock, and whoever reads anything of this pack later needs it: a demand, whoever happens to be first.
        let mut request = clock.request();
        request.who.purpose = Purpose::Demand;
        let index = Arc::new(self.load_index(pack, &request)?);
        self.make_room_for(u64::from(pack.index_bytes));
        *here = Some(index.clone());
        Ok(index)
    }

    /// Forgets the indices in memory if there are too many with one of so many bytes: a layout is a stranger's, and may name a million packs.
    /// Reads that are under way have those that they need.
    fn make_room_for(&self, bytes: u64) {
        if self.indices_bytes.fetch_add(bytes, Relaxed) + bytes <= INDICES_BYTES_MAX {
            return;
        }
        self.indices_bytes.store(bytes, Relaxed);
        for slot in self.indices.lock().values() {
            // one that is locked is being looked into, or brought
            if let Some(mut here) = slot.try_lock() {
                *here = None;
            }
        }
    }

    /// Returns a pack's index from the disk, or fetches it. It isn't kept in memory.
    fn load_index(&self, pack: &PackRef, request: &Request) -> Result<PackIndex, SourceError> {
        let what = format!("the index of pack {}", pack.id.short());
        let kept = self
            .index_dir
            .as_ref()
            .map(|dir| dir.join(format!("{}.index", pack.id)));
        let from_disk = kept
            .as_deref()
            .and_then(|path| std::fs::read(path).ok())
            .and_then(|b| PackIndex::decode(&b, pack).ok());
        let index = match from_disk {
            Some(index) => index,
            None => {
                pack.check().map_err(|e| self.invalid(&what, &e))?;
                let len = u64::from(pack.index_bytes);
                let range = pack.index_offset..pack.index_offset + len;
                let bytes = self.objects.pack_range(&pack.id, range, &what, request)?;
                let index = PackIndex::decode(&bytes, pack).map_err(|e| self.invalid(&what, &e))?;
                if let Some(path) = kept
                    && let Err(error) = keep(&path, &bytes)
                {
                    tracing::warn!(%error, path = %path.display(), "cannot keep a pack's index, or remove old ones; what is missing is fetched again");
                }
                index
            }
        };
        Ok(index)
    }

    /// Returns the items of a pack, in the order of the file.
    pub fn pack_items(
        &self,
        pack: &PackRef,
        request: &Request,
    ) -> Result<Vec<(Kind, Hash)>, SourceError> {
        let index = self.load_index(pack, request)?;
        let frames = (0..).zip(index.frames());
        let items = frames.flat_map(|(number, frame)| {
            let hashes = index.frame_hashes(number).iter();
            hashes.map(|hash| (frame.kind, *hash))
        });
        Ok(items.collect())
    }

    pub fn invalid(&self, what: &str, reason: &dyn std::fmt::Display) -> SourceError {
        SourceError::Invalid {
            at: self.objects.at().into(),
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// Returns the frame that an item is in, and its number; `None` if the pack does not have the item.
fn frame_of(index: &PackIndex, (kind, hash): &(Kind, Hash)) -> Option<(u32, FrameInfo)> {
    let number = index.lookup(hash)?.frame;
    let frame = index.frame(number).filter(|frame| frame.kind == *kind)?;
    Some((number, frame))
}

/// Returns whether the frame at bytes `frame` is read with those before it, which lie between `start` and `end`.
fn reads_along(start: u64, end: u64, frame: Range<u64>) -> bool {
    frame.start.saturating_sub(end) <= GAP_BYTES_MAX
        && frame.end.saturating_sub(start) <= RANGE_BYTES_MAX
}

/// Splits pieces into runs that are read together: in one pack, and close to each other.
fn runs(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    let mut start = pieces.first().map_or(0, |piece| piece.frame.offset);
    pieces.chunk_by(move |a, b| {
        let bytes =
            |piece: &Piece| piece.frame.offset..piece.frame.offset + u64::from(piece.frame.len);
        let together = a.pack == b.pack && reads_along(start, bytes(a).end, bytes(b));
        if !together {
            start = b.frame.offset;
        }
        together
    })
}

/// Returns the pack of a run, and its range there.
fn range_of(run: &[Piece]) -> (Hash, Range<u64>) {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let end = last.frame.offset + u64::from(last.frame.len);
    (first.pack, first.frame.offset..end)
}

/// What a read costs on a server of plain files, without indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeReads {
    /// Number of range requests.
    pub requests: u64,
    /// Bytes asked for, with those between the frames.
    pub bytes: u64,
}

/// Returns what reading these frames costs on a server of plain files. They must be ordered by pack and place, as
/// [`floe_store::Scope::frames_of`] returns them.
pub fn range_reads(frames: &[FramePlace]) -> RangeReads {
    let mut reads = RangeReads::default();
    let mut open: Option<(u32, Range<u64>)> = None;
    for frame in frames {
        let bytes = frame.offset..frame.offset + u64::from(frame.len);
        match &mut open {
            Some((pack, run))
                if *pack == frame.pack && reads_along(run.start, run.end, bytes.clone()) =>
            {
                reads.bytes += bytes.end - run.end;
                run.end = bytes.end;
            }
            _ => {
                reads.requests += 1;
                reads.bytes += u64::from(frame.len);
                open = Some((frame.pack, bytes));
            }
        }
    }
    reads
}

fn unpack(
    piece: &Piece,
    bytes: &[u8],
    given: &mut HashSet<Hash>,
    sink: &mut Sink<'_>,
) -> Result<(), FormatError> {
    let kind = piece.frame.kind;
    let data = decompress_frame(kind, bytes, usize::from(piece.frame.items))?;
    let mut result = Ok(());
    for (hash, item) in piece
        .index
        .frame_hashes(piece.number)
        .iter()
        .zip(data.chunks_exact(kind.raw_size()))
    {
        match kind.verify(hash, item) {
            Ok(()) if given.insert(*hash) => sink(kind, *hash, item),
            Ok(()) => {}
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Returns the path of a pack among a repository's objects.
pub(crate) fn pack_path(id: &Hash) -> String {
    let id = id.to_string();
    format!("packs/{}/{id}.pack", &id[..2])
}

/// Refuses a list that is too long for one read.
pub(crate) fn check_count(at: &str, wants: &[(Kind, Hash)]) -> Result<(), SourceError> {
    if wants.len() <= READ_ITEMS_MAX {
        return Ok(());
    }
    let reason = format!(
        "{} items in one read; at most {READ_ITEMS_MAX} are allowed, ask in parts",
        wants.len()
    );
    Err(SourceError::Unsupported {
        at: at.into(),
        reason,
    })
}

/// Makes the error for `count` items that are missing, of which `first` is one.
pub(crate) fn missing_items(at: &str, count: usize, first: &(Kind, Hash)) -> SourceError {
    let more = if count > 1 {
        format!(" and {} more items", count - 1)
    } else {
        String::new()
    };
    SourceError::Missing {
        at: at.into(),
        what: format!("{}{more}", item_name(first)),
    }
}

/// Returns an item's name for messages.
pub(crate) fn item_name((kind, hash): &(Kind, Hash)) -> String {
    format!("{} {}", kind.name(), hash.short())
}

/// A request, and the time by which it has to end.
pub(crate) struct Deadline {
    request: Request,
    until: Instant,
}

impl Deadline {
    pub fn new(request: &Request) -> Deadline {
        Deadline {
            request: *request,
            until: floe_threads::from_now(request.deadline),
        }
    }

    /// Returns when it ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns the same request with what is left of its time.
    pub fn request(&self) -> Request {
        Request {
            deadline: self.until.saturating_duration_since(Instant::now()),
            ..self.request
        }
    }
}

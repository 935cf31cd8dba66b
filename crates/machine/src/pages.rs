//! Copies of the pages of a region of memory: while they are made, at most one of each page, and as what a capture returns.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_image::CHUNK_SIZE;
use memmap2::MmapMut;

use crate::buffers::{Buffers, PAGE, stride};
use crate::process::Span;

pub(crate) static ZERO_PAGE: [u8; CHUNK_SIZE] = [0; CHUNK_SIZE];

/// The content of pages that a copy does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Zeros.
    Zero,
    /// The content of the image that the machine was restored from.
    Base,
}

/// The copied pages of a region, by chunk.
pub struct Pages {
    size: u64,
    rest: Rest,
    /// The file that contains the buffers, each as long as the region; `None` if they are anonymous memory.
    file: Option<File>,
    /// Offset of the first buffer in that file.
    start: u64,
    buffers: Vec<MmapMut>,
    entries: Vec<Entry>,
    zeroed: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    chunk: u32,
    /// `ZEROED`, or the number of the buffer in the upper 8 bits and of the page in the buffer in the lower 56 bits.
    place: u64,
}

const ZEROED: u64 = u64::MAX;
/// The bits of an entry's place that are the page in its buffer.
const PLACE_MASK: u64 = (1 << 56) - 1;

impl Pages {
    /// Makes a region of `size` bytes without any listed page.
    pub fn empty(size: u64) -> Pages {
        Pages {
            size,
            rest: Rest::Zero,
            file: None,
            start: 0,
            buffers: Vec::new(),
            entries: Vec::new(),
            zeroed: 0,
        }
    }

    /// Returns the memory file that contains the pages, if they were copied into one
    /// ([`crate::CaptureOptions::in_file`]). All memory blocks of a machine share one file.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Returns the offset in that file of a listed page, given by its index; `None` if the page is zero.
    pub fn offset(&self, index: usize) -> Option<u64> {
        let place = self.entries[index].place;
        (place != ZEROED)
            .then(|| self.start + (place >> 56) * stride(self.size) + (place & PLACE_MASK) * PAGE)
    }

    /// Returns the region's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns what the pages that are not listed contain.
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// Returns the number of listed pages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no page is listed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of listed pages that are zero: the machine wrote them, and they replace what its image has
    /// there.
    pub fn zeroed(&self) -> usize {
        self.zeroed
    }

    /// Returns all listed pages as `(chunk, content)` in the order of chunks, including those that became zero.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8; CHUNK_SIZE])> {
        self.entries.iter().map(|e| (e.chunk, self.page(e.place)))
    }

    /// Returns the listed page with this index, which must be below [`Pages::len`].
    pub fn nth(&self, index: usize) -> (u32, &[u8; CHUNK_SIZE]) {
        let entry = &self.entries[index];
        (entry.chunk, self.page(entry.place))
    }

    fn page(&self, place: u64) -> &[u8; CHUNK_SIZE] {
        if place == ZEROED {
            return &ZERO_PAGE;
        }
        let start = (place & PLACE_MASK) as usize * CHUNK_SIZE;
        self.buffers[(place >> 56) as usize][start..start + CHUNK_SIZE]
            .try_into()
            .expect("the slice has a page's length")
    }
}

/// Why pages could not be copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// There are more than this many bytes of pages to keep.
    TooLarge(u64),
    /// The other process has ended, or the kernel refused.
    Io(io::Error),
}

impl From<io::Error> for CopyError {
    fn from(e: io::Error) -> Self {
        CopyError::Io(e)
    }
}

/// How many bytes of copies all regions of a machine may have together.
pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Budget> {
        let used = AtomicU64::new(0);
        Arc::new(Budget { used, limit })
    }

    /// Returns an error if copies of so many bytes are too many.
    pub fn check(&self, bytes: u64) -> Result<(), CopyError> {
        match bytes <= self.limit {
            true => Ok(()),
            false => Err(CopyError::TooLarge(self.limit)),
        }
    }

    /// Returns how many bytes may be added.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn take_page(&self) -> Result<(), CopyError> {
        match self.used.fetch_add(PAGE, Ordering::Relaxed) < self.limit {
            true => Ok(()),
            false => Err(CopyError::TooLarge(self.limit)),
        }
    }
}

/// What is known of one page of a region while copies are made.
///
/// A page that once has a slot in a buffer keeps it, whatever becomes of the page: a later copy replaces the earlier one, and no buffer
/// gets more pages than the region has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Place {
    /// There is a slot: in the lower bits are its buffer and its page, as in an [`Entry`].
    const SLOT: u64 = 1 << 63;
    /// What is known of the page is still so.
    const VALID: u64 = 1 << 62;
    /// The page is zero.
    const ZERO: u64 = 1 << 61;
    /// The page is to be copied.
    const LISTED: u64 = 1 << 60;
    /// The buffer and the page in it.
    const WHERE: u64 = Self::LISTED - 1;

    /// Returns whether there is room for a copy.
    pub fn has_slot(self) -> bool {
        self.0 & Self::SLOT != 0
    }

    /// Returns whether the copy is the page's content, as far as is known.
    pub fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Returns whether the page was zero when it was copied.
    pub fn is_zero(self) -> bool {
        self.0 & Self::ZERO != 0
    }

    /// Returns whether the page is to be copied.
    pub fn is_listed(self) -> bool {
        self.0 & Self::LISTED != 0
    }

    /// Forgets what is known of the page.
    pub fn forget(&mut self) {
        self.0 &= !(Self::VALID | Self::LISTED);
    }

    /// Forgets what is known of the page, which is to be copied.
    pub fn list(&mut self) {
        self.forget();
        self.0 |= Self::LISTED;
    }

    /// Returns what the entry of a page says, if the page has one.
    fn entry(self, rest: Rest) -> Option<u64> {
        match (self.is_valid(), self.is_zero()) {
            (true, false) => Some(self.0 & Self::WHERE),
            (true, true) if rest == Rest::Base => Some(ZEROED),
            _ => None,
        }
    }
}

/// Copies of a region's pages that are being made.
pub(crate) struct Copies {
    size: u64,
    rest: Rest,
    buffers: Buffers,
    /// For each buffer the number of its slots that are in use.
    taken: Vec<usize>,
    places: Vec<Place>,
    budget: Arc<Budget>,
}

/// A part of a region that one thread looks at, with its places.
pub(crate) struct Block<'a> {
    pub span: Span,
    pub places: &'a mut [Place],
}

impl Copies {
    /// Makes room for the copies of a region of `size` bytes; memory is allocated when it is needed.
    pub fn new(
        size: u64,
        rest: Rest,
        file: Option<&File>,
        budget: &Arc<Budget>,
    ) -> io::Result<Copies> {
        let buffers = Buffers::new(size, file)?;
        Ok(Copies {
            size,
            rest,
            taken: vec![0; buffers.maps.len()],
            buffers,
            places: vec![Place::default(); (size / PAGE) as usize],
            budget: budget.clone(),
        })
    }

    /// Allocates memory for about so many more bytes, so that a paused guest need not wait for it.
    pub fn make_room(&self, bytes: u64) {
        self.buffers
            .make_room(&self.taken, bytes, self.budget.left());
    }

    /// Returns how many bytes of memory the copies have already, of pages that are copied again too.
    pub fn bytes(&self) -> u64 {
        self.taken.iter().sum::<usize>() as u64 * PAGE
    }

    /// Forgets what was copied.
    pub fn forget(&mut self) {
        forget(&mut self.places);
    }

    /// Splits the copies for threads that each keep pages, and take parts of the region from one list. The spans must be in
    /// the order of their offsets and lie in the region, without an overlap.
    pub fn split(&mut self, spans: Vec<Span>) -> (Vec<Keeper<'_>>, Vec<Block<'_>>) {
        let budget: &Budget = &self.budget;
        let maps = &mut self.buffers.maps;
        let bases: Vec<Base> = maps.iter_mut().map(|map| Base(map.as_mut_ptr())).collect();
        let keepers = self.taken.iter_mut().enumerate();
        let keepers = keepers.map(|(number, taken)| Keeper {
            number: number as u64,
            taken,
            bases: bases.clone(),
            budget,
        });
        let (mut places, mut at) = (&mut self.places[..], 0);
        let cut = |span: Span| {
            let (_, rest) =
                std::mem::take(&mut places).split_at_mut(((span.offset - at) / PAGE) as usize);
            let (own, rest) = rest.split_at_mut((span.len / PAGE) as usize);
            (places, at) = (rest, span.offset + span.len);
            Block { span, places: own }
        };
        let blocks = spans.into_iter().map(cut).collect();
        (keepers.collect(), blocks)
    }

    /// Returns the copies as what was captured.
    pub fn into_pages(self) -> Pages {
        let places = self.places.iter().zip(0..);
        let entry = |(place, chunk): (&Place, u32)| {
            let place = place.entry(self.rest)?;
            Some(Entry { chunk, place })
        };
        let entries: Vec<Entry> = places.filter_map(entry).collect();
        Pages {
            size: self.size,
            rest: self.rest,
            file: self.buffers.file,
            start: self.buffers.start,
            buffers: self.buffers.maps,
            zeroed: entries.iter().filter(|e| e.place == ZEROED).count(),
            entries,
        }
    }
}

/// Forgets what is known of pages.
pub(crate) fn forget(places: &mut [Place]) {
    places.iter_mut().for_each(Place::forget);
}

/// The first byte of a buffer, in which each page has a slot of its own.
#[derive(Clone, Copy)]
struct Base(*mut u8);

// SAFETY: it is used by `Keeper::keep` only, which writes to the slot of a place that its caller holds exclusively.
unsafe impl Send for Base {}

/// Keeps pages for one thread: new ones in the thread's own buffer, others where they are.
pub(crate) struct Keeper<'a> {
    number: u64,
    taken: &'a mut usize,
    bases: Vec<Base>,
    budget: &'a Budget,
}

impl Keeper<'_> {
    /// Copies a page of the region, or notes that it is zero (`None`). A page must be valid and whole during the call.
    pub fn keep(&mut self, place: &mut Place, page: Option<*const u8>) -> Result<(), CopyError> {
        place.forget();
        let Some(page) = page else {
            place.0 |= Place::VALID | Place::ZERO;
            return Ok(());
        };
        if !place.has_slot() {
            self.budget.take_page()?;
            place.0 = Place::SLOT | (self.number << 56) | *self.taken as u64;
            *self.taken += 1;
        }
        let slot = place.0 & Place::WHERE;
        let base = self.bases[(slot >> 56) as usize].0;
        // SAFETY: the caller vouches for the page, which is another process's, or a buffer of this thread. The slot lies in
        // its buffer, which has as many as the region has pages, each given to one place once; the caller holds that place,
        // and nobody else writes or reads there as long as the copies are split.
        unsafe {
            let to = base.add((slot & PLACE_MASK) as usize * CHUNK_SIZE);
            std::ptr::copy_nonoverlapping(page, to, CHUNK_SIZE);
        }
        place.0 = (place.0 & !Place::ZERO) | Place::VALID;
        Ok(())
    }
}

//! Where an ingest gets its bytes, one segment (4 MiB) at a time. Workers pull segments; only what must be in order is done
//! under a feed's lock.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, SEGMENT_SPAN};
use parking_lot::Mutex;
use rustix::fs::{Advice, SeekFrom};

use crate::StoreError;

/// One segment's content. Its bytes are in the worker's buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// All zero; the buffer isn't used.
    Hole,
    /// The segment's first chunks, this many of them, padded with zeros; the rest of the segment is zero.
    Whole(usize),
    /// Single chunks, by their numbers in the segment, one after another in the buffer; the other chunks are the base's.
    Pages(Vec<u16>),
}

pub(super) trait Feed: Sync {
    /// Returns the next segment's number and content; `None` at the end. `buffer` has 4 MiB.
    fn next(&self, buffer: &mut [u8]) -> Result<Option<(u64, Content)>, StoreError>;
}

/// Returns how many bytes and chunks segment `number` has in a region of `size` bytes.
fn span(number: u64, size: u64) -> (usize, usize) {
    let bytes = (size - number * SEGMENT_SPAN).min(SEGMENT_SPAN) as usize;
    (bytes, bytes.div_ceil(CHUNK_SIZE))
}

/// Returns the next data of a file of `size` bytes at or after `from`, as [start, end); `None` if there is none. Everything is
/// data if the file system can't find holes.
pub fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
            return Ok(Some((from, size)));
        }
        Err(e) => return Err(e.into()),
    };
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        Err(_) => Ok(Some((start, size))),
    }
}

/// A file or block device that all workers read at once. It finds holes without reading them.
pub(super) struct FileFeed {
    pub file: File,
    pub path: PathBuf,
    pub size: u64,
    next: AtomicU64,
    /// How many bytes beyond each read the kernel is asked to read ahead.
    ahead: u64,
}

impl FileFeed {
    pub fn new(file: File, path: PathBuf, size: u64, workers: usize) -> FileFeed {
        // This is only advice: if it is refused, reads are slower.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        FileFeed {
            file,
            path,
            size,
            next: AtomicU64::new(0),
            ahead: workers as u64 * SEGMENT_SPAN,
        }
    }

    fn read(&self, number: u64, buffer: &mut [u8]) -> io::Result<Content> {
        let start = number * SEGMENT_SPAN;
        let (bytes, chunks) = span(number, self.size);
        let end = start + bytes as u64;
        let buffer = &mut buffer[..chunks * CHUNK_SIZE];
        let mut at = start;
        while at < end {
            let (from, to) = match next_data(&self.file, at, self.size)? {
                Some((from, to)) if from < end => (from, to.min(end)),
                _ => (end, end),
            };
            if at == start && from == end {
                return Ok(Content::Hole);
            }
            buffer[(at - start) as usize..(from - start) as usize].fill(0);
            self.file.read_exact_at(
                &mut buffer[(from - start) as usize..(to - start) as usize],
                from,
            )?;
            at = to;
        }
        buffer[bytes..].fill(0);
        if let Some(len) = std::num::NonZeroU64::new(SEGMENT_SPAN) {
            let _ =
                rustix::fs::fadvise(&self.file, start + self.ahead, Some(len), Advice::WillNeed);
        }
        Ok(Content::Whole(chunks))
    }
}

impl Feed for FileFeed {
    fn next(&self, buffer: &mut [u8]) -> Result<Option<(u64, Content)>, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number * SEGMENT_SPAN >= self.size {
            return Ok(None);
        }
        let content = self.read(number, buffer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => StoreError::Invalid {
                what: format!(
                    "{} became shorter while it was read; stop its writer",
                    self.path.display()
                ),
            },
            _ => StoreError::io("read", &self.path, e),
        })?;
        Ok(Some((number, content)))
    }
}

/// Anything that can be read once, from start to end.
pub(super) struct ReaderFeed<R> {
    pub size: u64,
    pub state: Mutex<(R, u64)>,
}

impl<R: Read + Send> Feed for ReaderFeed<R> {
    fn next(&self, buffer: &mut [u8]) -> Result<Option<(u64, Content)>, StoreError> {
        let mut state = self.state.lock();
        let number = state.1;
        if number * SEGMENT_SPAN >= self.size {
            return Ok(None);
        }
        state.1 += 1;
        let (bytes, chunks) = span(number, self.size);
        state
            .0
            .read_exact(&mut buffer[..bytes])
            .map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => StoreError::Invalid {
                    what: format!(
                        "the input ended before its {} bytes; send it again",
                        self.size
                    ),
                },
                _ => StoreError::io("read", "the input", e),
            })?;
        buffer[bytes..chunks * CHUNK_SIZE].fill(0);
        Ok(Some((number, Content::Whole(chunks))))
    }
}

/// Single pages, in ascending order.
pub(super) struct PagesFeed<I, P> {
    pub size: u64,
    pub state: Mutex<PagesState<I, P>>,
}

pub(super) struct PagesState<I, P> {
    pub pages: I,
    /// A page that was taken from the iterator and belongs to the next segment.
    pub ahead: Option<(u64, P)>,
    pub last: Option<u64>,
}

impl<I: Iterator<Item = io::Result<(u64, P)>>, P: AsRef<[u8]>> PagesState<I, P> {
    fn pull(&mut self, size: u64) -> Result<Option<(u64, P)>, StoreError> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        let Some(page) = self.pages.next() else {
            return Ok(None);
        };
        let (index, page) = page.map_err(|e| StoreError::io("read", "the pages", e))?;
        let invalid = |what| Err(StoreError::Invalid { what });
        if self.last.is_some_and(|last| index <= last) {
            return invalid(format!(
                "page {index} comes after page {}; sort the pages",
                self.last.unwrap_or(0)
            ));
        }
        if index >= size.div_ceil(CHUNK_SIZE as u64) {
            return invalid(format!(
                "page {index} lies beyond the region's {size} bytes"
            ));
        }
        if page.as_ref().len() != CHUNK_SIZE {
            return invalid(format!(
                "page {index} has {} bytes instead of {CHUNK_SIZE}",
                page.as_ref().len()
            ));
        }
        self.last = Some(index);
        Ok(Some((index, page)))
    }
}

impl<I: Iterator<Item = io::Result<(u64, P)>> + Send, P: AsRef<[u8]> + Send> Feed
    for PagesFeed<I, P>
{
    fn next(&self, buffer: &mut [u8]) -> Result<Option<(u64, Content)>, StoreError> {
        let mut state = self.state.lock();
        let per = CHUNKS_PER_SEGMENT as u64;
        let mut numbers = Vec::new();
        let mut segment = None;
        while let Some((index, page)) = state.pull(self.size)? {
            if *segment.get_or_insert(index / per) != index / per {
                state.ahead = Some((index, page));
                break;
            }
            buffer[numbers.len() * CHUNK_SIZE..][..CHUNK_SIZE].copy_from_slice(page.as_ref());
            numbers.push((index % per) as u16);
        }
        // Bytes of the last page beyond the region's end don't belong to it.
        if let Some(&last) = numbers.last()
            && let Some(segment) = segment
        {
            let end = (segment * per + u64::from(last) + 1) * CHUNK_SIZE as u64;
            if end > self.size {
                let over = (end - self.size) as usize;
                let filled = numbers.len() * CHUNK_SIZE;
                buffer[filled - over..filled].fill(0);
            }
        }
        Ok(segment.map(|segment| (segment, Content::Pages(numbers))))
    }
}

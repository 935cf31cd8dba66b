//! Reads another process's memory: finds the pages that must be kept, and copies those that are not zero.
//!
//! RAM after a cold start is a memfd, which this process maps and reads in place. RAM of a restored machine is a private
//! mapping of the image's file: the machine wrote exactly those pages that `/proc/PID/pagemap` shows as present or
//! swapped with bit 61 (page of a file) clear; they are copied with `process_vm_readv` through buffers that fit into the
//! cache. Video memory is anonymous and is copied the same way. Rejected: soft-dirty bits (not in every kernel). What
//! copying most pages before the pause would take is in docs/decisions/pause.md.
//!
//! [`Memory::copy`] runs while the guest is paused, so every microsecond counts: the pages go into buffers that were
//! faulted in before, sized by a counting pass over the running guest. Nothing is hashed or compressed here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use floe_image::CHUNK_SIZE;
use memmap2::{Mmap, MmapMut};

use crate::buffers::{BLOCK_BYTES, Buffers, PAGE, stride, threads};
use crate::hurry::Hurry;

/// Pages that are copied with one system call: 256 KiB fit into the second-level cache.
const BATCH_PAGES: usize = 64;

static ZERO_PAGE: [u8; CHUNK_SIZE] = [0; CHUNK_SIZE];

/// A contiguous part of a region in the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address in the other process.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

/// The content of pages that a copy does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Zeros.
    Zero,
    /// The content of the image that the machine was restored from.
    Base,
}

/// One region of a machine in memory.
pub(crate) enum Memory {
    /// A memfd, mapped here as well.
    Shared { file: File, map: Mmap },
    /// Private pages of another process.
    Private {
        pid: u32,
        pagemap: File,
        spans: Vec<Span>,
        size: u64,
        rest: Rest,
    },
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

impl Memory {
    /// Opens a memfd of another process, given as its `/proc/PID/fd/N`.
    pub fn shared(file: File) -> io::Result<Memory> {
        // SAFETY: QEMU sealed the memfd against shrinking, so no access beyond its end can happen; its bytes change while
        // they are mapped here and are only read through raw pointers.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Memory::Shared { file, map })
    }

    /// Uses private pages of process `pid`.
    pub fn private(pid: u32, spans: Vec<Span>, size: u64, rest: Rest) -> io::Result<Memory> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        Ok(Memory::Private {
            pid,
            pagemap,
            spans,
            size,
            rest,
        })
    }

    /// Returns the region's size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Memory::Shared { map, .. } => map.len() as u64,
            Memory::Private { size, .. } => *size,
        }
    }

    /// Counts the bytes of pages that are not zero. For a running guest this is an estimate; it also fills the page
    /// tables of a shared mapping.
    pub fn count(&self) -> Result<u64, CopyError> {
        let counters = self.scan(vec![Counter(0); threads(self.size())])?;
        Ok(counters.iter().map(|c| c.0).sum())
    }

    /// Copies every page that must be kept. The guest must be paused.
    pub fn copy(&self, buffers: Buffers) -> Result<Pages, CopyError> {
        let Buffers {
            file,
            start,
            maps,
            limit,
        } = buffers;
        let rest = match self {
            Memory::Shared { .. } => Rest::Zero,
            Memory::Private { rest, .. } => *rest,
        };
        let used = AtomicU64::new(0);
        let keepers = maps.into_iter().enumerate().map(|(number, buffer)| Keeper {
            number: number as u64,
            buffer,
            pages: 0,
            entries: Vec::new(),
            zeros: rest == Rest::Base,
            used: &used,
            limit,
        });
        let mut all = Pages {
            rest,
            file,
            start,
            ..Pages::empty(self.size())
        };
        for keeper in self.scan(keepers.collect())? {
            all.buffers.push(keeper.buffer);
            all.entries.extend(keeper.entries);
        }
        Ok(all)
    }

    /// Passes every page that must be kept to one of the visitors, each of which runs in its own thread.
    fn scan<V: Visitor>(&self, visitors: Vec<V>) -> Result<Vec<V>, CopyError> {
        let blocks = self.blocks();
        let next = AtomicUsize::new(0);
        let work = |mut visitor: V| -> Result<V, CopyError> {
            let _hurry = V::URGENT.then(Hurry::begin);
            let mut batch = Batch::default();
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self {
                    Memory::Shared { file, map } => scan_shared(file, map, *block, &mut visitor)?,
                    Memory::Private { pid, pagemap, .. } => {
                        batch.run(*pid, pagemap, *block, &mut visitor)?;
                    }
                }
            }
            Ok(visitor)
        };
        floe_threads::scope(|scope| {
            let threads: Vec<_> = visitors
                .into_iter()
                .map(|visitor| (visitor, &work))
                .map(|(visitor, work)| scope.spawn("scan", move || work(visitor)))
                .collect();
            let ends = threads
                .into_iter()
                .map(|t| t.join().expect("a scan does not panic"));
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Splits the region into pieces of at most `BLOCK_BYTES`.
    fn blocks(&self) -> Vec<Span> {
        let spans = match self {
            Memory::Shared { map, .. } => vec![Span {
                address: 0,
                offset: 0,
                len: map.len() as u64,
            }],
            Memory::Private { spans, .. } => spans.clone(),
        };
        let cut = |span: Span| {
            (0..span.len)
                .step_by(BLOCK_BYTES as usize)
                .map(move |at| Span {
                    address: span.address + at,
                    offset: span.offset + at,
                    len: (span.len - at).min(BLOCK_BYTES),
                })
        };
        spans.into_iter().flat_map(cut).collect()
    }
}

/// Processes pages.
trait Visitor: Send {
    /// Whether the guest is paused meanwhile.
    const URGENT: bool;

    /// `page` points to a whole page and is valid during the call; `None` is a page of zeros that the machine wrote.
    fn visit(&mut self, chunk: u32, page: Option<*const u8>) -> Result<(), CopyError>;
}

/// Counts the bytes of pages that are not zero.
#[derive(Clone)]
struct Counter(u64);

impl Visitor for Counter {
    const URGENT: bool = false;

    fn visit(&mut self, _chunk: u32, page: Option<*const u8>) -> Result<(), CopyError> {
        self.0 += page.map_or(0, |_| PAGE);
        Ok(())
    }
}

/// Copies pages into one thread's buffer.
struct Keeper<'a> {
    number: u64,
    buffer: MmapMut,
    pages: usize,
    entries: Vec<Entry>,
    zeros: bool,
    used: &'a AtomicU64,
    limit: u64,
}

impl Visitor for Keeper<'_> {
    const URGENT: bool = true;

    fn visit(&mut self, chunk: u32, page: Option<*const u8>) -> Result<(), CopyError> {
        let Some(page) = page else {
            if self.zeros {
                self.entries.push(Entry {
                    chunk,
                    place: ZEROED,
                });
            }
            return Ok(());
        };
        if self.used.fetch_add(PAGE, Ordering::Relaxed) >= self.limit {
            return Err(CopyError::TooLarge(self.limit));
        }
        let start = self.pages * CHUNK_SIZE;
        let to = self.buffer[start..start + CHUNK_SIZE].as_mut_ptr();
        // SAFETY: the trait promises a whole readable page; the destination is a page of this thread's buffer, which has
        // room for the whole region and overlaps no memory of another process.
        unsafe { std::ptr::copy_nonoverlapping(page, to, CHUNK_SIZE) };
        self.entries.push(Entry {
            chunk,
            place: self.number << 56 | self.pages as u64,
        });
        self.pages += 1;
        Ok(())
    }
}

/// Passes on the pages of a memfd. A hole must not be read, because that would allocate a page for the guest.
///
/// `mincore` lists the resident pages of a mapping at once. What it reports as absent is a hole or is swapped, which the
/// file's `SEEK_DATA` distinguishes; to use that alone for everything would take 10 ms per GiB of the pause.
fn scan_shared(
    file: &File,
    map: &Mmap,
    block: Span,
    visitor: &mut impl Visitor,
) -> Result<(), CopyError> {
    let mut resident = vec![0u8; (block.len / PAGE) as usize];
    // SAFETY: the block lies inside of the mapping, and `resident` has a byte for each of its pages.
    let done = unsafe {
        let start = map.as_ptr().add(block.offset as usize);
        libc::mincore(start as *mut _, block.len as usize, resident.as_mut_ptr())
    };
    if done != 0 {
        return Err(io::Error::last_os_error().into());
    }
    let mut show = |page: u64| {
        // SAFETY: blocks lie inside of the mapping, and are whole pages.
        let content = unsafe { map.as_ptr().add((page * PAGE) as usize) };
        visitor.visit(page as u32, not_zero(content))
    };
    let mut page = block.offset / PAGE;
    for run in resident.chunk_by(|a, b| a & 1 == b & 1) {
        let end = page + run.len() as u64;
        if run[0] & 1 == 1 {
            (page..end).try_for_each(&mut show)?;
        } else {
            for (start, end) in data_ranges(file, page * PAGE, end * PAGE)? {
                (start / PAGE..end / PAGE).try_for_each(&mut show)?;
            }
        }
        page = end;
    }
    Ok(())
}

/// Returns where a sparse file has data between two offsets, in whole pages.
fn data_ranges(file: &File, from: u64, to: u64) -> io::Result<Vec<(u64, u64)>> {
    use rustix::fs::{SeekFrom, seek};
    let mut ranges = Vec::new();
    let mut at = from;
    while at < to {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < to => start / PAGE * PAGE,
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        at = end.next_multiple_of(PAGE).min(to);
        ranges.push((start, at));
    }
    Ok(ranges)
}

/// Returns the page, or `None` if it is zero.
fn not_zero(page: *const u8) -> Option<*const u8> {
    // SAFETY: the caller's pointer is to a whole readable page. `memcmp` is the fastest test without processor-specific
    // code, in a debug build too: 17 GB/s, most of it waiting for memory.
    let zero = unsafe { libc::memcmp(page.cast(), ZERO_PAGE.as_ptr().cast(), CHUNK_SIZE) } == 0;
    (!zero).then_some(page)
}

/// Copies private pages in batches.
struct Batch {
    pagemap: Vec<u8>,
    data: Vec<u8>,
    chunks: Vec<u32>,
    remote: Vec<libc::iovec>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            pagemap: vec![0; (BLOCK_BYTES / PAGE) as usize * 8],
            data: vec![0; BATCH_PAGES * CHUNK_SIZE],
            chunks: Vec::with_capacity(BATCH_PAGES),
            remote: Vec::with_capacity(BATCH_PAGES),
        }
    }
}

impl Batch {
    fn run(
        &mut self,
        pid: u32,
        pagemap: &File,
        block: Span,
        visitor: &mut impl Visitor,
    ) -> Result<(), CopyError> {
        let pages = (block.len / PAGE) as usize;
        pagemap.read_exact_at(&mut self.pagemap[..pages * 8], block.address / PAGE * 8)?;
        for i in 0..pages {
            let entry: [u8; 8] = self.pagemap[i * 8..i * 8 + 8]
                .try_into()
                .expect("eight bytes");
            if !is_private(u64::from_ne_bytes(entry)) {
                continue;
            }
            let address = block.address + i as u64 * PAGE;
            self.chunks.push((block.offset / PAGE) as u32 + i as u32);
            match self.remote.last_mut() {
                Some(last) if last.iov_base as u64 + last.iov_len as u64 == address => {
                    last.iov_len += CHUNK_SIZE
                }
                _ => self.remote.push(libc::iovec {
                    iov_base: address as *mut _,
                    iov_len: CHUNK_SIZE,
                }),
            }
            if self.chunks.len() == BATCH_PAGES {
                self.flush(pid, visitor)?;
            }
        }
        self.flush(pid, visitor)
    }

    fn flush(&mut self, pid: u32, visitor: &mut impl Visitor) -> Result<(), CopyError> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let want = self.chunks.len() * CHUNK_SIZE;
        let local = libc::iovec {
            iov_base: self.data.as_mut_ptr().cast(),
            iov_len: want,
        };
        // SAFETY: `local` is `self.data`, at least `want` bytes; the remote addresses are checked by the kernel.
        let got = unsafe {
            libc::process_vm_readv(
                pid as i32,
                &local,
                1,
                self.remote.as_ptr(),
                self.remote.len() as libc::c_ulong,
                0,
            )
        };
        if got != want as isize {
            return Err(if got < 0 {
                io::Error::last_os_error().into()
            } else {
                io::Error::other(format!(
                    "only {got} of {want} bytes of the guest's memory could be read"
                ))
                .into()
            });
        }
        for (page, chunk) in self.data.chunks_exact(CHUNK_SIZE).zip(&self.chunks) {
            visitor.visit(*chunk, not_zero(page.as_ptr()))?;
        }
        self.chunks.clear();
        self.remote.clear();
        Ok(())
    }
}

/// Returns whether a page is present or swapped, and is not a page of a file.
fn is_private(entry: u64) -> bool {
    entry & (1 << 63 | 1 << 62) != 0 && entry & (1 << 61) == 0
}

impl Pages {
    /// Sorts the pages; each worker's are sorted already. Runs after the pause.
    pub(crate) fn sort(&mut self) {
        self.zeroed = self.entries.iter().filter(|e| e.place == ZEROED).count();
        self.entries.sort_unstable_by_key(|e| e.chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::memory_file;
    use memmap2::MmapOptions;
    use rustix::fs::{MemfdFlags, memfd_create};

    const PAGES: usize = 9000;
    const SIZE: u64 = (PAGES * CHUNK_SIZE) as u64;

    fn memfd() -> File {
        let file: File = memfd_create("test", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(SIZE).unwrap();
        file
    }

    fn copy(memory: &Memory, limit: u64) -> Result<Pages, CopyError> {
        let expected = memory.count()?;
        let copy = |file: Option<&File>| -> Result<Pages, CopyError> {
            let buffers = Buffers::new(memory.size(), expected, limit, file).unwrap();
            let mut pages = memory.copy(buffers)?;
            pages.sort();
            Ok(pages)
        };
        let file = memory_file().unwrap();
        let pages = copy(None)?;
        // the copies are the same, and whoever has the file can read them, whatever else was copied into it
        for in_file in [copy(Some(&file))?, copy(Some(&file))?] {
            assert!(pages.iter().eq(in_file.iter()));
            let mut page = [0; CHUNK_SIZE];
            for index in 0..in_file.len() {
                page.fill(0);
                if let Some(offset) = in_file.offset(index) {
                    let file = in_file.file().unwrap();
                    file.read_exact_at(&mut page, offset).unwrap();
                }
                assert!(in_file.nth(index).1 == &page);
            }
        }
        Ok(pages)
    }

    #[test]
    fn a_shared_memory_gives_its_pages_and_keeps_its_holes() {
        let file = memfd();
        // On both sides of the border between two blocks, at both ends, and a page of zeros.
        let written = [0, 1, 4095, 4096, 4097, PAGES - 1];
        for &page in &written {
            file.write_all_at(&[page as u8 | 1; CHUNK_SIZE], (page * CHUNK_SIZE) as u64)
                .unwrap();
        }
        file.write_all_at(&[0; CHUNK_SIZE], 50 * PAGE).unwrap();
        let allocated = rustix::fs::fstat(&file).unwrap().st_blocks;
        let memory = Memory::shared(file.try_clone().unwrap()).unwrap();
        let pages = copy(&memory, u64::MAX).unwrap();
        let chunks: Vec<usize> = pages.iter().map(|(chunk, _)| chunk as usize).collect();
        assert_eq!(chunks, written);
        assert!(
            pages
                .iter()
                .all(|(chunk, content)| *content == [chunk as u8 | 1; CHUNK_SIZE])
        );
        assert_eq!(
            (pages.rest(), pages.zeroed(), pages.size()),
            (Rest::Zero, 0, SIZE)
        );
        assert_eq!(
            rustix::fs::fstat(&file).unwrap().st_blocks,
            allocated,
            "a scan makes no pages"
        );
        let small = copy(&memory, 2 * PAGE);
        assert!(matches!(small, Err(CopyError::TooLarge(limit)) if limit == 2 * PAGE));
    }

    #[test]
    fn a_private_mapping_gives_what_was_written_and_what_became_zero() {
        let file = memfd();
        let base = vec![7; CHUNK_SIZE * 20];
        file.write_all_at(&base, 0).unwrap();
        // SAFETY: nobody truncates or changes the file while it is mapped.
        let mut map = unsafe { MmapOptions::new().map_copy(&file).unwrap() };
        let read = map[3 * CHUNK_SIZE];
        assert_eq!(read, 7);
        map[5 * CHUNK_SIZE] = 1;
        map[8 * CHUNK_SIZE..9 * CHUNK_SIZE].fill(0);
        map[8000 * CHUNK_SIZE + 17] = 2;
        // The mapping is described in two parts, as the kernel may split it.
        let address = map.as_ptr() as u64;
        let cut = 100 * PAGE;
        let spans = vec![
            Span {
                address,
                len: cut,
                offset: 0,
            },
            Span {
                address: address + cut,
                len: SIZE - cut,
                offset: cut,
            },
        ];
        let memory = Memory::private(std::process::id(), spans, SIZE, Rest::Base).unwrap();
        let pages = copy(&memory, u64::MAX).unwrap();
        let chunks: Vec<u32> = pages.iter().map(|(chunk, _)| chunk).collect();
        assert_eq!(
            chunks,
            [5, 8, 8000],
            "pages that were only read are the image's"
        );
        assert_eq!(pages.zeroed(), 1);
        let content: Vec<_> = pages.iter().map(|(_, content)| content).collect();
        assert_eq!(
            (content[0][0], content[0][1], content[1], content[2][17]),
            (1, 7, &ZERO_PAGE, 2)
        );
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        let spans = vec![Span {
            address: 0x1000,
            len: PAGE,
            offset: 0,
        }];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let memory = Memory::Private {
            pid: std::process::id(),
            pagemap,
            spans,
            size: PAGE,
            rest: Rest::Zero,
        };
        assert!(
            copy(&memory, u64::MAX).unwrap().is_empty(),
            "nothing is mapped there"
        );
        assert!(Memory::private(u32::MAX, vec![], PAGE, Rest::Zero).is_err());
    }
}

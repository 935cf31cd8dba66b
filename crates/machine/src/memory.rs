//! Another process's memory: which pages count, and copies of those that are not zero.
//!
//! RAM of a cold start is a memfd, which this process maps and reads in place. RAM of a restored machine is a private
//! mapping of the image's file: what the machine wrote are exactly the pages that `/proc/PID/pagemap` shows present or
//! swapped with bit 61 (page of a file) clear; they are copied out with `process_vm_readv` through buffers that stay in the
//! cache. Video memory is anonymous and goes the same way. Rejected: soft-dirty bits (not in every kernel) and
//! userfaultfd write protection (needs QEMU's cooperation), which would let most be copied before the pause.
//!
//! [`Memory::copy`] runs while the guest is paused, so that every microsecond counts: the pages go into buffers that were
//! faulted in before, sized by a counting pass over the running guest. Nothing is hashed or compressed here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use floe_image::CHUNK_SIZE;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use parking_lot::Mutex;

/// Bytes that one thread takes at a time: small enough to share out the end evenly.
const BLOCK_BYTES: u64 = 16 << 20;
/// Pages that are copied with one system call: 256 KiB stay in the second-level cache.
const BATCH_PAGES: usize = 64;
/// More threads than this only wait for the memory.
const THREADS_MAX: usize = 4;
/// Buffers that are faulted in beyond what the counting pass found: a running guest goes on writing.
const SPARE_BYTES: u64 = 16 << 20;

const PAGE: u64 = CHUNK_SIZE as u64;
static ZERO_PAGE: [u8; CHUNK_SIZE] = [0; CHUNK_SIZE];

/// A contiguous part of a region in the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address in the other process.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// Where it is in the region, in bytes.
    pub offset: u64,
}

/// What the pages that a copy does not list hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Zeros.
    Zero,
    /// What the image that the machine was restored from holds there.
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

/// The pages of a region that were copied, by chunk.
pub struct Pages {
    size: u64,
    rest: Rest,
    buffers: Vec<MmapMut>,
    entries: Vec<Entry>,
    zeroed: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    chunk: u32,
    /// `ZEROED`, or the buffer in the upper 8 and the page in it in the lower 56 bits.
    place: u64,
}

const ZEROED: u64 = u64::MAX;

impl Pages {
    /// A region of `size` bytes without any page.
    pub fn empty(size: u64) -> Pages {
        Pages {
            size,
            rest: Rest::Zero,
            buffers: Vec::new(),
            entries: Vec::new(),
            zeroed: 0,
        }
    }

    /// Bytes of the region.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What all other pages hold.
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// Pages that are listed.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is listed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Listed pages that are all zeros: the machine wrote them and they hide what its image has there.
    pub fn zeroed(&self) -> usize {
        self.zeroed
    }

    /// `(chunk, content)` in the order of chunks, those that became zero included.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8; CHUNK_SIZE])> {
        self.entries.iter().map(|e| (e.chunk, self.page(e.place)))
    }

    fn page(&self, place: u64) -> &[u8; CHUNK_SIZE] {
        if place == ZEROED {
            return &ZERO_PAGE;
        }
        let start = (place & ((1 << 56) - 1)) as usize * CHUNK_SIZE;
        self.buffers[(place >> 56) as usize][start..start + CHUNK_SIZE]
            .try_into()
            .expect("the slice has a page's length")
    }
}

/// Why pages could not be copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// More than this many bytes are not zero.
    TooLarge(u64),
    /// The other process is gone, or the kernel refused.
    Io(io::Error),
}

impl From<io::Error> for CopyError {
    fn from(e: io::Error) -> Self {
        CopyError::Io(e)
    }
}

/// Buffers for one copy: one for each thread, faulted in already.
pub(crate) struct Buffers {
    maps: Vec<MmapMut>,
    limit: u64,
}

impl Buffers {
    /// For `expected` bytes of a region of `size` bytes; never more than `limit` are used.
    pub fn new(size: u64, expected: u64, limit: u64) -> io::Result<Buffers> {
        let threads = threads(size);
        let ready = ((expected + expected / 8 + SPARE_BYTES) / threads as u64)
            .min(size)
            .next_multiple_of(PAGE);
        let maps = (0..threads).map(|_| {
            // Address space for the worst case, one thread finding everything; memory only for what is expected.
            let map = MmapOptions::new()
                .len(size.max(PAGE) as usize)
                .no_reserve_swap()
                .map_anon()?;
            let _ = map.advise(Advice::HugePage);
            // An old kernel can't populate: the pages are faulted in by the copy, which takes a little longer.
            let _ = map.advise_range(Advice::PopulateWrite, 0, ready.min(limit) as usize);
            Ok(map)
        });
        Ok(Buffers {
            maps: maps.collect::<io::Result<_>>()?,
            limit,
        })
    }
}

fn threads(size: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores
        .min(THREADS_MAX)
        .min(size.div_ceil(BLOCK_BYTES).max(1) as usize)
}

impl Memory {
    /// A memfd of another process, by its `/proc/PID/fd/N`.
    pub fn shared(file: File) -> io::Result<Memory> {
        // SAFETY: the memfd is sealed against shrinking by QEMU, so that no access beyond its end can happen; its bytes
        // change under us and are only read through raw pointers.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Memory::Shared { file, map })
    }

    /// Private pages of process `pid`.
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

    /// Bytes of the region.
    pub fn size(&self) -> u64 {
        match self {
            Memory::Shared { map, .. } => map.len() as u64,
            Memory::Private { size, .. } => *size,
        }
    }

    /// Bytes of pages that are not zero. For a running guest an estimate; it also brings a shared mapping's page tables up.
    pub fn count(&self) -> Result<u64, CopyError> {
        let found = AtomicU64::new(0);
        self.scan(threads(self.size()), |_, _, page| {
            if page.is_some() {
                found.fetch_add(PAGE, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(found.into_inner())
    }

    /// Copy every page that counts. The guest must be paused.
    pub fn copy(&self, buffers: Buffers) -> Result<Pages, CopyError> {
        let Buffers { maps, limit } = buffers;
        let used = AtomicU64::new(0);
        let rest = match self {
            Memory::Shared { .. } => Rest::Zero,
            Memory::Private { rest, .. } => *rest,
        };
        let workers = maps.len();
        let state: Vec<_> = maps
            .into_iter()
            .map(|map| Mutex::new((map, 0usize, Vec::new())))
            .collect();
        self.scan(workers, |worker, chunk, page| {
            // Each worker locks only its own state, without contention.
            let (map, pages, entries) = &mut *state[worker].lock();
            let Some(page) = page else {
                if rest == Rest::Base {
                    entries.push(Entry {
                        chunk,
                        place: ZEROED,
                    });
                }
                return Ok(());
            };
            if used.fetch_add(PAGE, Ordering::Relaxed) >= limit {
                return Err(CopyError::TooLarge(limit));
            }
            let start = *pages * CHUNK_SIZE;
            // SAFETY: `page` points to a page that stays mapped during the scan; the destination is inside of `map`, which
            // has room for the whole region.
            unsafe {
                let to = map[start..start + CHUNK_SIZE].as_mut_ptr();
                std::ptr::copy_nonoverlapping(page, to, CHUNK_SIZE);
            }
            entries.push(Entry {
                chunk,
                place: (worker as u64) << 56 | *pages as u64,
            });
            *pages += 1;
            Ok(())
        })?;
        let mut all = Pages {
            rest,
            ..Pages::empty(self.size())
        };
        for worker in state {
            let (map, _, entries) = worker.into_inner();
            all.buffers.push(map);
            all.entries.extend(entries);
        }
        all.zeroed = all.entries.iter().filter(|e| e.place == ZEROED).count();
        Ok(all)
    }

    /// Show every page that counts to `visit`: worker, chunk, and the content unless it is zero.
    fn scan(
        &self,
        workers: usize,
        visit: impl Fn(usize, u32, Option<*const u8>) -> Result<(), CopyError> + Sync,
    ) -> Result<(), CopyError> {
        let blocks = self.blocks()?;
        let next = AtomicUsize::new(0);
        let work = |worker: usize| -> Result<(), CopyError> {
            let mut batch = Batch::default();
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self {
                    Memory::Shared { map, .. } => {
                        for offset in (block.offset..block.offset + block.len).step_by(CHUNK_SIZE) {
                            // SAFETY: blocks lie inside of the mapping, and are whole pages.
                            let page = unsafe { map.as_ptr().add(offset as usize) };
                            visit(worker, (offset / PAGE) as u32, not_zero(page))?;
                        }
                    }
                    Memory::Private { pid, pagemap, .. } => {
                        batch.run(*pid, pagemap, *block, &mut |chunk, page| {
                            visit(worker, chunk, page)
                        })?;
                    }
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..workers)
                .map(|w| (w, &work))
                .map(|(w, work)| scope.spawn(move || work(w)))
                .collect();
            let mine = work(0);
            others
                .into_iter()
                .map(|t| t.join().expect("a scan does not panic"))
                .fold(mine, |a, b| a.and(b))
        })
    }

    /// The work, in pieces of at most `BLOCK_BYTES`; what holds no data is left out.
    fn blocks(&self) -> io::Result<Vec<Span>> {
        let spans = match self {
            Memory::Shared { file, map } => data_ranges(file, map.len() as u64)?,
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
        Ok(spans.into_iter().flat_map(cut).collect())
    }
}

/// Where a sparse file has data, in whole pages. Swapped pages are data, so that nothing is lost (`mincore` would lose them).
fn data_ranges(file: &File, size: u64) -> io::Result<Vec<Span>> {
    use rustix::fs::{SeekFrom, seek};
    let mut spans = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        let start = start / PAGE * PAGE;
        let end = end.next_multiple_of(PAGE).min(size);
        spans.push(Span {
            address: 0,
            offset: start,
            len: end - start,
        });
        at = end;
    }
    Ok(spans)
}

/// The page itself unless it is zero.
fn not_zero(page: *const u8) -> Option<*const u8> {
    // SAFETY: the caller's pointer is to a whole readable page. `memcmp` is the fastest test there is without
    // processor-specific code, in a debug build too: 17 GB/s, most of it waiting for memory.
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

type Visit<'a> = &'a mut dyn FnMut(u32, Option<*const u8>) -> Result<(), CopyError>;

impl Batch {
    fn run(
        &mut self,
        pid: u32,
        pagemap: &File,
        block: Span,
        visit: Visit<'_>,
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
                self.flush(pid, visit)?;
            }
        }
        self.flush(pid, visit)
    }

    fn flush(&mut self, pid: u32, visit: Visit<'_>) -> Result<(), CopyError> {
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
            visit(*chunk, not_zero(page.as_ptr()))?;
        }
        self.chunks.clear();
        self.remote.clear();
        Ok(())
    }
}

/// Present or swapped, and not a page of a file.
fn is_private(entry: u64) -> bool {
    entry & (1 << 63 | 1 << 62) != 0 && entry & (1 << 61) == 0
}

impl Pages {
    /// Bring the pages into order; each worker's are already. Not part of the pause.
    pub(crate) fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|e| e.chunk);
    }
}

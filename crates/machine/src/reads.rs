//! Finds the pages of another process's memory that are there, and reads them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use floe_image::CHUNK_SIZE;
use memmap2::Mmap;

use crate::buffers::PAGE;
use crate::pages::{CopyError, Keeper, Place, ZERO_PAGE};
use crate::process::Span;

/// Pages that are copied with one system call: 256 KiB fit into the second-level cache.
const BATCH_PAGES: usize = 64;

/// Returns which pages of a block of a memfd are there. A hole must not be read, because that would allocate a page for the guest.
///
/// `mincore` lists the resident pages of a mapping at once. What it reports as absent is a hole or is swapped, which the
/// file's `SEEK_DATA` distinguishes; to use that alone for everything would take 10 ms per GiB of the pause.
pub(crate) fn existing(file: &File, map: &Mmap, block: Span) -> io::Result<Vec<Range<usize>>> {
    let mut resident = vec![0u8; (block.len / PAGE) as usize];
    // SAFETY: the block lies inside of the mapping, and `resident` has a byte for each of its pages.
    let done = unsafe {
        let start = map.as_ptr().add(block.offset as usize);
        libc::mincore(start as *mut _, block.len as usize, resident.as_mut_ptr())
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut page) = (Vec::new(), 0);
    for run in resident.chunk_by(|a, b| a & 1 == b & 1) {
        let pages = page..page + run.len();
        page = pages.end;
        if run[0] & 1 == 1 {
            found.push(pages);
        } else {
            let at = |page: usize| block.offset + page as u64 * PAGE;
            let ranges = data_ranges(file, at(pages.start), at(pages.end))?.into_iter();
            let index = |offset: u64| ((offset - block.offset) / PAGE) as usize;
            found.extend(ranges.map(|(start, end)| index(start)..index(end)));
        }
    }
    Ok(found)
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

/// Returns a page of a block of a memfd, or `None` if it is zero.
pub(crate) fn content(map: &Mmap, block: Span, index: usize) -> Option<*const u8> {
    // SAFETY: blocks lie inside of the mapping, and are whole pages.
    let page = unsafe { map.as_ptr().add(block.offset as usize + index * CHUNK_SIZE) };
    not_zero(page)
}

/// Returns the page, or `None` if it is zero.
fn not_zero(page: *const u8) -> Option<*const u8> {
    // SAFETY: the caller's pointer is to a whole readable page. `memcmp` is the fastest test without processor-specific
    // code, in a debug build too: 17 GB/s, most of it waiting for memory.
    let zero = unsafe { libc::memcmp(page.cast(), ZERO_PAGE.as_ptr().cast(), CHUNK_SIZE) } == 0;
    (!zero).then_some(page)
}

/// Returns which pages of a block a process has of its own, by its page tables.
pub(crate) fn private_pages(pagemap: &File, block: Span) -> io::Result<Vec<usize>> {
    let mut entries = vec![0_u8; (block.len / PAGE) as usize * 8];
    pagemap.read_exact_at(&mut entries, block.address / PAGE * 8)?;
    let entries = entries.chunks_exact(8).enumerate();
    let private = entries.filter(|(_, entry)| {
        let entry = entry.first_chunk().map_or(0, |e| u64::from_ne_bytes(*e));
        is_private(entry)
    });
    Ok(private.map(|(index, _)| index).collect())
}

/// Returns whether a page is present or swapped, and is not a page of a file.
fn is_private(entry: u64) -> bool {
    entry & (1 << 63 | 1 << 62) != 0 && entry & (1 << 61) == 0
}

/// What it means that a page can't be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Something is wrong: the process is paused, and has the page.
    IsError,
    /// It was given back, and is left out.
    Left,
}

/// Reads private pages of a block, many at once.
pub(crate) struct Batch {
    data: Vec<u8>,
    indices: Vec<usize>,
    remote: Vec<libc::iovec>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            data: vec![0; BATCH_PAGES * CHUNK_SIZE],
            indices: Vec::with_capacity(BATCH_PAGES),
            remote: Vec::with_capacity(BATCH_PAGES),
        }
    }
}

impl Batch {
    /// Adds a page to be read.
    pub fn add(&mut self, block: Span, index: usize) {
        let address = block.address + index as u64 * PAGE;
        self.indices.push(index);
        match self.remote.last_mut() {
            Some(last) if last.iov_base as u64 + last.iov_len as u64 == address => {
                last.iov_len += CHUNK_SIZE
            }
            _ => self.remote.push(libc::iovec {
                iov_base: address as *mut _,
                iov_len: CHUNK_SIZE,
            }),
        }
    }

    /// Returns whether the pages must be read before another one is added.
    pub fn is_full(&self) -> bool {
        self.indices.len() == BATCH_PAGES
    }

    /// Reads the pages and keeps them.
    pub fn keep(
        &mut self,
        pid: u32,
        unread: Unread,
        places: &mut [Place],
        keeper: &mut Keeper<'_>,
    ) -> Result<(), CopyError> {
        self.show(pid, unread, &mut |index, page| {
            keeper.keep(&mut places[index], page)
        })
    }

    /// Reads the pages and shows them.
    pub fn show(
        &mut self,
        pid: u32,
        unread: Unread,
        show: &mut impl FnMut(usize, Option<*const u8>) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        if self.indices.is_empty() {
            return Ok(());
        }
        let want = self.indices.len() * CHUNK_SIZE;
        let got = self.read(pid, want);
        let pages = match (got, unread) {
            (Ok(got), _) if got == want => self.indices.len(),
            (Ok(got), Unread::Left) => got / CHUNK_SIZE,
            (Err(e), Unread::Left) if e.raw_os_error() == Some(libc::EFAULT) => 0,
            (Err(e), _) => return Err(e.into()),
            (Ok(got), Unread::IsError) => {
                let what =
                    format!("only {got} of {want} bytes of the guest's memory could be read");
                return Err(io::Error::other(what).into());
            }
        };
        let read = self.data.chunks_exact(CHUNK_SIZE).zip(&self.indices);
        for (page, index) in read.take(pages) {
            show(*index, not_zero(page.as_ptr()))?;
        }
        self.indices.clear();
        self.remote.clear();
        Ok(())
    }

    /// Returns how many of the pages' bytes could be read.
    fn read(&mut self, pid: u32, want: usize) -> io::Result<usize> {
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
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

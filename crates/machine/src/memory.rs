//! Reads another process's memory: finds the pages that must be kept, and copies those that are not zero.
//!
//! RAM after a cold start is a memfd, which this process maps and reads in place. RAM of a restored machine is a private
//! mapping of the image's file: the machine wrote exactly those pages that `/proc/PID/pagemap` shows as present or
//! swapped with bit 61 (page of a file) clear; they are copied with `process_vm_readv` through buffers that fit into the
//! cache. Video memory is anonymous and is copied the same way. Rejected: soft-dirty bits (not in every kernel).
//!
//! [`Memory::copy`] runs while the guest is paused, so every microsecond counts: the pages go into buffers that were
//! faulted in before, sized by a counting pass over the running guest. Nothing is hashed or compressed here.
//!
//! Where the kernel notes what is written ([`Writes`]), most pages are copied before the pause: [`Memory::list`] protects
//! what was written and lists it, [`Memory::copy_listed`] copies it while the guest runs, and in the pause
//! [`Memory::copy_rest`] copies what has no copy, or an older one. A copy is used only for a page that is still there, is
//! protected still, and was copied since: everything else is copied in the pause, whatever the reason, so that what a kernel
//! does not note costs time and loses nothing.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use memmap2::Mmap;
use parking_lot::Mutex;

use crate::buffers::{PAGE, threads};
use crate::hurry::Hurry;
use crate::pages::{Block, Copies, CopyError, Keeper, Place, Rest, forget};
use crate::process::{Process, Span, whole};
use crate::reads::{Batch, Unread, content, existing, private_pages};
use crate::writes::{Found, Mapped, Unwatched, Writes, blocks};

/// One region of a machine in memory.
pub(crate) enum Memory {
    /// A memfd, mapped here as well.
    Shared { file: File, map: Mmap },
    /// Private pages of another process.
    Private {
        pid: u32,
        pagemap: File,
        /// In the order of their offsets; together they are the region.
        spans: Vec<Span>,
        size: u64,
        rest: Rest,
    },
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// All of it.
    pub bytes: u64,
    /// Pages without an older copy, which need room for one.
    pub new_bytes: u64,
}

impl Memory {
    /// Opens a memfd of another process, given as its `/proc/PID/fd/N`.
    pub fn shared(file: File) -> io::Result<Memory> {
        // SAFETY: QEMU sealed the memfd against shrinking, so no access beyond its end can happen; its bytes change while
        // they are mapped here and are only read through raw pointers.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Memory::Shared { file, map })
    }

    /// Uses private pages of process `pid`, in spans that are the whole region.
    pub fn private(pid: u32, spans: Vec<Span>, size: u64, rest: Rest) -> io::Result<Memory> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let spans = whole(spans, size).ok_or_else(|| {
            io::Error::other(format!("{size} bytes of memory are not mapped as a whole"))
        })?;
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

    /// Returns what the pages contain that a copy does not list.
    pub fn rest(&self) -> Rest {
        match self {
            Memory::Shared { .. } => Rest::Zero,
            Memory::Private { rest, .. } => *rest,
        }
    }

    /// Counts the bytes of pages that are not zero. For a running guest this is an estimate; it also fills the page
    /// tables of a shared mapping.
    pub fn count(&self) -> Result<u64, CopyError> {
        let counters = vec![0_u64; threads(self.size())];
        let counted = share(self.blocks(), counters, |sum, blocks| {
            let mut batch = Batch::default();
            let mut show = |_: usize, page: Option<*const u8>| {
                *sum += page.map_or(0, |_| PAGE);
                Ok(())
            };
            for block in blocks {
                self.show(block, &mut batch, &mut show)?;
            }
            Ok(())
        })?;
        Ok(counted.iter().sum())
    }

    /// Copies every page that must be kept. The guest must be paused.
    pub fn copy(&self, copies: &mut Copies) -> Result<(), CopyError> {
        copies.forget();
        let (keepers, blocks) = copies.split(self.blocks());
        share(blocks, keepers, |keeper, blocks| {
            let _hurry = Hurry::begin();
            let mut batch = Batch::default();
            for Block { span, places } in blocks {
                let mut keep = |index: usize, page| keeper.keep(&mut places[index], page);
                self.show(span, &mut batch, &mut keep)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Begins to note what the other process writes to this memory.
    pub fn watch(&self, process: &Process) -> Result<Writes, Unwatched> {
        match self {
            Memory::Private { spans, .. } => {
                Writes::watch(process, Mapped::Privately, spans.clone())
            }
            Memory::Shared { file, map } => {
                let find = Unwatched::at("finding QEMU's mapping of its memory");
                let spans = spans_of(process, file).map_err(find)?;
                let spans = whole(spans, map.len() as u64).ok_or(Unwatched::NotWhole)?;
                Writes::watch(process, Mapped::Shared, spans)
            }
        }
    }

    /// Takes off the protection that a process may have left which was killed while it copied ahead. Under it, pages that the guest has
    /// given back look like its own.
    pub fn unprotect(&self, process: &Process) {
        let _ = self.watch(process);
    }

    /// Counts the bytes of pages that were written since they were last listed, or never were.
    pub fn written(&self, writes: &Writes, copies: &mut Copies) -> Result<Written, CopyError> {
        let mut written = Written::default();
        let (_, blocks) = copies.split(writes.blocks());
        for Block { span, places } in blocks {
            for found in writes.written(span, false)? {
                let places = &places[found.pages];
                let new = places.iter().filter(|place| !place.has_slot()).count();
                written.bytes += places.len() as u64 * PAGE;
                written.new_bytes += new as u64 * PAGE;
            }
        }
        Ok(written)
    }

    /// Lists what was written since this was last called, to be copied next, and has the kernel note what is written from now on.
    pub fn list(&self, writes: &Writes, copies: &mut Copies) -> Result<(), CopyError> {
        let (_, blocks) = copies.split(writes.blocks());
        for Block { span, places } in blocks {
            for found in writes.written(span, true)? {
                places[found.pages].iter_mut().for_each(Place::list);
            }
        }
        Ok(())
    }

    /// Copies what was listed, while the guest goes on. Calls that read from disks and were under way when it was listed
    /// must have ended. A page that the guest has given back meanwhile is not read, which would make it anew or bring the
    /// image's page, and gets no copy.
    pub fn copy_listed(&self, writes: &Writes, copies: &mut Copies) -> Result<(), CopyError> {
        let (keepers, blocks) = copies.split(writes.blocks());
        share(blocks, keepers, |keeper, blocks| {
            let mut batch = Batch::default();
            for Block { span, places } in blocks {
                if !places.iter().any(|place| place.is_listed()) {
                    continue;
                }
                match self {
                    Memory::Shared { file, map } => {
                        for index in existing(file, map, span)?.into_iter().flatten() {
                            if places[index].is_listed() {
                                keeper.keep(&mut places[index], content(map, span, index))?;
                            }
                        }
                    }
                    Memory::Private { pid, .. } => {
                        let own = own_pages(writes, span, writes.own(span)?)?;
                        for index in own.into_iter().flatten() {
                            if places[index].is_listed() {
                                batch.add(span, index);
                            }
                            if batch.is_full() {
                                batch.keep(*pid, Unread::Left, places, keeper)?;
                            }
                        }
                        batch.keep(*pid, Unread::Left, places, keeper)?;
                    }
                }
                // what could not be read is not listed any more, and has no copy
                let left = places.iter_mut().filter(|place| place.is_listed());
                left.for_each(Place::forget);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Copies every page that must be kept and has no copy, or an older one, and forgets copies of pages that are gone. The guest must be
    /// paused.
    pub fn copy_rest(&self, writes: &Writes, copies: &mut Copies) -> Result<(), CopyError> {
        let (keepers, blocks) = copies.split(writes.blocks());
        share(blocks, keepers, |keeper, blocks| {
            let _hurry = Hurry::begin();
            let mut batch = Batch::default();
            for Block { span, places } in blocks {
                match self {
                    Memory::Shared { file, map } => {
                        rest_of_shared((file, map), writes, (span, places), keeper)?;
                    }
                    Memory::Private { pid, .. } => {
                        rest_of_private(*pid, writes, (span, places), keeper, &mut batch)?;
                    }
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Shows every page of a block that must be kept, given by its number in the block; `None` is a page of zeros that is there.
    fn show(
        &self,
        block: Span,
        batch: &mut Batch,
        show: &mut impl FnMut(usize, Option<*const u8>) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        match self {
            Memory::Shared { file, map } => {
                for pages in existing(file, map, block)? {
                    for index in pages {
                        show(index, content(map, block, index))?;
                    }
                }
                Ok(())
            }
            Memory::Private { pid, pagemap, .. } => {
                for index in private_pages(pagemap, block)? {
                    batch.add(block, index);
                    if batch.is_full() {
                        batch.show(*pid, Unread::IsError, show)?;
                    }
                }
                batch.show(*pid, Unread::IsError, show)
            }
        }
    }

    /// Splits the region into pieces of at most `BLOCK_BYTES`.
    fn blocks(&self) -> Vec<Span> {
        match self {
            Memory::Shared { map, .. } => blocks(&[Span {
                address: 0,
                offset: 0,
                len: map.len() as u64,
            }]),
            Memory::Private { spans, .. } => blocks(spans),
        }
    }
}

/// Returns where a process has a file mapped, shared.
fn spans_of(process: &Process, file: &File) -> io::Result<Vec<Span>> {
    let inode = file.metadata()?.ino();
    let mappings = process.mappings()?.into_iter();
    let ours = mappings.filter(|mapping| {
        let is_memory_file = mapping.path.starts_with("/memfd:");
        is_memory_file && mapping.inode == inode && mapping.permissions.ends_with('s')
    });
    Ok(ours
        .map(|mapping| Span {
            address: mapping.start,
            len: mapping.end - mapping.start,
            offset: mapping.offset,
        })
        .collect())
}

/// Has threads, one for each worker, take from a list until it is empty.
fn share<I: Send, W: Send>(
    items: Vec<I>,
    workers: Vec<W>,
    work: impl Fn(&mut W, &mut dyn Iterator<Item = I>) -> Result<(), CopyError> + Sync,
) -> Result<Vec<W>, CopyError> {
    let items = Mutex::new(items.into_iter());
    let run = |mut worker: W| -> Result<W, CopyError> {
        let mut next = std::iter::from_fn(|| items.lock().next());
        work(&mut worker, &mut next)?;
        Ok(worker)
    };
    floe_threads::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| (worker, &run))
            .map(|(worker, run)| scope.spawn("scan", move || run(worker)))
            .collect();
        let ends = threads
            .into_iter()
            .map(|t| t.join().expect("a scan does not panic"));
        ends.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Copies what is left of a block of a memfd. Its guest is paused.
fn rest_of_shared(
    (file, map): (&File, &Mmap),
    writes: &Writes,
    (block, places): (Span, &mut [Place]),
    keeper: &mut Keeper<'_>,
) -> Result<(), CopyError> {
    let mut unchanged = vec![false; places.len()];
    for found in writes.unchanged(block)? {
        unchanged[found.pages].fill(true);
    }
    let mut end = 0;
    for pages in existing(file, map, block)? {
        forget(&mut places[end..pages.start]);
        end = pages.end;
        for index in pages {
            let place = &mut places[index];
            let has_copy = unchanged[index] && place.is_valid();
            if has_copy && place.is_zero() {
                continue;
            }
            let page = content(map, block, index);
            // what was given back and then read is zero, and protected still
            if !has_copy || page.is_none() {
                keeper.keep(place, page)?;
            }
        }
    }
    forget(&mut places[end..]);
    Ok(())
}

/// Copies what is left of a block of a private mapping. Its guest is paused.
fn rest_of_private(
    pid: u32,
    writes: &Writes,
    (block, places): (Span, &mut [Place]),
    keeper: &mut Keeper<'_>,
    batch: &mut Batch,
) -> Result<(), CopyError> {
    let found = writes.own(block)?;
    for found in found.iter().filter(|found| found.is_written()) {
        forget(&mut places[found.pages.clone()]);
    }
    let mut end = 0;
    for pages in own_pages(writes, block, found)? {
        forget(&mut places[end..pages.start]);
        end = pages.end;
        for index in pages {
            if !places[index].is_valid() {
                batch.add(block, index);
            }
            if batch.is_full() {
                batch.keep(pid, Unread::IsError, places, keeper)?;
            }
        }
    }
    forget(&mut places[end..]);
    batch.keep(pid, Unread::IsError, places, keeper)
}

/// Returns which of the pages that a scan has found a private mapping has of its own still. Protection is taken off what is not in memory.
fn own_pages(
    writes: &Writes,
    block: Span,
    found: Vec<Found>,
) -> Result<Vec<Range<usize>>, CopyError> {
    let mut own = Vec::new();
    for found in found {
        match found.is_written() || found.is_present() {
            true => own.push(found.pages),
            // swapped out, or given back
            false => own.extend(still_own(writes, block, found.pages)?),
        }
    }
    Ok(own)
}

/// Returns those of a private mapping's protected pages that it has of its own still: the rest was given back.
fn still_own(
    writes: &Writes,
    block: Span,
    pages: Range<usize>,
) -> Result<Vec<Range<usize>>, CopyError> {
    let before = pages.start as u64 * PAGE;
    let piece = Span {
        address: block.address + before,
        offset: block.offset + before,
        len: pages.len() as u64 * PAGE,
    };
    writes.unprotect(piece)?;
    let found = writes.own(piece)?.into_iter();
    let from = pages.start;
    Ok(found
        .map(|found| from + found.pages.start..from + found.pages.end)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::memory_file;
    use crate::pages::{Budget, Pages, ZERO_PAGE};
    use floe_image::CHUNK_SIZE;
    use memmap2::MmapOptions;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

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
            let budget = Budget::new(limit);
            let mut copies = Copies::new(memory.size(), memory.rest(), file, &budget).unwrap();
            copies.make_room(expected);
            memory.copy(&mut copies)?;
            Ok(copies.into_pages())
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
    fn what_was_given_back_is_not_copied_although_it_was_left_protected() {
        let mut api = [0xaa_u64, 1 << 15, 0];
        // SAFETY: a new descriptor, which stays open as long as this process lives, and a structure that the kernel reads and writes.
        let is_noted = unsafe {
            let descriptor = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as i32;
            let call = 0xC018_AA3F_u32 as libc::Ioctl;
            descriptor >= 0 && libc::ioctl(descriptor, call, api.as_mut_ptr()) == 0
        };
        if !is_noted {
            println!("this kernel notes no writes for others (Linux 6.7 does): nothing to test");
            return;
        }
        let file = memfd();
        // SAFETY: nobody truncates or changes the file while it is mapped.
        let mut map = unsafe { MmapOptions::new().map_copy(&file).unwrap() };
        map[5 * CHUNK_SIZE] = 1;
        map[6 * CHUNK_SIZE] = 1;
        let spans = vec![Span {
            address: map.as_ptr() as u64,
            len: SIZE,
            offset: 0,
        }];
        let memory = Memory::private(std::process::id(), spans, SIZE, Rest::Base).unwrap();
        let process = Process::hold(std::process::id()).unwrap();
        // as if this process had been killed while it copied ahead
        let writes = memory.watch(&process).unwrap();
        let budget = Budget::new(u64::MAX);
        let mut copies = Copies::new(SIZE, Rest::Base, None, &budget).unwrap();
        assert!(memory.list(&writes, &mut copies).is_ok());
        std::mem::forget(writes);
        // SAFETY: a page of this mapping, which nobody refers to.
        let given_back = unsafe {
            let page = map.as_mut_ptr().add(5 * CHUNK_SIZE);
            libc::madvise(page.cast(), CHUNK_SIZE, libc::MADV_DONTNEED)
        };
        assert_eq!(given_back, 0);
        memory.unprotect(&process);
        let pages = copy(&memory, u64::MAX).unwrap();
        let chunks: Vec<u32> = pages.iter().map(|(chunk, _)| chunk).collect();
        assert_eq!(chunks, [6]);
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

//! Where copied pages go: buffers that are faulted in before a guest is paused, and files of them that outlive this process.

use crate::memory::{BLOCK_BYTES, PAGE};
use floe_image::CHUNK_SIZE;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;

/// More threads than this only wait for the memory.
const THREADS_MAX: usize = 4;
/// Buffers that are faulted in beyond what the counting pass found: a running guest goes on writing.
const SPARE_BYTES: u64 = 4 << 20;

/// Length of one buffer: one thread may find every page of a region.
pub(crate) fn stride(size: u64) -> u64 {
    size.max(PAGE)
}

/// Buffers for one copy: one for each thread, faulted in already.
pub(crate) struct Buffers {
    pub file: Option<File>,
    /// Where in that file the first of them begins.
    pub start: u64,
    pub maps: Vec<MmapMut>,
    pub limit: u64,
}

impl Buffers {
    /// For `expected` bytes of a region of `size` bytes; never more than `limit` are used. `file`: a memory file ([`memory_file`])
    /// that grows by these buffers; none of it is used before.
    pub fn new(size: u64, expected: u64, limit: u64, file: Option<&File>) -> io::Result<Buffers> {
        let threads = threads(size);
        let ready = ((expected + expected / 8 + SPARE_BYTES) / threads as u64)
            .min(size)
            .next_multiple_of(PAGE);
        let file = file.map(File::try_clone).transpose()?;
        let start = match &file {
            None => 0,
            Some(file) => {
                let start = file.metadata()?.len();
                file.set_len(start + stride(size) * threads as u64)?;
                start
            }
        };
        let maps = (0..threads as u64).map(|number| {
            // Address space for the worst case, one thread finding everything; memory only for what is expected.
            let mut options = MmapOptions::new();
            options.len(stride(size) as usize).no_reserve_swap();
            let map = match &file {
                None => options.map_anon()?,
                // SAFETY: the file is long enough for all buffers and never gets shorter; nobody else has this part of it yet,
                // and who gets it later only reads.
                Some(file) => unsafe {
                    options
                        .offset(start + number * stride(size))
                        .map_mut(file)?
                },
            };
            let _ = map.advise(Advice::HugePage);
            // An old kernel can't populate: the pages are faulted in by the copy, which takes a little longer.
            let _ = map.advise_range(Advice::PopulateWrite, 0, ready.min(limit) as usize);
            Ok(map)
        });
        Ok(Buffers {
            maps: maps.collect::<io::Result<_>>()?,
            file,
            start,
            limit,
        })
    }
}

/// An empty file for copied pages, which another process can hold.
pub(crate) fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create("floe-pages", flags)?.into())
}

/// How many threads scan a region.
pub(crate) fn threads(size: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores
        .min(THREADS_MAX)
        .min(size.div_ceil(BLOCK_BYTES).max(1) as usize)
}

/// A memory file that nobody changes any more, such as that of [`crate::Pages::file`].
pub struct MemoryFile {
    file: File,
    map: Mmap,
}

impl MemoryFile {
    /// Seals and maps it. Nobody may have it mapped for writing any more.
    pub fn seal(file: File) -> io::Result<MemoryFile> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals)?;
        // SAFETY: the seals say that nobody can write to the file or cut it off, in this process or another.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MemoryFile { file, map })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The chunk at an offset, if there is a whole one.
    pub fn chunk(&self, offset: u64) -> Option<&[u8]> {
        let from = usize::try_from(offset).ok()?;
        self.map.get(from..from.checked_add(CHUNK_SIZE)?)
    }
}

//! Buffers for copied pages, faulted in before a guest is paused, and memory files with such buffers that outlive this
//! process.

use floe_image::CHUNK_SIZE;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io;

/// Bytes of a page.
pub(crate) const PAGE: u64 = CHUNK_SIZE as u64;
/// Bytes that one thread processes at a time: small enough that all threads finish at about the same time.
pub(crate) const BLOCK_BYTES: u64 = 16 << 20;
/// Most threads: more of them would only wait for the memory.
const THREADS_MAX: usize = 4;
/// Bytes of buffers that are faulted in beyond what the counting pass found, because the running guest keeps writing.
const SPARE_BYTES: u64 = 4 << 20;

/// Returns the length of one buffer: it holds a whole region, as one thread may find every page.
pub(crate) fn stride(size: u64) -> u64 {
    size.max(PAGE)
}

/// Buffers for the copies of one region: one for each thread.
pub(crate) struct Buffers {
    pub file: Option<File>,
    /// Offset of the first buffer in the file.
    pub start: u64,
    pub maps: Vec<MmapMut>,
}

impl Buffers {
    /// Makes buffers for a region of `size` bytes. With `file`, a memory file ([`memory_file`]), the buffers are appended to
    /// that file.
    pub fn new(size: u64, file: Option<&File>) -> io::Result<Buffers> {
        let threads = threads(size);
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
            // Reserve address space for the worst case, that one thread finds everything; allocate memory only for what
            // is expected.
            let mut options = MmapOptions::new();
            options.len(stride(size) as usize).no_reserve_swap();
            let map = match &file {
                None => options.map_anon()?,
                // SAFETY: the file is long enough for all buffers and never gets shorter; nobody else has this part of it
                // yet, and whoever gets it later only reads.
                Some(file) => unsafe {
                    options
                        .offset(start + number * stride(size))
                        .map_mut(file)?
                },
            };
            let _ = map.advise(Advice::HugePage);
            Ok(map)
        });
        Ok(Buffers {
            maps: maps.collect::<io::Result<_>>()?,
            file,
            start,
        })
    }

    /// Faults in room for about `expected` bytes more than the pages that are `taken` of each buffer, but for no more than `limit` bytes.
    pub fn make_room(&self, taken: &[usize], expected: u64, limit: u64) {
        let share = (expected + expected / 8 + SPARE_BYTES) / self.maps.len() as u64;
        let share = share.next_multiple_of(PAGE).min(limit) as usize;
        for (map, taken) in self.maps.iter().zip(taken) {
            let from = taken * CHUNK_SIZE;
            let len = share.min(map.len().saturating_sub(from));
            // An old kernel can't populate the buffers; then the copy faults the pages in, which takes a little longer.
            let _ = map.advise_range(Advice::PopulateWrite, from, len);
        }
    }
}

/// Creates an empty file in memory for copied pages, which another process can hold.
pub(crate) fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create("floe-pages", flags)?.into())
}

/// Returns the number of threads that scan a region.
pub(crate) fn threads(size: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores
        .min(THREADS_MAX)
        .min(size.div_ceil(BLOCK_BYTES).max(1) as usize)
}

/// A memory file that can no longer change, such as that of [`crate::Pages::file`].
pub struct MemoryFile {
    file: File,
    map: Mmap,
}

impl MemoryFile {
    /// Seals the file and maps it. Fails if anybody has it mapped for writing.
    pub fn seal(file: File) -> io::Result<MemoryFile> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals)?;
        // SAFETY: after sealing, nobody can write to the file or truncate it, in this process or another.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MemoryFile { file, map })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns all of its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Returns the chunk at an offset; `None` if the file does not contain all of it.
    pub fn chunk(&self, offset: u64) -> Option<&[u8]> {
        let from = usize::try_from(offset).ok()?;
        self.map.get(from..from.checked_add(CHUNK_SIZE)?)
    }
}

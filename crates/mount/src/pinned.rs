//! Buffers between this process and the kernel's FUSE queue, whose pages are all in memory before the first use, and stay
//! there.
//!
//! Why: `read` of `/dev/fuse` takes a request off the kernel's queue and then copies it into the reader's buffer. If the reader
//! is killed while a page of that buffer is missing (never touched, swapped out, or shared with a child after a fork), the
//! kernel can't provide the page any more, and ends the *request* with EIO: QEMU sees a disk error because a node died. Answers
//! are copied the other way with the same risk. With the pages present the copy can't fail: a killed reader finishes it, and
//! the request waits for the next node.
//!
//! Why a page may be missing, and what is done about it:
//! - it was never touched: each page is written once when the buffer is made;
//! - it was swapped out: `mlock`. Where `RLIMIT_MEMLOCK` forbids that (systemd lets an account without privileges lock 8 MiB,
//!   twice what all request buffers need) the page is only touched;
//! - `fork` made it copy-on-write: `MADV_DONTFORK`, so that a child doesn't get it;
//! - the kernel was making a huge page of small ones, which are missing for a moment: `MADV_NOHUGEPAGE`.
//!
//! One case is left: the kernel moves this very page (compaction, NUMA balancing) at the moment of a kill. The next node
//! continues a machine that was stopped by that.

use memmap2::{Advice, MmapMut, MmapOptions};
use std::io;
use std::ops::{Deref, DerefMut};

/// Smallest page of any Linux: touching memory in these steps touches all pages.
const PAGE_BYTES: usize = 4096;

/// A buffer whose pages are present. [`crate::device::Device::read`] takes no other kind.
pub(crate) struct Pinned {
    map: MmapMut,
    locked: bool,
}

impl Pinned {
    /// Makes a buffer of `bytes` zeros. Fails only if there is no memory.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let mut map = MmapOptions::new().len(bytes).map_anon()?;
        // Each of these is a separate precaution: if one is refused, the other still helps.
        for advice in [Advice::DontFork, Advice::NoHugePage] {
            if let Err(error) = map.advise(advice) {
                tracing::debug!(?advice, %error, "the kernel takes no such advice");
            }
        }
        let locked = map.lock().is_ok();
        for page in map.chunks_mut(PAGE_BYTES) {
            // `black_box` keeps the optimiser from dropping the write because the memory is zero already.
            page[0] = std::hint::black_box(0);
        }
        Ok(Self { map, locked })
    }

    /// Returns whether the pages are locked in memory (otherwise they were touched, and may be swapped out).
    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the field `field` in `smaps` of the mapping that holds `address`.
    fn smaps(address: usize, field: &str) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if let Some((from, to)) = first.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                inside = (number(from)..number(to)).contains(&address);
            } else if inside && first == format!("{field}:") {
                return line[first.len()..].trim().to_owned();
            }
        }
        panic!("no {field} at {address:#x}");
    }

    fn kib(address: usize, field: &str) -> u64 {
        let text = smaps(address, field);
        text.trim_end_matches("kB").trim().parse().unwrap()
    }

    #[test]
    fn all_pages_of_a_buffer_are_there_before_its_first_use() {
        let bytes = (1 << 20) + 8192;
        let buffer = Pinned::new(bytes).unwrap();
        let address = buffer.as_ptr() as usize;
        assert!(kib(address, "Anonymous") >= bytes as u64 / 1024);
        if buffer.is_locked() {
            assert!(kib(address, "Locked") >= bytes as u64 / 1024);
        }
        // "dc" (don't copy): a child of a fork doesn't get the pages, so they are never copied on write.
        assert!(
            smaps(address, "VmFlags")
                .split(' ')
                .any(|flag| flag == "dc")
        );
    }
}

//! What another process writes to parts of its memory, as the kernel notes it in that process's page tables.
//!
//! The guard in QEMU has opened a userfaultfd whose write protection is asynchronous (`guard/watch.rs`). While memory is
//! registered with it, `PAGEMAP_SCAN` lists the pages that were written since they were last protected, and protects them in
//! the same call. A write to a protected page costs one more fault, in which the kernel only takes the protection off;
//! nobody is asked. Both need Linux 6.7.
//!
//! Two things are not noted, and whoever uses this must know them:
//!
//! - A system call that reads from a disk past the page cache (`O_DIRECT`) holds the pages that it reads into. What arrives
//!   there after they were protected is not noted. So between protecting pages and copying them such calls must have ended,
//!   which QEMU's `stop` sees to.
//! - Protection outlives a page. One that was given back is listed as swapped out and not written; if it was read again, it
//!   is present and not written, and has the file's content, or zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::buffers::{BLOCK_BYTES, PAGE};
use crate::process::{Process, Span};

/// Where a link to a userfaultfd points.
const DESCRIPTOR: &str = "anon_inode:[userfaultfd]";
/// `UFFD_FEATURE_WP_ASYNC`
const NOTES_WRITES: u64 = 1 << 15;
/// `UFFDIO_REGISTER`
const REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;
/// `UFFDIO_UNREGISTER`
const UNREGISTER: libc::Ioctl = 0x8010_AA01_u32 as libc::Ioctl;
/// `UFFDIO_WRITEPROTECT`
const PROTECT: libc::Ioctl = 0xC018_AA06_u32 as libc::Ioctl;
/// `UFFDIO_REGISTER_MODE_WP`
const FOR_PROTECTION: u64 = 2;
/// `PAGEMAP_SCAN`
const SCAN: libc::Ioctl = 0xC060_6610_u32 as libc::Ioctl;
/// `PM_SCAN_WP_MATCHING`: protect what is listed.
const AND_PROTECT: u64 = 1;
/// `PM_SCAN_CHECK_WPASYNC`: fail where memory is not registered.
const REGISTERED_ONLY: u64 = 2;
/// `PAGE_IS_WRITTEN`, and the categories beside it.
const WRITTEN: u64 = 1 << 1;
const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// How many regions a scan lists with one call: 12 KiB.
const REGIONS: usize = 512;

/// Why it can't be known what a process writes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unwatched {
    /// The process has no descriptor for it.
    #[error(
        "QEMU has no userfaultfd that notes writes: its kernel is older than Linux 6.7 or refuses it, or an older floe started it"
    )]
    NoDescriptor,
    /// The memory is not where it is expected.
    #[error("QEMU's memory is not mapped as a whole")]
    NotWhole,
    /// A system call failed.
    #[error("{step}: {source}")]
    Refused {
        /// What was attempted.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Unwatched {
    /// Returns a function that wraps the kernel's error together with what was being done.
    pub fn at(step: &'static str) -> impl FnOnce(io::Error) -> Unwatched {
        move |source| Unwatched::Refused { step, source }
    }
}

/// How a process has a region mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// A file, privately: what the process wrote is anonymous memory.
    Privately,
    /// A memory file, shared: everything is the file's.
    Shared,
}

/// A part of what a scan lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The pages, counted from the beginning of what was scanned.
    pub pages: Range<usize>,
    categories: u64,
}

impl Found {
    /// Returns whether they were written since they were last protected.
    pub fn is_written(&self) -> bool {
        self.categories & WRITTEN != 0
    }

    /// Returns whether they are in memory; otherwise they are swapped out, or were given back while they were protected.
    pub fn is_present(&self) -> bool {
        self.categories & PRESENT != 0
    }
}

/// Which pages a scan lists: those that have all categories of `all`, of which those in `none` are to be missing instead, and one of `any`.
#[derive(Clone, Copy)]
struct Wanted {
    all: u64,
    none: u64,
    any: u64,
}

/// A `struct uffdio_range`, followed by what some calls have behind it.
#[repr(C)]
struct Registration {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// A `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// A `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    pages_max: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    returned: u64,
}

/// A region of a process's memory whose writes are noted as long as this exists.
pub(crate) struct Writes {
    descriptor: OwnedFd,
    pagemap: File,
    mapped: Mapped,
    spans: Vec<Span>,
    /// How many of the spans are registered.
    registered: usize,
}

impl Writes {
    /// Begins to note what a process writes to a region, whose spans are in the order of their offsets. Nothing is protected yet.
    pub fn watch(process: &Process, mapped: Mapped, spans: Vec<Span>) -> Result<Writes, Unwatched> {
        let find = Unwatched::at("finding QEMU's userfaultfd");
        let descriptor = find_descriptor(process)
            .map_err(find)?
            .ok_or(Unwatched::NoDescriptor)?;
        let pagemap = File::open(format!("/proc/{}/pagemap", process.id().pid))
            .map_err(Unwatched::at("opening QEMU's page tables"))?;
        let mut writes = Writes {
            descriptor,
            pagemap,
            mapped,
            spans,
            registered: 0,
        };
        for span in writes.spans.clone() {
            // a node that was killed may have left protection behind, and memory that is not registered refuses this
            let _ = writes.call(UNREGISTER, span, 0);
            writes
                .call(REGISTER, span, FOR_PROTECTION)
                .map_err(Unwatched::at("registering QEMU's memory"))?;
            writes.registered += 1;
        }
        // a scan that this kernel does not know, or refuses, is better found out now than after a round
        if let Some(first) = writes.spans.first() {
            let page = Span {
                len: first.len.min(PAGE),
                ..*first
            };
            writes
                .written(page, false)
                .map_err(Unwatched::at("scanning QEMU's page tables"))?;
        }
        Ok(writes)
    }

    /// Returns the region in pieces of at most `BLOCK_BYTES`, in the order of their offsets.
    pub fn blocks(&self) -> Vec<Span> {
        blocks(&self.spans)
    }

    /// Lists pages of a piece that were written since they were last protected, or never were, and protects them if that is
    /// wanted. Of a private mapping, pages of the file are left out; of a shared one, those that are not in memory.
    pub fn written(&self, piece: Span, protect: bool) -> io::Result<Vec<Found>> {
        let wanted = match self.mapped {
            Mapped::Privately => Wanted {
                all: WRITTEN | OF_FILE,
                none: OF_FILE,
                any: PRESENT | SWAPPED,
            },
            Mapped::Shared => Wanted {
                all: WRITTEN | PRESENT,
                none: 0,
                any: 0,
            },
        };
        self.scan(piece, wanted, if protect { AND_PROTECT } else { 0 })
    }

    /// Lists the pages of a piece that a private mapping has of its own.
    pub fn own(&self, piece: Span) -> io::Result<Vec<Found>> {
        let wanted = Wanted {
            all: OF_FILE,
            none: OF_FILE,
            any: PRESENT | SWAPPED,
        };
        self.scan(piece, wanted, 0)
    }

    /// Lists the pages of a piece that are in memory and were not written since they were protected.
    pub fn unchanged(&self, piece: Span) -> io::Result<Vec<Found>> {
        let wanted = Wanted {
            all: PRESENT | WRITTEN,
            none: WRITTEN,
            any: 0,
        };
        self.scan(piece, wanted, 0)
    }

    /// Takes the protection off a piece. What was given back while it was protected is not listed any more then.
    pub fn unprotect(&self, piece: Span) -> io::Result<()> {
        self.call(PROTECT, piece, 0)
    }

    fn scan(&self, piece: Span, wanted: Wanted, flags: u64) -> io::Result<Vec<Found>> {
        let mut regions = [Region::default(); REGIONS];
        let mut found = Vec::new();
        let end = piece.address + piece.len;
        let mut from = piece.address;
        while from < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: flags | REGISTERED_ONLY,
                start: from,
                end,
                walk_end: 0,
                regions: regions.as_mut_ptr() as u64,
                regions_len: REGIONS as u64,
                pages_max: 0,
                inverted: wanted.none,
                mask: wanted.all,
                any_of: wanted.any,
                returned: WRITTEN | PRESENT | SWAPPED,
            };
            // SAFETY: the kernel reads and writes `scan`, and writes at most as many regions as there are.
            let got = unsafe { libc::ioctl(self.pagemap.as_raw_fd(), SCAN, &raw mut scan) };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            let listed = &regions[..(got as usize).min(REGIONS)];
            found.extend(listed.iter().map(|region| {
                let page = |address: u64| ((address - piece.address) / PAGE) as usize;
                Found {
                    pages: page(region.start)..page(region.end),
                    categories: region.categories,
                }
            }));
            // where the kernel says that its walk has ended may be wrong if the list is full
            from = match listed.last() {
                Some(last) if listed.len() == REGIONS => last.end,
                _ => end,
            };
        }
        // the page tables of a process that has ended list nothing, and can't be read
        self.pagemap
            .read_exact_at(&mut [0; 8], piece.address / PAGE * 8)?;
        Ok(found)
    }

    fn call(&self, call: libc::Ioctl, piece: Span, mode: u64) -> io::Result<()> {
        let mut registration = Registration {
            start: piece.address,
            len: piece.len,
            mode,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one structure, which is as long as the longest of these calls has it. The memory is another
        // process's; that it is protected changes nothing of what that process sees.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), call, &raw mut registration) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Takes the protection off, and registers the memory no more.
impl Drop for Writes {
    fn drop(&mut self) {
        // in pieces, because the process can't map memory, and some of its page faults wait, while such a call runs
        for piece in blocks(&self.spans[..self.registered]) {
            match self.call(UNREGISTER, piece, 0) {
                Ok(()) => {}
                // the process has ended
                Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOMEM)) => {}
                Err(error) => tracing::warn!(
                    "some of QEMU's memory stays registered, so that its guest takes longer to touch and to write it until the next \
                     capture: {error}"
                ),
            }
        }
    }
}

/// Splits spans into pieces of at most `BLOCK_BYTES`.
pub(crate) fn blocks(spans: &[Span]) -> Vec<Span> {
    let cut = |span: &Span| {
        let span = *span;
        (0..span.len)
            .step_by(BLOCK_BYTES as usize)
            .map(move |at| Span {
                address: span.address + at,
                offset: span.offset + at,
                len: (span.len - at).min(BLOCK_BYTES),
            })
    };
    spans.iter().flat_map(cut).collect()
}

/// Returns a copy of the process's descriptor that notes writes, if it has one.
fn find_descriptor(process: &Process) -> io::Result<Option<OwnedFd>> {
    for entry in std::fs::read_dir(format!("/proc/{}/fd", process.id().pid))? {
        let entry = entry?;
        // it may be closed meanwhile
        if std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == DESCRIPTOR)
            && let Some(number) = entry.file_name().to_str().and_then(|n| n.parse().ok())
        {
            let copy = process.descriptor(number)?;
            if notes_writes(&copy)? {
                return Ok(Some(copy));
            }
        }
    }
    Ok(None)
}

/// Returns whether a descriptor of this process is a userfaultfd with the feature. What the same number means in a QEMU that
/// its guest has taken over may have changed since its link was read.
fn notes_writes(descriptor: &OwnedFd) -> io::Result<bool> {
    let number = descriptor.as_raw_fd();
    let to = std::fs::read_link(format!("/proc/self/fd/{number}"))?;
    if to.as_os_str() != DESCRIPTOR {
        return Ok(false);
    }
    let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    Ok(features(&said).is_some_and(|features| features & NOTES_WRITES != 0))
}

/// Returns the features in what the kernel says of a userfaultfd: `API: version:features:known`, hexadecimal.
fn features(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix("API:"))?;
    u64::from_str_radix(line.trim().split(':').nth(1)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    #[test]
    fn the_features_of_a_userfaultfd_are_read() {
        let said = "pos:\t0\nflags:\t02004000\npending:\t0\ntotal:\t0\nAPI:\taa:8000a000:80000000000001ff\n";
        assert_eq!(features(said), Some(0x8000_a000));
        for other in ["", "pos:\t0\n", "API:\taa", "API:\taa:x:1"] {
            assert_eq!(features(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_no_such_userfaultfd_is_not_used_as_one() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(!notes_writes(&file).unwrap());
        // SAFETY: a new descriptor, which nobody else closes.
        let other = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        if other >= 0 {
            // SAFETY: as above.
            let other = unsafe { OwnedFd::from_raw_fd(other) };
            assert!(!notes_writes(&other).unwrap(), "it has no features");
        }
    }

    #[test]
    fn a_region_is_cut_into_pieces_that_keep_their_places() {
        let spans = [
            Span {
                address: 1 << 30,
                len: BLOCK_BYTES + PAGE,
                offset: 0,
            },
            Span {
                address: 1 << 20,
                len: PAGE,
                offset: BLOCK_BYTES + PAGE,
            },
        ];
        let pieces = blocks(&spans);
        assert_eq!(pieces.len(), 3);
        assert_eq!(
            (pieces[1].address, pieces[1].len),
            ((1 << 30) + BLOCK_BYTES, PAGE)
        );
        assert_eq!(pieces[1].offset, BLOCK_BYTES);
        assert_eq!(pieces[2], spans[1]);
    }
}

//! Knows what a layer's next flush has to make durable. All acknowledged flushes depend on the order of a few atomics here.
//!
//! A writer puts data into the file, sets the sectors' bits in the map, and notes that there is something to flush. A flush
//! takes what was noted, reads the bits, makes the data durable, then the bits. The promise: when a flush is answered,
//! everything that was completed before it began is durable, whoever wrote it. Two things make that hard:
//!
//! - A writer may find its bits already set by another writer, which has not marked their page yet. It must not be answered by
//!   a flush that doesn't see that page. So each page counts the writers that are setting bits in it: the count goes up
//!   *before* the bits and down after the mark, and a flush takes pages that are marked or counted.
//! - The note that there is something to flush must come *after* the bits: if it came before, a flush could take it and find
//!   nothing, and the next one would believe that there is nothing to do.
//!
//! All changes are read-modify-writes, so that whoever sees the last of them sees everything that came before any of them.
//!
//! The atomics come from `super::sync`: the standard library's here, and loom's in `interleavings`, where this very file is
//! compiled a second time and run in every possible order.

use super::sync::{AtomicBool, AtomicU8, AtomicU32, Mutex, Ordering};

/// The page has bits that its durable copy may not have.
const DIRTY: u32 = 1;
/// One writer is setting bits in the page.
const SETTING: u32 = 2;

/// The marks of one layer.
pub(crate) struct Marks {
    pages: Box<[AtomicU32]>,
    /// Something was written since a flush last took this mark.
    unflushed: AtomicBool,
    /// Lets one flush run at a time: a flush that finds nothing to do must not be answered before the one that is doing it.
    flushing: Mutex<()>,
}

impl Marks {
    /// Returns marks for a map of so many pages, with nothing to flush.
    pub(crate) fn new(pages: usize) -> Self {
        Self {
            pages: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            unflushed: AtomicBool::new(false),
            flushing: Mutex::new(()),
        }
    }

    /// Marks what was written, each as the page, the cell in it, and the cell's bits; returns how many cells were empty before.
    /// The data must be in the file already.
    pub(crate) fn mark<'a>(
        &self,
        written: impl Iterator<Item = (usize, &'a AtomicU8, u8)>,
    ) -> usize {
        let new = written.filter(|(page, cell, bits)| self.set(*page, cell, *bits));
        let new = new.count();
        self.something();
        new
    }

    /// Sets bits of a cell in a page; returns whether the cell was empty before.
    fn set(&self, page: usize, cell: &AtomicU8, bits: u8) -> bool {
        if cell.load(Ordering::Acquire) & bits == bits {
            return false;
        }
        let page = &self.pages[page];
        page.fetch_add(SETTING, Ordering::AcqRel);
        let before = cell.fetch_or(bits, Ordering::AcqRel);
        page.fetch_or(DIRTY, Ordering::AcqRel);
        page.fetch_sub(SETTING, Ordering::AcqRel);
        before == 0
    }

    /// Marks a page whose durable copy isn't known to be the same.
    pub(crate) fn differs(&self, page: usize) {
        self.pages[page].fetch_or(DIRTY, Ordering::AcqRel);
    }

    /// Notes that the next flush has something to do.
    pub(crate) fn something(&self) {
        self.unflushed.swap(true, Ordering::AcqRel);
    }

    /// Runs `make_durable` with the pages that may have changed, unless nothing was written since it last succeeded; returns
    /// whether it ran. `make_durable` must read the pages' cells before it makes the data durable, and write them after that.
    pub(crate) fn flush<E>(
        &self,
        make_durable: impl FnOnce(&[usize]) -> Result<(), E>,
    ) -> Result<bool, E> {
        // A flush that panicked left nothing half changed that matters here.
        let _one = self.flushing.lock().unwrap_or_else(|e| e.into_inner());
        if !self.unflushed.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let mut pages = Vec::new();
        for (number, page) in self.pages.iter().enumerate() {
            if page.load(Ordering::Acquire) != 0 {
                page.fetch_and(!DIRTY, Ordering::AcqRel);
                pages.push(number);
            }
        }
        let done = make_durable(&pages);
        if done.is_err() {
            pages.iter().for_each(|page| self.differs(*page));
            self.something();
        }
        done.map(|()| true)
    }
}

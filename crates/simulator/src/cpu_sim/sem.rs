//! A guest's sleeping lock, as Linux has for a process's memory (`mmap_sem`): readers share it, a writer has it alone.

use std::collections::VecDeque;

/// The lock, in the order of coming: a reader that comes after a writer waits behind it. Whoever releases it hands it over, so that one who
/// got it in its sleep has it before it runs (Linux until 3.15; later waiters spin for a while, and who runs may take it before them).
#[derive(Clone, Debug, Default)]
pub(super) struct Sem {
    readers: usize,
    written: bool,
    /// Threads that sleep for it, and whether they write.
    waiters: VecDeque<(usize, bool)>,
}

impl Sem {
    /// Gives the lock to a thread if it can have it now; else the thread is to sleep.
    pub(super) fn take(&mut self, thread: usize, writes: bool) -> bool {
        let free = self.waiters.is_empty() && self.admits(writes);
        if free {
            self.enter(writes);
        } else {
            self.waiters.push_back((thread, writes));
        }
        free
    }

    /// One who has the lock releases it. Returns the threads that have it because of that.
    pub(super) fn release(&mut self) -> Vec<usize> {
        if self.written {
            self.written = false;
        } else {
            self.readers = self.readers.saturating_sub(1);
        }
        let mut woken = Vec::new();
        while let Some((thread, writes)) = self.waiters.front().copied() {
            if !self.admits(writes) {
                break;
            }
            self.waiters.pop_front();
            self.enter(writes);
            woken.push(thread);
        }
        woken
    }

    fn admits(&self, writes: bool) -> bool {
        !self.written && (self.readers == 0 || !writes)
    }

    fn enter(&mut self, writes: bool) {
        if writes {
            self.written = true;
        } else {
            self.readers += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_it_and_nobody_overtakes_a_writer() {
        let mut sem = Sem::default();
        assert!(sem.take(1, false) && sem.take(2, false));
        for (thread, writes) in [(3, true), (4, false), (5, false), (6, true)] {
            assert!(!sem.take(thread, writes));
        }
        assert!(sem.release().is_empty());
        assert_eq!(sem.release(), [3]);
        assert_eq!(sem.release(), [4, 5]);
        assert!(sem.release().is_empty());
        assert_eq!(sem.release(), [6]);
        assert!(!sem.take(7, false));
        assert_eq!(sem.release(), [7]);
        assert!(sem.release().is_empty());
        assert!(sem.take(8, true));
    }
}

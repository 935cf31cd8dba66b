//! Blocks that must be read, as runs in their order on the disk.

use std::{collections::BTreeMap, ops::Range};

/// Runs of blocks that do not touch: first block and end.
#[derive(Clone, Debug, Default)]
pub struct Wanted(BTreeMap<u64, u64>);

impl Wanted {
    /// Adds blocks.
    pub fn add(&mut self, blocks: Range<u64>) {
        let Range { mut start, mut end } = blocks;
        if start >= end {
            return;
        }
        while let Some((first, last)) = self.0.range(..=end).next_back()
            && *last >= start
        {
            (start, end) = (start.min(*first), end.max(*last));
            let first = *first;
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }

    /// Takes the first run, or as many of its blocks.
    pub fn take(&mut self, blocks_max: u64) -> Option<Range<u64>> {
        let (start, end) = self.0.pop_first()?;
        let cut = end.min(start.saturating_add(blocks_max.max(1)));
        if cut < end {
            self.0.insert(cut, end);
        }
        Some(start..cut)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets them all, and returns how many blocks they were.
    pub fn clear(&mut self) -> u64 {
        let all = std::mem::take(&mut self.0);
        all.into_iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_block_is_wanted_once(runs in prop::collection::vec((0u64..60, 0u64..9), 0..40), cut in 1u64..7) {
            let mut wanted = Wanted::default();
            let mut blocks = BTreeSet::new();
            for (start, length) in runs {
                wanted.add(start..start + length);
                blocks.extend(start..start + length);
            }
            let mut taken = Vec::new();
            while let Some(run) = wanted.take(cut) {
                prop_assert!(run.end - run.start <= cut);
                taken.extend(run);
            }
            prop_assert_eq!(taken, blocks.into_iter().collect::<Vec<_>>());
        }
    }
}

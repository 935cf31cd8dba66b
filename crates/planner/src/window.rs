//! Read-ahead of one region: aligned windows that grow with success and shrink with waste.

use crate::{BLOCK_CHUNKS, Config};
use std::collections::{HashMap, VecDeque};

/// How many windows wait to be judged: the next one pushes the oldest out, and what that one didn't use by then was waste.
const WINDOWS_JUDGED_LATER: usize = 16;
/// How many recent misses are searched for neighbours when the window has shrunk to one chunk.
const MISSES_REMEMBERED: usize = 16;
/// The part of a block that may be pushed. Once all of the rest was touched, the pushed part counts as used.
const PUSHABLE: u64 = u64::MAX >> (BLOCK_CHUNKS / 4);
/// If the share of used chunks is above this, the window doubles.
const SCORE_GROW: f64 = 0.6;
/// If it is above this at the largest window, the region is being read from end to end.
const SCORE_STREAMING: f64 = 0.9;
/// If it is below this, the window halves: what is wasted costs as much as what is gained.
const SCORE_SHRINK: f64 = 0.35;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Chunks that were asked for, for any reason.
    asked: u64,
    /// Chunks that were fetched because of a guess and not touched yet.
    ahead: u64,
    /// Chunks that were pushed into the page cache, so that touches of them aren't seen.
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    block: u64,
    chunks: u64,
}

/// The state of one region.
#[derive(Debug)]
pub(crate) struct Region {
    chunks: u64,
    log2: u32,
    score: f64,
    near: f64,
    blocks: HashMap<u64, Block>,
    recent: VecDeque<Window>,
    misses: VecDeque<u64>,
    /// The window that is fetched next if it has candidates: block and chunks.
    looking: Option<(u64, u64)>,
}

/// Returns the aligned window of `1 << log2` chunks around bit `at`.
fn aligned(at: u32, log2: u32) -> u64 {
    let width = 1u32 << log2.min(6);
    let first = at & !(width - 1);
    (u64::MAX >> (BLOCK_CHUNKS - width)) << first
}

/// Returns at most `most` bits of `chunks`: those from `at` upwards first, as most reading goes upwards, then those below,
/// nearest first.
fn nearest(chunks: u64, at: u32, most: u64) -> u64 {
    let upwards = at..BLOCK_CHUNKS;
    let downwards = (0..at).rev();
    let mut left = most;
    let mut kept = 0;
    for bit in upwards.chain(downwards) {
        if left > 0 && chunks >> bit & 1 == 1 {
            kept |= 1 << bit;
            left -= 1;
        }
    }
    kept
}

impl Region {
    pub(crate) fn new(chunks: u64, config: &Config) -> Self {
        Self {
            chunks,
            log2: config.window_log2_start.min(config.window_log2_max).min(6),
            score: 0.5,
            near: 0.0,
            blocks: HashMap::new(),
            recent: VecDeque::new(),
            misses: VecDeque::new(),
            looking: None,
        }
    }

    /// Returns the region's size in chunks.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks
    }

    pub(crate) fn contains(&self, chunk: u64) -> bool {
        chunk < self.chunks
    }

    /// Returns the size of the window now, in chunks.
    pub(crate) fn window_chunks(&self) -> u32 {
        1 << self.log2
    }

    /// Returns how many guesses were not used.
    pub(crate) fn unused(&self) -> u64 {
        self.blocks
            .values()
            .map(|b| u64::from(b.ahead.count_ones()))
            .sum()
    }

    /// Returns the chunks to push into the page cache, now that a block's guesses have arrived.
    pub(crate) fn push(&mut self, block: u64, arrived: u64, config: &Config) -> u64 {
        let streaming = self.log2 >= config.window_log2_max && self.score > SCORE_STREAMING;
        let Some(state) = self.blocks.get_mut(&block).filter(|_| streaming) else {
            return 0;
        };
        let whole_rest = arrived & state.ahead & !PUSHABLE == !PUSHABLE;
        let chunks = if whole_rest {
            arrived & state.ahead & PUSHABLE
        } else {
            0
        };
        state.pushed |= chunks;
        chunks
    }

    /// Notes that a chunk was touched; returns how many guesses that proved right, and whether the chunk itself was a guess.
    pub(crate) fn touch(&mut self, chunk: u64) -> (u64, bool) {
        let (block, bit) = split(chunk);
        let Some(state) = self.blocks.get_mut(&block) else {
            return (0, false);
        };
        let guessed = state.ahead >> bit & 1 == 1;
        let mut right = state.ahead & 1 << bit;
        let rest = state.ahead & !PUSHABLE & !right;
        if rest == 0 {
            right |= state.ahead & state.pushed;
        }
        state.ahead &= !right;
        (u64::from(right.count_ones()), guessed)
    }

    /// Returns the chunks to fetch around a miss, at most `most` of the candidates.
    pub(crate) fn miss(&mut self, chunk: u64, candidates: u64, most: u64, config: &Config) -> u64 {
        let (block, bit) = split(chunk);
        self.remember(chunk, config);
        let window = aligned(bit, self.log2);
        let state = self.blocks.entry(block).or_default();
        state.asked |= 1 << bit;
        let wanted = window & candidates & !state.asked;
        self.take(block, nearest(wanted, bit, most), config)
    }

    /// Returns the block to look at next, if the window around a used guess is nearly used up.
    pub(crate) fn follow(&mut self, chunk: u64) -> Option<u64> {
        let (block, bit) = split(chunk);
        let window = aligned(bit, self.log2);
        let left = self.blocks.get(&block)?.ahead & window;
        if self.score < SCORE_GROW || left.count_ones() * 4 > window.count_ones() {
            return None;
        }
        let next = chunk - u64::from(bit) + u64::from(BLOCK_CHUNKS - window.leading_zeros());
        let (next_block, next_bit) = split(next);
        let next_window = aligned(next_bit, self.log2);
        let asked = self.blocks.get(&next_block).map_or(0, |b| b.asked);
        let new = next < self.chunks && asked & next_window == 0;
        let again = self.looking == Some((next_block, next_window));
        if !new || again {
            return None;
        }
        self.looking = Some((next_block, next_window));
        Some(next_block)
    }

    /// Returns the chunks to fetch of a block that was looked at.
    pub(crate) fn looked(
        &mut self,
        block: u64,
        candidates: u64,
        most: u64,
        config: &Config,
    ) -> u64 {
        let Some((_, window)) = self.looking.take_if(|(b, _)| *b == block) else {
            return 0;
        };
        let asked = self.blocks.get(&block).map_or(0, |b| b.asked);
        let first = window.trailing_zeros();
        self.take(
            block,
            nearest(window & candidates & !asked, first, most),
            config,
        )
    }

    /// Notes that a chunk is fetched for another reason, so that no guess is; returns whether nobody had asked for it.
    pub(crate) fn expect(&mut self, chunk: u64) -> bool {
        let (block, bit) = split(chunk);
        let state = self.blocks.entry(block).or_default();
        let new = state.asked >> bit & 1 == 0;
        state.asked |= 1 << bit;
        new
    }

    /// Notes that chunks didn't arrive and may be asked for again; returns how many of them were guesses.
    pub(crate) fn failed(&mut self, block: u64, chunks: u64) -> u64 {
        let Some(state) = self.blocks.get_mut(&block) else {
            return 0;
        };
        let guesses = state.ahead & chunks;
        state.ahead &= !chunks;
        state.asked &= !chunks;
        u64::from(guesses.count_ones())
    }

    fn take(&mut self, block: u64, chunks: u64, config: &Config) -> u64 {
        if chunks == 0 {
            return 0;
        }
        let state = self.blocks.entry(block).or_default();
        state.asked |= chunks;
        state.ahead |= chunks;
        self.recent.push_back(Window { block, chunks });
        if self.recent.len() > WINDOWS_JUDGED_LATER {
            self.judge(config);
        }
        chunks
    }

    /// Judges the oldest window by what was used of it.
    fn judge(&mut self, config: &Config) {
        let Some(window) = self.recent.pop_front() else {
            return;
        };
        let unused = self
            .blocks
            .get(&window.block)
            .map_or(0, |b| b.ahead & window.chunks);
        let used = 1.0 - f64::from(unused.count_ones()) / f64::from(window.chunks.count_ones());
        self.score = 0.75 * self.score + 0.25 * used;
        if self.score > SCORE_GROW && self.log2 < config.window_log2_max.min(6) {
            self.log2 += 1;
        }
        if self.score < SCORE_SHRINK && self.log2 > 0 {
            self.log2 -= 1;
            self.near = 0.0;
        }
    }

    /// Remembers a miss. With a window of one chunk there are no guesses to learn from, so misses that are near each other
    /// widen it.
    fn remember(&mut self, chunk: u64, config: &Config) {
        let near = self.misses.iter().any(|m| m.abs_diff(chunk) <= 2);
        self.near = 0.9 * self.near + if near { 0.1 } else { 0.0 };
        self.misses.push_back(chunk);
        if self.misses.len() > MISSES_REMEMBERED {
            self.misses.pop_front();
        }
        if self.log2 == 0 && self.near > 0.5 && config.window_log2_max > 0 {
            self.log2 = 1;
            self.score = 0.5;
            self.near = 0.0;
        }
    }
}

fn split(chunk: u64) -> (u64, u32) {
    (
        chunk / u64::from(BLOCK_CHUNKS),
        (chunk % u64::from(BLOCK_CHUNKS)) as u32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_aligned_and_stay_in_their_block() {
        assert_eq!(aligned(0, 0), 1);
        assert_eq!(aligned(5, 2), 0b1111_0000);
        assert_eq!(aligned(63, 3), 0xFF << 56);
        assert_eq!(aligned(17, 6), u64::MAX);
    }

    #[test]
    fn a_short_budget_goes_to_the_chunks_behind_the_miss() {
        assert_eq!(nearest(0xFF, 4, 3), 0b0111_0000);
        assert_eq!(nearest(0x0F, 4, 2), 0b1100);
        assert_eq!(nearest(u64::MAX, 0, 0), 0);
    }
}

//! When a capture stops copying memory ahead of its pause. No I/O and no clock.
//!
//! While a guest runs, each round copies what it has written since the last one; what it writes after the last round is copied in the
//! pause. A round pays as long as it leaves much less to copy than it found. A guest that writes nearly as fast as its memory is
//! copied would never be done: it gets the pause that is left, which is shorter than that for everything.

/// What a pause may copy without another round being worth its trouble, in bytes: some 5 ms.
pub(crate) const FEW_BYTES: u64 = 16 << 20;
/// Most rounds of one capture; with halving, enough for a TiB.
pub(crate) const ROUNDS_MAX: u32 = 16;

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Copy what was written.
    Copy,
    /// Pause the guest, and copy the rest.
    Pause,
}

/// The rounds of one capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// How many there were.
    pub made: u32,
    /// How many bytes they found written, all in all.
    pub bytes: u64,
    /// What the last one found written.
    last_bytes: Option<u64>,
}

impl Rounds {
    /// Decides what to do about `written` bytes that have no copy, or an older one.
    pub fn next(&mut self, written: u64) -> Step {
        let pays = self.last_bytes.is_none_or(|last| written < last / 2);
        if written < FEW_BYTES || !pays || self.made == ROUNDS_MAX {
            return Step::Pause;
        }
        self.made += 1;
        self.bytes = self.bytes.saturating_add(written);
        self.last_bytes = Some(written);
        Step::Copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1 << 20;

    /// What became of a guest that writes to `working` bytes, at a rate, while they are copied at another, in virtual time.
    struct Done {
        rounds: Rounds,
        /// Bytes that the pause copies.
        pause: u64,
        /// Bytes that were copied in all.
        copied: u64,
    }

    fn simulate(memory: u64, working: u64, write_mb_s: u64, copy_mb_s: u64) -> Done {
        let mut rounds = Rounds::default();
        let (mut written, mut copied) = (memory, 0);
        while rounds.next(written) == Step::Copy {
            copied += written;
            let us = written / copy_mb_s;
            written = (us * write_mb_s).min(working);
        }
        let copied = copied + written;
        Done {
            rounds,
            pause: written,
            copied,
        }
    }

    #[test]
    fn a_quiet_guest_is_copied_once_and_its_pause_does_not_grow_with_its_memory() {
        for memory in [64 * MB, 1 << 30, 64 << 30] {
            let done = simulate(memory, 2 * MB, 100, 2000);
            assert_eq!((done.rounds.made, done.pause), (1, 2 * MB));
            assert_eq!((done.rounds.bytes, done.copied), (memory, memory + 2 * MB));
        }
    }

    #[test]
    fn little_memory_is_left_to_the_pause() {
        let done = simulate(FEW_BYTES - 1, MB, 100, 2000);
        assert_eq!(
            (done.rounds, done.pause),
            (Rounds::default(), FEW_BYTES - 1)
        );
    }

    #[test]
    fn a_guest_that_writes_a_quarter_as_fast_as_is_copied_gets_rounds_until_little_is_left() {
        let done = simulate(1 << 30, 1 << 30, 500, 2000);
        assert_eq!(done.rounds.made, 3);
        assert!(done.pause <= FEW_BYTES, "{}", done.pause);
    }

    #[test]
    fn a_guest_that_writes_faster_than_is_copied_gets_one_round_and_the_pause_that_it_would_have_had()
     {
        let done = simulate(1 << 30, 1 << 30, 4000, 2000);
        assert_eq!((done.rounds.made, done.pause), (1, 1 << 30));
    }

    proptest! {
        /// Whatever a guest writes, its pause copies no more than everything, and all rounds together copy no more than that twice.
        #[test]
        fn rounds_end_and_cost_at_most_once_more(
            memory in 0..1u64 << 42,
            working in 0..1u64 << 42,
            write_mb_s in 0..8000u64,
            copy_mb_s in 1..8000u64,
        ) {
            let done = simulate(memory, working.min(memory), write_mb_s, copy_mb_s);
            prop_assert!(done.rounds.made <= ROUNDS_MAX);
            prop_assert!(done.pause <= memory);
            prop_assert!(done.rounds.bytes <= memory.saturating_mul(2));
            prop_assert!(done.copied <= memory.saturating_mul(3));
        }
    }
}

//! Decides whether what a clone lacks is read out of a swarm that has it or from its parent's host: by multicast where that passes, or by
//! asking that host alone. No I/O, no clock.
//!
//! Neither way has to be tried for it. What the parent has changed comes from its host all the time, and the swarm brings what machines of
//! its own image need. So both are measured, and what a read would take by either follows. A swarm brings whole pieces: one for a single chunk
//! costs more than the chunk unless the parent's link is everybody's, and one with many chunks that are wanted costs less.

use floe_api::SwarmLent;
use floe_peers::PIECE_BYTES;
use std::time::Duration;

/// Bytes of a chunk on its way from the parent's host or a hub: packed, it has a third of its size on average.
pub(super) const CHUNK_WIRE_BYTES: u64 = 1500;
/// The shortest wait for a swarm.
const LEAST: Duration = Duration::from_millis(20);
/// How many times as long as the parent's host would take is waited for the swarm, if a guest stands still and if none does.
const PATIENCE: [u64; 2] = [2, 8];
/// How long a swarm is not read that did not bring something in time.
const PAUSE: Duration = Duration::from_secs(10);

/// Where items came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// The parent's host.
    #[default]
    Parent,
    /// Pieces that other hosts or the hub gave.
    Swarm,
    /// Pieces that were here.
    Shelf,
}

/// What was measured of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// How long the first chunk or piece takes, in microseconds.
    pub first_us: u64,
    /// How fast others come after it.
    pub bytes_per_s: u64,
}

impl Pace {
    /// Returns how long a read takes with so many bytes after its first ones, in microseconds.
    fn takes_us(self, bytes: u64) -> u64 {
        let rest_us = bytes.saturating_mul(1_000_000) / self.bytes_per_s.max(1);
        self.first_us.saturating_add(rest_us)
    }
}

/// What a read lacks that a swarm can bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// How much that is.
    pub chunks: u64,
    /// In how many pieces it lies.
    pub pieces: u64,
    /// Whether a guest stands still for it.
    pub demand: bool,
}

/// What is decided for the clones of one fork, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The present way.
    way: Way,
    /// Since when the swarm may be read again.
    again_at: Duration,
    told: SwarmLent,
}

impl Choice {
    /// Returns for how long a swarm is waited for at `now`, counted from any fixed moment; `None` if the parent's host is asked. The other way
    /// must be better by a fifth to be taken, so that nothing is read now here, now there.
    pub fn choose(
        &mut self,
        now: Duration,
        asked: Asked,
        swarm: Option<Pace>,
        parent: Option<Pace>,
    ) -> Option<Duration> {
        let both = swarm.zip(parent).map(|(swarm, parent)| {
            let more = asked.pieces.saturating_sub(1).saturating_mul(PIECE_BYTES);
            let chunks = asked.chunks.saturating_mul(CHUNK_WIRE_BYTES);
            (swarm.takes_us(more), parent.takes_us(chunks))
        });
        let each = |us: u64| us / asked.chunks.max(1);
        self.told.swarm_us = both.map(|(swarm_us, _)| each(swarm_us));
        self.told.parent_us = both.map(|(_, parent_us)| each(parent_us));
        let cheaper = both.is_some_and(|(swarm_us, parent_us)| match self.way {
            Way::Swarm => swarm_us.saturating_mul(4) <= parent_us.saturating_mul(5),
            _ => swarm_us.saturating_mul(5) < parent_us.saturating_mul(4),
        });
        self.way = match cheaper && now >= self.again_at {
            true => Way::Swarm,
            false => Way::Parent,
        };
        let (_, parent_us) = both.filter(|_| self.way == Way::Swarm)?;
        let times = PATIENCE[usize::from(!asked.demand)];
        let patience = Duration::from_micros(parent_us.saturating_mul(times));
        Some(patience.max(LEAST))
    }

    /// Notes that the swarm did not bring everything in time.
    pub fn failed(&mut self, now: Duration) {
        self.way = Way::Parent;
        self.again_at = now + PAUSE;
    }

    /// Notes from where so many bytes of items came.
    pub fn came(&mut self, from: Way, bytes: u64) {
        let told = &mut self.told;
        let all = match from {
            Way::Parent => &mut told.parent_bytes,
            Way::Swarm => &mut told.swarm_bytes,
            Way::Shelf => &mut told.shelf_bytes,
        };
        *all = all.saturating_add(bytes);
    }

    /// Whether what is lacking is read out of a swarm now.
    pub fn is_swarm(&self) -> bool {
        self.way == Way::Swarm
    }

    /// Returns what users are told of it.
    pub fn told(&self) -> SwarmLent {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWARM: Pace = Pace {
        first_us: 6_000,
        bytes_per_s: 12_500_000,
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn parent(first_us: u64, bytes_per_s: u64) -> Option<Pace> {
        Some(Pace {
            first_us,
            bytes_per_s,
        })
    }

    fn asked(chunks: u64, pieces: u64) -> Asked {
        Asked {
            chunks,
            pieces,
            demand: true,
        }
    }

    #[test]
    fn a_chunk_comes_from_a_near_parent_and_out_of_a_piece_where_its_link_is_everybodys() {
        let mut choice = Choice::default();
        let near = parent(500, 12_500_000);
        let one = asked(1, 1);
        assert_eq!(choice.choose(s(0), one, Some(SWARM), near), None);
        let told = choice.told();
        assert_eq!((told.swarm_us, told.parent_us), (Some(6_000), Some(620)));
        // sixteen hosts read from it, each in its turn
        let busy = parent(40_000, 100_000);
        let wait = choice.choose(s(1), one, Some(SWARM), busy);
        assert_eq!(wait, Some(Duration::from_micros(2 * 55_000)));
        assert!(choice.is_swarm());
        let ahead = Asked {
            demand: false,
            ..one
        };
        let wait = choice.choose(s(1), ahead, Some(SWARM), busy);
        assert_eq!(wait, Some(Duration::from_micros(8 * 55_000)));
        assert_eq!(choice.choose(s(2), one, Some(SWARM), near), None);
    }

    #[test]
    fn pieces_of_which_much_is_wanted_are_worth_it_and_such_of_which_little_is_are_not() {
        let slow = parent(1_000, 2_500_000);
        let mut choice = Choice::default();
        // 64 chunks have 96 000 bytes, which take 39 ms; in two pieces they take 11, in sixteen 84
        assert!(
            choice
                .choose(s(0), asked(64, 2), Some(SWARM), slow)
                .is_some()
        );
        assert_eq!(choice.choose(s(0), asked(64, 16), Some(SWARM), slow), None);
    }

    #[test]
    fn what_is_nearly_as_good_changes_nothing() {
        let mut choice = Choice::default();
        let one = asked(1, 1);
        // by the parent a chunk takes 7 ms, then 10, then 5, then 4
        for (first_us, swarm) in [(6_985, false), (9_985, true), (4_985, true), (3_985, false)] {
            let parent = parent(first_us, 100_000_000);
            let wait = choice.choose(s(0), one, Some(SWARM), parent);
            assert_eq!(wait.is_some(), swarm, "{first_us}");
        }
    }

    #[test]
    fn a_swarm_that_is_late_is_left_alone_for_a_while_and_one_that_was_not_measured_is_not_read() {
        let mut choice = Choice::default();
        let (one, busy) = (asked(1, 1), parent(40_000, 100_000));
        assert_eq!(choice.choose(s(0), one, None, busy), None);
        assert_eq!(choice.choose(s(0), one, Some(SWARM), None), None);
        assert_eq!(choice.told(), SwarmLent::default());
        assert!(choice.choose(s(0), one, Some(SWARM), busy).is_some());
        choice.failed(s(1));
        assert!(!choice.is_swarm());
        assert_eq!(choice.choose(s(10), one, Some(SWARM), busy), None);
        assert!(choice.choose(s(11), one, Some(SWARM), busy).is_some());
        choice.came(Way::Shelf, 1);
        choice.came(Way::Swarm, 2);
        choice.came(Way::Parent, 3);
        choice.came(Way::Parent, 4);
        let told = choice.told();
        let bytes = (told.shelf_bytes, told.swarm_bytes, told.parent_bytes);
        assert_eq!(bytes, (1, 2, 7));
    }
}

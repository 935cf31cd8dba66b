//! Decides whether what a machine needs is read from the hub in chunks or waited for in pieces. No I/O, no clock.
//!
//! A chunk is a fortieth of the piece that it lies in. Where few hosts ask, the hub has sent it before the piece would be here; where many
//! do, or much is fetched ahead, the hub's link is full, its chunks are late, and the pieces of other hosts are sooner. Both are
//! measured, where a guest stands still for them, so that the swarm wins by itself.
//!
//! Bytes count as well. A piece leaves the hub once for all hosts, and a chunk once for each. So of each piece a host reads no more in
//! chunks than its own share of the piece, and then waits for the piece: in this way the hub gives at most twice what it has to, and less the
//! more hosts there are, since what it gives in chunks keeps the pieces of all of them waiting. A
//! machine that needs a little of each piece, as one does that goes on from captured memory, reads its hub; one that needs all of them
//! reads the swarm.

use super::cheaper::CHUNK_WIRE_BYTES;
use floe_image::{Hash, Kind};
use floe_peers::{PIECE_BYTES, PieceId};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Reads of one way that count.
const READS: usize = 32;
/// How long they count: a hub that many ask now may be idle in a moment.
const LATELY: Duration = Duration::from_secs(3);
/// A hub that answers within this time is asked while nobody knows how long pieces take.
const QUICK: Duration = Duration::from_millis(250);
/// The longest wait for the hub before the swarm is asked.
const LONGEST: Duration = Duration::from_secs(2);
/// How many times as long as pieces take is waited for the hub, if that is known, but not less than [`QUICK`].
const PATIENCE: u32 = 4;

/// Something that is not here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    pub item: (Kind, Hash),
    /// The piece that is lacking; `None` as long as it is not known where the item lies.
    pub piece: Option<PieceId>,
    /// How many bytes the hub sends for it.
    pub bytes: u64,
}

/// How long reads of one way took of late.
#[derive(Debug, Default)]
struct Recent(VecDeque<(Duration, Duration)>);

impl Recent {
    /// Notes what a read took that ended at `now`. One that was cut off would have taken longer: it counts twice.
    fn add(&mut self, now: Duration, took: Duration, whole: bool) {
        if self.0.len() == READS {
            self.0.pop_front();
        }
        let times = if whole { 1 } else { 2 };
        self.0.push_back((now, took * times));
    }

    /// Returns the median; `None` if nothing was read of late.
    fn usual(&self, now: Duration) -> Option<Duration> {
        let late = self.0.iter();
        let late = late.filter(|(at, _)| now.saturating_sub(*at) <= LATELY);
        let mut took: Vec<Duration> = late.map(|(_, took)| *took).collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied()
    }
}

/// How soon chunks and pieces come, and what was read in chunks. Times are counted from any fixed moment.
#[derive(Debug)]
pub(super) struct Sooner {
    hub: Recent,
    swarm: Recent,
    /// Whether the hub was slower than the swarm when that was last known.
    is_slow: bool,
    /// When it was last tried without being known.
    tried_at: Option<Duration>,
    /// Bytes that were read in chunks, by their piece. It has no more entries than the image has pieces.
    read: HashMap<Option<PieceId>, u64>,
    /// Bytes of the pieces that say where items lie: they have to come before those of an item of which that is not known.
    index_bytes: u64,
}

impl Sooner {
    /// `index_bytes`: of the pieces in which the packs' indices lie.
    pub fn new(index_bytes: u64) -> Sooner {
        Sooner {
            hub: Recent::default(),
            swarm: Recent::default(),
            is_slow: false,
            tried_at: None,
            read: HashMap::new(),
            index_bytes,
        }
    }

    /// Notes how long the hub took for chunks that a guest stood still for, or how long it was waited for in vain.
    pub fn hub_took(&mut self, now: Duration, took: Duration, whole: bool) {
        self.hub.add(now, took, whole);
    }

    /// Notes the same of pieces.
    pub fn swarm_took(&mut self, now: Duration, took: Duration, whole: bool) {
        self.swarm.add(now, took, whole);
    }

    /// Returns which of the lacking items are read from the hub at `now`, and for how long it is waited for; `None` if none of them is. They
    /// count as read. `hosts` share the pieces, this one among them; `demand`: a guest stands still for them.
    pub fn choose(
        &mut self,
        now: Duration,
        hosts: u64,
        demand: bool,
        lacks: &[Lack],
    ) -> Option<(Vec<(Kind, Hash)>, Duration)> {
        let mut asked: HashMap<Option<PieceId>, u64> = HashMap::new();
        for lack in lacks {
            *asked.entry(lack.piece).or_default() += lack.bytes;
        }
        let all = |piece: &Option<PieceId>| piece.map_or(self.index_bytes, |_| PIECE_BYTES);
        let read = |piece: &Option<PieceId>| self.read.get(piece).copied().unwrap_or(0);
        asked.retain(|piece, bytes| read(piece) + *bytes <= share(all(piece), hosts));
        if asked.is_empty() || !self.is_hub(now, demand) {
            return None;
        }
        for (piece, bytes) in &asked {
            *self.read.entry(*piece).or_default() += bytes;
        }
        let taken = lacks.iter().filter(|lack| asked.contains_key(&lack.piece));
        let items = taken.map(|lack| lack.item).collect();
        let patience = self.swarm.usual(now).map(|swarm| swarm * PATIENCE);
        Some((items, patience.unwrap_or(LONGEST).clamp(QUICK, LONGEST)))
    }

    /// Whether the hub is asked. The other way must be better by a fifth to be taken, so that nothing is read now here, now there.
    fn is_hub(&mut self, now: Duration, demand: bool) -> bool {
        let Some(hub) = self.hub.usual(now) else {
            // one demand finds out how it is now; where the hub was slow the others wait for their pieces meanwhile
            let tried = self
                .tried_at
                .is_some_and(|at| now.saturating_sub(at) < LATELY);
            if self.is_slow && (tried || !demand) {
                return false;
            }
            self.tried_at = Some(now);
            return true;
        };
        self.is_slow = match self.swarm.usual(now) {
            None => hub > QUICK,
            Some(swarm) if self.is_slow => hub * 5 > swarm * 4,
            Some(swarm) => hub * 4 > swarm * 5,
        };
        !self.is_slow
    }
}

/// Returns how many of so many bytes each of the hosts may read in chunks: with many hosts less than they would have to bring in pieces, but one
/// chunk if that is not more.
fn share(bytes: u64, hosts: u64) -> u64 {
    let equal = bytes / hosts.max(1);
    let less = equal / (hosts / 4).max(1);
    less.max(equal.min(CHUNK_WIRE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn item(number: u64) -> (Kind, Hash) {
        (Kind::Chunk, Hash::of(&number.to_le_bytes()))
    }

    fn lack(number: u64, piece: Option<PieceId>, bytes: u64) -> Lack {
        Lack {
            item: item(number),
            piece,
            bytes,
        }
    }

    /// One that knows that the hub is quick.
    fn quick() -> Sooner {
        let mut sooner = Sooner::new(PIECE_BYTES);
        sooner.hub_took(us(0), us(1), true);
        sooner
    }

    /// What became of hosts each of which needs a chunk of one more piece as soon as it has the last one.
    #[derive(Default)]
    struct Run {
        of_hub: u64,
        of_swarm: u64,
        waited: Duration,
    }

    /// Lets so many hosts need chunks for half a minute, which leave the hub one after the other and take so long each; a piece comes to each
    /// host within `piece`. Of so many pieces as there are hosts one leaves the hub, which takes `whole`.
    fn run(hosts: usize, chunk: Duration, piece: Duration, whole: Duration) -> Run {
        let mut all: Vec<Sooner> = (0..hosts).map(|_| Sooner::new(PIECE_BYTES)).collect();
        // when each has what it needs, how long that took, and whether it was the hub's
        let mut ends: Vec<(Duration, Option<(Duration, bool)>)> = vec![(us(0), None); hosts];
        let (mut free, mut run) = (us(0), Run::default());
        for number in 0.. {
            let next = (0..hosts).min_by_key(|host| ends[*host].0).unwrap();
            let (now, took) = ends[next];
            if now > Duration::from_secs(30) {
                break;
            }
            let sooner = &mut all[next];
            match took {
                Some((took, true)) => sooner.hub_took(now, took, true),
                Some((took, false)) => sooner.swarm_took(now, took, true),
                None => {}
            }
            let needed = lack(number, Some(number as PieceId), 1_500);
            let of_hub = sooner.choose(now, hosts as u64, true, &[needed]).is_some();
            let took = match of_hub {
                true => {
                    free = free.max(now) + chunk;
                    run.of_hub += 1;
                    free - now + us(1_000)
                }
                false => {
                    run.of_swarm += 1;
                    if run.of_swarm.is_multiple_of(hosts as u64) {
                        free = free.max(now) + whole;
                    }
                    piece
                }
            };
            run.waited += took;
            ends[next] = (now + took, Some((took, of_hub)));
        }
        run
    }

    #[test]
    fn few_hosts_read_the_hub_and_sixteen_on_a_narrow_link_the_swarm() {
        // 1500 bytes over 20 Mbit/s
        let few = run(4, us(600), us(80_000), us(26_000));
        assert_eq!(few.of_swarm, 0);
        // more hosts have that link to themselves for a chunk of each piece, and keep nobody waiting
        let more = run(16, us(600), us(80_000), us(26_000));
        let each = more.waited / (more.of_swarm + more.of_hub) as u32;
        assert!(each < us(80_000), "{each:?}");
        // over 400 kbit/s, with all pieces among the hosts
        let many = run(16, us(30_000), us(50_000), us(0));
        assert!(many.of_swarm > 9 * many.of_hub, "{}", many.of_hub);
        let each = many.waited / (many.of_swarm + many.of_hub) as u32;
        assert!(each < us(60_000), "{each:?}");
        // where both are as good, some read here and some there, and nobody waits for long
        let even = run(16, us(30_000), us(120_000), us(0));
        assert!(even.of_swarm > even.of_hub && even.of_hub > 0);
        let each = even.waited / (even.of_swarm + even.of_hub) as u32;
        assert!(each < us(140_000), "{each:?}");
        // alone with another one the same link is quick enough
        let two = run(2, us(30_000), us(120_000), us(0));
        assert_eq!(two.of_swarm, 0);
    }

    #[test]
    fn a_slow_hub_is_tried_again_by_one_read_at_a_time_and_not_waited_for_long() {
        let (mut sooner, s) = (Sooner::new(PIECE_BYTES), Duration::from_secs);
        let choose = |sooner: &mut Sooner, at: u64, piece: PieceId| {
            let chosen = sooner.choose(s(at), 2, true, &[lack(1, Some(piece), 1_500)]);
            chosen.map(|(items, patience)| (items.len(), patience))
        };
        // nobody knows anything
        assert_eq!(choose(&mut sooner, 0, 0), Some((1, LONGEST)));
        sooner.hub_took(s(1), s(1), false);
        assert_eq!(choose(&mut sooner, 1, 1), None);
        sooner.swarm_took(s(1), us(100_000), true);
        assert_eq!(choose(&mut sooner, 2, 2), None);
        // by now that was long ago
        sooner.swarm_took(s(6), us(100_000), true);
        let ahead = sooner.choose(s(6), 2, false, &[lack(1, Some(3), 1_500)]);
        assert!(ahead.is_none(), "nobody learns from that");
        assert_eq!(choose(&mut sooner, 6, 3), Some((1, us(400_000))));
        assert_eq!(choose(&mut sooner, 6, 4), None);
        assert_eq!(choose(&mut sooner, 8, 5), None);
        sooner.hub_took(s(8), us(70_000), true);
        assert_eq!(choose(&mut sooner, 8, 6), Some((1, us(400_000))));
        // a little better is not enough to change
        sooner.hub_took(s(8), us(110_000), true);
        assert!(choose(&mut sooner, 8, 7).is_some());
        sooner.hub_took(s(8), us(130_000), true);
        sooner.hub_took(s(8), us(130_000), true);
        assert_eq!(choose(&mut sooner, 8, 8), None);
    }

    #[test]
    fn a_piece_of_which_much_is_needed_comes_as_a_piece() {
        let mut sooner = quick();
        let mut taken = |lacks: &[Lack]| {
            let chosen = sooner.choose(us(1), 8, true, lacks);
            chosen.map_or(Vec::new(), |(items, _)| items)
        };
        // of 8 hosts each has 4096 bytes of a piece
        let mut lacks: Vec<Lack> = (0..3).map(|n| lack(n, Some(7), 1_500)).collect();
        lacks.extend([lack(3, Some(8), 1_500), lack(4, Some(9), 4_096)]);
        assert_eq!(taken(&lacks), [item(3), item(4)]);
        assert_eq!(taken(&lacks[..2]), [item(0), item(1)]);
        assert_eq!(taken(&lacks), [item(3)]);
        assert!(taken(&lacks).is_empty());
        // and of the indices
        assert_eq!(taken(&[lack(5, None, 4_000)]), [item(5)]);
        assert!(taken(&[lack(6, None, 97)]).is_empty());
        assert_eq!(taken(&[lack(6, None, 96)]), [item(6)]);
        // few have equal shares, many a chunk each, and very many none
        let shares = [0, 1, 4, 8, 16, 40, 64].map(|hosts| share(PIECE_BYTES, hosts));
        let few = [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES / 4];
        assert_eq!(shares[..3], few);
        assert_eq!(
            shares[3..],
            [4_096, CHUNK_WIRE_BYTES, CHUNK_WIRE_BYTES, 1_024]
        );
    }

    proptest! {
        #[test]
        fn of_no_piece_more_is_read_in_chunks_than_a_hosts_share(
            hosts in 1u64..40,
            reads in prop::collection::vec(
                prop::collection::vec((0u32..4, 1u64..5_000), 1..8), 1..100,
            ),
        ) {
            let (mut sooner, mut read) = (quick(), HashMap::new());
            for asked in reads {
                let asked: Vec<Lack> = asked
                    .iter()
                    .zip(0..)
                    .map(|((piece, bytes), number)| lack(number, Some(*piece), *bytes))
                    .collect();
                let Some((items, _)) = sooner.choose(us(1), hosts, true, &asked) else {
                    continue;
                };
                for lack in asked.iter().filter(|lack| items.contains(&lack.item)) {
                    *read.entry(lack.piece).or_insert(0) += lack.bytes;
                }
            }
            prop_assert!(read.values().all(|bytes| *bytes <= PIECE_BYTES / hosts), "{read:?}");
        }
    }
}

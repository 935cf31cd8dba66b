//! Decides which source is asked for which items of one read, without I/O or clocks.

use std::collections::{HashSet, VecDeque};

use floe_image::{Hash, Kind};

/// Fewest items that a source is asked for at a time: two frames of a pack. Fewer aren't worth a round trip.
pub(super) const STRIPE_ITEMS_MIN: usize = 32;

/// What a source has to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Read these items.
    Ask(Vec<(Kind, Hash)>),
    /// Wait: items that another source is reading may come back.
    Wait,
    /// Stop: nothing is left for this source.
    Over,
}

/// How a source's reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It delivered what it has.
    Answered,
    /// It failed, and is not asked again in this read.
    Failed,
}

/// One read over several sources, each of which reads one part at a time.
///
/// A part is half of what is left, times the source's share of the bandwidth, so that parts get smaller towards the end and all
/// sources end at about the same time. What a source didn't deliver is asked of the others, never of the same one again.
#[derive(Debug)]
pub(super) struct Stripes {
    /// Items that nobody is reading and that haven't arrived, in the order in which they were wanted.
    rest: VecDeque<Item>,
    lanes: Vec<Lane>,
    given: HashSet<Hash>,
}

#[derive(Debug)]
struct Item {
    want: (Kind, Hash),
    /// Sources that didn't deliver it.
    refused_by: Vec<usize>,
}

#[derive(Debug, Default)]
struct Lane {
    /// The items that this source is reading.
    asked: Vec<Item>,
    failed: bool,
}

impl Stripes {
    /// Makes a read of `wants` over this many sources.
    pub fn new(wants: &[(Kind, Hash)], sources: usize) -> Stripes {
        let mut seen = HashSet::with_capacity(wants.len());
        let rest = wants.iter().filter(|want| seen.insert(**want));
        Stripes {
            rest: rest
                .map(|want| Item {
                    want: *want,
                    refused_by: Vec::new(),
                })
                .collect(),
            lanes: (0..sources).map(|_| Lane::default()).collect(),
            given: HashSet::new(),
        }
    }

    /// Returns what `source` has to do now. `rates` are the sources' known bandwidths in bytes per second.
    pub fn next(&mut self, source: usize, rates: &[Option<u64>]) -> Next {
        if self.lanes[source].failed {
            return Next::Over;
        }
        let given = &self.given;
        self.rest.retain(|item| !given.contains(&item.want.1));
        let is_for = |item: &Item| !item.refused_by.contains(&source);
        let fits = self.rest.iter().filter(|item| is_for(item)).count();
        if fits == 0 {
            let others = self.lanes.iter().enumerate();
            let mut reading = others.filter(|(other, _)| *other != source);
            return match reading.any(|(_, lane)| !lane.asked.is_empty()) {
                true => Next::Wait,
                false => Next::Over,
            };
        }
        let share = self.share(source, rates);
        let part = (self.rest.len() as f64 * share / 2.0).ceil() as usize;
        let mut left = part.max(STRIPE_ITEMS_MIN).min(fits);
        let mut asked = Vec::with_capacity(left);
        let mut rest = VecDeque::with_capacity(self.rest.len());
        for item in self.rest.drain(..) {
            if left > 0 && is_for(&item) {
                left -= 1;
                asked.push(item);
            } else {
                rest.push_back(item);
            }
        }
        self.rest = rest;
        let wants = asked.iter().map(|item| item.want).collect();
        self.lanes[source].asked = asked;
        Next::Ask(wants)
    }

    /// Returns a source's share of the bandwidth of all that haven't failed, from 0 to 1. A source that wasn't measured yet
    /// counts like the fastest, which is how it gets measured.
    fn share(&self, source: usize, rates: &[Option<u64>]) -> f64 {
        let rates = filled(rates);
        let alive = rates
            .iter()
            .zip(&self.lanes)
            .filter(|(_, lane)| !lane.failed);
        let all: f64 = alive.map(|(rate, _)| rate).sum();
        rates[source] / all
    }

    /// Notes that an item arrived; returns whether it is the first time.
    pub fn delivered(&mut self, hash: &Hash) -> bool {
        self.given.insert(*hash)
    }

    /// Notes that a source's reading ended: what it didn't deliver is left to the others.
    pub fn ended(&mut self, source: usize, verdict: Verdict) {
        let lane = &mut self.lanes[source];
        lane.failed |= verdict == Verdict::Failed;
        for mut item in lane.asked.drain(..).rev() {
            if !self.given.contains(&item.want.1) {
                item.refused_by.push(source);
                self.rest.push_front(item);
            }
        }
    }

    /// Returns the items that no source delivered, once nothing is left for any of them.
    pub fn missing(&self) -> impl Iterator<Item = &(Kind, Hash)> {
        let items = self.rest.iter().map(|item| &item.want);
        items.filter(|(_, hash)| !self.given.contains(hash))
    }
}

/// Returns which source to ask for a small read: the one that will be ready first. `in_flight` is what each is reading, in
/// bytes.
pub(super) fn soonest(in_flight: &[u64], bytes: u64, rates: &[Option<u64>]) -> usize {
    let rates = filled(rates);
    let times = in_flight.iter().zip(&rates);
    let times = times.map(|(busy, rate)| (busy + bytes) as f64 / rate);
    let soonest = times
        .enumerate()
        .min_by(|(_, one), (_, other)| one.total_cmp(other));
    soonest.map_or(0, |(source, _)| source)
}

/// Returns the rates, with the highest of them in place of unknown ones.
fn filled(rates: &[Option<u64>]) -> Vec<f64> {
    let highest = rates.iter().flatten().max().copied().unwrap_or(1).max(1);
    let known = rates.iter().map(|rate| rate.unwrap_or(highest).max(1));
    known.map(|rate| rate as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(number: usize) -> (Kind, Hash) {
        (Kind::Chunk, Hash::of(&number.to_le_bytes()))
    }

    #[test]
    fn a_source_gets_as_much_as_its_link_carries_and_less_towards_the_end() {
        let wants: Vec<_> = (0..1200).map(want).collect();
        let mut stripes = Stripes::new(&wants, 2);
        let rates = [Some(2_000_000), Some(1_000_000)];
        let mut sizes = Vec::new();
        for source in [0, 1, 0] {
            let Next::Ask(part) = stripes.next(source, &rates) else {
                panic!("there is something to do");
            };
            sizes.push(part.len());
            part.iter().for_each(|(_, hash)| {
                stripes.delivered(hash);
            });
            stripes.ended(source, Verdict::Answered);
        }
        assert_eq!(sizes, [400, 134, 222]);
    }

    #[test]
    fn a_small_read_goes_to_whom_has_time_for_it() {
        assert_eq!(soonest(&[0, 0], 1, &[None, None]), 0);
        assert_eq!(soonest(&[4096, 0], 4096, &[None, None]), 1);
        assert_eq!(
            soonest(&[4096, 0], 4096, &[Some(1_000_000), Some(100_000)]),
            0
        );
        assert_eq!(
            soonest(&[99 << 20, 0], 4096, &[Some(1_000_000), Some(100_000)]),
            1
        );
    }

    /// A source of the property test: which items it has, and after how many items it fails, if it does.
    #[derive(Clone, Debug)]
    struct Holder {
        has: Vec<bool>,
        fails_after: Option<usize>,
    }

    fn holders(items: usize) -> impl Strategy<Value = Vec<Holder>> {
        let has = prop_oneof![
            2 => Just(vec![true; items]),
            1 => prop::collection::vec(any::<bool>(), items),
        ];
        let holder = (has, prop::option::weighted(0.4, 0..items))
            .prop_map(|(has, fails_after)| Holder { has, fails_after });
        prop::collection::vec(holder, 1..5)
    }

    /// How many items there are, the sources, whose turn it is for how many items, and the rates.
    type Case = (usize, Vec<Holder>, Vec<(usize, usize)>, Vec<Option<u64>>);

    fn case() -> impl Strategy<Value = Case> {
        (1usize..300).prop_flat_map(|items| {
            let turns = prop::collection::vec((0usize..64, 1usize..64), 4000);
            let rates = prop::collection::vec(prop::option::of(0u64..1_000_000), 5);
            (Just(items), holders(items), turns, rates)
        })
    }

    proptest! {
        /// Sources read in turns of any length and order. No item is ever asked of two at once, or of one twice. If no source
        /// fails or lacks something, each item is asked for exactly once. What a source has that doesn't fail always arrives.
        #[test]
        fn each_item_is_asked_once_and_none_is_lost_when_a_source_fails((items, holders, turns, rates) in case()) {
            let wants: Vec<_> = (0..items).map(want).collect();
            let number = |hash: &Hash| wants.iter().position(|(_, known)| known == hash).unwrap();
            let rates = &rates[..holders.len()];
            let mut stripes = Stripes::new(&wants, holders.len());
            let mut reading: Vec<Option<VecDeque<usize>>> = vec![None; holders.len()];
            let mut asked_of = vec![Vec::new(); items];
            let mut gave = vec![0; holders.len()];
            let mut given = vec![false; items];
            let mut over = vec![false; holders.len()];
            let mut step = |source: usize, length: usize, over: &mut Vec<bool>| -> Result<bool, TestCaseError> {
                let Some(mut part) = reading[source].take() else {
                    match stripes.next(source, rates) {
                        Next::Over => over[source] = true,
                        Next::Wait => return Ok(false),
                        Next::Ask(part) => {
                            prop_assert!(!part.is_empty());
                            let part: VecDeque<usize> = part.iter().map(|(_, hash)| number(hash)).collect();
                            for item in &part {
                                prop_assert!(!given[*item]);
                                prop_assert!(!asked_of[*item].contains(&source), "twice of one");
                                let elsewhere = reading.iter().flatten().any(|other| other.contains(item));
                                prop_assert!(!elsewhere, "of two at once");
                                asked_of[*item].push(source);
                            }
                            reading[source] = Some(part);
                        }
                    }
                    return Ok(true);
                };
                for _ in 0..length {
                    let Some(item) = part.pop_front() else { break };
                    if holders[source].fails_after.is_some_and(|after| gave[source] >= after) {
                        stripes.ended(source, Verdict::Failed);
                        return Ok(true);
                    }
                    if holders[source].has[item] {
                        gave[source] += 1;
                        prop_assert!(stripes.delivered(&wants[item].1), "given twice");
                        given[item] = true;
                    }
                }
                match part.is_empty() {
                    true => stripes.ended(source, Verdict::Answered),
                    false => reading[source] = Some(part),
                }
                Ok(true)
            };
            for (source, length) in turns {
                step(source % holders.len(), length, &mut over)?;
            }
            // Let every source that isn't finished read to its end.
            loop {
                let mut moved = false;
                for source in 0..holders.len() {
                    if !over[source] {
                        moved |= step(source, usize::MAX, &mut over)?;
                    }
                }
                if !moved { break }
            }
            prop_assert!(over.iter().all(|over| *over), "a source waits for ever");
            let missing: HashSet<Hash> = stripes.missing().map(|(_, hash)| *hash).collect();
            let trouble = holders.iter().any(|h| h.fails_after.is_some() || h.has.contains(&false));
            for (item, asked) in asked_of.iter().enumerate() {
                prop_assert_eq!(given[item], !missing.contains(&wants[item].1));
                let somebody = holders.iter().any(|h| h.has[item] && h.fails_after.is_none());
                prop_assert!(given[item] || !somebody, "lost although somebody has it");
                if !trouble {
                    prop_assert_eq!(asked.len(), 1);
                }
            }
        }
    }
}

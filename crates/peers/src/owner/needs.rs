//! Who waits for which pieces. No I/O.
use crate::swarm::SwarmError;
use floe_swarm::policy::{Config, DEMANDS_MAX, PieceId};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use tokio::sync::oneshot;

/// Most pieces that are waited for at a time, 4 GiB: callers bring what they need in parts.
pub(super) const NEEDS_MAX: usize = 1 << 16;
/// A caller that waits for at most so many pieces is not held up by those that wait for more: as many places are kept for such callers.
const FEW_MAX: usize = 8;

/// How long a piece is still asked for that nobody waits for any more, in microseconds: as long as a seed may take.
const LEFT_US: u64 = 30_000_000;

/// How a waiter is told.
pub(super) type Done = oneshot::Sender<Result<(), SwarmError>>;

struct Waiter {
    /// Pieces that it still waits for.
    left: usize,
    done: Done,
}

pub(super) struct Needs {
    waiters: HashMap<u64, Waiter>,
    next: u64,
    /// Waiters by piece.
    pieces: HashMap<PieceId, Vec<u64>>,
    /// Pieces that the policy was not told of yet: first those of callers that wait for few, then the rest.
    few: VecDeque<PieceId>,
    many: VecDeque<PieceId>,
    /// Those that it was told of, and since when nobody waits for them.
    told: HashMap<PieceId, Option<u64>>,
    told_max: usize,
}

impl Needs {
    /// Returns an empty list. It will tell the policy of no more pieces at a time than one host takes questions for: the policy may have to
    /// ask one host for all of them, and that would drop this host for a flood.
    pub(super) fn new(config: &Config) -> Needs {
        let others = config.prefetch_per_peer_max + FEW_MAX;
        let told_max = config.waiting_per_peer_max.saturating_sub(others);
        Needs {
            waiters: HashMap::new(),
            next: 0,
            pieces: HashMap::new(),
            few: VecDeque::new(),
            many: VecDeque::new(),
            told: HashMap::new(),
            told_max: told_max.clamp(1, DEMANDS_MAX - FEW_MAX),
        }
    }

    /// Returns the number of pieces that are waited for.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether somebody waits for a piece that the policy was told of.
    pub(super) fn waits_for(&self, piece: PieceId) -> bool {
        self.told.contains_key(&piece)
    }

    /// Somebody waits for all of `lacks` from now on, unless these are too many.
    pub(super) fn add(&mut self, lacks: HashSet<PieceId>, done: Done) {
        if lacks.is_empty() {
            let _ = done.send(Ok(()));
            return;
        }
        if self.pieces.len() + lacks.len() > NEEDS_MAX {
            let _ = done.send(Err(SwarmError::TooMany));
            return;
        }
        let id = self.next;
        self.next += 1;
        let left = lacks.len();
        for piece in lacks {
            match self.pieces.entry(piece) {
                Entry::Vacant(entry) => {
                    entry.insert(vec![id]);
                    match left <= FEW_MAX {
                        true => self.few.push_back(piece),
                        false => self.many.push_back(piece),
                    }
                }
                Entry::Occupied(mut entry) => {
                    // who gives up and waits again, over and over, is remembered once
                    entry.get_mut().retain(|id| waits(&mut self.waiters, *id));
                    entry.get_mut().push(id);
                    let late = self.many.iter().position(|other| *other == piece);
                    if let Some(place) = late.filter(|_| left <= FEW_MAX) {
                        self.many.remove(place);
                        self.few.push_back(piece);
                    }
                }
            }
        }
        self.waiters.insert(id, Waiter { left, done });
    }

    /// A piece is here. Returns whether somebody waited for it.
    pub(super) fn here(&mut self, piece: PieceId) -> bool {
        let Some(waiting) = self.pieces.remove(&piece) else {
            return false;
        };
        if self.told.remove(&piece).is_none() {
            self.few.retain(|other| *other != piece);
            self.many.retain(|other| *other != piece);
        }
        for id in waiting {
            let Some(waiter) = self.waiters.get_mut(&id) else {
                continue;
            };
            waiter.left -= 1;
            if waiter.left == 0
                && let Some(waiter) = self.waiters.remove(&id)
            {
                let _ = waiter.done.send(Ok(()));
            }
        }
        true
    }

    /// Returns the next piece that the policy can be told of.
    pub(super) fn next(&mut self) -> Option<PieceId> {
        let told = self.told.len();
        let mut next = None;
        if told < self.told_max + FEW_MAX {
            next = self.few.pop_front();
        }
        if next.is_none() && told < self.told_max {
            next = self.many.pop_front();
        }
        self.told.extend(next.map(|piece| (piece, None)));
        next
    }

    /// Forgets and returns pieces that the policy was told of, that have not arrived, and that nobody has waited for in a long time: they
    /// would keep others from being asked for.
    pub(super) fn sweep(&mut self, now_us: u64) -> Vec<PieceId> {
        let (pieces, waiters) = (&self.pieces, &self.waiters);
        let here = |id: &u64| waiters.get(id).is_some_and(|one| !one.done.is_closed());
        let mut over = Vec::new();
        for (piece, left_us) in &mut self.told {
            if pieces.get(piece).is_some_and(|by| by.iter().any(here)) {
                *left_us = None;
            } else if now_us.saturating_sub(*left_us.get_or_insert(now_us)) >= LEFT_US {
                over.push(*piece);
            }
        }
        over.sort_unstable();
        for piece in &over {
            self.here(*piece);
        }
        over
    }
}

/// Whether a waiter still waits; takes one off what it waits for if not.
fn waits(waiters: &mut HashMap<u64, Waiter>, id: u64) -> bool {
    let Some(waiter) = waiters.get_mut(&id) else {
        return false;
    };
    if !waiter.done.is_closed() {
        return true;
    }
    waiter.left -= 1;
    if waiter.left == 0 {
        waiters.remove(&id);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_once_all_is_here() {
        let mut needs = Needs::new(&Config::ours());
        let (done, mut told) = oneshot::channel();
        needs.add(HashSet::from([1, 2]), done);
        let (other, mut other_told) = oneshot::channel();
        needs.add(HashSet::from([2]), other);
        let mut asked = [needs.next(), needs.next()];
        asked.sort_unstable();
        assert_eq!((asked, needs.next()), ([Some(1), Some(2)], None));
        assert!(needs.here(2) && other_told.try_recv().is_ok() && told.try_recv().is_err());
        assert!(needs.here(1) && told.try_recv().is_ok() && !needs.here(1));
        let (nothing, mut at_once) = oneshot::channel();
        needs.add(HashSet::new(), nothing);
        assert!(at_once.try_recv().is_ok());
    }

    #[test]
    fn the_policy_hears_of_no_more_than_a_host_is_asked() {
        let mut needs = Needs::new(&Config::ours());
        let (done, mut told) = oneshot::channel();
        needs.add((0..100).collect(), done);
        let mut asked = Vec::new();
        asked.extend(std::iter::from_fn(|| needs.next()));
        assert_eq!(asked.len(), 32 - 4 - FEW_MAX);
        // who waits for little isn't held up
        let (done, mut little) = oneshot::channel();
        let late = (0..100).find(|piece| !asked.contains(piece)).unwrap();
        needs.add(HashSet::from([200, late]), done);
        asked.extend(std::iter::from_fn(|| needs.next()));
        let mut more = asked[20..].to_vec();
        more.sort_unstable();
        assert_eq!(more, [late, 200]);
        assert!(needs.here(200) && needs.here(late) && little.try_recv().is_ok());
        // a piece that comes unasked makes no room, one that was asked does
        let unasked = (0..100).find(|piece| !asked.contains(piece)).unwrap();
        assert!(!needs.waits_for(unasked) && needs.waits_for(asked[0]));
        assert!(needs.here(unasked) && needs.next().is_none());
        assert!(needs.here(asked[0]) && needs.next().is_some() && needs.next().is_none());
        (0..100).for_each(|piece| {
            needs.here(piece);
        });
        assert!(told.try_recv().is_ok() && needs.len() == 0);
        let (done, mut told) = oneshot::channel();
        needs.add((0..=NEEDS_MAX as PieceId).collect(), done);
        assert_eq!(told.try_recv(), Ok(Err(SwarmError::TooMany)));
    }

    #[test]
    fn what_never_comes_and_nobody_waits_for_makes_room_after_a_while() {
        let mut needs = Needs::new(&Config::ours());
        let (done, told) = oneshot::channel();
        needs.add((0..100).collect(), done);
        let asked: Vec<PieceId> = std::iter::from_fn(|| needs.next()).collect();
        assert!(needs.sweep(LEFT_US).is_empty() && needs.sweep(3 * LEFT_US).is_empty());
        drop(told);
        let now_us = 4 * LEFT_US;
        assert!(needs.sweep(now_us).is_empty());
        assert!(needs.sweep(now_us + LEFT_US - 1).is_empty());
        // somebody waits for one of them again
        let (done, mut again) = oneshot::channel();
        needs.add(HashSet::from([asked[0]]), done);
        let left = needs.sweep(now_us + LEFT_US);
        assert_eq!(left.len(), asked.len() - 1);
        assert!(needs.waits_for(asked[0]) && !needs.waits_for(left[0]));
        // as many others are asked for
        assert_eq!(std::iter::from_fn(|| needs.next()).count(), left.len());
        assert!(needs.here(asked[0]) && again.try_recv() == Ok(Ok(())));
    }

    #[test]
    fn who_gives_up_is_forgotten() {
        let mut needs = Needs::new(&Config::ours());
        for _ in 0..1000 {
            let (done, told) = oneshot::channel();
            needs.add(HashSet::from([5]), done);
            drop(told);
        }
        assert_eq!((needs.waiters.len(), needs.pieces[&5].len()), (1, 1));
    }
}

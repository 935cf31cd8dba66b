//! What is fetched ahead: first what somebody reads ahead and waits for, then what is predicted; and copies. No I/O.
use super::needs::{Done, NEEDS_MAX};
use crate::swarm::SwarmError;
use floe_swarm::policy::{PieceId, WINDOW_MAX};
use std::collections::{BTreeMap, HashMap, HashSet};

struct Waiter {
    /// Pieces that it still waits for.
    left: HashSet<PieceId>,
    done: Done,
}

/// A piece that is waited for.
struct Wanted {
    /// Its place among the others: first come, first fetched.
    place: u64,
    /// Waiters, by number.
    by: Vec<u64>,
}

/// Pieces, and who waits for them.
#[derive(Default)]
struct List {
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    pieces: HashMap<PieceId, Wanted>,
    order: BTreeMap<u64, PieceId>,
    next_place: u64,
    /// Whether there is more or less than what came since it was last looked at.
    changed: bool,
}

impl List {
    fn add(&mut self, lacks: Vec<PieceId>, done: Done) {
        if lacks.is_empty() {
            let _ = done.send(Ok(()));
            return;
        }
        if self.pieces.len() + lacks.len() > NEEDS_MAX {
            let _ = done.send(Err(SwarmError::TooMany));
            return;
        }
        let id = self.next_waiter;
        self.next_waiter += 1;
        let mut left = HashSet::new();
        for piece in lacks {
            if !left.insert(piece) {
                continue;
            }
            let wanted = self.pieces.entry(piece).or_insert_with(|| {
                let place = self.next_place;
                self.next_place += 1;
                self.order.insert(place, piece);
                self.changed = true;
                let by = Vec::new();
                Wanted { place, by }
            });
            wanted.by.push(id);
        }
        self.waiters.insert(id, Waiter { left, done });
    }

    fn here(&mut self, piece: PieceId) {
        let Some(wanted) = self.pieces.remove(&piece) else {
            return;
        };
        self.order.remove(&wanted.place);
        for id in wanted.by {
            let Some(waiter) = self.waiters.get_mut(&id) else {
                continue;
            };
            waiter.left.remove(&piece);
            if waiter.left.is_empty()
                && let Some(waiter) = self.waiters.remove(&id)
            {
                let _ = waiter.done.send(Ok(()));
            }
        }
    }

    fn sweep(&mut self) {
        let given_up = self.waiters.iter();
        let given_up = given_up.filter(|(_, waiter)| waiter.done.is_closed());
        let given_up: Vec<u64> = given_up.map(|(id, _)| *id).collect();
        for id in given_up {
            let left = self.waiters.remove(&id).map(|waiter| waiter.left);
            for piece in left.unwrap_or_default() {
                self.unwant(id, piece);
            }
        }
    }

    fn unwant(&mut self, id: u64, piece: PieceId) {
        let Some(wanted) = self.pieces.get_mut(&piece) else {
            return;
        };
        wanted.by.retain(|other| *other != id);
        if wanted.by.is_empty() {
            self.order.remove(&wanted.place);
            self.pieces.remove(&piece);
            self.changed = true;
        }
    }
}

#[derive(Default)]
pub(super) struct Wants {
    wanted: List,
    copied: List,
    predicted: Vec<PieceId>,
    /// When those are due, in milliseconds since the start of a run; empty if nobody knows.
    due_ms: Vec<u32>,
    changed: bool,
}

impl Wants {
    /// Returns the number of pieces that are waited for.
    pub(super) fn len(&self) -> usize {
        self.wanted.pieces.len() + self.copied.pieces.len()
    }

    /// Replaces the prediction.
    pub(super) fn predict(&mut self, mut pieces: Vec<PieceId>, mut due_ms: Vec<u32>) {
        pieces.truncate(WINDOW_MAX);
        due_ms.truncate(WINDOW_MAX);
        (self.predicted, self.due_ms) = (pieces, due_ms);
        self.changed = true;
    }

    /// Somebody waits for all of `lacks` from now on, the first ones first, unless these are too many.
    pub(super) fn add(&mut self, lacks: Vec<PieceId>, done: Done) {
        self.wanted.add(lacks, done);
    }

    /// The same, in any order and after all else.
    pub(super) fn copy(&mut self, lacks: Vec<PieceId>, done: Done) {
        self.copied.add(lacks, done);
    }

    /// A piece is here.
    pub(super) fn here(&mut self, piece: PieceId) {
        self.wanted.here(piece);
        self.copied.here(piece);
    }

    /// Forgets those who have given up, and the pieces that nobody else waits for.
    pub(super) fn sweep(&mut self) {
        self.wanted.sweep();
        self.copied.sweep();
    }

    /// Returns what is to be fetched ahead, in order, and when it is due, if that has changed since the last call by more than what came.
    pub(super) fn window(&mut self) -> Option<(Vec<PieceId>, Vec<u32>)> {
        let listed = std::mem::take(&mut self.wanted.changed);
        if !std::mem::take(&mut self.changed) && !listed {
            return None;
        }
        let wanted = &self.wanted.order;
        let window = wanted.values().chain(&self.predicted).copied();
        let pieces = window.take(WINDOW_MAX).collect();
        let due_ms = match self.due_ms.is_empty() {
            true => Vec::new(),
            false => {
                let now = std::iter::repeat_n(0, wanted.len());
                now.chain(self.due_ms.iter().copied()).collect()
            }
        };
        Some((pieces, due_ms))
    }

    /// Returns what is to be copied, if that has changed likewise.
    pub(super) fn copies(&mut self) -> Option<Vec<PieceId>> {
        let changed = std::mem::take(&mut self.copied.changed);
        changed.then(|| self.copied.order.values().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn what_is_waited_for_goes_before_what_is_predicted() {
        let mut wants = Wants::default();
        assert_eq!(wants.window(), None);
        wants.predict(vec![1, 2, 3], vec![10, 20, 30]);
        let (done, mut told) = oneshot::channel();
        wants.add(vec![9, 2, 9], done);
        let (other, mut other_told) = oneshot::channel();
        wants.add(vec![7, 2], other);
        let (pieces, due_ms) = wants.window().unwrap();
        assert_eq!(pieces, [9, 2, 7, 1, 2, 3]);
        assert_eq!(due_ms, [0, 0, 0, 10, 20, 30]);
        assert_eq!((wants.window(), wants.len()), (None, 3));
        wants.here(2);
        wants.here(100);
        assert!(told.try_recv().is_err() && other_told.try_recv().is_err());
        wants.here(9);
        assert_eq!(told.try_recv(), Ok(Ok(())));
        wants.here(7);
        assert_eq!(other_told.try_recv(), Ok(Ok(())));
        // what came is no change of what is to come
        assert_eq!((wants.window(), wants.len()), (None, 0));
        let (nothing, mut at_once) = oneshot::channel();
        wants.add(Vec::new(), nothing);
        assert_eq!(at_once.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn who_gives_up_is_forgotten_and_so_is_what_nobody_else_wants() {
        let mut wants = Wants::default();
        let (stays, mut told) = oneshot::channel();
        wants.add(vec![1, 2], stays);
        for _ in 0..100 {
            let (goes, gone) = oneshot::channel();
            wants.add(vec![2, 3], goes);
            drop(gone);
        }
        assert_eq!(wants.window().unwrap(), (vec![1, 2, 3], vec![]));
        wants.sweep();
        assert_eq!(wants.window().unwrap(), (vec![1, 2], vec![]));
        let list = &wants.wanted;
        assert_eq!((list.waiters.len(), list.pieces[&2].by.len()), (1, 1));
        wants.here(1);
        wants.here(2);
        assert_eq!(told.try_recv(), Ok(Ok(())));
        let (done, mut told) = oneshot::channel();
        wants.add((0..=NEEDS_MAX as PieceId).collect(), done);
        assert_eq!(told.try_recv(), Ok(Err(SwarmError::TooMany)));
        assert_eq!((wants.len(), wants.wanted.order.len()), (0, 0));
    }

    #[test]
    fn what_is_copied_is_no_part_of_the_window_and_ends_with_those_who_wait_for_it() {
        let mut wants = Wants::default();
        let (done, mut told) = oneshot::channel();
        let (goes, gone) = oneshot::channel();
        wants.copy(vec![4, 5], done);
        wants.copy(vec![5, 6], goes);
        assert_eq!(wants.copies(), Some(vec![4, 5, 6]));
        assert_eq!(
            (wants.copies(), wants.window(), wants.len()),
            (None, None, 3)
        );
        drop(gone);
        wants.sweep();
        assert_eq!(wants.copies(), Some(vec![4, 5]));
        [5, 4].into_iter().for_each(|piece| wants.here(piece));
        assert_eq!((told.try_recv(), wants.copies()), (Ok(Ok(())), None));
        let (wanted, mut told) = oneshot::channel();
        wants.add(vec![7], wanted);
        assert_eq!(
            (wants.copies(), wants.window()),
            (None, Some((vec![7], vec![])))
        );
        wants.here(7);
        assert_eq!(told.try_recv(), Ok(Ok(())));
    }
}

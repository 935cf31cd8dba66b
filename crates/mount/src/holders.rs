//! Which machines have maps of their disks' files, where not all can have some: those that were used last.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// For so long after a machine was used it keeps its maps, whoever else wants some: who sits in front of it may only be reading. As much time
/// lies between two tries to make those that could not be made.
const HELD_FOR: Duration = Duration::from_secs(10);

/// The machines that have maps.
pub(crate) struct Holders<T> {
    places: usize,
    /// The one that was used longest ago first.
    all: Vec<Holder<T>>,
}

struct Holder<T> {
    /// What it has; gone with the machine.
    of: Weak<T>,
    used: Instant,
    looked: Instant,
}

/// What becomes of a machine's maps when it is used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn<T> {
    /// All places are taken by machines that were used a moment ago: it has none, until it is used later.
    Waits,
    /// It is to make its maps, and has a place for them: that of another machine, which has given up what it had, if none was free.
    Begins { instead_of: Option<Arc<T>> },
    /// It has its maps.
    Has,
    /// It has them, and is to try again what could not be read.
    LooksAgain,
}

impl<T> Holders<T> {
    /// Makes so many places.
    pub(crate) const fn new(places: usize) -> Holders<T> {
        Holders {
            places,
            all: Vec::new(),
        }
    }

    /// Notes that the machine whose maps these are is used.
    pub(crate) fn used(&mut self, now: Instant, whose: &Arc<T>) -> Turn<T> {
        self.all.retain(|holder| holder.of.strong_count() > 0);
        let is_long_ago = |then: Instant| now.saturating_duration_since(then) >= HELD_FOR;
        let is_its = |holder: &Holder<T>| holder.of.as_ptr() == Arc::as_ptr(whose);
        if let Some(at) = self.all.iter().position(is_its) {
            let mut holder = self.all.remove(at);
            holder.used = now;
            let looks = is_long_ago(holder.looked);
            if looks {
                holder.looked = now;
            }
            self.all.push(holder);
            return if looks { Turn::LooksAgain } else { Turn::Has };
        }
        let mut instead_of = None;
        if self.all.len() >= self.places {
            match self.all.first() {
                Some(oldest) if is_long_ago(oldest.used) => {
                    instead_of = self.all.remove(0).of.upgrade();
                }
                _ => return Turn::Waits,
            }
        }
        self.all.push(Holder {
            of: Arc::downgrade(whose),
            used: now,
            looked: now,
        });
        Turn::Begins { instead_of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_one_that_was_used_longest_ago_gives_its_place_up_but_not_at_once() {
        let [a, b, c] = ["a", "b", "c"].map(Arc::new);
        let begins = |instead_of: Option<&Arc<&'static str>>| Turn::Begins {
            instead_of: instead_of.cloned(),
        };
        let (mut holders, start) = (Holders::new(2), Instant::now());
        assert_eq!(holders.used(start, &a), begins(None));
        assert_eq!(holders.used(start + SECOND, &b), begins(None));
        assert_eq!(holders.used(start + SECOND * 2, &a), Turn::Has);
        // b is the oldest one now, and was used a moment ago
        assert_eq!(holders.used(start + SECOND * 10, &c), Turn::Waits);
        assert_eq!(holders.used(start + SECOND * 11, &c), begins(Some(&b)));
        assert_eq!(holders.used(start + SECOND * 11, &b), Turn::Waits);
        assert_eq!(holders.used(start + SECOND * 12, &b), begins(Some(&a)));
        // one that is gone leaves its place
        drop(c);
        assert_eq!(holders.used(start + SECOND * 13, &a), begins(None));
        assert_eq!(holders.used(start + SECOND * 13, &b), Turn::Has);
    }

    #[test]
    fn what_could_not_be_read_is_looked_at_again_now_and_then_however_often_somebody_clicks() {
        let (mut holders, start, one) = (Holders::new(2), Instant::now(), Arc::new(()));
        let turns = (0..300).map(|tenth| holders.used(start + SECOND / 10 * tenth, &one));
        let turns: Vec<Turn<()>> = turns.collect();
        let looked = turns.iter().filter(|turn| **turn == Turn::LooksAgain);
        assert_eq!(looked.count(), 2);
    }
}

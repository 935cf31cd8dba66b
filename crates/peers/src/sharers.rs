//! How many swarms of a host fetch ahead at a time: they share its link.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those that do, of all swarms of a host.
#[derive(Debug, Default)]
pub(crate) struct Sharers(AtomicUsize);

/// One swarm's place among them, which ends with this.
pub(crate) struct Sharer {
    all: Arc<Sharers>,
    counts: bool,
}

impl Sharer {
    /// Returns the place of a swarm that fetches nothing ahead yet.
    pub(crate) fn new(all: Arc<Sharers>) -> Sharer {
        Sharer { all, counts: false }
    }

    /// Notes whether this swarm fetches ahead. Returns how many do, this one included in any case: it may be about to.
    pub(crate) fn fetches(&mut self, fetches: bool) -> usize {
        let number = &self.all.0;
        match (self.counts, fetches) {
            (false, true) => {
                number.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                number.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        self.counts = fetches;
        let others = number.load(Ordering::Relaxed);
        1 + others.saturating_sub(usize::from(fetches))
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.fetches(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swarm_counts_while_it_fetches_ahead_and_no_longer_than_it_lives() {
        let all = Arc::new(Sharers::default());
        let mut one = Sharer::new(all.clone());
        let mut other = Sharer::new(all);
        assert_eq!((one.fetches(false), other.fetches(false)), (1, 1));
        assert_eq!((one.fetches(true), one.fetches(true)), (1, 1));
        assert_eq!((other.fetches(false), other.fetches(true)), (2, 2));
        assert_eq!((one.fetches(true), one.fetches(false)), (2, 2));
        assert_eq!(other.fetches(true), 1);
        one.fetches(true);
        drop(one);
        assert_eq!(other.fetches(true), 1);
    }
}

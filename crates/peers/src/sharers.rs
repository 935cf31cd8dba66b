//! How many swarms of a host fetch what no machine waits for, at a time: they share its link.
use floe_swarm::policy::Purpose;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those that do, of all swarms of a host.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    ahead: AtomicUsize,
    copy: AtomicUsize,
}

impl Sharers {
    fn of(&self, purpose: Purpose) -> &AtomicUsize {
        match purpose {
            Purpose::Copy => &self.copy,
            Purpose::Prefetch | Purpose::Demand => &self.ahead,
        }
    }
}

/// One swarm's place among them, which ends with this.
pub(crate) struct Sharer {
    all: Arc<Sharers>,
    counts: Option<Purpose>,
}

impl Sharer {
    /// Returns the place of a swarm that fetches nothing yet.
    pub(crate) fn new(all: Arc<Sharers>) -> Sharer {
        Sharer { all, counts: None }
    }

    /// Notes for what this swarm fetches. Returns how many others fetch ahead, and how many others only copy.
    pub(crate) fn fetches(&mut self, what: Option<Purpose>) -> (usize, usize) {
        if let Some(before) = self.counts.take() {
            self.all.of(before).fetch_sub(1, Ordering::Relaxed);
        }
        let others = |purpose| self.all.of(purpose).load(Ordering::Relaxed);
        let others = (others(Purpose::Prefetch), others(Purpose::Copy));
        if let Some(now) = what {
            self.all.of(now).fetch_add(1, Ordering::Relaxed);
        }
        self.counts = what;
        others
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        self.fetches(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swarm_counts_while_it_fetches_and_no_longer_than_it_lives() {
        const AHEAD: Option<Purpose> = Some(Purpose::Prefetch);
        const COPY: Option<Purpose> = Some(Purpose::Copy);
        let all = Arc::new(Sharers::default());
        let mut one = Sharer::new(all.clone());
        let mut other = Sharer::new(all);
        assert_eq!((one.fetches(None), other.fetches(None)), ((0, 0), (0, 0)));
        assert_eq!((one.fetches(AHEAD), one.fetches(AHEAD)), ((0, 0), (0, 0)));
        assert_eq!((other.fetches(None), other.fetches(COPY)), ((1, 0), (1, 0)));
        assert_eq!((one.fetches(AHEAD), one.fetches(COPY)), ((0, 1), (0, 1)));
        assert_eq!(other.fetches(COPY), (0, 1));
        assert_eq!((one.fetches(None), other.fetches(AHEAD)), ((0, 1), (0, 0)));
        assert_eq!(one.fetches(COPY), (1, 0));
        drop(other);
        assert_eq!(one.fetches(COPY), (0, 0));
    }
}

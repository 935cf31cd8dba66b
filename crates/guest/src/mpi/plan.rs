//! Decides how many clones a job needs, and how it runs if there are fewer.

/// What to do with fewer clones than the ranks need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fewer {
    /// Run nothing.
    #[default]
    Fail,
    /// Run all ranks, more of them on each clone.
    Pack,
    /// Run only as many ranks as have their own place.
    Shrink,
}

/// The ranks to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// Ranks on each machine, at least 1.
    pub each: u32,
    /// Whether the first ranks run in the parent machine.
    pub here: bool,
    /// What to do if there are fewer clones than needed.
    pub fewer: Fewer,
}

/// How a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Number of ranks.
    pub ranks: u32,
    /// Most ranks on one machine.
    pub each: u32,
}

/// There are fewer clones than a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFew {
    /// Number of clones that it needs.
    pub needed: u32,
}

impl Job {
    /// Returns the number of clones that the job needs.
    pub fn clones(&self) -> u32 {
        let machines = self.ranks.max(1).div_ceil(self.each.max(1));
        machines - u32::from(self.here)
    }

    /// Returns how the job runs on this many clones. If any clone is needed, having none is an error.
    pub fn spread(&self, clones: u32) -> Result<Spread, TooFew> {
        let needed = self.clones();
        let whole = Spread {
            ranks: self.ranks.max(1),
            each: self.each.max(1),
        };
        if clones >= needed {
            return Ok(whole);
        }
        let machines = clones + u32::from(self.here);
        match self.fewer {
            _ if clones == 0 => Err(TooFew { needed }),
            Fewer::Fail => Err(TooFew { needed }),
            Fewer::Pack => Ok(Spread {
                each: whole.ranks.div_ceil(machines),
                ..whole
            }),
            Fewer::Shrink => Ok(Spread {
                ranks: whole.ranks.min(machines.saturating_mul(whole.each)),
                ..whole
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(ranks: u32, each: u32, here: bool, fewer: Fewer) -> Job {
        Job {
            ranks,
            each,
            here,
            fewer,
        }
    }

    #[test]
    fn fewer_clones_are_what_the_user_has_chosen() {
        let spread = |fewer, clones| job(8, 2, false, fewer).spread(clones);
        assert_eq!(job(8, 2, false, Fewer::Fail).clones(), 4);
        assert_eq!(job(8, 2, true, Fewer::Fail).clones(), 3);
        assert_eq!(job(2, 2, true, Fewer::Fail).clones(), 0);
        assert_eq!(spread(Fewer::Fail, 4), Ok(Spread { ranks: 8, each: 2 }));
        assert_eq!(spread(Fewer::Fail, 3), Err(TooFew { needed: 4 }));
        assert_eq!(spread(Fewer::Pack, 3), Ok(Spread { ranks: 8, each: 3 }));
        assert_eq!(spread(Fewer::Shrink, 3), Ok(Spread { ranks: 6, each: 2 }));
        for fewer in [Fewer::Fail, Fewer::Pack, Fewer::Shrink] {
            assert_eq!(spread(fewer, 0), Err(TooFew { needed: 4 }));
            assert!(job(2, 2, true, fewer).spread(0).is_ok());
        }
    }

    proptest! {
        #[test]
        fn every_rank_has_a_place(ranks in 0u32..5000, each in 0u32..70, here: bool, clones in 0u32..300, pack: bool) {
            let job = job(ranks, each, here, if pack { Fewer::Pack } else { Fewer::Shrink });
            if let Ok(spread) = job.spread(clones) {
                let machines = clones + u32::from(here);
                prop_assert!(spread.ranks >= 1 && spread.ranks <= ranks.max(1));
                prop_assert!(u64::from(machines) * u64::from(spread.each) >= u64::from(spread.ranks));
            } else {
                prop_assert!(clones == 0 && job.clones() > 0);
            }
        }
    }
}

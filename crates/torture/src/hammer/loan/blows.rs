//! Decides from a seed alone what is hit on a machine's next way between the two hosts, and when. No I/O, no clock.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::time::Duration;

/// What a blow hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Hit {
    /// The device's node, which lends the machine: killed.
    Device,
    /// The strong host's node, which borrows it: killed.
    Cloud,
    /// The process that holds the device's mount: killed.
    DeviceSupervisor,
    /// The process that holds the strong host's mount: killed.
    CloudSupervisor,
    /// The link between the two hosts: cut, and mended.
    Link,
}

/// All of them.
pub const HITS: [Hit; 5] = [
    Hit::Device,
    Hit::Cloud,
    Hit::DeviceSupervisor,
    Hit::CloudSupervisor,
    Hit::Link,
];

impl Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Hit::Device => "device",
            Hit::Cloud => "cloud",
            Hit::DeviceSupervisor => "device's supervisor",
            Hit::CloudSupervisor => "cloud's supervisor",
            Hit::Link => "link",
        })
    }
}

impl Hit {
    /// Returns how often it is chosen relative to others.
    fn weight(self) -> u32 {
        match self {
            Hit::Device | Hit::Cloud => 30,
            Hit::DeviceSupervisor | Hit::CloudSupervisor => 6,
            Hit::Link => 28,
        }
    }

    /// Returns the host of a process: 0 for the device, 1 for the strong host.
    pub fn host(self) -> Option<usize> {
        match self {
            Hit::Device | Hit::DeviceSupervisor => Some(0),
            Hit::Cloud | Hit::CloudSupervisor => Some(1),
            Hit::Link => None,
        }
    }
}

/// What is hit on one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Blow {
    /// Its number, from 1.
    pub number: u64,
    /// What is hit at the same time: one, or two different ones.
    pub hits: Vec<Hit>,
    /// After which part of the time that a way takes without blows: a little more than 1 is when it has just ended.
    pub at: f64,
    /// How long killed nodes stay away, and the link is cut.
    pub hold: Duration,
    /// Whether the machine is synced before it goes.
    pub synced: bool,
}

impl Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let hits: Vec<String> = self.hits.iter().map(Hit::to_string).collect();
        let (at, hold) = (100.0 * self.at, self.hold.as_millis());
        write!(
            f,
            "{} after {at:.0} % of the way, for {hold} ms",
            hits.join(" and ")
        )
    }
}

/// Percentage of blows that hit two at once.
const PAIRS_PERCENT: u32 = 25;
/// Percentage of ways before which the machine is synced.
const SYNCED_PERCENT: u32 = 30;
/// The last moment of a blow, as in [`Blow::at`].
const AT_MAX: f64 = 1.2;
/// Shortest and longest time that something stays away, in milliseconds: some of them are longer than a way.
const HOLD_MS: std::ops::Range<u64> = 50..4000;

/// The endless list of blows of a seed.
pub struct Blows {
    random: StdRng,
    number: u64,
}

impl Blows {
    /// Makes the list of `seed`.
    pub fn new(seed: u64) -> Blows {
        Blows {
            random: StdRng::seed_from_u64(seed),
            number: 0,
        }
    }

    fn hit(&mut self) -> Hit {
        *HITS
            .choose_weighted(&mut self.random, |hit| hit.weight())
            .expect("there is one, and no weight is zero")
    }

    /// Returns the next blow. A host's node and supervisor are never hit together: with both gone nobody holds the mount, which ends every
    /// machine on it.
    pub fn next_blow(&mut self) -> Blow {
        self.number += 1;
        let first = self.hit();
        let mut hits = vec![first];
        if self.random.random_ratio(PAIRS_PERCENT, 100) {
            let second = self.hit();
            let same_host = first.host().is_some() && first.host() == second.host();
            if second != first && !same_host {
                hits.push(second);
            }
        }
        Blow {
            number: self.number,
            hits,
            at: self.random.random_range(0.0..AT_MAX),
            hold: Duration::from_millis(self.random.random_range(HOLD_MS)),
            synced: self.random.random_ratio(SYNCED_PERCENT, 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_seed_gives_the_same_blows_again_and_another_gives_others() {
        let list = |seed| {
            let mut blows = Blows::new(seed);
            (0..100).map(|_| blows.next_blow()).collect::<Vec<_>>()
        };
        assert_eq!(list(5), list(5));
        assert_ne!(list(5), list(6));
    }

    #[test]
    fn everything_is_hit_early_and_late_and_no_host_loses_both_of_its_processes() {
        let mut blows = Blows::new(1);
        let mut seen = BTreeMap::<(Hit, bool), u32>::new();
        let mut pairs = 0;
        for number in 1..=2000 {
            let blow = blows.next_blow();
            assert_eq!(blow.number, number);
            for hit in &blow.hits {
                *seen.entry((*hit, blow.at > AT_MAX / 2.0)).or_default() += 1;
            }
            let hosts: Vec<usize> = blow.hits.iter().filter_map(|hit| hit.host()).collect();
            assert!(hosts.len() < 2 || hosts[0] != hosts[1], "{blow}");
            pairs += u32::from(blow.hits.len() == 2);
        }
        for hit in HITS {
            for late in [false, true] {
                assert!(seen[&(hit, late)] > 20, "{hit}, late: {late}");
            }
        }
        assert!(pairs > 100, "{pairs}");
    }
}

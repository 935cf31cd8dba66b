//! Decides which blow comes next, and at which moment, from a seed alone, so that a run can be repeated. No I/O, no
//! clock.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::time::Duration;

/// What a blow hits.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    Serialize,
    Deserialize,
)]
pub enum Victim {
    /// The node that runs the machines: killed.
    Node,
    /// The process that holds the node's mount: killed.
    Supervisor,
    /// The hub: killed.
    Hub,
    /// The QEMU of a machine: killed. Its guest is started again from its disk.
    Qemu,
    /// The link between node and hub: cut, and restored.
    Network,
    /// The disk with the node's state directory: filled, and freed again.
    Disk,
}

/// All kinds of victims.
pub const VICTIMS: [Victim; 6] = [
    Victim::Node,
    Victim::Supervisor,
    Victim::Hub,
    Victim::Qemu,
    Victim::Network,
    Victim::Disk,
];

impl Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = match self {
            Victim::Node => "node",
            Victim::Supervisor => "supervisor",
            Victim::Hub => "hub",
            Victim::Qemu => "qemu",
            Victim::Network => "network",
            Victim::Disk => "disk",
        };
        f.pad(name)
    }
}

impl Victim {
    /// Returns how often a victim is chosen relative to others. A QEMU's guest boots for seconds, which leaves less time
    /// for other blows.
    fn weight(self) -> u32 {
        match self {
            Victim::Node => 38,
            Victim::Supervisor => 14,
            Victim::Hub => 18,
            Victim::Qemu => 6,
            Victim::Network => 16,
            Victim::Disk => 8,
        }
    }
}

/// The moment at which a blow falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Moment {
    /// At any time.
    Any,
    /// While a machine is captured: the pause is in the first tenths of a second.
    Capture,
    /// While a machine is forked.
    Fork,
    /// While an image is pushed to the hub.
    Push,
    /// While an image is pulled from it.
    Pull,
    /// While the node that was just killed starts again.
    Start,
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = match self {
            Moment::Any => "at any time",
            Moment::Capture => "in a capture",
            Moment::Fork => "in a fork",
            Moment::Push => "in a push",
            Moment::Pull => "in a pull",
            Moment::Start => "in a start",
        };
        f.pad(name)
    }
}

/// One blow: what is hit at the same time, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blow {
    /// Its number, from 1.
    pub number: u64,
    /// One victim, or two different ones.
    pub victims: Vec<Victim>,
    /// The moment that it waits for.
    pub moment: Moment,
    /// The delay after that moment.
    pub delay: Duration,
    /// How long a network is down or a disk is full.
    pub hold: Duration,
    /// A random number to choose among several victims: which machine's QEMU.
    pub choice: usize,
}

impl Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let victims: Vec<String> = self.victims.iter().map(Victim::to_string).collect();
        let (delay, moment) = (self.delay.as_millis(), self.moment);
        write!(f, "{} {moment}, after {delay} ms", victims.join(" and "))
    }
}

/// The endless list of blows of a seed.
pub struct Schedule {
    random: StdRng,
    victims: Vec<Victim>,
    number: u64,
}

/// Percentage of blows that hit two victims at once.
const PAIRS_PERCENT: u32 = 20;
/// The first milliseconds of a node, in which it has not yet taken over anything.
const START_MS: u64 = 400;
/// The first milliseconds of a capture or fork, which include its pause.
const PAUSE_MS: u64 = 400;
/// The first milliseconds of a transfer.
const TRANSFER_MS: u64 = 600;
/// Longest pause before a blow that waits for no moment, in milliseconds.
const ANY_MS: u64 = 1200;

impl Schedule {
    /// Makes the schedule of `seed` with these victims.
    pub fn new(seed: u64, victims: &[Victim]) -> Schedule {
        assert!(!victims.is_empty(), "somebody must be hit");
        Schedule {
            random: StdRng::seed_from_u64(seed),
            victims: victims.to_vec(),
            number: 0,
        }
    }

    fn victim(&mut self) -> Victim {
        let chosen = self
            .victims
            .choose_weighted(&mut self.random, |victim| victim.weight());
        *chosen.expect("there is one, and no weight is zero")
    }

    /// Chooses what is hit together with the first victim. Node and supervisor are never hit together: with both gone
    /// nobody holds the mount, which ends every machine on it, and only a design with a third process could prevent that.
    fn second(&mut self, first: Victim) -> Option<Victim> {
        let second = self.victim();
        let fatal = [Victim::Node, Victim::Supervisor];
        let both = fatal.contains(&first) && fatal.contains(&second);
        (second != first && !both).then_some(second)
    }

    /// Returns the next blow.
    pub fn next_blow(&mut self) -> Blow {
        self.number += 1;
        let first = self.victim();
        let mut victims = vec![first];
        if self.random.random_ratio(PAIRS_PERCENT, 100) {
            victims.extend(self.second(first));
        }
        let moments: &[(Moment, u32)] = match first {
            Victim::Node => &[
                (Moment::Any, 30),
                (Moment::Start, 25),
                (Moment::Capture, 20),
                (Moment::Fork, 20),
                (Moment::Pull, 5),
            ],
            Victim::Hub | Victim::Network => {
                &[(Moment::Any, 50), (Moment::Push, 30), (Moment::Pull, 20)]
            }
            _ => &[(Moment::Any, 60), (Moment::Capture, 20), (Moment::Fork, 20)],
        };
        let chosen = moments.choose_weighted(&mut self.random, |(_, weight)| *weight);
        let (moment, _) = *chosen.expect("the list is not empty");
        let within = match moment {
            Moment::Any => ANY_MS,
            Moment::Start => START_MS,
            Moment::Capture | Moment::Fork => PAUSE_MS,
            Moment::Push | Moment::Pull => TRANSFER_MS,
        };
        Blow {
            number: self.number,
            victims,
            moment,
            delay: Duration::from_millis(self.random.random_range(0..within)),
            hold: Duration::from_millis(self.random.random_range(100..1500)),
            choice: self.random.random_range(0..1 << 16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_seed_gives_the_same_blows_again_and_another_gives_others() {
        let blows = |seed| {
            let mut schedule = Schedule::new(seed, &VICTIMS);
            (0..200).map(|_| schedule.next_blow()).collect::<Vec<_>>()
        };
        assert_eq!(blows(5), blows(5));
        assert_ne!(blows(5), blows(6));
    }

    #[test]
    fn every_victim_is_hit_at_every_moment_that_concerns_it() {
        let mut schedule = Schedule::new(1, &VICTIMS);
        let mut seen = BTreeMap::<(Victim, Moment), u32>::new();
        for _ in 0..2000 {
            let blow = schedule.next_blow();
            for victim in &blow.victims {
                *seen.entry((*victim, blow.moment)).or_default() += 1;
            }
            assert!(blow.victims.len() <= 2);
            assert!(
                !(blow.victims.contains(&Victim::Node)
                    && blow.victims.contains(&Victim::Supervisor))
            );
        }
        for victim in VICTIMS {
            assert!(seen[&(victim, Moment::Any)] > 20, "{victim}");
            let count: u32 = seen
                .iter()
                .filter(|((v, _), _)| *v == victim)
                .map(|(_, n)| n)
                .sum();
            assert!(count > 100, "{victim} is hit {count} times in 2000");
        }
        for moment in [Moment::Start, Moment::Capture, Moment::Fork] {
            assert!(seen[&(Victim::Node, moment)] > 50, "{moment}");
        }
        assert!(seen[&(Victim::Hub, Moment::Push)] > 20);
    }

    #[test]
    fn only_those_that_were_asked_for_are_hit() {
        let mut schedule = Schedule::new(3, &[Victim::Hub]);
        for number in 1..100 {
            let blow = schedule.next_blow();
            assert_eq!((blow.number, blow.victims), (number, vec![Victim::Hub]));
        }
    }
}

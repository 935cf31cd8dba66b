//! From which distance on siblings are brought together.

use super::base::MS;
use crate::MachineId;
use std::collections::BTreeMap;

/// The paper's: two thirds of the queue (section 4.3.3).
pub const TWO_THIRDS: Threshold = Threshold::Fixed(667);

/// The least and the most that the adaptive threshold can be, in thousandths of the queue: the range that notes on the paper sweep.
pub const LEAST: u32 = 333;
/// See [`LEAST`]. With the whole queue nobody is far enough, and nothing is lent.
pub const MOST: u32 = 1000;
const STEP: u32 = 167;
/// How long a setting is tried.
const EPOCH_NS: u64 = 100 * MS as u64;
/// Below so many spins in a second of processor time a machine doesn't wait for its siblings: nothing is to be gained.
const CALM_PER_S: u64 = 20;
/// A change of the spins by less than this many percent is chance.
const CHANCE_PCT: u64 = 10;

/// From which scheduling distance on a vCPU lends, in thousandths of the sibling's queue.
#[derive(Clone, Debug)]
pub enum Threshold {
    /// Always the same.
    Fixed(u32),
    /// What each machine gains by (section 4.7).
    Adaptive(Adaptive),
}

/// A threshold for each machine that goes on in the direction in which its vCPUs spin less, turns where they spin more, and rests at the
/// top where they don't spin.
#[derive(Clone, Debug, Default)]
pub struct Adaptive {
    machines: BTreeMap<MachineId, Climb>,
}

#[derive(Clone, Debug)]
struct Climb {
    threshold: u32,
    down: bool,
    spins: u64,
    /// Spins in a second of processor time in the last epoch.
    before: Option<u64>,
    began_ns: u64,
    ran_ns: u64,
}

impl Climb {
    fn epoch(&mut self, now_ns: u64, ran_ns: u64) {
        let ran = ran_ns.saturating_sub(self.ran_ns).max(1);
        let rate = (u128::from(self.spins) * 1_000_000_000 / u128::from(ran)) as u64;
        let more = self
            .before
            .is_some_and(|before| rate * 100 > before * (100 + CHANCE_PCT));
        if rate < CALM_PER_S {
            self.down = false;
        } else if more {
            self.down = !self.down;
        } else if self.before.is_none() {
            self.down = true;
        }
        self.threshold = match self.down {
            true => self.threshold.saturating_sub(STEP).max(LEAST),
            false => (self.threshold + STEP).min(MOST),
        };
        // what spins at an end of the range tries the other way next
        if rate >= CALM_PER_S && self.threshold == MOST {
            self.down = true;
        }
        self.before = Some(rate);
        (self.spins, self.began_ns, self.ran_ns) = (0, now_ns, ran_ns);
    }
}

impl Threshold {
    /// Returns the present threshold of a machine in thousandths. `ran_ns` is how long its vCPUs have run altogether.
    pub fn of(&mut self, now_ns: u64, machine: MachineId, ran_ns: impl FnOnce() -> u64) -> u32 {
        let adaptive = match self {
            Threshold::Fixed(thousandths) => return *thousandths,
            Threshold::Adaptive(adaptive) => adaptive,
        };
        let climb = adaptive.climb(machine);
        if now_ns.saturating_sub(climb.began_ns) >= EPOCH_NS {
            climb.epoch(now_ns, ran_ns());
        }
        climb.threshold
    }

    /// A vCPU of this machine spins.
    pub fn spins(&mut self, machine: MachineId) {
        if let Threshold::Adaptive(adaptive) = self {
            adaptive.climb(machine).spins += 1;
        }
    }

    /// Forgets a machine.
    pub fn forget(&mut self, machine: MachineId) {
        if let Threshold::Adaptive(adaptive) = self {
            adaptive.machines.remove(&machine);
        }
    }
}

impl Adaptive {
    fn climb(&mut self, machine: MachineId) -> &mut Climb {
        self.machines.entry(machine).or_insert(Climb {
            threshold: 667,
            down: true,
            spins: 0,
            before: None,
            began_ns: 0,
            ran_ns: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MachineId = MachineId(3);

    /// Lets epochs pass in which a machine spins as often as `spins` says for its threshold, with all of one core's time.
    fn after(epochs: u64, spins: impl Fn(u32) -> u64) -> (Threshold, Vec<u32>) {
        let mut threshold = Threshold::Adaptive(Adaptive::default());
        let mut seen = Vec::new();
        for epoch in 1..=epochs {
            let now_ns = epoch * EPOCH_NS;
            let present = threshold.of(now_ns, MACHINE, || now_ns);
            seen.push(present);
            (0..spins(present)).for_each(|_| threshold.spins(MACHINE));
        }
        (threshold, seen)
    }

    #[test]
    fn a_machine_that_does_not_spin_is_left_alone() {
        let (_, seen) = after(10, |_| 0);
        assert_eq!(seen.last(), Some(&MOST));
    }

    #[test]
    fn it_stays_near_the_threshold_with_the_fewest_spins() {
        for best in [LEAST, 667, MOST] {
            let (_, seen) = after(200, |at| 10 + u64::from(at.abs_diff(best)));
            let late = &seen[100..];
            let off = late
                .iter()
                .map(|at| u64::from(at.abs_diff(best)))
                .sum::<u64>();
            assert!(off / 100 <= u64::from(2 * STEP), "{best}: {late:?}");
        }
    }

    #[test]
    fn a_fixed_threshold_is_fixed_and_a_machine_is_forgotten() {
        let mut fixed = TWO_THIRDS;
        fixed.spins(MACHINE);
        assert_eq!(fixed.of(u64::MAX, MACHINE, || 0), 667);
        let (mut adaptive, _) = after(10, |_| 0);
        adaptive.forget(MACHINE);
        assert_eq!(adaptive.of(0, MACHINE, || 0), 667);
    }
}

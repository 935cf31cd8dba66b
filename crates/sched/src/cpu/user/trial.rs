//! Finds out whether the scheduler helps: everything that it did is undone and done again, several times in turn, and what is seen with it
//! is compared with what is seen without it. Both are measured under the same load in the same minute; only times when machines are short
//! of cores count.

use super::Notice;

/// Time under contention until the first trial, in microseconds: the sooner it is known, the less harm it can do.
const FIRST_US: u64 = 10_000_000;
/// The longest time under contention between two trials, in microseconds. Each one that has shown that it helps doubles the time.
const EVERY_MAX_US: u64 = 900_000_000;
/// Parts of a trial, half of them without.
const PARTS: u32 = 8;
/// Looks in each part. The first of them is not counted: it began under the other part.
const LOOKS: u32 = 4;
/// Looks without contention after which a trial is given up.
const DULL_MAX: u32 = 16;
/// By how much stacking (siblings that share a core) or spread must be less with it than without it; 1 is all of it.
const GAIN_MIN: f64 = 0.02;
/// How much more machines may wait with it than without, as a part of one.
const WAITS_MAX: f64 = 0.02;
/// How much further apart in time siblings may run with it than without it; 1 is as much again. Some of that is the price of keeping them
/// on different cores: one core may be wanted by others more than another.
const APART_IN_TIME_MAX: f64 = 0.05;
/// How long it does nothing the first time that it did not help, in microseconds. Doubles from time to time.
pub const STOPPED_MIN_US: u64 = 600_000_000;
/// How long it does nothing at most, in microseconds.
pub const STOPPED_MAX_US: u64 = 4 * 3_600_000_000;
/// For how long new machines don't end that, in microseconds.
const STOPPED_AT_LEAST_US: u64 = 60_000_000;

/// What was seen in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bucket {
    /// Looks at machines of which several vCPUs were at work.
    pub looks: u64,
    /// Those in which siblings shared a core without need.
    pub stacked: u64,
    /// Times that all vCPUs ran, in microseconds.
    pub run_us: u64,
    /// Times that all vCPUs waited for a core.
    pub wait_us: u64,
    /// By how much longer the first of the siblings that all wanted to run has run than the last.
    pub spread_us: u64,
    /// The time in which that was seen, for each machine.
    pub spread_of_us: u64,
    /// How long it was.
    pub elapsed_us: u64,
    /// Whether siblings wanted to run and had to wait.
    pub contended: bool,
}

impl Bucket {
    fn adds(&mut self, more: &Bucket) {
        self.looks += more.looks;
        self.stacked += more.stacked;
        self.run_us += more.run_us;
        self.wait_us += more.wait_us;
        self.spread_us += more.spread_us;
        self.spread_of_us += more.spread_of_us;
    }

    fn stacking(&self) -> f64 {
        part(self.stacked, self.looks)
    }

    fn spread(&self) -> f64 {
        part(self.spread_us, self.spread_of_us)
    }

    fn steal(&self) -> f64 {
        part(self.wait_us, self.run_us + self.wait_us)
    }
}

fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

/// What it does now.
#[derive(Debug)]
pub(super) struct Phase {
    state: State,
    /// Time under contention until the next trial.
    every_us: u64,
    /// How long it does nothing the next time.
    stopped_us: u64,
}

#[derive(Debug)]
enum State {
    Acts {
        contended_us: u64,
    },
    Trial {
        part: u32,
        look: u32,
        dull: u32,
        with: Bucket,
        without: Bucket,
    },
    Stopped {
        began_us: u64,
        until_us: u64,
        machines: Vec<u64>,
    },
}

impl Phase {
    pub fn begin() -> Phase {
        Phase {
            state: State::Acts { contended_us: 0 },
            every_us: FIRST_US,
            stopped_us: STOPPED_MIN_US,
        }
    }

    /// Whether siblings are to be kept apart now.
    pub fn acts(&self) -> bool {
        match &self.state {
            State::Acts { .. } => true,
            State::Trial { part, .. } => part % 2 == 1,
            State::Stopped { .. } => false,
        }
    }

    pub fn is_trial(&self) -> bool {
        matches!(self.state, State::Trial { .. })
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped { .. })
    }

    /// Does nothing for a time, which is returned in microseconds. `machines` are those that are there now.
    pub fn stop(&mut self, now_us: u64, machines: Vec<u64>) -> u64 {
        let for_us = self.stopped_us;
        self.stopped_us = (2 * for_us).min(STOPPED_MAX_US);
        self.every_us = FIRST_US;
        self.state = State::Stopped {
            began_us: now_us,
            until_us: now_us.saturating_add(for_us),
            machines,
        };
        for_us
    }

    /// Learns what was seen since the last look.
    pub fn passes(&mut self, now_us: u64, machines: Vec<u64>, seen: &Bucket) -> Option<Notice> {
        match &mut self.state {
            State::Acts { contended_us } => {
                *contended_us += if seen.contended { seen.elapsed_us } else { 0 };
                if *contended_us >= self.every_us {
                    self.state = State::Trial {
                        part: 0,
                        look: 0,
                        dull: 0,
                        with: Bucket::default(),
                        without: Bucket::default(),
                    };
                }
                None
            }
            State::Trial {
                part,
                look,
                dull,
                with,
                without,
            } => {
                *dull += u32::from(!seen.contended);
                if *dull > DULL_MAX {
                    self.state = State::Acts { contended_us: 0 };
                    return None;
                }
                let bucket = match *part % 2 {
                    1 => &mut *with,
                    _ => &mut *without,
                };
                if *look > 0 && seen.contended {
                    bucket.adds(seen);
                }
                *look += 1;
                if *look == LOOKS {
                    (*part, *look) = (*part + 1, 0);
                }
                if *part < PARTS {
                    return None;
                }
                let (with, without) = (*with, *without);
                self.judges(now_us, machines, &with, &without)
            }
            State::Stopped {
                began_us,
                until_us,
                machines: before,
            } => {
                let others =
                    *before != machines && now_us >= began_us.saturating_add(STOPPED_AT_LEAST_US);
                if now_us < *until_us && !others {
                    return None;
                }
                self.state = State::Acts { contended_us: 0 };
                Some(Notice::Resumed)
            }
        }
    }

    fn judges(
        &mut self,
        now_us: u64,
        machines: Vec<u64>,
        with: &Bucket,
        without: &Bucket,
    ) -> Option<Notice> {
        let apart = without.stacking() - with.stacking();
        let abreast = without.spread() - with.spread();
        let waits = with.steal() - without.steal();
        let gains = apart.max(abreast) >= GAIN_MIN;
        if gains && waits <= WAITS_MAX && abreast >= -APART_IN_TIME_MAX {
            self.every_us = (2 * self.every_us).min(EVERY_MAX_US);
            self.stopped_us = STOPPED_MIN_US;
            self.state = State::Acts { contended_us: 0 };
            return None;
        }
        let for_us = self.stop(now_us, machines);
        Some(Notice::Stopped {
            apart,
            abreast,
            waits,
            for_us,
        })
    }
}

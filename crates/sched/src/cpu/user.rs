//! Sibling vCPUs apart and abreast, on kernels that let nobody replace their scheduler: by affinities and nice values alone.
//!
//! A user-space program sees for each thread how long it has run and how long it has waited, and on which core it was last. It never
//! sees positions in run queues, so it can't know a scheduling distance (SBCO, section 4.3.3). What is left of the paper:
//!
//! - **Apart** (section 4.4.3, against stacking): the cores that a machine's threads may use are divided among its vCPUs. Each has a
//!   part of its own, within which the kernel goes on to balance; with more vCPUs than cores, each core has as many of them as any
//!   other, or one more.
//! - **Abreast** ([`Mode::Sbco`]): a vCPU that is behind its siblings, though all of them want to run, borrows from the one that is
//!   furthest ahead: its nice value is lowered and the other's raised by as much weight, until it has caught up. Within a control group
//!   that moves the group's share between two cores, and takes nothing from other groups.
//!
//! **It stops by itself.** Now and then it takes everything back for some seconds, several times in turn (`trial`), and compares
//! what it sees with and without: if siblings are no further apart and no closer abreast by it, or if machines wait longer, it stops,
//! says so, and tries again much later. How often it looks follows from what a look costs ([`BUDGET`]).
//!
//! [`User`] is told of samples and of what became of its actions, and answers with actions. What must be undone is known at any time
//! ([`User::held`]), so that whoever carries it out can write that down first.

mod lend;
mod machine;
mod places;
#[cfg(test)]
mod tests;
mod trial;

use machine::Watched;
pub use machine::{MachineStatus, Standing};
pub use places::{CORES_MAX, CoreSet};
use std::collections::BTreeMap;
use std::fmt;
use trial::{Bucket, Phase};
pub use trial::{STOPPED_MAX_US, STOPPED_MIN_US};

/// The shortest time between two looks, in microseconds: several turns of any run queue that is worth ordering.
pub const PERIOD_MIN_US: u64 = 500_000;
/// The longest time between two looks, in microseconds, whatever a look costs.
pub const PERIOD_MAX_US: u64 = 30_000_000;
/// How often it looks while it does nothing, in microseconds: only to show figures.
pub const PERIOD_IDLE_US: u64 = 2_000_000;
/// The part of one core that looking and acting may take.
pub const BUDGET: f64 = 0.003;
/// How much of what a look is taken to cost is the latest one's.
const LATEST: f64 = 0.2;
/// How many periods a look may be late before its figures are thrown away: the host has slept, or the program has.
const LATE_MAX: u64 = 10;
/// The same for a user that looks only when it is asked, in microseconds.
const LATE_OFF_US: u64 = 3_600_000_000;

/// What it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// Siblings on different cores.
    Balance,
    /// That, and siblings abreast.
    Sbco,
}

/// A thread, distinguished from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId {
    /// Its number.
    pub tid: u32,
    /// When it began, in whatever unit the host tells that.
    pub started: u64,
}

/// What the host tells of a thread that runs a vCPU. Times are its own sums, each kept by the core that it is on: they are only ever
/// compared with earlier ones of the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSample {
    /// Which one.
    pub id: ThreadId,
    /// How long it has run, in nanoseconds.
    pub run_ns: u64,
    /// How long it has waited for a core, in nanoseconds.
    pub wait_ns: u64,
    /// How often it was given a core.
    pub slices: u64,
    /// The core that it was on last.
    pub core: u16,
    /// The cores that it may use.
    pub allowed: CoreSet,
    /// Its nice value.
    pub nice: i8,
}

/// A machine's threads, by number of the vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSample {
    /// A number of its own; another one once it has another process.
    pub key: u64,
    /// Its threads, each once.
    pub threads: Vec<ThreadSample>,
}

/// All machines at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The moment, in microseconds.
    pub now_us: u64,
    /// Processor time that looking and acting have cost so far, in microseconds.
    pub own_us: u64,
    /// The machines that run. What was done to one that is missing is undone.
    pub machines: Vec<MachineSample>,
    /// The keys of those that run, too, but could not be looked at this time: they keep what they have.
    pub unseen: Vec<u64>,
}

/// What is to be done. Nothing is done to a thread that is not as it is expected to be: then somebody else has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "few are made at a time, and none is kept"
)]
pub enum Action {
    /// Let a thread use these cores.
    Pin {
        /// Its machine.
        machine: u64,
        /// Which one.
        thread: ThreadId,
        /// The cores that it may use now.
        expect: CoreSet,
        /// Those that it may use from then on.
        to: CoreSet,
    },
    /// Give threads other nice values, in this order: after one that can't be changed the others stay as they are.
    Nice {
        /// Their machine.
        machine: u64,
        /// At most two.
        steps: Vec<NiceStep>,
    },
}

/// One change of [`Action::Nice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NiceStep {
    /// Which one.
    pub thread: ThreadId,
    /// Its value now.
    pub expect: i8,
    /// Its value from then on.
    pub to: i8,
}

/// What became of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The kernel does not let this user do it (EPERM).
    Refused,
    /// The thread has ended.
    Gone,
    /// The thread was not as expected.
    Changed,
    /// Anything else went wrong.
    Failed,
    /// It was not tried: it may be later.
    Later,
}

/// What was changed about a thread and is to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which one.
    pub thread: ThreadId,
    /// The cores that it could use before; `None` if that was not changed.
    pub allowed: Option<CoreSet>,
    /// Its nice value before; `None` if that was not changed.
    pub nice: Option<i8>,
}

/// Something that people should hear of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notice {
    /// A trial has shown that it does not help: it does nothing for `for_us`.
    Stopped {
        /// In how many looks fewer siblings shared a core, as a part of one.
        apart: f64,
        /// How much closer together siblings ran, as a part of one; less than nothing if further from each other.
        abreast: f64,
        /// How much more machines waited, as a part of one.
        waits: f64,
        /// For how long, in microseconds.
        for_us: u64,
    },
    /// A look costs so much that even the rarest looks take too much.
    Costly {
        /// What a look costs, in microseconds.
        look_us: u64,
        /// For how long it does nothing, in microseconds.
        for_us: u64,
    },
    /// It begins again.
    Resumed,
    /// The kernel does not let this user set affinities.
    PinRefused,
    /// The kernel does not let this user lower nice values: nothing is lent any more.
    NiceRefused,
    /// Somebody else sets this machine's affinities or nice values: it is left alone.
    LeftAlone(u64),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| 100.0 * part;
        let minutes = |us: u64| us / 60_000_000;
        match self {
            Notice::Stopped {
                apart,
                abreast,
                waits,
                for_us,
            } => write!(
                f,
                "it does not help: by it siblings shared a core {:.1} % less often, ran {:.1} % closer together, and waited {:.1} % more; \
                 everything is undone, and it is tried again in {} min",
                percent(*apart),
                percent(*abreast),
                percent(*waits),
                minutes(*for_us)
            ),
            Notice::Costly { look_us, for_us } => write!(
                f,
                "a look at all vCPUs costs {look_us} us, too much even for the rarest looks; everything is undone, and it is tried again \
                 in {} min",
                minutes(*for_us)
            ),
            Notice::Resumed => f.write_str("it is tried again"),
            Notice::PinRefused => f.write_str(
                "the kernel does not let this node set affinities: run it as root, or as the user that QEMU runs as",
            ),
            Notice::NiceRefused => f.write_str(
                "the kernel does not let this node lower nice values (CAP_SYS_NICE): vCPUs are kept apart, and nothing is lent",
            ),
            Notice::LeftAlone(_) => f.write_str(
                "somebody else has set affinities or nice values of its vCPUs: it is left alone",
            ),
        }
    }
}

/// The answer to a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is to be done, in this order.
    pub actions: Vec<Action>,
    /// What people should hear of.
    pub notices: Vec<Notice>,
    /// When the next sample is due, in microseconds from this one.
    pub next_us: u64,
}

/// Whether it acts, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acting {
    /// It is off.
    #[default]
    Off,
    /// It acts.
    Acts,
    /// It compares: at times everything is undone.
    Tries,
    /// A trial has shown that it does not help.
    DoesNotHelp,
    /// Looking costs too much.
    Costly,
    /// The kernel does not let this user.
    Refused,
}

/// Everything that can be shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// What it is to do.
    pub mode: Mode,
    /// Whether it acts.
    pub acting: Acting,
    /// Whether vCPUs may borrow: the kernel has not refused.
    pub lends: bool,
    /// How often a vCPU was given other cores, taking that back included.
    pub moves: u64,
    /// How often one vCPU has lent to another.
    pub loans: u64,
    /// Percent of one core that looking and acting has taken, since the first sample.
    pub own_cpu_pct: f64,
    /// The machines, by key.
    pub machines: BTreeMap<u64, MachineStatus>,
}

/// Decides what is done to the vCPUs of a host's machines.
#[derive(Debug)]
pub struct User {
    mode: Mode,
    machines: BTreeMap<u64, Watched>,
    /// Those that are no longer looked after, until everything about them is undone.
    left: BTreeMap<u64, Watched>,
    phase: Phase,
    pins_refused: bool,
    nice_refused: bool,
    costly: bool,
    /// Of the last sample: the moment, and the cost so far.
    last: Option<(u64, u64)>,
    /// The same of the first.
    first: Option<(u64, u64)>,
    /// What a look costs, in microseconds, of late.
    look_us: f64,
    /// When the next sample was due at the last one, in microseconds from it.
    next_us: u64,
    moves: u64,
    loans: u64,
}

impl User {
    /// Makes one that has seen no sample.
    pub fn new(mode: Mode) -> User {
        User {
            mode,
            machines: BTreeMap::new(),
            left: BTreeMap::new(),
            phase: Phase::begin(),
            pins_refused: false,
            nice_refused: false,
            costly: false,
            last: None,
            first: None,
            look_us: 0.0,
            next_us: PERIOD_MIN_US,
            moves: 0,
            loans: 0,
        }
    }

    /// Takes a sample and says what is to be done. Each action is answered by [`User::done`].
    pub fn sample(&mut self, sample: &Sample) -> Step {
        let mut step = Step::default();
        let elapsed_us = self.elapsed(sample);
        self.meet(sample, elapsed_us, &mut step);
        self.costs(sample, &mut step);
        if self.mode == Mode::Off {
            step.actions.extend(self.undo());
            step.next_us = PERIOD_IDLE_US.max(self.period_us());
            self.next_us = step.next_us;
            return step;
        }
        if let (Some(elapsed_us), false) = (elapsed_us, self.pins_refused) {
            let bucket = self.bucket(elapsed_us);
            let several = self.with_several();
            let notice = self.phase.passes(sample.now_us, several, &bucket);
            self.costly &= self.phase.is_stopped();
            step.notices.extend(notice);
        }
        match self.phase.acts() && !self.pins_refused {
            true => self.act(sample.now_us, &mut step.actions),
            false => step.actions.extend(self.undo()),
        }
        let quiet = self.phase.is_stopped() || self.pins_refused || self.with_several().is_empty();
        step.next_us = match quiet {
            true => PERIOD_IDLE_US.max(self.period_us()),
            false => self.period_us(),
        };
        self.next_us = step.next_us;
        step
    }

    /// The time since the last sample, in microseconds; `None` at the first one, and after a gap.
    fn elapsed(&self, sample: &Sample) -> Option<u64> {
        let (before, _) = self.last?;
        let elapsed = sample.now_us.saturating_sub(before);
        let most = match self.mode {
            Mode::Off => LATE_OFF_US,
            Mode::Balance | Mode::Sbco => self.next_us.saturating_mul(LATE_MAX),
        };
        (elapsed > 0 && elapsed <= most).then_some(elapsed)
    }

    /// Learns which machines there are and what their threads did.
    fn meet(&mut self, sample: &Sample, elapsed_us: Option<u64>, step: &mut Step) {
        let mut gone = std::mem::take(&mut self.machines);
        for seen in &sample.machines {
            let known = gone.remove(&seen.key);
            let mut machine = known.unwrap_or_default();
            let foreign = machine.meet(seen, elapsed_us, &mut step.actions);
            if foreign && self.mode != Mode::Off {
                step.notices.push(Notice::LeftAlone(seen.key));
            }
            self.machines.insert(seen.key, machine);
        }
        for key in &sample.unseen {
            let mut machine = gone.remove(key).unwrap_or_default();
            machine.is_unseen();
            self.machines.insert(*key, machine);
        }
        for (key, machine) in gone {
            self.left.entry(key).or_default().takes_over(machine);
        }
        self.left
            .retain(|_, machine| machine.held().next().is_some());
        for (key, machine) in self.left.iter_mut().chain(&mut self.machines) {
            machine.undo_what_left(*key, &mut step.actions);
        }
    }

    /// Learns what looking costs.
    fn costs(&mut self, sample: &Sample, step: &mut Step) {
        if let Some((_, own_us)) = self.last {
            let look_us = sample.own_us.saturating_sub(own_us) as f64;
            self.look_us += LATEST * (look_us - self.look_us);
        }
        self.last = Some((sample.now_us, sample.own_us));
        self.first.get_or_insert((sample.now_us, sample.own_us));
        let dear = self.look_us > BUDGET * PERIOD_MAX_US as f64;
        if dear && self.mode != Mode::Off && !self.phase.is_stopped() {
            let for_us = self.phase.stop(sample.now_us, self.with_several());
            self.costly = true;
            let look_us = self.look_us as u64;
            step.notices.push(Notice::Costly { look_us, for_us });
        }
    }

    /// How often it may look for what a look costs.
    fn period_us(&self) -> u64 {
        ((self.look_us / BUDGET) as u64).clamp(PERIOD_MIN_US, PERIOD_MAX_US)
    }

    /// The machines that have siblings and are looked after.
    fn with_several(&self) -> Vec<u64> {
        let several = self.machines.iter().filter(|(_, one)| one.is_kept());
        several.map(|(key, _)| *key).collect()
    }

    fn bucket(&self, elapsed_us: u64) -> Bucket {
        let mut bucket = Bucket::default();
        for machine in self.machines.values().filter(|one| one.is_kept()) {
            machine.adds_to(&mut bucket, elapsed_us);
        }
        bucket
    }

    /// Keeps siblings apart, and abreast if that is wanted.
    fn act(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let mut loads = places::Loads::of(self.machines.values().flat_map(Watched::wishes));
        for (key, machine) in &mut self.machines {
            match machine.is_kept() {
                true => machine.keep_apart(*key, now_us, &mut loads, actions),
                false => machine.undo(*key, actions),
            }
        }
        if self.mode != Mode::Sbco {
            return;
        }
        for (key, machine) in &mut self.machines {
            match machine.is_kept() && !self.nice_refused {
                true => self.loans += machine.lend(*key, now_us, actions),
                false => machine.settle_all(*key, actions),
            }
        }
    }

    /// Takes back everything that was done, for good or for as long as it does not act.
    pub fn undo(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (key, machine) in self.left.iter_mut().chain(&mut self.machines) {
            machine.undo(*key, &mut actions);
        }
        actions
    }

    /// Learns what became of an action. For [`Action::Nice`], `steps` is how many of its steps were done before that. Returns what people
    /// should hear of.
    pub fn done(&mut self, action: &Action, steps: usize, outcome: Outcome) -> Option<Notice> {
        let (key, is_pin) = match action {
            Action::Pin { machine, .. } => (*machine, true),
            Action::Nice { machine, .. } => (*machine, false),
        };
        let machines = [self.machines.get_mut(&key), self.left.get_mut(&key)];
        for machine in machines.into_iter().flatten() {
            machine.done(action, steps, outcome);
        }
        self.moves += u64::from(is_pin && outcome == Outcome::Done);
        if outcome != Outcome::Refused {
            return None;
        }
        let refused = match is_pin {
            true => &mut self.pins_refused,
            false => &mut self.nice_refused,
        };
        let first = !std::mem::replace(refused, true);
        let notice = match is_pin {
            true => Notice::PinRefused,
            false => Notice::NiceRefused,
        };
        first.then_some(notice)
    }

    /// What is to be undone, what is about to be done included.
    pub fn held(&self) -> Vec<Held> {
        let machines = self.machines.values().chain(self.left.values());
        machines.flat_map(Watched::held).collect()
    }

    /// Everything that can be shown.
    pub fn status(&self) -> Status {
        let acting = match self.mode {
            Mode::Off => Acting::Off,
            _ if self.pins_refused => Acting::Refused,
            _ if self.costly => Acting::Costly,
            _ if self.phase.is_stopped() => Acting::DoesNotHelp,
            _ if self.phase.is_trial() => Acting::Tries,
            _ => Acting::Acts,
        };
        let own_cpu_pct = match (self.first, self.last) {
            (Some((began, before)), Some((now, own))) if now > began => {
                100.0 * own.saturating_sub(before) as f64 / (now - began) as f64
            }
            _ => 0.0,
        };
        let machines = self.machines.iter();
        Status {
            mode: self.mode,
            acting,
            lends: self.mode == Mode::Sbco && !self.nice_refused,
            moves: self.moves,
            loans: self.loans,
            own_cpu_pct,
            machines: machines.map(|(key, one)| (*key, one.status())).collect(),
        }
    }
}

//! Decides how a machine is made small, and how it is brought back to its size: which step comes next. No I/O, no clock.
//!
//! ```text
//! account -> hooks stop -> settle -> account -> balloon in steps -> one CPU -> cables out -> settle -> account -> small
//!                                                   any failure: '-> back, as below
//! small -> balloon out -> cables in -> all CPUs -> (the balloon is out) -> hooks start -> as it was
//! ```
//! [`Shrink`] hands out one [`Step`] at a time and hears what came of it. What a step may take from the machine is in
//! [`Shrink::small`] *before* the step is handed out, so that whoever writes that down first can always bring the machine back.
//! The guest's own accounting is a stranger's word: it is checked against what QEMU says and against itself, and the worst that
//! a lie does is a machine that does not get smaller.

use floe_inventory::inventory::small::Small;

/// How much of its memory a guest keeps beyond what it uses, at least, in bytes.
const MARGIN_BYTES_MIN: u64 = 16 << 20;
/// It keeps so much of what it uses, if that is more: one part in so many.
const MARGIN_PART: u64 = 16;
/// No guest is made smaller than this, in bytes, whatever it says: its kernel alone needs about as much.
const FLOOR_BYTES: u64 = 48 << 20;
/// A balloon that would take less than this, in bytes, is not worth its time.
const WORTH_BYTES: u64 = 8 << 20;
/// The balloon takes at least this much at a time, in bytes; otherwise half of what is left.
const STEP_BYTES_MIN: u64 = 32 << 20;
/// How near to its aim the balloon has to come, in bytes.
const NEAR_BYTES: u64 = 1 << 20;
/// A guest that takes this much back from the balloon, in bytes, does so because it has nothing else.
const SLIP_BYTES: u64 = 4 << 20;
/// How long the balloon may make no progress before it counts as standing still, in ms: an emulated guest on a busy host is slow.
const STALL_MS: u64 = 10_000;
/// How often a step that gives something back is tried.
const TRIES_MAX: u32 = 3;

/// What a guest says of its memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All that its kernel manages.
    pub total: u64,
    /// What programs could still get without anything being ended for it.
    pub available: u64,
    /// How many programs its kernel has ended so far because memory ran out.
    pub kills: u64,
}

/// Something to do. Each is carried out within a limit of time, and answered with [`Shrink::heard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the guest for its memory's accounting: [`Heard::Memory`].
    Account,
    /// Run the guest's hooks to stop (or, if false, to start) what they name: [`Heard::Hooks`].
    Hooks {
        /// Whether they are to stop it.
        stop: bool,
    },
    /// Have the guest write to its disks what it holds back, and drop what it can read again: [`Heard::Done`].
    Settle,
    /// Tell QEMU's balloon to leave the guest this much: [`Heard::Done`].
    Balloon {
        /// The guest's memory, in bytes.
        bytes: u64,
    },
    /// Wait a moment, then say how much the balloon leaves the guest: [`Heard::Balloon`].
    Look,
    /// Have the guest use so many CPUs: [`Heard::Done`].
    Cpus(u32),
    /// Plug the network cables in or out: [`Heard::Done`].
    Cables {
        /// Whether in.
        up: bool,
    },
}

/// What came of a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is done.
    Done,
    /// What the guest says of its memory.
    Memory(Memory),
    /// The hooks have run; why those failed that did, with their names.
    Hooks(Vec<String>),
    /// How much memory the balloon leaves the guest, in bytes.
    Balloon(u64),
    /// It failed, took too long, or nobody wants it any more.
    Failed(String),
}

/// Where a machine is on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Account,
    Stop,
    Settle,
    Measure,
    Balloon {
        aim: u64,
    },
    Watch {
        aim: u64,
    },
    Check,
    /// The balloon has taken too much and gives some of it back.
    Loosen {
        aim: u64,
    },
    Loosening {
        aim: u64,
    },
    Loosened,
    Cpu,
    Cables,
    SettleAgain,
    Last,
    Small,
}

/// Makes a machine small.
#[derive(Clone, Debug)]
pub struct Shrink {
    /// All of its memory, and how much of it the guest had at the beginning.
    all: u64,
    full: u64,
    cpus: u32,
    /// Whether it has a cable to pull.
    cables: bool,
    at: In,
    small: Small,
    /// How far the balloon is to go, and how much the guest keeps beyond what it uses.
    target: u64,
    margin: u64,
    watch: Watch,
    kills: u64,
    why: Option<String>,
    notes: Vec<String>,
    back: Option<Expand>,
}

/// How the balloon moves.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// The least, or on the way out the most, that it has left the guest.
    best: u64,
    since_ms: u64,
    begun: bool,
}

impl Watch {
    /// Notes where the balloon is; returns whether it stands still. `out`: it is to leave the guest more.
    fn stalls(&mut self, now_ms: u64, actual: u64, out: bool) -> bool {
        let better = match out {
            true => actual > self.best,
            false => actual < self.best,
        };
        if !self.begun || better {
            *self = Watch {
                best: actual,
                since_ms: now_ms,
                begun: true,
            };
        }
        now_ms.saturating_sub(self.since_ms) >= STALL_MS
    }
}

impl Shrink {
    /// Begins with a machine of so much memory, in bytes, of which its guest has `given_bytes` outside of the balloon, whose guest
    /// uses so many CPUs; `cables` is whether its network cables are in. `owed` is what was taken from it before and not given back yet.
    pub fn new(all_bytes: u64, given_bytes: u64, cpus: u32, cables: bool, owed: Small) -> Shrink {
        Shrink {
            all: all_bytes,
            full: given_bytes.min(all_bytes),
            cpus,
            cables,
            at: In::Account,
            small: owed,
            target: given_bytes,
            margin: MARGIN_BYTES_MIN,
            watch: Watch::default(),
            kills: 0,
            why: None,
            notes: Vec::new(),
            back: None,
        }
    }

    /// Returns what may have been taken from the machine by all steps that were handed out.
    pub fn small(&self) -> &Small {
        self.back.as_ref().map_or(&self.small, Expand::small)
    }

    /// Returns what the machine's user should know.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        let back = self.back.iter().flat_map(|back| &back.notes);
        self.notes.iter().chain(back).map(String::as_str)
    }

    /// Returns why the machine is not small but has been brought back, if that is so.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Returns the next step; `None` once the machine is small, or has been brought back.
    pub fn step(&mut self) -> Option<Step> {
        if let Some(back) = &mut self.back {
            return back.step();
        }
        loop {
            let step = match self.at {
                In::Account | In::Measure | In::Check | In::Loosened | In::Last => Step::Account,
                In::Stop => {
                    self.small.hooks = true;
                    Step::Hooks { stop: true }
                }
                In::Settle | In::SettleAgain => Step::Settle,
                In::Balloon { aim } | In::Loosen { aim } => {
                    self.small.memory.get_or_insert(self.full);
                    Step::Balloon { bytes: aim }
                }
                In::Watch { .. } | In::Loosening { .. } => Step::Look,
                In::Cpu if self.cpus <= 1 => {
                    self.at = In::Cables;
                    continue;
                }
                In::Cpu => {
                    self.small.cpus.get_or_insert(self.cpus);
                    Step::Cpus(1)
                }
                In::Cables if !self.cables => {
                    self.at = In::SettleAgain;
                    continue;
                }
                In::Cables => {
                    self.small.cables = true;
                    Step::Cables { up: false }
                }
                In::Small => return None,
            };
            return Some(step);
        }
    }

    /// Takes in what came of the last step. `now_ms` must never decrease.
    pub fn heard(&mut self, now_ms: u64, heard: Heard) {
        if let Some(back) = &mut self.back {
            return back.heard(now_ms, heard);
        }
        let next = match (self.at, heard) {
            (_, Heard::Failed(why)) => Err(why),
            (In::Account, Heard::Memory(said)) => self.believed(said).map(|_| {
                self.kills = said.kills;
                In::Stop
            }),
            (In::Stop, Heard::Hooks(failed)) => match failed.is_empty() {
                true => Ok(In::Settle),
                false => Err(failed.join("; ")),
            },
            (In::Settle, Heard::Done) => Ok(In::Measure),
            (In::Measure, Heard::Memory(said)) => {
                self.believed(said).map(|said| self.measured(said))
            }
            (In::Balloon { aim }, Heard::Done) => {
                self.watch = Watch::default();
                Ok(In::Watch { aim })
            }
            (In::Watch { aim }, Heard::Balloon(actual)) => Ok(self.watched(now_ms, aim, actual)),
            (In::Check, Heard::Memory(said)) => self.believed(said).map(|said| self.checked(said)),
            (In::Loosen { aim }, Heard::Done) => {
                self.watch = Watch::default();
                Ok(In::Loosening { aim })
            }
            (In::Loosening { aim }, Heard::Balloon(actual)) => {
                let there = actual.saturating_add(NEAR_BYTES) >= aim;
                let over = there || self.watch.stalls(now_ms, actual, true);
                Ok(if over {
                    In::Loosened
                } else {
                    In::Loosening { aim }
                })
            }
            (In::Loosened, Heard::Memory(said)) => {
                self.believed(said)
                    .and_then(|said| match said.available < self.margin / 2 {
                        true => Err("its guest uses more and more memory meanwhile".into()),
                        false => Ok(In::Cpu),
                    })
            }
            (In::Cpu, Heard::Done) => Ok(In::Cables),
            (In::Cables, Heard::Done) => Ok(In::SettleAgain),
            (In::SettleAgain, Heard::Done) => Ok(In::Last),
            (In::Last, Heard::Memory(said)) => self.believed(said).map(|_| In::Small),
            (_, other) => Err(format!("it answered {other:?} to something else")),
        };
        match next {
            Ok(next) => self.at = next,
            Err(why) => self.give_up(why),
        }
    }

    /// Brings the machine back, even one that is small: what it was made small for has failed.
    pub fn give_up(&mut self, why: String) {
        if self.back.is_none() {
            self.why = Some(why);
            self.back = Some(Expand::new(self.small.clone()));
        }
    }

    /// Checks what the guest says of its memory against what is known.
    fn believed(&self, said: Memory) -> Result<Memory, String> {
        let most = said.total.min(self.full);
        if said.total == 0 || said.total > self.all || said.available > most {
            return Err(format!(
                "its agent's account of the memory can't be true: {} bytes of {} available, in a machine of {}",
                said.available, said.total, self.all
            ));
        }
        if said.kills > self.kills && self.at != In::Account {
            return Err("its guest's kernel ended a program because memory ran out".into());
        }
        Ok(said)
    }

    /// Computes how far the balloon goes: what is in use, with a margin.
    fn measured(&mut self, said: Memory) -> In {
        let used = self.full - said.available;
        self.margin = MARGIN_BYTES_MIN.max(used / MARGIN_PART);
        self.target = (used + self.margin).max(FLOOR_BYTES).min(self.full);
        match self.full - self.target < WORTH_BYTES {
            true => In::Cpu,
            false => self.next_aim(self.full),
        }
    }

    /// The next aim of a balloon that leaves the guest so much: what it takes at a time gets less as it gets tight.
    fn next_aim(&self, actual: u64) -> In {
        let left = actual.saturating_sub(self.target);
        let aim = actual.saturating_sub(STEP_BYTES_MIN.max(left / 2));
        In::Balloon {
            aim: aim.max(self.target),
        }
    }

    fn watched(&mut self, now_ms: u64, aim: u64, actual: u64) -> In {
        // a balloon that has not moved yet may stand anywhere
        let slips = self.watch.begun && actual > self.watch.best.saturating_add(SLIP_BYTES);
        if self.watch.stalls(now_ms, actual, false) || slips {
            return self.loosen(actual);
        }
        match actual <= aim + NEAR_BYTES {
            true => In::Check,
            false => In::Watch { aim },
        }
    }

    fn checked(&mut self, said: Memory) -> In {
        let actual = self.watch.best;
        if said.available < self.margin / 2 {
            return self.loosen(actual);
        }
        match actual <= self.target + NEAR_BYTES {
            true => In::Cpu,
            false => self.next_aim(actual),
        }
    }

    /// The guest has less than it needs: it gets some back, and keeps that.
    fn loosen(&mut self, actual: u64) -> In {
        let aim = actual.saturating_add(2 * self.margin).min(self.full);
        self.notes.push(format!(
            "its guest gave memory only until it had {} MiB, and was left {} MiB: it needs more than it says, or more than before",
            actual >> 20,
            aim >> 20
        ));
        In::Loosen { aim }
    }
}

/// Where a machine is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    Balloon,
    Cables,
    Cpus,
    Watch,
    Start,
    Over,
}

/// Brings a small machine back to its size. What can't be given back after a few tries stays in [`Expand::small`]; the rest is
/// given back all the same.
#[derive(Clone, Debug)]
pub struct Expand {
    at: Out,
    small: Small,
    watch: Watch,
    tries: u32,
    /// What the machine's user should know.
    pub notes: Vec<String>,
}

impl Expand {
    /// Begins with what was taken from the machine, or may have been.
    pub fn new(small: Small) -> Expand {
        Expand {
            at: Out::Balloon,
            small,
            watch: Watch::default(),
            tries: 0,
            notes: Vec::new(),
        }
    }

    /// Returns what was not given back yet.
    pub fn small(&self) -> &Small {
        &self.small
    }

    /// Returns the next step; `None` at the end.
    pub fn step(&mut self) -> Option<Step> {
        loop {
            let small = &self.small;
            let step = match self.at {
                Out::Balloon => small.memory.map(|bytes| Step::Balloon { bytes }),
                Out::Cables => small.cables.then_some(Step::Cables { up: true }),
                Out::Cpus => small.cpus.map(Step::Cpus),
                Out::Watch => small.memory.map(|_| Step::Look),
                Out::Start => small.hooks.then_some(Step::Hooks { stop: false }),
                Out::Over => return None,
            };
            if step.is_some() {
                return step;
            }
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        self.tries = 0;
        self.at = match self.at {
            Out::Balloon => Out::Cables,
            Out::Cables => Out::Cpus,
            Out::Cpus => Out::Watch,
            Out::Watch => Out::Start,
            Out::Start | Out::Over => Out::Over,
        };
    }

    /// Takes in what came of the last step. `now_ms` must never decrease.
    pub fn heard(&mut self, now_ms: u64, heard: Heard) {
        match (self.at, heard) {
            (Out::Balloon, Heard::Done) => {}
            (Out::Cables, Heard::Done) => self.small.cables = false,
            (Out::Cpus, Heard::Done) => self.small.cpus = None,
            (Out::Watch, Heard::Balloon(actual)) => {
                let full = self.small.memory.unwrap_or_default();
                let there = actual.saturating_add(NEAR_BYTES) >= full;
                if !there && !self.watch.stalls(now_ms, actual, true) {
                    return;
                }
                if !there {
                    self.notes.push(format!(
                        "its guest has taken {} of its {} MiB back so far, and gets the rest when it asks",
                        actual >> 20,
                        full >> 20
                    ));
                }
                // QEMU knows how much the guest is to have
                self.small.memory = None;
            }
            (Out::Start, Heard::Hooks(failed)) => {
                self.notes.extend(failed);
                self.small.hooks = false;
            }
            (_, heard) => {
                self.tries += 1;
                if self.tries < TRIES_MAX {
                    return;
                }
                self.notes.push(match heard {
                    Heard::Failed(why) => why,
                    other => format!("it answered {other:?} to something else"),
                });
            }
        }
        self.go_on();
    }
}

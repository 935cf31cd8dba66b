//! What the machines of the tests do.

use super::world::{Dice, Program, Wish};
use floe_sched::writeback::{Action, Admission, WriteBack, WriteBackOptions};
use floe_sched::{Class, MachineId, Op, Purpose, Who};
use std::collections::VecDeque;

fn who(machine: u32, purpose: Purpose, class: Class) -> Who {
    Who {
        machine: MachineId(machine),
        purpose,
        class,
    }
}

/// A user who launches a program, looks at it, and launches it again: reads that depend on each other, with some computing
/// between them.
pub struct Launcher {
    machine: u32,
    class: Class,
    reads: usize,
    pause_us: f64,
    /// How much it computes between reads: 1 is some milliseconds.
    thinks: f64,
    left: usize,
    began_us: u64,
    launches: Vec<f64>,
}

impl Launcher {
    pub fn new(machine: u32, reads: usize, pause_s: f64, thinks: f64) -> Launcher {
        Launcher {
            machine,
            class: Class::Interactive,
            reads,
            pause_us: pause_s * 1e6,
            thinks,
            left: 0,
            began_us: 0,
            launches: Vec::new(),
        }
    }

    pub fn unmarked(self) -> Launcher {
        Launcher {
            class: Class::Normal,
            ..self
        }
    }
}

impl Program for Launcher {
    fn threads(&self) -> usize {
        1
    }

    fn wish(&mut self, _: usize, now_us: u64, dice: &mut Dice) -> Wish {
        let after_us = if self.left == 0 {
            if now_us > 0 {
                self.launches.push((now_us - self.began_us) as f64);
            }
            self.left = self.reads;
            let pause_us = self.pause_us * dice.between(0.7, 1.3);
            self.began_us = now_us + pause_us as u64;
            pause_us
        } else if dice.part() < 0.8 {
            self.thinks * dice.between(1_000.0, 6_000.0)
        } else {
            self.thinks * dice.between(8_000.0, 30_000.0)
        };
        self.left -= 1;
        Wish {
            after_us,
            who: who(self.machine, Purpose::Demand, self.class),
            op: Op::Read,
            bytes: 16 << 10,
        }
    }

    fn launches(&self) -> &[f64] {
        &self.launches
    }
}

/// Reads as fast as it can, some requests at once.
pub struct Reader {
    pub machine: u32,
    pub class: Class,
    pub threads: usize,
    pub bytes: u64,
    /// Longest that a thread thinks between two reads.
    pub thinks_us: f64,
}

impl Reader {
    pub fn new(machine: u32) -> Reader {
        Reader {
            machine,
            class: Class::Normal,
            threads: 4,
            bytes: 16 << 10,
            thinks_us: 100.0,
        }
    }
}

impl Program for Reader {
    fn threads(&self) -> usize {
        self.threads
    }

    fn wish(&mut self, _: usize, _: u64, dice: &mut Dice) -> Wish {
        Wish {
            after_us: dice.between(self.thinks_us / 4.0, self.thinks_us),
            who: who(self.machine, Purpose::Demand, self.class),
            op: Op::Read,
            bytes: self.bytes,
        }
    }
}

/// One who reads from a time on, for this purpose.
pub struct Later {
    pub reader: Reader,
    pub from_us: u64,
    pub purpose: Purpose,
}

impl Program for Later {
    fn threads(&self) -> usize {
        self.reader.threads
    }

    fn wish(&mut self, thread: usize, now_us: u64, dice: &mut Dice) -> Wish {
        let mut wish = self.reader.wish(thread, now_us, dice);
        wish.after_us += self.from_us.saturating_sub(now_us) as f64;
        wish.who.purpose = self.purpose;
        wish
    }
}

/// An operating system that boots: it reads, logs, and flushes its logs.
pub struct Boot {
    pub machine: u32,
    /// How much it computes: 1 is for a hard disk.
    pub thinks: f64,
}

impl Program for Boot {
    fn threads(&self) -> usize {
        5
    }

    fn wish(&mut self, thread: usize, _: u64, dice: &mut Dice) -> Wish {
        let (after_us, op, bytes) = match thread {
            0 | 1 => (dice.between(100.0, 6_000.0), Op::Read, 32 << 10),
            2 | 3 => (dice.between(2_000.0, 20_000.0), Op::Write, 64 << 10),
            _ => (dice.between(50_000.0, 300_000.0), Op::Flush, 0),
        };
        let purpose = match op {
            Op::Read => Purpose::Demand,
            _ => Purpose::Store,
        };
        Wish {
            after_us: after_us * self.thinks,
            who: who(self.machine, purpose, Class::Normal),
            op,
            bytes,
        }
    }
}

/// Writes much and syncs it, again and again, through the write-back that a mount has for each disk.
pub struct Syncer {
    machine: u32,
    back: WriteBack,
    /// Bytes of the piece that is being written.
    piece: Option<u64>,
    todo: VecDeque<Action>,
    /// Since when it waits for a sync, and whether nothing but the device's own flush is left of that.
    began_us: u64,
    is_last: bool,
    syncs: Vec<f64>,
}

impl Syncer {
    /// Bytes that it writes before each sync.
    const BYTES: u64 = 64 << 20;

    pub fn new(machine: u32) -> Syncer {
        let options = WriteBackOptions {
            age_us: u64::MAX,
            ..WriteBackOptions::default()
        };
        Syncer {
            machine,
            back: WriteBack::new(options),
            piece: None,
            todo: VecDeque::new(),
            began_us: 0,
            is_last: false,
            syncs: Vec::new(),
        }
    }

    /// Writes to the page cache, and asks for a sync of that.
    fn begin(&mut self, now_us: u64) {
        self.began_us = now_us;
        let (admission, actions) = self.back.admit(now_us, Syncer::BYTES);
        assert_eq!(admission, Admission::Go);
        self.todo.extend(actions);
        let actions = self.back.wrote(now_us, Syncer::BYTES);
        self.todo.extend(actions);
        let (_, actions) = self.back.flush(now_us);
        self.todo.extend(actions);
    }
}

impl Program for Syncer {
    fn threads(&self) -> usize {
        1
    }

    fn wish(&mut self, _: usize, now_us: u64, dice: &mut Dice) -> Wish {
        if let Some(bytes) = self.piece.take() {
            self.todo.extend(self.back.written(now_us, bytes));
        }
        if std::mem::take(&mut self.is_last) {
            self.syncs.push((now_us - self.began_us) as f64);
        }
        let mut after_us = 0.0;
        if self.todo.is_empty() {
            after_us = dice.between(1_000.0, 200_000.0);
            self.begin(now_us + after_us as u64);
        }
        let (class, op, bytes) = match self.todo.pop_front() {
            Some(Action::Write { bytes, .. }) => {
                self.piece = Some(bytes);
                (Class::Bulk, Op::Write, bytes)
            }
            Some(Action::Flushed(_)) => {
                self.is_last = true;
                (Class::Normal, Op::Flush, 0)
            }
            other => panic!("nothing fails, and nobody waits to write: {other:?}"),
        };
        Wish {
            after_us,
            who: who(self.machine, Purpose::Store, class),
            op,
            bytes,
        }
    }

    fn launches(&self) -> &[f64] {
        &self.syncs
    }
}

/// A machine that says and does anything: it changes what it says of its requests, how many it has and how large they are.
pub struct Adversary {
    pub machine: u32,
    pub threads: usize,
    /// One entry a phase, used in turn: how long it lasts, what is said of the requests in it, their size, and the longest
    /// pause between them.
    pub phases: Vec<(u64, Class, u64, f64)>,
    /// Whether it says that all its requests are of normal urgency, and does the same otherwise.
    pub honest: bool,
}

impl Program for Adversary {
    fn threads(&self) -> usize {
        self.threads
    }

    fn wish(&mut self, _: usize, now_us: u64, dice: &mut Dice) -> Wish {
        let whole: u64 = self.phases.iter().map(|phase| phase.0).sum();
        let mut left = now_us % whole;
        let mut phase = &self.phases[0];
        for next in &self.phases {
            phase = next;
            if left < next.0 {
                break;
            }
            left -= next.0;
        }
        let (_, class, bytes, thinks_us) = *phase;
        let class = match self.honest {
            true => Class::Normal,
            false => class,
        };
        Wish {
            after_us: dice.between(50.0, 50.0 + thinks_us),
            who: who(self.machine, Purpose::Demand, class),
            op: Op::Read,
            bytes,
        }
    }
}

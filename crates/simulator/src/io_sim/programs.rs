//! What machines do, as the replays and the noisy machines of `io` do it.

use super::world::{Program, Wish};
use floe_sched::{Class, MachineId, Op, Purpose, Who};
use floe_testbed::launch::{Launch, Next, Play, mix};

/// Bytes that a noisy machine uses, and from one block to the next that it uses.
const NOISE_BYTES: u64 = 64 << 20;
const STEP: u64 = 2_731;

fn who(machine: u32, op: Op, class: Class) -> Who {
    let purpose = match op {
        Op::Read => Purpose::Demand,
        Op::Write | Op::Flush => Purpose::Store,
    };
    Who {
        machine: MachineId(machine),
        purpose,
        class,
    }
}

/// A user who launches a program, looks at it, and launches it again: the replay of `io`, decided by the same code. A machine that replays its boot does
/// the same, and nobody waits for it.
pub struct Launcher<'a> {
    machine: u32,
    class: Class,
    pause_us: u64,
    launch: &'a Launch,
    play: Play<'a>,
    /// When what began last begins.
    begins_us: u64,
    launches: Vec<u64>,
}

/// Threads of it: as many as lanes of the replay.
const LANES: usize = 8;

impl<'a> Launcher<'a> {
    /// Makes one that rests so long between two launches.
    pub fn new(machine: u32, pause_s: f64, launch: &'a Launch) -> Launcher<'a> {
        Launcher::of(machine, Class::Interactive, (pause_s * 1e6) as u64, launch)
    }

    /// Makes a machine that boots as it was recorded, again and again.
    pub fn boots(machine: u32, boot: &'a Launch) -> Launcher<'a> {
        Launcher::of(machine, Class::Normal, 0, boot)
    }

    fn of(machine: u32, class: Class, pause_us: u64, launch: &'a Launch) -> Launcher<'a> {
        Launcher {
            machine,
            class,
            pause_us,
            launch,
            play: Play::new(launch, pause_us),
            begins_us: pause_us,
            launches: Vec::new(),
        }
    }
}

impl Program for Launcher<'_> {
    fn threads(&self) -> usize {
        LANES
    }

    fn wish(&mut self, _: usize, now_us: u64) -> Option<Wish> {
        let mut at_us = now_us.max(self.begins_us);
        loop {
            match self.play.next(at_us) {
                Next::Input => {}
                Next::Until(us) => at_us = us,
                Next::Waits => return None,
                Next::Begin(number) => {
                    let step = &self.launch.steps[number];
                    self.begins_us = at_us;
                    return Some(Wish {
                        after_us: at_us - now_us,
                        who: who(self.machine, step.op, self.class),
                        op: step.op,
                        offset: step.offset,
                        bytes: step.bytes,
                    });
                }
                Next::Over => {
                    self.launches.push(self.play.took_us());
                    // a user's clicks don't keep step with anything
                    let random = mix(self.launches.len() as u64) % (self.pause_us / 4 + 1);
                    at_us = now_us + self.pause_us + random;
                    self.play = Play::new(self.launch, at_us);
                }
            }
        }
    }

    fn done(&mut self, now_us: u64) {
        self.play.done(now_us);
    }

    fn launches(&self) -> &[u64] {
        &self.launches
    }
}

/// Reads as fast as it can, four requests at a time.
pub struct Reader {
    machine: u32,
    next: u64,
}

impl Reader {
    /// Makes one.
    pub fn new(machine: u32) -> Reader {
        Reader { machine, next: 0 }
    }
}

impl Program for Reader {
    fn threads(&self) -> usize {
        4
    }

    fn wish(&mut self, _: usize, _: u64) -> Option<Wish> {
        let bytes = 16 << 10;
        self.next += 1;
        Some(Wish {
            after_us: 25 + mix(self.next) % 75,
            who: who(self.machine, Op::Read, Class::Normal),
            op: Op::Read,
            offset: self.next.wrapping_mul(STEP) % (NOISE_BYTES / bytes) * bytes,
            bytes,
        })
    }
}

/// An operating system that boots: it reads, logs, and flushes its log.
pub struct Boot {
    machine: u32,
    next: u64,
}

impl Boot {
    /// Makes one.
    pub fn new(machine: u32) -> Boot {
        Boot { machine, next: 0 }
    }
}

impl Program for Boot {
    fn threads(&self) -> usize {
        5
    }

    fn wish(&mut self, thread: usize, _: u64) -> Option<Wish> {
        self.next += 1;
        let random = mix(self.next ^ u64::from(self.machine) << 32);
        let (after_us, op, bytes) = match thread {
            0 | 1 => (100 + random % 5_900, Op::Read, 32 << 10),
            2 | 3 => (2_000 + random % 18_000, Op::Write, 64 << 10),
            _ => (50_000 + random % 250_000, Op::Flush, 0),
        };
        let blocks = NOISE_BYTES / bytes.max(1);
        Some(Wish {
            after_us,
            who: who(self.machine, op, Class::Normal),
            op,
            offset: self.next.wrapping_mul(STEP) % blocks * bytes,
            bytes,
        })
    }
}

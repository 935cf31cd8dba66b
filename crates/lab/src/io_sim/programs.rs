//! What machines do, as `guests/io.rs` and the noisy machines of `io` do it.

use super::world::{Program, Wish};
use floe_sched::{Class, MachineId, Op, Purpose, Who};

#[path = "../../guests/io_files.rs"]
mod files;

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

/// A user who launches a program, looks at it, and launches it again.
pub struct Launcher {
    machine: u32,
    pause_us: u64,
    overhead_us: u64,
    program: u64,
    number: u64,
    began_us: u64,
    launches: Vec<u64>,
}

impl Launcher {
    /// `overhead_us` is what the guest itself takes for each request, beyond the disk and the program's own computing.
    pub fn new(machine: u32, pause_s: f64, overhead_us: u64) -> Launcher {
        Launcher {
            machine,
            pause_us: (pause_s * 1e6) as u64,
            overhead_us,
            program: 0,
            number: 0,
            began_us: 0,
            launches: Vec::new(),
        }
    }
}

impl Program for Launcher {
    fn threads(&self) -> usize {
        1
    }

    fn wish(&mut self, _: usize, now_us: u64) -> Wish {
        let mut after_us = self.overhead_us;
        if self.number > 0 {
            after_us += files::think_us(self.program, self.number - 1);
        }
        if self.number == files::LAUNCH_READS {
            self.launches.push(now_us + after_us - self.began_us);
            (self.program, self.number) = (self.program + 1, 0);
        }
        if self.number == 0 {
            // a user's clicks don't keep step with anything
            after_us += self.pause_us + files::mix(self.program) % (self.pause_us / 4 + 1);
            self.began_us = now_us + after_us;
        }
        let (offset, bytes) = files::file(self.program, self.number);
        self.number += 1;
        Wish {
            after_us,
            who: who(self.machine, Op::Read, Class::Interactive),
            op: Op::Read,
            offset,
            bytes: bytes as u64,
        }
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

    fn wish(&mut self, _: usize, _: u64) -> Wish {
        let bytes = 16 << 10;
        self.next += 1;
        Wish {
            after_us: 25 + files::mix(self.next) % 75,
            who: who(self.machine, Op::Read, Class::Normal),
            op: Op::Read,
            offset: self.next.wrapping_mul(STEP) % (NOISE_BYTES / bytes) * bytes,
            bytes,
        }
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

    fn wish(&mut self, thread: usize, _: u64) -> Wish {
        self.next += 1;
        let random = files::mix(self.next ^ u64::from(self.machine) << 32);
        let (after_us, op, bytes) = match thread {
            0 | 1 => (100 + random % 5_900, Op::Read, 32 << 10),
            2 | 3 => (2_000 + random % 18_000, Op::Write, 64 << 10),
            _ => (50_000 + random % 250_000, Op::Flush, 0),
        };
        let blocks = NOISE_BYTES / bytes.max(1);
        Wish {
            after_us,
            who: who(self.machine, op, Class::Normal),
            op,
            offset: self.next.wrapping_mul(STEP) % blocks * bytes,
            bytes,
        }
    }
}

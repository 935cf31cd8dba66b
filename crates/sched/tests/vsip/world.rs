//! A device in virtual time that machines share, with a policy before it. Nothing here depends on how fast this host is.

use floe_sched::{Op, Policy, Who};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Numbers that look random and are the same each time.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number of 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number of `least` to `most`.
    pub fn between(&mut self, least: f64, most: f64) -> f64 {
        least + self.part() * (most - least)
    }
}

/// A device: so many requests at once, the others wait in its own queue in the order in which they came.
#[derive(Clone, Copy)]
pub struct Device {
    pub channels: usize,
    /// Mean time of a read, in microseconds; it is spread evenly by half of that to both sides.
    pub service_us: f64,
    /// What each byte adds to that, always the same.
    pub byte_us: f64,
    pub flush_us: f64,
    /// While it stands still, from and until, in microseconds.
    pub stall_us: (u64, u64),
}

impl Device {
    /// A hard disk: 120 requests a second.
    pub const HARD_DISK: Device = Device {
        channels: 1,
        service_us: 1e6 / 120.0,
        byte_us: 0.0,
        flush_us: 25_000.0,
        stall_us: (0, 0),
    };

    /// An SSD: 20,000 requests a second, four at once.
    pub const SSD: Device = Device {
        channels: 4,
        service_us: 200.0,
        byte_us: 0.0,
        flush_us: 1_000.0,
        stall_us: (0, 0),
    };
}

/// What a machine wants next.
pub struct Wish {
    /// How long after its last request was done.
    pub after_us: f64,
    pub who: Who,
    pub op: Op,
    pub bytes: u64,
}

/// A program of a machine: threads that each want one thing at a time.
pub trait Program {
    /// Returns how many threads it has.
    fn threads(&self) -> usize;
    /// Returns what a thread wants, at the beginning and whenever its last wish was fulfilled.
    fn wish(&mut self, thread: usize, now_us: u64, dice: &mut Dice) -> Wish;
    /// Returns how long the user waited for each thing that he wanted, in microseconds.
    fn launches(&self) -> &[f64] {
        &[]
    }
}

/// What a machine got.
#[derive(Clone, Debug, Default)]
pub struct Got {
    pub requests: u64,
    pub waited_us: f64,
    pub longest_us: u64,
}

/// One request in the world.
#[derive(Clone, Copy)]
pub struct Request {
    machine: usize,
    thread: usize,
    who: Who,
    op: Op,
    bytes: u64,
    since_us: u64,
}

enum Event {
    Comes(Request),
    Done(Request),
    Wake,
}

/// Machines, a policy and a device.
pub struct World {
    pub policy: Box<dyn Policy<Request>>,
    device: Device,
    pub programs: Vec<Box<dyn Program>>,
    pub got: Vec<Got>,
    workers: usize,
    busy: Vec<u64>,
    under_way: usize,
    /// Since when each thread of each machine has waited.
    waiting: Vec<Vec<Option<u64>>>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: std::collections::HashMap<u64, Event>,
    number: u64,
    pub now_us: u64,
    dice: Dice,
    /// For how long, in microseconds, the device had nothing to do although something was queued.
    pub idle_us: u64,
    idle_since_us: Option<u64>,
    /// The next time at which the policy is asked again for certain.
    wake_us: Option<u64>,
    begun: bool,
}

impl World {
    /// `workers` threads serve what the policy gives out.
    pub fn new(
        policy: Box<dyn Policy<Request>>,
        device: Device,
        workers: usize,
        programs: Vec<Box<dyn Program>>,
    ) -> World {
        World {
            policy,
            device,
            got: vec![Got::default(); programs.len()],
            programs,
            workers,
            busy: vec![0; device.channels],
            under_way: 0,
            waiting: Vec::new(),
            events: BinaryHeap::new(),
            what: std::collections::HashMap::new(),
            number: 0,
            now_us: 0,
            dice: Dice::new(7),
            idle_us: 0,
            idle_since_us: None,
            wake_us: None,
            begun: false,
        }
    }

    fn at(&mut self, us: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((us, self.number)));
        self.what.insert(self.number, event);
    }

    fn want(&mut self, machine: usize, thread: usize) {
        let wish = self.programs[machine].wish(thread, self.now_us, &mut self.dice);
        let since_us = self.now_us + wish.after_us as u64;
        let request = Request {
            machine,
            thread,
            who: wish.who,
            op: wish.op,
            bytes: wish.bytes,
            since_us,
        };
        self.at(since_us, Event::Comes(request));
    }

    /// Goes on until then.
    pub fn run(&mut self, until_s: f64) {
        let until_us = (until_s * 1e6) as u64;
        if !std::mem::replace(&mut self.begun, true) {
            let threads = self.programs.iter().map(|program| program.threads());
            self.waiting = threads.map(|threads| vec![None; threads]).collect();
            for machine in 0..self.programs.len() {
                (0..self.programs[machine].threads()).for_each(|thread| self.want(machine, thread));
            }
        }
        while let Some(Reverse((us, number))) = self.events.peek().copied() {
            if us > until_us {
                break;
            }
            self.events.pop();
            self.now_us = us;
            match self.what.remove(&number) {
                Some(Event::Comes(request)) => {
                    let Request { who, op, bytes, .. } = request;
                    self.waiting[request.machine][request.thread] = Some(us);
                    assert!(self.policy.submit(us, who, op, bytes, request).is_ok());
                }
                Some(Event::Done(request)) => self.done(request),
                Some(Event::Wake) | None => {}
            }
            self.dispatch();
        }
        self.now_us = until_us;
    }

    fn done(&mut self, request: Request) {
        self.under_way -= 1;
        let Request { who, op, bytes, .. } = request;
        self.policy.served(self.now_us, who, op, bytes);
        let waited_us = self.now_us - request.since_us;
        self.waiting[request.machine][request.thread] = None;
        let got = &mut self.got[request.machine];
        got.requests += 1;
        got.waited_us += waited_us as f64;
        got.longest_us = got.longest_us.max(waited_us);
        self.want(request.machine, request.thread);
    }

    fn dispatch(&mut self) {
        if let Some(since) = self.idle_since_us.take() {
            self.idle_us += self.now_us - since;
        }
        while self.under_way < self.workers {
            let Some((_, request)) = self.policy.next(self.now_us, &mut |_, _| true) else {
                break;
            };
            let spread = self.dice.between(0.5, 1.5);
            let took = match request.op {
                Op::Flush => self.device.flush_us * spread,
                _ => self.device.service_us * spread + request.bytes as f64 * self.device.byte_us,
            };
            let channel = self.busy.iter_mut().min().expect("channels");
            let mut begins = self.now_us.max(*channel);
            let (from, until) = self.device.stall_us;
            if (from..until).contains(&begins) {
                begins = until;
            }
            *channel = begins + took as u64;
            let ends = *channel;
            self.under_way += 1;
            self.at(ends, Event::Done(request));
        }
        if self.under_way == 0 && !self.policy.is_empty() {
            self.idle_since_us = Some(self.now_us);
            assert!(
                self.policy.wake_us().is_some(),
                "idle, and nothing to wait for"
            );
        }
        if let Some(us) = self.policy.wake_us() {
            assert!(us > self.now_us, "woken for nothing");
            if self
                .wake_us
                .is_none_or(|known| us < known || known <= self.now_us)
            {
                self.wake_us = Some(us);
                self.at(us, Event::Wake);
            }
        }
    }

    /// Whoever decides is killed, and another one begins that knows nothing: all that was asked for and isn't answered comes again, as the
    /// kernel has it do. What the device had begun is done for nothing.
    pub fn restart(&mut self, policy: Box<dyn Policy<Request>>) {
        let mut again = Vec::new();
        self.policy.retain(&mut |request| {
            again.push(*request);
            false
        });
        self.what.retain(|_, event| match event {
            Event::Done(request) => {
                again.push(*request);
                false
            }
            Event::Comes(_) | Event::Wake => true,
        });
        // in the order in which they were asked for
        again.sort_by_key(|request| (request.since_us, request.machine, request.thread));
        self.policy = policy;
        self.under_way = 0;
        self.wake_us = None;
        for request in again {
            self.at(self.now_us, Event::Comes(request));
        }
    }

    /// Returns how many requests these machines got together.
    pub fn requests(&self, machines: std::ops::Range<usize>) -> f64 {
        self.got[machines]
            .iter()
            .map(|got| got.requests as f64)
            .sum()
    }

    /// Returns how long a machine's requests waited on average, in microseconds, those that still wait included: else requests
    /// that are never served would make the others look quick.
    pub fn wait_us(&self, machine: usize) -> f64 {
        let got = &self.got[machine];
        let waiting = self.waiting[machine].iter().flatten();
        let (mut waited_us, mut requests) = (got.waited_us, got.requests as f64);
        for since_us in waiting {
            waited_us += (self.now_us - since_us) as f64;
            requests += 1.0;
        }
        waited_us / requests
    }

    /// Returns the mean time of a machine's launches, in seconds.
    pub fn launch_s(&self, machine: usize) -> f64 {
        let launches = self.programs[machine].launches();
        assert!(!launches.is_empty(), "nothing was launched");
        launches.iter().sum::<f64>() / launches.len() as f64 / 1e6
    }
}

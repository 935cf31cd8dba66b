//! The disk in virtual time, with a policy before it.

use floe_sched::{Op, Policy, Who};
use floe_testbed::slow_disk::{Kind, Model};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Bytes of the part of the disk that belongs to one machine: more than a recorded boot uses.
const PART_BYTES: u64 = 4 << 30;

/// What a thread of a machine wants next.
pub struct Wish {
    /// How long after its last request was done, in microseconds.
    pub after_us: u64,
    /// Who it is.
    pub who: Who,
    /// What it does.
    pub op: Op,
    /// Where on the machine's own disk, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// A program of a machine: threads that each want one thing at a time.
pub trait Program {
    /// Returns how many threads it has.
    fn threads(&self) -> usize;
    /// Returns what a thread wants, at the beginning and whenever its last wish was fulfilled. `None`: it wants nothing before another
    /// thread's wish is.
    fn wish(&mut self, thread: usize, now_us: u64) -> Option<Wish>;
    /// One of its wishes was fulfilled.
    fn done(&mut self, _now_us: u64) {}
    /// Returns how long the user waited for each launch, in microseconds.
    fn launches(&self) -> &[u64] {
        &[]
    }
}

/// One request in the world.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    machine: usize,
    thread: usize,
    who: Who,
    op: Op,
    offset: u64,
    bytes: u64,
}

enum Event {
    Comes(Request),
    Done(Request),
    Wake,
}

/// Machines, a policy and a disk.
pub struct World<'a> {
    policy: Box<dyn Policy<Request>>,
    disk: Model,
    kind: Kind,
    /// When the disk's last flush begins and ends.
    flush_us: (u64, u64),
    programs: Vec<Box<dyn Program + 'a>>,
    /// Threads that want nothing yet, by machine.
    resting: Vec<Vec<usize>>,
    /// How many requests each machine had served.
    pub served: Vec<u64>,
    workers: usize,
    under_way: usize,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    number: u64,
    now_us: u64,
    wake_us: Option<u64>,
    begun: bool,
}

impl<'a> World<'a> {
    /// `workers` requests are given to the disk at once at most. Writes go to the disk as they come: a host keeps them in its memory for
    /// a while, but one that writes as fast as it can has to wait for them all the same.
    pub fn new(
        policy: Box<dyn Policy<Request>>,
        kind: Kind,
        workers: usize,
        programs: Vec<Box<dyn Program + 'a>>,
    ) -> World<'a> {
        World {
            policy,
            disk: Model::new(kind, 1),
            kind,
            flush_us: (0, 0),
            served: vec![0; programs.len()],
            resting: vec![Vec::new(); programs.len()],
            programs,
            workers,
            under_way: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            number: 0,
            now_us: 0,
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
        let Some(wish) = self.programs[machine].wish(thread, self.now_us) else {
            self.resting[machine].push(thread);
            return;
        };
        let request = Request {
            machine,
            thread,
            who: wish.who,
            op: wish.op,
            offset: machine as u64 * PART_BYTES + wish.offset,
            bytes: wish.bytes,
        };
        self.at(self.now_us + wish.after_us, Event::Comes(request));
    }

    /// Goes on until so many seconds after the beginning.
    pub fn run(&mut self, until_s: f64) {
        let until_us = (until_s * 1e6) as u64;
        if !std::mem::replace(&mut self.begun, true) {
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
                Some(Event::Comes(request)) => self.comes(request),
                Some(Event::Done(request)) => self.done(request),
                Some(Event::Wake) | None => {}
            }
            self.dispatch();
        }
        self.now_us = until_us;
    }

    fn comes(&mut self, request: Request) {
        let Request { who, op, bytes, .. } = request;
        let queued = self.policy.submit(self.now_us, who, op, bytes, request);
        assert!(queued.is_ok(), "the simulated queue is full");
    }

    fn done(&mut self, request: Request) {
        self.under_way -= 1;
        let Request { who, op, bytes, .. } = request;
        self.policy.served(self.now_us, who, op, bytes);
        self.served[request.machine] += 1;
        self.programs[request.machine].done(self.now_us);
        self.want(request.machine, request.thread);
        for thread in std::mem::take(&mut self.resting[request.machine]) {
            // what the first of them begins may be what the others wait for
            if thread != request.thread {
                self.want(request.machine, thread);
            } else {
                self.resting[request.machine].push(thread);
            }
        }
    }

    fn dispatch(&mut self) {
        while self.under_way < self.workers {
            let Some((_, request)) = self.policy.next(self.now_us, &mut |_, _| true) else {
                break;
            };
            let Request {
                op, offset, bytes, ..
            } = request;
            // the kernel sends one flush for all that wait for one
            let joins = op == Op::Flush && self.now_us < self.flush_us.0;
            let ends = match joins {
                true => self.flush_us.1,
                false => self.disk.accept(self.now_us, op, offset, bytes),
            };
            if op == Op::Flush {
                self.flush_us = (ends - self.kind.flush_us(), ends);
            }
            self.under_way += 1;
            self.at(ends, Event::Done(request));
        }
        if let Some(us) = self.policy.wake_us()
            && self
                .wake_us
                .is_none_or(|known| us < known || known <= self.now_us)
        {
            self.wake_us = Some(us);
            self.at(us.max(self.now_us + 1), Event::Wake);
        }
    }

    /// Returns the mean time of a machine's launches in seconds; NaN if there was none.
    pub fn launch_s(&self, machine: usize) -> f64 {
        let launches = self.programs[machine].launches();
        launches.iter().sum::<u64>() as f64 / launches.len() as f64 / 1e6
    }
}

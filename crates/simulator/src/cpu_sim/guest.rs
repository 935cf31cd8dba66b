//! A machine's guest: threads, the guest's own scheduler, locks, barriers, queues. It knows no host: what it wants of the world (wake
//! this vCPU, let that one go on) it leaves in a list.
//!
//! Each vCPU has a queue of threads of its own, as each processor has in Linux. A thread that wakes goes to its last vCPU, or if that is
//! busy to one that halts. A vCPU without a thread takes one that waits behind another: so the only thread of a vCPU waits there for a
//! core, whatever the other vCPUs do.

#[cfg(test)]
mod tests;

use super::random::Random;
use super::sem::Sem;
use super::workload::{Locks, Op, Program, Workload};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// How a guest's kernel takes spin locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Whoever spins when it becomes free has it: Linux before 2.6.25, and the C library's.
    Unfair,
    /// In the order of coming, even if who comes next has no core: ticket locks since Linux 2.6.25, queued ones since 4.2.
    Queued,
    /// The same; who spins for long halts, and is woken when it is its turn. Until it has a core, whoever comes by may take the lock
    /// (`CONFIG_PARAVIRT_SPINLOCKS` since Linux 4.5, `pv_hybrid_queued_unfair_trylock`).
    Paravirtual,
}

/// How long a paravirtual lock is spun for before its vCPU halts.
pub const PARAVIRTUAL_SPIN_NS: u64 = 200_000;
/// How long a thread runs in its guest while others wait for its vCPU.
pub const GUEST_SLICE_NS: u64 = 5_000_000;
/// How long a vCPU runs before it looks for a queue longer than its own.
pub const GUEST_BALANCE_NS: u64 = 64_000_000;

/// Why a vCPU spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// For a spin lock.
    Lock(usize),
    /// At a barrier.
    Barrier(usize),
    /// Until others have answered its interrupt.
    Flush,
}

impl Spin {
    /// Whether the guest's kernel spins. At a barrier a program does.
    pub fn in_kernel(self) -> bool {
        !matches!(self, Spin::Barrier(_))
    }
}

/// What a vCPU does when its host lets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It has no thread, and looks for one.
    Looks,
    /// It halts.
    Halts,
    /// It halts until a paravirtual lock is its own.
    HaltsForLock(usize),
    /// Its thread computes for so long still.
    Computes(u64),
    /// Its thread spins, so long already.
    Spins(Spin, u64),
}

/// A vCPU.
#[derive(Clone, Debug)]
pub struct Vcpu {
    /// What it does.
    pub doing: Doing,
    /// The guest's thread on it.
    pub thread: Option<usize>,
    /// For how long that thread has had it.
    pub slice_ns: u64,
    /// Whether it is on a core now.
    pub on_core: bool,
    /// Whether it wants a core, but has none.
    pub waits: bool,
    /// vCPUs that still have to answer its interrupt.
    pub unanswered: Vec<usize>,
    /// What is left of its thread's computing when a lock came in between.
    rest: u64,
    /// The guest's threads that wait for it.
    ready: VecDeque<usize>,
    /// For how long it has run since it last looked for a longer queue.
    unbalanced_ns: u64,
}

impl Vcpu {
    /// How many of the guest's threads are on it or wait for it.
    fn threads(&self) -> usize {
        self.ready.len() + usize::from(self.thread.is_some())
    }

    /// How long its thread may go on before another one's turn comes.
    fn slice_left_ns(&self) -> u64 {
        match self.ready.is_empty() {
            true => u64::MAX,
            false => GUEST_SLICE_NS.saturating_sub(self.slice_ns),
        }
    }
}

/// What a guest wants of its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A halted vCPU has something to do, because of what this one did.
    Wake(usize),
    /// What a vCPU does has changed under it.
    Changed(usize),
}

#[derive(Clone, Debug)]
struct Held {
    lock: usize,
    owner: usize,
    /// Whether it keeps others off: it does not while its owner has been woken for it, but has had no core since.
    taken: bool,
    waiters: VecDeque<usize>,
}

#[derive(Clone, Debug, Default)]
struct Gate {
    here: usize,
    spinning: Vec<usize>,
    blocked: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Pipe {
    items: usize,
    takers: VecDeque<usize>,
    putters: VecDeque<usize>,
}

/// The guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// What it wants of its world since it was last asked.
    pub wishes: Vec<Wish>,
    /// Units of work done.
    pub count: u64,
    /// Threads that have not ended.
    pub alive: usize,
    /// Nanoseconds spun, for locks, at barriers, and for answers.
    pub spun_ns: [u64; 3],
    /// How often a computing vCPU was stopped, and how often it held a lock then.
    pub stopped: u64,
    /// See `stopped`.
    pub stopped_holding: u64,
    /// Threads that wait for a device: when, and which.
    pub sleeping: Vec<(u64, usize)>,
    program: Program,
    /// The vCPU on which each thread was last.
    last: Vec<usize>,
    gates: Vec<Gate>,
    pipes: Vec<Pipe>,
    /// The lock of its process's memory.
    memory: Sem,
    held: Vec<Held>,
    locks: Locks,
    kind: LockKind,
    workload: Workload,
}

impl Guest {
    /// Begins a workload on so many vCPUs, all of which have something to do or look for it.
    pub fn new(workload: Workload, vcpus: usize, kind: LockKind) -> Guest {
        let threads = workload.threads(vcpus);
        let vcpu = Vcpu {
            doing: Doing::Looks,
            thread: None,
            slice_ns: 0,
            on_core: false,
            waits: true,
            unanswered: Vec::new(),
            rest: 0,
            ready: VecDeque::new(),
            unbalanced_ns: 0,
        };
        let mut all = vec![vcpu; vcpus];
        let last: Vec<usize> = (0..threads).map(|thread| thread % vcpus).collect();
        for (thread, at) in last.iter().enumerate() {
            all[*at].ready.push_back(thread);
        }
        Guest {
            vcpus: all,
            wishes: Vec::new(),
            count: 0,
            alive: threads,
            spun_ns: [0; 3],
            stopped: 0,
            stopped_holding: 0,
            sleeping: Vec::new(),
            program: Program::new(workload, vcpus),
            last,
            gates: vec![Gate::default(); workload.barriers(vcpus).len()],
            pipes: vec![Pipe::default(); workload.queues().len()],
            memory: Sem::default(),
            held: Vec::new(),
            locks: workload.locks(),
            kind,
            workload,
        }
    }

    /// What runs in it.
    pub fn workload(&self) -> Workload {
        self.workload
    }

    /// A vCPU has run for so long.
    pub fn ran(&mut self, at: usize, ns: u64) {
        let vcpu = &mut self.vcpus[at];
        vcpu.slice_ns += ns;
        vcpu.unbalanced_ns += ns;
        match &mut vcpu.doing {
            Doing::Computes(left) => *left = left.saturating_sub(ns),
            Doing::Spins(spin, spun) => {
                *spun += ns;
                let kind = match spin {
                    Spin::Lock(_) => 0,
                    Spin::Barrier(_) => 1,
                    Spin::Flush => 2,
                };
                self.spun_ns[kind] += ns;
            }
            _ => {}
        }
    }

    /// When a running vCPU does something else, if nothing happens before, and whether it then runs into a lock whose holder has no core.
    pub fn next_ns(&self, at: usize, random: &mut Random) -> (u64, bool) {
        let vcpu = &self.vcpus[at];
        match vcpu.doing {
            Doing::Computes(left) => {
                let next = left.min(vcpu.slice_left_ns());
                let taken = self.held.iter().filter(|held| held.taken).count();
                let rate = self.locks.per_s / self.locks.count as f64 * taken as f64;
                if rate > 0.0 {
                    let meets = random.exponential(1e9 / rate);
                    if meets < next {
                        return (meets, true);
                    }
                }
                (next, false)
            }
            Doing::Spins(Spin::Lock(_), spun) if self.kind == LockKind::Paravirtual => {
                (PARAVIRTUAL_SPIN_NS.saturating_sub(spun), false)
            }
            Doing::Spins(Spin::Barrier(gate), spun) => {
                let limit = self.workload.barriers(self.vcpus.len())[gate].spin_ns;
                let spins = limit.saturating_sub(spun);
                (spins.min(vcpu.slice_left_ns()), false)
            }
            Doing::Spins(..) => (u64::MAX, false),
            _ => (0, false),
        }
    }

    /// A computing vCPU needs a lock whose holder has no core.
    pub fn meets_lock(&mut self, at: usize, random: &mut Random) {
        let Doing::Computes(left) = self.vcpus[at].doing else {
            return;
        };
        let taken = || self.held.iter().filter(|held| held.taken);
        let which = random.below(taken().count());
        let Some(held) = self.held.iter_mut().filter(|held| held.taken).nth(which) else {
            return;
        };
        if held.owner == at {
            return;
        }
        held.waiters.push_back(at);
        let lock = held.lock;
        self.vcpus[at].rest = left;
        self.vcpus[at].doing = Doing::Spins(Spin::Lock(lock), 0);
    }

    /// Lets a vCPU on its core do what takes no time, until it computes, spins or halts.
    pub fn act(&mut self, at: usize, now_ns: u64, random: &mut Random) {
        self.balance(at);
        loop {
            match self.vcpus[at].doing {
                Doing::Computes(left) if left > 0 => {
                    if self.vcpus[at].slice_left_ns() > 0 {
                        return;
                    }
                    self.yield_thread(at, left);
                }
                Doing::Computes(_) => {
                    let Some(thread) = self.vcpus[at].thread else {
                        self.vcpus[at].doing = Doing::Looks;
                        continue;
                    };
                    let op = self.program.next(thread, random);
                    self.perform(at, thread, op, now_ns);
                }
                Doing::Spins(spin, spun) => {
                    if !self.gives_up(at, spin, spun) {
                        return;
                    }
                }
                Doing::Looks | Doing::Halts => match self.thread_for(at) {
                    Some(thread) => self.resume(at, thread),
                    None => {
                        self.vcpus[at].doing = Doing::Halts;
                        return;
                    }
                },
                Doing::HaltsForLock(_) => return,
            }
        }
    }

    /// The next thread of a vCPU that has none.
    fn thread_for(&mut self, at: usize) -> Option<usize> {
        let own = self.vcpus[at].ready.pop_front();
        own.or_else(|| self.pull(at))
    }

    /// A vCPU that has run for long enough takes a thread over from a queue longer than its own.
    fn balance(&mut self, at: usize) {
        if self.vcpus[at].unbalanced_ns >= GUEST_BALANCE_NS {
            self.vcpus[at].unbalanced_ns = 0;
            let moved = self.pull(at);
            self.vcpus[at].ready.extend(moved);
        }
    }

    /// Takes the last thread that waits for the vCPU with the most of them, if that has two more than this one.
    fn pull(&mut self, at: usize) -> Option<usize> {
        let others = (0..self.vcpus.len()).filter(|other| *other != at);
        let most = others.max_by_key(|other| (self.vcpus[*other].threads(), Reverse(*other)))?;
        match self.vcpus[most].threads() >= self.vcpus[at].threads() + 2 {
            true => self.vcpus[most].ready.pop_back(),
            false => None,
        }
    }

    /// Whether a spinner has stopped spinning: it has spun for long enough, or another thread's turn has come.
    fn gives_up(&mut self, at: usize, spin: Spin, spun: u64) -> bool {
        match spin {
            Spin::Barrier(gate) => {
                let limit = self.workload.barriers(self.vcpus.len())[gate].spin_ns;
                if spun < limit && self.vcpus[at].slice_left_ns() > 0 {
                    return false;
                }
                // it spins no more when it gets a vCPU again: by then the others may be there
                self.gates[gate].spinning.retain(|other| *other != at);
                let thread = self.vcpus[at].thread;
                self.gates[gate].blocked.extend(thread);
                self.leave(at);
                true
            }
            Spin::Lock(lock)
                if self.kind == LockKind::Paravirtual && spun >= PARAVIRTUAL_SPIN_NS =>
            {
                self.vcpus[at].doing = Doing::HaltsForLock(lock);
                true
            }
            _ => false,
        }
    }

    fn leave(&mut self, at: usize) {
        let vcpu = &mut self.vcpus[at];
        vcpu.thread = None;
        vcpu.doing = Doing::Looks;
    }

    fn yield_thread(&mut self, at: usize, left: u64) {
        if let Some(thread) = self.vcpus[at].thread {
            self.program.keep(thread, left);
            self.vcpus[at].ready.push_back(thread);
        }
        self.leave(at);
    }

    fn resume(&mut self, at: usize, thread: usize) {
        let left = self.program.kept(thread);
        self.last[thread] = at;
        let vcpu = &mut self.vcpus[at];
        vcpu.thread = Some(thread);
        vcpu.slice_ns = 0;
        vcpu.doing = Doing::Computes(left);
    }

    fn perform(&mut self, at: usize, thread: usize, op: Op, now_ns: u64) {
        match op {
            Op::Compute(ns) => self.vcpus[at].doing = Doing::Computes(ns.max(1)),
            Op::Count => self.count += 1,
            Op::End => {
                self.alive -= 1;
                self.leave(at);
            }
            Op::Sleep(ns) => {
                self.sleeping.push((now_ns + ns, thread));
                self.leave(at);
            }
            Op::Barrier(gate) => self.arrive(at, thread, gate),
            Op::Put(pipe) => self.put(at, thread, pipe),
            Op::Take(pipe) => self.take(at, thread, pipe),
            Op::Read | Op::Write => {
                if !self.memory.take(thread, op == Op::Write) {
                    self.leave(at);
                }
            }
            Op::Release => {
                for next in self.memory.release() {
                    self.make_ready(next);
                }
            }
            Op::Flush => {
                let waits = |(other, vcpu): (usize, &Vcpu)| {
                    (other != at && vcpu.waits && vcpu.doing != Doing::Halts).then_some(other)
                };
                let unanswered = self.vcpus.iter().enumerate().filter_map(waits).collect();
                let vcpu = &mut self.vcpus[at];
                vcpu.unanswered = unanswered;
                if !vcpu.unanswered.is_empty() {
                    vcpu.doing = Doing::Spins(Spin::Flush, 0);
                }
            }
        }
    }

    fn arrive(&mut self, at: usize, thread: usize, gate: usize) {
        let barrier = self.workload.barriers(self.vcpus.len())[gate];
        let state = &mut self.gates[gate];
        state.here += 1;
        if state.here < barrier.members {
            if barrier.spin_ns > 0 {
                state.spinning.push(at);
                self.vcpus[at].doing = Doing::Spins(Spin::Barrier(gate), 0);
            } else {
                state.blocked.push(thread);
                self.leave(at);
            }
            return;
        }
        let Gate {
            spinning, blocked, ..
        } = std::mem::take(state);
        for vcpu in spinning {
            self.goes_on(vcpu, 0);
        }
        for thread in blocked {
            self.make_ready(thread);
        }
    }

    fn put(&mut self, at: usize, thread: usize, pipe: usize) {
        let room = self.workload.queues()[pipe];
        let pipe = &mut self.pipes[pipe];
        if let Some(taker) = pipe.takers.pop_front() {
            self.make_ready(taker);
        } else if pipe.items < room {
            pipe.items += 1;
        } else {
            pipe.putters.push_back(thread);
            self.leave(at);
        }
    }

    fn take(&mut self, at: usize, thread: usize, pipe: usize) {
        let pipe = &mut self.pipes[pipe];
        if pipe.items == 0 {
            pipe.takers.push_back(thread);
            self.leave(at);
            return;
        }
        pipe.items -= 1;
        if let Some(putter) = pipe.putters.pop_front() {
            pipe.items += 1;
            self.make_ready(putter);
        }
    }

    /// A thread that blocked can go on: on its last vCPU, or if that does something on one that halts, which is woken.
    pub fn make_ready(&mut self, thread: usize) {
        let halts = |vcpu: &Vcpu| vcpu.doing == Doing::Halts;
        let mut at = self.last[thread];
        if !halts(&self.vcpus[at]) {
            at = self.vcpus.iter().position(halts).unwrap_or(at);
        }
        let vcpu = &mut self.vcpus[at];
        vcpu.ready.push_back(thread);
        if vcpu.doing == Doing::Halts {
            vcpu.doing = Doing::Looks;
            self.wishes.push(Wish::Wake(at));
        } else if vcpu.on_core {
            // the turn of the thread that is there ends now
            self.wishes.push(Wish::Changed(at));
        }
    }

    /// A vCPU whose thread spun goes on with what is left of its computing.
    fn goes_on(&mut self, at: usize, left: u64) {
        self.vcpus[at].doing = Doing::Computes(left);
        self.wishes.push(Wish::Changed(at));
    }

    /// A vCPU gets a core: it answers interrupts, and releases what it held.
    pub fn begins(&mut self, at: usize) {
        self.vcpus[at].on_core = true;
        self.vcpus[at].waits = false;
        for other in 0..self.vcpus.len() {
            let vcpu = &mut self.vcpus[other];
            let before = vcpu.unanswered.len();
            vcpu.unanswered.retain(|vcpu| *vcpu != at);
            let last = before > 0 && vcpu.unanswered.is_empty();
            if last && matches!(vcpu.doing, Doing::Spins(Spin::Flush, _)) {
                self.goes_on(other, 0);
            }
        }
        while let Some(which) = self.held.iter().position(|held| held.owner == at) {
            self.release(which);
        }
    }

    fn release(&mut self, which: usize) {
        if self.kind == LockKind::Unfair {
            let held = self.held.swap_remove(which);
            for waiter in held.waiters {
                self.goes_on(waiter, self.vcpus[waiter].rest);
            }
            return;
        }
        // each one in its turn; the first that has no core keeps the others waiting
        while let Some(next) = self.held[which].waiters.pop_front() {
            let halts = matches!(self.vcpus[next].doing, Doing::HaltsForLock(_));
            let spun = matches!(self.vcpus[next].doing, Doing::Spins(_, spun) if spun > 0);
            self.vcpus[next].doing = Doing::Computes(self.vcpus[next].rest);
            if halts {
                self.wishes.push(Wish::Wake(next));
            } else {
                self.wishes.push(Wish::Changed(next));
            }
            if !self.vcpus[next].on_core {
                self.held[which].owner = next;
                self.held[which].taken = spun || self.kind == LockKind::Queued;
                return;
            }
        }
        self.held.swap_remove(which);
    }

    /// A vCPU loses its core while it wants to go on. It may hold a lock, unless it is `spared` for as long as it holds one.
    pub fn stopped(&mut self, at: usize, spared: bool, random: &mut Random) {
        self.vcpus[at].on_core = false;
        self.vcpus[at].waits = true;
        if !matches!(self.vcpus[at].doing, Doing::Computes(left) if left > 0) {
            return;
        }
        self.stopped += 1;
        if !random.chance(self.locks.held()) {
            return;
        }
        self.stopped_holding += 1;
        let lock = random.below(self.locks.count);
        let held = self.held.iter_mut().find(|held| held.lock == lock);
        let free = held.as_ref().is_none_or(|held| !held.taken);
        if free && !spared {
            match held {
                // it came by before the one that had been woken, which spins for it when it gets its core
                Some(held) => {
                    let woken = std::mem::replace(&mut held.owner, at);
                    held.taken = true;
                    held.waiters.push_front(woken);
                    self.vcpus[woken].doing = Doing::Spins(Spin::Lock(lock), 0);
                }
                None => self.held.push(Held {
                    lock,
                    owner: at,
                    taken: true,
                    waiters: VecDeque::new(),
                }),
            }
            // siblings that compute may run into it
            for other in 0..self.vcpus.len() {
                if other != at && self.vcpus[other].on_core {
                    self.wishes.push(Wish::Changed(other));
                }
            }
        }
    }

    /// For whom a spinner waits, if its host can know: the first that has not answered its interrupt.
    pub fn awaits(&self, at: usize) -> Option<usize> {
        self.vcpus[at].unanswered.first().copied()
    }
}

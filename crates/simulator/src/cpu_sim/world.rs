//! The host: cores, machines, and the time that passes.

use super::guest::{Doing, Guest, LockKind, Wish};
use super::random::Random;
use super::workload::{MS, US, Workload};
use floe_sched::MachineId;
use floe_sched::cpu::{Base, Place, Policy, Scheduler, Stop, TaskId, Tell, WEIGHT};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The host's clock ticks so often on each core, at a quarter of that from one core to the next.
pub const TICK_NS: u64 = MS;
/// What a core loses when another vCPU gets it: 2.75 times the 5 us of a native switch (section 4.3.2 measures 2.5 to 3).
pub const SWITCH_NS: u64 = 13_750;
/// A vCPU that spins for so long leaves the guest (KVM's pause-loop exits), and then again after so long.
pub const PAUSE_EXIT_NS: u64 = 20 * US;
const PAUSE_AGAIN_NS: u64 = 200 * US;
/// Idle cores look for work each fourth tick, busy ones each 64th.
const BALANCE_IDLE: u64 = 4;
const BALANCE_BUSY: u64 = 64;
/// How often queues are looked at for stacking and distances, in ticks.
const SAMPLE: u64 = 10;
/// Machines start at different times, and so do a machine's vCPUs, as a guest brings its processors up one by one: up to so long after
/// each other.
const START_NS: u64 = 50 * MS;
/// The numbers of a machine's vCPUs begin at so many times its own.
const NUMBERS: u32 = 1000;

/// A run.
pub struct Setup {
    /// Cores of the host.
    pub cores: usize,
    /// Its kernel's scheduler.
    pub base: Base,
    /// What decides above it.
    pub policy: Box<dyn Policy>,
    /// Whether the host hears of vCPUs that spin.
    pub tells: bool,
    /// Guests' spin locks.
    pub locks: LockKind,
    /// vCPUs and workload of each machine; the first one is measured.
    pub machines: Vec<(usize, Workload)>,
    /// What chance begins with.
    pub seed: u64,
    /// The run ends when the first machine's workload has, or after so many seconds.
    pub limit_s: f64,
    /// How often each machine's processor time is noted, in seconds; 0 if never.
    pub note_s: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds until the first machine's workload ended, or the limit.
    pub took_s: f64,
    /// Whether it ended.
    pub ended: bool,
    /// Units of work that it did.
    pub count: u64,
    /// How often a core went to another vCPU.
    pub switches: u64,
    /// Samples in which two vCPUs of the first machine were in one queue, in percent.
    pub stacked_pct: f64,
    /// Times a vCPU of it was first in its queue and a sibling two thirds of a queue away, in percent.
    pub far_pct: f64,
    /// The first machine's processor time spent spinning for locks, at barriers and for answers, in percent of it.
    pub spun_pct: [f64; 3],
    /// How often it held a lock when it was stopped, in percent.
    pub holding_pct: f64,
    /// Loans that were made.
    pub loans: u64,
    /// The mean of the queues' lengths.
    pub queue: f64,
    /// Each machine's processor time until each note, in nanoseconds.
    pub notes: Vec<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Core(usize, u64, bool),
    Tick(usize),
    Sleeper(usize),
    Start(usize, usize),
    Note,
}

#[derive(Clone, Debug, Default)]
struct Core {
    runs: Option<(usize, usize)>,
    last: Option<TaskId>,
    /// Events of earlier plans are void.
    plan: u64,
    since_ns: u64,
    /// Until then the switch takes the core's time.
    warm_ns: u64,
    ticks: u64,
    /// When it may leave the guest again because of a loop of pauses.
    pause_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    samples: u64,
    stacked: u64,
    first: u64,
    far: u64,
    length: u64,
}

/// The host and all that it runs.
pub struct World {
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    scheduler: Scheduler,
    cores: Vec<Core>,
    guests: Vec<Guest>,
    random: Random,
    tells: bool,
    switches: u64,
    seen: Seen,
    /// Cores that have to choose anew.
    choose: Vec<usize>,
    limit_ns: u64,
    note_ns: u64,
    notes: Vec<Vec<u64>>,
}

fn task(machine: usize, vcpu: usize) -> TaskId {
    TaskId(machine as u32 * NUMBERS + vcpu as u32)
}

fn vcpu_of(id: TaskId) -> (usize, usize) {
    ((id.0 / NUMBERS) as usize, (id.0 % NUMBERS) as usize)
}

impl World {
    /// Makes a host with machines that start soon.
    pub fn new(setup: Setup) -> World {
        let mut world = World {
            now_ns: 0,
            events: BinaryHeap::new(),
            number: 0,
            scheduler: Scheduler::new(setup.base, setup.cores, setup.policy),
            cores: vec![Core::default(); setup.cores],
            guests: Vec::new(),
            random: Random::new(setup.seed),
            tells: setup.tells,
            switches: 0,
            seen: Seen::default(),
            choose: Vec::new(),
            limit_ns: (setup.limit_s * 1e9) as u64,
            note_ns: (setup.note_s * 1e9) as u64,
            notes: Vec::new(),
        };
        for (machine, (vcpus, workload)) in setup.machines.iter().enumerate() {
            for vcpu in 0..*vcpus {
                let number = MachineId(machine as u32 + 1);
                let added = world
                    .scheduler
                    .add(task(machine, vcpu), Some(number), WEIGHT);
                assert_eq!(added, Ok(()));
            }
            world
                .guests
                .push(Guest::new(*workload, *vcpus, setup.locks));
            for vcpu in 0..*vcpus {
                let start = world.random.below(START_NS as usize) as u64;
                world.at(start, Event::Start(machine, vcpu));
            }
        }
        for core in 0..setup.cores {
            let first = core as u64 * TICK_NS / 4 + 1;
            world.at(first, Event::Tick(core));
        }
        if world.note_ns > 0 {
            // what is new takes a while to find its place
            world.at(1_000 * MS, Event::Note);
        }
        world
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((ns, self.number, event)));
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        while let Some(Reverse((ns, _, event))) = self.events.pop() {
            if ns > self.limit_ns {
                break;
            }
            if matches!(event, Event::Core(core, plan, _) if self.cores[core].plan != plan) {
                continue;
            }
            self.now_ns = ns;
            // what happens may change what any vCPU does from now on
            (0..self.cores.len()).for_each(|core| self.advance(core));
            self.happens(event);
            self.settle();
            if self.guests[0].alive == 0 {
                break;
            }
        }
        self.outcome()
    }

    fn outcome(self) -> Outcome {
        let queues = self.scheduler.queues();
        let guest = &self.guests[0];
        let own = queues.vcpus(MachineId(1)).iter();
        let own_ns: u64 = own
            .map(|id| queues.task(*id).map_or(0, |task| task.ran_ns))
            .sum();
        let pct = |part: u64, of: u64| part as f64 * 100.0 / of.max(1) as f64;
        let ended = guest.alive == 0;
        Outcome {
            took_s: if ended { self.now_ns } else { self.limit_ns } as f64 / 1e9,
            ended,
            count: guest.count,
            switches: self.switches,
            stacked_pct: pct(self.seen.stacked, self.seen.samples),
            far_pct: pct(self.seen.far, self.seen.first),
            spun_pct: guest.spun_ns.map(|ns| pct(ns, own_ns)),
            holding_pct: pct(guest.stopped_holding, guest.stopped),
            loans: queues.ledger().loans,
            queue: self.seen.length as f64
                / (self.seen.samples * self.cores.len() as u64).max(1) as f64,
            notes: self.notes,
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Start(machine, vcpu) => self.wake(machine, vcpu, None),
            Event::Core(core, _, meets) => {
                if let (true, Some((machine, vcpu))) = (meets, self.cores[core].runs) {
                    self.guests[machine].meets_lock(vcpu, &mut self.random);
                }
                self.pause_exit(core);
                self.act(core);
            }
            Event::Tick(core) => self.tick(core),
            Event::Sleeper(machine) => {
                let (now_ns, guest) = (self.now_ns, &mut self.guests[machine]);
                let all = std::mem::take(&mut guest.sleeping);
                let (due, later): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|(ns, _)| *ns <= now_ns);
                guest.sleeping = later;
                for (_, thread) in due {
                    guest.make_ready(thread);
                }
                self.fulfil(machine, None);
            }
            Event::Note => {
                for core in 0..self.cores.len() {
                    self.scheduler.tick(self.now_ns, core);
                }
                let queues = self.scheduler.queues();
                let ran = |number: usize| {
                    let ids = queues.vcpus(MachineId(number as u32 + 1)).iter();
                    ids.map(|id| queues.task(*id).map_or(0, |task| task.ran_ns))
                        .sum()
                };
                let note = (0..self.guests.len()).map(ran).collect();
                self.notes.push(note);
                self.at(self.now_ns + self.note_ns, Event::Note);
            }
        }
    }

    /// Counts the time that has passed on a core for the vCPU that runs there.
    fn advance(&mut self, core: usize) {
        let state = &mut self.cores[core];
        let from = state.since_ns.max(state.warm_ns);
        state.since_ns = self.now_ns;
        if let Some((machine, vcpu)) = state.runs {
            self.guests[machine].ran(vcpu, self.now_ns.saturating_sub(from));
        }
    }

    /// Lets the vCPU on a core do what takes no time, and plans when it does something again.
    fn act(&mut self, core: usize) {
        let Some((machine, vcpu)) = self.cores[core].runs else {
            return;
        };
        if self.now_ns >= self.cores[core].warm_ns {
            let sleeping = self.guests[machine].sleeping.len();
            self.guests[machine].act(vcpu, self.now_ns, &mut self.random);
            let more: Vec<u64> = self.guests[machine].sleeping[sleeping..]
                .iter()
                .map(|(ns, _)| *ns)
                .collect();
            for ns in more {
                self.at(ns, Event::Sleeper(machine));
            }
            self.fulfil(machine, Some(core));
        }
        let doing = self.guests[machine].vcpus[vcpu].doing;
        if matches!(doing, Doing::Halts | Doing::HaltsForLock(_)) {
            let guest = &mut self.guests[machine].vcpus[vcpu];
            (guest.on_core, guest.waits) = (false, false);
            self.cores[core].runs = None;
            let cores = self.scheduler.stop(self.now_ns, core, Stop::Sleeps);
            self.choose.extend(cores);
            self.choose.push(core);
            return;
        }
        self.plan(core, machine, vcpu);
    }

    fn plan(&mut self, core: usize, machine: usize, vcpu: usize) {
        let begins = self.now_ns.max(self.cores[core].warm_ns);
        let (mut next, meets) = self.guests[machine].next_ns(vcpu, &mut self.random);
        let spins = match self.guests[machine].vcpus[vcpu].doing {
            Doing::Spins(_, spun) if self.tells => Some(spun),
            _ => None,
        };
        if let Some(spun) = spins {
            let first = PAUSE_EXIT_NS.saturating_sub(spun);
            let again = self.cores[core].pause_ns.saturating_sub(begins);
            next = next.min(first.max(again).max(1));
        }
        self.cores[core].plan += 1;
        if next < u64::MAX / 2 {
            let event = Event::Core(core, self.cores[core].plan, meets);
            self.at(begins + next, event);
        }
    }

    /// Tells the host of a vCPU that has spun for long enough.
    fn pause_exit(&mut self, core: usize) {
        let Some((machine, vcpu)) = self.cores[core].runs else {
            return;
        };
        let Doing::Spins(spin, spun) = self.guests[machine].vcpus[vcpu].doing else {
            return;
        };
        if !self.tells || spun < PAUSE_EXIT_NS || self.now_ns < self.cores[core].pause_ns {
            return;
        }
        self.cores[core].pause_ns = self.now_ns + PAUSE_AGAIN_NS;
        let awaits = self.guests[machine].awaits(vcpu);
        let tell = Tell::Spins {
            task: task(machine, vcpu),
            awaits: awaits.map(|vcpu| task(machine, vcpu)),
            in_kernel: spin.in_kernel(),
        };
        self.scheduler.tick(self.now_ns, core);
        let cores = self.scheduler.told(self.now_ns, tell);
        self.choose.extend(cores);
    }

    /// Does what a guest wished for, because of what happened on a core.
    fn fulfil(&mut self, machine: usize, core: Option<usize>) {
        while let Some(wish) = self.guests[machine].wishes.pop() {
            match wish {
                Wish::Wake(vcpu) => self.wake(machine, vcpu, core),
                Wish::Changed(vcpu) => {
                    let queues = self.scheduler.queues();
                    let there = queues.task(task(machine, vcpu)).map(|task| task.core);
                    let there =
                        there.filter(|there| self.cores[*there].runs == Some((machine, vcpu)));
                    if let Some(there) = there.filter(|there| Some(*there) != core) {
                        // what it did until now was counted when it changed, or is spinning
                        self.changed(there);
                    }
                }
            }
        }
    }

    /// What the vCPU on a core does has changed: it is planned anew, at once.
    fn changed(&mut self, core: usize) {
        self.cores[core].plan += 1;
        let event = Event::Core(core, self.cores[core].plan, false);
        self.at(self.now_ns.max(self.cores[core].warm_ns), event);
    }

    fn wake(&mut self, machine: usize, vcpu: usize, waker: Option<usize>) {
        self.guests[machine].vcpus[vcpu].waits = true;
        if let Some(woken) = self.scheduler.wake(self.now_ns, task(machine, vcpu), waker)
            && (woken.reschedules || self.cores[woken.core].runs.is_none())
        {
            self.choose.push(woken.core);
        }
    }

    fn tick(&mut self, core: usize) {
        self.at(self.now_ns + TICK_NS, Event::Tick(core));
        let over = self.scheduler.tick(self.now_ns, core);
        let idle = self.cores[core].runs.is_none();
        if over || idle && self.scheduler.queues().waiting(core) > 0 {
            self.choose.push(core);
        }
        self.cores[core].ticks += 1;
        let every = if idle { BALANCE_IDLE } else { BALANCE_BUSY };
        if self.cores[core].ticks.is_multiple_of(every) {
            let moved = self.scheduler.pull(self.now_ns, core).is_some();
            if moved && idle {
                self.choose.push(core);
            }
        }
        if core == 0 && self.cores[0].ticks.is_multiple_of(SAMPLE) {
            self.sample();
        }
    }

    fn sample(&mut self) {
        let queues = self.scheduler.queues();
        self.seen.samples += 1;
        self.seen.stacked += u64::from(queues.is_stacked(MachineId(1)));
        for core in 0..self.cores.len() {
            self.seen.length += queues.length(core) as u64;
            let Some(first) = queues.nth(core, 0) else {
                continue;
            };
            if vcpu_of(first).0 != 0 {
                continue;
            }
            // where it stands when it is chosen: nobody runs on its core then
            let here = 0;
            let far = |id: TaskId| {
                let there = queues.task(id)?;
                let apart = queues.ordinate(id)?.abs_diff(here);
                let waits = there.place == Place::Waits;
                (waits && apart * 3 >= 2 * queues.length(there.core)).then_some(())
            };
            self.seen.first += 1;
            self.seen.far += u64::from(queues.siblings(first).any(|id| far(id).is_some()));
        }
    }

    /// Has cores choose until none has to.
    fn settle(&mut self) {
        let mut budget = 64 * self.cores.len();
        while let Some(core) = self.choose.pop() {
            self.choose.retain(|other| *other != core);
            self.reschedule(core);
            budget -= 1;
            if budget == 0 {
                // guests whose vCPUs halt at once: their cores go on at the next tick
                self.choose.clear();
            }
        }
    }

    fn reschedule(&mut self, core: usize) {
        let before = self.cores[core].runs.take();
        if before.is_some() {
            let cores = self.scheduler.stop(self.now_ns, core, Stop::Preempted);
            // a gang's members leave with their leader, which is this one
            self.choose
                .extend(cores.into_iter().filter(|other| *other != core));
        }
        let mut others = Vec::new();
        let picked = self.scheduler.pick(self.now_ns, core, &mut others);
        self.choose.extend(others);
        self.cores[core].plan += 1;
        if let Some((machine, vcpu)) = before
            && picked != Some(task(machine, vcpu))
        {
            self.loses(machine, vcpu);
        }
        let Some(id) = picked else {
            return;
        };
        let (machine, vcpu) = vcpu_of(id);
        self.cores[core].runs = Some((machine, vcpu));
        if self.cores[core].last != Some(id) {
            self.switches += 1;
            self.cores[core].last = Some(id);
            self.cores[core].warm_ns = self.now_ns + SWITCH_NS;
        }
        if before != Some((machine, vcpu)) {
            self.cores[core].pause_ns = 0;
            self.guests[machine].begins(vcpu);
            self.fulfil(machine, None);
        }
        self.changed(core);
    }

    fn loses(&mut self, machine: usize, vcpu: usize) {
        let spares = self.scheduler.policy().spares_holders();
        let guest = &mut self.guests[machine];
        let part = guest.workload().in_kernel();
        let (doing, holding) = (guest.vcpus[vcpu].doing, guest.stopped_holding);
        guest.stopped(vcpu, spares, &mut self.random);
        let in_kernel = match doing {
            Doing::Spins(spin, _) => spin.in_kernel(),
            _ => guest.stopped_holding > holding || self.random.chance(part),
        };
        self.fulfil(machine, None);
        if self.tells {
            let task = task(machine, vcpu);
            let cores = self
                .scheduler
                .told(self.now_ns, Tell::Preempted { task, in_kernel });
            self.choose.extend(cores);
        }
    }
}

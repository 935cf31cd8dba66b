//! What is known of one machine's vCPUs, what was done to them, and how that is undone.

use super::places::{self, CoreSet, Loads};
use super::trial::Bucket;
use super::{Action, Held, MachineSample, NiceStep, Outcome, ThreadId, ThreadSample};

/// What a vCPU must want of a core at least to be at work, as a part of one.
const BUSY: f64 = 0.1;
/// What it must want to count as one that wants to run all the time.
const WANTING: f64 = 0.9;
/// From which steal on a machine is short of cores, as a part of what it wants.
const SHORT: f64 = 0.05;
/// How far behind or ahead a vCPU is taken to be at most, in microseconds.
const LAG_MAX_US: f64 = 1_000_000.0;
/// How much of the shown figures is of earlier looks.
const KEEP: f64 = 0.9;
/// How often a machine's vCPUs change places at most, in microseconds.
const MOVE_EVERY_US: u64 = 5_000_000;
/// By how much two places must differ, in cores, for a change to be worth it.
const UNEVEN: f64 = 0.25;

/// Whether a machine is looked after, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    #[default]
    Kept,
    /// It has one vCPU, or one thread that runs all of them.
    Single,
    /// It may use one core only.
    OneCore,
    /// Somebody else sets its affinities or nice values.
    Foreign,
    /// Something else went wrong when its affinities were set.
    Failed,
}

/// What can be shown of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineStatus {
    /// Whether it is looked after.
    pub standing: Standing,
    /// How many threads run its vCPUs.
    pub vcpus: u32,
    /// Whether each of them has cores of its own now.
    pub apart: bool,
    /// In which part of the latest looks siblings that were at work shared a core without need, of one; `None` if no two were at work.
    pub stacking: Option<f64>,
    /// Which part of what its vCPUs wanted they waited for, of one; `None` if they wanted nothing.
    pub steal: Option<f64>,
    /// How far its last vCPU is behind the mean of those that want to run all the time, in microseconds; `None` if there are no two.
    pub lag_us: Option<u64>,
    /// How many of them borrow now.
    pub loans: u32,
}

/// A thread that runs a vCPU.
#[derive(Debug)]
pub(super) struct Thread {
    pub id: ThreadId,
    /// The cores that it could use when it was first seen.
    was: CoreSet,
    pub nice_was: i8,
    /// Those that it was given.
    pinned: Option<CoreSet>,
    pub niced: Option<i8>,
    /// Whether an action on them is under way.
    pinning: bool,
    pub nicing: bool,
    /// The sums of the last sample: run and waited, in nanoseconds, and slices.
    sums: (u64, u64, u64),
    /// Since the sample before: run and waited, in microseconds.
    run_us: u64,
    wait_us: u64,
    core: u16,
    /// Which part of a core it wanted.
    wants: f64,
    /// How long a turn of its queue took, in microseconds.
    pub turn_us: f64,
    /// How far it is behind its siblings, in microseconds; less than nothing is ahead.
    pub behind_us: f64,
    /// When a loan of it ended last.
    pub settled_us: Option<u64>,
}

impl Thread {
    fn new(seen: &ThreadSample) -> Thread {
        Thread {
            id: seen.id,
            was: seen.allowed,
            nice_was: seen.nice,
            pinned: None,
            niced: None,
            pinning: false,
            nicing: false,
            sums: (seen.run_ns, seen.wait_ns, seen.slices),
            run_us: 0,
            wait_us: 0,
            core: seen.core,
            wants: 0.0,
            turn_us: 0.0,
            behind_us: 0.0,
            settled_us: None,
        }
    }

    /// Learns what it did. The cores that keep a thread's sums may have clocks that differ: time that runs backwards counts as none, and
    /// no thread has run or waited longer than the time that has passed.
    fn did(&mut self, seen: &ThreadSample, elapsed_us: Option<u64>) {
        let (run, wait, slices) = self.sums;
        self.sums = (seen.run_ns, seen.wait_ns, seen.slices);
        self.core = seen.core;
        let Some(elapsed_us) = elapsed_us else {
            self.did_nothing();
            return;
        };
        self.run_us = (seen.run_ns.saturating_sub(run) / 1000).min(elapsed_us);
        self.wait_us = (seen.wait_ns.saturating_sub(wait) / 1000).min(elapsed_us - self.run_us);
        let both = (self.run_us + self.wait_us) as f64;
        self.wants = both / elapsed_us as f64;
        self.turn_us = both / seen.slices.saturating_sub(slices).max(1) as f64;
    }

    fn did_nothing(&mut self) {
        (self.run_us, self.wait_us, self.wants) = (0, 0, 0.0);
    }

    pub fn is_wanting(&self) -> bool {
        self.wants >= WANTING
    }

    /// The cores that it may use now.
    fn place(&self) -> CoreSet {
        self.pinned.unwrap_or(self.was)
    }

    pub fn nice(&self) -> i8 {
        self.niced.unwrap_or(self.nice_was)
    }

    /// Whether its nice value was changed, or is being changed.
    pub fn is_dirty(&self) -> bool {
        self.niced.is_some() || self.nicing
    }

    fn pin(&mut self, machine: u64, to: CoreSet, actions: &mut Vec<Action>) {
        let expect = self.place();
        if expect != to {
            self.pinning = true;
            actions.push(Action::Pin {
                machine,
                thread: self.id,
                expect,
                to,
            });
        }
    }

    pub fn step(&mut self, to: i8) -> NiceStep {
        self.nicing = true;
        NiceStep {
            thread: self.id,
            expect: self.nice(),
            to,
        }
    }

    /// Whether something about it is to be undone, or may have to be.
    fn is_held(&self) -> bool {
        self.pinned.is_some() || self.pinning || self.is_dirty()
    }

    /// Takes back what was done to it.
    fn undo(&mut self, machine: u64, actions: &mut Vec<Action>) {
        if self.niced.is_some() && !self.nicing {
            let steps = vec![self.step(self.nice_was)];
            actions.push(Action::Nice { machine, steps });
        }
        if self.pinned.is_some() && !self.pinning {
            self.pin(machine, self.was, actions);
        }
    }
}

/// What one vCPU has lent to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loan {
    pub lender: ThreadId,
    pub borrower: ThreadId,
    pub much: bool,
    pub since_us: u64,
}

impl Loan {
    pub fn is_of(&self, thread: ThreadId) -> bool {
        [self.lender, self.borrower].contains(&thread)
    }
}

/// Sums of which the earlier ones count less and less.
#[derive(Debug, Default)]
struct Shown {
    looks: f64,
    stacked: f64,
    run_us: f64,
    wait_us: f64,
}

/// One machine.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub threads: Vec<Thread>,
    /// Threads that run no vCPU of it any more, until everything about them is undone; mostly they end.
    leaving: Vec<Thread>,
    pub loans: Vec<Loan>,
    foreign: bool,
    failed: bool,
    /// Whether its threads were given places.
    placed: bool,
    moved_us: u64,
    shown: Shown,
}

impl Watched {
    /// Learns which threads it has and what they did. Returns whether somebody else was seen to set their affinities or nice values.
    pub fn meet(
        &mut self,
        seen: &MachineSample,
        elapsed_us: Option<u64>,
        actions: &mut Vec<Action>,
    ) -> bool {
        self.has_threads(seen, actions);
        let mut changed = false;
        for seen in &seen.threads {
            let Some(thread) = self.threads.iter_mut().find(|one| one.id == seen.id) else {
                continue;
            };
            thread.did(seen, elapsed_us);
            // what somebody else has set stays, and is what was before from now on
            if thread.place() != seen.allowed {
                (thread.was, thread.pinned) = (seen.allowed, None);
                changed = true;
            }
            if thread.nice() != seen.nice {
                (thread.nice_was, thread.niced) = (seen.nice, None);
                changed = true;
            }
        }
        let first = self.threads.first().map(|one| one.was);
        changed |= self.threads.iter().any(|one| Some(one.was) != first);
        // one without siblings is never touched, so nobody takes anything away from it
        changed &= self.threads.len() > 1;
        if let Some(elapsed_us) = elapsed_us {
            self.compares();
            self.shows(elapsed_us);
        }
        let is_new = changed && !self.foreign;
        self.foreign |= changed;
        if is_new {
            self.undo(seen.key, actions);
        }
        is_new
    }

    /// It can't be looked at now: nothing is known of what its threads did, and nobody has changed them.
    pub fn is_unseen(&mut self) {
        self.threads.iter_mut().for_each(Thread::did_nothing);
    }

    /// Drops threads that have ended and takes in new ones. Then all get new places, and debts are dropped.
    fn has_threads(&mut self, seen: &MachineSample, actions: &mut Vec<Action>) {
        let mut ids: Vec<ThreadId> = seen.threads.iter().map(|thread| thread.id).collect();
        ids.sort_unstable();
        let mut known: Vec<ThreadId> = self.threads.iter().map(|thread| thread.id).collect();
        known.sort_unstable();
        if ids == known {
            return;
        }
        let all = std::mem::take(&mut self.threads).into_iter();
        let (stay, leave): (Vec<Thread>, Vec<Thread>) =
            all.partition(|thread| ids.binary_search(&thread.id).is_ok());
        self.threads = stay;
        self.leaving.extend(leave);
        for seen in &seen.threads {
            if self.threads.iter().all(|thread| thread.id != seen.id) {
                self.threads.push(Thread::new(seen));
            }
        }
        self.settle_all(seen.key, actions);
        self.threads
            .iter_mut()
            .for_each(|thread| thread.behind_us = 0.0);
        self.placed = false;
    }

    /// Takes over the threads of a machine that is no longer looked after.
    pub fn takes_over(&mut self, mut other: Watched) {
        self.leaving.append(&mut other.threads);
        self.leaving.append(&mut other.leaving);
    }

    /// Takes back what was done to threads that have left.
    pub fn undo_what_left(&mut self, key: u64, actions: &mut Vec<Action>) {
        self.leaving.retain(Thread::is_held);
        for thread in &mut self.leaving {
            thread.undo(key, actions);
        }
    }

    /// Who is behind whom, among those that want to run all the time.
    fn compares(&mut self) {
        let wanting = self.threads.iter().filter(|thread| thread.is_wanting());
        let (count, sum) = wanting.fold((0, 0), |(count, sum), one| (count + 1, sum + one.run_us));
        let mean = sum as f64 / f64::from(count.max(1));
        for thread in &mut self.threads {
            thread.behind_us = match thread.is_wanting() && count > 1 {
                true => {
                    (thread.behind_us + mean - thread.run_us as f64).clamp(-LAG_MAX_US, LAG_MAX_US)
                }
                false => 0.0,
            };
        }
    }

    fn shows(&mut self, elapsed_us: u64) {
        let mut seen = Bucket::default();
        self.adds_to(&mut seen, elapsed_us);
        let shown = &mut self.shown;
        for (sum, more) in [
            (&mut shown.looks, seen.looks),
            (&mut shown.stacked, seen.stacked),
            (&mut shown.run_us, seen.run_us),
            (&mut shown.wait_us, seen.wait_us),
        ] {
            *sum = KEEP * *sum + more as f64;
        }
    }

    /// Whether siblings that are at work share a core while they need not; `None` if no two are at work.
    fn is_stacked(&self) -> Option<bool> {
        let busy = self.threads.iter().filter(|thread| thread.wants >= BUSY);
        let mut cores: Vec<u16> = busy.map(|thread| thread.core).collect();
        let may_use = self.threads.first().map_or(0, |thread| thread.was.len());
        if cores.len() < 2 || may_use == 0 {
            return None;
        }
        let each = cores.len().div_ceil(may_use);
        cores.sort_unstable();
        Some(
            cores
                .chunk_by(|one, next| one == next)
                .any(|on_one| on_one.len() > each),
        )
    }

    /// Adds what was seen since the last look.
    pub fn adds_to(&self, bucket: &mut Bucket, elapsed_us: u64) {
        let (mut run_us, mut wait_us) = (0, 0);
        for thread in &self.threads {
            run_us += thread.run_us;
            wait_us += thread.wait_us;
        }
        if let Some(stacked) = self.is_stacked() {
            bucket.looks += 1;
            bucket.stacked += u64::from(stacked);
        }
        bucket.run_us += run_us;
        bucket.wait_us += wait_us;
        bucket.elapsed_us = elapsed_us;
        let wanting = self.threads.iter().filter(|thread| thread.is_wanting());
        let runs: Vec<u64> = wanting.map(|thread| thread.run_us).collect();
        if let (true, Some(most), Some(least)) =
            (runs.len() > 1, runs.iter().max(), runs.iter().min())
        {
            bucket.spread_us += most - least;
            bucket.spread_of_us += elapsed_us;
            bucket.contended |= wait_us as f64 >= SHORT * (run_us + wait_us) as f64;
        }
    }

    /// Whether its siblings are to be kept apart.
    pub fn is_kept(&self) -> bool {
        self.standing() == Standing::Kept
    }

    fn standing(&self) -> Standing {
        match self.threads.first() {
            _ if self.threads.len() < 2 => Standing::Single,
            _ if self.foreign => Standing::Foreign,
            _ if self.failed => Standing::Failed,
            Some(thread) if thread.was.len() < 2 => Standing::OneCore,
            _ => Standing::Kept,
        }
    }

    /// What its vCPUs want, and where they may have it: one that was given no place wants it where it was last.
    pub fn wishes(&self) -> impl Iterator<Item = (CoreSet, f64)> + '_ {
        self.threads.iter().map(|thread| {
            let there = || std::iter::once(thread.core).collect();
            (thread.pinned.unwrap_or_else(there), thread.wants)
        })
    }

    /// Gives its vCPUs cores of their own; later, has two of them change places if that evens out what the cores are wanted for.
    pub fn keep_apart(
        &mut self,
        key: u64,
        now_us: u64,
        loads: &mut Loads,
        actions: &mut Vec<Action>,
    ) {
        if !self.placed {
            self.place(key, loads, actions);
            (self.placed, self.moved_us) = (true, now_us);
            return;
        }
        if now_us.saturating_sub(self.moved_us) < MOVE_EVERY_US {
            return;
        }
        if let Some((from, to)) = self.uneven(loads) {
            let places = (self.threads[from].place(), self.threads[to].place());
            for (number, from, to) in [(from, places.0, places.1), (to, places.1, places.0)] {
                let thread = &mut self.threads[number];
                loads.add(&from, -thread.wants);
                loads.add(&to, thread.wants);
                thread.pin(key, to, actions);
            }
            self.moved_us = now_us;
        }
    }

    /// Gives each vCPU a part of the cores: those that want most the parts that others want least.
    fn place(&mut self, key: u64, loads: &mut Loads, actions: &mut Vec<Action>) {
        let Some(first) = self.threads.first() else {
            return;
        };
        let count = self.threads.len();
        let mut parts = places::parts(&first.was, count);
        for (place, wants) in self.wishes().collect::<Vec<_>>() {
            loads.add(&place, -wants);
        }
        // where all are alike, each machine begins with another core: a guest's first vCPU mostly works most
        parts.rotate_left((key % count as u64) as usize);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|one, other| {
            self.threads[*other]
                .wants
                .total_cmp(&self.threads[*one].wants)
        });
        for number in order {
            let load = |place: &CoreSet| (1e3 * loads.mean(place)).round() as i64;
            let least = (0..parts.len()).min_by_key(|at| load(&parts[*at]));
            let part = parts.remove(least.unwrap_or_default());
            let thread = &mut self.threads[number];
            loads.add(&part, thread.wants);
            thread.pin(key, part, actions);
        }
    }

    /// Two vCPUs that should change places, the one on the cores that are wanted more first.
    fn uneven(&self, loads: &Loads) -> Option<(usize, usize)> {
        let load = |number: &usize| loads.mean(&self.threads[*number].place());
        let by_load = |one: &usize, other: &usize| load(one).total_cmp(&load(other));
        let numbers = 0..self.threads.len();
        let most = numbers.clone().max_by(by_load)?;
        let least = numbers.min_by(by_load)?;
        let differ = load(&most) - load(&least);
        let (one, other) = (&self.threads[most], &self.threads[least]);
        let cores = one.place().len().max(1) as f64;
        let moves = (one.wants - other.wants) / cores;
        let after = (differ - 2.0 * moves).abs();
        (moves > 0.0 && differ - after >= UNEVEN).then_some((most, least))
    }

    /// Takes back everything that was done.
    pub fn undo(&mut self, key: u64, actions: &mut Vec<Action>) {
        self.loans.clear();
        for thread in self.threads.iter_mut().chain(&mut self.leaving) {
            thread.undo(key, actions);
        }
        self.placed = false;
    }

    /// Learns what became of an action on its threads; `steps` of [`Action::Nice`] were done before that.
    pub fn done(&mut self, action: &Action, steps: usize, outcome: Outcome) {
        match action {
            Action::Pin { thread, to, .. } => {
                let Some(thread) = self.find(*thread) else {
                    return;
                };
                thread.pinning = false;
                match outcome {
                    Outcome::Done => thread.pinned = (*to != thread.was).then_some(*to),
                    // what is there now is not to be undone
                    Outcome::Gone | Outcome::Changed => thread.pinned = None,
                    Outcome::Refused | Outcome::Failed | Outcome::Later => {}
                }
                // it is placed again at the next look
                self.placed &= outcome == Outcome::Done;
                self.failed |= outcome == Outcome::Failed;
            }
            Action::Nice { steps: all, .. } => {
                for (number, step) in all.iter().enumerate() {
                    let Some(thread) = self.find(step.thread) else {
                        continue;
                    };
                    thread.nicing = false;
                    let is_done = outcome == Outcome::Done || number < steps;
                    let not_ours = matches!(outcome, Outcome::Gone | Outcome::Changed);
                    if is_done {
                        thread.niced = (step.to != thread.nice_was).then_some(step.to);
                    } else if not_ours && number == steps {
                        thread.niced = None;
                    }
                }
                if outcome != Outcome::Done {
                    self.loans
                        .retain(|loan| all.iter().all(|step| !loan.is_of(step.thread)));
                }
            }
        }
    }

    fn find(&mut self, id: ThreadId) -> Option<&mut Thread> {
        let mut threads = self.threads.iter_mut().chain(&mut self.leaving);
        threads.find(|thread| thread.id == id)
    }

    /// What is to be undone.
    pub fn held(&self) -> impl Iterator<Item = Held> + '_ {
        let threads = self.threads.iter().chain(&self.leaving);
        let threads = threads.filter(|thread| thread.is_held());
        threads.map(|thread| Held {
            thread: thread.id,
            allowed: (thread.pinned.is_some() || thread.pinning).then_some(thread.was),
            nice: thread.is_dirty().then_some(thread.nice_was),
        })
    }

    /// Everything that can be shown.
    pub fn status(&self) -> MachineStatus {
        let shown = &self.shown;
        let wanting = self.threads.iter().filter(|thread| thread.is_wanting());
        let behind: Vec<f64> = wanting.map(|thread| thread.behind_us).collect();
        let last = behind.iter().copied().fold(0.0, f64::max);
        let wanted_us = shown.run_us + shown.wait_us;
        MachineStatus {
            standing: self.standing(),
            vcpus: self.threads.len() as u32,
            apart: self.threads.len() > 1 && self.threads.iter().all(|one| one.pinned.is_some()),
            // after some thirty looks without one, it says nothing of today
            stacking: (shown.looks >= 0.05).then(|| shown.stacked / shown.looks),
            steal: (wanted_us >= 1e3).then(|| shown.wait_us / wanted_us),
            lag_us: (behind.len() > 1).then_some(last as u64),
            loans: self.loans.len() as u32,
        }
    }
}

//! The run queues of a host's cores: who runs, who waits and in which order, and what tasks owe each other.

use super::base::{Base, virtual_ns};
use super::tree::{Key, Tree};
use crate::MachineId;
use std::collections::BTreeMap;

/// A thread of the host; the caller numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In no queue; `core` is where it was last.
    Sleeps,
    /// In the queue of its core.
    Waits,
    /// On its core.
    Runs,
}

/// What the dirty tag of section 4.4.4 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// It has lent, and has not run since.
    Lent,
    /// It gets something, which its queue has not been told yet.
    Borrows,
}

/// A task as its queue knows it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The machine whose vCPU it is; `None` for any other thread.
    pub machine: Option<MachineId>,
    /// Its share, [`WEIGHT`](super::WEIGHT) ordinarily; at least 1.
    pub weight: u32,
    /// Its core, or the last one.
    pub core: usize,
    /// Where it is.
    pub place: Place,
    /// Its virtual time in nanoseconds, on the scale of its core; while it sleeps under EEVDF, how far it was beyond its due.
    pub vruntime: i64,
    /// When its present request ends, on the same scale (EEVDF).
    pub deadline: i64,
    /// How long it has run, in nanoseconds.
    pub ran_ns: u64,
    /// Whether it was adjusted, and in which way.
    pub dirty: Option<Dirty>,
    /// When it last began to wait or to sleep, by its core's clock.
    pub since_ns: u64,
    /// Whether it has slept since it last ran: then it goes before others because it slept, not because it runs too fast.
    pub woke: bool,
    new: bool,
}

/// What a core has to do for one of its tasks before it chooses again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// Who gets it.
    pub to: TaskId,
    /// Who lent it; `None` if this is a loan that comes back.
    pub from: Option<TaskId>,
    /// How much, as service in nanoseconds.
    pub service_ns: i64,
    /// Whether it may bring the borrower to the front of its queue, not just to its middle.
    pub to_front: bool,
}

/// What was lent altogether, as service in nanoseconds: `lent = borrowed + returned + written_off + outstanding`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Taken from lenders.
    pub lent_ns: i64,
    /// Given to borrowers.
    pub borrowed_ns: i64,
    /// Given back to lenders, because the borrower could not use it.
    pub returned_ns: i64,
    /// To be given back to lenders that have ended.
    pub written_off_ns: i64,
    /// How many loans were made.
    pub loans: u64,
}

/// A core and those who want it.
#[derive(Clone, Debug, Default)]
pub struct Core {
    pub(super) waiting: Tree,
    pub(super) running: Option<TaskId>,
    /// The virtual time of the queue: the least of its tasks', never going back.
    floor: i64,
    /// The weight of all that run or wait, and the sum of their virtual times, each times its weight.
    load: u64,
    sum: i128,
    /// When the task that runs was last charged, and for how long it has run since it was chosen.
    charged_ns: u64,
    ran_ns: i64,
    pub(super) debts: Vec<Debt>,
    /// Who goes next whatever the order says (a buddy, as the kernel has it).
    pub(super) next: Option<TaskId>,
}

/// The run queues of a host. Every change is made to one core's queue at a time; what one core's decision means for a task of another
/// goes into that core's list of debts.
#[derive(Clone, Debug)]
pub struct Queues {
    pub(super) base: Base,
    pub(super) cores: Vec<Core>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    machines: BTreeMap<MachineId, Vec<TaskId>>,
    pub(super) ledger: Ledger,
}

impl Queues {
    /// Makes empty queues for `cores` cores, at least one.
    pub fn new(base: Base, cores: usize) -> Queues {
        Queues {
            base,
            cores: vec![Core::default(); cores.max(1)],
            tasks: BTreeMap::new(),
            machines: BTreeMap::new(),
            ledger: Ledger::default(),
        }
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Returns the scheduler below.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Returns a task, if it is known.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// Returns the vCPUs of a machine in the order of their making.
    pub fn vcpus(&self, machine: MachineId) -> &[TaskId] {
        self.machines.get(&machine).map_or(&[], Vec::as_slice)
    }

    /// Returns the other vCPUs of a task's machine; none if it is no vCPU.
    pub fn siblings(&self, id: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        let machine = self.tasks.get(&id).and_then(|task| task.machine);
        let all = machine.map_or(&[][..], |machine| self.vcpus(machine));
        all.iter().copied().filter(move |other| *other != id)
    }

    /// Returns who runs on a core.
    pub fn running(&self, core: usize) -> Option<TaskId> {
        self.cores[core].running
    }

    /// Returns how many run or wait on a core.
    pub fn length(&self, core: usize) -> usize {
        let core = &self.cores[core];
        core.waiting.len() + usize::from(core.running.is_some())
    }

    /// Returns how many wait on a core.
    pub fn waiting(&self, core: usize) -> usize {
        self.cores[core].waiting.len()
    }

    /// Returns the weight of all that run or wait on a core.
    pub fn load(&self, core: usize) -> u64 {
        self.cores[core].load
    }

    /// Returns the one that waits on a core behind so many others.
    pub fn nth(&self, core: usize, ordinate: usize) -> Option<TaskId> {
        let key = self.cores[core].waiting.nth(ordinate)?;
        Some(TaskId(key.1))
    }

    /// Returns how many go before a task: 0 if it runs, `None` if it sleeps or isn't known. One that runs on the core counts.
    pub fn ordinate(&self, id: TaskId) -> Option<usize> {
        let task = self.tasks.get(&id)?;
        let core = &self.cores[task.core];
        match task.place {
            Place::Sleeps => None,
            Place::Runs => Some(0),
            Place::Waits => {
                let before = core.waiting.ordinate(self.key(id, task))?;
                Some(before + usize::from(core.running.is_some()))
            }
        }
    }

    /// Returns the scheduling distance of a machine: the largest difference of the ordinates of its vCPUs that don't sleep.
    pub fn distance(&self, machine: MachineId) -> usize {
        let ordinates = self.vcpus(machine).iter();
        let ordinates: Vec<usize> = ordinates.filter_map(|id| self.ordinate(*id)).collect();
        match (ordinates.iter().max(), ordinates.iter().min()) {
            (Some(most), Some(least)) => most - least,
            _ => 0,
        }
    }

    /// Returns how many vCPUs of a task's machine, itself not counted, run or wait on a core.
    pub fn siblings_on(&self, id: TaskId, core: usize) -> usize {
        let on = |other: &TaskId| {
            let other = &self.tasks[other];
            other.core == core && other.place != Place::Sleeps
        };
        self.siblings(id).filter(on).count()
    }

    /// Whether two vCPUs of a machine are in one queue.
    pub fn is_stacked(&self, machine: MachineId) -> bool {
        let awake = |id: &&TaskId| self.tasks[*id].place != Place::Sleeps;
        let vcpus = self.vcpus(machine).iter().filter(awake);
        let mut cores: Vec<usize> = vcpus.map(|id| self.tasks[id].core).collect();
        let all = cores.len();
        cores.sort_unstable();
        cores.dedup();
        cores.len() < all
    }

    /// Returns for how long the running task of a core has run since it was chosen, as last charged, in nanoseconds.
    pub fn ran_ns(&self, core: usize) -> i64 {
        self.cores[core].ran_ns
    }

    /// Returns the slice of a task that runs or waits, in nanoseconds.
    pub fn slice_ns(&self, id: TaskId) -> i64 {
        let Some(task) = self.tasks.get(&id) else {
            return self.base.least_ns();
        };
        let load = self.cores[task.core].load;
        let length = self.length(task.core);
        self.base.slice_ns(length, task.weight, load)
    }

    /// Returns the virtual time of the queue of a core.
    pub fn floor(&self, core: usize) -> i64 {
        self.cores[core].floor
    }

    pub(super) fn key(&self, id: TaskId, task: &Task) -> Key {
        match self.base {
            Base::Cfs(_) => (task.vruntime, id.0),
            Base::Eevdf { .. } => (task.deadline, id.0),
        }
    }

    /// Makes a task known; it sleeps. Returns whether the number was new.
    pub(super) fn add(&mut self, id: TaskId, machine: Option<MachineId>, weight: u32) -> bool {
        if self.tasks.contains_key(&id) {
            return false;
        }
        let task = Task {
            machine,
            weight: weight.max(1),
            core: 0,
            place: Place::Sleeps,
            vruntime: 0,
            deadline: 0,
            ran_ns: 0,
            dirty: None,
            since_ns: 0,
            woke: false,
            new: true,
        };
        self.tasks.insert(id, task);
        if let Some(machine) = machine {
            self.machines.entry(machine).or_default().push(id);
        }
        true
    }

    /// Forgets a task that sleeps.
    pub(super) fn forget(&mut self, id: TaskId) {
        let Some(task) = self.tasks.remove(&id) else {
            return;
        };
        let Some(machine) = task.machine else {
            return;
        };
        if let Some(vcpus) = self.machines.get_mut(&machine) {
            vcpus.retain(|other| *other != id);
            if vcpus.is_empty() {
                self.machines.remove(&machine);
            }
        }
    }

    /// Whether a task has never been in a queue.
    pub(super) fn is_new(&self, id: TaskId) -> bool {
        self.tasks.get(&id).is_some_and(|task| task.new)
    }

    /// Puts a task that sleeps into the queue of a core, where its base says.
    pub(super) fn enqueue(&mut self, now_ns: u64, id: TaskId, core: usize) {
        let average = self.average(core);
        let (base, floor) = (self.base, self.cores[core].floor);
        let length = self.length(core) + 1;
        let load = self.cores[core].load;
        let last_core = self.tasks.get(&id).map_or(core, |task| task.core);
        let last_floor = self.cores[last_core].floor;
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let slept_ns = now_ns.saturating_sub(task.since_ns) as i64;
        let slice_ns = base.slice_ns(length, task.weight, load + u64::from(task.weight));
        let slice = virtual_ns(slice_ns, task.weight);
        task.vruntime = match base {
            // a new task begins as if it had just had its turn
            Base::Cfs(_) if task.new => floor.saturating_add(slice),
            // one that slept is half a period ahead at most, and keeps what it had too much
            Base::Cfs(cfs) => {
                let here = task
                    .vruntime
                    .saturating_sub(last_floor)
                    .saturating_add(floor);
                here.max(floor.saturating_sub(cfs.latency_ns / 2))
            }
            // it keeps how far it is ahead of its due or behind it; what it had too much is forgotten while it sleeps
            Base::Eevdf { .. } => {
                let over = match task.vruntime {
                    over if over > 0 => (over - slept_ns).max(0),
                    behind => behind.max(-2 * slice),
                };
                average.saturating_add(over)
            }
        };
        let first = if task.new { slice / 2 } else { slice };
        task.deadline = task.vruntime.saturating_add(first);
        task.woke = !task.new;
        task.new = false;
        task.core = core;
        self.link(now_ns, id);
    }

    /// Takes a task that waits out of its queue.
    pub(super) fn dequeue(&mut self, now_ns: u64, id: TaskId) {
        let Some(core) = self.unlink(id) else {
            return;
        };
        self.set_aside(now_ns, id, core);
    }

    fn set_aside(&mut self, now_ns: u64, id: TaskId, core: usize) {
        let zero = match self.base {
            // the queue's time goes on without it
            Base::Cfs(_) => 0,
            Base::Eevdf { .. } => self.average_with(core, id),
        };
        if let Some(task) = self.tasks.get_mut(&id) {
            task.vruntime = task.vruntime.saturating_sub(zero);
            task.place = Place::Sleeps;
            task.since_ns = now_ns;
        }
    }

    /// Takes a task out of one queue and puts it into another, one after the other: it keeps its place relative to the queue's virtual
    /// time.
    pub(super) fn migrate(&mut self, now_ns: u64, id: TaskId, to: usize) {
        let Some(from) = self.unlink(id) else {
            return;
        };
        let (gone, here) = match self.base {
            Base::Cfs(_) => (self.cores[from].floor, self.cores[to].floor),
            Base::Eevdf { .. } => (self.average_with(from, id), self.average(to)),
        };
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let by = here.saturating_sub(gone);
        task.vruntime = task.vruntime.saturating_add(by);
        task.deadline = task.deadline.saturating_add(by);
        task.core = to;
        self.link(now_ns, id);
        self.debts_follow(id, from, to);
    }

    /// A task has moved: what is due to it moves, too.
    fn debts_follow(&mut self, id: TaskId, from: usize, to: usize) {
        let (moved, kept) = std::mem::take(&mut self.cores[from].debts)
            .into_iter()
            .partition(|debt| debt.to == id);
        self.cores[from].debts = kept;
        let moved: Vec<Debt> = moved;
        self.cores[to].debts.extend(moved);
    }

    fn link(&mut self, now_ns: u64, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.place = Place::Waits;
        task.since_ns = now_ns;
        let (at, weight) = (task.core, task.weight);
        let key = self.key(id, &self.tasks[&id]);
        let core = &mut self.cores[at];
        core.waiting.insert(key);
        core.load += u64::from(weight);
        core.sum += weighed(&self.tasks[&id]);
    }

    fn unlink(&mut self, id: TaskId) -> Option<usize> {
        let task = self.tasks.get(&id)?;
        if task.place != Place::Waits {
            return None;
        }
        let (at, weight, key) = (task.core, task.weight, self.key(id, task));
        let sum = weighed(task);
        let core = &mut self.cores[at];
        core.waiting.remove(key);
        core.load -= u64::from(weight);
        core.sum -= sum;
        if core.next == Some(id) {
            core.next = None;
        }
        Some(at)
    }

    /// Moves a task's virtual time by so much service; later if positive. It keeps its queue, not its place.
    pub fn shift(&mut self, id: TaskId, service_ns: i64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let (place, core, before) = (task.place, task.core, self.key(id, task));
        let sum = weighed(task);
        if let Some(task) = self.tasks.get_mut(&id) {
            let by = virtual_ns(service_ns, task.weight);
            task.vruntime = task.vruntime.saturating_add(by);
            task.deadline = task.deadline.saturating_add(by);
        }
        if place != Place::Sleeps {
            self.cores[core].sum += weighed(&self.tasks[&id]) - sum;
        }
        if place == Place::Waits {
            let after = self.key(id, &self.tasks[&id]);
            self.cores[core].waiting.remove(before);
            self.cores[core].waiting.insert(after);
        }
    }

    /// Has a waiting task run on its core, which must be free.
    pub(super) fn run(&mut self, now_ns: u64, id: TaskId) {
        let Some(core) = self.unlink(id) else {
            return;
        };
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.place = Place::Runs;
        task.woke = false;
        if task.dirty == Some(Dirty::Lent) {
            task.dirty = None;
        }
        let (weight, sum) = (u64::from(task.weight), weighed(task));
        let core = &mut self.cores[core];
        core.load += weight;
        core.sum += sum;
        core.running = Some(id);
        core.charged_ns = now_ns;
        core.ran_ns = 0;
        self.raise_floor(self.tasks[&id].core);
    }

    /// Charges a core's running task for the time since it was last charged, by the core's own clock. A clock that goes back charges
    /// nothing.
    pub(super) fn charge(&mut self, now_ns: u64, core: usize) {
        let Some(id) = self.cores[core].running else {
            return;
        };
        let passed = now_ns.saturating_sub(self.cores[core].charged_ns);
        self.cores[core].charged_ns = now_ns;
        self.cores[core].ran_ns += passed as i64;
        let base = self.base;
        if let Some(task) = self.tasks.get_mut(&id) {
            task.ran_ns += passed;
            let (by, before) = (virtual_ns(passed as i64, task.weight), weighed(task));
            task.vruntime = task.vruntime.saturating_add(by);
            self.cores[core].sum += weighed(task) - before;
            if let Base::Eevdf { slice_ns } = base
                && task.vruntime >= task.deadline
            {
                task.deadline = task
                    .vruntime
                    .saturating_add(virtual_ns(slice_ns, task.weight));
            }
        }
        self.raise_floor(core);
    }

    /// Takes the running task off a core: back into the queue if it still wants the core, else it sleeps.
    pub(super) fn stop(&mut self, now_ns: u64, core: usize, waits: bool) -> Option<TaskId> {
        self.charge(now_ns, core);
        let id = self.cores[core].running.take()?;
        let task = self.tasks.get(&id)?;
        self.cores[core].load -= u64::from(task.weight);
        self.cores[core].sum -= weighed(task);
        match waits {
            true => self.link(now_ns, id),
            false => self.set_aside(now_ns, id, core),
        }
        Some(id)
    }

    fn raise_floor(&mut self, at: usize) {
        let core = &self.cores[at];
        let first = core.waiting.nth(0).map(|key| TaskId(key.1));
        let both = [core.running, first].into_iter().flatten();
        let least = both.map(|id| self.tasks[&id].vruntime).min();
        if let Some(least) = least {
            self.cores[at].floor = self.cores[at].floor.max(least);
        }
    }

    /// The mean virtual time of those who run or wait on a core, by weight; its floor if nobody does.
    fn average(&self, core: usize) -> i64 {
        let core = &self.cores[core];
        match core.load {
            0 => core.floor,
            load => core.sum.div_euclid(i128::from(load)) as i64,
        }
    }

    /// The same, as if a task that has just been taken away were still there.
    fn average_with(&self, core: usize, id: TaskId) -> i64 {
        let (core, task) = (&self.cores[core], &self.tasks[&id]);
        let load = i128::from(core.load) + i128::from(task.weight);
        (core.sum + weighed(task)).div_euclid(load.max(1)) as i64
    }

    /// Returns the task whose turn it is on a core by the base's order alone, whose buddies go first.
    pub fn first(&self, core: usize) -> Option<TaskId> {
        if let Some(next) = self.cores[core].next {
            return Some(next);
        }
        match self.base {
            Base::Cfs(_) => self.nth(core, 0),
            Base::Eevdf { .. } => {
                let average = self.average(core);
                let mut waiting = self.cores[core].waiting.keys().map(|key| TaskId(key.1));
                let due = waiting.find(|id| self.tasks[id].vruntime <= average);
                due.or_else(|| self.nth(core, 0))
            }
        }
    }

    /// Whether the kernel's order would let a task run that waits: always under CFS, and under EEVDF if it has had no more than its due.
    pub fn is_eligible(&self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(&id) else {
            return false;
        };
        let due = match self.base {
            Base::Cfs(_) => true,
            Base::Eevdf { .. } => task.vruntime <= self.average(task.core),
        };
        due && task.place == Place::Waits
    }

    /// Returns the one that follows a waiting task in its queue.
    pub fn successor(&self, id: TaskId) -> Option<TaskId> {
        let task = self.tasks.get(&id)?;
        let tree = &self.cores[task.core].waiting;
        let ordinate = tree.ordinate(self.key(id, task))?;
        tree.nth(ordinate + 1).map(|key| TaskId(key.1))
    }

    /// Whether a task that has just been queued should stop the one that runs there.
    pub(super) fn preempts(&self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(&id) else {
            return false;
        };
        let Some(running) = self.cores[task.core].running else {
            return true;
        };
        let other = &self.tasks[&running];
        match self.base {
            Base::Cfs(cfs) => {
                let ahead = other.vruntime.saturating_sub(task.vruntime);
                ahead > virtual_ns(cfs.wakeup_ns, task.weight)
            }
            // what runs has the core until its slice is over
            Base::Eevdf { slice_ns } => {
                let over = self.cores[task.core].ran_ns >= slice_ns;
                over && task.deadline < other.deadline
            }
        }
    }

    /// Whether the running task of a core has had its slice and somebody waits.
    pub(super) fn is_over(&self, core: usize) -> bool {
        let Some(running) = self.cores[core].running else {
            return false;
        };
        self.waiting(core) > 0 && self.cores[core].ran_ns >= self.slice_ns(running)
    }

    /// Sets a task's share.
    pub(super) fn reweigh(&mut self, id: TaskId, weight: u32) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let before = (u64::from(task.weight), weighed(task));
        task.weight = weight.max(1);
        if task.place != Place::Sleeps {
            let core = &mut self.cores[task.core];
            core.load = core.load - before.0 + u64::from(task.weight);
            core.sum += weighed(task) - before.1;
        }
    }

    /// Has a task that waits be the next on its core, whatever the order says.
    pub fn set_next(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(&id)
            && task.place == Place::Waits
        {
            self.cores[task.core].next = Some(id);
        }
    }

    /// Returns who was named by [`Queues::set_next`] and still waits.
    pub fn named(&self, core: usize) -> Option<TaskId> {
        self.cores[core].next
    }
}

fn weighed(task: &Task) -> i128 {
    i128::from(task.vruntime) * i128::from(task.weight)
}

//! The host.

use super::super::*;
use std::collections::{BTreeMap, VecDeque};

/// How the kernel places threads that may use several cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// All threads of a machine on one core, each machine on another.
    Stacks,
    /// Evenly, siblings apart.
    Spreads,
}

/// A vCPU's thread.
#[derive(Clone, Debug)]
pub struct Task {
    pub sample: ThreadSample,
    /// What it was before anybody touched it.
    pub was: (CoreSet, i8),
    /// Which part of a core it wants.
    pub wants: f64,
}

/// The host.
pub struct World {
    pub user: User,
    pub now_us: u64,
    pub own_us: u64,
    pub kernel: Kernel,
    /// What else runs on each core, in threads that always want to run.
    pub others: Vec<f64>,
    pub machines: BTreeMap<u64, Vec<Task>>,
    /// What a look costs, in microseconds.
    pub look_us: u64,
    /// Whether the kernel lets anybody pin, and lower nice values.
    pub may_pin: bool,
    pub may_nice: bool,
    /// What it gets to hear, instead of what is done, one action after the other.
    pub faults: VecDeque<Outcome>,
    pub notices: Vec<Notice>,
    /// How many actions there were.
    pub actions: usize,
    next_tid: u32,
    next_us: u64,
}

pub fn cores(of: std::ops::Range<u16>) -> CoreSet {
    of.collect()
}

impl World {
    pub fn new(mode: Mode, cores: usize, kernel: Kernel) -> World {
        World {
            user: User::new(mode),
            now_us: 0,
            own_us: 0,
            kernel,
            others: vec![0.0; cores],
            machines: BTreeMap::new(),
            look_us: 200,
            may_pin: true,
            may_nice: true,
            faults: VecDeque::new(),
            notices: Vec::new(),
            actions: 0,
            next_tid: 100,
            next_us: PERIOD_MIN_US,
        }
    }

    /// Adds a vCPU to a machine.
    pub fn grow(&mut self, key: u64, wants: f64) {
        let allowed = cores(0..self.others.len() as u16);
        let sample = ThreadSample {
            id: ThreadId {
                tid: self.next_tid,
                started: 7,
            },
            run_ns: 0,
            wait_ns: 0,
            slices: 0,
            core: 0,
            allowed,
            nice: 0,
        };
        self.next_tid += 1;
        let task = Task {
            sample,
            was: (allowed, 0),
            wants,
        };
        self.machines.entry(key).or_default().push(task);
    }

    /// Starts a machine.
    pub fn start(&mut self, key: u64, wants: &[f64]) {
        wants.iter().for_each(|wants| self.grow(key, *wants));
    }

    fn place(&mut self) {
        let count = self.others.len();
        let mut loads = self.others.clone();
        for (key, tasks) in &mut self.machines {
            for (number, task) in tasks.iter_mut().enumerate() {
                let free = task.sample.allowed.len() == count;
                let core = match self.kernel {
                    Kernel::Stacks if free => (*key as usize % count) as u16,
                    Kernel::Spreads if free => ((number + *key as usize) % count) as u16,
                    _ => {
                        let load = |core: &u16| (1e3 * loads[usize::from(*core)]) as u64;
                        task.sample.allowed.iter().min_by_key(load).unwrap()
                    }
                };
                task.sample.core = core;
                loads[usize::from(core)] += task.wants;
            }
        }
    }

    /// Time passes: each core divides itself among those that want it, by weight.
    pub fn run(&mut self, us: u64) {
        self.place();
        let weight = |nice: i8| 1.25_f64.powi(-i32::from(nice));
        let mut weights = self.others.clone();
        let tasks = self.machines.values().flatten();
        for task in tasks.filter(|task| task.wants > 0.0) {
            weights[usize::from(task.sample.core)] += weight(task.sample.nice) * task.wants;
        }
        for task in self.machines.values_mut().flatten() {
            let wanted = task.wants * us as f64;
            let core = usize::from(task.sample.core);
            let share = weight(task.sample.nice) * task.wants / weights[core].max(1e-9);
            let run = wanted.min(share * us as f64);
            task.sample.run_ns += (1e3 * run) as u64;
            task.sample.wait_ns += (1e3 * (wanted - run)) as u64;
            task.sample.slices += us / 9000;
        }
        self.now_us += us;
    }

    fn task(&mut self, id: ThreadId) -> Option<&mut Task> {
        let mut tasks = self.machines.values_mut().flatten();
        tasks.find(|task| task.sample.id == id)
    }

    fn pin(&mut self, id: ThreadId, expect: CoreSet, to: CoreSet) -> Outcome {
        let may = self.may_pin;
        match self.task(id) {
            None => Outcome::Gone,
            Some(task) if task.sample.allowed != expect => Outcome::Changed,
            Some(_) if !may => Outcome::Refused,
            Some(task) => {
                assert!(to.iter().all(|core| task.was.0.has(core)) && !to.is_empty());
                task.sample.allowed = to;
                Outcome::Done
            }
        }
    }

    fn renice(&mut self, step: &NiceStep) -> Outcome {
        let may = self.may_nice;
        match self.task(step.thread) {
            None => Outcome::Gone,
            Some(task) if task.sample.nice != step.expect => Outcome::Changed,
            Some(task) if !may && step.to < task.sample.nice => Outcome::Refused,
            Some(task) => {
                task.sample.nice = step.to;
                Outcome::Done
            }
        }
    }

    /// Carries actions out, and answers each.
    pub fn carry_out(&mut self, actions: &[Action]) {
        for action in actions {
            self.actions += 1;
            self.all_is_held();
            let (mut done, mut outcome) = (0, Outcome::Done);
            match (self.faults.pop_front(), action) {
                (Some(fault), _) if fault != Outcome::Done => outcome = fault,
                (
                    _,
                    Action::Pin {
                        thread, expect, to, ..
                    },
                ) => {
                    outcome = self.pin(*thread, *expect, *to);
                }
                (_, Action::Nice { steps, .. }) => {
                    for step in steps {
                        outcome = self.renice(step);
                        if outcome != Outcome::Done {
                            break;
                        }
                        done += 1;
                    }
                }
            }
            let notice = self.user.done(action, done, outcome);
            self.notices.extend(notice);
        }
        self.all_is_held();
    }

    /// Who carries actions out could undo everything now: what differs from what was before is known.
    fn all_is_held(&self) {
        let held: BTreeMap<ThreadId, Held> = self
            .user
            .held()
            .into_iter()
            .map(|h| (h.thread, h))
            .collect();
        for task in self.machines.values().flatten() {
            let known = held.get(&task.sample.id);
            if task.sample.allowed != task.was.0 {
                assert_eq!(known.and_then(|held| held.allowed), Some(task.was.0));
            }
            if task.sample.nice != task.was.1 {
                assert_eq!(known.and_then(|held| held.nice), Some(task.was.1));
            }
        }
    }

    pub fn sample(&self) -> Sample {
        let machine = |(key, tasks): (&u64, &Vec<Task>)| MachineSample {
            key: *key,
            threads: tasks.iter().map(|task| task.sample).collect(),
        };
        Sample {
            now_us: self.now_us,
            own_us: self.own_us,
            machines: self.machines.iter().map(machine).collect(),
            unseen: Vec::new(),
        }
    }

    /// One look after the other until so much time has passed.
    pub fn looks(&mut self, us: u64) {
        let until = self.now_us + us;
        while self.now_us < until {
            self.look();
        }
    }

    /// Time passes until the next look is due, and that is done.
    pub fn look(&mut self) {
        self.run(self.next_us);
        self.own_us += self.look_us;
        let step = self.user.sample(&self.sample());
        assert!((PERIOD_MIN_US..=PERIOD_MAX_US).contains(&step.next_us));
        self.next_us = step.next_us;
        self.notices.extend(step.notices);
        self.carry_out(&step.actions);
    }

    /// Takes everything back.
    pub fn undo(&mut self) {
        let actions = self.user.undo();
        self.carry_out(&actions);
    }

    /// Whether all threads are as they were.
    pub fn is_as_before(&self) -> bool {
        let mut tasks = self.machines.values().flatten();
        tasks.all(|task| (task.sample.allowed, task.sample.nice) == task.was)
    }

    /// Whether each vCPU of a machine has cores that no sibling may use.
    pub fn is_apart(&self, key: u64) -> bool {
        let sets: Vec<CoreSet> = self.machines[&key]
            .iter()
            .map(|task| task.sample.allowed)
            .collect();
        (0..self.others.len() as u16)
            .all(|core| sets.iter().filter(|set| set.has(core)).count() == 1)
    }

    pub fn status(&self, key: u64) -> MachineStatus {
        self.user.status().machines[&key]
    }
}

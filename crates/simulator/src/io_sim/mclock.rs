//! A peer in the simulator: mClock (Gulati, Merchant and Varman, OSDI 2010), without its limits. Each machine may have so many requests a
//! second reserved; what is left goes by weight.

use floe_sched::{Full, MachineId, Op, Policy, Who};
use std::collections::{BTreeMap, VecDeque};

const SECOND_US: f64 = 1e6;

/// What a machine may have.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Requests a second that it gets before anybody gets anything by weight.
    pub reserved_per_s: f64,
    /// Its part of what is left.
    pub weight: f64,
}

#[derive(Debug)]
struct Machine<T> {
    share: Share,
    queue: VecDeque<(Who, T)>,
    /// When its first request is due by reservation, in microseconds.
    reserved_us: f64,
    /// Where its first request stands by weight.
    weighed: f64,
}

/// See the module's description.
#[derive(Debug)]
pub struct MClock<T> {
    share: fn(u32) -> Share,
    machines: BTreeMap<MachineId, Machine<T>>,
    queued: usize,
}

impl<T> MClock<T> {
    /// `share` says what each machine may have.
    pub fn new(share: fn(u32) -> Share) -> MClock<T> {
        MClock {
            share,
            machines: BTreeMap::new(),
            queued: 0,
        }
    }
}

fn gap_us(share: Share) -> f64 {
    SECOND_US / share.reserved_per_s
}

impl<T: Send> Policy<T> for MClock<T> {
    fn submit(&mut self, now_us: u64, who: Who, _: Op, _: u64, request: T) -> Result<(), Full<T>> {
        let busy = self
            .machines
            .values()
            .filter(|machine| !machine.queue.is_empty());
        let least = busy
            .map(|machine| machine.weighed)
            .fold(f64::INFINITY, f64::min);
        let share = self.share;
        let machine = self.machines.entry(who.machine).or_insert_with(|| Machine {
            share: share(who.machine.0),
            queue: VecDeque::new(),
            reserved_us: 0.0,
            weighed: 0.0,
        });
        if machine.queue.is_empty() {
            machine.reserved_us = machine.reserved_us.max(now_us as f64);
            // whoever was idle begins where the others are
            if least.is_finite() {
                machine.weighed = machine.weighed.max(least);
            }
        }
        machine.queue.push_back((who, request));
        self.queued += 1;
        Ok(())
    }

    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let now = now_us as f64;
        let has = |machine: &Machine<T>, ready: &mut dyn FnMut(&Who, &T) -> bool| {
            machine
                .queue
                .front()
                .is_some_and(|(who, request)| ready(who, request))
        };
        let mut due: Option<(MachineId, f64)> = None;
        let mut first: Option<(MachineId, f64)> = None;
        for (id, machine) in &self.machines {
            if !has(machine, ready) {
                continue;
            }
            let reserves = machine.share.reserved_per_s > 0.0 && machine.reserved_us <= now;
            if reserves && due.is_none_or(|(_, us)| machine.reserved_us < us) {
                due = Some((*id, machine.reserved_us));
            }
            if first.is_none_or(|(_, weighed)| machine.weighed < weighed) {
                first = Some((*id, machine.weighed));
            }
        }
        let (id, _) = due.or(first)?;
        let machine = self.machines.get_mut(&id)?;
        let taken = machine.queue.pop_front()?;
        self.queued -= 1;
        if due.is_some() {
            machine.reserved_us = (machine.reserved_us + gap_us(machine.share)).max(now);
        } else {
            machine.weighed += 1.0 / machine.share.weight;
        }
        Some(taken)
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        for machine in self.machines.values_mut() {
            machine.queue.retain(|(_, request)| keep(request));
        }
        self.queued = self
            .machines
            .values()
            .map(|machine| machine.queue.len())
            .sum();
    }

    fn len(&self) -> usize {
        self.queued
    }
}

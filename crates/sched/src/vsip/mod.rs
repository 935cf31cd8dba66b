//! vSIP: requests that a person waits for go first, and everybody gets a fair share all the same.
//!
//! After Sui et al., "vSIP: Virtual Scheduler for Interactive Performance" (CF 2016), section 3.2. `docs/io-scheduling.md`
//! explains how it works, what it promises and why the promises hold. In short:
//!
//! - A *clock* counts what each machine at work has had, by weight. Each machine has a tag on it: what it `used`. A machine
//!   behind the clock has *credit*: it had less than its share within the last half minute.
//! - **Urgent**: an interactive request overtakes everything while its machine has credit, or little more than its share (the
//!   paper's W). It is charged like any other.
//! - **In turn**: otherwise the machine with the lowest tag goes first (the paper's C), and within a machine the class decides.
//! - **Last**: what no guest waits for, and machines above their cap.
//! - A guard serves what starves. [`Depth`] keeps the device's own queue short. [`Think`] tells whether a slow device is
//!   to be held free for the next read of a program that somebody is waiting for.
//!
//! [`Index`] keeps machines in the order of their tags, so that a request costs a few steps whose number grows with the logarithm of
//! the machines', and a look at each machine with a cap.

mod account;
mod choose;
mod config;
mod depth;
mod index;
mod machine;
mod waits;

pub use config::VsipConfig;

use crate::{Full, Limit, MachineId, Op, Policy, Status, Who};
use account::credit;
use config::{CHARGED_BYTES_MAX, LOST_US, MACHINES_MAX};
use depth::Depth;
use index::{Index, Level};
use machine::{AHEAD, INTERACTIVE, Machine, Waiting, lane_of};
use std::collections::{HashMap, VecDeque};

/// Serves interactive requests first, within what each machine may have. See the module's documentation.
#[derive(Debug)]
pub struct Vsip<T> {
    config: VsipConfig,
    machines: Vec<Machine<T>>,
    places: HashMap<MachineId, usize>,
    /// What is being served, the oldest first.
    flights: VecDeque<Flight>,
    /// How many of them take a place of the depth, and how many are interactive.
    placed: usize,
    urgent_in_flight: usize,
    /// The writes and flushes among them that aren't interactive: how many, and their bytes.
    writes: (usize, u64),
    queued: usize,
    /// How many of them are in interactive lanes.
    urgent_queued: usize,
    /// How many of them nobody waits for.
    ahead_queued: usize,
    depth: Depth,
    /// What machines at work have had, at least, by weight.
    clock: f64,
    /// Up to when the clock has gone on by itself while nobody was at work.
    clock_us: u64,
    /// Weights of the machines at work, and how many there are.
    at_work: (f64, usize),
    /// The latest time that anybody has told.
    now_us: u64,
    wake_us: Option<u64>,
    /// Since when the device has been kept free, and for which machine.
    held: Option<(u64, MachineId)>,
    held_us: u64,
    /// When an interactive request last came or was done.
    session_us: Option<u64>,
    /// Requests served since the guard acted.
    unguarded: u32,
    guarded: u64,
    /// When to look for starving lanes again.
    guard_at_us: u64,
    /// How the latest request was taken.
    taken_at: Option<Level>,
    index: Index,
}

/// A request that is being served.
#[derive(Debug)]
struct Flight {
    who: Who,
    op: Op,
    bytes: u64,
    cost: f64,
    lane: usize,
    /// Whether it isn't part of another one.
    by_itself: bool,
    /// By how much it has moved its machine's `used` and `turn`.
    charged: (f64, f64),
    since_us: u64,
    taken_us: u64,
}

impl<T> Vsip<T> {
    /// Makes a queue for one device or link.
    pub fn new(config: VsipConfig) -> Vsip<T> {
        Vsip {
            config,
            machines: Vec::new(),
            places: HashMap::new(),
            flights: VecDeque::new(),
            placed: 0,
            urgent_in_flight: 0,
            writes: (0, 0),
            queued: 0,
            urgent_queued: 0,
            ahead_queued: 0,
            depth: Depth::new(config.depth_start, config.depth_max, config.capacity_per_s),
            clock: 0.0,
            clock_us: 0,
            at_work: (0.0, 0),
            now_us: 0,
            wake_us: None,
            held: None,
            held_us: 0,
            session_us: None,
            unguarded: 0,
            guarded: 0,
            guard_at_us: 0,
            taken_at: None,
            index: Index::default(),
        }
    }

    /// Returns the time, which doesn't go backwards whatever callers say.
    fn at(&mut self, now_us: u64) -> u64 {
        self.now_us = self.now_us.max(now_us);
        self.now_us
    }

    /// Returns the place of a machine, which is made if there is none.
    fn place(&mut self, machine: MachineId) -> usize {
        if let Some(place) = self.places.get(&machine) {
            return *place;
        }
        if self.machines.len() >= MACHINES_MAX {
            self.forget(|machine| machine.gone || !machine.limited);
        }
        self.places.insert(machine, self.machines.len());
        self.machines.push(Machine::new(machine, self.now_us));
        let place = self.machines.len() - 1;
        self.reindex(place);
        place
    }

    /// Removes the machines that want nothing and that `unwanted` accepts.
    fn forget(&mut self, unwanted: impl Fn(&Machine<T>) -> bool) {
        self.machines
            .retain(|machine| machine.is_busy() || !unwanted(machine));
        let places = self.machines.iter().enumerate();
        self.places = places.map(|(place, machine)| (machine.id, place)).collect();
        self.reindex_all();
    }

    /// Forgets requests whose end nobody has reported.
    fn forget_lost(&mut self, now_us: u64) {
        let is_lost = |flight: &&Flight| flight.taken_us + LOST_US <= now_us;
        while self.flights.front().filter(is_lost).is_some()
            && let Some(flight) = self.flights.pop_front()
        {
            self.land(now_us, &flight);
        }
    }

    /// Counts a request among those under way, or no longer.
    fn under_way(&mut self, flight: &Flight, is: bool) {
        let count = |of: &mut usize| match is {
            true => *of += 1,
            false => *of = of.saturating_sub(1),
        };
        if flight.by_itself && !(self.config.ahead_apart && flight.lane == AHEAD) {
            count(&mut self.placed);
        }
        match flight.lane {
            INTERACTIVE => count(&mut self.urgent_in_flight),
            _ if flight.op == Op::Read => {}
            _ => {
                count(&mut self.writes.0);
                let bytes = self.writes.1;
                self.writes.1 = match is {
                    true => bytes.saturating_add(flight.bytes),
                    false => bytes.saturating_sub(flight.bytes),
                };
            }
        }
    }

    /// Removes a request that is no longer under way from those that are.
    fn remove_flight(&mut self, who: Who, op: Op, bytes: u64) -> Option<Flight> {
        let asked = |flight: &Flight| flight.who == who && flight.op == op;
        let same = |flight: &Flight| asked(flight) && flight.bytes == bytes;
        let flights = &self.flights;
        let at = flights.iter().position(same);
        self.flights
            .remove(at.or_else(|| flights.iter().position(asked))?)
    }

    /// Subtracts a request that is no longer under way; returns its machine's place.
    fn land(&mut self, now_us: u64, flight: &Flight) -> Option<usize> {
        self.under_way(flight, false);
        let place = *self.places.get(&flight.who.machine)?;
        let machine = &mut self.machines[place];
        machine.in_flight = machine.in_flight.saturating_sub(1);
        machine.last_us = now_us;
        if flight.lane == INTERACTIVE {
            machine.urgent_in_flight = machine.urgent_in_flight.saturating_sub(1);
            self.session_us = Some(now_us);
            if machine.urgent_in_flight == 0 && machine.lanes[INTERACTIVE].queue.is_empty() {
                machine.think.done(now_us);
                self.index.thinking.insert(place);
            }
        }
        self.reindex(place);
        Some(place)
    }
}

impl<T: Send> Policy<T> for Vsip<T> {
    fn submit(
        &mut self,
        now_us: u64,
        who: Who,
        op: Op,
        bytes: u64,
        request: T,
    ) -> Result<(), Full<T>> {
        if self.queued >= self.config.most_queued {
            return Err(Full(request));
        }
        let now_us = self.at(now_us);
        let (place, lane) = (self.place(who.machine), lane_of(&who, op));
        if !self.machines[place].is_busy() {
            self.go_on(now_us);
        }
        let (hold_us, cost) = (self.hold_us(), self.cost(bytes));
        let clock = self.clock;
        let machine = &mut self.machines[place];
        if !machine.is_busy() || machine.goes_last() {
            // While it waits it keeps what it has saved, however the device is estimated meanwhile. Who goes last holds nobody up, and so falls
            // behind without bound.
            let floor = clock - credit(&self.depth, self.at_work.0, machine);
            machine.used = machine.used.max(floor);
        }
        machine.turn = machine.turn.max(machine.used).max(clock);
        machine.last_us = now_us;
        if lane == INTERACTIVE {
            self.urgent_queued += 1;
            machine.think.came(now_us, hold_us);
            self.session_us = Some(now_us);
        }
        machine.lanes[lane].push(Waiting {
            who,
            op,
            bytes,
            cost,
            since_us: now_us,
            request,
        });
        self.queued += 1;
        self.ahead_queued += usize::from(lane == AHEAD);
        self.reindex(place);
        Ok(())
    }

    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let now_us = self.at(now_us);
        self.wake_us = None;
        if self.queued == 0 {
            return None;
        }
        self.forget_lost(now_us);
        self.charge_held(now_us);
        self.take_next(now_us, ready)
    }

    fn withdraw(
        &mut self,
        now_us: u64,
        ready: &mut dyn FnMut(&Who, &T) -> bool,
    ) -> Option<(Who, T)> {
        let now_us = self.at(now_us);
        let waiting = self.take_any(now_us, ready)?;
        Some((waiting.who, waiting.request))
    }

    fn served(&mut self, now_us: u64, who: Who, op: Op, bytes: u64) {
        let now_us = self.at(now_us);
        let full = self.placed >= self.depth.limit() && self.held.is_none();
        let Some(flight) = self.remove_flight(who, op, bytes) else {
            return;
        };
        let Some(place) = self.land(now_us, &flight) else {
            return;
        };
        let waited_for = match self.config.ahead_apart {
            true => self.queued - self.ahead_queued,
            false => self.queued,
        };
        match flight.by_itself {
            true => self
                .depth
                .served(now_us, flight.cost, full && waited_for > 0),
            false => self.depth.served_with_another(flight.cost),
        }
        let machine = &mut self.machines[place];
        let wait_us = now_us.saturating_sub(flight.since_us);
        if flight.lane != AHEAD {
            machine.waits[who.class as usize].add(wait_us);
        }
        machine.rate.add(now_us, flight.bytes);
        if machine.gone && !machine.is_busy() {
            self.forget(|machine| machine.gone);
        }
    }

    fn join(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let now_us = self.at(now_us);
        self.take_joining(now_us, ready)
    }

    fn grow(&mut self, bytes: u64) {
        let cost = bytes.min(CHARGED_BYTES_MAX) as f64 / self.config.bytes_per_request;
        let Some(mut flight) = self.flights.pop_back() else {
            return;
        };
        self.under_way(&flight, false);
        flight.bytes = flight.bytes.saturating_add(bytes);
        flight.cost += cost;
        self.under_way(&flight, true);
        match self.places.get(&flight.who.machine).copied() {
            Some(place) => self.charge_flight(self.now_us, place, cost, flight),
            None => self.flights.push_back(flight),
        }
    }

    fn places(&self) -> usize {
        self.free()
    }

    fn dropped(&mut self, now_us: u64, who: Who, op: Op, bytes: u64) {
        let now_us = self.at(now_us);
        let Some(flight) = self.remove_flight(who, op, bytes) else {
            return;
        };
        if let Some(place) = self.land(now_us, &flight) {
            self.machines[place].uncharge(flight.charged);
            self.reindex(place);
            if self.machines[place].gone && !self.machines[place].is_busy() {
                self.forget(|machine| machine.gone);
            }
        }
    }

    fn wake_us(&self) -> Option<u64> {
        self.wake_us
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        let lanes = self
            .machines
            .iter_mut()
            .flat_map(|machine| &mut machine.lanes);
        lanes.for_each(|lane| lane.retain(keep));
        self.queued = self.machines.iter().map(Machine::queued).sum();
        let urgent = |machine: &Machine<T>| machine.lanes[INTERACTIVE].queue.len();
        self.urgent_queued = self.machines.iter().map(urgent).sum();
        let ahead = |machine: &Machine<T>| machine.lanes[AHEAD].queue.len();
        self.ahead_queued = self.machines.iter().map(ahead).sum();
        self.forget(|machine| machine.gone);
    }

    fn limit(&mut self, machine: MachineId, limit: Limit) {
        let place = self.place(machine);
        let machine = &mut self.machines[place];
        machine.limited = true;
        let old = machine.weight();
        let limit = limit.clamped();
        machine.limit = limit;
        // What it has had beyond its share, or saved of it, stays what it was in requests.
        let new = machine.weight();
        let clock = self.clock;
        let moved = |tag: f64| clock + (tag - clock) * old / new;
        (machine.used, machine.turn) = (moved(machine.used), moved(machine.turn));
        if machine.used.is_finite() {
            // While it wanted more than its cap it fell behind without bound. What it may have saved is bounded.
            let floor = clock - credit(&self.depth, self.at_work.0, machine);
            machine.used = machine.used.max(floor);
            machine.turn = machine.turn.max(machine.used);
        }
        match limit.cap_percent < 100 {
            true => self.index.capped.insert(place),
            false => self.index.capped.remove(&place),
        };
        self.reindex(place);
    }

    fn gone(&mut self, machine: MachineId) {
        if let Some(place) = self.places.get(&machine) {
            self.machines[*place].gone = true;
            self.forget(|machine| machine.gone);
        }
    }

    fn status(&self, now_us: u64) -> Option<Status> {
        Some(self.told(now_us.max(self.now_us)))
    }

    fn len(&self) -> usize {
        self.queued
    }
}

#[cfg(test)]
mod tests;

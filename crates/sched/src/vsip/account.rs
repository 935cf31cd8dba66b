//! Who has had how much: the clock, credit, charges, and what is told of them.

use super::config::{
    BOOST, CHARGED_BYTES_MAX, CREDIT_SHARERS_MIN, CREDIT_US, HOLD_DEPTH_MAX, HOLD_SERVICES,
    LEAD_MIN, LEAD_US, NEW_SHARERS_MIN, SESSION_US, WRITE_BYTES_MAX, WRITES_PART,
};
use super::depth::Depth;
use super::index::Level;
use super::machine::Machine;
use super::{Flight, Vsip};
use crate::{Limit, MachineStatus, Status};

/// Returns how far below the clock a machine's tag can be: its share of [`CREDIT_US`] among the machines at work, whose weights
/// are `at_work` together.
pub(super) fn credit<T>(depth: &Depth, at_work: f64, machine: &Machine<T>) -> f64 {
    let sharers = match machine.used.is_finite() {
        true => CREDIT_SHARERS_MIN,
        false => NEW_SHARERS_MIN,
    };
    CREDIT_US * depth.capacity() / at_work.max(sharers * machine.weight())
}

impl<T> Vsip<T> {
    /// Returns what a request costs, in requests of ordinary size.
    pub(super) fn cost(&self, bytes: u64) -> f64 {
        1.0 + bytes.min(CHARGED_BYTES_MAX) as f64 / self.config.bytes_per_request
    }

    /// Returns for how long at most the device is held free.
    pub(super) fn hold_us(&self) -> u64 {
        let services = HOLD_SERVICES / self.depth.capacity();
        self.config.hold_us_max.min(services as u64)
    }

    /// Returns how far beyond the clock a machine may overtake others.
    pub(super) fn lead(&self, machine: &Machine<T>) -> f64 {
        let share = LEAD_US * self.depth.capacity() / self.at_work.0.max(machine.weight());
        share.max(LEAD_MIN / machine.weight())
    }

    /// Returns the part of the lead that is nobody's own: with all machines at work counted, no machine has more of it.
    pub(super) fn lead_share(&self) -> f64 {
        LEAD_US * self.depth.capacity() / self.at_work.0.max(self.index.lightest())
    }

    /// Returns whether a machine's interactive requests may overtake others.
    pub(super) fn may_overtake(&self, machine: &Machine<T>) -> bool {
        machine.used <= self.clock + self.lead(machine)
    }

    /// Returns a machine's cap, in requests of ordinary size per microsecond; `None` if it has none.
    pub(super) fn cap_per_us(&self, machine: &Machine<T>) -> Option<f64> {
        let cap = machine.limit.cap();
        cap.map(|part| part * self.depth.capacity())
    }

    /// Returns whether a machine has had more than its cap.
    pub(super) fn is_capped(&self, now_us: u64, machine: &Machine<T>) -> bool {
        self.cap_per_us(machine)
            .is_some_and(|per_us| machine.cap.is_over(now_us, per_us))
    }

    /// Moves the clock to the turn of the machine at work that has the earliest. While nobody is at work, it goes on as if
    /// somebody were, so that machines have their credit again.
    pub(super) fn go_on(&mut self, now_us: u64) {
        self.retire(now_us);
        let (mut first, mut first_last) = self.index.turns();
        for place in &self.index.capped {
            let machine = &self.machines[*place];
            if machine.is_at_work(now_us, self.config.grace_us) {
                // Who goes last is no measure of what the others have had.
                match machine.goes_last() || self.is_capped(now_us, machine) {
                    false => first = first.min(machine.turn),
                    true => first_last = first_last.min(machine.turn),
                }
            }
        }
        let (weights, count) = self.index.at_work();
        #[cfg(test)]
        assert_eq!(
            (first, first_last, weights, count),
            self.at_work_by_search(now_us)
        );
        self.at_work = (weights, count);
        if count > 0 {
            if first == f64::INFINITY {
                first = first_last;
            }
            if first.is_finite() {
                self.clock = self.clock.max(first);
            }
        } else {
            // As if the fewest shared it: what it costs nobody, all may have back soon.
            let sharers = CREDIT_SHARERS_MIN * f64::from(Limit::DEFAULT.weight);
            let idle_us = now_us.saturating_sub(self.clock_us) as f64;
            self.clock += idle_us * self.depth.capacity() / sharers;
        }
        self.clock_us = now_us;
    }

    /// Charges a machine for a request that is taken.
    pub(super) fn charge(&mut self, now_us: u64, place: usize, cost: f64, level: Level) {
        let alone = self.at_work.1 <= 1;
        let cap_per_us = self.cap_per_us(&self.machines[place]);
        let of = &self.machines[place];
        // Beyond that it took what nobody else was there to take. What starved others had to wait for, so that it is owed for
        // as long as credit lasts.
        let most = self.clock
            + match level {
                Level::Starving => credit(&self.depth, self.at_work.0, of),
                _ => 2.0 * self.lead(of),
            };
        let clock = self.clock;
        let machine = &mut self.machines[place];
        let share = cost / machine.weight();
        if let Some(per_us) = cap_per_us {
            machine.cap.add(now_us, per_us, cost);
        }
        if alone {
            // What nobody else wants is free: the clock goes with it, and the machine keeps its credit.
            self.clock += share;
            machine.used += share;
            machine.turn = (machine.turn + share).max(self.clock);
            return;
        }
        let saved = machine.used < clock;
        machine.charge(cost);
        if level != Level::Urgent {
            if saved {
                machine.turn += share / BOOST;
            }
            let most = most.max(clock + share);
            machine.used = machine.used.min(most);
            machine.turn = machine.turn.min(most);
        }
    }

    /// Charges a machine for a request that is under way from now on, or that has grown, and keeps that with the request.
    pub(super) fn charge_flight(
        &mut self,
        now_us: u64,
        place: usize,
        cost: f64,
        mut flight: Flight,
    ) {
        let level = self.taken_at.unwrap_or(Level::Last);
        let tags = |machine: &Machine<T>| (machine.used, machine.turn);
        let before = tags(&self.machines[place]);
        self.charge(now_us, place, cost, level);
        let after = tags(&self.machines[place]);
        // What was cut off, because it took what nobody else wanted, was not paid for it.
        flight.charged.0 += (after.0 - before.0).max(0.0);
        flight.charged.1 += (after.1 - before.1).max(0.0);
        self.flights.push_back(flight);
        self.reindex(place);
    }

    /// Charges the machine for which the device was held free since the last call.
    pub(super) fn charge_held(&mut self, now_us: u64) {
        let Some((since, machine)) = self.held.take() else {
            return;
        };
        let held_us = now_us.saturating_sub(since).min(self.config.hold_us_max);
        self.held_us += held_us;
        let cost = held_us as f64 * self.depth.capacity();
        if let Some(place) = self.places.get(&machine).copied() {
            self.machines[place].charge(cost);
            self.reindex(place);
        }
    }

    /// Returns the machine for which the device is to be kept free, and until when if that is known.
    pub(super) fn kept_for(&mut self, now_us: u64) -> Option<(usize, Option<u64>)> {
        let session = self.session_us? + self.config.hold_us_max >= now_us;
        if self.depth.limit() > HOLD_DEPTH_MAX
            || !(session || self.urgent_in_flight > 0)
            || !self.depth.may_hold(now_us)
        {
            return None;
        }
        let hold_us = self.hold_us();
        let mut found: Option<(usize, Option<u64>)> = None;
        let (machines, longest_us) = (&self.machines, self.config.hold_us_max);
        self.index.thinking.retain(|place| {
            let machine = &machines[*place];
            let until_us = machine.think.until_us(longest_us);
            machine.urgent_in_flight > 0 || until_us.is_some_and(|until| until > now_us)
        });
        for place in self.index.thinking.iter().copied() {
            let machine = &self.machines[place];
            if !machine.think.pays() || machine.gone {
                continue;
            }
            let until_us = machine.think.until_us(hold_us);
            let soon = until_us.is_some_and(|until| until > now_us);
            let overtakes = self.may_overtake(machine) && !self.is_capped(now_us, machine);
            if !(soon || machine.urgent_in_flight > 0) || !overtakes {
                continue;
            }
            if machine.urgent_in_flight > 0 {
                return Some((place, None));
            }
            if found.is_none_or(|(_, until)| until < until_us) {
                found = Some((place, until_us));
            }
        }
        found
    }

    /// Returns whether one more write or flush of so many bytes may be under way. While an interactive machine is at work they
    /// are bounded, because devices are slow with them and the reads behind them wait.
    pub(super) fn may_write(&self, now_us: u64) -> bool {
        let session = |at: u64| at + SESSION_US > now_us;
        if !self.session_us.is_some_and(session) {
            return true;
        }
        let (count, bytes) = self.writes;
        count == 0 || (count < self.depth.limit() / WRITES_PART && bytes < WRITE_BYTES_MAX)
    }

    /// Returns what is known, for people to read.
    pub(super) fn told(&self, now_us: u64) -> Status {
        let per_s = 1e6 * self.depth.capacity();
        let at_work = |machine: &&Machine<T>| machine.is_at_work(now_us, self.config.grace_us);
        let weights: f64 = self
            .machines
            .iter()
            .filter(at_work)
            .map(Machine::weight)
            .sum();
        let mut machines: Vec<MachineStatus> = self
            .machines
            .iter()
            .map(|machine| {
                let (requests_per_s, bytes_per_s) = machine.rate.now(now_us);
                let others = match at_work(&machine) {
                    true => weights - machine.weight(),
                    false => weights,
                };
                let floor = self.clock - credit(&self.depth, weights, machine);
                let ahead = self.clock + self.lead(machine) - machine.used.max(floor);
                MachineStatus {
                    machine: machine.id,
                    limit: machine.limit,
                    classes: std::array::from_fn(|class| machine.waits[class].status()),
                    queued: machine.queued(),
                    in_flight: machine.in_flight,
                    requests_per_s,
                    bytes_per_s,
                    predicted_per_s: per_s * machine.weight() / (others + machine.weight()),
                    ahead: (ahead * machine.weight()).max(0.0),
                    capped: self.is_capped(now_us, machine),
                }
            })
            .collect();
        machines.sort_by_key(|machine| machine.machine);
        Status {
            capacity_per_s: per_s,
            depth: self.depth.limit(),
            in_flight: self.placed,
            guarded: self.guarded,
            held_us: self.held_us,
            machines,
        }
    }
}

#[cfg(test)]
impl<T> Vsip<T> {
    /// The earliest turns, the weights and the number of the machines at work, found by asking all machines.
    fn at_work_by_search(&self, now_us: u64) -> (f64, f64, f64, usize) {
        let (mut first, mut first_last) = (f64::INFINITY, f64::INFINITY);
        let (mut weights, mut count) = (0.0, 0);
        for machine in &self.machines {
            if machine.is_at_work(now_us, self.config.grace_us) {
                match machine.goes_last() || self.is_capped(now_us, machine) {
                    false => first = first.min(machine.turn),
                    true => first_last = first_last.min(machine.turn),
                }
                weights += machine.weight();
                count += 1;
            }
        }
        (first, first_last, weights, count)
    }
}

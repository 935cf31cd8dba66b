//! Linux' io.cost in the simulator, for hosts that lack it: each group's virtual time moves on by what a request costs by a linear model, divided by
//! the group's part of all weights at work, and no request goes that would bring it beyond the device's (block/blk-iocost.c). Without donations of
//! what a group doesn't use, which help the others alone, and with the device at the rate of its model.

use floe_sched::{Full, MachineId, Op, Policy, Who};
use floe_testbed::slow_disk::Kind;
use std::collections::{BTreeMap, VecDeque};

/// A period on a device that rotates, in microseconds: a group that asks for nothing for so long isn't at work.
const PERIOD_US: u64 = 250_000;
/// The part of a period that a group may be behind, which it may use at once.
const BUDGET_US: f64 = PERIOD_US as f64 / 2.0;

#[derive(Debug)]
struct Group<T> {
    queue: VecDeque<(u64, Who, Op, u64, T)>,
    /// In microseconds of the device.
    virtual_us: f64,
    asked_us: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct IoCost<T> {
    kind: Kind,
    groups: BTreeMap<MachineId, Group<T>>,
    number: u64,
    wake_us: Option<u64>,
}

impl<T> IoCost<T> {
    /// Makes one for a device of this kind; all groups have the same weight.
    pub fn new(kind: Kind) -> IoCost<T> {
        IoCost {
            kind,
            groups: BTreeMap::new(),
            number: 0,
            wake_us: None,
        }
    }

    fn cost_us(&self, op: Op, bytes: u64) -> f64 {
        match op {
            Op::Read | Op::Write => self.kind.random_us(bytes) / self.kind.channels() as f64,
            // it knows of no flushes
            Op::Flush => 0.0,
        }
    }

    fn at_work(&self, now_us: u64) -> usize {
        let works =
            |group: &&Group<T>| !group.queue.is_empty() || group.asked_us + PERIOD_US > now_us;
        self.groups.values().filter(works).count()
    }
}

impl<T: Send> Policy<T> for IoCost<T> {
    fn submit(
        &mut self,
        now_us: u64,
        who: Who,
        op: Op,
        bytes: u64,
        request: T,
    ) -> Result<(), Full<T>> {
        self.number += 1;
        let group = self.groups.entry(who.machine).or_insert_with(|| Group {
            queue: VecDeque::new(),
            virtual_us: 0.0,
            asked_us: now_us,
        });
        if group.queue.is_empty() {
            group.virtual_us = group.virtual_us.max(now_us as f64 - BUDGET_US);
        }
        group.asked_us = now_us;
        group
            .queue
            .push_back((self.number, who, op, bytes, request));
        Ok(())
    }

    fn next(&mut self, now_us: u64, ready: &mut dyn FnMut(&Who, &T) -> bool) -> Option<(Who, T)> {
        let at_work = self.at_work(now_us) as f64;
        let mut first: Option<(u64, MachineId, f64)> = None;
        let mut wake_us: Option<u64> = None;
        for (id, group) in &self.groups {
            let Some((number, who, op, bytes, request)) = group.queue.front() else {
                continue;
            };
            if !ready(who, request) {
                continue;
            }
            let after_us = group.virtual_us + self.cost_us(*op, *bytes) * at_work;
            if after_us > now_us as f64 {
                let due_us = after_us.ceil() as u64;
                wake_us = Some(wake_us.map_or(due_us, |us| us.min(due_us)));
            } else if first.is_none_or(|(known, ..)| *number < known) {
                first = Some((*number, *id, after_us));
            }
        }
        self.wake_us = wake_us;
        let (_, id, after_us) = first?;
        let group = self.groups.get_mut(&id)?;
        group.virtual_us = after_us;
        let (_, who, _, _, request) = group.queue.pop_front()?;
        Some((who, request))
    }

    fn wake_us(&self) -> Option<u64> {
        self.wake_us
    }

    fn retain(&mut self, keep: &mut dyn FnMut(&T) -> bool) {
        for group in self.groups.values_mut() {
            group.queue.retain(|(.., request)| keep(request));
        }
    }

    fn len(&self) -> usize {
        self.groups.values().map(|group| group.queue.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_at_work_share_the_device_by_what_their_requests_cost() {
        let mut cost = IoCost::new(Kind::HardDisk);
        let mut served = [0u32; 3];
        for machine in [1, 2] {
            for number in 0..2000 {
                let who = Who::demand(MachineId(machine));
                let bytes = if machine == 1 { 16 << 10 } else { 1 << 20 };
                cost.submit(0, who, Op::Read, bytes, number).unwrap();
            }
        }
        let mut now_us = 0;
        while now_us < 10_000_000 {
            match cost.next(now_us, &mut |_, _| true) {
                Some((who, _)) => served[who.machine.0 as usize] += 1,
                None => now_us = cost.wake_us().unwrap(),
            }
        }
        let (small_us, large_us) = (
            Kind::HardDisk.random_us(16 << 10),
            Kind::HardDisk.random_us(1 << 20),
        );
        for (served, cost_us) in [(served[1], small_us), (served[2], large_us)] {
            let used_us = f64::from(served) * cost_us;
            assert!(
                (used_us / 5_000_000.0 - 1.0).abs() < 0.03,
                "{served} of {cost_us}"
            );
        }
    }

    #[test]
    fn a_group_that_was_idle_has_no_more_than_its_budget() {
        let mut cost = IoCost::new(Kind::HardDisk);
        let who = Who::demand(MachineId(1));
        let now_us = 60_000_000;
        for number in 0..100 {
            cost.submit(now_us, who, Op::Read, 16 << 10, number)
                .unwrap();
        }
        let at_once = std::iter::from_fn(|| cost.next(now_us, &mut |_, _| true)).count();
        assert_eq!(
            at_once,
            (BUDGET_US / Kind::HardDisk.random_us(16 << 10)) as usize
        );
        assert_eq!(cost.len(), 100 - at_once);
    }
}
